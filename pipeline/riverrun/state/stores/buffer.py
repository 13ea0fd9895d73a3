"""The buffer of `suppress`: the last update of each key, in order of the time at which the key was first buffered."""

from __future__ import annotations

import struct
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.errors import CorruptStateError
from riverrun.records import Change, RecordMetadata
from riverrun.state.api import ChangelogRecord
from riverrun.state.codec import stored_keys
from riverrun.state.entries import WRITE_OVERHEAD_BYTES
from riverrun.state.values import stored_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.records import Headers
    from riverrun.state.api import (
        ChangelogBatch,
        FlushListener,
        Puts,
        StateBackend,
        StateStore,
        StoreBuilder,
        UpdateContext,
    )
    from riverrun.state.store_types import ChangeBuffer

# The layout's version, on every value in the changelog (`InMemoryTimeOrderedKeyValueChangeBuffer`).
CHANGELOG_HEADERS: Headers = (("v", b"\x03"),)
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_TIME_AND_OFFSET = struct.Struct(">qq")
_PARTITION_AND_HEADERS = struct.Struct(">ii")
_NULL = -1
_SAME_AS_PRIOR = -2
# Size of an entry besides its bytes: buffer time, timestamp, offset, partition.
_FIXED_BYTES = 8 + 8 + 8 + 4


class BufferedChange(NamedTuple):
    """The last update of a key while it waits (`BufferValue`), with the context of its record.

    Args:
        buffer_time: Event time at which the key was first buffered, or the end of its window, ms.
        prior: The value that downstream knows: the one that the first update replaced.
        old: The value that the last update replaced.
        new: The value that the last update set.
        timestamp: Event time of the last update, ms.
        metadata: Origin of its record; None within a punctuation.
    """

    buffer_time: int
    prior: bytes | None
    old: bytes | None
    new: bytes | None
    timestamp: int
    headers: Headers
    metadata: RecordMetadata | None

    def size_bytes(self) -> int:
        """Return the size that counts against a limit, without the key, bytes (`residentMemorySizeEstimate`)."""
        values = len(self.prior or b"") + len(self.new or b"")
        if self.old is not None and self.old != self.prior:
            values += len(self.old)
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return _FIXED_BYTES + values + headers + len(self.metadata.topic if self.metadata is not None else "")

    def encode(self) -> bytes:
        """Return record context, prior, old and new value, and buffer time as bytes (`BufferValue.serialize`)."""
        topic, partition, offset = self.metadata or ("", -1, -1)
        name = topic.encode()
        parts = [_TIME_AND_OFFSET.pack(self.timestamp, offset), _INT.pack(len(name)), name]
        parts.append(_PARTITION_AND_HEADERS.pack(partition, len(self.headers)))
        for header, value in self.headers:
            parts += [_prefixed(header.encode()), _prefixed(value)]
        same = self.old is not None and self.old == self.prior
        parts += [_prefixed(self.prior), _INT.pack(_SAME_AS_PRIOR) if same else _prefixed(self.old)]
        return b"".join([*parts, _prefixed(self.new), _LONG.pack(self.buffer_time)])

    @classmethod
    def decode(cls, data: bytes) -> BufferedChange:
        """Read a buffered change from bytes."""
        try:
            return _decoded(data)
        except (struct.error, UnicodeDecodeError) as error:
            message = f"A buffered change of {len(data)} bytes cannot be read: {error}"
            raise CorruptStateError(
                message, hint="Delete the state directory: it is restored from changelogs."
            ) from error


class SuppressionBuffer:
    """A buffer of one task: `ChangeBuffer` for the operator, `StateStore` for the task.

    All of it is in memory (`InMemoryTimeOrderedKeyValueChangeBuffer`); the backend and the changelog have it as of the last
    commit.
    """

    def __init__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> None:
        self.name = builder.name
        self.expired_puts = 0  # this store expires nothing
        self._context = context
        self._keys, self._values = stored_keys(builder), stored_values(builder)
        self._table = backend.table(builder.name)
        # Read at the first use, as the changelog may be restored until then.
        self._loaded: dict[bytes, BufferedChange] | None = None
        self._order: list[tuple[int, bytes]] = []
        # Only the keys, with the times of their changes, unlike the encoded writes of `StoreCore`: entries are encoded at the
        # commit, as most of them change or leave before.
        self._changed: dict[bytes, int] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries())

    @property
    def size_bytes(self) -> int:
        """Size of all buffered updates, bytes."""
        self._entries()
        return self._size_bytes

    @property
    def first_time(self) -> int | None:
        self._entries()
        return self._order[0][0] if self._order else None

    def put(self, buffer_time: int, key: Any, change: Change[Any], timestamp: int, headers: Headers) -> None:
        raw, entries = self._keys.written(key), self._entries()
        # As bytes: an aggregate that is changed in place later must not change what is buffered.
        old, new = self._encoded(key, change.old), self._encoded(key, change.new)
        known = entries.get(raw)
        if known is None:
            # The first update replaces the value that downstream knows.
            prior = old
            heappush(self._order, (buffer_time, raw))
            self._size_bytes += len(raw)
        else:
            buffer_time, prior = known.buffer_time, known.prior
            self._size_bytes -= known.size_bytes()
        metadata = self._context.record_metadata
        entry = entries[raw] = BufferedChange(buffer_time, prior, old, new, timestamp, headers, metadata)
        self._size_bytes += entry.size_bytes()
        self._changed[raw] = self._context.timestamp

    def pop(self) -> tuple[Any, Change[Any], BufferedChange]:
        """Remove and return the first key as `(key, change, entry)`; among equal times, the lowest serialized key is first."""
        entries = self._entries()
        _, raw = heappop(self._order)
        entry = entries.pop(raw)
        self._size_bytes -= entry.size_bytes() + len(raw)
        self._changed[raw] = self._context.timestamp
        return self._keys.read(raw), Change(self._decoded(raw, entry.new), self._decoded(raw, entry.old)), entry

    def prior_value(self, key: Any) -> tuple[bool, Any]:
        """Return whether the key is buffered, and the value that downstream knows meanwhile."""
        entry = self._entries().get(self._keys.written(key))
        return (False, None) if entry is None else (True, self._decoded(key, entry.prior))

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:  # noqa: ARG002 - nothing to listen to
        """Return False: the operator itself removes the updates that it forwards."""
        return False

    def flush(self) -> None:
        """Do nothing: buffered updates wait for their time, not for the commit."""

    def held_back_bytes(self) -> int:
        # Not of the buffer: an early commit would not make it smaller.
        return len(self._changed) * WRITE_OVERHEAD_BYTES

    def changelog(self) -> Iterator[ChangelogRecord]:
        """Yield one record per key that was buffered or taken out since the last commit."""
        times = self._changed
        for raw, data in self._writes():
            yield ChangelogRecord(raw, data, times[raw], () if data is None else CHANGELOG_HEADERS)

    def pending(self) -> Puts:
        return {self.name: dict(self._writes())} if self._changed else {}

    def committed(self) -> None:
        self._changed = {}

    def restore(self, batch: ChangelogBatch) -> Puts:
        puts = {}
        for key, value, headers in zip(batch.keys(), batch.values(), batch.headers(), strict=True):
            if value is not None and CHANGELOG_HEADERS[0] not in headers:
                message = f"A record in the changelog of {self.name} does not have layout version 3"
                raise CorruptStateError(
                    message, hint="Another program has written it: give this application another name."
                )
            puts[key] = value
        return {self.name: puts}

    def _entries(self) -> dict[bytes, BufferedChange]:
        if self._loaded is None:
            self._loaded = {raw: BufferedChange.decode(data) for raw, data in self._table.scan(None, None)}
            self._order = [(entry.buffer_time, raw) for raw, entry in self._loaded.items()]
            heapify(self._order)
            self._size_bytes = sum(len(raw) + entry.size_bytes() for raw, entry in self._loaded.items())
        return self._loaded

    def _writes(self) -> Iterator[tuple[bytes, bytes | None]]:
        entries = self._entries()
        for raw in self._changed:
            entry = entries.get(raw)
            yield raw, None if entry is None else entry.encode()

    def _encoded(self, key: Any, value: Any) -> bytes | None:
        return None if value is None else self._values.written(key, value)

    def _decoded(self, key: Any, data: bytes | None) -> Any:
        return None if data is None else self._values.read(key, data)


def _prefixed(data: bytes | None) -> bytes:
    return _INT.pack(_NULL) if data is None else _INT.pack(len(data)) + data


def _decoded(data: bytes) -> BufferedChange:
    timestamp, offset = _TIME_AND_OFFSET.unpack_from(data)
    topic, at = _read(data, _TIME_AND_OFFSET.size)
    partition, count = _PARTITION_AND_HEADERS.unpack_from(data, at)
    at += _PARTITION_AND_HEADERS.size
    headers = []
    for _ in range(count):
        name, at = _read(data, at)
        value, at = _read(data, at)
        headers.append(((name or b"").decode(), value))
    prior, at = _read(data, at)
    if _INT.unpack_from(data, at)[0] == _SAME_AS_PRIOR:
        old, at = prior, at + _INT.size
    else:
        old, at = _read(data, at)
    new, at = _read(data, at)
    (buffer_time,) = _LONG.unpack_from(data, at)
    metadata = RecordMetadata(topic.decode(), partition, offset) if topic else None
    return BufferedChange(buffer_time, prior, old, new, timestamp, tuple(headers), metadata)


def _read(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return bytes that follow their length, and the position after them."""
    (length,) = _INT.unpack_from(data, at)
    at += _INT.size
    return (None, at) if length == _NULL else (data[at : at + length], at + length)


_store: type[StateStore] = SuppressionBuffer
_buffer: type[ChangeBuffer[Any, Any]] = SuppressionBuffer
