"""The page in Airflow's navigation. Airflow says who may see it, and who may act."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads annotations
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from millrace_airflow.hooks import located
from millrace_airflow.links import base, page_of
from millrace_airflow.overview import overview
from pipeline.errors import StreamsError

if TYPE_CHECKING:
    from millrace_airflow.overview import Overview, Partition
    from pipeline.config import AppConfig, ProjectConfig

_STYLE = """
:root { color-scheme: light dark; font: 14px/1.5 system-ui, sans-serif }
:root[data-theme=light] { color-scheme: light } :root[data-theme=dark] { color-scheme: dark }
body { margin: 1.5rem; background: light-dark(#fff, #111318); color: light-dark(#1a202c, #e2e8f0) }
a { color: light-dark(#0b5fb0, #7cc0ff) } table { border-collapse: collapse; width: 100% }
td, th { padding: .3rem .6rem; text-align: left; border-bottom: 1px solid light-dark(#e2e8f0, #2d3748) }
pre { white-space: pre-wrap } .bar { display: flex; height: 1rem; min-width: 16rem; border-radius: 3px; overflow: hidden }
.bar span { min-width: 2px } .done { background: #38a169 } .running { background: #3182ce }
.failed { background: #e53e3e } .left { background: light-dark(#cbd5e0, #4a5568) }
.key span { display: inline-block; padding: 0 .5rem; margin-right: .5rem; border-radius: 3px; color: #fff }
.key .left { color: inherit } .problem { color: light-dark(#c53030, #fc8181) }
"""
_SCRIPT = """
try {
  const outer = window.parent.document;
  if (window.parent !== window) {
    document.documentElement.dataset.theme = outer.documentElement.classList.contains("dark") ? "dark" : "light";
    document.querySelectorAll("a[data-airflow]").forEach(link => link.addEventListener("click", event => {
      event.preventDefault();
      const twin = outer.createElement("a");
      twin.href = link.href;
      twin.click();
    }));
  }
} catch (error) { /* the page stands alone */ }
"""
_MANUAL = ("backfill", "release", "quality")


def application() -> FastAPI:
    """Return the server of the page. Whoever is not logged in is refused (401)."""
    app = FastAPI(title="Millrace", openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def applications(user: GetUserDep) -> HTMLResponse:
        """Show all applications that the user may see."""
        project = _project()
        rows = [_row(project, each, user) for each in project.apps.values() if _may_see(each.name, user)]
        head = "<tr><th>Application<th>Live<th>Release<th>Offsets behind</tr>"
        return _html("Millrace", f"<table>{head}{''.join(rows)}</table>")

    @app.get("/apps/{name}", response_class=HTMLResponse)
    def one_application(name: str, user: GetUserDep) -> HTMLResponse:
        """Show one application."""
        project = _project()
        if name not in project.apps or not _may_see(name, user):
            raise HTTPException(404, f"There is no application {name!r} that you may see")
        body = f'<p><a href="{page_of("")}">All applications</a></p>{_links(project.apps[name], user)}'
        try:
            return _html(name, body + _shown(overview(project, name)))
        except StreamsError as error:
            return _html(name, body + _problem(error))

    return app


def _project() -> ProjectConfig:
    try:
        return located("").project()
    except StreamsError as error:
        raise HTTPException(503, str(error)) from error


def _may_see(app: str, user: Any) -> bool:
    details = DagDetails(id=f"{app}__backfill")
    return bool(get_auth_manager().is_authorized_dag(method="GET", details=details, user=user))


def _may_trigger(dag_id: str, user: Any) -> bool:
    details = DagDetails(id=dag_id)
    manager = get_auth_manager()
    return bool(manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user))


def _row(project: ProjectConfig, app: AppConfig, user: Any) -> str:
    try:
        found = overview(project, app.name)
    except StreamsError as error:
        told = f"<td colspan=3>{_problem(error)}"
    else:
        told = f"<td>{escape(found.live)}<td>{escape(found.release)}<td>{found.lag}"
    name = f'<a href="{page_of(app.name)}">{escape(app.name)}</a>'
    return f"<tr><td>{name}{_links(app, user)}{told}</tr>"


def _links(app: AppConfig, user: Any) -> str:
    """Links to the forms that trigger an application's DAGs, for users who may."""
    ids = [f"{app.name}__{kind}" for kind in _MANUAL if kind != "quality" or app.quality is not None]
    allowed = [dag_id for dag_id in ids if _may_trigger(dag_id, user)]
    if not allowed:
        return "<p>You may look at this application, not act on it.</p>"
    shown = (f'<a data-airflow href="{base()}/dags/{quote(each)}">Trigger {escape(each)}</a>' for each in allowed)
    return f"<p>{' · '.join(shown)}</p>"


def _shown(found: Overview) -> str:
    key = "".join(f'<span class="{state}">{state}</span>' for state in ("done", "running", "failed", "left"))
    rows = "".join(map(_partition, found.partitions))
    verdict = f"<h2>Last verdict</h2><pre>{escape(chr(10).join(found.verdict))}</pre>" if found.verdict else ""
    runs = "".join(f"<li>{escape(line)}</li>" for line in found.runs)
    return (
        f"<p>{escape(found.live)} is live; release: {escape(found.release)}; {found.lag} offsets behind</p>"
        f'<p class="key">{key}</p><table><tr><th>Partition<th>Offsets<th>Map<th>Behind</tr>{rows}</table>'
        f"{verdict}<h2>Last runs</h2><ul>{runs or '<li>none</li>'}</ul>"
    )


def _partition(each: Partition) -> str:
    stretches = "".join(
        f'<span class="{part.state}" style="flex:{part.end - part.start}" '
        f'title="{part.state} {part.start}..{part.end}"></span>'
        for part in each.stretches
    )
    return (
        f"<tr><td>{escape(each.name)}<td>{each.start}..{each.end}"
        f'<td><div class="bar">{stretches}</div><td>{each.lag}</tr>'
    )


def _problem(error: StreamsError) -> str:
    return f'<p class="problem">{escape(str(error))}</p>'


def _html(title: str, body: str) -> HTMLResponse:
    head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="30"><title>{escape(title)}</title>'
    return HTMLResponse(
        f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}<script>{_SCRIPT}</script></body></html>"
    )
