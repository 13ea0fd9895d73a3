// The topology's picture, with figures next to its titles, topics and stores.
import { byId, drawPicture, number, setText, size, span } from "/page.js";

const SVG = "http://www.w3.org/2000/svg";

const LONGEST_FIGURES = 270; // width of figures such as `12.3 % busy, 1,234.5 updates/s, 302.5 MB`

const LEAST_BUSY = 0.005; // shares of a stream thread that are shown
const LEVELS = [0.05, 0.2, 0.5];

let places = [];

function figure(x, y) {
  const text = document.createElementNS(SVG, "text");
  text.setAttribute("class", "figures");
  text.setAttribute("x", x);
  text.setAttribute("y", y);
  return text;
}

function below(rect) {
  const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(rect.getAttribute(name)));
  return figure(x + width / 2 + 6, y + height + 13);
}

function above(rect) {
  return figure(Number(rect.getAttribute("x")) + Number(rect.getAttribute("width")) / 2 + 6, Number(rect.getAttribute("y")) - 8);
}

// Stores that a node uses: the lines below its name, in brackets.
function storesOf(rect) {
  const found = [];
  for (let next = rect.nextElementSibling; next?.localName === "text" && !next.classList.contains("title"); next = next.nextElementSibling) {
    const named = /^\[(.*)\]$/.exec(next.textContent);
    if (named) found.push(named[1]);
  }
  return found;
}

const flow = (known) => (known ? `${number(known.rate)}/s` : "");

function placeOf(sub, rect) {
  const [, kind, name] = /^(\w+) ([^]*)$/.exec(rect.dataset.key);
  if (kind === "in") {
    return [below(rect), (each) => (each.reads?.[name] ? `${flow(each.reads[name])}, lag ${number(each.reads[name].lag)}` : "")];
  }
  if (kind === "out") return [above(rect), (each) => flow(each.writes?.[name])];
  if (!name) return null;
  const stores = storesOf(rect);
  const isOnly = (each) => Object.keys(each.stores ?? {}).length <= 1;
  return [below(rect), (each, busy, lookups) => {
    colour(rect, busy?.[name]);
    const rates = stores.map((store) => each.stores?.[store]?.rate).filter((rate) => rate !== undefined);
    const parts = rates.length ? [`${number(rates.reduce((sum, rate) => sum + rate, 0))} updates/s`] : [];
    if (stores.length && each.state_bytes && isOnly(each)) parts.push(size(each.state_bytes));
    if (lookups[name]) parts.push(`${flow(lookups[name])} looked up`, `${number(lookups[name].in_flight)} in flight`);
    if (busy?.[name] >= LEAST_BUSY) parts.unshift(`${number(busy[name] * 100)} % busy`);
    return parts.join(", ");
  }];
}

// A box is the darker the more of a stream thread's time its node takes; the figure next to it says how much.
function colour(rect, share = 0) {
  const level = LEVELS.filter((least) => share >= least).length;
  rect.classList.remove(...LEVELS.map((_least, at) => `busy-${at + 1}`));
  if (level) rect.classList.add(`busy-${level}`);
}

function findPlaces(picture) {
  let sub = null;
  const found = [];
  for (const each of [...picture.children]) {
    if (each.matches("text.title")) {
      sub = /^Sub-topology (\d+)$/.exec(each.textContent)?.[1] ?? null;
      if (sub === null) continue;
      const text = figure(Number(each.getAttribute("x")), Number(each.getAttribute("y")) - 18);
      each.before(text);
      found.push({ sub, text, told: (known) => [flow(known), known.busy ? `${number(known.busy * 100)} % busy` : "", `lag ${number(known.lag)}`, span(known.latency_ms), size(known.state_bytes)]
        .filter(Boolean).join(", ") });
    } else if (sub !== null && each.dataset?.key !== undefined) {
      const place = placeOf(sub, each);
      if (place === null) continue;
      picture.append(place[0]);
      found.push({ sub, text: place[0], told: place[1] });
    }
  }
  return found;
}

// Make room on the right for figures, which are longer than the boxes that they stand next to.
function widen(picture) {
  const [x, y, width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  const needed = Math.max(width, ...places.map(({ text }) => Number(text.getAttribute("x")) + LONGEST_FIGURES - x));
  picture.setAttribute("viewBox", `${x} ${y} ${needed} ${height}`);
  picture.setAttribute("width", needed);
}

export function drawGraph(topology) {
  places = [];
  byId("description").textContent = topology.description;
  const picture = drawPicture(byId("graph"), topology.picture, "The text below shows it.");
  if (picture === null) return;
  places = findPlaces(picture);
  widen(picture);
}

const NOTHING = { rate: 0, lag: 0, latency_ms: null, state_bytes: 0 };

export function showOnGraph(state) {
  for (const { sub, text, told } of places) setText(text, told(state.sub_topologies[sub] ?? NOTHING, state.nodes, state.lookups));
}
