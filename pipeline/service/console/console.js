// The console. Whatever comes from the instance is put into the page as text only, and the token travels in a header only.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const KEPT = 300; // points of a chart: five minutes
const LOGGED = 200;
const RETRY_MS = 2000;
const byId = (id) => document.getElementById(id);

let token = ""; // in memory only: it is gone when the page is
let stores = [];
let last = null;
let nextPage = null;
let figures = new Map();

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

async function ask(path) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", redirect: "error" });
  if (answer.ok) return answer;
  let message = `${answer.status}`;
  try {
    message = (await answer.json()).message;
  } catch { /* no JSON: the status has to do */ }
  throw Object.assign(new Error(message), { status: answer.status });
}

function size(bytes) {
  if (bytes === undefined) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) { bytes /= 1000; at += 1; }
  return `${at ? bytes.toFixed(1) : bytes} ${units[at]}`;
}

const time = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", "");
const number = (value) => Number(value).toLocaleString("en", { maximumFractionDigits: 1 });

// --- the graph

async function drawGraph() {
  const topology = await (await ask("/topology")).json();
  byId("description").textContent = topology.description;
  const unstyled = topology.picture.replace(/<style>[^]*?<\/style>/, ""); // colours are those of the page
  const picture = document.importNode(new DOMParser().parseFromString(unstyled, "image/svg+xml").documentElement, true);
  picture.querySelectorAll(".edge").forEach((each) => each.setAttribute("marker-end", "url(#millrace-head)"));
  figures = new Map();
  picture.querySelectorAll("text.title").forEach((title) => {
    const found = /^Sub-topology (\d+)$/.exec(title.textContent);
    if (!found) return;
    const text = document.createElementNS(SVG, "text");
    text.setAttribute("class", "figures");
    text.setAttribute("x", title.getAttribute("x"));
    text.setAttribute("y", Number(title.getAttribute("y")) - 18);
    title.before(text);
    figures.set(found[1], text);
  });
  byId("graph").replaceChildren(picture);
}

function showOnGraph(state) {
  for (const [id, text] of figures) {
    const sub = state.sub_topologies[id] ?? { rate: 0, lag: 0, state_bytes: 0 };
    text.textContent = `${number(sub.rate)}/s, lag ${number(sub.lag)}, ${size(sub.state_bytes)}`;
  }
}

// --- charts

class Chart {
  constructor(title, unit, read) {
    this.unit = unit;
    this.read = read;
    this.values = [];
    const figure = element("figure");
    this.caption = element("figcaption", title);
    this.title = title;
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("class", "chart");
    this.svg.setAttribute("viewBox", "0 0 300 80");
    this.svg.setAttribute("role", "img");
    this.line = document.createElementNS(SVG, "polyline");
    this.svg.append(this.line);
    figure.append(this.caption, this.svg);
    byId("charts").append(figure);
  }

  add(state) {
    const value = this.read(state);
    this.values.push(value ?? this.values.at(-1) ?? 0);
    if (this.values.length > KEPT) this.values.shift();
    const top = Math.max(1e-9, ...this.values);
    const step = 300 / (KEPT - 1);
    const left = 300 - (this.values.length - 1) * step;
    const points = this.values.map((each, at) => `${(left + at * step).toFixed(1)},${(76 - (each / top) * 70).toFixed(1)}`);
    this.line.setAttribute("points", points.join(" "));
    const text = `${this.title}: ${number(this.values.at(-1))} ${this.unit}, at most ${number(top < 1e-6 ? 0 : top)}`;
    this.caption.textContent = text;
    this.svg.setAttribute("aria-label", text);
  }
}

let charts = [];

// --- figures, tasks, what happens

function showNow(state) {
  byId("application").textContent = `${state.application} at ${state.server}`;
  const shown = [
    ["State", state.paused ? `${state.state}, paused` : state.state],
    ["Records/s", number(state.rate)],
    ["Records", number(state.processed)],
    ["Lag of copies", number(state.lag)],
    ["State", size(Object.values(state.state_bytes).reduce((sum, each) => sum + each, 0))],
    ["Tasks here", `${state.active.length} active, ${Object.keys(state.standby).length} standby`],
    ["Stream threads", number(state.threads)],
    ["Last recovery", state.recovery_s === null ? "none" : `${number(state.recovery_s)} s`],
  ];
  byId("now").replaceChildren(...shown.map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
}

function showTasks(state) {
  const names = new Set([...Object.keys(state.servers), ...state.active, ...Object.keys(state.standby), ...Object.keys(state.restoring)]);
  const rows = [...names].sort().map((task) => {
    const here = task in state.restoring ? "restoring" : state.active.includes(task) ? "active" : task in state.standby ? "standby" : "";
    const row = element("tr");
    const cells = [
      task, state.servers[task] ?? "", (state.standby_servers[task] ?? []).join(", "), task in state.waiting ? `${here}, waiting` : here,
      task in state.tasks ? number(state.tasks[task].rate) : "", task in state.lags ? number(state.lags[task]) : "", size(state.state_bytes[task]),
    ];
    row.append(...cells.map((each) => element("td", each)));
    return row;
  });
  byId("tasks").replaceChildren(...rows);
}

function note(at, text) {
  const log = byId("log");
  log.prepend(element("li", `${time(at)} ${text}`));
  while (log.childElementCount > LOGGED) log.lastElementChild.remove();
}

function compare(before, now) {
  if (!before) {
    note(now.at, `${now.state}; active: ${now.active.join(", ") || "none"}`);
    return;
  }
  if (before.state !== now.state) note(now.at, `${before.state} → ${now.state}`);
  if (before.paused !== now.paused) note(now.at, now.paused ? "paused" : "resumed");
  const changes = [
    ["takes over", now.active.filter((each) => !before.active.includes(each))],
    ["gives up", before.active.filter((each) => !now.active.includes(each))],
    ["begins to restore", Object.keys(now.restoring).filter((each) => !(each in before.restoring))],
    ["has restored", Object.keys(before.restoring).filter((each) => !(each in now.restoring))],
    ["moved", Object.keys(now.servers).filter((each) => each in before.servers && before.servers[each] !== now.servers[each])],
  ];
  for (const [what, tasks] of changes) if (tasks.length) note(now.at, `${what}: ${tasks.join(", ")}`);
}

function show(state) {
  showNow(state);
  showTasks(state);
  showOnGraph(state);
  charts.forEach((each) => each.add(state));
  compare(last, state);
  last = state;
}

// --- stores

async function listStores() {
  stores = await (await ask("/stores")).json();
  byId("store").replaceChildren(...stores.map((each) => element("option", each.store, { value: each.store })));
  describeStore();
}

function describeStore() {
  const store = stores.find((each) => each.store === byId("store").value);
  const text = store ? `${store.kind}, ${store.partitions} partitions; key: ${store.key_serde}, value: ${store.value_serde}` : "There are no stores.";
  byId("serdes").textContent = text;
  nextPage = null;
  byId("next").hidden = true;
}

function question() {
  const key = byId("key").value;
  const parameters = new URLSearchParams();
  const given = { from: "from", to: "to", time_from: "time-from", time_to: "time-to" };
  for (const [name, id] of Object.entries(given)) if (byId(id).value !== "") parameters.set(name, byId(id).value);
  const path = `/stores/${encodeURIComponent(byId("store").value)}${key === "" ? "" : `/${encodeURIComponent(key)}`}`;
  return { path, parameters };
}

async function browse(page) {
  byId("store-error").textContent = "";
  byId("next").hidden = true;
  const { path, parameters } = question();
  if (page) parameters.set("page", page);
  try {
    const found = await (await ask(`${path}?${parameters}`)).json();
    const rows = found.rows ?? [found];
    byId("rows").replaceChildren(...rows.map(row));
    if (!rows.length) byId("store-error").textContent = "There are no such rows.";
    nextPage = found.next ?? null;
    byId("next").hidden = nextPage === null;
  } catch (error) {
    byId("rows").replaceChildren();
    byId("store-error").textContent = error.message;
  }
}

function row(found) {
  const window_ = found.window ?? found.session;
  const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const made = element("tr");
  const times = window_ ? `${time(window_.start)} to ${time(window_.end)}` : "";
  const cells = [plain(found.key), plain(found.value), found.timestamp === undefined ? "" : time(found.timestamp), times];
  made.append(...cells.map((each) => element("td", each)));
  return made;
}

// --- the stream of events

async function follow() {
  const answer = await ask("/events");
  byId("connection").textContent = "Connected";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data) show(JSON.parse(data.slice(6)));
    }
  }
}

function askForToken(message) {
  byId("connection").textContent = "A token is needed";
  byId("login-error").textContent = message;
  byId("login").hidden = false;
  byId("main").hidden = true;
  byId("token").focus();
}

async function run() {
  for (;;) {
    try {
      await ask("/status");
      byId("login").hidden = true;
      byId("main").hidden = false;
      await Promise.all([drawGraph(), listStores()]);
      await follow();
      byId("connection").textContent = "The instance has ended the connection; trying again";
    } catch (error) {
      if (error.status === 401) {
        askForToken(token ? "This is not the token." : "");
        return;
      }
      byId("connection").textContent = `No connection: ${error.message}; trying again`;
    }
    await new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });
  }
}

charts = [
  new Chart("Rate", "records/s", (state) => state.rate),
  new Chart("Commit latency", "ms", (state) => state.commit_ms),
  new Chart("Lag of copies", "records", (state) => state.lag),
];
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  byId("login").hidden = true; // one stream of events, however often it is sent
  run();
});
byId("store").addEventListener("change", describeStore);
byId("browse").addEventListener("submit", (event) => { event.preventDefault(); browse(null); });
byId("next").addEventListener("click", () => browse(nextPage));
run();
