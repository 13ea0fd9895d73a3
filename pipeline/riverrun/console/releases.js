// The release of an application: where it stands, its verdict and history, and the rows in which the versions differ.
import { ask, byId, define, element, fill, longText, number, span, time } from "/page.js";

let app = null;

function released(release) {
  const pairs = [["Live", release.live], ["Step", release.step]];
  if (release.candidate) pairs.push(["Candidate", release.candidate]);
  if (release.previous) pairs.push(["Before", release.previous]);
  if (release.verdict) pairs.push(["Verdict", judged(release.verdict)]);
  if (release.lost_records.length) pairs.push(["Deleted records", release.lost_records.join("; ")]);
  if (release.cut) pairs.push(["Corrections", number(release.corrections)]);
  if (release.pause_ms) pairs.push(["Pause", span(release.pause_ms)]);
  if (release.repaired) pairs.push(["Repaired", release.repaired]);
  if (release.held) pairs.push(["Held run", `${release.held.id}: ${release.held.progress}`], ["To do", release.held.hint]);
  return pairs;
}

function judged(verdict) {
  if (verdict.critical.length) return `${verdict.id}: does not pass`;
  if (verdict.needs_approval) return `${verdict.id}: needs an approval`;
  return verdict.approved_by ? `${verdict.id}: approved by ${verdict.approved_by}` : `${verdict.id}: passed`;
}

function more(change) {
  const said = [];
  if (change.verdict) said.push(`verdict ${change.verdict}`);
  if (change.corrections) said.push(`${number(change.corrections)} corrections`);
  if (change.repaired) said.push(`repaired ${change.repaired}`);
  if (change.held) said.push(change.held);
  return said.join("; ");
}

export function showRelease(state) {
  if (state.name !== app) {
    app = state.name;
    for (const id of ["compared", "compare-error"]) byId(id).textContent = "";
    byId("difference").hidden = true;
  }
  const release = state.release;
  define(byId("release"), release ? released(release) : []);
  byId("compare").parentElement.hidden = !release?.candidate;
  const outcomes = Object.entries(release?.verdict?.outcomes ?? {}).map(([name, outcome]) => `${name}: ${outcome}`);
  if (outcomes.join("\n") !== [...byId("verdict").children].map((each) => each.textContent).join("\n")) {
    byId("verdict").replaceChildren(...outcomes.map((each) => element("li", each)));
  }
  fill(byId("history"), (state.history ?? []).map((change) => [
    String(change.revision), time(change.at_ms), change.by, change.before === change.step ? change.step : `${change.before} → ${change.step}`,
    change.live, change.candidate ?? "", more(change),
  ]));
}

// The fields of one side; those that differ from the other side are marked.
function side(values, others) {
  const cell = element("td");
  const names = Object.keys(values);
  if (!names.length) cell.append(element("span", "nothing"));
  for (const name of names) {
    const text = name === "" ? values[name] : `${name}: ${values[name]}`;
    cell.append(longText(others[name] === values[name] ? "span" : "mark", text));
  }
  return cell;
}

function row(found) {
  const made = element("tr");
  made.append(element("td", found.topic), longText("td", Object.values(found.key).join(" ")), element("td", found.change));
  made.append(side(found.old, found.new), side(found.new, found.old));
  return made;
}

async function compare() {
  const asked = app;
  byId("compare-error").textContent = "";
  byId("compared").textContent = "Comparing";
  byId("compare").disabled = true;
  try {
    const { rows, more: isMore } = await (await ask(`/apps/${encodeURIComponent(asked)}/difference`)).json();
    if (asked !== app) return;
    byId("rows").replaceChildren(...rows.map(row));
    byId("difference").hidden = !rows.length;
    const count = `${rows.length} ${rows.length === 1 ? "row differs" : "rows differ"}`;
    byId("compared").textContent = rows.length ? `${isMore ? "More than " : ""}${count}` : "No row differs";
  } catch (error) {
    if (asked !== app) return;
    byId("compared").textContent = "";
    byId("compare-error").textContent = error.message;
  } finally {
    byId("compare").disabled = false;
  }
}

byId("compare").addEventListener("click", compare);
