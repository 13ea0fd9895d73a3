"""Windows by count: each window of a key has a number of its records, and its result is forwarded when it is full.

The store has the windows of a key that are not full yet:

```
int32 records until the next window begins ++ (int32 records ++ int32 length, -1 if null ++ aggregate)*
```
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.processor.handlers import DropReason
from riverrun.records import ValueAndTimestamp
from riverrun.serde.api import Serde, plain_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.operators.aggregations import Aggregator
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers
    from riverrun.state.store_types import KeyValueStore
    from riverrun.windows import CountWindows

_NUMBER = struct.Struct(">i")
_HEAD = struct.Struct(">ii")


class Filling(NamedTuple):
    """A window that is not full.

    Args:
        aggregate: The bytes of its aggregate, which nobody can change; None if the aggregator has deleted it.
    """

    records: int
    aggregate: bytes | None


class OpenWindows(NamedTuple):
    """The windows of a key that are not full.

    Args:
        until_next: Number of records until the next one begins; 0 if it begins with the next record.
        filling: The windows, the oldest one first.
    """

    until_next: int
    filling: tuple[Filling, ...]


_NONE = OpenWindows(0, ())


def open_windows(aggregates: Serde[Any]) -> Serde[OpenWindows]:
    """Return the serde of the windows of a key, given that of aggregates, by which they are shown.

    >>> from riverrun.serde.serdes import STRING
    >>> serde = open_windows(STRING)
    >>> serde.serialize(OpenWindows(1, (Filling(2, b"ab"), Filling(1, None)))).hex(" ", -4)
    '00000001 00000002 00000002 61620000 0001ffff ffff'
    >>> serde.plain(serde.deserialize(serde.serialize(OpenWindows(1, (Filling(2, b"ab"),)))))
    [{'records': 2, 'aggregate': 'ab'}]
    """
    read = plain_reader(aggregates)

    def shown(windows: OpenWindows) -> list[dict[str, Any]]:
        return [
            {"records": records, "aggregate": None if aggregate is None else read(aggregate)}
            for records, aggregate in windows.filling
        ]

    name = f"open windows[{aggregates.name}]"
    return Serde(name, _written, _known, remake=(open_windows, (aggregates,)), plain=shown)


def _written(windows: OpenWindows) -> bytes:
    parts = [_NUMBER.pack(windows.until_next)]
    for records, aggregate in windows.filling:
        parts.append(_HEAD.pack(records, -1 if aggregate is None else len(aggregate)))
        parts.append(aggregate or b"")
    return b"".join(parts)


def _known(data: bytes) -> OpenWindows:
    try:
        return _decoded(data)
    except struct.error as error:
        raise ValueError(f"{len(data)} bytes are too few for windows by count: {error}") from error


def _decoded(data: bytes) -> OpenWindows:
    (until_next,), place, filling = _NUMBER.unpack_from(data), _NUMBER.size, list[Filling]()
    while place < len(data):
        records, length = _HEAD.unpack_from(data, place)
        place += _HEAD.size
        if not -1 <= length <= len(data) - place:
            raise ValueError(f"an aggregate of {length} bytes does not fit into {len(data)} bytes of windows by count")
        filling.append(Filling(records, None if length < 0 else data[place : place + length]))
        place += max(length, 0)
    return OpenWindows(until_next, tuple(filling))


@dataclass(slots=True)
class StreamCountWindows:
    """Aggregates records per key into windows of a number of records, and forwards the results of full ones.

    Null keys and null values are dropped. A result has the highest time of the key's records so far, and the headers of the
    last one. A window whose aggregator has returned None is full without a result.
    """

    store: str
    windows: CountWindows
    aggregator: Aggregator
    aggregates: Serde[Any]
    result: Callable[[Any], Any]
    _kept: KeyValueStore[Any, ValueAndTimestamp[OpenWindows]] | None = None
    _context: OperatorContext | None = None

    def init(self, context: OperatorContext) -> None:
        self._context = context
        self._kept = context.get_state_store(self.store)

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        context, kept = self._context, self._kept
        assert context is not None and kept is not None  # noqa: PT018, S101 - after init
        if key is None or value is None:
            context.drop(DropReason.NULL_KEY_OR_VALUE)
            return
        known, time = kept.get(key) or (_NONE, timestamp)
        time = max(time, timestamp)
        added = [(records + 1, self._added(key, value, aggregate)) for records, aggregate in known.filling]
        until_next = known.until_next
        if not until_next:
            added.append((1, self.aggregator.first(key, value)))
            until_next = self.windows.advance
        full = added.pop(0)[1] if added[0][0] == self.windows.size else None
        write = self.aggregates.serialize
        filling = tuple(Filling(records, None if each is None else write(each)) for records, each in added)
        kept.put(key, ValueAndTimestamp(OpenWindows(until_next - 1, filling), time))
        if full is not None:
            context.forward(key, self.result(full), time, headers)

    def _added(self, key: Any, value: Any, aggregate: bytes | None) -> Any:
        aggregator = self.aggregator
        if aggregate is None:
            return aggregator.first(key, value)
        return aggregator.add(key, value, self.aggregates.deserialize(aggregate))
