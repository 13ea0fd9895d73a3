"""Operators: each calls what the shell calls. No engine loads before a task runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from millrace_airflow.sessions import session_for
from pipeline.config import ProjectConfig
from pipeline.config.secrets import expanded
from pipeline.errors import BegunRangeError, EngineError, StreamsError, UnderWayError, of_an_interrupt
from pipeline.extras import missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

    from pipeline.releases.releaser import Releaser
    from pipeline.spark.bounded_runs.job import RunSummary
    from pipeline.spark.ranges import RunRange

_RANGE_KEY = "range"
_REPORT_SECONDS = 10.0
_TOLD_TO_END = "The task was told to end (SIGTERM). What is committed stays; another attempt does the rest."


class BoundedRunOperator(BaseOperator):
    """Processes a range of offsets on Spark, exactly once (`millrace run`).

    The range is resolved once and kept with the task: a retry processes the same one, and does not repeat what is done.

    Args:
        config: Path of `streams.toml`.
        app: The application.
        start: `committed`, `earliest`, a vector or a time.
        end: `latest`, a vector or a time.
        advance_stream_time_to: A time to move event time to at the end: windows that end before it are closed. Empty for none.
        master: Spark's master URL, or that of a Spark Connect server; as `[spark]` says if left out.
    """

    template_fields: Sequence[str] = ("config", "app", "start", "end", "advance_stream_time_to", "master")

    def __init__(
        self,
        *,
        config: str,
        app: str,
        start: str = "committed",
        end: str = "latest",
        advance_stream_time_to: str = "",
        master: str = "",
        **kwargs: Any,
    ) -> None:
        """Nothing is looked up before the task runs."""
        super().__init__(**kwargs)
        self.config = config
        self.app = app
        self.start = start
        self.end = end
        self.advance_stream_time_to = advance_stream_time_to
        self.master = master

    def execute(self, context: Context) -> str:
        """Run, and give the range as text."""
        return acting(lambda: self._run(context))

    def on_kill(self) -> None:
        """End, and Spark with this process: open transactions are aborted by the next owner of their tasks."""
        end_at_once()

    def _run(self, context: Context) -> str:
        from pipeline.kafka.admin import Admin
        from pipeline.releases.build import build_topology
        from pipeline.releases.registry import require_no_switch
        from pipeline.releases.versions import processing_application
        from pipeline.spark.bounded_runs.job import run
        from pipeline.spark.bounded_runs.progress import followed
        from pipeline.spark.ranges import RunRange, resolve, time_ms

        project = project_of(self.config)
        application = processing_application(project, self.app)
        store: Any = context["task_state_store"]
        kept = store.get(_RANGE_KEY)
        chosen = RunRange.parse(kept) if kept else resolve(application, Admin(project.kafka), self.start, self.end)
        store.set(_RANGE_KEY, str(chosen))
        self.log.info("%s processes %s", application.id, chosen)
        with followed(application, chosen, self._report, _REPORT_SECONDS):
            summary = run(
                application,
                chosen,
                lambda: session_for(project, self.master),
                build_topology,
                advance_to_ms=time_ms(self.advance_stream_time_to) if self.advance_stream_time_to else None,
                by=f"airflow:{self.dag_id}.{self.task_id}",
                check=lambda: require_no_switch(project.kafka, application.config, application.version),
            )
        self._tell(summary, chosen)
        return str(chosen)

    def _tell(self, summary: RunSummary, chosen: RunRange) -> None:
        for task in summary.tasks:
            self.log.info(
                "task %s: %d records in %d commits, %d written; %d restored in %d ms, %d ms of work",
                task.task_id,
                task.processed,
                task.commits,
                task.written,
                task.restored,
                task.restore_ms,
                task.compute_ms,
            )
        for warning in summary.warnings:
            self.log.warning("%s", warning)
        if summary.tasks:
            self.log.info("%d records processed, dropped: %s", summary.processed, dict(summary.dropped))
        else:
            done = "all that was asked for is done already" if chosen.size else "there are no new records in the range"
            self.log.info("Nothing was processed: %s", done)
        if summary.totals:
            self.log.info("counted by processors: %s", dict(summary.totals))

    def _report(self, done: int, offsets: int) -> None:
        self.log.info("%d of %d offsets are committed (%.0f %%)", done, offsets, 100 * done / max(offsets, 1))


class ReleaseOperator(BaseOperator):
    """Takes one step of a release (`millrace release STEP`).

    Args:
        config: Path of `streams.toml`.
        app: The application.
        step: `plan`, `start`, `reprocess`, `await`, `gate`, `approve`, `cut`, `rollback`, `retire` or `abort`.
        to: The version that is to go live; for `plan` and `start`.
        verdict: For `approve`: the id of the verdict whose warnings are approved; empty to approve nothing.
        master: Spark's master URL, or that of a Spark Connect server; as `[spark]` says if left out.
    """

    template_fields: Sequence[str] = ("config", "app", "step", "to", "verdict", "master")

    def __init__(
        self,
        *,
        config: str,
        app: str,
        step: str,
        to: str = "",
        verdict: str = "",
        master: str = "",
        **kwargs: Any,
    ) -> None:
        """Nothing is looked up before the task runs."""
        super().__init__(**kwargs)
        self.config = config
        self.app = app
        self.step = step
        self.to = to
        self.verdict = verdict
        self.master = master

    def execute(self, context: Context) -> str:
        """Take the step; a gate that fails is not tried again."""
        return acting(lambda: self._take(f"airflow:{self.dag_id}/{context['run_id']}"))

    def on_kill(self) -> None:
        """End, and Spark with this process; the step may be taken again."""
        end_at_once()

    def _take(self, by: str) -> str:
        from pipeline.releases.chain import await_workers
        from pipeline.releases.releaser import Releaser

        project = project_of(self.config)
        releaser = Releaser(project, self.app, lambda: session_for(project, self.master), by)
        steps: dict[str, Callable[[Releaser], object]] = {
            "plan": lambda r: r.plan(self.to),
            "start": lambda r: r.start(self.to),
            "reprocess": lambda r: r.reprocess(),
            "await": lambda r: await_workers(r, self.log.info),
            "gate": lambda r: r.gate(),
            "approve": lambda r: r.approve(self.verdict) if self.verdict else "no approval was asked for",
            "cut": lambda r: r.cut(),
            "rollback": lambda r: r.rollback(),
            "retire": lambda r: r.retire(),
            "abort": lambda r: r.abort(),
        }
        if self.step not in steps:
            message = f"{self.step!r} is no step of a release: {', '.join(steps)}"
            raise AirflowFailException(message)
        self.log.info("%s", steps[self.step](releaser))
        return releaser.status().step.value


def acting(action: Callable[[], str]) -> str:
    """Run an action; only what waiting may mend, and what was told to end, is left to Airflow's retries."""
    from pipeline.spark.engine.executor_errors import another_attempt_may_help

    try:
        return action()
    except KeyboardInterrupt:
        raise AirflowException(_TOLD_TO_END) from None
    except Exception as error:
        error = missing_extra(error) or error
        if of_an_interrupt(error):  # the bridge to Java answers one by failing
            raise AirflowException(_TOLD_TO_END) from None
        if not isinstance(error, StreamsError) or isinstance(error, BegunRangeError | EngineError | UnderWayError):
            raise
        if another_attempt_may_help(error):
            raise
        raise AirflowFailException(str(error)) from error


def project_of(config: str) -> ProjectConfig:
    """The project of a `streams.toml`."""
    return ProjectConfig.load(Path(config), os.environ)


def options_of(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a format, with `${NAME}` replaced by the environment's."""
    return {name: expanded(f"option {name}", value, os.environ) for name, value in options.items()}


def end_at_once() -> None:
    """Interrupt what this thread does, as Ctrl-C would; for `on_kill`.

    Airflow calls it in the handler of SIGTERM, on the thread that waits for Spark. Spark cannot be told anything there: its
    connection is in use. It ends with this process. After a time-out nothing is left to interrupt: the error is on its way.
    """
    if not isinstance(sys.exc_info()[1], AirflowTaskTimeout):
        raise KeyboardInterrupt
