"""The page in Airflow's navigation. Airflow decides which users may see it, and which may act."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads annotations
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, Response

from riverrun.errors import StreamsError
from riverrun.service.answering import FILES, content
from riverrun_airflow import views
from riverrun_airflow.hooks import located
from riverrun_airflow.overview import overview

if TYPE_CHECKING:
    from riverrun.config import AppConfig, ProjectConfig
    from riverrun_airflow.overview import Overview

_MANUAL = ("backfill", "release", "held", "quality")
_APART = {"Content-Security-Policy": "sandbox allow-scripts allow-popups allow-popups-to-escape-sandbox"}
"""Headers of Data Docs' pages: they show text from users' records, and must not act as the user that looks at them."""
_STYLES = "site/static/"
"""Great Expectations' own styles and pictures below Data Docs: a sandboxed page asks for them without a cookie."""


def application() -> FastAPI:
    """Return the server of the page. Users that are not logged in are refused (401)."""
    app = FastAPI(title="Riverrun", openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def applications(user: GetUserDep) -> HTMLResponse:
        """Show all applications that the user may see."""
        project = _project()
        seen = [name for name in (*project.apps, *project.refused) if _may_see(name, user)]
        rows = (views.row(name, _looked(project, name)) for name in seen)
        return HTMLResponse(views.document("", views.applications(rows)))

    @app.get("/apps/{name}", response_class=HTMLResponse)
    def one_application(name: str, user: GetUserDep) -> HTMLResponse:
        """Show one application."""
        project = _project()
        if name in project.refused and _may_see(name, user):
            return HTMLResponse(views.document(name, views.problem(str(project.refused[name].error))))
        config, allowed, found = _seen(project, name, user), _allowed(name, user), _looked(project, name)
        if isinstance(found, str):
            return HTMLResponse(views.document(name, views.problem(found) + views.actions(config, allowed)))
        return HTMLResponse(views.document(name, views.application(config, found, allowed)))

    @app.get("/airflow.js")
    def own_script() -> FileResponse:
        """Show the script of the page."""
        return FileResponse(Path(__file__).parent / "airflow.js", media_type="text/javascript")

    @app.get("/page.{kind}")
    def shared(kind: Literal["css", "js"]) -> Response:
        """Show a file that all of Riverrun's pages share."""
        return Response(content(f"/page.{kind}"), media_type=FILES[f"/page.{kind}"][1])

    @app.get(f"/apps/{{name}}/docs/{_STYLES}{{path:path}}")
    def style(name: str, path: str) -> FileResponse:
        """Show a file that all Data Docs have alike."""
        return _file(_project().apps.get(name), f"{_STYLES}{path}", below=_STYLES)

    @app.get("/apps/{name}/docs/{path:path}")
    def data_docs(name: str, path: str, user: GetUserDep) -> FileResponse:
        """Show a page of Data Docs."""
        return _file(_seen(_project(), name, user), path, below="site")

    return app


def _project() -> ProjectConfig:
    try:
        return located("").project()
    except StreamsError as error:
        raise HTTPException(503, str(error)) from error


def _looked(project: ProjectConfig, app: str) -> Overview | str:
    try:
        return overview(project, app)
    except StreamsError as error:
        return str(error)


def _seen(project: ProjectConfig, app: str, user: Any) -> AppConfig:
    if app not in project.apps or not _may_see(app, user):
        raise HTTPException(404, f"There is no application {app!r} that you may see")
    return project.apps[app]


def _file(app: AppConfig | None, path: str, below: str) -> FileResponse:
    directory = None if app is None else app.docs_directory
    file = None if directory is None else (directory / path).resolve()
    if (
        directory is None
        or file is None
        or not file.is_relative_to((directory / below).resolve())
        or not file.is_file()
    ):
        raise HTTPException(404, f"There is no page {path!r} of Data Docs")
    return FileResponse(file, headers=_APART)


def _may_see(app: str, user: Any) -> bool:
    details = DagDetails(id=f"{app}__backfill")
    return bool(get_auth_manager().is_authorized_dag(method="GET", details=details, user=user))


def _allowed(app: str, user: Any) -> frozenset[str]:
    return frozenset(dag for dag in (f"{app}__{kind}" for kind in _MANUAL) if _may_trigger(dag, user))


def _may_trigger(dag_id: str, user: Any) -> bool:
    details = DagDetails(id=dag_id)
    manager = get_auth_manager()
    return bool(manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user))
