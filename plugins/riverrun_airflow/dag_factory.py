"""DAGs from `streams.toml`: bounded runs on a schedule, backfills, releases and checks. Parsing loads no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, AssetOrTimeSchedule, CronDataIntervalTimetable, Param, TaskGroup, TriggerRule

from riverrun_airflow.approval import (
    KEEP,
    RETIRE,
    ROLL_BACK,
    ApprovalOperator,
    SettlementOperator,
    VerdictBranchOperator,
)
from riverrun_airflow.assets import outputs_of
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.notices import LagOperator, Notices
from riverrun_airflow.operators import BoundedRunOperator, QualityOperator, RefusalOperator, ReleaseOperator
from riverrun_airflow.pools import pool_of
from riverrun_airflow.waiting import AwaitOperator, WatchOperator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from airflow.sdk.definitions.deadline import DeadlineAlert

    from riverrun.config import AppConfig
    from riverrun.errors import ConfigError

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=1)}
_NO_INTERVALS = frozenset({"@once", "@continuous"})
_LIVE = "live"
_VERDICT = "{{ ti.xcom_pull(task_ids='gate')['verdict'] }}"
_END = (
    "{{ data_interval_end.isoformat() if params['to'] == 'interval' or"
    " (not params['to'] and dag_run.run_type == 'backfill') else params['to'] or 'latest' }}"
)
_RUN = """
Processes the new offsets of **{app}** on Spark, exactly once. It continues where a worker or another run stopped.

A backfill (`airflow backfill create --dag-id {app}__run ...`) processes up to each interval's end in turn.
Intervals that are processed already do nothing. Runs of one application never overlap: they share the pool `{pool}`.
"""
_BACKFILL = """
Processes a chosen range of **{app}**, by times or offsets, exactly once. Processed records stay as they are:
to compute them again, release a new version. With *dry run*, nothing is committed, and the log shows what would be written.
"""
_RELEASE = """
Replaces the live version of **{app}** by another one. The new version is computed from the start into fresh state, compared
with the live version by the expectations, and made live at an exact offset. You can clear any task to repeat it.

If the gate has warnings, a person approves or rejects its verdict (*Required actions*).
"""
_QUALITY = """
Judges what the live version of **{app}** has published, by the expectations of its gate: on its schedule, if it has one,
and after each of its runs in Airflow. The page *Riverrun* shows what was found, with Data Docs.
"""
_LAG = """
Measures how far the live version of **{app}** and the candidate of a release are behind. Fails if one falls further behind.
"""


@dataclass(frozen=True, slots=True)
class ProjectPlace:
    """The location of a project of DAGs, and further arguments of its tasks.

    Args:
        config: Path of `streams.toml`; empty if tasks are to ask the connection.
        connection: The connection.
        default_args: Arguments of all tasks, as Airflow's `default_args`.
        notices: Notifiers that are called on failures.
    """

    config: str
    connection: str
    default_args: Mapping[str, Any] = field(default_factory=dict)
    notices: Notices = field(default_factory=Notices)

    def arguments(self, app: AppConfig) -> dict[str, Any]:
        """Return the arguments that all tasks of an application have."""
        return {"config": self.config, "riverrun_conn_id": self.connection, "app": app.name}


def dags(
    config: Path | str = "",
    *,
    riverrun_conn_id: str = CONNECTION,
    default_args: Mapping[str, Any] | None = None,
    notices: Notices | None = None,
) -> dict[str, DAG]:
    """Return all DAGs of a project, by id.

    Args:
        config: Path of `streams.toml`; by default, as the connection, the variable `riverrun_project` or `RIVERRUN_CONFIG`
            says.
        riverrun_conn_id: The connection.
        default_args: Arguments of all tasks: owner, callbacks, retries.
        notices: Notifiers of failed gates and checks, late runs, and versions that fall behind.

    Returns:
        The DAGs. An application whose declaration has an error gets one that shows it; the others are not affected.

    Raises:
        ConfigError: If the project is not found or cannot be used; Airflow shows it as an import error.
    """
    location = located(str(config), riverrun_conn_id)
    place = ProjectPlace(str(config), riverrun_conn_id, {**_RETRIES, **(default_args or {})}, notices or Notices())
    made = []
    project = location.project()
    for name, refusal in project.refused.items():
        made.append(refused(place, name, refusal.error))
    for app in project.apps.values():
        if app.schedule is not None:
            made.append(bounded_run(place, app))
        made += [backfill(place, app), release(place, app)]
        if app.quality is not None:
            made.append(quality(place, app))
        if place.notices.look_schedule is not None:
            made.append(lag(place, app))
    return {dag.dag_id: dag for dag in made}


def bounded_run(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG of scheduled runs, each from the application's position to the end of the topics.

    In one of Airflow's backfills, a run ends at the end of its interval.
    """
    schedule = app.schedule or ""
    with _dag(
        f"{app.name}__run",
        place,
        app,
        _RUN,
        schedule=schedule if schedule in _NO_INTERVALS else CronDataIntervalTimetable(schedule, timezone="UTC"),
        deadline=place.notices.deadline,
        params={
            "from": Param("committed", type="string", description="committed, earliest, a vector or a time"),
            "to": Param(
                "",
                type="string",
                description="latest, interval (its end), a vector or a time; empty: interval in a backfill, else latest",
            ),
        },
    ) as dag:
        BoundedRunOperator(
            task_id="run", pool=pool_of(app.name), start="{{ params['from'] }}", end=_END, **place.arguments(app)
        )
    return dag


def backfill(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG that processes a range of times or offsets on request."""
    choose = "{{ '' if params['version'] == 'live' else params['version'] }}"
    params = {
        "from": Param("committed", type="string", description="committed, earliest, a vector (topic-0@12) or a time"),
        "to": Param("latest", type="string", description="latest, a vector or a time"),
        "version": Param(
            _LIVE, enum=[_LIVE, *_versions(app)], description="versions that are not live write to staging"
        ),
        "advance_stream_time_to": Param("", type="string", description="a time; windows that end before it are closed"),
        "dry_run": Param(default=False, type="boolean", description="only say what would be written"),
    }
    with _dag(f"{app.name}__backfill", place, app, _BACKFILL, params=params) as dag:
        BoundedRunOperator(
            task_id="run",
            pool=pool_of(app.name),
            start="{{ params['from'] }}",
            end="{{ params['to'] }}",
            version=choose,
            advance_stream_time_to="{{ params['advance_stream_time_to'] }}",
            dry="{{ params['dry_run'] }}",
            **place.arguments(app),
        )
    return dag


def release(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG of releases, which is triggered by hand.

    It reprocesses a new version, judges it, asks a person if the gate has warnings, switches over, and watches.
    """
    versions = _versions(app)
    params = {
        "version": Param(versions[-1], enum=versions, description="the version to make live"),
        "watch_minutes": Param(0, type="integer", minimum=0, description="how long to watch it after the cut"),
        "max_lag": Param(0, type="integer", minimum=0, description="lag in offsets from which to ask; 0: any"),
        "then": Param("keep", enum=["ask", "keep", "retire"], description="what happens to the previous version"),
    }
    arguments = place.arguments(app)
    with _dag(f"{app.name}__release", place, app, _RELEASE, params=params) as dag:
        with TaskGroup("candidate", prefix_group_id=False):
            computed = _chained(place, app, ("plan", "start", "reprocess"), to="{{ params['version'] }}")
            followed = AwaitOperator(task_id="await", **arguments)
        with TaskGroup("verdict_and_cut", prefix_group_id=False):
            gate, cut = _step(place, app, "gate", **place.notices.of_failures), _step(place, app, "cut")
            cut.trigger_rule = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
            judged = VerdictBranchOperator(
                task_id="verdict", verdict=_VERDICT, clean="cut", asking="approve", **arguments
            )
            approve = ApprovalOperator(task_id="approve", verdict=_VERDICT, **arguments)
        with TaskGroup("afterwards", prefix_group_id=False):
            watch = _watch(arguments)
            settle = _settle(app)
            done = [_step(place, app, "retire"), _step(place, app, "rollback"), EmptyOperator(task_id="keep")]
        computed[-1] >> followed >> gate >> judged >> [approve, cut]
        approve >> cut >> watch >> settle >> done
    return dag


def quality(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG that judges the output of the live version: by hand, on its schedule, and after each run in Airflow."""
    written: Any = outputs_of(app.name)
    schedule = app.quality_schedule
    if schedule is not None:
        times = CronDataIntervalTimetable(schedule, timezone="UTC")
        written = AssetOrTimeSchedule(timetable=times, assets=[written])
    params = {
        "since": Param("", type="string", description="last, a vector of public topics or a time; empty: everything")
    }
    with _dag(f"{app.name}__quality", place, app, _QUALITY, schedule=written, params=params) as dag:
        told = place.notices.of_failures
        QualityOperator(task_id="judge", since="{{ params['since'] }}", **place.arguments(app), **told)
    return dag


def refused(place: ProjectPlace, name: str, error: ConfigError) -> DAG:
    """Return the DAG that stands for an application whose declaration has an error: it shows the error, and can only fail."""
    with DAG(
        f"{name}__error",
        description=error.message,
        doc_md=f"`{error}`",
        schedule=None,
        start_date=_EPOCH,
        tags=["riverrun", name, "error"],
        default_args=dict(place.default_args),
    ) as dag:
        RefusalOperator(task_id="read", told=str(error), retries=0)
    return dag


def lag(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG that measures how far versions are behind, and notifies if one falls further and further behind."""
    notices = place.notices
    times = CronDataIntervalTimetable(notices.look_schedule or "", timezone="UTC")
    told: dict[str, Any] = {"on_failure_callback": list(notices.behind)} if notices.behind else {}
    with _dag(f"{app.name}__lag", place, app, _LAG, schedule=times, params={}) as dag:
        LagOperator(task_id="look", looks=notices.looks, retries=0, **place.arguments(app), **told)
    return dag


def _watch(arguments: Mapping[str, Any]) -> WatchOperator:
    return WatchOperator(
        task_id="watch",
        version="{{ params['version'] }}",
        minutes="{{ params['watch_minutes'] }}",
        max_lag="{{ params['max_lag'] }}",
        **arguments,
    )


def _settle(app: AppConfig) -> SettlementOperator:
    return SettlementOperator(
        task_id="settle",
        app=app.name,
        then="{{ params['then'] }}",
        found="{{ ti.xcom_pull(task_ids='watch') or '' }}",
        branches={RETIRE: "retire", ROLL_BACK: "rollback", KEEP: "keep"},
    )


def _dag(
    dag_id: str,
    place: ProjectPlace,
    app: AppConfig,
    said: str,
    *,
    params: dict[str, Param],
    schedule: Any = None,
    deadline: DeadlineAlert | None = None,
) -> DAG:
    told = said.format(app=app.name, pool=pool_of(app.name)).strip()
    return DAG(
        dag_id,
        description=told.partition("\n")[0].replace("**", ""),
        doc_md=told,
        schedule=schedule,
        params=params,
        start_date=_EPOCH,
        catchup=False,
        max_active_runs=1,
        deadline=deadline,
        tags=["riverrun", app.name],
        default_args=dict(place.default_args),
    )


def _chained(place: ProjectPlace, app: AppConfig, steps: Sequence[str], **options: str) -> list[ReleaseOperator]:
    tasks = [_step(place, app, step, **options) for step in steps]
    for before, after in pairwise(tasks):
        before >> after
    return tasks


def _step(place: ProjectPlace, app: AppConfig, step: str, **options: Any) -> ReleaseOperator:
    arguments = {**place.arguments(app), **options}
    return ReleaseOperator(task_id=step, step=step, pool=pool_of(app.name), **arguments)


def _versions(app: AppConfig) -> list[str]:
    return [app.version, *app.versions]
