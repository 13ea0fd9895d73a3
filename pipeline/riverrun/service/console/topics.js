// The browser of topics: a page of records from a point on, or new ones as they come.
import { ask, byId, element, longText, parseExactly, plain, setText, time } from "/page.js";

const PAGE = 100;
const SHOWN = 500;
const FOLLOW_MS = 2000;

let topics = [];
let next = null; // where the next page begins
let reads = 0; // counts questions: answers of older ones are left out
let timer = null;

const chosen = () => topics.find((each) => each.topic === byId("topic").value);

function describeTopic() {
  const topic = chosen();
  setText(byId("topic-serdes"), topic
    ? `${topic.roles.join(" and ")}, ${topic.partitions} partitions; key: ${topic.key_serde}, value: ${topic.value_serde}`
    : "There are no topics of others.");
  clear();
}

function clear() {
  reads += 1;
  clearTimeout(timer);
  next = null;
  byId("topic-rows").replaceChildren();
  byId("topic-next").hidden = true;
  setText(byId("topic-found"), "");
  setText(byId("topic-error"), "");
}

// A key or a value; one that no serde can read is shown as bytes, with the reason.
function part(name, value, problem) {
  const made = longText(name, value === null ? "null" : plain(value));
  if (value === null) made.className = "null";
  if (problem) made.append(element("div", problem, { class: "problem" }));
  return made;
}

function row(found) {
  const made = element("tr");
  const headers = found.headers.map(([name, value]) => `${name}: ${value ?? "null"}`).join("\n");
  made.append(
    element("th", `${found.partition}@${found.offset}`, { scope: "row" }), element("td", time(found.timestamp)),
    part("td", found.key, found.problems.key), part("td", found.value, found.problems.value), longText("td", headers),
  );
  return made;
}

async function read(from, isMore) {
  const own = reads;
  const parameters = new URLSearchParams({ from, limit: PAGE });
  if (byId("topic-contains").value !== "") parameters.set("contains", byId("topic-contains").value);
  const path = `/topics/${encodeURIComponent(byId("topic").value)}/records?${parameters}`;
  const found = parseExactly(await (await ask(path)).text());
  if (own !== reads) return;
  const rows = byId("topic-rows");
  const isNewestFirst = from === "newest" || byId("topic-follow").checked;
  if (!isMore) rows.replaceChildren();
  for (const each of found.records) if (isNewestFirst) rows.prepend(row(each)); else rows.append(row(each));
  while (rows.childElementCount > SHOWN) (isNewestFirst ? rows.lastElementChild : rows.firstElementChild).remove();
  next = found.next;
  byId("topic-next").hidden = byId("topic-follow").checked || found.is_end;
  const count = rows.childElementCount;
  const looked = `${count} ${count === 1 ? "record" : "records"} shown; looked at ${found.looked_at}`;
  setText(byId("topic-found"), found.is_end ? `${looked}, up to the end` : `${looked}, and there are more`);
}

// Show a page; with the box checked, go on with what comes, while the page is looked at.
async function browse(from, isMore = false) {
  clearTimeout(timer);
  setText(byId("topic-error"), "");
  const own = reads;
  try {
    if (!document.hidden) await read(from, isMore);
  } catch (error) {
    if (own === reads) setText(byId("topic-error"), error.message);
    if (error.status !== 503) byId("topic-follow").checked = false;
  }
  if (own === reads && byId("topic-follow").checked) timer = setTimeout(() => browse(next ?? from, true), FOLLOW_MS);
}

// Show the record at `topic-partition@offset`.
export function showRecord(place) {
  const [, topic] = /^(.*)-\d+@\d+$/.exec(place) ?? [];
  if (!topics.some((each) => each.topic === topic)) {
    setText(byId("topic-error"), `${place} is in a topic that only the application uses. In a shell: riverrun topic read ${topic} --from ${place} --limit 1`);
    return;
  }
  byId("topic").value = topic;
  byId("topic-follow").checked = false;
  byId("topic-contains").value = "";
  byId("topic-from").value = place;
  describeTopic();
  browse(place);
}

export async function listTopics() {
  const before = byId("topic").value;
  topics = await (await ask("/topics")).json();
  byId("topic").replaceChildren(...topics.map((each) => element("option", each.topic, { value: each.topic })));
  if (topics.some((each) => each.topic === before)) byId("topic").value = before; // the records that are shown stay
  else describeTopic();
}

byId("topic").addEventListener("change", describeTopic);
byId("topic-form").addEventListener("submit", (event) => {
  event.preventDefault();
  clear();
  browse(byId("topic-from").value.trim() || "newest");
});
byId("topic-follow").addEventListener("change", () => {
  if (byId("topic-follow").checked) browse(next ?? "newest", next !== null);
  else clearTimeout(timer);
});
byId("topic-next").addEventListener("click", () => browse(next, true));
