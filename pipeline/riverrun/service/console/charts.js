// Time series of the last minutes, one point per event.
import { byId, element, number, setText } from "/page.js";

const SVG = "http://www.w3.org/2000/svg";
const KEPT = 300;
const WIDTH = 300, HEIGHT = 80, FLOOR = 76, ROOM = 70;

export class Chart {
  constructor(title, text, read, kept = KEPT) {
    this.title = title;
    this.text = text;
    this.read = read;
    this.kept = kept;
    this.values = [];
    this.caption = element("figcaption", title);
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("class", "chart");
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", title);
    this.line = document.createElementNS(SVG, "path");
    this.svg.append(this.line);
    const figure = element("figure");
    figure.append(this.caption, this.svg);
    byId("charts").append(figure);
  }

  add(state) {
    this.values.push(this.read(state) ?? null);
    if (this.values.length > this.kept) this.values.shift();
    const known = this.values.filter((each) => each !== null);
    const top = Math.max(1e-9, ...known);
    this.line.setAttribute("d", this.path(top));
    const last = known.length ? this.text(known.at(-1)) : "not known yet";
    const text = `${this.title}: ${last}${known.length ? `, at most ${this.text(Math.max(...known))}` : ""}`;
    setText(this.caption, text);
    this.svg.setAttribute("aria-label", text);
  }

  // A line through the points that are known, with gaps between them.
  path(top) {
    const step = WIDTH / (this.kept - 1);
    const left = WIDTH - (this.values.length - 1) * step;
    let draws = false;
    return this.values.map((each, at) => {
      if (each === null) { draws = false; return ""; }
      const letter = draws ? "L" : "M";
      draws = true;
      return `${letter}${(left + at * step).toFixed(1)} ${(FLOOR - (each / top) * ROOM).toFixed(1)}`;
    }).join("");
  }
}

export const unit = (name) => (value) => `${number(value)} ${name}`;
