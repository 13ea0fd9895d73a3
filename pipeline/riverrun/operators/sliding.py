"""Aggregation of a stream by key and sliding window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.operators.late_records import refused_by
from riverrun.operators.tables import cache_forwards
from riverrun.processor.handlers import DropReason
from riverrun.records import Change, ValueAndTimestamp
from riverrun.windows import SlidingWindows, Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.operators.aggregations import Aggregator, ClosingWindows
    from riverrun.operators.late_records import Refused
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.store_types import WindowStore


class _Record(NamedTuple):
    """The record being processed."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers


class StreamSlidingWindowAggregate:
    """Aggregates per key and sliding window (`KStreamSlidingWindowAggregate`).

    Null keys and null values are dropped. A window exists if it ends with a record, or if it begins 1 ms after a record and
    holds another one. A new record updates the windows it falls into and creates the missing ones.

    The timestamp of a stored aggregate is that of its window's last record. So it shows which records a window holds, without
    reading them again. A window is closed when its end is below the highest event time this operator has seen, less grace.

    Records within `time_difference` after the epoch share the window `[0, time_difference]`, because no window starts earlier.

    Args:
        closing: Tracks closing windows, if only closed windows are forwarded; None forwards every update.
    """

    def __init__(
        self,
        store: str,
        windows: SlidingWindows,
        aggregator: Aggregator,
        *,
        send_old_values: bool,
        closing: ClosingWindows | None,
    ) -> None:
        self._store_name = store
        self.size_ms = windows.time_difference_ms
        self.grace_ms = windows.grace_ms
        self._aggregator = aggregator
        self._send_old_values = send_old_values
        self._closing = closing
        self._observed = -1
        self._store: WindowStore[Any, ValueAndTimestamp[Any]]
        self._context: OperatorContext
        self._refused: Refused
        self._forwards_updates: bool

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._refused = refused_by(context, self._store_name)
        self._store = context.get_state_store(self._store_name)
        if self._closing is None:
            self._forwards_updates = not cache_forwards(
                context, self._store, send_old_values=self._send_old_values, key_of=self._windowed
            )
            return
        self._forwards_updates = False
        self._closing.init(context, ((self._closes(start), start, key) for key, start, _ in self._store.all()))
        if self._closing.last_close >= 0:
            self._observed = max(self._observed, self._closing.last_close + self.grace_ms)

    def times(self) -> tuple[int, ...]:
        return (self._observed,)

    def resume(self, times: Sequence[int]) -> None:
        self._observed = times[0]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        self._observed = max(self._observed, timestamp)
        close_ms = self._observed - self.grace_ms
        if self._closing is not None:
            self._closing.forward(close_ms, self._store, self._windowed, headers)
        if timestamp + self.size_ms < close_ms:
            self._refuse()
            return
        record = _Record(key, value, timestamp, headers)
        if timestamp < self.size_ms:
            self._process_early(record)
        else:
            self._process(record)

    def advance_stream_time(self, time_ms: int) -> None:
        """Forward the windows that a record of this time would close."""
        self._observed = max(self._observed, time_ms)
        if self._closing is not None:
            self._closing.forward(self._observed - self.grace_ms, self._store, self._windowed, ())

    def _process(self, record: _Record) -> None:
        size_ms, timestamp = self.size_ms, record.timestamp
        # Two sizes back: a window that ended before this record may hold one that this record's own window holds, too.
        found = dict(self._store.fetch_range(record.key, max(0, timestamp - 2 * size_ms), timestamp + 1))
        holding = sorted((start for start in found if start <= timestamp <= start + size_ms), reverse=True)
        right = self._right_aggregate(record, holding, found)
        ending = found.get(timestamp - size_ms)
        left = found.get(max((start for start in found if start + size_ms < timestamp), default=-1))
        last_before = ending or left
        previous = None if last_before is None else last_before.timestamp
        for start in holding:
            self._update(record, start, found[start])
        # An earlier record with this timestamp has created the windows.
        if previous == timestamp:
            return
        if previous is not None and previous + 1 not in found and previous + 1 + size_ms >= timestamp:
            self._create(record, previous + 1)
        if ending is None:
            reaches = left is not None and timestamp - size_ms <= left.timestamp
            self._create(record, timestamp - size_ms, left if reaches else None)
        self._create_right(record, right)

    def _process_early(self, record: _Record) -> None:
        timestamp = record.timestamp
        found = dict(self._store.fetch_range(record.key, 0, timestamp + 1))
        combined = found.get(0)
        holding = sorted((start for start in found if start <= timestamp), reverse=True)
        right = self._right_aggregate(record, holding, found)
        for start in reversed(holding):
            if start > 0:
                self._update(record, start, found[start])
        self._create_right(record, right)
        if combined is None:
            self._create(record, 0)
            return
        if combined.timestamp < timestamp and combined.timestamp + 1 not in found:
            self._create(record, combined.timestamp + 1)
        self._update(record, 0, combined)

    def _right_aggregate(
        self, record: _Record, holding: list[int], found: dict[int, ValueAndTimestamp[Any]]
    ) -> ValueAndTimestamp[Any] | None:
        """Return the aggregate of the window that begins 1 ms after the record; None if it exists, or would be empty.

        This is the aggregate of the latest window around the record, without the record.
        """
        if not holding or record.timestamp + 1 in found or found[holding[0]].timestamp <= record.timestamp:
            return None
        # Read again, as the aggregator may change the object in `found`.
        return next(self._store.fetch_range(record.key, holding[0], holding[0]))[1]

    def _update(self, record: _Record, start: int, stored: ValueAndTimestamp[Any]) -> None:
        if not self._is_closed(start):
            old = self._replaced(record.key, start)
            new = self._aggregator.add(record.key, record.value, stored.value)
            self._put(record, start, new, max(record.timestamp, stored.timestamp), old)

    def _replaced(self, key: Any, start: int) -> Any:
        if not (self._send_old_values and self._forwards_updates):
            return None
        # Read again: the aggregator may change its argument.
        return next(value.value for _, value in self._store.fetch_range(key, start, start))

    def _create(self, record: _Record, start: int, base: ValueAndTimestamp[Any] | None = None) -> None:
        if not self._is_closed(start):
            self._announce(record, start)
            if base is None:
                new = self._aggregator.first(record.key, record.value)
            else:
                new = self._aggregator.add(record.key, record.value, base.value)
            self._put(record, start, new, record.timestamp, None)

    def _create_right(self, record: _Record, aggregate: ValueAndTimestamp[Any] | None) -> None:
        """Create the window that begins 1 ms after the record, unless it would be empty."""
        if aggregate is not None:
            self._announce(record, record.timestamp + 1)
            self._put(record, record.timestamp + 1, aggregate.value, aggregate.timestamp, None)

    def _is_closed(self, start: int) -> bool:
        is_closed = start + self.size_ms < self._observed - self.grace_ms
        if is_closed:
            self._refuse()
        return is_closed

    def _refuse(self) -> None:
        self._context.drop(DropReason.LATE)
        self._refused.is_late = True

    def _announce(self, record: _Record, start: int) -> None:
        if self._closing is not None:
            self._closing.opened(self._closes(start), start, record.key)

    def _put(self, record: _Record, start: int, new: Any, new_timestamp: int, old: Any) -> None:
        key = record.key
        self._store.put(key, None if new is None else ValueAndTimestamp(new, new_timestamp), start)
        if self._forwards_updates:
            change = Change(new, old if self._send_old_values else None)
            self._context.forward(self._windowed((key, start)), change, new_timestamp, record.headers)

    def _closes(self, start: int) -> int:
        # Sliding windows include their end.
        return start + self.size_ms + 1

    def _windowed(self, key: tuple[Any, int]) -> Windowed[Any]:
        return Windowed(key[0], Window(key[1], key[1] + self.size_ms))
