"""Looks up values in a service or a database, many records at a time (`KStream.map_values_async`, `map_values_in_batches`).

The records wait here. `runtime.lookups` decides which one is forwarded next, in the thread of the task.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.processor.lookups import LookupCounts, PendingLookup
from riverrun.processor.metrics import MetricName
from riverrun.processor.stats import Measured, MeasuredTotal

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from concurrent.futures import Executor

    from riverrun.processor.lookups import Lookup, LookupExecutor
    from riverrun.processor.metrics import Sensor, StreamsMetrics
    from riverrun.processor.operator import OperatorContext
    from riverrun.processor.stats import MeasurableStat
    from riverrun.records import Headers, RecordMetadata


@dataclass(slots=True)
class LookupOrder:
    """The order of the records of a task that wait for look-ups: without look-ups, they would be processed in this order."""

    record: int = 0
    made: int = 0


@dataclass(slots=True, eq=False)
class PendingRecord:
    """A record that waits for its look-up.

    Args:
        rank: Its place in the order of its task: input record, then look-up.
        place: Topic, partition and offset of its input record.
        stream_time: Stream time of the task when it came, ms.
    """

    rank: tuple[int, int]
    key: Any
    value: Any
    timestamp: int
    headers: Headers
    place: RecordMetadata | None
    stream_time: int
    flight: PendingLookup


@dataclass(slots=True)
class _Lanes:
    """Records that wait, where only those of one key keep their order."""

    by_key: dict[Hashable, deque[PendingRecord]] = field(default_factory=dict)
    # The thread of the event loop appends, the task's thread removes: a deque needs no lock for that.
    landed: deque[PendingRecord] = field(default_factory=deque)

    def add(self, record: PendingRecord) -> None:
        self.by_key.setdefault(_lane(record), deque()).append(record)

    def next(self) -> PendingRecord | None:
        while self.landed:
            record = self.landed[0]
            lane = self.by_key.get(_lane(record))
            if lane is not None and lane[0] is record:
                return record
            # Not its turn: `remove` finds it once it is the first of its key, or has found it.
            self.landed.popleft()
        return None

    def remove(self, record: PendingRecord) -> None:
        self.landed.popleft()
        lane = _lane(record)
        waiting = self.by_key[lane]
        waiting.popleft()
        if not waiting:
            del self.by_key[lane]
        elif waiting[0].flight.is_done:
            self.landed.appendleft(waiting[0])


class StreamLookup:
    """Forwards each record with the value, or the values, that its look-up returns.

    Args:
        is_ordered: Whether records are forwarded in the order in which they came; otherwise only those of one key are.
    """

    def __init__(self, lookup: Lookup, *, is_ordered: bool, is_flat: bool) -> None:
        self.lookup = lookup
        self.is_ordered = is_ordered
        self._is_flat = is_flat
        self._queue: deque[PendingRecord] = deque()
        self._lanes = _Lanes()
        self._unstarted: deque[PendingRecord] = deque()
        self._since_ms = 0
        """When the first one of these came, ms."""
        self._last_called: PendingLookup | None = None
        self._most_of_call = 1 if lookup.batches is None else lookup.batches.max_records
        self._pending = 0
        self._order = LookupOrder()
        self._counts = LookupCounts()
        self._latency: Sensor
        self._name = ""
        self._current: PendingRecord
        self._context: OperatorContext
        self._executor: LookupExecutor
        self._threads: Executor

    def bind(self, name: str, executor: LookupExecutor, threads: Executor, order: LookupOrder) -> None:
        """Connect it with its task, before `init`."""
        self._name = name
        self._executor = executor
        self._threads = threads
        self._order = order

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._latency = latency_sensor(context.metrics, self._name, self._counts, lambda: self._pending)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        order, context = self._order, self._context
        order.made += 1
        place = context.record_metadata
        flight = PendingLookup(self.lookup, key, value, self._threads, self._counts, self._name, place=place)
        record = PendingRecord(
            (order.record, order.made),
            key,
            value,
            timestamp,
            headers,
            place=place,
            stream_time=context.current_stream_time_ms(),
            flight=flight,
        )
        if self.is_ordered:
            self._queue.append(record)
        else:
            self._lanes.add(record)
            flight.landed = self._landing(record)
        self._pending += 1
        if self.lookup.batches is not None and not self._unstarted:
            self._since_ms = context.current_system_time_ms()
        self._unstarted.append(record)
        self._call(self._most_of_call)

    @property
    def pending(self) -> int:
        return self._pending

    @property
    def has_room(self) -> bool:
        """Return whether another look-up may start."""
        return self._pending < self.lookup.max_in_flight

    def next_done(self) -> PendingRecord | None:
        """Return the record that may go on next, if its look-up has finished."""
        if not self.is_ordered:
            return self._lanes.next()
        queue = self._queue
        return queue[0] if queue and queue[0].flight.is_done else None

    def first_rank(self) -> tuple[int, int] | None:
        """Return the rank of the first record that waits, where records keep their order; None if none waits."""
        return self._queue[0].rank if self._queue else None

    def take(self, record: PendingRecord) -> None:
        """Take the record that `next_done` has returned out of the queue, before a call of `finish` with it."""
        if self.is_ordered:
            self._queue.popleft()
        else:
            self._lanes.remove(record)
        self._pending -= 1
        self._call(self._most_of_call)
        self._current = record

    def call_for_waiting(self, now_ms: int, *, is_urgent: bool) -> None:
        """Call for records that wait for others of their batch, if they have waited long enough, or it is urgent."""
        if is_urgent or self.left_ms(now_ms) == 0:
            self._call(1)

    def left_ms(self, now_ms: int) -> int | None:
        """Return how long records may still wait for others of their batch, ms; None if none wait for that."""
        batches = self.lookup.batches
        if batches is None or not self._unstarted or not self._may_call:
            return None
        waited_ms = now_ms - self._since_ms
        # Negative if the clock was set back.
        return batches.max_wait_ms - waited_ms if 0 <= waited_ms < batches.max_wait_ms else 0

    def finish(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:  # noqa: ARG002 - a processing function
        """Forward the taken record, or raise the failure of its look-up."""
        flight, forward = self._current.flight, self._context.forward
        self._latency.record(flight.latency_ms)
        if flight.error is not None:
            raise flight.error
        if not self._is_flat:
            forward(key, flight.result, timestamp, headers)
            return
        for each in flight.result:
            forward(key, each, timestamp, headers)

    def close(self) -> None:
        started = set(self._waiting()).difference(self._unstarted)
        if started:
            self._executor.cancel([record.flight for record in started])
        self._threads.shutdown()

    @property
    def _may_call(self) -> bool:
        if self.lookup.batches is None:
            # The task takes no record if there is no room, but one record may have become several.
            return self._pending - len(self._unstarted) < self.lookup.max_in_flight
        # One call at a time: meanwhile the next batch gathers.
        return self._last_called is None or self._last_called.is_done

    def _call(self, least: int) -> None:
        """Start the calls that may be made for at least so many records each."""
        while len(self._unstarted) >= least and self._may_call:
            most = min(self._most_of_call, len(self._unstarted))
            flights = [self._unstarted.popleft().flight for _ in range(most)]
            self._last_called = flights[-1]
            self._executor.start(flights)

    def _waiting(self) -> Iterable[PendingRecord]:
        return [*self._queue, *(record for lane in self._lanes.by_key.values() for record in lane)]

    def _landing(self, record: PendingRecord) -> Callable[[PendingLookup], None]:
        return lambda _flight: self._lanes.landed.append(record)


LOOKUP_METRICS = "stream-lookup-metrics"


def latency_sensor(metrics: StreamsMetrics, node: str, counts: LookupCounts, waiting: Callable[[], int]) -> Sensor:
    """Return the sensor of a node's look-up latencies, ms, with metrics of `counts` and of the number of waiting records."""
    sensor = metrics.add_latency_rate_total_sensor("lookup", node, operation_name="lookup")
    stats: dict[str, tuple[MeasurableStat, str]] = {
        "in-flight": (Measured(lambda: counts.in_flight), "Look-ups on their way"),
        "waiting": (Measured(waiting), "Records that wait for their look-up, or behind a record that does"),
        "call-total": (MeasuredTotal(lambda: counts.calls), "Calls of the function, each for one record or a batch"),
        "failure-total": (MeasuredTotal(lambda: counts.failures), "Look-ups that failed after their last attempt"),
        "retry-total": (MeasuredTotal(lambda: counts.retries), "Attempts after the first one of a look-up"),
        "timeout-total": (MeasuredTotal(lambda: counts.timeouts), "Attempts without an answer in time"),
        "cache-hit-total": (MeasuredTotal(lambda: counts.cache_hits), "Answers that caches had, or were about to have"),
        "cache-miss-total": (MeasuredTotal(lambda: counts.cache_misses), "Answers that caches asked for"),
        "cache-size": (Measured(lambda: counts.cached), "Answers in the caches that the look-ups use"),
    }
    for name, (stat, words) in stats.items():
        tags = {"lookup-id": node}
        sensor.add(MetricName(name, LOOKUP_METRICS, description=words, tags=tags), stat)
    return sensor


# All keys without a hash share this lane, and so keep their order.
_UNHASHABLE = object()


def _lane(record: PendingRecord) -> Hashable:
    """Return what records share that keep their order; a record without key shares nothing."""
    if record.key is None:
        return record
    try:
        hash(record.key)
    except TypeError:
        return _UNHASHABLE
    key: Hashable = record.key
    return key
