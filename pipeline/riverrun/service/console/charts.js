// The past in charts, with axes, times and hover. All charts of a page show one period.
import { element, number, setText } from "/page.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 360, HEIGHT = 132, LEFT = 46, RIGHT = 354, TOP = 8, FLOOR = 108;
const COLUMNS = (RIGHT - LEFT) / 2; // the highest of the points that share a column is drawn
const SHORTEST_MS = 60_000;
const MISSING = 3; // samples left out before a line has a gap

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Samples of several series, the oldest first, as `/history` has them.
export class Past {
  constructor() {
    this.at = [];
    this.series = new Map();
    this.lookedAt = 0;
    this.everyMs = 2000;
    this.keptMs = 3_600_000;
  }

  // Add the samples of an answer; returns false if they are there already.
  add(found) {
    if (found.looked_at <= this.lookedAt) return false;
    const before = this.at.length;
    this.at.push(...found.at);
    for (const [name, values] of Object.entries(found.series)) {
      if (!this.series.has(name)) this.series.set(name, new Array(before).fill(null));
      this.series.get(name).push(...values);
    }
    for (const values of this.series.values()) while (values.length < this.at.length) values.push(null);
    [this.lookedAt, this.everyMs, this.keptMs] = [found.looked_at, found.every_ms, found.kept_ms];
    const old = this.at.findIndex((at) => at > this.lookedAt - this.keptMs);
    if (old > 0) {
      this.at.splice(0, old);
      for (const [name, values] of this.series) {
        values.splice(0, old);
        if (values.every((each) => each === null)) this.series.delete(name);
      }
    }
    return true;
  }
}

// The least round number that is not below a value.
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value * 0.999);
}

// A time, as exact as a stretch of time needs: with seconds, with minutes, or with the day.
function clock(ms, stretchMs) {
  const text = new Date(ms).toISOString();
  if (stretchMs > 40_000_000) return text.slice(5, 16).replace("T", " ");
  return text.slice(11, stretchMs > 600_000 ? 16 : 19);
}

export class Chart {
  // Each of `lines` is the name of a series, and a word for it; `top` is the end of the axis if it is known.
  constructor(place, title, { text, axis = text, lines, top = null }) {
    Object.assign(this, { title, text, axis, lines, top, points: [] });
    this.figure = element("figure");
    this.caption = element("figcaption", title);
    this.readout = element("p", "", { class: "readout", "aria-hidden": "true" });
    this.svg = drawn("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
    this.ticks = drawn("g", {});
    this.paths = lines.map((_each, at) => drawn("path", { class: `line line-${at}` }));
    this.cursor = drawn("line", { class: "cursor", y1: TOP, y2: FLOOR, visibility: "hidden" });
    this.svg.append(this.ticks, ...this.paths, this.cursor);
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.figure.append(this.caption, this.svg, this.readout);
    place.append(this.figure);
  }

  draw(past, periodMs) {
    const now = past.lookedAt;
    const begin = Math.max(now - periodMs, Math.min(past.at[0] ?? now, now - SHORTEST_MS));
    const first = Math.max(past.at.findIndex((at) => at >= begin), 0);
    const times = past.at.slice(first);
    const values = this.lines.map(([name]) => (past.series.get(name) ?? []).slice(first));
    const known = values.flat().filter((each) => each !== null && each !== undefined);
    const top = this.top ?? roundUp(known.reduce((most, each) => Math.max(most, each), 0));
    Object.assign(this, { times, values, begin, now });
    this.x = (ms) => LEFT + ((ms - begin) / (now - begin)) * (RIGHT - LEFT);
    this.y = (value) => FLOOR - (Math.min(value, top) / top) * (FLOOR - TOP);
    this.drawTicks(top);
    this.paths.forEach((path, at) => path.setAttribute("d", this.path(values[at], past.everyMs)));
    const last = values[0].findLastIndex((each) => each !== null);
    const text = `${this.title}: ${this.told(last)}${known.length && values.length === 1 ? `, at most ${this.text(known.reduce((most, each) => Math.max(most, each), 0))}` : ""}`;
    setText(this.caption, text);
    this.svg.setAttribute("aria-label", text);
  }

  drawTicks(top) {
    const made = [0, top / 2, top].flatMap((value) => [
      drawn("line", { class: "tick", x1: LEFT, x2: RIGHT, y1: this.y(value), y2: this.y(value) }),
      drawn("text", { class: "tick-label", x: LEFT - 4, y: this.y(value) + 4, "text-anchor": "end" }, this.axis(value)),
    ]);
    for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
      const ms = this.begin + (this.now - this.begin) * part;
      made.push(drawn("text", { class: "tick-label", x: this.x(ms), y: HEIGHT - 6, "text-anchor": anchor }, clock(ms, this.now - this.begin)));
    }
    this.ticks.replaceChildren(...made);
  }

  // A line through the highest known point of each column, with gaps where samples are missing.
  path(values, everyMs) {
    const columns = [];
    values.forEach((value, at) => {
      if (value === null) return;
      const column = Math.floor(((this.times[at] - this.begin) / (this.now - this.begin)) * COLUMNS);
      const last = columns.at(-1);
      if (last?.column === column) {
        Object.assign(last, { value: Math.max(last.value, value), at });
      } else {
        columns.push({ column, value, at });
      }
    });
    return columns.map(({ value, at }, index) => {
      const before = columns[index - 1];
      const isNext = before && (at - before.at === 1 || this.times[at] - this.times[before.at] <= MISSING * everyMs);
      return `${isNext ? "L" : "M"}${this.x(this.times[at]).toFixed(1)} ${this.y(value).toFixed(1)}`;
    }).join("");
  }

  // The values of a sample in words.
  told(at) {
    const parts = this.lines.map(([, name], line) => [name, this.values[line]?.[at] ?? null]);
    if (parts.every(([, value]) => value === null)) return "not known yet";
    if (parts.length === 1) return this.text(parts[0][1]);
    return parts.map(([name, value]) => `${name} ${value === null ? "unknown" : this.text(value)}`).join(", ");
  }

  hover(event) {
    if (!this.times?.length) return;
    const box = this.svg.getBoundingClientRect();
    const ms = this.begin + (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (RIGHT - LEFT) * (this.now - this.begin);
    let at = this.times.findIndex((each) => each >= ms);
    if (at < 0) at = this.times.length - 1;
    if (at > 0 && ms - this.times[at - 1] < this.times[at] - ms) at -= 1;
    this.cursor.setAttribute("x1", this.x(this.times[at]));
    this.cursor.setAttribute("x2", this.x(this.times[at]));
    this.cursor.setAttribute("visibility", "visible");
    setText(this.readout, `${clock(this.times[at], this.now - this.begin > 40_000_000 ? Infinity : 0)} UTC: ${this.told(at)}`);
  }

  leave() {
    this.cursor.setAttribute("visibility", "hidden");
    setText(this.readout, "");
  }
}

export const unit = (name) => (value) => `${number(value)} ${name}`;
export const short = (value) => Number(value).toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
export const percent = (value) => `${number(value * 100)} %`;
