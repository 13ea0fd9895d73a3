// Bounded runs as bars: a row for each application, time from left to right.
import { byId, element, number, span, time } from "/page.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1000, ROW = 26, BAR = 14, TOP = 6, BOTTOM = 24, TICKS = 5, LEAST = 3;
const LETTER = 7.5;

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function told(run, now) {
  const took = span((run.ended_ms ?? now) - run.started_ms);
  const work = `${number(run.records_in)} records in, ${number(run.records_out)} out`;
  return `${run.app} ${run.version}: ${run.state}, ${time(run.started_ms)}, ${took}; ${run.error ?? work}`;
}

function bar(run, now, x, y) {
  const left = x(run.started_ms);
  const width = Math.max(LEAST, x(run.ended_ms ?? (run.state === "running" ? now : run.started_ms)) - left);
  const state = ["done", "running", "failed", "died"].includes(run.state) ? run.state : "done";
  const more = state === "failed" ? 3 : 0; // taller, as not everybody can distinguish the colours
  const made = drawn("rect", { class: state, x: left.toFixed(1), y: y - more, width: width.toFixed(1), height: BAR + 2 * more, rx: 2 });
  made.append(drawn("title", {}, told(run, now)));
  return made;
}

function counted(runs) {
  const counts = new Map();
  for (const run of runs) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  return [...counts].map(([state, count]) => `${count} ${state}`).join(", ");
}

export function drawTimeline(runs, apps, now) {
  const period = Number(byId("period").value);
  const since = period ? now - period : Math.min(now - 3_600_000, ...runs.map((run) => run.started_ms));
  const shown = runs.filter((run) => (run.ended_ms ?? now) >= since && run.started_ms <= now);
  if (!shown.length) {
    byId("timeline").replaceChildren(element("p", "There were no bounded runs in this period."));
    return;
  }
  const rows = apps.filter((app) => shown.some((run) => run.app === app));
  const left = Math.min(300, 16 + LETTER * Math.max(...rows.map((app) => app.length)));
  const height = TOP + rows.length * ROW + BOTTOM;
  const x = (ms) => left + (Math.max(0, ms - since) / Math.max(1, now - since)) * (WIDTH - left - 4);
  const label = `${shown.length} bounded runs since ${time(since)}: ${counted(shown)}`;
  const picture = drawn("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label });
  for (let at = 0; at < TICKS; at += 1) {
    const ms = since + ((now - since) * at) / (TICKS - 1);
    const anchor = at === TICKS - 1 ? "end" : at ? "middle" : "start";
    picture.append(
      drawn("line", { class: "tick", x1: x(ms), x2: x(ms), y1: TOP, y2: height - BOTTOM }),
      drawn("text", { class: "tick-label", x: x(ms), y: height - 8, "text-anchor": anchor }, time(Math.round(ms)).slice(0, 16)),
    );
  }
  rows.forEach((app, at) => {
    const y = TOP + at * ROW + (ROW - BAR) / 2;
    picture.append(drawn("text", { x: 0, y: y + BAR - 3 }, app), ...shown.filter((run) => run.app === app).reverse().map((run) => bar(run, now, x, y)));
  });
  byId("timeline").replaceChildren(picture);
}
