// Dead letters: a list, and one of them with its exception. They are replayed in a shell.
import { ask, byId, define, element, fill, link, longText, setText, time } from "/page.js";

let letters = [];

function command(app, what, place) {
  const line = element("p", `To ${what} it: `);
  line.append(element("code", `riverrun letters ${what} ${app} ${place}`));
  return line;
}

function showLetter(app, letter) {
  const made = byId("letter");
  const facts = element("dl");
  define(facts, [
    ["Place", letter.place], ["Record", letter.origin], ["Time", time(letter.timestamp)], ["Exception", letter.error],
    ["Decision", letter.note ? `${letter.note.state} by ${letter.note.by}` : "none"],
  ]);
  made.replaceChildren(
    element("h3", `Letter ${letter.place}`, { tabindex: "-1" }), facts, element("h4", "Key"), longText("pre", letter.key_text),
    element("h4", "Value"), longText("pre", letter.value_text), element("h4", "Exception"),
    longText("pre", letter.trace || `${letter.error}: ${letter.message}`),
    ...(letter.note ? [] : [command(app, "replay", letter.place), command(app, "discard", letter.place)]),
  );
  made.hidden = false;
  made.firstElementChild.focus();
}

async function show(app, place) {
  try {
    showLetter(app, await (await ask(`/letters/${encodeURIComponent(place)}`)).json());
  } catch (error) {
    setText(byId("letters-error"), error.message);
  }
}

function showAll(found) {
  letters = found.letters;
  const rows = byId("letters");
  fill(rows, letters.map((each) => [
    each.place, time(each.timestamp), each.origin, `${each.error}: ${each.message}`, each.note ? `${each.note.state} by ${each.note.by}` : "",
  ]));
  letters.forEach((each, at) => {
    link(rows.rows[at].cells[0], "#letter").onclick = (event) => { event.preventDefault(); show(found.app, letters[at].place); };
  });
  const count = `${letters.length} ${letters.length === 1 ? "letter" : "letters"} in ${found.topic}`;
  setText(byId("letters-found"), found.is_end ? count : `${count}, and there are more: choose by exception, record or time`);
}

// Read the list; the section is hidden if the application has no letters.
export async function listLetters() {
  const parameters = new URLSearchParams({ decided: byId("letters-decided").checked });
  for (const [name, field] of [["error", "letters-error-text"], ["origin", "letters-origin"]]) {
    const text = byId(field).value.trim();
    if (text !== "") parameters.set(name, text);
  }
  setText(byId("letters-error"), "");
  byId("letter").hidden = true;
  try {
    const found = await (await ask(`/letters?${parameters}`)).json();
    byId("letters-section").hidden = found.topic === null;
    if (found.topic !== null) showAll(found);
  } catch (error) {
    setText(byId("letters-error"), error.message);
  }
}

byId("letters-form").addEventListener("submit", (event) => { event.preventDefault(); listLetters(); });
