"""Duties of an instance: replaces stream threads that end, deletes old state, logs summaries."""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import riverrun.errors
from riverrun.config.streams import UNCAUGHT_EXCEPTION_RESPONSES
from riverrun.errors import ConfigError, ProcessingError
from riverrun.hosting.local_state import task_directories
from riverrun.state.rocksdb import delete_unused, finish_deletions
from riverrun.worker.states import WorkerSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from riverrun.errors import StreamsError
    from riverrun.records import TaskId
    from riverrun.runtime.ports import Clock
    from riverrun.worker.stream_threads import StreamThreadProcess

log = logging.getLogger(__name__)

_ALLOWED = 10
"""More processes than this that end within `_SECONDS` are too many."""
_SECONDS = 300.0


def _hint(exit_code: int | None) -> str:
    """Return a hint on what may have ended a process that reported no error."""
    log_has_more = "Its standard error output may say more. Nothing that was committed is lost."
    if exit_code is None or exit_code >= 0:
        return f"Functions of the topology, or libraries that they call, may have ended the process (os._exit). {log_has_more}"
    name = _signal_name(-exit_code)
    if name == "SIGKILL":
        return (
            f"Somebody has killed it: the system, if it has no memory left, or a limit of its container. {log_has_more}"
        )
    return f"Signal {name} has ended it: a library that functions of the topology call may have crashed. {log_has_more}"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


@dataclass(frozen=True, slots=True)
class End:
    """The decision that an instance ends.

    Args:
        error: The error with which it ends.
        of_all: Whether all instances end.
    """

    error: StreamsError
    of_all: bool


class UncaughtExceptionHandler:
    """Decides how to react when a stream thread of an instance has ended (`StreamsUncaughtExceptionHandler`).

    Args:
        handler: Returns the reaction to an error (`replace_thread`, `shutdown_client`, `shutdown_application`).
    """

    def __init__(self, handler: Callable[[StreamsError], str]) -> None:
        self._handler = handler
        self._at: list[float] = []

    def handle(self, stream: StreamThreadProcess) -> End | None:
        """Decide how to react to the end of a process.

        Returns:
            How the instance ends; None if another process replaces this one.

        Raises:
            ConfigError: If the handler returns something else.
        """
        now = time.monotonic()
        self._at = [at for at in self._at if now - at < _SECONDS] + [now]
        reason = stream.failure.message if stream.failure else f"exit code {stream.process.exitcode}"
        coordinates = dict(stream.failure.coordinates) if stream.failure else {}
        log.warning("stream thread %d ended: %s", stream.number, reason, extra=coordinates)
        error = self._error(stream, reason)
        is_few = len(self._at) <= _ALLOWED
        if is_few and stream.failure is None:
            return None
        wanted = self._asked(error)
        if is_few and wanted == "replace_thread":
            return None
        return End(error, wanted == "shutdown_application")

    def _error(self, stream: StreamThreadProcess, reason: str) -> StreamsError:
        if stream.failure is None:
            message = f"Stream threads ended {len(self._at)} times within {_SECONDS:.0f} s, at last with {reason}"
            return ProcessingError(message, hint=_hint(stream.process.exitcode))
        kind: type[StreamsError] = getattr(riverrun.errors, stream.failure.kind, ProcessingError)
        return kind(stream.failure.message, hint=stream.failure.hint)

    def _asked(self, error: StreamsError) -> str:
        wanted = self._handler(error)
        if wanted not in UNCAUGHT_EXCEPTION_RESPONSES:
            message = f"The handler of uncaught exceptions returns {wanted!r} for: {error.message}"
            raise ConfigError(message, hint=f"Allowed: {', '.join(UNCAUGHT_EXCEPTION_RESPONSES)}")
        return wanted


class ObsoleteState:
    """The state of tasks that have moved away; it is kept for a while, as they may come back.

    Args:
        directory: The directory of the application's state.
        delay_ms: How long state must have been closed, and how often to check, ms (`state.cleanup.delay.ms`).
        clock: Tells the time, which also has to be the time of files.
    """

    def __init__(self, directory: Path, delay_ms: int, clock: Clock) -> None:
        self._directory = directory
        self._delay_ms = delay_ms
        self._clock = clock
        self._looked_at = time.monotonic()

    def delete_if_due(self, kept: Collection[TaskId]) -> tuple[TaskId, ...]:
        """Delete obsolete state, if it is time to check.

        Keeps state that other processes use (bounded runs take over tasks of a worker), or that cannot be deleted.

        Args:
            kept: The tasks that run or are followed here, or will be.

        Returns:
            The tasks whose state is deleted.
        """
        if time.monotonic() - self._looked_at < self._delay_ms / 1000:
            return ()
        self._looked_at = time.monotonic()
        finish_deletions(self._directory)
        found = task_directories(self._directory)
        return tuple(task for task, path in found.items() if task not in kept and self._delete(task, path))

    def _delete(self, task: TaskId, path: Path) -> bool:
        try:
            idle_ms = self._clock.now_ms() - round(path.stat().st_mtime * 1000)
            if idle_ms <= self._delay_ms or not delete_unused(path):
                return False
        except OSError as error:
            log.warning("obsolete state of task %s is not deleted: %s", task, error, extra={"task": str(task)})
            return False
        message = "obsolete state of task %s is deleted: it was not used for %d ms"
        log.info(message, task, idle_ms, extra={"task": str(task)})
        return True


class RegularSummary:
    """Logs the work since the last summary.

    Args:
        application_id: The application id.
        interval_ms: The interval, ms; 0 for no summaries.
    """

    def __init__(self, application_id: str, interval_ms: int) -> None:
        """Begin the first interval."""
        self._application_id = application_id
        self._interval_s = interval_ms / 1000
        self._told_at = time.monotonic()
        self._told = WorkerSummary()

    def log_if_due(self, summary: Callable[[], WorkerSummary]) -> None:
        """Log the summary if it is time.

        Args:
            summary: Returns the work since the start.
        """
        if not self._interval_s or time.monotonic() - self._told_at < self._interval_s:
            return
        told, now = self._told, summary()
        self._told_at, self._told = time.monotonic(), now
        log.info(
            "Processed %d total records and committed %d total tasks since the last update",
            now.processed - told.processed,
            now.commits - told.commits,
            extra={"application": self._application_id},
        )
