// A box for queries in SQL, which instances answer from the tables that they store.
import { ask, byId, element, longText, parseExactly, plain, setText } from "/page.js";

let asked = null; // the statement that is shown, and its next page

function row(values) {
  const made = element("tr");
  made.append(...values.map((value) => longText("td", value === null ? "null" : plain(value))));
  return made;
}

async function query(sql, page) {
  setText(byId("sql-error"), "");
  byId("sql-next").hidden = true;
  const body = page === null ? { sql } : { sql, page };
  try {
    const found = parseExactly(await (await ask("/query", undefined, body)).text());
    const head = element("tr");
    head.append(...found.columns.map((each) => element("th", `${each.name} ${each.type}`, { scope: "col" })));
    byId("sql-columns").replaceChildren(head);
    byId("sql-rows").replaceChildren(...found.rows.map(row));
    setText(byId("sql-found"), `${found.rows.length} ${found.rows.length === 1 ? "row" : "rows"}${found.next ? ", and there may be more" : ""}`);
    asked = { sql, page: found.next };
    byId("sql-next").hidden = !found.next;
  } catch (error) {
    byId("sql-rows").replaceChildren();
    setText(byId("sql-found"), "");
    setText(byId("sql-error"), error.message);
  }
}

byId("sql-form").addEventListener("submit", (event) => {
  event.preventDefault();
  query(byId("sql").value, null);
});
byId("sql").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("sql-form").requestSubmit();
});
byId("sql-next").addEventListener("click", () => query(asked.sql, asked.page));
