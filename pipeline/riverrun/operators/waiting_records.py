"""Records that wait in a store for stream time, in order of time, key and arrival."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.serde.internal import (
    BufferedRecord,
    buffer_key,
    buffered_key_of,
    decode_buffered,
    encode_buffered,
    sequence_of,
)
from riverrun.state.codec import StoredKeys
from riverrun.state.values import StoredValues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers, RecordMetadata
    from riverrun.serde.api import Serde
    from riverrun.state.store_types import KeyValueStore


class Waited(NamedTuple):
    """A record whose time has come, with its place in its input."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers
    place: RecordMetadata | None


class WaitingRecords:
    """The records of one store. They wait on after a restart."""

    def __init__(self, store: str, keys: Serde[Any], values: Serde[Any]) -> None:
        self._store_name = store
        self._keys, self._values = StoredKeys(store, keys), StoredValues(store, values)
        self._waiting: list[bytes] = []
        self._places: dict[bytes, RecordMetadata | None] = {}
        self._store: KeyValueStore[bytes, bytes]
        self.latest_ms = -1
        """The highest time of the records that waited when the store was opened, ms."""
        self.sequence = 0
        """How many records have waited, which orders those of one time; committed by the operator."""

    def open(self, context: OperatorContext) -> None:
        self._store = context.get_state_store(self._store_name)
        for store_key, data in self._store.all():
            # In order of keys, so the list is a heap.
            self._waiting.append(store_key)
            self.latest_ms = max(self.latest_ms, decode_buffered(data).timestamp)
            self.sequence = max(self.sequence, sequence_of(store_key))

    def add(self, key: Any, value: Any, timestamp: int, headers: Headers, place: RecordMetadata | None) -> None:
        self.sequence += 1
        store_key = buffer_key(timestamp, self._keys.written(key), self.sequence)
        # The object itself: it finds the input record for handlers, which metadata that is read back may not.
        self._places[store_key] = place
        record = BufferedRecord(timestamp, headers, place, self._values.written(key, value))
        self._store.put(store_key, encode_buffered(record))
        heappush(self._waiting, store_key)

    def until(self, time_ms: int) -> Iterator[Waited]:
        """Yield the records up to a time (inclusive), which wait no longer."""
        if time_ms < 0:
            return
        first_kept = buffer_key(time_ms + 1, b"", 0)
        while self._waiting and self._waiting[0] < first_kept:
            store_key = heappop(self._waiting)
            data, place = self._store.delete(store_key), self._places.pop(store_key, None)
            if data is not None:
                record, key = decode_buffered(data), self._keys.read(buffered_key_of(store_key))
                value = self._values.read(key, record.value)
                yield Waited(key, value, record.timestamp, record.headers, place or record.metadata)
