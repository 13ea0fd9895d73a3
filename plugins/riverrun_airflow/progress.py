"""Reports the progress of a task's work: in its log, and in the notes of a driver. Imports no Airflow, as drivers do not."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.hosting.progress import Progress
    from riverrun.spark.bounded_runs.job import RunSummary
    from riverrun.spark.ranges import RunRange

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_REPORT_SECONDS = 10.0
_of_this_task: ContextVar[LoggedProgress | None] = ContextVar("of_this_task", default=None)


@dataclass(slots=True)
class _Work:
    """A piece of work, as reported so far.

    Args:
        began_s: When it was first seen, s.
        done: Records done. It only rises: tasks that are tried again count from 0.
        everything: Records in all; None if unknown. It only rises: a run's last report leaves repartition topics out.
        percent: Percentage done, which only rises as well.
    """

    doing: str
    began_s: float
    first: int
    done: int = 0
    everything: int | None = None
    percent: int = 0

    def see(self, done: int, everything: int | None) -> None:
        """Record the progress."""
        self.done = max(self.done, done)
        if everything:
            self.everything = max(self.everything or 0, everything)
            if done >= everything:
                self.done = max(self.done, self.everything)
            share = 100 if self.done >= self.everything else min(99, 100 * self.done // self.everything)
            self.percent = max(self.percent, share)

    def said(self, now_s: float) -> str:
        seconds = now_s - self.began_s
        rate = (self.done - self.first) / seconds if seconds > 0 else 0.0
        speed = f", {rate:,.0f}/s" if rate else ""
        if not self.everything:
            return f"{self.doing}: {_records(self.done)}{speed}"
        told = f"{self.doing}: {self.done:,} of {_records(self.everything)} ({self.percent} %){speed}"
        left = max(0, self.everything - self.done)
        return f"{told}, {left / rate:,.0f} s remaining" if left and rate else told


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


class LoggedProgress:
    """Logs the progress of work, every ten seconds and when it ends. Threads may call it. It never fails the work.

    Args:
        on_spark: Called once with the web address of Spark's page, when there is one.
    """

    def __init__(
        self,
        log: Any,
        on_spark: Callable[[str], None] = lambda _page: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.said, self.page = "", ""
        self._log, self._on_spark, self._clock = log, on_spark, clock
        self._lock = threading.Lock()
        self._work: _Work | None = None
        self._logged, self._logged_s = "", clock()

    def show(self, progress: Progress) -> None:
        """Record the progress of work. Other work than before ends the work before."""
        try:
            self.see_spark()
            with self._lock:
                self._see(progress)
        # A wrong number or a full log must not fail the work.
        except Exception:
            log.debug("progress cannot be reported", exc_info=True)

    def see_spark(self) -> None:
        """Pass on the address of Spark's page, once there is one."""
        try:
            page = "" if self.page else spark_page()
            if page:
                self._on_spark(page)
                # Only after it was passed on: if that fails, the next report tries again.
                self.page = page
        # Airflow's API server may not answer, which must not fail the work either.
        except Exception:
            log.debug("the address of Spark's page cannot be passed on", exc_info=True)

    def close(self) -> None:
        """Log the end of the last work."""
        try:
            with self._lock:
                self._tell()
        except Exception:
            log.debug("progress cannot be reported", exc_info=True)

    def _see(self, progress: Progress) -> None:
        now_s = self._clock()
        if self._work is None or self._work.doing != progress.doing:
            self._tell()
            self._work, self._logged_s = _Work(progress.doing, now_s, progress.done), now_s
        self._work.see(progress.done, progress.everything)
        self.said = self._work.said(now_s)
        if now_s - self._logged_s >= _REPORT_SECONDS:
            self._tell()

    def _tell(self) -> None:
        """Log the last text, unless it is logged."""
        self._logged_s = self._clock()
        if self.said != self._logged:
            self._logged = self.said
            self._log.info("%s", self.said)


@contextmanager
def following(progress: LoggedProgress) -> Iterator[LoggedProgress]:
    """Report the progress of the work in this context."""
    from riverrun.hosting.progress import reporting_progress

    before = _of_this_task.set(progress)
    try:
        with reporting_progress(progress.show, _LOOK_SECONDS):
            yield progress
    finally:
        _of_this_task.reset(before)
        progress.close()


def spark_has_started() -> None:
    """Pass the address of Spark's page on to what follows the work of this thread."""
    progress = _of_this_task.get()
    if progress is not None:
        progress.see_spark()


def spark_page() -> str:
    """Return the web address of the Spark that runs in this process; empty if there is none."""
    # Not an import: a task without Spark would load it just to learn that.
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.SparkContext._active_spark_context  # noqa: SLF001 - others start one
    # PySpark sets the active context before it has started, and then it has no address yet.
    if context is None or getattr(context, "_jsc", None) is None:
        return ""
    return context.uiWebUrl or ""


def log_summary(task_log: Any, summary: RunSummary, chosen: RunRange) -> None:
    """Log what a run has done: its tasks, warnings and counts."""
    for task in summary.tasks:
        task_log.info(
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
        task_log.warning("%s", warning)
    if summary.tasks:
        dropped = dict(summary.dropped)
        task_log.info("%d records processed, dropped: %s, engine: %s", summary.processed, dropped, summary.engine)
    else:
        done = "everything requested was already processed" if chosen.size else "there are no new records in the range"
        task_log.info("Nothing was processed: %s", done)
    if summary.totals:
        task_log.info("counted by processors: %s", dict(summary.totals))
