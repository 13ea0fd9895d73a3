// The browser of stores: one key, a range of keys, a stretch of time, page after page.
import { ask, byId, element, longText, parseExactly, plain, setText, time } from "/page.js";

const KEY_VALUE = new Set(["key-value", "timestamped-key-value"]);
const FIELDS = ["key", "from", "to", "prefix", "time-from", "time-to", "as-of"];

let stores = [];
let nextPage = null;

const chosen = () => stores.find((each) => each.store === byId("store").value);

// The query fields of each kind of store.
function fieldsOf(kind) {
  if (KEY_VALUE.has(kind)) return ["key", "from", "to", "prefix"];
  if (kind === "versioned") return ["key", "as-of"];
  if (kind === "session") return ["key", "time-from", "time-to"];
  return ["key", "from", "to", "time-from", "time-to"];
}

function describeStore() {
  const store = chosen();
  setText(byId("serdes"), store ? `${store.kind}, ${store.partitions} partitions; key: ${store.key_serde}, value: ${store.value_serde}` : "There are no stores.");
  const usable = store ? fieldsOf(store.kind) : [];
  for (const name of FIELDS) {
    byId(name).parentElement.hidden = !usable.includes(name);
    if (!usable.includes(name)) byId(name).value = "";
  }
  byId("rows").replaceChildren();
  byId("store-error").textContent = "";
  nextPage = null;
  byId("next").hidden = true;
}

function milliseconds(text) {
  if (/^\d+$/.test(text)) return text;
  const found = Date.parse(/[zZ]|[+-]\d\d:?\d\d$/.test(text) ? text : `${text.trim().replace(" ", "T")}${text.includes(":") ? "Z" : ""}`);
  if (Number.isNaN(found)) throw new Error(`${text} is no time: 2026-01-31T12:00Z, or milliseconds`);
  return String(found);
}

function question() {
  const key = byId("key").value;
  const parameters = new URLSearchParams();
  for (const name of FIELDS.slice(1)) {
    const text = byId(name).value;
    if (text !== "") parameters.set(name.replace("-", "_"), /time|as/.test(name) ? milliseconds(text) : text);
  }
  const path = `/stores/${encodeURIComponent(byId("store").value)}${key === "" ? "" : `/${encodeURIComponent(key)}`}`;
  return { path, parameters };
}

function row(found) {
  const window_ = found.window ?? found.session;
  const made = element("tr");
  const times = window_ ? `${time(window_.start)} to ${time(window_.end)}` : "";
  made.append(
    longText("td", plain(found.key)), longText("td", plain(found.value)),
    element("td", found.timestamp === undefined ? "" : time(found.timestamp)), element("td", times),
  );
  return made;
}

async function browse(page) {
  byId("store-error").textContent = "";
  byId("next").hidden = true;
  try {
    const { path, parameters } = question();
    if (page) parameters.set("page", page);
    const found = parseExactly(await (await ask(`${path}?${parameters}`)).text());
    const rows = found.rows ?? [found];
    byId("rows").replaceChildren(...rows.map(row));
    byId("found").textContent = `${rows.length} ${rows.length === 1 ? "row" : "rows"}`;
    nextPage = found.next ?? null;
    byId("next").hidden = nextPage === null;
  } catch (error) {
    byId("rows").replaceChildren();
    byId("found").textContent = "";
    byId("store-error").textContent = error.message;
  }
}

export async function listStores() {
  const before = byId("store").value;
  try {
    stores = await (await ask("/stores")).json();
  } catch (error) {
    if (!stores.length) byId("store-error").textContent = error.message;
    return;
  }
  byId("store").replaceChildren(...stores.map((each) => element("option", each.store, { value: each.store })));
  if (stores.some((each) => each.store === before)) {
    byId("store").value = before; // the rows that are shown stay
  } else {
    describeStore();
  }
}

byId("store").addEventListener("change", describeStore);
byId("browse").addEventListener("submit", (event) => { event.preventDefault(); browse(null); });
byId("next").addEventListener("click", () => browse(nextPage));
