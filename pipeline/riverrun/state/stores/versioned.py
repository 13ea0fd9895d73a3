"""Versioned stores: all values of a key with the times from which they are valid, within the history (KIP-889)."""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.records import VersionedRecord
from riverrun.state.api import ChangelogRecord
from riverrun.state.cache import ENTRY_OVERHEAD_BYTES
from riverrun.state.codec import stored_keys
from riverrun.state.entries import WRITE_OVERHEAD_BYTES, prefix_end, written_bytes
from riverrun.state.store_types import PUT_RETURN_CODE_NOT_PUT, PUT_RETURN_CODE_VALID_TO_UNDEFINED
from riverrun.state.values import stored_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from riverrun.state.api import (
        ChangelogBatch,
        FlushListener,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )
    from riverrun.state.store_types import VersionedKeyValueStore

_LENGTH = struct.Struct(">i")
_TIME = struct.Struct(">q")
_DELETED, _VALUE = b"\0", b"\1"
# Rows of the second table: the ends of versions, by time and key, and the highest timestamp ever put.
_END, _OBSERVED = b"e", b"o"


class Version(NamedTuple):
    """The value of a key from a time on; None is a deletion."""

    timestamp: int
    data: bytes | None


class VersionedStateStore:
    """A store of one task: `VersionedKeyValueStore` for processors, `StateStore` for the task.

    One row per version: `int32 length of key ++ key ++ int64 timestamp`, ordered by time within a key. A version that ended
    before the history begins is removed when its key is put next, or at a commit. The latest value of a key stays for ever.

    `put` and `get` return the results of `RocksDBVersionedStore`, without its segments: the history ends at the millisecond.
    """

    def __init__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> None:
        self.name = builder.name
        self.expired_puts = 0
        self._retention_ms = builder.retention_ms
        self._keys, self._values = stored_keys(builder), stored_values(builder)
        self._context = context
        self._rows = backend.table(builder.name)
        self._ends_name = f"{builder.name}.ends"
        self._ends = backend.table(self._ends_name)
        # The versions of a key are read once between two commits.
        self._histories: dict[bytes, list[Version]] = {}
        # Not the writes of `StoreCore`, of which each key has one: each put is a changelog record, and changes two tables.
        self._pending: dict[bytes, bytes | None] = {}
        self._pending_ends: dict[bytes, bytes | None] = {}
        self._log: list[ChangelogRecord] = []
        observed = self._ends.get(_OBSERVED)
        self._observed: int = -1 if observed is None else _TIME.unpack(observed)[0]

    def put(self, key: Any, value: Any, timestamp: int) -> int:
        raw, data = self._keys.written(key), None if value is None else self._values.encode(key, value)
        valid_to = self._put(raw, data, timestamp)
        if valid_to != PUT_RETURN_CODE_NOT_PUT:
            self._log.append(ChangelogRecord(raw, data, timestamp))
        return valid_to

    def delete(self, key: Any, timestamp: int) -> VersionedRecord[Any] | None:
        if timestamp < self._first_kept():
            self.expired_puts += 1
            return None
        known = self.get(key, timestamp)
        self.put(key, None, timestamp)
        return known

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord[Any] | None:
        versions = self._history(self._keys.written(key))
        if not versions:
            return None
        latest = len(versions) - 1
        if as_of is None or versions[latest].timestamp <= as_of:
            return self._record(key, versions, latest)
        if as_of < self._first_kept():
            return None
        at = _index_at(versions, as_of)
        return None if at < 0 else self._record(key, versions, at)

    def all_versions(self) -> Iterator[tuple[Any, VersionedRecord[Any]]]:
        """Yield all versions that `get` could return, key by key, the oldest first, as of the last commit."""
        first = self._first_kept()
        for raw, versions in groupby(self._rows.scan(None, None), lambda row: row[0][_LENGTH.size : -_TIME.size]):
            history = [_version(row, data) for row, data in versions]
            found = (self._record(raw, history, at) for at in range(len(history)))
            for record in found:
                if record is not None and (record.valid_to is None or record.valid_to > first):
                    yield self._keys.read(raw), record

    def times(self) -> tuple[int, ...]:
        """Return the highest timestamp ever put, also if the changelog has lost that version."""
        return (self._observed,)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from committed times: expired puts stay expired."""
        self._observed = max(self._observed, times[0])

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:  # noqa: ARG002 - the contract
        """Return False: this store holds no updates back."""
        return False

    def flush(self) -> None:
        """Do nothing: this store holds no updates back."""

    def held_back_bytes(self) -> int:
        return written_bytes(self._pending) + len(self._log) * WRITE_OVERHEAD_BYTES

    def changelog(self) -> Iterator[ChangelogRecord]:
        """Return all writes since the last commit, in order: each is a version."""
        return iter(self._log)

    def pending(self) -> Puts:
        """Return the rows that have changed since the last commit."""
        puts: Puts = {}
        if self._pending:
            puts[self.name] = self._pending
        if self._pending_ends:
            puts[self._ends_name] = self._pending_ends
        return puts

    def committed(self) -> None:
        """Forget the pending rows, which are in the backend. Versions beyond the history are deleted at the next commit."""
        self._pending, self._pending_ends, self._log, self._histories = {}, {}, [], {}
        for end_key, _ in list(self._ends.scan(_END, _END + _TIME.pack(max(0, self._first_kept() + 1)))):
            raw = end_key[len(_END) + _TIME.size :]
            self._trim(raw, self._history(raw))
            self._pending_ends[end_key] = None

    def forget_reads(self, limit_bytes: int | None = None) -> None:
        """Forget versions that were read, unless there are pending writes, if all of them exceed a limit."""
        limit_bytes = self._context.kept_bytes if limit_bytes is None else limit_bytes
        # With pending writes, the backend does not have the latest versions yet.
        if not self._log and len(self._histories) * ENTRY_OVERHEAD_BYTES > limit_bytes:
            self._histories.clear()

    def restore(self, batch: ChangelogBatch) -> Puts:
        for key, value, timestamp in zip(batch.keys(), batch.values(), batch.timestamps(), strict=True):
            self._put(key, value, timestamp)
        puts = self.pending()
        self._pending, self._pending_ends, self._histories = {}, {}, {}
        return puts

    def _put(self, raw: bytes, data: bytes | None, timestamp: int) -> int:
        if timestamp < self._first_kept():
            self.expired_puts += 1
            return PUT_RETURN_CODE_NOT_PUT
        if timestamp > self._observed:
            self._observed = timestamp
            self._pending_ends[_OBSERVED] = _TIME.pack(timestamp)
        versions = self._history(raw)
        at = _index_at(versions, timestamp)
        replaces = at >= 0 and versions[at].timestamp == timestamp
        below = at - 1 if replaces else at
        is_latest = at == len(versions) - 1
        deletes_latest = replaces and is_latest and data is None and versions[at].data is not None
        if deletes_latest and (below < 0 or versions[below].data is None):
            # Kafka Streams keeps such a deletion as the end of the earlier value; without one, it keeps nothing.
            del versions[at]
            self._pending[_row_key(raw, timestamp)] = None
        else:
            versions[below + 1 : at + 1] = [Version(timestamp, data)]
            self._pending[_row_key(raw, timestamp)] = _DELETED if data is None else _VALUE + data
        self._note_ends(raw, versions, below + 1)
        valid_to = PUT_RETURN_CODE_VALID_TO_UNDEFINED if is_latest else versions[below + 2].timestamp
        self._trim(raw, versions)
        return valid_to

    def _note_ends(self, raw: bytes, versions: list[Version], changed: int) -> None:
        """Note when the versions around a changed one end, in case their key is never put again."""
        if 0 < changed < len(versions) or (changed < len(versions) and versions[changed].data is None):
            self._pending_ends[_END + _TIME.pack(versions[changed].timestamp) + raw] = b""
        if changed + 1 < len(versions):
            self._pending_ends[_END + _TIME.pack(versions[changed + 1].timestamp) + raw] = b""

    def _trim(self, raw: bytes, versions: list[Version]) -> None:
        """Remove versions that ended before the history begins; deletions end when they begin."""
        first = self._first_kept()
        while versions:
            has_ended = versions[1].timestamp <= first if len(versions) > 1 else False
            if not has_ended and (versions[0].data is not None or versions[0].timestamp > first):
                return
            self._pending[_row_key(raw, versions.pop(0).timestamp)] = None

    def _record(self, key: Any, versions: list[Version], at: int) -> VersionedRecord[Any] | None:
        timestamp, data = versions[at]
        if data is None:
            return None
        valid_to = versions[at + 1].timestamp if at + 1 < len(versions) else None
        return VersionedRecord(self._values.read(key, data), timestamp, valid_to)

    def _history(self, raw: bytes) -> list[Version]:
        """Return all versions of a key, oldest first."""
        versions = self._histories.get(raw)
        if versions is None:
            prefix = _LENGTH.pack(len(raw)) + raw
            found = self._rows.scan(prefix, prefix_end(prefix))
            versions = [_version(row, data) for row, data in found]
            self._histories[raw] = versions
        return versions

    def _first_kept(self) -> int:
        return self._observed - self._retention_ms


def _version(row: bytes, data: bytes) -> Version:
    return Version(_TIME.unpack_from(row, len(row) - _TIME.size)[0], data[1:] if data[:1] == _VALUE else None)


def _index_at(versions: list[Version], timestamp: int) -> int:
    """Return the index of the version valid at a time; -1 before the first."""
    return bisect_right(versions, timestamp, key=lambda version: version.timestamp) - 1


def _row_key(raw: bytes, timestamp: int) -> bytes:
    return _LENGTH.pack(len(raw)) + raw + _TIME.pack(timestamp)


_store: type[StateStore] = VersionedStateStore
_versioned: type[VersionedKeyValueStore[Any, Any]] = VersionedStateStore
