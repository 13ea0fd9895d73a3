"""The page in Airflow's navigation. Airflow decides which users may see it, and which may act."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads annotations
from airflow.utils.session import create_session
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, Response
from sqlalchemy import select

from riverrun.errors import StreamsError
from riverrun.service.answering import FILES, content
from riverrun_airflow import views
from riverrun_airflow.hooks import CONNECTION, RiverrunHook, location_if_known
from riverrun_airflow.links import page_of_run, page_of_task
from riverrun_airflow.overview import between, overview
from riverrun_airflow.work_requests import author_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from riverrun.config import AppConfig, ProjectConfig
    from riverrun_airflow.overview import Between, Overview

_OF_AIRFLOW = "airflow:"
_IN_ENVIRONMENT = "AIRFLOW_CONN_"
_OTHERS = "Applications of a project that DAG files name by its path are shown if a connection of type riverrun names it, too."
_NO_PROJECT = (
    "This Airflow has no project: add a connection of type riverrun, or set riverrun_project or RIVERRUN_CONFIG."
)
_MANUAL = ("backfill", "release", "held", "quality")
# Data Docs show text from users' records, and must not act as the user that looks at them.
_APART = {"Content-Security-Policy": "sandbox allow-scripts allow-popups allow-popups-to-escape-sandbox"}
# Great Expectations' own styles and pictures below Data Docs. A sandboxed page asks for them without a cookie, so they
# are served to everybody.
_STYLES = "site/static/"


def application() -> FastAPI:
    """Return the server of the page. Users that are not logged in are refused (401)."""
    app = FastAPI(title="Riverrun", openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def applications(user: GetUserDep) -> HTMLResponse:
        """Show all applications that the user may see."""
        return HTMLResponse(views.document("", _applications(user)))

    @app.get("/apps/{name}", response_class=HTMLResponse)
    def one_application(name: str, user: GetUserDep) -> HTMLResponse:
        """Show one application."""
        project = _project_of(name)
        if name in project.refused and _may_see(name, user):
            return HTMLResponse(views.document(name, views.problem(str(project.refused[name].error))))
        config, allowed, found = _seen(project, name, user), _allowed(name, user), _looked(project, name)
        if isinstance(found, str):
            return HTMLResponse(views.document(name, views.problem(found) + views.actions(config, allowed)))
        tasks = _task_pages([run.by for run in found.runs[: views.SHOWN_RUNS]])
        return HTMLResponse(views.document(name, views.application(config, found, allowed, tasks)))

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
        return _file(_project_of(name).apps.get(name), f"{_STYLES}{path}", below=_STYLES)

    @app.get("/apps/{name}/docs/{path:path}")
    def data_docs(name: str, path: str, user: GetUserDep) -> FileResponse:
        """Show a page of Data Docs."""
        return _file(_seen(_project_of(name), name, user), path, below="site")

    return app


def _applications(user: Any) -> str:
    """Return the applications that a user may see, and pictures of projects of which the user may see everything."""
    projects, problems = _projects()
    rows: dict[str, list[str]] = {}
    graphs: dict[str, Between] = {}
    for project in projects:
        names, path = (*project.apps, *project.refused), str(project.path)
        found = {name: _looked(project, name) for name in names if _may_see(name, user)}
        rows[path] = [views.row(name, each) for name, each in found.items()]
        if may_see_all(project, user):
            known = {name: each.release.live for name, each in found.items() if not isinstance(each, str)}
            graphs[path] = between(project, known)
    return views.applications(rows, graphs, problems)


def _projects() -> tuple[list[ProjectConfig], list[str]]:
    """Return all projects of this Airflow, the default one first, and the reasons why others cannot be read."""
    found: dict[Path, ProjectConfig] = {}
    problems: list[str] = []
    # Not those that DAG files name by their path: this server imports the modules of applications that it shows, and
    # authors of DAG files may not run code in it. Users who may make connections are trusted.
    for connection in dict.fromkeys((CONNECTION, *_connections())):
        try:
            location = location_if_known("", connection)
            if location is not None:
                project = location.project()
                found.setdefault(project.path.resolve(), project)
        except StreamsError as error:
            problems.append(f"{connection}: {error}")
    if not found:
        raise HTTPException(503, "\n".join(problems) or _NO_PROJECT)
    return list(found.values()), problems


def _connections() -> list[str]:
    """Return the connections of type `riverrun`, in Airflow's database and in the environment. Other places list none."""
    from airflow.models.connection import Connection

    kind = RiverrunHook.conn_type
    with create_session() as session:
        kept = session.scalars(select(Connection.conn_id).where(Connection.conn_type == kind)).all()
    given = (
        name.removeprefix(_IN_ENVIRONMENT).lower()
        for name, value in os.environ.items()
        if name.startswith(_IN_ENVIRONMENT) and (value.startswith(f"{kind}:") or f'"{kind}"' in value)
    )
    return sorted({*kept, *given})


def _project_of(app: str) -> ProjectConfig:
    """Return the first project that declares an application."""
    # Ids of DAGs have its name, so no other project of this Airflow can declare it, too.
    for project in _projects()[0]:
        if app in project.apps or app in project.refused:
            return project
    raise HTTPException(404, _unknown(app))


def _unknown(app: str) -> str:
    return f"There is no application {app!r} that you may see. {_OTHERS}"


def _task_pages(authors: Collection[str]) -> dict[str, str]:
    """Return the address of each task instance among the authors of runs, by author; of steps of releases, that of the run."""
    from airflow.models import TaskInstance

    parts = [author.removeprefix(_OF_AIRFLOW).split("/") for author in authors if author.startswith(_OF_AIRFLOW)]
    runs = {run for _, run, *_ in (part for part in parts if len(part) > 1)}
    # An author does not say where the id of its DAG ends, as both ids may have dots: the database says which ones exist.
    dags = {
        ".".join(words[:end]) for words in (part[0].split(".") for part in parts) for end in range(1, len(words) + 1)
    }
    columns = TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index
    with create_session() as session:
        rows = session.execute(
            select(*columns).where(TaskInstance.run_id.in_(runs), TaskInstance.dag_id.in_(dags))
        ).all()
    found = {f"{_OF_AIRFLOW}{dag}/{run}": page_of_run(dag, run) for dag, run, *_ in rows}
    found |= {author_of(*row): page_of_task(*row) for row in rows}
    return {author: found[author] for author in authors if author in found}


def _looked(project: ProjectConfig, app: str) -> Overview | str:
    try:
        return overview(project, app)
    except StreamsError as error:
        return str(error)


def _seen(project: ProjectConfig, app: str, user: Any) -> AppConfig:
    if app not in project.apps or not _may_see(app, user):
        raise HTTPException(404, _unknown(app))
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
    return _may_read(f"{app}__backfill", user)


def _may_read(dag_id: str, user: Any) -> bool:
    details = DagDetails(id=dag_id)
    return bool(get_auth_manager().is_authorized_dag(method="GET", details=details, user=user))


def may_see_all(project: ProjectConfig, user: Any) -> bool:
    """Return whether a user may see all that has DAGs in a project: a picture has the names of everything."""
    names = [*project.apps, *project.refused]
    archives = [f"{name}__archive" for name in project.section("archives")]
    # Without an application, nothing would be asked.
    return bool(names) and all(_may_see(name, user) for name in names) and all(_may_read(dag, user) for dag in archives)


def _allowed(app: str, user: Any) -> frozenset[str]:
    return frozenset(dag for dag in (f"{app}__{kind}" for kind in _MANUAL) if _may_trigger(dag, user))


def _may_trigger(dag_id: str, user: Any) -> bool:
    details = DagDetails(id=dag_id)
    manager = get_auth_manager()
    return bool(manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user))
