"""DAGs from `streams.toml`: bounded runs on a schedule, backfills, releases and checks. Parsing loads no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, AssetOrTimeSchedule, CronDataIntervalTimetable, Param

from riverrun.config.checks import nearest
from riverrun.errors import ConfigError
from riverrun_airflow.acting import in_airflow
from riverrun_airflow.assets import outputs_of
from riverrun_airflow.held import HeldRunOperator
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.notices import LagOperator, Notices
from riverrun_airflow.operators import RefusalOperator
from riverrun_airflow.pools import pool_of
from riverrun_airflow.task_group import STEPS, RiverrunTaskGroup, Tasks, checked
from riverrun_airflow.work_requests import HELD_ACTIONS, PUBLISH

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from airflow.sdk.definitions.deadline import DeadlineAlert

    from riverrun.config import AppConfig, ProjectConfig

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=1)}
_NO_INTERVALS = frozenset({"@once", "@continuous"})
_LIVE = "live"
_END = (
    "{{{{ data_interval_end.isoformat() if params['to'] == 'interval' or"
    " (not params['to'] and dag_run.run_type in {types}) else params['to'] or 'latest' }}}}"
)
"""The end of a run; the types of runs that end where their interval does are filled in."""
_AGAIN = (
    "{{ data_interval_start.isoformat() if dag_run.run_type == 'backfill' and"
    " (params['recompute'] == 'yes' or (not params['recompute'] and dag_run.clear_number)) else '' }}"
)
"""When a backfill computes an interval again: if it runs a run of Airflow again, or is told to."""
_RUN = """
Processes the new offsets of **{app}** on Spark, exactly once. It continues where a worker or another run stopped.

A backfill (`airflow backfill create --dag-id {app}__run ...`) processes up to each interval's end in turn.
With `--reprocess-behavior completed`, intervals that were run already are computed again: rows of tables that differ are
judged, then published as corrections. Records of logs stay. Otherwise, intervals that are processed already do nothing.
Runs of one application never overlap: they share the pool `{pool}`.
"""
_BACKFILL = """
Processes a chosen range of **{app}**, by times or offsets, exactly once. Processed records stay as they are. With *recompute*,
rows of tables from one time to another are computed again; those that differ are judged, then published as corrections. With
*dry run*, nothing is committed, and the log shows what would be written.
"""
_RELEASE = """
Replaces the live version of **{app}** by another one. The new version is computed from the start into fresh state, compared
with the live version by the expectations, and made live at an exact offset. You can clear any task to repeat it.

If the gate has warnings, a person approves or rejects its verdict (*Required actions*).
"""
_HELD = """
Decides on the outputs of a bounded run that its gate holds back. The log of the failed run shows what did not pass.
Until you decide, no other run of the application starts.

- `publish`: publish the outputs. If the gate has warnings, enter the id of the verdict that you approve.
- `judge`: judge them again, after the expectations were corrected.
- `discard`: take the run back. The next run processes its records again.
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
        operator_args: Arguments of the operators by step, or by application and step (`clicks.gate`).
    """

    config: str
    connection: str
    default_args: Mapping[str, Any] = field(default_factory=dict)
    notices: Notices = field(default_factory=Notices)
    operator_args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def operator_args_of(self, app: AppConfig, **of_dag: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return by step the arguments of an application's operators: those of a DAG, then those of the DAGs' author."""
        given = self.operator_args
        return {
            step: {**of_dag.get(step, {}), **given.get(step, {}), **given.get(f"{app.name}.{step}", {})}
            for step in STEPS
        }

    def chain(self, app: AppConfig, step: str, **arguments: Any) -> None:
        """Make the only task of a DAG."""
        Tasks(app.name, self.config, self.connection, self.operator_args_of(app, **{step: arguments})).chain([step])


def dags(
    config: Path | str = "",
    *,
    riverrun_conn_id: str = CONNECTION,
    default_args: Mapping[str, Any] | None = None,
    notices: Notices | None = None,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    operator_args: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, DAG]:
    """Return the DAGs of a project, by id.

    Args:
        config: Path of `streams.toml`; by default, as the connection, the variable `riverrun_project` or `RIVERRUN_CONFIG`
            says.
        riverrun_conn_id: The connection.
        default_args: Arguments of all tasks: owner, callbacks, retries.
        notices: Notifiers of failed gates and checks, late runs, and versions that fall behind.
        select: Names of applications that get DAGs, or patterns such as `shop-*`; all by default.
        exclude: Names or patterns of those that get none.
        operator_args: Arguments of the operators by step (`{"run": {"engine": "spark"}, "gate": {"retries": 0}}`), for one
            application as `clicks.run`. They override those of these DAGs.

    Returns:
        The DAGs. An application whose declaration has an error gets one that shows it; the others are not affected.

    Raises:
        ConfigError: If the project is not found or cannot be used, or there is no such application or step; Airflow shows it
            as an import error.
    """
    project = declared(str(config), riverrun_conn_id)
    names = [*project.apps, *project.refused]
    given = checked(operator_args or {}, [*STEPS, *(f"{name}.{step}" for name in names for step in STEPS)])
    place = ProjectPlace(
        str(config), riverrun_conn_id, {**_RETRIES, **(default_args or {})}, notices or Notices(), given
    )
    chosen = selected(names, select, exclude)
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
    """Raise the errors of a project's applications, in a DAG file of its own: Airflow shows them as its import error.

    The error of a file takes all DAGs of that file away. So the DAGs of the other applications stand in another file.

    Args:
        config: Path of `streams.toml`, as in `dags`.
        riverrun_conn_id: The connection.

    Raises:
        ConfigError: If an application's declaration has an error, or the project cannot be used.
    """
    project = declared(str(config), riverrun_conn_id)
    told = [f"{name}: {in_airflow(str(found.error))}" for name, found in project.refused.items()]
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


def selected(names: Collection[str], select: str | Sequence[str] = (), exclude: str | Sequence[str] = ()) -> list[str]:
    """Return the names that a selection leaves.

    >>> selected(["clicks", "shop-eu", "shop-us"], "shop-*", ["shop-us"])
    ['shop-eu']

    Args:
        names: All names.
        select: Names or patterns; all by default.
        exclude: Names or patterns of those to leave out.

    Raises:
        ConfigError: If a name or pattern has no application: it is misspelt.
    """
    wanted, unwanted = ([each] if isinstance(each, str) else list(each) for each in (select, exclude))
    for pattern in (*wanted, *unwanted):
        if not any(fnmatchcase(name, pattern) for name in names):
            message = f"The project has no application {pattern!r}"
            raise ConfigError(message, hint=nearest(pattern, names))

    def is_among(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return [name for name in names if (not wanted or is_among(name, wanted)) and not is_among(name, unwanted)]


def bounded_run(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG of scheduled runs, each from the application's position to the end of the topics.

    In one of Airflow's backfills, a run ends at the end of its interval. So does a scheduled one if each interval has its own.
    """
    schedule = app.schedule or ""
    whole = ("backfill",) if app.catchup_from is None else ("backfill", "scheduled")
    dag = _dag(
        f"{app.name}__run",
        place,
        app,
        _RUN,
        schedule=schedule if schedule in _NO_INTERVALS else _times(app, schedule),
        deadline=place.notices.deadline,
        params={
            "from": Param("committed", type="string", description="committed, earliest, a vector or a time"),
            "to": Param(
                "",
                type="string",
                description="latest, interval (its end), a vector or a time; empty: interval in a backfill, else latest",
            ),
            "recompute": Param(
                "",
                enum=["", "yes", "no"],
                description="whether a backfill computes processed rows again; empty: if the interval was run already",
            ),
        },
        catchup_from=app.catchup_from,
    )
    with dag:
        end = _END.format(types=whole)
        place.chain(app, "run", start="{{ params['from'] }}", end=end, recompute_from=_AGAIN)
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
        "recompute": Param(
            default=False, type="boolean", description="compute rows of tables between from and to, two times, again"
        ),
        "approve": Param("", type="string", description="to publish them despite warnings: the id of their verdict"),
    }
    with _dag(f"{app.name}__backfill", place, app, _BACKFILL, params=params) as dag:
        place.chain(
            app,
            "run",
            start="{{ 'committed' if params['recompute'] else params['from'] }}",
            end="{{ params['to'] }}",
            version=choose,
            recompute_from="{{ params['from'] if params['recompute'] else '' }}",
            approve="{{ params['approve'] }}",
            advance_stream_time_to="{{ params['advance_stream_time_to'] }}",
            dry="{{ params['dry_run'] }}",
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
    given = place.operator_args_of(
        app,
        gate=place.notices.of_failures,
        watch={"minutes": "{{ params['watch_minutes'] }}", "max_lag": "{{ params['max_lag'] }}"},
        settle={"then": "{{ params['then'] }}"},
    )

    def group(group_id: str, *steps: str) -> RiverrunTaskGroup:
        return RiverrunTaskGroup(
            app.name,
            steps,
            version="{{ params['version'] }}",
            group_id=group_id,
            prefix_group_id=False,
            operator_args=given,
            config=place.config,
            riverrun_conn_id=place.connection,
        )

    with _dag(f"{app.name}__release", place, app, _RELEASE, params=params) as dag:
        computed = group("candidate", "plan", "start", "reprocess", "await")
        switched = group("verdict_and_cut", "gate", "verdict", "approve", "cut")
        computed >> switched >> group("afterwards", "watch", "settle", "retire", "rollback", "keep")
    return dag


def quality(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG that judges the output of the live version: by hand, on its schedule, and after each run in Airflow."""
    written: Any = outputs_of(app.name)
    schedule = app.quality_schedule
    if schedule is not None:
        written = AssetOrTimeSchedule(timetable=_times(app, schedule), assets=[written])
    params = {
        "since": Param("", type="string", description="last, a vector of public topics or a time; empty: everything")
    }
    with _dag(f"{app.name}__quality", place, app, _QUALITY, schedule=written, params=params) as dag:
        place.chain(app, "judge", since="{{ params['since'] }}", **place.notices.of_failures)
    return dag


def held(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG that decides on outputs which the gate of a run holds back, triggered by hand."""
    params = {
        "action": Param(
            PUBLISH, enum=[*HELD_ACTIONS], description="publish the outputs, judge them again, or discard the run"
        ),
        "approve": Param("", type="string", description="to publish despite warnings: the id of their verdict"),
    }
    with _dag(f"{app.name}__held", place, app, _HELD, params=params) as dag:
        HeldRunOperator(
            task_id="decide",
            retries=0,
            app=app.name,
            action="{{ params['action'] }}",
            approve="{{ params['approve'] }}",
            config=place.config,
            riverrun_conn_id=place.connection,
        )
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
    times = _times(app, notices.look_schedule or "")
    told: dict[str, Any] = {"on_failure_callback": list(notices.behind)} if notices.behind else {}
    with _dag(f"{app.name}__lag", place, app, _LAG, schedule=times, params={}) as dag:
        LagOperator(
            task_id="look",
            looks=notices.looks,
            retries=0,
            app=app.name,
            config=place.config,
            riverrun_conn_id=place.connection,
            **told,
        )
    return dag


def _dag(
    dag_id: str,
    place: ProjectPlace,
    app: AppConfig,
    said: str,
    *,
    params: dict[str, Param],
    schedule: Any = None,
    deadline: DeadlineAlert | None = None,
    catchup_from: str | None = None,
) -> DAG:
    told = said.format(app=app.name, pool=pool_of(app.name)).strip()
    return DAG(
        dag_id,
        description=told.partition("\n")[0].replace("**", ""),
        doc_md=told,
        schedule=schedule,
        params=params,
        start_date=_EPOCH if catchup_from is None else _moment(app, catchup_from),
        catchup=catchup_from is not None,
        max_active_runs=1,
        deadline=deadline,
        tags=["riverrun", app.name],
        default_args=dict(place.default_args),
    )


def _times(app: AppConfig, schedule: str) -> CronDataIntervalTimetable:
    return CronDataIntervalTimetable(schedule, timezone=app.schedule_timezone)


def _moment(app: AppConfig, text: str) -> datetime:
    """Return a time, which is one of the schedule's time zone unless it names another."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=ZoneInfo(app.schedule_timezone))


def _versions(app: AppConfig) -> list[str]:
    return [app.version, *app.versions]
