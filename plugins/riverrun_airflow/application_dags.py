"""The DAGs of applications and archives: runs on a schedule, backfills, releases, checks, and decisions of users."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, AssetOrTimeSchedule, Param

from riverrun.config.secrets import redacted
from riverrun_airflow.archives import ArchiveOperator
from riverrun_airflow.assets import outputs_of
from riverrun_airflow.held import HeldRunOperator
from riverrun_airflow.notices import LagOperator, Notices
from riverrun_airflow.operators import RefusalOperator
from riverrun_airflow.pools import pool_of
from riverrun_airflow.task_group import BRANCHES, STEPS, RiverrunTaskGroup, Tasks
from riverrun_airflow.times import AdjoiningTimetable
from riverrun_airflow.work_requests import HELD_ACTIONS, PUBLISH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context
    from airflow.sdk.definitions.deadline import DeadlineAlert

    from riverrun.config import AppConfig
    from riverrun.config.archives import ArchiveConfig
    from riverrun.errors import ConfigError

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_NO_INTERVALS = frozenset({"@once", "@continuous"})
_LIVE = "live"
# The end of a run. `types` are the types of runs that end where their interval does; only `bounded_run` knows them.
_END = (
    "{{{{ (data_interval_end.isoformat() if data_interval_end is defined and data_interval_end else 'interval')"
    " if params['to'] == 'interval' or (not params['to'] and dag_run.run_type in {types})"
    " else params['to'] or 'latest' }}}}"
)
# Airflow runs an interval of a backfill again by clearing its run, which counts up `clear_number`.
_AGAIN = (
    "{{ data_interval_start.isoformat() if dag_run.run_type == 'backfill' and"
    " (params['recompute'] == 'yes' or (not params['recompute'] and dag_run.clear_number)) else '' }}"
)
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
*downstream*, the applications that read them follow, and are compared; what cannot be restated has to be left out by name. With
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
ARCHIVE = "archive"
_ARCHIVE = """
Archives what is new in {topics}, exactly once, at {url}. A retry continues an interrupted attempt. Run it more often than
retention deletes.
"""
_LAG = """
Measures how far the live version of **{app}** and the candidate of a release are behind. Fails if one falls further behind.
"""


@dataclass(frozen=True, slots=True)
class ProjectPlace:
    """The location of a project of DAGs, and further arguments of its tasks.

    Args:
        config: Path of `streams.toml`; empty if tasks are to ask the connection.
        connection: Id of the connection.
        default_args: Arguments of all tasks, as Airflow's `default_args`.
        notices: Notifiers that are called on failures, and when a person is asked.
        operator_args: Arguments of the operators by step, or by application and step (`clicks.gate`).
        asks_about_held: Whether runs ask a person what becomes of outputs that their gate holds back.
    """

    config: str
    connection: str
    default_args: Mapping[str, Any] = field(default_factory=dict)
    notices: Notices = field(default_factory=Notices)
    operator_args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    asks_about_held: bool = False

    @property
    def told_of_questions(self) -> dict[str, Any]:
        """Arguments of tasks that ask a person."""
        return {"notifiers": [*self.notices.waiting]} if self.notices.waiting else {}

    @property
    def told_of_failures(self) -> dict[str, Any]:
        """Arguments of tasks whose failures are notified."""
        return self.told_of(self.notices.failed)

    def told_of(self, notifiers: Sequence[Callable[[Context], None]]) -> dict[str, Any]:
        """Return arguments of tasks whose failures are notified; callbacks of `default_args` are called as well."""
        own = self.default_args.get("on_failure_callback") or ()
        others = own if isinstance(own, list | tuple) else [own]
        return {"on_failure_callback": [*notifiers, *others]} if notifiers else {}

    def operator_args_of(self, app: AppConfig, **of_dag: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return by step the arguments of an application's operators: those of a DAG, then those of the DAGs' author."""
        given = self.operator_args
        return {
            step: {**of_dag.get(step, {}), **given.get(step, {}), **given.get(f"{app.name}.{step}", {})}
            for step in STEPS
        }

    def chain(self, app: AppConfig, step: str, **arguments: Any) -> None:
        """Make the only task of a DAG; after a run that may hold outputs back, also the one that asks what becomes of them."""
        steps = [step, "decide"] if step == "run" and app.gate and self.asks_about_held else [step]
        given = self.operator_args_of(app, **{step: arguments, "decide": {"retries": 0, **self.told_of_questions}})
        Tasks(app.name, self.config, self.connection, given).chain(steps)


def bounded_run(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG of scheduled runs, each from the application's position to the end of the topics.

    In one of Airflow's backfills, a run ends at the end of its interval. So does a scheduled one if each interval has its own.
    """
    schedule = app.schedule or ""
    # With catch-up, each scheduled run processes a separate interval. Without, a run takes all that is new.
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
        place.chain(app, "run", start="{{ params['from'] }}", end=end, recompute_from=_AGAIN, **place.told_of_failures)
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
        "downstream": Param(
            default=False, type="boolean", description="restate all that follows from these tables as well"
        ),
        "without": Param("", type="string", description="leave out members that cannot be restated, by commas"),
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
            downstream="{{ params['downstream'] }}",
            without="{{ params['without'] }}",
            advance_stream_time_to="{{ params['advance_stream_time_to'] }}",
            dry="{{ params['dry_run'] }}",
            **place.told_of_failures,
        )
    return dag


def release(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG of releases, which is triggered by hand.

    It reprocesses a new version, judges it, asks a user if the gate has warnings, switches over, and watches.
    """
    versions = _versions(app)
    params = {
        "version": Param(versions[-1], enum=versions, description="the version to make live"),
        "carry": Param(default=False, type="boolean", description="take state over where nothing about it has changed"),
        "watch_minutes": Param(0, type="integer", minimum=0, description="how long to watch it after the cut"),
        "max_lag": Param(0, type="integer", minimum=0, description="lag in offsets from which to ask; 0: any"),
        "then": Param("keep", enum=["ask", "keep", "retire"], description="what happens to the previous version"),
    }
    given = place.operator_args_of(
        app,
        plan={"carry": "{{ params['carry'] }}"},
        start={"carry": "{{ params['carry'] }}"},
        gate=place.told_of_failures,
        watch={"minutes": "{{ params['watch_minutes'] }}", "max_lag": "{{ params['max_lag'] }}"},
        approve=place.told_of_questions,
        settle={"then": "{{ params['then'] }}", **place.told_of_questions},
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
        computed >> switched >> group("afterwards", "watch", "settle", *BRANCHES.values())
    return dag


def quality(place: ProjectPlace, app: AppConfig) -> DAG:
    """Return the DAG that judges the output of the live version: by hand, on its schedule, and after each run in Airflow."""
    written: Any = outputs_of(app.name)
    schedule = app.quality_schedule
    if schedule is not None:
        times: Any = _times(app, schedule)
        written = AssetOrTimeSchedule(timetable=times, assets=[written])
    params = {
        "since": Param("", type="string", description="last, a vector of public topics or a time; empty: everything")
    }
    with _dag(f"{app.name}__quality", place, app, _QUALITY, schedule=written, params=params) as dag:
        place.chain(app, "judge", since="{{ params['since'] }}", **place.told_of_failures)
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
            **place.told_of_failures,
        )
    return dag


def archive(place: ProjectPlace, config: ArchiveConfig) -> DAG:
    """Return the DAG that archives what is new in the topics of an archive: on its schedule, and by hand."""
    times = config.schedule and AdjoiningTimetable(config.schedule, timezone=config.schedule_timezone)
    given = place.operator_args
    told = _ARCHIVE.format(topics=", ".join(f"`{topic}`" for topic in config.topics), url=redacted(config.url)).strip()
    with DAG(
        f"{config.name}__{ARCHIVE}",
        description=f"Archives topics {', '.join(config.topics)}.",
        doc_md=told,
        schedule=times,
        start_date=_EPOCH,
        catchup=False,
        max_active_runs=1,
        tags=["riverrun", config.name, ARCHIVE],
        default_args=dict(place.default_args),
    ) as dag:
        arguments = {**given.get(ARCHIVE, {}), **given.get(f"{config.name}.{ARCHIVE}", {})}
        own = {"task_id": ARCHIVE, "name": config.name, "config": place.config, "riverrun_conn_id": place.connection}
        ArchiveOperator(**{**own, **place.told_of_failures, **arguments})
    return dag


def refused(place: ProjectPlace, name: str, error: ConfigError, kind: str = "error") -> DAG:
    """Return the DAG that stands for a declaration with an error: it shows the error, and can only fail."""
    with DAG(
        f"{name}__{kind}",
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
    """Return the DAG that measures how far versions are behind, and notifies if the lag of one keeps growing."""
    notices = place.notices
    times = _times(app, notices.look_schedule or "")
    told = place.told_of(notices.behind)
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


def _times(app: AppConfig, schedule: str) -> AdjoiningTimetable:
    return AdjoiningTimetable(schedule, timezone=app.schedule_timezone)


def _moment(app: AppConfig, text: str) -> datetime:
    """Return a time, which is in the schedule's time zone unless it names another."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=ZoneInfo(app.schedule_timezone))


def _versions(app: AppConfig) -> list[str]:
    return [app.version, *app.versions]
