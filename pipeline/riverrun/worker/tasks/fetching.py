"""Fetches inputs of tasks and of global tables, as much as memory allows, between interruptions and absences of brokers."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, TypeVar

from riverrun.config import EXACTLY_ONCE_V2
from riverrun.errors import BrokerError
from riverrun.kafka.consumer import RecordConsumer
from riverrun.records import RAW_OFFSET
from riverrun.worker.states import InputProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from riverrun.config import StreamsConfig
    from riverrun.hosting.active_task import ActiveTask
    from riverrun.kafka.admin import Admin
    from riverrun.kafka.consumer import Polled
    from riverrun.kafka.door import Kafka
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.state_manager import GlobalState

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 0.5


class AbsentBrokers:
    """Waits for absent brokers.

    Args:
        topics: Returns the topics to ask about while waiting.
    """

    def __init__(
        self, admin: Admin, task_timeout_ms: int, interruptions: Interruptions, topics: Callable[[], Iterable[str]]
    ) -> None:
        self.are_there = True
        """True if they answered the last request."""
        self.gives_up = False
        """Set to end all waits with the error of the next attempt."""
        self._admin = admin
        self._timeout_s = task_timeout_ms / 1000
        self._interruptions = interruptions
        self._topics = topics

    def retry_until_available(self, step: Callable[[], T], doing: str) -> T:
        """Take a step, and repeat it while brokers are absent; a failed attempt must leave nothing."""
        deadline = None
        while True:
            try:
                return step()
            except BrokerError as error:
                deadline = deadline or self._deadline()
                self.are_there = False
                self._check(error, deadline)
                log.warning("%s: %s", doing, error)
            self._pause()
            self.wait(deadline)

    def wait(self, deadline: float | None = None) -> None:
        """Wait until brokers answer about the topics, or until the deadline (monotonic seconds; default `task.timeout.ms`)."""
        self.are_there = False
        deadline = deadline or self._deadline()
        while not self.are_there:
            try:
                # One request, and nothing else meanwhile: each further attempt would add its timeout.
                with self._interruptions.away():
                    self._admin.partitions(self._topics())
            except BrokerError as error:
                self._check(error, deadline)
                log.warning("waiting for brokers: %s", error)
                self._pause()
            else:
                self.are_there = True

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _check(self, error: BrokerError, deadline: float) -> None:
        if not error.retriable or time.monotonic() > deadline or self.gives_up:
            raise error

    def _pause(self) -> None:
        with self._interruptions.away():
            time.sleep(_RETRY_SECONDS)


class Interruptions(Protocol):
    """Hooks that interrupt processing."""

    def attend(self) -> None:
        """Called between two records, several times per millisecond, when stores are at rest."""
        ...

    def pause(self) -> None:
        """Called within a commit, when stores may be read by key, but not scanned."""
        ...

    def away(self) -> AbstractContextManager[None]:
        """Return a context to enter while the thread waits for brokers and touches no store."""
        ...


class Undisturbed:
    """Interruptions that do nothing."""

    def attend(self) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    def away(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()


# Records left by a bounded run may be packs of a thousand records each.
_FIRST_POLL = 16
# The client holds the interpreter's lock while it creates records, and no query is answered meanwhile.
_RECORDS_PER_POLL = 500
ENOUGH = 10_000
"""With this many buffered records, nothing is fetched."""
# With this many buffered records an input is paused, so that memory stays bounded.
_PAUSED_ABOVE = 50_000


_FETCHED_BYTES = 65_536
# A shorter wait makes more requests where nothing arrives. All consumers have the longest one (`kafka.consumer`).
_SHORTEST_WAIT_MS, _LONGEST_WAIT_MS = 25, 50


def fetch_settings(streams: StreamsConfig) -> dict[str, str]:
    """Return client properties that make brokers collect some records before they answer a fetch."""
    # Otherwise brokers answer for each produced batch: hundreds of times a second, which takes a fifth of a broker's CPU
    # at 3,000 records/s. With exactly once, results become visible with a commit, so a quarter of its interval hardly
    # delays them. At least once has no such moment.
    wait_ms = min(streams.commit_interval_ms // 4, _LONGEST_WAIT_MS)
    if streams.processing_guarantee != EXACTLY_ONCE_V2 or wait_ms < _SHORTEST_WAIT_MS:
        return {}
    return {"fetch.min.bytes": str(_FETCHED_BYTES), "fetch.wait.max.ms": str(wait_ms)}


class Fetching:
    """One consumer for all inputs, with the task that reads each."""

    def __init__(self, kafka: Kafka, streams: StreamsConfig, interruptions: Interruptions) -> None:
        self._consumer = RecordConsumer(kafka, {**fetch_settings(streams), **streams.consumer})
        self._interruptions = interruptions
        self._per_poll = _FIRST_POLL
        self._limit = max(streams.buffered_records_per_partition, _PAUSED_ABOVE)
        self._owner_of: dict[TopicPartition, ActiveTask] = {}
        self._global: GlobalState | None = None
        self._check_global: Callable[[], None] = lambda: None
        self._paused: set[TopicPartition] = set()
        self._ends_seen: dict[TopicPartition, int] = {}

    def begin_global(self, tables: GlobalState, check: Callable[[], None]) -> None:
        """Start to fetch for the global tables; `check` raises if deletions may be missing among fetched records."""
        self._global, self._check_global = tables, check
        self._consumer.assign(tables.positions())

    def begin(self, active: ActiveTask) -> None:
        """Start to fetch for a task, from its start offsets."""
        self._owner_of |= dict.fromkeys(active.inputs, active)
        for tp in active.inputs:
            self._ends_seen.pop(tp, None)
        self._paused -= set(active.inputs)
        self._consumer.assign(active.starts())

    def end(self, active: ActiveTask) -> None:
        """Stop fetching for a task."""
        self._consumer.unassign(active.inputs)
        for tp in active.inputs:
            del self._owner_of[tp]

    def waiting(self) -> int:
        """Return the number of records that tasks have buffered."""
        return sum(active.task.buffered(tp) for tp, active in self._owner_of.items())

    def reader_of(self, tp: TopicPartition) -> ActiveTask | None:
        """Return the task that reads a partition; None for a partition of a global table."""
        return self._owner_of.get(tp)

    def fetch(self, timeout_s: float) -> None:
        """Fetch records and hand them out in parts, up to the limits of memory."""
        fetched = 0
        while fetched < ENOUGH:
            asked = self._per_poll
            with self._interruptions.away():
                polled = self._consumer.poll(asked, timeout_s)
            found, records = sum(map(len, polled.records.values())), self._hand_out(polled)
            if records:
                # Adapts to packs: a fetched record may hold many.
                self._per_poll = max(2, min(_RECORDS_PER_POLL * found // records, 2 * asked))
            fetched, timeout_s = fetched + records, 0
            if found + len(polled.ends) < asked:
                return

    def balance(self) -> None:
        """Pause inputs that run ahead of the others of their task, and resume those that no longer do."""
        full = {tp for tp, active in self._owner_of.items() if active.task.buffered(tp) > self._limit}
        if full - self._paused:
            self._consumer.pause(full - self._paused)
        if self._paused - full:
            self._consumer.resume(self._paused - full)
        self._paused = full

    def look_again(self, active: ActiveTask) -> None:
        """Have brokers report the ends of a task's inputs again, or send the records written since."""
        inputs = set(active.inputs) - self._paused
        self._consumer.pause(inputs)
        self._consumer.resume(inputs)

    def has_run_dry(self) -> bool:
        """Return whether tasks have no buffered records, and every input has been read to its end."""
        is_idle = not any(active.task.buffered(tp) for tp, active in self._owner_of.items())
        return is_idle and self._ends_seen.keys() >= self._owner_of.keys()

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of tasks in their inputs."""
        return {tp: active.task.position(tp) for tp, active in self._owner_of.items()}

    def global_positions(self) -> dict[TopicPartition, int]:
        """Return how far the topics of global tables have been read."""
        known = self._global.positions() if self._global is not None else {}
        return {tp: max(offset, self._ends_seen.get(tp, 0)) for tp, offset in known.items()}

    def progress(self) -> dict[TaskId, dict[TopicPartition, InputProgress]]:
        """Return the progress of each task in its inputs, with the known ends; asks no broker."""
        ends = self._consumer.known_ends(self._owner_of.keys() - self._ends_seen.keys()) | self._ends_seen
        found: dict[TaskId, dict[TopicPartition, InputProgress]] = {}
        for tp, active in self._owner_of.items():
            found.setdefault(active.id, {})[tp] = InputProgress(active.task.position(tp), ends.get(tp))
        return found

    def has_lost_brokers(self) -> bool:
        """Return True, only once, if no broker has been reached for a while."""
        return self._consumer.has_lost_brokers()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _hand_out(self, polled: Polled) -> int:
        """Hand records to their tasks. Returns their number, including those in packs."""
        count = 0
        for tp, records in polled.records.items():
            self._ends_seen.pop(tp, None)
            if tp in self._owner_of:
                count += self._owner_of[tp].task.add_records(tp, records)
            elif self._global is not None and tp.topic in self._global.topics:
                self._check_global()
                self._global.apply(tp, records, records[-1][RAW_OFFSET] + 1)
                count += len(records)
        for tp, end in polled.ends.items():
            self._ends_seen[tp] = end
            if tp in self._owner_of:
                self._owner_of[tp].task.reached_end(tp, end)
        return count
