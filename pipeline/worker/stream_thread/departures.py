"""Tasks that run no longer: they are let go of, given up to who has taken them over, or start over after a failure."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pipeline.errors import BrokerError, TaskMigratedError, UnknownOutcomeError

if TYPE_CHECKING:
    from pipeline.errors import StreamsError
    from pipeline.hosting.owned_task import OwnedTask
    from pipeline.records import TaskId
    from pipeline.worker.stream_thread.absent_brokers import AbsentBrokers
    from pipeline.worker.stream_thread.arrivals import Arrivals
    from pipeline.worker.stream_thread.commit_schedule import CommitSchedule
    from pipeline.worker.stream_thread.fetching import Fetching
    from pipeline.worker.stream_thread.tally import Tally

log = logging.getLogger(__name__)


class Departures:
    """Sees to tasks that run no longer, for now at least.

    Args:
        tasks: Those that run; they are taken from it.
        fetching: Fetches for these.
        schedule: Knows when they commit.
        tally: Counts what they do.
        arrivals: Takes them over again.
        brokers: Waits for those that do not answer.
        gives_up: Whether a task that another owner has taken over is given up; else that is an error.
        timeout_ms: For how long commits may be in doubt, one after the other (`task.timeout.ms`).
    """

    def __init__(
        self,
        tasks: dict[TaskId, OwnedTask],
        fetching: Fetching,
        schedule: CommitSchedule,
        tally: Tally,
        arrivals: Arrivals,
        brokers: AbsentBrokers,
        *,
        gives_up: bool,
        timeout_ms: int,
    ) -> None:
        """Nobody has gone."""
        self._tasks = tasks
        self._fetching = fetching
        self._schedule = schedule
        self._tally = tally
        self._arrivals = arrivals
        self._brokers = brokers
        self._gives_up = gives_up
        self._timeout_s = timeout_ms / 1000

    def let_go(self, owned: OwnedTask, *, is_ours: bool = True) -> None:
        """Close a task; what it has not committed is forgotten."""
        self._stop(owned)
        self._tally.let_go(owned.id)
        owned.close(abort=is_ours and self._brokers.are_there)

    def fail(self, owned: OwnedTask, error: StreamsError) -> None:
        """Something has failed in a way that is the task's: it starts over, or is given up to whoever has taken it over.

        Raises:
            StreamsError: This one, if neither helps.
        """
        if not isinstance(error, TaskMigratedError):
            self._start_over(owned, error)
        elif self._gives_up:
            _say_given_up(owned, error)
            self.let_go(owned, is_ours=False)
        else:
            raise error

    def fail_to_arrive(self, owned: OwnedTask, error: StreamsError) -> None:
        """A task cannot be taken over; it is closed.

        Raises:
            StreamsError: This one, unless somebody else has the task.
        """
        if not isinstance(error, TaskMigratedError) or not self._gives_up:
            self._brokers.are_there = not isinstance(error, BrokerError)
            raise error
        _say_given_up(owned, error)
        self._tally.let_go(owned.id)

    def _start_over(self, owned: OwnedTask, error: StreamsError) -> None:
        """Take a task over anew, as often as brokers need to come back, within `task.timeout.ms`.

        That is also how long its commits may be in doubt, one after the other, though brokers answer.
        """
        if isinstance(error, BrokerError) and not error.retriable:
            raise error
        if isinstance(error, UnknownOutcomeError):
            self._check_progress(owned, error)
        log.warning("task %s starts over from its last commit: %s", owned.id, error, extra={"task": str(owned.id)})
        self._stop(owned)
        owned.close(abort=False)
        self._brokers.wait()
        self._arrivals.add(owned, again=True)

    def _check_progress(self, owned: OwnedTask, error: UnknownOutcomeError) -> None:
        """Let a task start over, or end with an error if it has done so in vain for too long."""
        owned.doubted_since = owned.doubted_since or time.monotonic()
        stuck_s = time.monotonic() - owned.doubted_since
        if stuck_s > self._timeout_s:
            message = f"Task {owned.id} has made no progress for {stuck_s:.0f} s: {error.message}"
            raise UnknownOutcomeError(message, hint="task.timeout.ms says how long it starts over.") from error

    def _stop(self, owned: OwnedTask) -> None:
        self._tally.stopped(owned)
        self._fetching.end(owned)
        self._schedule.forget(owned.id)
        del self._tasks[owned.id]


def _say_given_up(owned: OwnedTask, error: TaskMigratedError) -> None:
    log.warning("task %s is given up: %s", owned.id, error, extra={"task": str(owned.id)})
