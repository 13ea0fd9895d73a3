"""Key-value stores of processors whose rows expire: each row is deleted when it has not been written for a time."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from riverrun.state.api import StoreKind, idle
from riverrun.state.stores.key_value import KeyValueStateStore
from riverrun.state.waiting_rows import WaitingRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun.state.api import ChangelogBatch, Puts, StateBackend, StateStore, StoreBuilder, UpdateContext

_TIME = struct.Struct(">q")


class ExpiringKeyValueStore(KeyValueStateStore):
    """A key-value store whose rows live for `ttl_ms` after their last write; reads do not prolong it.

    The time of a write is the task's stream time. Rows with times (`ValueAndTimestamp`) live from these. The changelog has
    the time of a write as the time of its record, and the time of expiry as that of a deletion. The keys of all rows are in
    memory, with the times of their writes.
    """

    def __init__(
        self,
        builder: StoreBuilder,
        backend: StateBackend,
        context: UpdateContext,
        pause: Callable[[], None] = idle,
    ) -> None:
        super().__init__(builder, backend, context, pause)
        self._ttl_ms = builder.ttl_ms or 0
        self._have_times = builder.kind is StoreKind.TIMESTAMPED_KEY_VALUE
        # Next to the rows, not in them: rows of a store that had no `ttl` before can be read.
        self._times_in = f"{builder.name}/times"
        self._stored_times = backend.table(self._times_in)
        self._new_times: dict[bytes, bytes | None] = {}
        self._is_loaded = False
        # By store key, the time of a row's last write, ms.
        self._written: dict[bytes, int] = {}
        self._waiting = WaitingRows()
        # The time of the first row that may expire; 0 until the rows are loaded, so that the first access loads them.
        self._next_ms = 0

    def get(self, key: Any) -> Any:
        self._expire()
        return super().get(key)

    def put(self, key: Any, value: Any) -> None:
        """Set the value, which lives from now on, or from its own time; None deletes."""
        self._load()
        self._expire()
        super().put(key, value)
        store_key = self._keys.written(key)
        if value is None:
            self._written.pop(store_key, None)
            self._note_time(store_key, None)
            return
        time_ms = self._time_of(value)
        self._written[store_key] = time_ms
        self._note_time(store_key, time_ms)
        self._waiting.add(store_key, time_ms + self._ttl_ms)
        self._next_ms = self._waiting.next_ms

    def flush(self) -> None:
        """Delete the rows that have expired, and pass held-back updates to the listener."""
        self._expire()
        super().flush()

    def pending(self) -> Puts:
        times: Puts = {self._times_in: self._new_times} if self._new_times else {}
        return {**super().pending(), **times}

    def committed(self) -> None:
        super().committed()
        self._new_times = {}

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Convert changelog records to the backend's form; their times are those of the writes."""
        self._is_loaded, self._next_ms = False, 0
        puts = super().restore(batch)
        if not self._have_times:
            rows = zip(batch.keys(), batch.values(), batch.timestamps(), strict=True)
            puts[self._times_in] = {key: None if value is None else _TIME.pack(time) for key, value, time in rows}
        return puts

    def _scan_bytes(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._expire()
        return super()._scan_bytes(lower, upper, reverse=reverse)

    def _time_of(self, value: Any) -> int:
        """Return the time from which a value lives, ms."""
        if self._have_times:
            return int(value[1])
        # Before the first record there is no stream time. The context's time is then that of the host's clock.
        context = self._context
        return context.timestamp if context.stream_time < 0 else context.stream_time

    def _note_time(self, store_key: bytes, time_ms: int | None) -> None:
        """Note the time of a row's write, for its record in the changelog and next to the row; None for a deletion."""
        if self._have_times:
            return
        self._new_times[store_key] = None if time_ms is None else _TIME.pack(time_ms)
        if time_ms is not None:
            self._date(store_key, time_ms)

    def _date(self, store_key: bytes, time_ms: int) -> None:
        """Set the time (ms) of the changelog's record about the last update of a key."""
        if self._cache is None:
            self._core.times[store_key] = time_ms
        else:
            self._cache.entries[store_key].timestamp = time_ms

    def _expire(self) -> None:
        """Delete the rows that stream time has passed, in the order of their expiry, then of the bytes of their keys."""
        # At each access and each commit: nobody reads an expired row, and a commit has the deletions up to its stream time,
        # wherever commits are.
        now_ms = self._context.stream_time
        if now_ms < self._next_ms:
            return
        self._load()
        for looked_at_ms, store_key in self._waiting.due(now_ms):
            written_ms = self._written.get(store_key)
            if written_ms is None:
                continue
            due_ms = written_ms + self._ttl_ms
            # A row that was written again waits for its new time.
            if due_ms == looked_at_ms:
                self._delete(store_key, due_ms)
            else:
                self._waiting.add(store_key, due_ms)
        self._next_ms = self._waiting.next_ms

    def _delete(self, store_key: bytes, due_ms: int) -> None:
        del self._written[store_key]
        if self._cache is None:
            self._core.write(store_key, None, due_ms)
        else:
            self._cache.put(store_key, self._key_of(store_key), None, self._context)
            self._date(store_key, due_ms)
        if not self._have_times:
            self._new_times[store_key] = None

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        self._written = dict(self._times_of_rows())
        due = {store_key: time_ms + self._ttl_ms for store_key, time_ms in self._written.items()}
        self._waiting = WaitingRows(due)
        self._next_ms = self._waiting.next_ms

    def _times_of_rows(self) -> Iterator[tuple[bytes, int]]:
        """Yield the keys of all rows, with the times of their last writes, ms."""
        if self._have_times:
            for store_key, data in self._table.scan(None, None):
                yield store_key, _TIME.unpack_from(data)[0]
            return
        times: Mapping[bytes, bytes] = dict(self._stored_times.scan(None, None))
        for store_key, _ in self._table.scan(None, None):
            known = times.get(store_key)
            if known is None:
                # Written when the store had no `ttl`: the row lives from when it is first seen.
                known = self._new_times[store_key] = _TIME.pack(self._time_of(None))
            yield store_key, _TIME.unpack(known)[0]


_store: type[StateStore] = ExpiringKeyValueStore
