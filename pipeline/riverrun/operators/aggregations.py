"""Aggregations of a stream by key, with and without windows, including windows that are forwarded only when they close."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from riverrun.calendars import Calendar
from riverrun.operators.late_records import refused_by
from riverrun.operators.tables import TableStore, cache_forwards
from riverrun.processor.handlers import DropReason
from riverrun.records import Change, ValueAndTimestamp
from riverrun.state.folds import step
from riverrun.windows import (
    MAX_TIME_MS,
    CalendarWindows,
    OwnWindows,
    TimeWindows,
    UnlimitedWindows,
    VaryingWindows,
    Window,
    Windowed,
    calendar_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from riverrun.operators.late_records import Refused
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.serde.api import Serde
    from riverrun.state.codec import Folded
    from riverrun.state.store_types import WindowStore


class ClosingWindows:
    """The windows that have not been forwarded yet, in order of closing time, start and serialized key.

    Kafka Streams stores the record that closes windows, then looks the closed windows up in the store. It loses those that this
    record makes the store forget, and forwards closed windows at most once per interval of the wall clock.

    Here the operator asks before it stores each record. No window is lost, and results do not depend on the clock.
    """

    def __init__(self, store: str, key_serde: Serde[Any]) -> None:
        self._store = store
        self._key_bytes = key_serde.serialize
        self._key_of = key_serde.deserialize
        self._waiting: list[tuple[int, int, bytes]] = []
        self._context: OperatorContext
        self.last_close = -1

    def init(self, context: OperatorContext, stored: Iterable[tuple[int, int, Any]]) -> None:
        """Continue where the last task stopped: `stored` yields `(closes_ms, start_ms, key)` of every window in the store."""
        self._context = context
        known = context.processor_metadata(self._store)
        self.last_close = -1 if known is None else known
        windows = ((closes, start, self._key_bytes(key)) for closes, start, key in stored)
        # The store keeps windows longer than until they close: the others were forwarded before.
        self._waiting = [window for window in windows if window[0] > self.last_close]
        heapify(self._waiting)

    def opened(self, closes_ms: int, start: int, key: Any) -> None:
        """Add a new window, which closes when stream time, less grace, reaches `closes_ms`."""
        heappush(self._waiting, (closes_ms, start, self._key_bytes(key)))

    def closed(self, close_ms: int) -> Iterator[tuple[int, int, Any]]:
        """Yield `(closes_ms, start_ms, key)` of the windows that close up to `close_ms`, each once."""
        waiting = self._waiting
        if not waiting or waiting[0][0] > close_ms:
            return
        closes, given = -1, set[tuple[int, int, bytes]]()
        while waiting and waiting[0][0] <= close_ms:
            window = heappop(waiting)
            if window[0] != closes:
                closes, given = window[0], set()
            # Reopened windows and merged sessions are announced again.
            if window not in given:
                given.add(window)
                yield window[0], window[1], self._key_of(window[2])
        self.last_close = close_ms
        # Committed with the offsets, so that a successor forwards none of them again.
        self._context.set_processor_metadata(self._store, close_ms)

    def forward(
        self,
        close_ms: int,
        store: WindowStore[Any, Any],
        windowed: Callable[[tuple[Any, int]], Windowed[Any]],
        headers: Headers,
    ) -> None:
        """Forward what a store has of the windows that close up to a time, each once."""
        for _, start, key in self.closed(close_ms):
            stored = store.fetch(key, start)
            if stored is not None:
                change = Change(stored.value, None)
                self._context.by_time(
                    partial(self._context.forward, windowed((key, start)), change, stored.timestamp, headers)
                )


# Half the time of calling the class.
_made = tuple.__new__
_NOTHING = (None, -1)


@dataclass(frozen=True, slots=True)
class Aggregator:
    """The user's functions of an aggregation.

    Args:
        initializer: Returns the initial aggregate; None if the first value is the aggregate (`reduce`).
        add: `(key, value, aggregate) -> aggregate`; None deletes.
    """

    initializer: Callable[[], Any] | None
    add: Callable[[Any, Any, Any], Any]

    def initial(self) -> Any:
        """Return the initial aggregate; None for `reduce`."""
        return None if self.initializer is None else self.initializer()

    def first(self, key: Any, value: Any) -> Any:
        return value if self.initializer is None else self.add(key, value, self.initializer())


COUNT = Aggregator(lambda: 0, lambda _key, _value, count: count + 1)


class StreamAggregate:
    """Aggregates per key (`KStreamAggregate`, `KStreamReduce`). Null keys and null values are dropped.

    The result's timestamp is the highest of the key so far.
    """

    def __init__(self, store: str, aggregator: Aggregator, *, send_old_values: bool) -> None:
        self.rows_in = store
        self.aggregator = aggregator
        self._send_old_values = send_old_values
        self._table: TableStore
        self._context: OperatorContext
        self._forward: Callable[[Any, Any, int, Headers], None]
        self._holds_back: bool
        self._is_versioned: bool
        self._tells_old_values: bool
        self._get: Callable[[Any], ValueAndTimestamp[Any] | None]
        self._put: Callable[[Any, Any], object]
        self._writing_fold: Callable[[Any, Any, int], Folded] | None

    def init(self, context: OperatorContext) -> None:
        self._context, self._forward = context, context.forward
        table = TableStore(context, self.rows_in, send_old_values=self._send_old_values)
        store = context.get_state_store(self.rows_in)
        self._table, self._get, self._put = table, table.get, store.put
        self._holds_back, self._is_versioned = table.holds_back, table.is_versioned
        self._writing_fold = table.writing_fold(self.aggregator)
        self._tells_old_values = self._send_old_values and not table.holds_back

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        if self._writing_fold is not None:
            _, _, new, old, timestamp = self._writing_fold(key, value, timestamp)
            self._forward(key, _made(Change, (new, old, True)), timestamp, headers)
            return
        stored = self._get(key)
        new, new_timestamp = step(self.aggregator, key, value, timestamp, *(stored or _NOTHING))
        # None for a first update. Kafka Streams without a cache reports the initial aggregate, which a table below never added.
        old = self._replaced(key) if self._tells_old_values else None
        if self._is_versioned:
            self._table.update(key, new, old, new_timestamp, headers)
            return
        self._put(key, None if new is None else _made(ValueAndTimestamp, (new, new_timestamp)))
        if not self._holds_back:
            self._forward(key, Change(new, old), new_timestamp, headers)

    def _replaced(self, key: Any) -> Any:
        # Read again: `add` may have changed its argument.
        stored = self._get(key)
        return None if stored is None else stored.value


class StreamWindowAggregate:
    """Aggregates per key and window (`KStreamWindowAggregate`).

    Null keys are dropped; a null value reaches the aggregator. A window is closed when its end is not above the highest
    event time this operator has seen, less grace. A record is dropped, and counted, once per closed window.

    Args:
        closing: Tracks closing windows, if only closed windows are forwarded; None forwards every update.
    """

    def __init__(
        self,
        store: str,
        windows: TimeWindows | UnlimitedWindows | VaryingWindows,
        aggregator: Aggregator,
        *,
        send_old_values: bool,
        closing: ClosingWindows | None = None,
    ) -> None:
        self.store_name = store
        self._size_ms = windows.size_ms
        # A derived class may start its windows elsewhere.
        is_tumbling = type(windows) is TimeWindows and windows.advance_ms == windows.size_ms
        timed = calendar_of(windows) if isinstance(windows, CalendarWindows) else windows
        # Only calendars have one window for each time, and a function that finds both of its ends.
        self.stretch_of = timed.stretch_of if isinstance(timed, Calendar) else None
        self.own_end_of = timed.end_of if isinstance(timed, Calendar | OwnWindows) else None
        self.tumbling_ms = windows.size_ms if is_tumbling else None
        self.starts_for = timed.starts_for
        self.grace_ms = windows.grace_ms
        self.longest_ms = windows.size_ms + (windows.slack_ms if isinstance(windows, OwnWindows) else 0)
        self.aggregator = aggregator
        self._send_old_values = send_old_values
        self.closing = closing
        self.observed_ms = -1
        self._last_window = Window(-1, -1)
        self._store: WindowStore[Any, ValueAndTimestamp[Any]]
        self._context: OperatorContext
        self._refused: Refused
        self._forward: Callable[[Any, Any, int, Headers], None]
        self._forwards_updates: bool
        self._tells_old_values = False
        self._writing_fold: Callable[[Any, Any, int, int], Folded] | None = None

    def init(self, context: OperatorContext) -> None:
        self._context, self._forward = context, context.forward
        self._store = store = context.get_state_store(self.store_name)
        self._refused = refused_by(context, self.store_name)
        if self.closing is None:
            self._forwards_updates = not cache_forwards(
                context, store, send_old_values=self._send_old_values, key_of=self._windowed
            )
            self._tells_old_values = tells_old = self._send_old_values and self._forwards_updates
            if self._forwards_updates:
                self._writing_fold = store.writing_fold(self.aggregator, tells_old=tells_old)
            return
        self._forwards_updates = False
        self._writing_fold = store.writing_fold(self.aggregator, tells_old=False)
        self.closing.init(context, ((self._closes(start), start, key) for key, start, _ in self._store.all()))
        if self.closing.last_close >= 0:
            self.observed_ms = max(self.observed_ms, self.closing.last_close + self.grace_ms)

    def times(self) -> tuple[int, ...]:
        return (self.observed_ms,)

    def resume(self, times: Sequence[int]) -> None:
        self.observed_ms = times[0]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            self._context.drop(DropReason.NULL_KEY)
            return
        if timestamp > self.observed_ms:
            self.observed_ms = timestamp
        # Before the record is stored, which may make the store forget the windows that it closes.
        if self.closing is not None:
            self.closing.forward(self.observed_ms - self.grace_ms, self._store, self._windowed, headers)
        close_ms = self.observed_ms - self.grace_ms
        tumbling_ms, size_ms, end_of, writing_fold = (
            self.tumbling_ms,
            self._size_ms,
            self.own_end_of,
            self._writing_fold,
        )
        for start in self.starts_for(timestamp) if tumbling_ms is None else (timestamp - timestamp % tumbling_ms,):
            closes_ms = start + size_ms if end_of is None else end_of(start)
            if writing_fold is None or closes_ms <= close_ms:
                self.update(key, value, timestamp, headers, start, closes_ms)
                continue
            known, _, new, old, time = writing_fold(key, value, timestamp, start)
            if self.closing is None:
                end = closes_ms if closes_ms < MAX_TIME_MS else MAX_TIME_MS  # noqa: FURB136 - as in `end_of`
                window = _made(Window, (start, end))
                self._forward(_made(Windowed, (key, window)), _made(Change, (new, old, True)), time, headers)
            elif known is None:
                self.closing.opened(closes_ms, start, key)

    def advance_stream_time(self, time_ms: int) -> None:
        """Forward the windows that a record of this time would close."""
        self.observed_ms = max(self.observed_ms, time_ms)
        if self.closing is not None:
            self.closing.forward(self.observed_ms - self.grace_ms, self._store, self._windowed, ())

    def update(self, key: Any, value: Any, timestamp: int, headers: Headers, start: int, closes_ms: int) -> None:
        """Aggregate a value into the window from `start` to `closes_ms`, unless that is closed."""
        if closes_ms <= self.observed_ms - self.grace_ms:
            self._context.drop(DropReason.LATE)
            self._refused.is_late = True
            return
        stored = self._store.fetch(key, start)
        new, new_timestamp = step(self.aggregator, key, value, timestamp, *(stored or _NOTHING))
        if stored is None and self.closing is not None:
            self.closing.opened(closes_ms, start, key)
        old = self._replaced(key, start) if self._tells_old_values else None
        self._store.put(key, None if new is None else _made(ValueAndTimestamp, (new, new_timestamp)), start)
        if self._forwards_updates:
            self._forward(self._windowed((key, start)), Change(new, old), new_timestamp, headers)

    def _closes(self, start: int) -> int:
        return start + self._size_ms if self.own_end_of is None else self.own_end_of(start)

    def _replaced(self, key: Any, start: int) -> Any:
        # Read again: `add` may have changed its argument.
        stored = self._store.fetch(key, start)
        return None if stored is None else stored.value

    def _windowed(self, key: tuple[Any, int]) -> Windowed[Any]:
        start = key[1]
        # Consecutive updates often share a window.
        if start != self._last_window[0]:
            self._last_window = Window(start, min(self._closes(start), MAX_TIME_MS))
        return _made(Windowed, (key[0], self._last_window))
