// The graph of the project: a picture of its applications and the topics between them, and what is surprising about it.
import { byId, drawPicture, element } from "/page.js";

export function showBetween({ picture, surprising, unknown }) {
  if (picture) drawPicture(byId("graph"), picture, "riverrun plan shows the project as text.");
  else byId("graph").replaceChildren();
  byId("surprising").replaceChildren(...[...surprising, ...unknown].map((text) => element("li", text)));
}
