"""Operators: each does the work of a command of the shell. No engine loads before a task runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from riverrun.errors import UnderWayError
from riverrun.spark.options import MAX_RECORDS_PER_SLICE, BackfillOptions, RunOptions
from riverrun_airflow.acting import acting, end_at_once, truth
from riverrun_airflow.arguments import gathered, rendered
from riverrun_airflow.assets import (
    TopicLineage,
    announce,
    is_template,
    judged_by_topic,
    lineage_of,
    outputs_of,
    topic_asset,
)
from riverrun_airflow.deadlines import time_left
from riverrun_airflow.hooks import CONNECTION, located
from riverrun_airflow.links import ApplicationLink, DocsLink, SparkLink, documented, logged, returning_fields
from riverrun_airflow.looks import look
from riverrun_airflow.progress import following, log_summary
from riverrun_airflow.results import (
    result_of_check,
    result_of_rehearsal,
    result_of_runs,
    unless_empty,
)
from riverrun_airflow.sessions import (
    WrittenRecords,
    bounded,
    is_judged,
    judge_live,
    judged,
    recompute,
    rehearse,
    run,
    runs_by,
    topics_of,
    written_by,
)
from riverrun_airflow.submission import concluded, is_apart, submit
from riverrun_airflow.triggers import LookTrigger, ended
from riverrun_airflow.work_requests import CheckRequest, RunRequest, author_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

    from riverrun.config import ProjectConfig
    from riverrun.project.runs import BoundedRun
    from riverrun_airflow.drivers import Note
    from riverrun_airflow.sessions import Check

# Keys of a task's state, which all its attempts share: its range, whether readers were notified, and its corrections.
_RANGE, _TOLD, _CORRECTED = "range", "told", "corrected"
# Bounds as the DAG leaves them if its run has no data interval.
_INTERVAL = "interval"
_NO_INTERVAL = (
    "This run of the DAG has no data interval, as it has no logical date: the end `interval` means nothing.\n"
    "Hint: Trigger the DAG with a logical date, or with to=latest, a vector or a time."
)
_NOTHING: dict[str, Any] = {"compared": 0, "corrections": 0, "corrected": []}


@dataclass(frozen=True, slots=True)
class _Recomputation:
    """Arguments about rows that are computed again before a run."""

    recompute_from: str = ""
    from_beginning: bool | str = False
    recompute_topics: str = ""
    approve: str = ""
    announce_corrections: bool = True
    downstream: bool | str = False
    without: str = ""

    def options(self) -> BackfillOptions:
        topics = _listed(self.recompute_topics)
        return BackfillOptions(topics, None, self.approve, truth("from_beginning", self.from_beginning))

    def reach(self) -> dict[str, Any]:
        """Return whether what follows is restated as well, and which members are left out."""
        return {"downstream": truth("downstream", self.downstream), "without": _listed(self.without)}


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


class BoundedRunOperator(BaseOperator):
    """Processes a range of offsets, exactly once (`riverrun run`).

    The range is resolved once and kept with the task. A retry processes the remainder of that range. An empty range starts no
    Spark, nor does a small one if Spark would run on this machine.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        config: Path of `streams.toml`; by default, as the connection says.
        start: `committed`, `earliest`, a vector or a time.
        end: `latest`, a vector or a time.
        version: The version; by default, the live one. Another one writes to its staging topics.
        advance_stream_time_to: A time to advance event time to at the end: windows that end before it are closed. Empty for
            none.
        dry: Whether to commit nothing: the log says what would be written.
        engine: `spark`, `local` or `auto`, as in `AppRuns.bounded`; by default, as the application's setting says.
        max_records_per_slice: Maximum number of records of a slice, which is one transaction per task; 0 for the default.
        wall_clock_punctuation: `refuse`, `once` or `never`, as in `AppRuns.bounded`; by default, as the setting says.
        gate: Whether the outputs are public only after the application's expectations have passed; by default, as its setting
            `gate` says. Outputs that do not pass fail the task without a retry, and hold the next run: see `HeldRunOperator`.
        recompute_from: A time from which processed rows of tables up to `end`, a time as well, are computed again first, by the
            live version (`riverrun backfill`); empty for none.
        from_beginning: As in `AppRuns.backfill`.
        recompute_topics: Public tables to compute again, separated by commas; all if it is empty.
        approve: The id of a verdict on these rows whose warnings are approved.
        downstream: Whether all that follows from these tables is restated as well (`riverrun backfill --downstream`).
        without: Members that cannot be restated and are left out then, separated by commas.
        skip_if_empty: Whether the task is skipped if there was nothing to process, and the tasks after it with it.
        announce_corrections: Whether corrections of rows that were computed again make asset events, too.
        master: Spark's master URL, or that of a Spark Connect server; by default, as the connection or `[spark]` says.
        apart: Whether the driver is a separate process, and the task waits without a slot; by default, if Spark is a cluster.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = (
        "config",
        "app",
        "start",
        "end",
        "version",
        "dry",
        *(each.name for each in fields(RunOptions)),
        "recompute_from",
        "from_beginning",
        "recompute_topics",
        "approve",
        "downstream",
        "without",
        "master",
        "riverrun_conn_id",
    )
    operator_extra_links = (ApplicationLink(), SparkLink())
    ui_color = "#e7f0fb"
    get_openlineage_facets_on_complete = lineage_of

    def __init__(
        self,
        *,
        app: str,
        start: str = "committed",
        end: str = "latest",
        version: str = "",
        dry: bool | str = False,
        advance_stream_time_to: str | None = None,
        wall_clock_punctuation: str | None = None,
        engine: str | None = None,
        max_records_per_slice: int | str = MAX_RECORDS_PER_SLICE,
        gate: bool | str | None = None,
        recompute_from: str = "",
        from_beginning: bool | str = False,
        recompute_topics: str = "",
        approve: str = "",
        downstream: bool | str = False,
        without: str = "",
        announce_corrections: bool = True,
        skip_if_empty: bool = False,
        config: str = "",
        master: str = "",
        apart: bool | None = None,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        self.own_outlets = kwargs.get("outlets")
        if self.own_outlets is None and not is_template(app):
            kwargs["outlets"] = [outputs_of(app)]
        super().__init__(**returning_fields(self, kwargs))
        self.app = app
        self.start = start
        self.end = end
        self.version = version
        self.dry = dry
        self.advance_stream_time_to = advance_stream_time_to
        self.wall_clock_punctuation = wall_clock_punctuation
        self.engine = engine
        self.max_records_per_slice = max_records_per_slice
        self.gate = gate
        self.recompute_from = recompute_from
        self.from_beginning = from_beginning
        self.recompute_topics = recompute_topics
        self.approve = approve
        self.downstream = downstream
        self.without = without
        self.announce_corrections = announce_corrections
        self.skip_if_empty = skip_if_empty
        self.config = config
        self.master = master
        self.apart = apart
        self.riverrun_conn_id = riverrun_conn_id
        self.spark_page = ""
        self.lineage = TopicLineage()

    def execute(self, context: Context) -> dict[str, Any]:
        """Run, and return the result (`results.RunResult`). While another run of the application lives, defer the task."""
        result = self._unless_another_runs(context, lambda: acting(lambda: self._run(context)))
        return unless_empty(context, result, skip=self.skip_if_empty)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Run after the other run has ended."""
        ended(event)
        return self.execute(context)

    def on_kill(self) -> None:
        """End the task, and Spark with its process. The next owners of its tasks abort open transactions."""
        end_at_once()

    def driven(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue after a driver has ended; another attempt does the work that it left."""
        conclude = partial(concluded, self, context, event, lambda note: self._concluded(context, note))
        return unless_empty(context, self._unless_another_runs(context, conclude), skip=self.skip_if_empty)

    def _keep_corrections(self, context: Context, found: dict[str, Any]) -> None:
        if found:
            compared, count = found["compared"], found["corrections"]
            self.log.info("%d rows compared that were computed again, %d corrections", compared, count)
            store: Any = context["task_state_store"]
            before = store.get(_CORRECTED) or _NOTHING
            # Another attempt finds nothing left to correct, so it could not report these.
            ranges = [*before["corrected"], *map(list, found["corrected"].items())]
            count += before["corrections"]
            store.set(_CORRECTED, {"compared": compared, "corrections": count, "corrected": ranges})

    def _unless_another_runs(self, context: Context, action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Act, or else wait without a slot until no other run of the application lives: see `resume`."""
        try:
            return action()
        except UnderWayError:
            wanted = {"kind": "idle", "app": self.app}
            first = acting(lambda: look(located(self.config, self.riverrun_conn_id).project(), **wanted))
            # No bounded run is under way: a worker has the application, or a switch is. A retry may succeed.
            if first.is_over:
                raise
            self.log.info("%s", first.said)
        trigger = LookTrigger(wanted, self.config, self.riverrun_conn_id)
        self.defer(trigger=trigger, method_name="resume", timeout=time_left(context))
        raise AssertionError  # `defer` leaves by an exception, which its type does not say

    def _run(self, context: Context) -> dict[str, Any]:
        is_dry = truth("dry", self.dry)
        if _INTERVAL in {self.start, self.end}:
            raise AirflowFailException(_NO_INTERVAL)
        location = located(self.config, self.riverrun_conn_id)
        project = location.project()
        store: Any = context["task_state_store"]
        planned = bounded(project, self._request(context, store.get(_RANGE)))
        chosen = planned.range
        # Before anything is processed: `latest` of a retry would be another range.
        store.set(_RANGE, str(chosen))
        self.log.info("%s processes %s", planned.application.id, chosen)
        if is_dry:
            with following(logged(self, context)):
                counts = rehearse(planned)
            for topic, count in counts.items():
                self.log.info("%s: %d records would be written", topic, count)
            return result_of_rehearsal(self.app, planned.application.version, chosen, counts).told()
        request = self._request(context, str(chosen))
        if (chosen.size or request.recompute_from) and is_apart(self, project):
            submit(self, context, location, request)
        with following(logged(self, context)):
            if request.recompute_from:
                self._keep_corrections(context, recompute(project, request))
            summary = run(planned)
        log_summary(self.log, summary, chosen)
        return self._told(context, project, planned)

    def _request(self, context: Context, chosen: str | None) -> RunRequest:
        recomputation = gathered(self, _Recomputation)
        return RunRequest(
            app=self.app,
            start=self.start,
            end=self.end,
            version=self.version,
            master=self.master,
            by=self._author(context),
            range=chosen or "",
            options=rendered(self, RunOptions),
            recompute_from=self.recompute_from,
            recompute=recomputation.options(),
            **recomputation.reach(),
        )

    def _author(self, context: Context) -> str:
        """Return the name of all attempts of this task, and of no other task, in the record of runs."""
        index = getattr(context.get("ti"), "map_index", None)
        return author_of(self.dag_id, context["run_id"], self.task_id, -1 if index is None else index)

    def _concluded(self, context: Context, note: Note) -> dict[str, Any]:
        self._keep_corrections(context, note.found)
        project = located(self.config, self.riverrun_conn_id).project()
        store: Any = context["task_state_store"]
        return self._told(context, project, bounded(project, self._request(context, store.get(_RANGE))))

    def _told(self, context: Context, project: ProjectConfig, planned: BoundedRun) -> dict[str, Any]:
        """Notify OpenLineage and readers of topics, once, of what was done, and return the result."""
        store: Any = context["task_state_store"]
        runs, version = runs_by(planned, self._author(context)), planned.application.version
        corrected = store.get(_CORRECTED) or _NOTHING
        counts = corrected["corrections"], corrected["compared"]
        result = result_of_runs(self.app, version, planned.range, runs, *counts).told()
        facet = {"app": self.app, "version": planned.application.version, "range": str(planned.range)}
        self.lineage = TopicLineage(project.kafka["bootstrap.servers"], *topics_of(planned.application), facet)
        is_told = store.get(_TOLD) is not None
        # At most once: a task that is cleared returns its result again, but its readers have seen these records.
        if not is_told or corrected["corrected"]:
            written = [] if is_told else written_by(planned, self._author(context))
            found = corrected["corrected"] if self.announce_corrections else []
            corrections = [WrittenRecords(topic, ranges, "", "", None) for topic, ranges in found]
            self._tell_readers(context, project, planned, result, [*corrections, *written])
            store.set(_TOLD, "yes")
            store.set(_CORRECTED, {**corrected, "corrected": []})
        return result

    def _tell_readers(
        self,
        context: Context,
        project: ProjectConfig,
        planned: BoundedRun,
        result: dict[str, Any],
        written: Sequence[WrittenRecords],
    ) -> None:
        """Make an event for each range of a topic that this task wrote, with the offsets that were processed."""
        brokers, version = project.kafka["bootstrap.servers"], planned.application.version
        events = [
            (
                topic_asset(brokers, each.topic),
                {
                    "app": self.app,
                    "version": version,
                    "offsets": each.offsets,
                    "processed": each.processed,
                    "run": each.run,
                    "records": each.records,
                    "reason": "run" if each.run else "correction",
                    "recomputed": None if each.run else {"from": self.recompute_from, "to": self.end},
                    "result": result,
                },
            )
            for each in written
        ]
        read = [topic_asset(brokers, topic) for topic in topics_of(planned.application)[0]]
        announce(self, context, outputs_of(self.app), read, events)


class QualityOperator(BaseOperator):
    """Judges what the live version has published so far, by the expectations of its gate. Critical failures fail the task.

    Args:
        app: Name of the application, as in `[apps.NAME]`.
        since: `last`, for records since the last check that passed; a vector of public topics, or a time. Empty for all.
        skip_if_judged: Whether the task is skipped, and the tasks after it with it, if all that is published has passed checks:
            the last one by the present expectations. A skipped run does not skip this task: what an earlier attempt published
            may be unjudged.
        config: Path of `streams.toml`; by default, as the connection says.
        master: Spark's master URL, or that of a Spark Connect server; by default, as the connection or `[spark]` says.
        apart: Whether the driver is a separate process, and the task waits without a slot; by default, if Spark is a cluster.
        riverrun_conn_id: Id of a connection of type `riverrun`; the default one may be missing.
    """

    template_fields: Sequence[str] = ("config", "app", "since", "master", "riverrun_conn_id")
    operator_extra_links = (ApplicationLink(), DocsLink(), SparkLink())
    ui_color = "#f3ebfb"
    get_openlineage_facets_on_complete = get_openlineage_facets_on_failure = lineage_of

    def __init__(
        self,
        *,
        app: str,
        since: str = "",
        skip_if_judged: bool = False,
        config: str = "",
        master: str = "",
        apart: bool | None = None,
        riverrun_conn_id: str = CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**returning_fields(self, {"trigger_rule": TriggerRule.NONE_FAILED, **kwargs}))
        self.app = app
        self.since = since
        self.skip_if_judged = skip_if_judged
        self.config = config
        self.master = master
        self.apart = apart
        self.riverrun_conn_id = riverrun_conn_id
        self.docs_page, self.lineage, self.spark_page = "", TopicLineage(), ""

    def execute(self, context: Context) -> dict[str, Any]:
        """Judge, and return what was found (`results.result_of_check`). A failed check is not retried."""
        if self.skip_if_judged and acting(self._is_judged):
            raise AirflowSkipException("everything that is published has passed a check")
        return acting(partial(self._judge, context))

    def driven(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continue after a driver has judged, or has failed."""
        project = acting(lambda: located(self.config, self.riverrun_conn_id).project())

        def conclude(note: Note) -> dict[str, Any]:
            return self._told(project, judged(project, self.app, note.found["check"]))

        return concluded(self, context, event, conclude)

    def _is_judged(self) -> bool:
        return is_judged(located(self.config, self.riverrun_conn_id).project(), self.app)

    def _judge(self, context: Context) -> dict[str, Any]:
        location = located(self.config, self.riverrun_conn_id)
        project = location.project()
        request = CheckRequest(self.app, self.since, self.master, f"airflow:{self.dag_id}/{context['run_id']}")
        if is_apart(self, project):
            submit(self, context, location, request)
        with following(logged(self, context)):
            found = judge_live(project, request)
        return self._told(project, found)

    def _told(self, project: ProjectConfig, found: Check) -> dict[str, Any]:
        """Record the page of a check, and its lineage for OpenLineage."""
        outcomes, critical = found.verdict.outcomes, found.verdict.critical
        facet = {"app": self.app, "verdict": found.id, "range": found.at}
        servers = project.kafka["bootstrap.servers"]
        self.lineage = TopicLineage(servers, found.topics, (), facet, judged_by_topic(outcomes))
        self.docs_page = next(iter(found.verdict.pages.values()), "")
        self.log.info("check %s: judged up to %s", found.id, found.at)
        for name, outcome in outcomes.items():
            self.log.log(logging.WARNING if outcome.startswith("failed") else logging.INFO, "%s: %s", name, outcome)
        if critical:
            raise AirflowFailException(f"{self.app}: {'; '.join(f'{name}: {outcomes[name]}' for name in critical)}")
        return result_of_check(self.app, found, self.docs_page)

    def on_kill(self) -> None:
        """End the task, and Spark with its process; nothing was written."""
        end_at_once()


class RefusalOperator(BaseOperator):
    """Stands for an application whose declaration in `streams.toml` has an error.

    Args:
        told: The message of the error, with which each run of the task fails.
    """

    def __init__(self, *, told: str, **kwargs: Any) -> None:
        super().__init__(**documented(self, kwargs))
        self.told = told

    def execute(self, context: Context) -> None:  # noqa: ARG002 - Airflow's signature
        """Fail with the error.

        Raises:
            AirflowFailException: Always.
        """
        raise AirflowFailException(self.told)
