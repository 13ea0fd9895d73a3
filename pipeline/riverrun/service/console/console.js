// The console of one instance.
import { Chart, unit } from "/charts.js";
import { drawGraph, showOnGraph } from "/graph.js";
import { ask, byId, define, element, fill, isAddress, link, number, setText, size, span, start, time } from "/page.js";
import { listStores } from "/stores.js";

const LOGGED = 200;
const MOST_TASKS = 200; // rows that a browser can keep up to date

let last = null;
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
      known ? number(known.rate) : "", known ? number(known.lag) : "", known ? span(known.latency_ms) : "",
      task in state.lags ? number(state.lags[task]) : "", size(state.state_bytes[task]),
    ];
  }));
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

// --- events

function note(at, text) {
  const log = byId("log");
  log.prepend(element("li", `${time(at)} ${text}`));
  while (log.childElementCount > LOGGED) log.lastElementChild.remove();
}

const some = (names) => (names.length > 20 ? `${names.slice(0, 20).join(", ")} and ${names.length - 20} more` : names.join(", "));

function compare(before, now) {
  if (!before || before.application !== now.application || before.instance !== now.instance) {
    note(now.at, `${now.state}; active: ${some(now.active) || "none"}`);
    return;
  }
  if (before.state !== now.state) note(now.at, `${before.state} → ${now.state}`);
  if (before.paused !== now.paused) note(now.at, now.paused ? "paused" : "resumed");
  if (before.threads !== now.threads) note(now.at, `stream threads: ${before.threads} → ${now.threads}`);
  if (before.recovery_s !== now.recovery_s && now.recovery_s !== null) note(now.at, `all tasks run, after ${number(now.recovery_s)} s`);
  const [was, is] = [new Set(before.active), new Set(now.active)];
  const [servers, others] = [before, now].map((state) => new Set(Object.values(state.servers).filter(Boolean)));
  const changes = [
    ["takes over", now.active.filter((each) => !was.has(each))],
    ["gives up", before.active.filter((each) => !is.has(each))],
    ["begins to restore", Object.keys(now.restoring).filter((each) => !(each in before.restoring))],
    ["has restored", Object.keys(before.restoring).filter((each) => !(each in now.restoring) && is.has(each))],
    ["follows as standby", Object.keys(now.standby).filter((each) => !(each in before.standby))],
    ["follows no longer", Object.keys(before.standby).filter((each) => !(each in now.standby))],
    ["moved", Object.keys(now.servers).filter((each) => each in before.servers && before.servers[each] !== now.servers[each])],
    ["instances that have tasks now", [...others].filter((each) => !servers.has(each))],
    ["instances without tasks now", [...servers].filter((each) => !others.has(each))],
  ];
  for (const [what, names] of changes) if (names.length) note(now.at, `${what}: ${some(names)}`);
}

// --- all of it

const charts = [
  new Chart("Rate", unit("records/s"), (state) => state.rate),
  new Chart("Lag of inputs", unit("offsets"), (state) => state.lag),
  new Chart("Latency", span, (state) => state.latency_ms),
  new Chart("Time of a commit", span, (state) => state.commit_ms),
];

function show(state) {
  showNow(state);
  showTasks(state);
  showInstances(state);
  showOnGraph(state);
  charts.forEach((each) => each.add(state));
  compare(last, state);
  if (listed !== state.state) {
    if (listed !== null) listStores();
    listed = state.state;
  }
  last = state;
}

async function load() {
  await ask("/status");
  const failed = (error) => { byId("graph").textContent = `The topology cannot be shown: ${error.message}`; };
  await Promise.all([drawGraph().catch(failed), listStores()]);
  listed = null;
}

byId("task-filter").addEventListener("input", () => { if (last) showTasks(last); });
start("/events", load, show, "This instance");
