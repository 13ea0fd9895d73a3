// The console of a project: all applications, bounded runs, and one application with its instances, lag and release.
import { showBetween } from "/between.js";
import { Chart, Past, short, unit } from "/charts.js";
import { ask, byId, element, fill, isAddress, link, number, setText, span, start, time, tint } from "/page.js";
import { showRelease } from "/releases.js";
import { drawTimeline } from "/timeline.js";

let last = null;
const past = new Past();
let charted = null;
let charts = [];
let chosen = null;
let between = ""; // the name of the graph that is shown, or asked for

// The application that the address names. If it names none, as the link to the main part, the previous one.
function chosenName() {
  const wanted = location.hash.slice(1);
  const found = last.apps.find((app) => encodeURIComponent(app.name) === wanted);
  if (found) chosen = found.name;
  return chosen ?? last.apps[0]?.name;
}

const live = (app) => app.versions.find((version) => version.live);

function workers(app) {
  const running = app.versions.filter((version) => version.members);
  if (!running.length) return app.versions.some((version) => version.group) ? "none" : "";
  return running.map((version) => `${version.version}: ${version.members} members, ${version.group}`).join("; ");
}

function lagOf(app) {
  const known = live(app);
  return known?.lag === undefined ? "" : known.beyond || number(known.lag);
}

const rateOf = (app) => (app.rate === undefined || app.rate === null ? "" : number(app.rate));

function releaseOf(app) {
  const release = app.release;
  if (!release || release.step === "none") return "";
  return release.candidate ? `${release.candidate}: ${release.step}` : release.step;
}

function lastRun(app) {
  const run = last.runs.find((each) => each.app === app.name);
  return run ? `${run.state}, ${time(run.started_ms)}` : "";
}

const troubles = (app) => [app.error, ...(app.needs ?? []), ...app.versions.flatMap((version) => [
  version.error, ...(version.instances ?? []).map((each) => each.error && `${each.server}: ${each.error}`),
])].filter(Boolean);

function showApps() {
  const body = byId("apps");
  fill(body, last.apps.map((app) => [
    app.name, troubles(app)[0] ?? "", app.release?.live ?? "", workers(app), rateOf(app), lagOf(app), releaseOf(app), lastRun(app),
  ]));
  const name = chosenName();
  last.apps.forEach((app, at) => {
    const made = link(body.rows[at].cells[0], `#${encodeURIComponent(app.name)}`);
    if (app.name === name) made.setAttribute("aria-current", "true");
    else made.removeAttribute("aria-current");
    colour(app, body.rows[at]);
  });
}

// Colours repeat what the texts say.
function colour(app, row) {
  const run = last.runs.find((each) => each.app === app.name);
  const waits = app.release?.verdict?.needs_approval || app.release?.held;
  tint(row.cells[1], troubles(app).length ? "is-failed" : "");
  tint(row.cells[6], waits ? "is-warnings" : "");
  tint(row.cells[7], run && ["failed", "died"].includes(run.state) ? "is-failed" : "");
}

function showRuns() {
  drawTimeline(last.runs, last.apps.map((app) => app.name), last.at);
  fill(byId("runs"), last.runs.map((run) => [
    time(run.started_ms), `${run.app} ${run.version}`, run.gate ? `${run.state}, ${run.gate}` : run.state, run.ended_ms === null ? "" : span(run.ended_ms - run.started_ms),
    number(run.slices), number(run.records_in), number(run.records_out), number(run.dropped), run.by, run.error ?? "",
  ]));
  last.runs.forEach((run, at) => tint(byId("runs").rows[at].cells[2], ["failed", "died"].includes(run.state) ? "is-failed" : ""));
}

function showInstances(app) {
  const body = byId("instances");
  const known = app.versions.flatMap((version) => (version.instances ?? []).map((each) => ({ ...each, version })));
  fill(body, known.map((each) => [
    each.server, each.version.version, each.error ? `unknown: ${each.error}` : each.state,
    ...["threads", "active", "standby"].map((name) => (each.error ? "" : number(each[name]))),
    each.error || !each.restoring ? "" : `${number(each.restoring)}, ${number(each.missing)} records left`,
    each.error || !each.waiting ? "" : number(each.waiting), each.error ? "" : number(each.processed),
  ]));
  known.forEach((each, at) => {
    tint(body.rows[at].cells[2], each.error || each.member === false ? "is-failed" : "");
    if (isAddress(each.server)) link(body.rows[at].cells[0], `${each.version.scheme}://${each.server}/`);
  });
  const members = app.versions.reduce((sum, version) => sum + (version.members ?? 0), 0);
  const silent = !members ? "No worker or run is in a group of this application." : known.length ? ""
    : `${members} members answer nowhere: a worker does with application.server, or --server.`;
  setText(byId("silent"), silent);
}

function showLag(app) {
  if (charted !== app.name) {
    charted = app.name;
    byId("charts").replaceChildren();
    charts = [["Speed", "offsets/s", "rate"], ["Lag", "offsets", "lag"]].map(([title, of, name]) => (
      new Chart(byId("charts"), `${title} of ${app.name}`, { text: unit(of), axis: short, lines: [[`${name}/${app.name}`]] })));
  }
  charts.forEach((chart) => chart.draw(past, past.keptMs));
  fill(byId("inputs"), app.versions.flatMap((version) => (version.inputs ?? []).map((input) => [
    input.partition, version.version, input.committed === null ? "none" : String(input.committed), String(input.end), input.beyond || number(input.lag),
  ])));
}

function showApp() {
  const app = last.apps.find((each) => each.name === chosenName());
  if (!app) return;
  setText(byId("app-title"), `Application ${app.name}`);
  setText(byId("app-error"), [app.error, ...(app.needs ?? []), ...app.versions.map((version) => version.error)].filter(Boolean).join(" "));
  showInstances(app);
  showLag(app);
  showRelease(app);
}

function show(state) {
  if (state.at === null) { // the first poll takes a while
    setText(byId("looked"), "Looking at the project");
    return;
  }
  if (last?.at === state.at) return;
  last = state;
  setText(byId("name"), state.project);
  document.title = `${state.project}: Riverrun console`;
  const seen = state.seen_at === null ? "Nothing was seen before." : `Shown is what was seen at ${time(state.seen_at)}.`;
  setText(byId("broken"), state.error ? `${state.error} ${seen} The console goes on trying.` : "");
  setText(byId("looked"), `Seen at ${time(state.at)}, in ${number(state.took_s)} s; every ${number(state.every_s)} s`);
  showApps();
  showRuns();
  showApp();
  followGraph(state.graph).catch(() => { between = ""; }); // the next event asks again
  followPast().catch((error) => setText(byId("connection"), `Without the past: ${error.message}`));
}

async function followGraph(name) {
  if (!name || name === between) return;
  between = name;
  showBetween(await (await ask("/graph")).json());
}

async function followPast() {
  if (!past.add(await (await ask(`/history?since=${past.lookedAt}`)).json())) return;
  charts.forEach((chart) => chart.draw(past, past.keptMs));
}

window.addEventListener("hashchange", () => {
  // The menu and the skip link have other names.
  if (!last?.apps.some((app) => `#${encodeURIComponent(app.name)}` === location.hash)) return;
  showApps();
  showApp();
  byId("app-title").focus();
});
byId("period").addEventListener("change", () => { if (last) showRuns(); });
start("/events", () => ask("/status"), show, "This page", "[console]");
