// The console of one instance.
import { Chart, Past, percent, short, unit } from "/charts.js";
import { drawGraph, showOnGraph } from "/graph.js";
import { ask, byId, define, element, fill, isAddress, link, number, setText, size, span, start, time } from "/page.js";
import "/sql.js";
import { listLetters } from "/letters.js";
import { listStores } from "/stores.js";
import { listTopics, showRecord } from "/topics.js";

const LOGGED = 200;
const MOST_TASKS = 200; // rows that a browser can keep up to date

const MOST_SHARES = 24;
const KINDS = ["threads/", "sub-topologies/", "nodes/"];
const KEPT_EVERY_MS = 60_000;
const LEAST_BUSY = 0.01; // nodes that never take more of a stream thread have no chart
const PARTS = [["process", "process"], ["punctuate", "punctuate"], ["commit", "commit"], ["commit_wait", "wait for commit"], ["poll", "poll"]];

let last = null;
const past = new Past(); // it goes on when the instance comes back
let kept = null; // the past of days, from a topic; null while an hour is enough
let nextKept = 0;
let failures = [];
let nextPast = 0;
let listed = null; // the instance's state when stores were listed: one that starts has none yet

// --- figures

function showNow(state) {
  setText(byId("name"), state.server ? `${state.application} at ${state.server}` : state.application);
  document.title = `${state.application}: Riverrun console`;
  define(byId("now"), [
    ["State", state.paused ? `${state.state}, paused` : state.state],
    ["Records/s", number(state.rate)],
    ["Records", number(state.processed)],
    ["Lag of inputs", number(state.lag)],
    ["Latency", state.latency_ms === null ? "none yet" : span(state.latency_ms)],
    ["Lag of copies", number(state.copies_lag)],
    ["State on disk", size(Object.values(state.state_bytes).reduce((sum, each) => sum + each, 0))],
    ...(state.left_bytes ? [["Left by tasks that moved", size(state.left_bytes)]] : []),
    ["Tasks here", `${number(state.active.length)} active, ${number(Object.keys(state.standby).length)} standby`],
    ["Stream threads", number(state.threads)],
    ["Last recovery", state.recovery_s === null ? "none" : `${number(state.recovery_s)} s`],
  ]);
}

// --- tasks

const numbers = (task) => task.split("_").map(Number);

function inOrder(one, other) {
  const [a, b] = [numbers(one), numbers(other)];
  return a[0] - b[0] || a[1] - b[1];
}

function doing(state, task, isActive) {
  if (task in state.restoring) {
    const left = state.restoring[task];
    return left === null ? "restoring" : `restoring, ${number(left)} left`;
  }
  if (task in state.waiting) {
    const { inputs, tasks, since } = state.waiting[task];
    return `active, waits for ${[...inputs, ...tasks].join(", ")} since ${time(since)}`;
  }
  if (isActive) return "active";
  return task in state.standby ? "standby" : "";
}

function showTasks(state) {
  const active = new Set(state.active);
  const names = new Set([...Object.keys(state.servers), ...state.active, ...Object.keys(state.standby), ...Object.keys(state.restoring)]);
  const wanted = byId("task-filter").value.trim();
  const tasks = [...names].filter((task) => `${task} ${state.servers[task] ?? ""}`.includes(wanted)).sort(inOrder);
  const text = `${number(tasks.length)} ${tasks.length === 1 ? "task" : "tasks"}`;
  setText(byId("tasks-found"), tasks.length > MOST_TASKS ? `${text}, the first ${MOST_TASKS} shown` : text);
  fill(byId("tasks"), tasks.slice(0, MOST_TASKS).map((task) => {
    const known = state.tasks[task];
    return [
      task, state.servers[task] ?? "", (state.standby_servers[task] ?? []).join(", "), doing(state, task, active.has(task)),
      known ? number(known.rate) : "", known ? percent(known.busy) : "", known ? number(known.lag) : "", known ? span(known.latency_ms) : "",
      task in state.lags ? number(state.lags[task]) : "", size(state.state_bytes[task]),
    ];
  }));
}

// --- look-ups

function ofCaches({ cache_hits: hits, cache_misses: misses }) {
  return hits + misses ? `${percent(hits / (hits + misses))} of ${number(hits + misses)}` : "";
}

function showLookups({ lookups }) {
  const known = Object.entries(lookups);
  byId("lookups-section").hidden = !known.length;
  fill(byId("lookups"), known.map(([node, each]) => [
    node, number(each.rate), number(each.in_flight), number(each.waiting), span(each.latency_ms), span(each.latency_max_ms),
    number(each.failures), number(each.retries), number(each.timeouts), ofCaches(each),
  ]));
}

// --- instances

function instancesOf(state) {
  const found = new Map();
  const of = (server) => found.get(server) ?? found.set(server, { active: 0, standby: 0 }).get(server);
  if (state.server) of(state.server);
  for (const server of Object.values(state.servers)) if (server) of(server).active += 1;
  for (const servers of Object.values(state.standby_servers)) for (const server of servers) if (server) of(server).standby += 1;
  return [...found].sort(([one], [other]) => (one < other ? -1 : 1));
}

function showInstances(state) {
  const body = byId("instances");
  const known = instancesOf(state);
  fill(body, known.map(([server, { active, standby }]) => [server, server === state.server ? "this one" : "", number(active), number(standby)]));
  known.forEach(([server], at) => {
    if (server !== state.server && isAddress(server)) link(body.rows[at].cells[0], `${location.protocol}//${server}/`);
  });
}

// --- events and failures

function note({ at, text }) {
  const log = byId("log");
  log.prepend(element("li", `${time(at)} ${text}`));
  while (log.childElementCount > LOGGED) log.lastElementChild.remove();
}

// Failures, the latest first; texts come from records.
function showFailures() {
  byId("failures-none").hidden = failures.length > 0;
  byId("failures-table").hidden = !failures.length;
  fill(byId("failures"), failures.map((each) => [
    time(each.at_ms), each.topic ? `${each.topic}-${each.partition}@${each.offset}` : "", each.key,
    `${each.error || "ended"}: ${each.message}`, each.node, each.task, each.outcome,
  ]));
  failures.forEach((each, at) => {
    if (!each.topic) return;
    link(byId("failures").rows[at].cells[1], "#topics-title").onclick = (event) => showRecord(event.target.textContent);
  });
}

// --- the past

const charts = [
  new Chart(byId("charts"), "Rate", { text: unit("records/s"), axis: short, lines: [["rate"]] }),
  new Chart(byId("charts"), "Lag of inputs", { text: unit("offsets"), axis: short, lines: [["lag"]] }),
  new Chart(byId("charts"), "Latency", { text: span, lines: [["latency_ms"]] }),
  new Chart(byId("charts"), "Time of a commit", { text: span, lines: [["commit_ms"]] }),
  new Chart(byId("charts"), "Lag of copies", { text: unit("records"), axis: short, lines: [["copies_lag"]] }),
];
const shares = new Map(); // charts of stream threads and sub-topologies, by the first of their series

const shownPast = () => kept ?? past;
const isWorthIt = (name) => shownPast().series.get(name).some((each) => each > LEAST_BUSY);

function linesOf(name) {
  const [, kind, of] = /^(threads|sub-topologies|nodes)\/([^]+)\/(?:process|busy)$/.exec(name) ?? [];
  if (kind === "threads") return [`Stream thread ${of}`, PARTS.map(([part, word]) => [`threads/${of}/${part}`, word]), 1];
  if (kind === "nodes") return isWorthIt(name) ? [`${of} busy`, [[name]], null] : null;
  return kind ? [`Sub-topology ${of} busy`, [[name]], null] : null;
}

function showShares() {
  const { series } = shownPast();
  for (const [name, chart] of shares) if (!series.has(name)) { chart.figure.remove(); shares.delete(name); }
  const rank = (name) => KINDS.findIndex((kind) => name.startsWith(kind));
  const inOrder = (a, b) => rank(a) - rank(b) || a.localeCompare(b, "en", { numeric: true });
  for (const name of [...series.keys()].filter(linesOf).sort(inOrder)) {
    if (shares.has(name) || shares.size >= MOST_SHARES) continue;
    const [title, lines, top] = linesOf(name);
    shares.set(name, new Chart(byId("threads"), title, { text: percent, lines, top }));
  }
}

function showPast() {
  showShares();
  const period = Number(byId("period").value);
  for (const chart of [...charts, ...shares.values()]) chart.draw(shownPast(), period);
}

// The past of days is read when it is chosen, and each minute.
async function choosePeriod() {
  const period = Number(byId("period").value);
  nextKept = performance.now() + KEPT_EVERY_MS;
  if (period <= past.keptMs) {
    kept = null;
    setText(byId("period-error"), "");
  } else {
    try {
      const found = await (await ask(`/history/kept?hours=${period / 3_600_000}`)).json();
      if (Number(byId("period").value) !== period) return; // chosen differently meanwhile
      kept = new Past();
      kept.add(found);
      setText(byId("period-error"), found.is_complete ? "" : "There is more than can be read at once: the newest part is missing.");
    } catch (error) {
      setText(byId("period-error"), error.message);
      return;
    }
  }
  showPast();
}

async function followPast() {
  const found = await (await ask(`/history?since=${past.lookedAt}`)).json();
  for (const each of byId("period").querySelectorAll(".kept")) each.hidden = each.disabled = !found.has_topic;
  if (!past.add(found)) return;
  found.events.forEach(note);
  failures = [...found.failures.reverse(), ...failures].slice(0, LOGGED);
  if (kept && performance.now() > nextKept) await choosePeriod();
  showPast();
  showFailures();
}

// Ask for the past at the pace of its samples, one question at a time.
function keepUp() {
  const now = performance.now();
  if (now < nextPast) return;
  nextPast = now + past.everyMs;
  followPast().catch((error) => setText(byId("connection"), `Without the past: ${error.message}`));
}

// --- all of it

function show(state) {
  showNow(state);
  showTasks(state);
  showLookups(state);
  showInstances(state);
  showOnGraph(state);
  keepUp();
  if (listed !== state.state) {
    if (listed !== null) listStores();
    listed = state.state;
  }
  last = state;
}

async function showTopology() {
  try {
    const topology = await (await ask("/topology")).json();
    byId("sql-section").hidden = !topology.is_sql;
    drawGraph(topology);
  } catch (error) {
    byId("graph").textContent = `The topology cannot be shown: ${error.message}`;
  }
}

async function load() {
  await ask("/status");
  await Promise.all([showTopology(), listStores(), listTopics().catch((error) => setText(byId("topic-error"), error.message)), listLetters()]);
  listed = null;
}

byId("period").addEventListener("change", choosePeriod);
byId("task-filter").addEventListener("input", () => { if (last) showTasks(last); });
start("/events", load, show, "This instance");
