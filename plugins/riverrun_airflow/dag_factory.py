"""DAGs from `streams.toml`, for DAG files: those of all applications, or of some. Parsing loads no engine."""

from __future__ import annotations

from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import nearest
from riverrun.errors import ConfigError
from riverrun_airflow.acting import in_airflow
from riverrun_airflow.application_dags import (
    ARCHIVE,
    ProjectPlace,
    archive,
    backfill,
    bounded_run,
    held,
    lag,
    quality,
    refused,
    release,
)
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.notices import Notices
from riverrun_airflow.task_group import STEPS, checked

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from airflow.sdk import DAG

    from riverrun.config import ProjectConfig

_RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=1)}


def dags(
    config: Path | str = "",
    *,
    riverrun_conn_id: str = CONNECTION,
    default_args: Mapping[str, Any] | None = None,
    notices: Notices | None = None,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    operator_args: Mapping[str, Mapping[str, Any]] | None = None,
    asks_about_held: bool = False,
) -> dict[str, DAG]:
    """Return the DAGs of a project, by id.

    Args:
        config: Path of `streams.toml`; by default, as the connection, the variable `riverrun_project` or `RIVERRUN_CONFIG`
            says.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
        default_args: Arguments of all tasks: owner, callbacks, retries.
        notices: Notifiers of failed gates and checks, decisions that wait, late runs, and versions that fall behind.
        select: Names of applications and archives that get DAGs, or patterns such as `shop-*`; all by default.
        exclude: Names or patterns of those that get none.
        operator_args: Arguments of the operators by step (`{"run": {"engine": "spark"}, "archive": {"retries": 0}}`), for one
            application or archive as `clicks.run`. They override those of these DAGs.
        asks_about_held: Whether a run whose gate holds outputs back is followed by a required action: publish them, judge them
            again, or discard the run. Without it, `<app>__held` is triggered by hand. The run of the DAG waits for the answer.

    Returns:
        The DAGs. Where the declaration of an application or archive has an error, one shows it; the others are not affected.

    Raises:
        ConfigError: If the project is not found or cannot be used, or there is no such application, archive or step;
            Airflow shows it as an import error.
    """
    project = declared(str(config), riverrun_conn_id)
    names, archives = [*project.apps, *project.refused], project.section("archives")
    known = [*STEPS, ARCHIVE, *(f"{name}.{step}" for name in names for step in STEPS)]
    given = checked(operator_args or {}, [*known, *(f"{name}.{ARCHIVE}" for name in archives)])
    place = ProjectPlace(
        str(config),
        riverrun_conn_id,
        {**_RETRIES, **(default_args or {})},
        notices or Notices(),
        given,
        asks_about_held=asks_about_held,
    )
    kind = "application or archive" if archives else "application"
    chosen = selected(list(dict.fromkeys([*names, *archives])), select, exclude, kind=kind)
    made: list[DAG] = []
    made += [refused(place, name, found.error) for name, found in project.refused.items() if name in chosen]
    for app in (app for name, app in project.apps.items() if name in chosen):
        if app.schedule is not None:
            made.append(bounded_run(place, app))
        made += [backfill(place, app), release(place, app)]
        if app.quality is not None:
            made.append(quality(place, app))
        if app.gate:
            made.append(held(place, app))
        if place.notices.look_schedule is not None:
            made.append(lag(place, app))
    for name, found in archives.items():
        if name in chosen:
            if isinstance(found, ConfigError):
                made.append(refused(place, name, found, f"{ARCHIVE}_error"))
            else:
                made.append(archive(place, found))
    return {dag.dag_id: dag for dag in made}


def applications(
    config: Path | str = "",
    *,
    riverrun_conn_id: str = CONNECTION,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
) -> list[str]:
    """Return names of a project's applications, for operators that are mapped over them; arguments as those of `dags`.

    Raises:
        ConfigError: If the project is not found or cannot be used, or there is no such application.
    """
    return selected([*declared(str(config), riverrun_conn_id).apps], select, exclude)


def check_declarations(config: Path | str = "", *, riverrun_conn_id: str = CONNECTION) -> None:
    """Raise the errors of a project's declarations, in a separate DAG file: Airflow shows them as its import error.

    The error of a file takes all DAGs of that file away. So the DAGs of the other applications stand in another file.

    Args:
        config: Path of `streams.toml`, as in `dags`.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.

    Raises:
        ConfigError: If a declaration has an error, or the project cannot be used.
    """
    project = declared(str(config), riverrun_conn_id)
    errors = [(name, found.error) for name, found in project.refused.items()]
    errors += [(name, found) for name, found in project.section("archives").items() if isinstance(found, ConfigError)]
    told = [f"{name}: {in_airflow(str(error))}" for name, error in errors]
    if told:
        raise ConfigError("\n".join(told))


def declared(config: str, connection: str) -> ProjectConfig:
    """Return a project, for a DAG file; hints of its errors have Airflow's words.

    Raises:
        ConfigError: If it is not found, or cannot be used.
    """
    try:
        return located(config, connection).project()
    except ConfigError as error:
        error.hint = in_airflow(error.hint) if error.hint else None
        raise


def selected(
    names: Collection[str],
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    *,
    kind: str = "application",
) -> list[str]:
    """Return the names that a selection leaves.

    >>> selected(["clicks", "shop-eu", "shop-us"], "shop-*", ["shop-us"])
    ['shop-eu']

    Args:
        names: The names to choose from, in order.
        select: Names or patterns; all by default.
        exclude: Names or patterns of those to leave out.
        kind: What the names are names of, for messages.

    Raises:
        ConfigError: If a name or pattern has no application: it is misspelt.
    """
    wanted, unwanted = ([each] if isinstance(each, str) else list(each) for each in (select, exclude))
    for pattern in (*wanted, *unwanted):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"The project has no {kind} {pattern!r}", hint=nearest(pattern, names))

    def is_among(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return [name for name in names if (not wanted or is_among(name, wanted)) and not is_among(name, unwanted)]
