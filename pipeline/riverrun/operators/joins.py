"""Joins of a stream with a table, or with a versioned table, whose value at the record's own time it meets (KIP-914)."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from riverrun.operators.stateless import OfValues, call_of, written_as
from riverrun.operators.table_transforms import MappedGetter
from riverrun.operators.tables import StoreGetter
from riverrun.processor.handlers import DropReason
from riverrun.processor.operator import block, lacking, lines_of
from riverrun.serde.internal import (
    BufferedRecord,
    buffer_key,
    buffered_key_of,
    decode_buffered,
    encode_buffered,
    sequence_of,
)
from riverrun.state.access import LooksUpInParts
from riverrun.state.cache import UNREAD
from riverrun.state.codec import StoredKeys
from riverrun.state.values import StoredValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.operators.tables import ValueGetter
    from riverrun.processor.operator import EmitContext, OperatorContext, TupleValue
    from riverrun.records import Headers, RecordMetadata
    from riverrun.serde.api import Serde
    from riverrun.state.access import CachedGet
    from riverrun.state.store_types import KeyValueStore


class StreamTableJoin:
    """Looks up each record's key in a table, as an inner join (`KStreamKTableJoinProcessor`).

    Records whose looked-up key or whose value is null are dropped. Timestamp and headers are the stream's.

    Args:
        key_of: `(key, value) -> key` to look up; None for the record's own key.
        joiner: `(key, value, table_value) -> value`.
    """

    def __init__(
        self,
        open_table: Callable[[OperatorContext], ValueGetter],
        key_of: Callable[[Any, Any], Any] | None,
        joiner: Callable[[Any, Any, Any], Any],
    ) -> None:
        self.open_table = open_table
        """Opens the lookup in a task."""
        self.key_of = key_of
        """Returns the key to look up; None for the record's own key."""
        self.joiner = joiner
        self.lookup: ValueGetter
        """Returns the table's value of a key; set by `init`."""

    def init(self, context: OperatorContext) -> None:
        """Open the table."""
        self.lookup = self.open_table(context)

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        lookup, found, dropped = _lookup(at, self), at.own("found"), _dropped(at, DropReason.NULL_KEY_OR_VALUE)
        if lookup is not None:
            refused = block(f"if {lacking(at, at.lacks_key)}:", dropped)
            looked_up, row = lookup.lines(at, found, is_left=False)
            joined = _joined_lines(at, self.joiner, found, is_left=False, row=row)
            return f"{refused}\n{block('else:', looked_up, block(f'if {found} is not None:', joined))}"
        table_key, key = _table_key(at, self), at.own("table_key")
        if self.key_of is not None and not at.is_row:
            table_key = f"None if {at.value} is None else {table_key}"
        refused = block(f"if {lacking(at, f'{key} is None')}:", dropped)
        looked_up = f"{found} = {at.named('operator', self)}.lookup({key})"
        other = f"{found} = {found}.value\n{_joined_lines(at, self.joiner, found, is_left=False)}"
        return f"{key} = {table_key}\n{refused}\n{block('else:', looked_up, block(f'if {found} is not None:', other))}"


class StreamTableLeftJoin:
    """Joins as `StreamTableJoin` does, but records without a match are joined with None.

    A record whose looked-up key is null is joined with None as well (KIP-962); only null values are dropped.
    """

    def __init__(
        self,
        open_table: Callable[[OperatorContext], ValueGetter],
        key_of: Callable[[Any, Any], Any] | None,
        joiner: Callable[[Any, Any, Any], Any],
    ) -> None:
        self.open_table = open_table
        """Opens the lookup in a task."""
        self.key_of = key_of
        """Returns the key to look up; None for the record's own key."""
        self.joiner = joiner
        self.lookup: ValueGetter
        """Returns the table's value of a key; set by `init`."""

    def init(self, context: OperatorContext) -> None:
        """Open the table."""
        self.lookup = self.open_table(context)

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        lookup, found = _lookup(at, self), at.own("found")
        refused = block(f"if {lacking(at)}:", _dropped(at, DropReason.NULL_VALUE))
        joined = _joined_lines(at, self.joiner, found, is_left=True)
        if lookup is not None:
            return f"{refused}\n{block('else:', lookup.lines(at, found, is_left=True)[0], joined)}"
        key = at.own("table_key")
        looked_up = (
            f"{key} = {_table_key(at, self)}\n"
            f"{found} = None if {key} is None else {at.named('operator', self)}.lookup({key})\n"
            f"{found} = None if {found} is None else {found}.value"
        )
        return f"{refused}\n{block('else:', looked_up, joined)}"


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Looks up records' own keys in the cache of a table's store, and processes the values it finds."""

    cached: CachedGet
    steps: tuple[Callable[[Any, Any], Any], ...]

    def lines(self, at: EmitContext, found: str, *, is_left: bool) -> tuple[str, TupleValue | None]:
        """Return the lines that find a value by the bytes that the key was read from, and the row that the last step makes.

        If there is such a row, the lines leave out that step.
        """
        unread = at.named("unread", UNREAD)
        known = f"{at.named('known', self.cached.values.get)}({at.raw_key}, {unread})"
        find = f"{found} = {at.named('find', self.cached.find)}({at.raw_key}, {at.key})"
        first = f"{found} = None if {at.lacks_key} else {known}" if is_left else f"{found} = {known}"
        lines = [first, block(f"if {found} is {unread}:", find)]
        last = written_as(at, self.steps[-1]) if self.steps and not is_left else None
        for number, step in enumerate(self.steps if last is None else self.steps[:-1]):
            lines.append(block(f"if {found} is not None:", self._step(at, step, f"step_{number}", found)))
        return "\n".join(lines), None if last is None else last.row(at.on(found))

    @staticmethod
    def _step(at: EmitContext, step: Callable[[Any, Any], Any], name: str, found: str) -> str:
        written = written_as(at, step)
        if written is None:
            return f"{found} = {call_of(at.on(found), name, step)}"
        row = written.row(at.on(found))
        return f"{row.lines}\n{found} = {row.whole}"


def _lookup(at: EmitContext, join: StreamTableJoin | StreamTableLeftJoin) -> _Lookup | None:
    """Return the lookup in the cache of the table's store; None if the operator's own function has to be called."""
    if at.raw_key is None or join.key_of is not None:
        return None
    getter, steps = join.open_table, list[Any]()
    while isinstance(getter, MappedGetter):
        steps.insert(0, getter.compute)
        getter = getter.open_parent
    store = at.stores.get(getter.store) if isinstance(getter, StoreGetter) else None
    cached = store.cached_get() if isinstance(store, LooksUpInParts) else None
    return None if cached is None else _Lookup(cached, tuple(steps))


def _dropped(at: EmitContext, reason: DropReason) -> str:
    return f"context.drop({at.named('reason', reason)})"


def _table_key(at: EmitContext, join: StreamTableJoin | StreamTableLeftJoin) -> str:
    return at.key if join.key_of is None else f"{at.named('key_of', join.key_of)}({at.key}, {at.value})"


def _joined_lines(
    at: EmitContext, joiner: Callable[[Any, Any, Any], Any], other: str, *, is_left: bool, row: TupleValue | None = None
) -> str:
    """Return the lines that join a record with the value `other`, which they first make of `row`, and forward the result."""
    inner = joiner.joiner if isinstance(joiner, OfValues) else joiner
    written, made = lines_of(inner), ""
    if row is not None:
        made = f"{row.lines}\n" if row.lines else ""
        if written is None:
            made += f"{other} = {row.whole}\n"
    if written is not None:
        missing = (
            f"if {other} is None:\n    {other} = {at.named('missing', (None,) * written.width)}\n" if is_left else ""
        )
        items = (lambda number: f"{other}[{number}]") if row is None else (lambda number: row.items[number])
        return f"{missing}{made}{at.below(value=written.joined(at, items))}"
    arguments = f"{at.value}, {other}" if isinstance(joiner, OfValues) else f"{at.key}, {at.value}, {other}"
    return f"{made}{at.own('value')} = {at.named('joiner', inner)}({arguments})\n{at.below(value=at.own('value'))}"


class StreamVersionedTableJoin:
    """Looks up each record's key as of the record's time (`KStreamKTableJoinProcessor`).

    Null keys and null values are dropped; left joins drop only null values.

    Args:
        open_table: Opens the table's lookup in a task; the lookup takes `(key, as_of_ms)`.
        joiner: `(key, value, table_value or None) -> value`.
    """

    def __init__(
        self,
        open_table: Callable[[OperatorContext], ValueGetter],
        joiner: Callable[[Any, Any, Any], Any],
        *,
        left_join: bool,
    ) -> None:
        self._open_table = open_table
        self._joiner = joiner
        self._left_join = left_join
        self._context: OperatorContext
        self._lookup: ValueGetter

    def init(self, context: OperatorContext) -> None:
        """Open the table and bind the children."""
        self._context = context
        self._lookup = self._open_table(context)

    def accepts(self, key: Any, value: Any) -> bool:
        """Return whether a record is joined; count it as dropped if not."""
        if value is None or (key is None and not self._left_join):
            self._context.drop(DropReason.NULL_KEY_OR_VALUE)
            return False
        return True

    def joined(self, key: Any, value: Any, timestamp: int) -> tuple[Any, bool]:
        """Return the result of one record, and whether there is one."""
        found = None if key is None else self._lookup(key, timestamp)
        if found is None and not self._left_join:
            return None, False
        return self._joiner(key, value, None if found is None else found.value), True

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Join one record."""
        if self.accepts(key, value):
            result, matches = self.joined(key, value, timestamp)
            if matches:
                self._context.forward(key, result, timestamp, headers)

    def close(self) -> None:
        """Do nothing: the operator holds no resources."""


class BufferedStreamTableJoin:
    """Keeps records back until no update of the table is expected for their time (KIP-923).

    A record waits until stream time has passed its own by the grace period. One that is older on arrival is joined at once.
    Waiting records are forwarded in order of time, key and arrival, with their own headers and place.
    """

    def __init__(
        self, join: StreamVersionedTableJoin, store: str, serdes: tuple[Serde[Any], Serde[Any]], grace_ms: int
    ) -> None:
        self._join = join
        self._store_name = store
        self._keys, self._values = StoredKeys(store, serdes[0]), StoredValues(store, serdes[1])
        self._grace_ms = grace_ms
        self._waiting: list[bytes] = []
        self._places: dict[bytes, RecordMetadata | None] = {}
        self._observed = -1
        self._sequence = 0
        self._store: KeyValueStore[bytes, bytes]
        self._context: OperatorContext

    def init(self, context: OperatorContext) -> None:
        """Open the table and the buffer; records that waited before a restart wait on."""
        self._context = context
        self._join.init(context)
        self._store = context.get_state_store(self._store_name)
        for store_key, data in self._store.all():
            # In order of keys, so the list is a heap.
            self._waiting.append(store_key)
            self._observed = max(self._observed, decode_buffered(data).timestamp)
            self._sequence = max(self._sequence, sequence_of(store_key))

    def times(self) -> tuple[int, ...]:
        """Return the highest time so far, ms, and how many records have waited, which orders records of one time."""
        return (self._observed, self._sequence)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from the committed times, so that late records stay late."""
        self._observed, self._sequence = times

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Let one record wait, or join it if it is late; then join the records that have waited long enough."""
        if not self._join.accepts(key, value):
            return
        # Kafka Streams fails on a null key here; without a grace period it joins it at once, as this does.
        if key is None or timestamp < self._observed - self._grace_ms:
            self._join.process(key, value, timestamp, headers)
            return
        self._observed = max(self._observed, timestamp)
        self._sequence += 1
        store_key = buffer_key(timestamp, self._keys.written(key), self._sequence)
        metadata = self._context.record_metadata
        # The object itself: it finds the input record for handlers, which metadata that is read back may not.
        self._places[store_key] = metadata
        record = BufferedRecord(timestamp, headers, metadata, self._values.written(key, value))
        self._store.put(store_key, encode_buffered(record))
        heappush(self._waiting, store_key)
        self._emit_until(self._observed - self._grace_ms)

    def _emit_until(self, time_ms: int) -> None:
        if time_ms < 0:
            return
        first_kept = buffer_key(time_ms + 1, b"", 0)
        while self._waiting and self._waiting[0] < first_kept:
            self._emit(heappop(self._waiting))

    def _emit(self, store_key: bytes) -> None:
        data, place = self._store.delete(store_key), self._places.pop(store_key, None)
        if data is None:
            return
        record, key = decode_buffered(data), self._keys.read(buffered_key_of(store_key))
        with self._context.by_time():
            result, matches = self._join.joined(key, self._values.read(key, record.value), record.timestamp)
        if matches:
            self._context.forward_as(place or record.metadata, key, result, record.timestamp, record.headers)

    def close(self) -> None:
        """Leave the store open: the task closes it."""
