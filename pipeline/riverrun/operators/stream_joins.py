"""Joins of two streams within a window of event time (`KStreamKStreamJoin` and its two sides).

One operator per side receives the records (`JoinWindow`) and keeps them in the side's window store. The join looks into the
store of the other side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.operators.late_records import refused_by
from riverrun.processor.handlers import DropReason
from riverrun.serde.internal import JoinSideKey, JoinSideValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from riverrun.operators.late_records import Refused
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.stores.join_window import JoinWindowStateStore, ListValueStateStore
    from riverrun.windows import JoinWindows

# Java's `Long.MAX_VALUE`: no record waits for a partner.
_NEVER = 2**63 - 1


class JoinWindow:
    """Forwards each record, then keeps it for the other side (`KStreamJoinWindow`). Null keys are only forwarded.

    Args:
        tells_late: Whether records that the store refuses are noted for `LateRecords`.
    """

    def __init__(self, store: str, *, tells_late: bool = False) -> None:
        self._store_name = store
        self._tells_late = tells_late
        self._forward: Callable[[Any, Any, int, Headers], None]
        self._store: JoinWindowStateStore
        self._refused: Refused
        self._keep: Callable[[Any, Any, int], object]

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward
        self._store = context.get_state_store(self._store_name)
        self._keep = self._store.put
        if self._tells_late:
            self._refused = refused_by(context, self._store_name)
            self._keep = self._keep_or_refuse

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        # In this order: no record meets itself.
        self._forward(key, value, timestamp, headers)
        if key is not None:
            self._keep(key, value, timestamp)

    def _keep_or_refuse(self, key: Any, value: Any, timestamp: int) -> None:
        before = self._store.expired_puts
        self._store.put(key, value, timestamp)
        self._refused.is_late = self._store.expired_puts > before


@dataclass(frozen=True, slots=True)
class StreamJoinSide:
    """One side of a join.

    Args:
        is_outer: Whether records of this side without a partner are results.
        unmatched_store: Name of the store that both sides share, if the join is a left or outer one.
        joiner: `(key, left, right) -> value`; a side without a record is None.
    """

    is_left: bool
    is_outer: bool
    other_store: str
    unmatched_store: str | None
    windows: JoinWindows
    joiner: Callable[[Any, Any, Any], Any]


@dataclass(slots=True)
class TimeTracker:
    """Event time shared by both sides of a join (`KStreamImplJoin.TimeTracker`), ms.

    Args:
        min_time: Lower bound of the times of the waiting records seen so far.
    """

    stream_time: int = -1
    min_time: int = _NEVER


class StreamStreamJoin:
    """Joins each record of one side with those of the other side within the window (`KStreamKStreamJoin`).

    - Null values and null keys are dropped. But a null key with a value is joined with None at once if this side is outer
      (KIP-962).
    - A result has the higher one of both timestamps, and the headers of the record that was processed later.
    - A record of an outer side without a partner waits in a store that both sides share. Once stream time has passed the end of
      its window and the grace, it is joined with None, at its own timestamp. It does not wait if its window ended before stream
      time already.
    - Late records are not dropped: the other side's store decides what they find.
    """

    def __init__(self, side: StreamJoinSide) -> None:
        joiner, windows = side.joiner, side.windows
        self._side = side
        self.windows = windows
        self._join = joiner if side.is_left else lambda key, this, other: joiner(key, other, this)
        self._before_ms = windows.before_ms if side.is_left else windows.after_ms
        self._after_ms = windows.after_ms if side.is_left else windows.before_ms
        self._context: OperatorContext
        self._other: JoinWindowStateStore
        self._unmatched: ListValueStateStore | None = None
        self._tracker = TimeTracker()
        self._resumed: TimeTracker | None = None

    def init(self, context: OperatorContext) -> None:
        side = self._side
        self._context = context
        self._other = context.get_state_store(side.other_store)
        if side.unmatched_store is not None:
            self._unmatched = context.get_state_store(side.unmatched_store)
            self._tracker = context.shared(f"time of {side.unmatched_store}", TimeTracker)
            known = self._resumed or self._stored_times(self._unmatched)
            self._tracker.stream_time = max(self._tracker.stream_time, known.stream_time)
            self._tracker.min_time = min(self._tracker.min_time, known.min_time)

    def times(self) -> tuple[int, ...]:
        """Return the event times of both sides, ms."""
        # An inner join's results do not depend on them.
        return () if self._unmatched is None else (self._tracker.stream_time, self._tracker.min_time)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from the committed times: Kafka Streams starts from scratch, but results must not depend on restarts."""
        self._resumed = TimeTracker(*times)

    def _stored_times(self, unmatched: ListValueStateStore) -> TimeTracker:
        # Used if no times were committed: the task is new, or came from Kafka Streams.
        first_waiting = next((key.timestamp for key, _ in unmatched.all()), _NEVER)
        return TimeTracker(self._other.observed_time, first_waiting)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        tracker, side, unmatched = self._tracker, self._side, self._unmatched
        tracker.stream_time = max(tracker.stream_time, timestamp)
        if key is None or value is None:
            if side.is_outer and value is not None:
                self._context.forward(None, self._join(None, value, None), timestamp, headers)
            else:
                self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        # Whenever stream time says so. Kafka Streams looks at most once per second of the wall clock.
        if unmatched is not None and timestamp == tracker.stream_time:
            self._emit_unmatched(unmatched, timestamp, headers)
        time_from, time_to = max(0, timestamp - self._before_ms), max(0, timestamp + self._after_ms)
        has_partner = False
        for other_time, other in self._other.fetch_range(key, time_from, time_to):
            has_partner = True
            if unmatched is not None:
                unmatched.delete(JoinSideKey(other_time, not side.is_left, key), timestamp)
            self._context.forward(key, self._join(key, value, other), max(timestamp, other_time), headers)
        if has_partner or not side.is_outer:
            return
        if unmatched is None or time_to < tracker.stream_time:
            self._context.forward(key, self._join(key, value, None), timestamp, headers)
        else:
            tracker.min_time = min(tracker.min_time, timestamp)
            unmatched.add(JoinSideKey(timestamp, side.is_left, key), JoinSideValue(side.is_left, value), timestamp)

    def advance_stream_time(self, time_ms: int) -> None:
        """Forward the records that cannot find a partner any more once a record of this time has been seen."""
        self._tracker.stream_time = max(self._tracker.stream_time, time_ms)
        if self._unmatched is not None:
            self._emit_unmatched(self._unmatched, time_ms, ())

    def _emit_unmatched(self, unmatched: ListValueStateStore, timestamp: int, headers: Headers) -> None:
        """Join records that can have no partner any more with None (`emitNonJoinedOuterRecords`)."""
        tracker, windows = self._tracker, self._side.windows
        ends_ms = tracker.min_time + self._after_ms + windows.grace_ms
        # Beyond Long.MAX_VALUE, Java's sum is negative, and the scan takes place.
        if tracker.stream_time <= ends_ms <= _NEVER:
            return
        tracker.min_time = _NEVER
        left_waits = right_waits = False
        for key, entry in unmatched.all():
            tracker.min_time = key.timestamp
            # Records come in order of time, so the windows of all later ones of both sides end later.
            if left_waits and right_waits:
                break
            length_ms = windows.after_ms if key.is_left else windows.before_ms
            if key.timestamp + length_ms + windows.grace_ms >= tracker.stream_time:
                left_waits, right_waits = left_waits or key.is_left, right_waits or not key.is_left
                continue
            self._context.by_time(partial(self._join_alone, key.key, entry, key.timestamp, headers))
            unmatched.delete(key, timestamp)

    def _join_alone(self, key: Any, entry: JoinSideValue, timestamp: int, headers: Headers) -> None:
        left, right = (entry.value, None) if entry.is_left else (None, entry.value)
        self._context.forward(key, self._side.joiner(key, left, right), timestamp, headers)


class StreamSelfJoin:
    """Joins each record of a stream with the stream's own records within the window, from one store (`KStreamKStreamSelfJoin`).

    Its results and their order are those of a join of two equal streams. A record that is late by more than the retention is
    not joined with itself.

    Every record finds itself, so inner and outer joins do not differ; but records without a key are dropped.
    """

    def __init__(self, side: StreamJoinSide) -> None:
        self._side = side
        self.windows = side.windows
        self._context: OperatorContext
        self._store: JoinWindowStateStore
        self._stream_time = -1

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._store = context.get_state_store(self._side.other_store)
        self._stream_time = self._store.observed_time

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Join one record with earlier ones, first as the left one, then as the right one, and with itself."""
        if key is None or value is None:
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        windows, joiner, forward = self._side.windows, self._side.joiner, self._context.forward
        self._stream_time = max(self._stream_time, timestamp)
        meets_itself = timestamp > self._stream_time - windows.retention_ms + 1
        for other_time, other in self._within(key, timestamp, windows.before_ms, windows.after_ms):
            forward(key, joiner(key, value, other), max(timestamp, other_time), headers)
        for other_time, other in self._within(key, timestamp, windows.after_ms, windows.before_ms):
            if other_time > timestamp and meets_itself:
                meets_itself = False
                forward(key, joiner(key, value, value), timestamp, headers)
            forward(key, joiner(key, other, value), max(timestamp, other_time), headers)
        if meets_itself:
            forward(key, joiner(key, value, value), timestamp, headers)

    def _within(self, key: Any, timestamp: int, before_ms: int, after_ms: int) -> Iterator[tuple[int, Any]]:
        return self._store.fetch_range(key, max(0, timestamp - before_ms), max(0, timestamp + after_ms))
