"""Fetches inputs of a worker's tasks and of the global tables, as much of each as memory allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.kafka.consumer import RecordConsumer
from riverrun.records import RAW_OFFSET
from riverrun.worker.task_figures import InputProgress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.config import StreamsConfig
    from riverrun.hosting.tasks.owned_task import OwnedTask
    from riverrun.kafka.consumer import Polled
    from riverrun.records import TaskId, TopicPartition
    from riverrun.runtime.stores.global_state import GlobalState
    from riverrun.worker.inputs.interruptions import Interruptions

_FIRST_POLL = 16
"""Records of the first request: remaining records of a bounded run may be packs of a thousand records each."""
_RECORDS_PER_POLL = 500
"""The most records of a request: the client holds the interpreter's lock while it makes them, and no query is answered."""
ENOUGH = 10_000
"""With this many records at hand, nothing is fetched."""
_PAUSED_ABOVE = 50_000
"""With this many records of one input at hand, it is paused, so that memory stays bounded."""


class Fetching:
    """One consumer for all inputs, with the task that reads each.

    Args:
        kafka: Client properties.
        streams: Settings.
        interruptions: Called while waiting for brokers.
    """

    def __init__(self, kafka: Mapping[str, str], streams: StreamsConfig, interruptions: Interruptions) -> None:
        self._consumer = RecordConsumer(kafka, streams.consumer)
        self._interruptions = interruptions
        self._per_poll = _FIRST_POLL
        self._limit = max(streams.buffered_records_per_partition, _PAUSED_ABOVE)
        self._owner_of: dict[TopicPartition, OwnedTask] = {}
        self._global: GlobalState | None = None
        self._paused: set[TopicPartition] = set()
        self._ends_seen: dict[TopicPartition, int] = {}

    def begin_global(self, tables: GlobalState) -> None:
        """Start to fetch for the global tables, from their positions."""
        self._global = tables
        self._consumer.assign(tables.positions())

    def begin(self, owned: OwnedTask) -> None:
        """Start to fetch for a task, from its start offsets."""
        self._owner_of |= dict.fromkeys(owned.inputs, owned)
        for tp in owned.inputs:
            self._ends_seen.pop(tp, None)
        self._paused -= set(owned.inputs)
        self._consumer.assign(owned.starts())

    def end(self, owned: OwnedTask) -> None:
        """Stop fetching for a task."""
        self._consumer.unassign(owned.inputs)
        for tp in owned.inputs:
            del self._owner_of[tp]

    def waiting(self) -> int:
        """Return the number of records that tasks have at hand."""
        return sum(owned.task.buffered(tp) for tp, owned in self._owner_of.items())

    def reader_of(self, tp: TopicPartition) -> OwnedTask | None:
        """Return the task that reads a partition; None for a partition of a global table."""
        return self._owner_of.get(tp)

    def fetch(self, timeout_s: float) -> None:
        """Fetch records and hand them out in parts, up to the limits of memory.

        Raises:
            MissingOffsetError: If a partition lacks the next offset; it is not fetched any more.
            BrokerError: If brokers refuse.
        """
        fetched = 0
        while fetched < ENOUGH:
            asked = self._per_poll
            with self._interruptions.away():
                polled = self._consumer.poll(asked, timeout_s)
            found, records = sum(map(len, polled.records.values())), self._hand_out(polled)
            if records:
                self._per_poll = max(2, min(_RECORDS_PER_POLL * found // records, 2 * asked))
            fetched, timeout_s = fetched + records, 0
            if found + len(polled.ends) < asked:
                return

    def balance(self) -> None:
        """Pause inputs that run ahead of the others of their task, and resume those that no longer do."""
        full = {tp for tp, owned in self._owner_of.items() if owned.task.buffered(tp) > self._limit}
        if full - self._paused:
            self._consumer.pause(full - self._paused)
        if self._paused - full:
            self._consumer.resume(self._paused - full)
        self._paused = full

    def has_run_dry(self) -> bool:
        """Return whether tasks have no records at hand, and every input has been read to its end."""
        is_idle = not any(owned.task.buffered(tp) for tp, owned in self._owner_of.items())
        return is_idle and self._ends_seen.keys() >= self._owner_of.keys()

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of tasks in their inputs."""
        return {tp: owned.task.position(tp) for tp, owned in self._owner_of.items()}

    def progress(self) -> dict[TaskId, dict[TopicPartition, InputProgress]]:
        """Return the progress of each task in its inputs, with their ends as far as known; asks no broker."""
        ends = self._consumer.known_ends(self._owner_of.keys() - self._ends_seen.keys()) | self._ends_seen
        found: dict[TaskId, dict[TopicPartition, InputProgress]] = {}
        for tp, owned in self._owner_of.items():
            found.setdefault(owned.id, {})[tp] = InputProgress(owned.task.position(tp), ends.get(tp))
        return found

    def has_lost_brokers(self) -> bool:
        """Return True, only once, if no broker has been reached for a while."""
        return self._consumer.has_lost_brokers()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _hand_out(self, polled: Polled) -> int:
        """Hand records to their tasks. Returns the number of records, including those in packs."""
        count = 0
        for tp, records in polled.records.items():
            self._ends_seen.pop(tp, None)
            if tp in self._owner_of:
                count += self._owner_of[tp].task.add_records(tp, records)
            elif self._global is not None and tp.topic in self._global.topics:
                self._global.apply(tp, records, records[-1][RAW_OFFSET] + 1)
                count += len(records)
        for tp, end in polled.ends.items():
            self._ends_seen[tp] = end
            if tp in self._owner_of:
                self._owner_of[tp].task.reached_end(tp, end)
        return count
