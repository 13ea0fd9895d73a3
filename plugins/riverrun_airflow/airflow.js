// The page in Airflow: it follows Airflow's theme, opens its pages around itself, and triggers DAGs.
import { element, setText } from "./page.js";

const RELOAD_MS = 30_000;

const root = new URL("..", import.meta.url).pathname; // where Airflow is
const isFramed = window.parent !== window;
let touched = false;

// Airflow's own page, which is around this one; null if this one stands alone, or the one around is another site's.
function around() {
  try {
    return isFramed ? window.parent.document : null;
  } catch {
    return null;
  }
}

function followTheme() {
  const outer = around();
  if (outer) document.documentElement.dataset.theme = outer.documentElement.classList.contains("dark") ? "dark" : "light";
}

// Open a page of Airflow's in place of the page around this one.
function leave(event) {
  const outer = around();
  if (!outer) return;
  event.preventDefault();
  const twin = outer.createElement("a");
  twin.href = event.currentTarget.href;
  twin.click();
}

function settingsOf(form) {
  const named = [...form.elements].filter((field) => field.name);
  return Object.fromEntries(named.map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]));
}

async function trigger(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const told = form.querySelector("output");
  const answer = await fetch(`${root}api/v2/dags/${encodeURIComponent(form.dataset.dag)}/dagRuns`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ logical_date: null, conf: settingsOf(form) }),
  });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    setText(told, `${answer.status}: ${JSON.stringify(found.detail ?? "")}`);
    return;
  }
  const href = `${root}dags/${encodeURIComponent(found.dag_id)}/runs/${encodeURIComponent(found.dag_run_id)}`;
  const link = element("a", found.dag_run_id, { href });
  link.addEventListener("click", leave);
  told.replaceChildren(link);
}

followTheme();
document.querySelectorAll("a[data-airflow]").forEach((link) => link.addEventListener("click", leave));
document.querySelectorAll("form[data-dag]").forEach((form) => {
  form.addEventListener("submit", trigger);
  form.addEventListener("input", () => { touched = true; });
});
setInterval(() => { if (!touched && !document.querySelector("output a")) location.reload(); }, RELOAD_MS);
