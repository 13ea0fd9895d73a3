// A box for queries in SQL: rows of stored tables, or changes as they come.
import { ask, byId, element, longText, parseExactly, plain, setText } from "/page.js";

const SHOWN = 500;
const CHANGES = /\bEMIT\s+CHANGES\b/i;

let asked = null; // the statement that is shown, and its next page
let following = null; // ends the changes that are followed

function row(values) {
  const made = element("tr");
  made.append(...values.map((value) => longText("td", value === null ? "null" : plain(value))));
  return made;
}

function showColumns(columns) {
  const head = element("tr");
  head.append(...columns.map((each) => element("th", [each.name, each.type].filter(Boolean).join(" "), { scope: "col" })));
  byId("sql-columns").replaceChildren(head);
  byId("sql-rows").replaceChildren();
}

async function pull(sql, page) {
  const found = parseExactly(await (await ask("/query", undefined, page === null ? { sql } : { sql, page })).text());
  showColumns(found.columns);
  byId("sql-rows").append(...found.rows.map(row));
  setText(byId("sql-found"), `${found.rows.length} ${found.rows.length === 1 ? "row" : "rows"}${found.next ? ", and there may be more" : ""}`);
  asked = { sql, page: found.next };
  byId("sql-next").hidden = !found.next;
}

function showLine(line, count) {
  if (Array.isArray(line)) {
    byId("sql-rows").prepend(row(line));
    if (byId("sql-rows").childElementCount > SHOWN) byId("sql-rows").lastElementChild.remove();
    setText(byId("sql-found"), `${count} rows came`);
  } else if (line.columns) {
    showColumns(line.columns);
    setText(byId("sql-found"), "No row has come yet");
  } else {
    setText(byId("sql-found"), `${count} rows came; ${line.message || "that is all"}`);
  }
}

async function follow(sql) {
  following = new AbortController();
  byId("sql-stop").hidden = false;
  const start = byId("sql-earliest").checked ? "earliest" : "latest";
  const answer = await ask(`/query/changes?from=${start}`, following.signal, { sql });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let count = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (text + value).split("\n");
    text = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const found = parseExactly(line);
      if (Array.isArray(found)) count += 1;
      showLine(found, count);
    }
  }
}

async function query(sql, page = null) {
  following?.abort();
  setText(byId("sql-error"), "");
  byId("sql-next").hidden = true;
  try {
    await (CHANGES.test(sql) ? follow(sql) : pull(sql, page));
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("sql-rows").replaceChildren();
    setText(byId("sql-found"), "");
    setText(byId("sql-error"), error.message);
  } finally {
    byId("sql-stop").hidden = true;
  }
}

byId("sql-form").addEventListener("submit", (event) => {
  event.preventDefault();
  query(byId("sql").value);
});
byId("sql").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("sql-form").requestSubmit();
});
byId("sql-next").addEventListener("click", () => query(asked.sql, asked.page));
byId("sql-stop").addEventListener("click", () => {
  following?.abort();
  setText(byId("sql-found"), `${byId("sql-rows").childElementCount} rows shown; stopped`);
});
