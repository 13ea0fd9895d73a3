"""Takes the records of a task whose operators look something up, and forwards them as look-ups finish.

Later records overtake those that wait for look-ups, above the look-up and next to it. Results must not depend on that.
So where an operator keeps the order, a record waits before it reaches what the waiting records will reach: a node below the
look-up, a store that one of these uses, or a topic that one of these writes. Punctuations by stream time wait for all records
before them. Then a topology has the results that it would have if each look-up ended at once. One thing differs: if one record
reaches a node in two ways, the way without a look-up comes first.

Only methods that say so wait: meanwhile a stream thread runs other tasks and answers queries.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from riverrun.errors import USER_ERRORS
from riverrun.operators.lookups import LookupOrder, StreamLookup
from riverrun.records import TopicPartition
from riverrun.runtime.times import NEVER
from riverrun.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from riverrun.operators.lookups import PendingRecord
    from riverrun.processor.lookups import LookupExecutor
    from riverrun.runtime.compile import CompiledNodes
    from riverrun.runtime.context import TaskContext
    from riverrun.runtime.failures import Failures, Forward
    from riverrun.runtime.inputs import PartitionGroup, RecordQueue
    from riverrun.runtime.processing import Processing
    from riverrun.topology.nodes import SubTopology

_WAIT_SECONDS = 1.0


def lookups_of(nodes: CompiledNodes) -> dict[str, StreamLookup]:
    """Return the operators of a task that look something up, by node name."""
    return {name: operator for name, operator in nodes.operators.items() if isinstance(operator, StreamLookup)}


class PendingLookups:
    """The records of one task that wait for look-ups.

    Args:
        lookups: Its operators that look something up, by node name.
        threads: Makes at most so many threads, to call blocking functions.
    """

    def __init__(
        self,
        lookups: Mapping[str, StreamLookup],
        sub: SubTopology,
        *,
        context: TaskContext,
        queues: PartitionGroup,
        processing: Processing,
        failures: Failures,
        executor: LookupExecutor,
        threads: Callable[[int], Executor],
    ) -> None:
        self._context = context
        self._queues = queues
        self._processing = processing
        self._executor = executor
        self._order = LookupOrder()
        self._seen = 0
        self._is_held = False
        # Punctuations that wait: stream time, and the place of the record that has moved it there, for errors.
        self._is_due: tuple[int, TopicPartition, int] | None = None
        self._nodes = [lookups[node.name] for node in sub.nodes if node.name in lookups]
        self._finish: dict[StreamLookup, Forward] = {}
        for name, lookup in lookups.items():
            lookup.bind(name, executor, threads(lookup.lookup.max_in_flight), self._order)
            self._finish[lookup] = failures.guarded(lookup.finish, name)
        ordered = {name: lookup for name, lookup in lookups.items() if lookup.is_ordered}
        met = meetings(sub, frozenset(ordered), frozenset(lookups))
        self._keeps_order = bool(ordered)
        self._met_by = {name: [ordered[other] for other in others] for name, others in met.items()}
        self._met_by_lookup = {lookup: self._met_by[name] for name, lookup in ordered.items()}

    @property
    def is_empty(self) -> bool:
        return self._is_due is None and not any(lookup.pending for lookup in self._nodes)

    def hold(self) -> None:
        """Take no more records until `release`: the task is about to commit."""
        self._is_held = True
        self._call_for_waiting(is_urgent=True)

    def release(self) -> None:
        """Take records again."""
        self._is_held = False

    def process(self, limit: int) -> int:
        """Forward records whose look-ups have finished, and take up to `limit` others; return the number of those taken."""
        return self._process(limit, self._processing.is_ready)

    def process_all(self) -> int:
        """Take all records that were added or can be fetched, and wait until nothing waits any more; return their number."""
        done = 0
        while True:
            taken = self._process(sys.maxsize, lambda: True)
            done += taken
            if self.is_empty and not taken:
                return done
            if not taken:
                self._call_for_waiting(is_urgent=True)
                self.wait(_WAIT_SECONDS)

    def finish(self) -> None:
        """Wait until nothing waits any more."""
        self.deliver()
        while not self.is_empty:
            self._call_for_waiting(is_urgent=True)
            self.wait(_WAIT_SECONDS)
            self.deliver()

    def wait(self, timeout_s: float) -> None:
        """Wait until a look-up has finished since `deliver` was called last, a call is due, or the time (s) is up."""
        now_ms = self._context.clock.now_ms()
        left = [left_ms for lookup in self._nodes if (left_ms := lookup.left_ms(now_ms)) is not None]
        # At least 1 ms: a task that the host does not let process would wait for nothing, again and again.
        self._executor.wait(self._seen, min([timeout_s, *(max(left_ms, 1) / 1000 for left_ms in left)]))

    def deliver(self) -> None:
        """Forward all records that may be forwarded."""
        # Before the records: if a look-up finishes meanwhile, the next `wait` returns at once.
        self._seen = self._executor.finished
        while self._deliver_some():
            pass
        if self._is_due is not None and not any(lookup.pending for lookup in self._nodes):
            (time_ms, tp, offset), self._is_due = self._is_due, None
            try:
                self._context.stream_punctuations.fire(time_ms)
            except USER_ERRORS as error:
                self._fail(error, tp, offset)

    def _process(self, limit: int, may_choose: Callable[[], bool]) -> int:
        self.deliver()
        done, queue = 0, self._queues.only()
        chooses = queue is None
        may_go_on, must_wait = not chooses or may_choose(), False
        while may_go_on and done < limit and self._may_take():
            found = self._queues.next_queue(self._processing.latest_ms)
            must_wait = found is not None and not self._takes(found[0])
            if found is None or must_wait:
                break
            done += 1
            self.deliver()
            may_go_on = not chooses or found[0].head() is not None or may_choose()
        # Otherwise more records may be at hand for the batches.
        if done < limit:
            self._call_for_waiting(is_urgent=must_wait or not self._may_take())
        return done

    def _call_for_waiting(self, *, is_urgent: bool) -> None:
        """Call for records that wait for others of their batch; `is_urgent` if no others can come before."""
        now_ms = self._context.clock.now_ms()
        for lookup in self._nodes:
            lookup.call_for_waiting(now_ms, is_urgent=is_urgent)

    def _may_take(self) -> bool:
        return not self._is_held and self._is_due is None and all(lookup.has_room for lookup in self._nodes)

    def _takes(self, queue: RecordQueue) -> bool:
        """Take the next record of an input, unless it has to wait; return whether it was taken."""
        if any(lookup.pending for lookup in self._met_by[queue.node.name]):
            return False
        context, punctuations = self._context, self._context.stream_punctuations
        is_due = self._keeps_order and queue.head_time() >= punctuations.next_due_ms
        if is_due and not self.is_empty:
            return False
        self._order.record += 1
        if not is_due:
            self._processing.take(queue)
            return True
        # Held back: the record may wait for a look-up, and punctuations come after it.
        due_ms, punctuations.next_due_ms = punctuations.next_due_ms, NEVER
        self._processing.take(queue)
        punctuations.next_due_ms = min(due_ms, punctuations.next_due_ms)
        self._is_due = context.stream_time, queue.tp, queue.next_offset - 1
        return True

    def _deliver_some(self) -> bool:
        delivered = False
        for lookup in self._nodes:
            while (record := lookup.next_done()) is not None and self._may_deliver(lookup, record):
                delivered = True
                self._deliver(lookup, record)
        return delivered

    def _may_deliver(self, lookup: StreamLookup, record: PendingRecord) -> bool:
        """Return whether no earlier record waits elsewhere that reaches what this one reaches."""
        for other in self._met_by_lookup.get(lookup, ()):
            first = other.first_rank()
            if first is not None and first < record.rank:
                return False
        return True

    def _deliver(self, lookup: StreamLookup, record: PendingRecord) -> None:
        """Forward a record as if it had just been read."""
        context, order = self._context, self._order
        before = context.stream_time, order.record, context.is_by_time
        lookup.take(record)
        context.enter(record.place, record.timestamp, record.headers)
        # What it meets below must see the stream time of its arrival, as without look-ups.
        context.stream_time, order.record = record.stream_time, record.rank[0]
        try:
            self._finish[lookup](record.key, record.value, record.timestamp, record.headers)
        except USER_ERRORS as error:
            if record.place is None:
                self._processing.fail_at(error)
            self._fail(error, TopicPartition(record.place.topic, record.place.partition), record.place.offset)
        context.stream_time, order.record, context.is_by_time = before

    def _fail(self, error: BaseException, tp: TopicPartition, offset: int) -> NoReturn:
        self._processing.fail_at(error, topic=tp.topic, partition=tp.partition, offset=offset)


def meetings(sub: SubTopology, ordered: frozenset[str], lookups: frozenset[str]) -> dict[str, list[str]]:
    """Return, by source or look-up, the look-ups whose waiting records its own records would meet.

    Records meet at a node, in a store, or in a topic that both reach. A source, or a look-up, reaches all below it, up to the
    next look-up: the rest is reached when that one has finished. Only look-ups in `ordered` keep the order.
    """
    children: dict[str, list[str]] = {node.name: [] for node in sub.nodes}
    for node in sub.nodes:
        for parent in getattr(node, "parents", ()):
            children[parent].append(node.name)
    own: dict[str, set[Any]] = {}
    for node in sub.nodes:
        topic = {("topic", node.topic)} if isinstance(node, SinkNode) else set()
        own[node.name] = {node.name, *(("store", store) for store in sub.store_access.get(node.name, ())), *topic}

    def reached(start: str, *, stops: bool) -> set[Any]:
        found: set[Any] = set()
        seen: set[str] = set()
        ahead = list(children[start])
        while ahead:
            name = ahead.pop()
            if name not in seen:
                seen.add(name)
                found |= own[name]
                if not (stops and name in lookups):
                    ahead += children[name]
        return found

    below = {name: reached(name, stops=False) for name in ordered}
    starts = [source.name for source in sub.sources] + sorted(ordered)
    met: dict[str, list[str]] = {}
    for start in starts:
        reach = reached(start, stops=True)
        if start not in ordered:
            reach |= own[start]
        met[start] = [other for other in sorted(ordered) if other != start and not reach.isdisjoint(below[other])]
    return met
