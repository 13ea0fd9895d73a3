"""Chooses the record that a task processes next among the heads of its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.records import TopicPartition
    from riverrun.runtime.inputs.queue import RecordQueue

_TIMESTAMP: Final = 2
"""Index of the event time in a head (`runtime.queue.Decoded`)."""


@dataclass(slots=True)
class PartitionGroup:
    """Holds all inputs of a task. The head with the lowest event time comes next; equal times are ordered by input.

    Within one input the order of the log is kept, whatever the times.
    """

    _queues: dict[TopicPartition, RecordQueue] = field(default_factory=dict)
    _heap: list[tuple[int, TopicPartition]] = field(default_factory=list)
    _in_heap: set[TopicPartition] = field(default_factory=set)
    _idle_since: dict[TopicPartition, int] = field(default_factory=dict)
    waiting: tuple[int, tuple[TopicPartition, ...]] | None = None
    """Time (ms) since when records wait for empty inputs, and those inputs; None if they do not wait. Set by `is_ready`."""

    def register(self, queue: RecordQueue) -> None:
        """Add an input."""
        self._queues[queue.tp] = queue

    def of(self, tp: TopicPartition) -> RecordQueue | None:
        """Return the input of a partition, if there is one."""
        return self._queues.get(tp)

    def all(self) -> list[RecordQueue]:
        """Return all inputs."""
        return list(self._queues.values())

    def limit(self, limits: Mapping[TopicPartition, int]) -> None:
        """Limit inputs to records before these offsets, and lift the limits of all others."""
        for tp, queue in self._queues.items():
            queue.limit(limits.get(tp))
        self._heap.clear()
        self._in_heap.clear()

    def only(self) -> RecordQueue | None:
        """Return the input if there is just one, and so nothing to choose."""
        return next(iter(self._queues.values())) if len(self._queues) == 1 else None

    def is_ready(self, max_idle_ms: int, now_ms: Callable[[], int]) -> bool:
        """Return whether the next record may be chosen now (`readyToProcess`).

        An input without records holds the others back while the broker may still have records for it, and then for
        `max.task.idle.ms`. Otherwise the order would depend on which fetch comes first.

        Args:
            max_idle_ms: How long to wait; below 0 there is no wait.
            now_ms: The clock.
        """
        heads = [queue.head() for queue in self._queues.values()]  # skips records that cannot be decoded
        has_records = any(head is not None for head in heads)
        if max_idle_ms < 0:
            return has_records
        now = now_ms()
        empty = self._waited_for(max_idle_ms, now)
        if not (empty and has_records):
            self.waiting = None
        else:
            self.waiting = (now if self.waiting is None else self.waiting[0], tuple(empty))
        return has_records and not empty

    def _waited_for(self, max_idle_ms: int, now_ms: int) -> list[TopicPartition]:
        """Return the inputs without records that may still get some in time.

        An input's time runs from when its end was seen, even if no other input had records then.
        """
        empty = []
        for queue in self._queues.values():
            if queue.is_at_limit():  # treated as its end
                self._idle_since.pop(queue.tp, None)
            elif len(queue) or not queue.is_caught_up:
                self._idle_since.pop(queue.tp, None)
                if not len(queue):
                    empty.append(queue.tp)
            elif now_ms - self._idle_since.setdefault(queue.tp, now_ms) < max_idle_ms:
                empty.append(queue.tp)
        return empty

    def next_queue(self, latest_ms: int = MAX_TIME_MS) -> tuple[RecordQueue, int] | None:
        """Return the input whose head comes next, and the highest time (ms) up to which it precedes the others.

        None if no records wait, or only records later than `latest_ms`.
        """
        for tp, queue in self._queues.items():
            if tp not in self._in_heap and (head := queue.head()) is not None:
                heappush(self._heap, (head[_TIMESTAMP], tp))
                self._in_heap.add(tp)
        if not self._heap or self._heap[0][0] > latest_ms:
            return None
        _, tp = heappop(self._heap)
        self._in_heap.discard(tp)
        if not self._heap:
            return self._queues[tp], latest_ms
        return self._queues[tp], min(latest_ms, _before(tp, self._heap[0]))

    def in_order(self) -> Iterator[tuple[RecordQueue, int]]:
        """Yield the results of `next_queue` until nothing waits. At least one record is processed before the next step.

        For hosts that have all inputs at hand. There may be many inputs, so they are not all examined for each record.
        """
        self._heap.clear()
        self._in_heap.clear()
        heap = [(head[_TIMESTAMP], tp) for tp, queue in self._queues.items() if (head := queue.head()) is not None]
        heapify(heap)
        while heap:
            tp = heap[0][1]
            queue, others = self._queues[tp], heap[1:3]
            yield queue, _before(tp, min(others)) if others else MAX_TIME_MS
            head = queue.head()
            if head is None:
                heappop(heap)
            else:
                heapreplace(heap, (head[_TIMESTAMP], tp))


def _before(tp: TopicPartition, other: tuple[int, TopicPartition]) -> int:
    """Return the highest time (ms) up to which records of one input come before the head of the other."""
    time, other_tp = other
    return time if tp < other_tp else time - 1
