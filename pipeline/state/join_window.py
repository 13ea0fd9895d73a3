"""The window store of one side of a stream-stream join: it keeps every value, also of equal key and time.

Kafka Streams' window stores with `retainDuplicates`: a sequence number behind key and time tells values apart and keeps them in
the order in which they came. There is no cache: the other side must see each record at once.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from heapq import merge
from typing import TYPE_CHECKING, Any

from pipeline.state.api import ChangelogRecord
from pipeline.state.keys import stored_keys
from pipeline.state.pending import written_bytes
from pipeline.state.segments import Segments
from pipeline.state.values import stored_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pipeline.state.api import (
        ChangelogBatch,
        FlushListener,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )

_SUFFIX = struct.Struct(">qi")
"""Time and sequence number behind the key (`WindowKeySchema`)."""
_STATE_KEY = b"state"
_LAST_SEQUENCE = 0x7FFFFFFF

Entry = tuple[bytes, bytes]
"""Suffix and value; suffixes sort by time, then sequence number."""


class JoinWindowStateStore:
    """A store of one task, for the two sides of a join and for the task.

    A value is kept while its time is above the highest time ever put, less retention. Sequence numbers go on after a
    restart, where Kafka Streams begins anew and may overwrite a value of the same key and time.
    """

    def __init__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> None:  # noqa: ARG002 - as all stores
        """Open the store as the backend holds it."""
        self.name = builder.name
        self.expired_puts = 0
        self._retention_ms = builder.retention_ms
        self._keys, self._values = stored_keys(builder), stored_values(builder)
        self._segments = Segments(builder.name, builder.retention_ms, backend, _SUFFIX.size)
        self._state_table = f"{builder.name}.state"
        self._pending: dict[bytes, bytes] = {}
        self._pending_of_key: dict[bytes, list[Entry]] = {}
        state = backend.table(self._state_table).get(_STATE_KEY)
        self._observed: int
        self._sequence: int
        self._observed, self._sequence = (-1, 0) if state is None else _SUFFIX.unpack(state)

    @property
    def observed_time(self) -> int:
        """Highest time ever put, ms, also before a restart; -1 if there was none."""
        return self._observed

    def put(self, key: Any, value: Any, time: int) -> None:
        """Keep a value; None is ignored. Ignored and counted if the time has expired.

        Sequence numbers are those of Kafka Streams' changelogs: what is ignored uses one up as well. A null value does not
        move the store's time: so it is in Kafka Streams' RocksDB stores; in its stores in memory it does.
        """
        self._sequence = (self._sequence + 1) & _LAST_SEQUENCE
        if value is None:
            return
        self._observed = max(self._observed, time)
        if time <= self._observed - self._retention_ms:
            self.expired_puts += 1
            return
        raw, data = self._keys.written(key), self._values.written(key, value)
        suffix = _SUFFIX.pack(time, self._sequence)
        self._pending[raw + suffix] = data
        insort(self._pending_of_key.setdefault(raw, []), (suffix, data))

    def fetch_range(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        """`(time, value)` of the key's values from `time_from` to `time_to`, both inclusive, by time and as they came."""
        first = max(0, time_from, self.first_kept)
        if first > time_to:
            return
        raw = self._keys.written(key)
        lower, upper = _SUFFIX.pack(first, 0), _SUFFIX.pack(time_to + 1, 0)
        stored, pending = self._stored(raw, lower, upper, first, time_to), self._pending_between(raw, lower, upper)
        read = self._values.read
        for suffix, data in merge(stored, pending) if pending else stored:
            yield _SUFFIX.unpack(suffix)[0], read(key, data)

    def all(self) -> Iterator[tuple[Any, int, Any]]:
        """`(key, time, value)` of everything that has not expired, in no particular order."""
        first = max(0, self.first_kept)
        stored = (entry for table in self._segments.between(first, self._observed) for entry in table.scan(None, None))
        for entries in (stored, list(self._pending.items())):
            for store_key, data in entries:
                time = self._segments.time_of(store_key)
                if time >= first:
                    raw = store_key[: -_SUFFIX.size]
                    yield self._keys.read(raw), time, self._values.read(raw, data)

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:  # noqa: ARG002 - nothing to tell
        """Nothing is held back."""
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def held_back_bytes(self) -> int:
        """Estimated size of what was put since the last commit."""
        return written_bytes(self._pending)

    def changelog(self) -> Iterator[ChangelogRecord]:
        """One record per value put since the last commit, at the value's time, in the order of the puts."""
        return (ChangelogRecord(key, data, self._segments.time_of(key)) for key, data in self._pending.items())

    def pending(self) -> Puts:
        """Return the pending writes as the backend wants them."""
        return self._puts(self._pending.items(), self.first_kept) if self._pending else {}

    def committed(self) -> None:
        """The pending writes are in the backend; segments of which everything has expired are dropped."""
        self._pending, self._pending_of_key = {}, {}
        self._segments.drop_before(self.first_kept)

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Changelog records as the backend wants them; what has expired is left out."""
        entries = [(key, value) for key, value in zip(batch.keys(), batch.values(), strict=True) if value is not None]
        if not entries:
            return {}
        self._observed = max(self._observed, *(self._segments.time_of(key) for key, _ in entries))
        self._sequence = _SUFFIX.unpack(entries[-1][0][-_SUFFIX.size :])[1]
        first = self.first_kept
        kept = [(key, data) for key, data in entries if self._segments.time_of(key) >= first]
        return self._puts(kept, first)

    def _puts(self, entries: Iterable[tuple[bytes, bytes]], first_kept: int) -> Puts:
        state: dict[bytes, bytes | None] = {_STATE_KEY: _SUFFIX.pack(self._observed, self._sequence)}
        return {self._state_table: state, **self._segments.puts(entries, first_kept)}

    def _stored(self, raw: bytes, lower: bytes, upper: bytes, time_from: int, time_to: int) -> Iterator[Entry]:
        size = len(raw)
        for table in self._segments.between(time_from, time_to):
            for key, data in table.scan(raw + lower, raw + upper):
                if len(key) == size + _SUFFIX.size and key.startswith(raw):  # else a longer key that sorts in between
                    yield key[size:], data

    def _pending_between(self, raw: bytes, lower: bytes, upper: bytes) -> list[Entry]:
        entries = self._pending_of_key.get(raw)
        if not entries:
            return []
        return entries[bisect_left(entries, (lower, b"")) : bisect_left(entries, (upper, b""))]

    @property
    def first_kept(self) -> int:
        """The time (ms) before which all has been forgotten."""
        return self._observed - self._retention_ms + 1


if TYPE_CHECKING:
    _store: type[StateStore] = JoinWindowStateStore
