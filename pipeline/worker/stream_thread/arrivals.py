"""Tasks on their way in: taken over in the background, and restored beside the tasks that run (`StateUpdater`)."""

from __future__ import annotations

import logging
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipeline.errors import BrokerError, CorruptStateError, RangeError, StreamsError, UnknownOutcomeError
from pipeline.hosting.restoring import Restorer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pipeline.hosting.owned_task import OwnedTask
    from pipeline.kafka.admin import Admin
    from pipeline.records import TaskId, TopicPartition
    from pipeline.runtime.task import Task
    from pipeline.state.api import StateBackend

log = logging.getLogger(__name__)

RECOVERABLE = (UnknownOutcomeError, CorruptStateError, BrokerError)
"""After these a task is taken over anew; broker errors count only if waiting helps."""
_RETRY_SECONDS = 0.5
_AT_ONCE = 4
"""How many tasks are taken over at the same time."""


@dataclass(slots=True)
class _Arrival:
    """A task that is taken over, or restored.

    Args:
        owned: The task.
        state: Its local state, if it was open already.
        again: Whether it was ours before: then it must not have gone on elsewhere meanwhile.
        opening: The attempt to take it over; None while the next one is waited for.
        task: What is restored, once it has been taken over.
        missing: How many changelog records are still missing, once that is known.
        retry_at: When to try again (monotonic seconds).
        deadline: When to stop trying (monotonic seconds); None while nothing has failed.
    """

    owned: OwnedTask
    state: StateBackend | None
    again: bool
    opening: Future[None] | None = None
    task: Task | None = None
    missing: int | None = None
    retry_at: float = 0.0
    deadline: float | None = None

    def open(self) -> None:
        """Take it over; in a thread of its own."""
        if self.again:
            self.owned.check_owner()
        self.owned.take_over(self.state)


class Arrived(NamedTuple):
    """A task whose state is complete or, with an error, one that cannot be taken over; that is closed."""

    owned: OwnedTask
    error: StreamsError | None


class Arrivals:
    """Takes tasks over without holding up others: threads wait for brokers, slices of the caller's time restore.

    A task that is sent away meanwhile keeps what has been restored: whoever opens its state next goes on from there.

    Args:
        admin: Asks the brokers.
        kafka: Client properties.
        timeout_ms: For how long to try when brokers refuse or do not answer (`task.timeout.ms`).
        on_restore: Told changelog, records restored and records expected.
    """

    def __init__(
        self,
        admin: Admin,
        kafka: Mapping[str, str],
        timeout_ms: int,
        on_restore: Callable[[TopicPartition, int, int], None],
    ) -> None:
        """Nobody is on the way."""
        self._restorer = Restorer(admin, kafka)
        self._timeout_s = timeout_ms / 1000
        self._on_restore = on_restore
        self._coming: dict[TaskId, _Arrival] = {}
        self._leaving: dict[TaskId, _Arrival] = {}
        self._openers = ThreadPoolExecutor(_AT_ONCE, "take-over")

    @property
    def coming(self) -> frozenset[TaskId]:
        """The tasks that are taken over."""
        return frozenset(self._coming)

    @property
    def leaving(self) -> frozenset[TaskId]:
        """Tasks that were sent away, but are not closed yet."""
        return frozenset(self._leaving)

    @property
    def missing(self) -> Mapping[TaskId, int | None]:
        """The tasks that are taken over, with the number of changelog records that are missing, if it is known already."""
        return {task_id: arrival.missing for task_id, arrival in list(self._coming.items())}

    @property
    def restored(self) -> int:
        """Records restored so far."""
        return self._restorer.restored

    def positions(self) -> dict[TaskId, int]:
        """Changelog offsets applied, summed up, per task that is restored."""
        return {
            task_id: arrival.owned.position() for task_id, arrival in self._coming.items() if arrival.task is not None
        }

    def add(self, owned: OwnedTask, state: StateBackend | None = None, *, again: bool = False) -> None:
        """Take a task over.

        Args:
            owned: The task; closed.
            state: Its local state, if it is open; the task's from now on.
            again: Whether it was ours before: then it must not have gone on elsewhere meanwhile.
        """
        self._coming[owned.id] = arrival = _Arrival(owned, state, again)
        arrival.opening = self._openers.submit(arrival.open)

    def recall(self, task_ids: Iterable[TaskId]) -> None:
        """Tasks that were sent away are wanted again."""
        for task_id in task_ids:
            if task_id in self._leaving:
                self._coming[task_id] = self._leaving.pop(task_id)

    def send_away(self, task_ids: Iterable[TaskId]) -> None:
        """Take these over no further. One for which brokers are waited for is closed as soon as they have answered."""
        for task_id in task_ids:
            if task_id in self._coming:
                arrival = self._coming.pop(task_id)
                if arrival.opening is not None:
                    self._leaving[task_id] = arrival
                else:
                    self._close(arrival)

    def wait_until_gone(self, task_ids: Iterable[TaskId]) -> None:
        """Wait until these, which were sent away, are closed."""
        going = [self._leaving[task_id] for task_id in task_ids if task_id in self._leaving]
        wait(arrival.opening for arrival in going if arrival.opening is not None)
        self.let_go()

    def run_once(self, max_records: int, timeout_s: float, *, gives_up: bool = False) -> list[Arrived]:
        """Go on; gives the tasks whose state is complete, and those that cannot be taken over.

        Args:
            max_records: Restore at most so many records.
            timeout_s: How long to wait for anything to happen.
            gives_up: Whether not to try again what fails.

        Raises:
            StateError: If the state of a task cannot be opened or written.
        """
        if timeout_s and not self._restorer.is_busy:
            opening = [arrival.opening for arrival in self._coming.values() if arrival.opening is not None]
            if opening:
                wait(opening, timeout_s, FIRST_COMPLETED)
            else:
                time.sleep(timeout_s)
        self.let_go()
        failed = [
            arrived for arrival in list(self._coming.values()) if (arrived := self._go_on(arrival, gives_up=gives_up))
        ]
        try:
            complete = self._restorer.run_once(max_records, timeout_s)
        except RangeError as error:  # cut off meanwhile: what is left of the changelogs is the truth
            log.warning("restores start over: %s", error.message)
            return failed + self._start_over(gives_up=gives_up)
        except RECOVERABLE as error:
            return failed + self._fail_all(error, gives_up=gives_up)
        return failed + [self._welcome(task) for task in complete]

    def let_go(self) -> None:
        """Close those that were sent away and for which brokers have answered; `run_once` does this as well."""
        for task_id, arrival in list(self._leaving.items()):
            if arrival.opening is None or arrival.opening.done():
                self._close(self._leaving.pop(task_id))

    def close(self) -> None:
        """Let go of all. Idempotent."""
        self.send_away(list(self._coming))
        self._openers.shutdown()
        self.let_go()
        self._restorer.close()

    def _go_on(self, arrival: _Arrival, *, gives_up: bool) -> Arrived | None:
        """One step of taking a task over, if there is one to take."""
        if arrival.opening is None:
            if arrival.task is None and time.monotonic() >= arrival.retry_at:
                arrival.opening = self._openers.submit(arrival.open)
            return None
        if not arrival.opening.done():
            return None
        opened, arrival.opening, arrival.state = arrival.opening, None, None
        try:
            opened.result()
            self._restore(arrival)
        except StreamsError as error:
            return self._failed(arrival, error, gives_up=gives_up)
        return None

    def _restore(self, arrival: _Arrival) -> None:
        arrival.task, missing = arrival.owned.prepare()
        arrival.missing = sum(part.size for part in missing.ranges.values())

        def show(changelog: TopicPartition, done: int, expected: int) -> None:
            arrival.missing, arrival.deadline = max(expected - done, 0), None
            arrival.owned.restored_records = done
            self._on_restore(changelog, done, expected)

        self._restorer.add(arrival.task, missing, show)

    def _welcome(self, task: Task) -> Arrived:
        arrival = next(arrival for arrival in self._coming.values() if arrival.task is task)
        del self._coming[arrival.owned.id]
        arrival.owned.start()
        return Arrived(arrival.owned, None)

    def _start_over(self, *, gives_up: bool) -> list[Arrived]:
        failed = []
        for arrival in list(self._coming.values()):
            if arrival.task is None:
                continue
            self._restorer.remove(arrival.task)
            arrival.task.close()
            try:
                arrival.owned.find_missing()
                self._restore(arrival)
            except StreamsError as error:
                failed.append(self._failed(arrival, error, gives_up=gives_up))
        return [arrived for arrived in failed if arrived is not None]

    def _fail_all(self, error: StreamsError, *, gives_up: bool) -> list[Arrived]:
        restoring = [arrival for arrival in self._coming.values() if arrival.task is not None]
        return [arrived for arrival in restoring if (arrived := self._failed(arrival, error, gives_up=gives_up))]

    def _failed(self, arrival: _Arrival, error: StreamsError, *, gives_up: bool) -> Arrived | None:
        """Close a task that could not be taken over, and try again later if that may help."""
        self._close(arrival)
        now = time.monotonic()
        arrival.deadline = arrival.deadline or now + self._timeout_s
        may_help = isinstance(error, RECOVERABLE) and (not isinstance(error, BrokerError) or error.retriable)
        if not may_help or gives_up or now > arrival.deadline:
            del self._coming[arrival.owned.id]
            return Arrived(arrival.owned, error)
        log.warning("task %s: %s", arrival.owned.id, error, extra={"task": str(arrival.owned.id)})
        arrival.again, arrival.retry_at = True, now + _RETRY_SECONDS
        return None

    def _close(self, arrival: _Arrival) -> None:
        if arrival.task is not None:
            self._restorer.remove(arrival.task)
        arrival.task = arrival.missing = None
        arrival.owned.close(abort=False)  # it has sent nothing
