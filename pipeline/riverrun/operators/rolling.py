"""Rolling windows: each record has a result of its key's records of the time before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from riverrun.operators.late_records import refused_by
from riverrun.processor.handlers import DropReason
from riverrun.records import ValueAndTimestamp
from riverrun.serde.api import Serde, plain_reader
from riverrun.serde.internal import decode_list, encode_list
from riverrun.state.values import StoredValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from riverrun.operators.aggregations import Aggregator
    from riverrun.operators.late_records import Refused
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.store_types import WindowStore
    from riverrun.windows import RollingWindows

OfWindow: TypeAlias = "Callable[[Any, Sequence[ValueAndTimestamp[Any]]], Any]"
"""Makes the result of a record: `(key, records of its window) -> result`."""


def values_of_a_time(inner: Serde[Any]) -> Serde[tuple[bytes, ...]]:
    """Return the serde of the values of one key and time, in order of arrival, given that of values, by which they are shown.

    >>> from riverrun.serde.serdes import STRING
    >>> serde = values_of_a_time(STRING)
    >>> serde.serialize((b"a",)).hex()
    '01000000010000000161'
    >>> serde.plain((b"a",))
    ['a']
    """
    read = plain_reader(inner)
    return Serde(
        f"values[{inner.name}]",
        encode_list,
        lambda data: tuple(decode_list(data)),
        remake=(values_of_a_time, (inner,)),
        plain=lambda values: [read(each) for each in values],
    )


def folded(aggregator: Aggregator) -> OfWindow:
    """Return the function that aggregates the records of a window, in their order."""

    def fold(key: Any, records: Sequence[ValueAndTimestamp[Any]]) -> Any:
        aggregate = None
        for value, _ in records:
            aggregate = aggregator.first(key, value) if aggregate is None else aggregator.add(key, value, aggregate)
        return aggregate

    return fold


class StreamRolling:
    """Forwards, for each record, a result of the records in its window, at the record's own time.

    These are in order of event time, and of arrival at equal times. A window has what has arrived: a record that comes later,
    though its time is before, is in the windows of the records that follow. What was forwarded stays.

    Null keys and null values are dropped; so are records that lag behind stream time by more than the grace, whose windows may
    have lost records. A result of None is not forwarded.
    """

    def __init__(self, store: str, windows: RollingWindows, values: Serde[Any], result: OfWindow) -> None:
        self.windows = windows
        self._store_name, self._values = store, StoredValues(store, values)
        self._result = result
        self._observed = -1
        self._context: OperatorContext
        # Values are bytes, which nobody can change.
        self._store: WindowStore[Any, tuple[bytes, ...]]
        self._refused: Refused

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._store = context.get_state_store(self._store_name)
        self._refused = refused_by(context, self._store_name)

    def times(self) -> tuple[int, ...]:
        return (self._observed,)

    def resume(self, times: Sequence[int]) -> None:
        self._observed = times[0]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        self._observed = max(self._observed, timestamp)
        if timestamp < self._observed - self.windows.grace_ms:
            self._context.drop(DropReason.LATE)
            self._refused.is_late = True
            return
        data = self._values.written(key, value)
        before, gone = self._before(key, timestamp)
        # Before the record is stored: one that the function refuses must not be in later windows.
        result = self._result(key, [*before, self._read(key, data, timestamp)])
        self._keep(key, data, timestamp, gone)
        if result is not None:
            self._context.forward(key, result, timestamp, headers)

    def _before(self, key: Any, timestamp: int) -> tuple[list[ValueAndTimestamp[Any]], list[int]]:
        """Return the other records of the window, and the times of records that no window will have any more."""
        most, first = self.windows.records, max(0, timestamp - self.windows.size_ms)
        if most is None:
            in_order = self._store.fetch_range(key, first, timestamp)
            return [self._read(key, each, time) for time, values in in_order for each in values], []
        found: list[tuple[bytes, int]] = []
        settled, gone = self._observed - self.windows.grace_ms, list[int]()
        # Others may still come between these, so all of them stay; the window needs the last ones.
        for time, values in self._store.backward_fetch_range(key, max(first, settled + 1), timestamp):
            if len(found) >= most - 1:
                break
            found += [(each, time) for each in reversed(values)]
        # Of those up to this time, later windows have no more than the last ones, and the current one may be the last.
        known = int(timestamp <= settled)
        for time, values in self._store.backward_fetch_range(key, 0, settled):
            if time >= first and len(found) < most - 1:
                found += [(each, time) for each in reversed(values)]
            elif known >= most - 1:
                gone.append(time)
            elif time < first:
                break
            known += len(values)
        return [self._read(key, each, time) for each, time in reversed(found[: most - 1])], gone

    def _keep(self, key: Any, data: bytes, timestamp: int, gone: Iterable[int]) -> None:
        for time in gone:
            self._store.put(key, None, time)
        kept = (*(self._store.fetch(key, timestamp) or ()), data)
        # Of equal times, too, no window has more than the last ones.
        self._store.put(key, kept if self.windows.records is None else kept[-self.windows.records :], timestamp)

    def _read(self, key: Any, data: bytes, time: int) -> ValueAndTimestamp[Any]:
        return ValueAndTimestamp(self._values.read(key, data), time)
