// Code that the pages share. Data from a server enters a page as text only, and the token travels in a header only.
const RETRY_MS = 2000;
const HIDDEN_MS = 60_000; // a hidden page makes room for others
const SHOWN_CHARACTERS = 2000; // of one value, until somebody asks for the rest
const LATEST_MS = 8.64e15; // the end of a browser's calendar

let token = ""; // in memory only: it is gone when the page is

export const byId = (id) => document.getElementById(id);

export function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Only changed texts are written, so that selections and screen readers are not disturbed.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// --- texts

export const number = (value) => Number(value).toLocaleString("en", { maximumFractionDigits: 1 });

export function size(bytes) {
  if (bytes === undefined || bytes === null) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) { bytes /= 1000; at += 1; }
  return `${at ? bytes.toFixed(1) : bytes} ${units[at]}`;
}

export function time(ms) {
  return Math.abs(ms) <= LATEST_MS ? new Date(Number(ms)).toISOString().replace("T", " ").replace(/\.000Z$|Z$/, "") : `${ms} ms`;
}

export function span(ms) {
  if (ms === undefined || ms === null) return "";
  for (const [unit, length] of [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]]) {
    if (ms >= length) return `${number(ms / length)} ${unit}`;
  }
  return `${number(ms)} ms`;
}

// A value as text; a whole number that JavaScript would round is shown as it came.
export function plain(value) {
  return typeof value === "string" ? value : JSON.stringify(value) ?? "";
}

function exact(_key, value, context) {
  const source = context?.source;
  if (typeof value !== "number" || source === undefined || /[.eE]/.test(source) || String(value) === source) return value;
  return JSON.rawJSON ? JSON.rawJSON(source) : source;
}

export const parseExactly = (text) => JSON.parse(text, exact);

// A text that may be huge: its beginning, and a button for the rest.
export function longText(name, text) {
  if (text.length <= SHOWN_CHARACTERS) return element(name, text);
  const made = element(name, `${text.slice(0, SHOWN_CHARACTERS)}… `);
  const more = element("button", `Show all ${number(text.length)} characters`, { type: "button" });
  more.addEventListener("click", () => { made.textContent = text; });
  made.append(more);
  return made;
}

// --- tables

// A row is read aloud with its first cell.
function sameRow(row, cells) {
  cells.forEach((text, at) => {
    if (!row.cells[at]) row.append(at ? element("td") : element("th", "", { scope: "row" }));
    setText(row.cells[at], text);
  });
}

// Set the texts of a table's rows. Rows stay where they are, so that readers keep their place.
export function fill(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => sameRow(body.rows[at] ?? body.insertRow(), cells));
}

// Give a cell the colour of trouble, of doubt, or none.
export function tint(cell, is) {
  if (cell.className !== is) cell.className = is;
}

// Turn a cell's text into a link, once: a link that has the focus stays.
export function link(cell, href) {
  if (!cell.firstElementChild) cell.replaceChildren(element("a", cell.textContent, { href }));
  return cell.firstElementChild;
}

// Whether a text is an address of an instance. A member of a group may name any text; others do not become links.
export const isAddress = (server) => /^(\[[0-9a-fA-F:]+\]|[\w.-]+):\d+$/.test(server);

// Set a list of terms to these pairs, likewise.
export function define(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild.remove();
  pairs.forEach(([name, value], at) => {
    if (!list.children[at]) {
      const pair = element("div");
      pair.append(element("dt"), element("dd"));
      list.append(pair);
    }
    setText(list.children[at].children[0], name);
    setText(list.children[at].children[1], value);
  });
}

// --- pictures

const MOST_BOXES = 3000; // a larger picture would keep a browser busy, and nobody could read it

// Draw a topology, or what is drawn like one, in the colours of the page. If it is too large, say so, with a hint; then return null.
export function drawPicture(place, text, hint) {
  const boxes = text.split("<rect").length - 1;
  if (boxes > MOST_BOXES) {
    place.textContent = `There are ${number(boxes)} parts: this is too large for a picture here. ${hint}`;
    return null;
  }
  const unstyled = text.replace(/<style>[^]*?<\/style>/, "");
  const picture = document.importNode(new DOMParser().parseFromString(unstyled, "image/svg+xml").documentElement, true);
  picture.querySelectorAll(".edge").forEach((each) => each.setAttribute("marker-end", "url(#riverrun-head)"));
  place.replaceChildren(picture);
  return picture;
}

// --- the menu

const menu = new Map(); // the link to each section

function addMenu() {
  for (const section of document.querySelectorAll("main section[aria-labelledby]")) {
    const title = byId(section.getAttribute("aria-labelledby"));
    menu.set(section, element("a", title.textContent, { href: `#${title.id}`, hidden: "" }));
  }
  byId("menu").append(...menu.values());
}

// Show the links to the sections that are not hidden.
function showMenu() {
  for (const [section, entry] of menu) entry.hidden = section.hidden;
}

// --- asking

// Ask for a path; with a body, in JSON, by POST.
export async function ask(path, signal, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const request = { headers, cache: "no-store", redirect: "error", signal };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(request, { method: "POST", body: JSON.stringify(body) });
  }
  const answer = await fetch(path, request);
  if (answer.ok) return answer;
  let message = `${answer.status}`;
  try {
    message = (await answer.json()).message;
  } catch { /* no JSON: the status has to do */ }
  throw Object.assign(new Error(message), { status: answer.status });
}

// Read events until the server or the signal ends them. If several have arrived, only the last is used.
async function read(path, signal, show) {
  const answer = await ask(path, signal);
  setText(byId("connection"), "Connected");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const ends = value.includes("\n\n") || (text.endsWith("\n") && value.startsWith("\n"));
    text += value;
    if (!ends) continue;
    const events = text.split("\n\n");
    text = events.pop();
    const data = events.findLast((event) => event.includes("data: "))?.split("\n").find((line) => line.startsWith("data: "));
    if (!data) continue;
    show(JSON.parse(data.slice(6)));
    showMenu();
  }
}

function askForToken(message) {
  setText(byId("connection"), "A token is needed");
  setText(byId("login-error"), message);
  byId("login").hidden = false;
  byId("main").hidden = true;
  byId("token").focus();
}

function shown() {
  return new Promise((resolve) => {
    const look = () => { if (!document.hidden) { document.removeEventListener("visibilitychange", look); resolve(); } };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

// End a signal when the page has been hidden for a while.
function whileLookedAt() {
  const ends = new AbortController();
  let timer;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => ends.abort(), HIDDEN_MS);
  };
  document.addEventListener("visibilitychange", look);
  look();
  return { signal: ends.signal, stop: () => { clearTimeout(timer); document.removeEventListener("visibilitychange", look); } };
}

// Follow a server for as long as the page is open: `load` once per connection, `show` at each event.
async function follow(path, load, show) {
  for (;;) {
    const looked = whileLookedAt();
    try {
      await load();
      byId("login").hidden = true;
      byId("main").hidden = false;
      showMenu();
      await read(path, looked.signal, show);
      setText(byId("connection"), "The connection has ended; trying again");
    } catch (error) {
      if (error.status === 401) {
        askForToken(token ? "This is not the token." : "");
        return;
      }
      setText(byId("connection"), looked.signal.aborted ? "Paused" : `No connection: ${error.message}; trying again`);
    } finally {
      looked.stop();
    }
    await Promise.all([shown(), new Promise((resolve) => { setTimeout(resolve, RETRY_MS); })]);
  }
}

// The form for a token, whose place is before the main part.
function addLogin(who, section) {
  const form = element("form", undefined, { id: "login", "aria-labelledby": "login-title", hidden: "" });
  const asks = element("p", `${who} asks for a token: `);
  asks.append(element("code", "server.read.token"), " or ", element("code", "server.token"));
  if (section) asks.append(" of ", element("code", section));
  asks.append(". The page keeps it until it is closed.");
  form.append(
    element("h2", "Token", { id: "login-title" }), asks, element("label", "Token", { for: "token" }), " ",
    element("input", undefined, { id: "token", type: "password", autocomplete: "off", required: "" }), " ",
    element("button", "Show"), element("p", "", { id: "login-error", role: "alert" }),
  );
  byId("main").before(form);
  return form;
}

// Show a page whose server may ask for a token: `who` asks, for one of a section of streams.toml.
export function start(path, load, show, who, section) {
  setText(byId("connection"), "Connecting");
  addMenu();
  addLogin(who, section).addEventListener("submit", (event) => {
    event.preventDefault();
    token = byId("token").value.trim();
    byId("token").value = "";
    byId("login").hidden = true; // one stream of events, however often it is sent
    follow(path, load, show);
  });
  follow(path, load, show);
}
