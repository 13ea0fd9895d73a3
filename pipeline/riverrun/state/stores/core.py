"""The common parts of stores: writes since the last commit, the cache in front of them, and segments that expire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from riverrun.state.cache import NamedCache, stored_time
from riverrun.state.codec import codec_of
from riverrun.state.entries import written_bytes
from riverrun.state.segments import Retention, Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.state.api import (
        ChangelogBatch,
        ChangelogRecord,
        FlushListener,
        Puts,
        StateBackend,
        StoreBuilder,
        UpdateContext,
    )
    from riverrun.state.cache import CacheEntry
    from riverrun.state.codec import ValueCodec


class ChangelogCodec(Protocol):
    """Converts stored bytes to changelog records, and back (`ValueCodec`)."""

    def to_changelog(
        self, writes: Mapping[bytes, bytes | None], times: Mapping[bytes, int]
    ) -> Iterator[ChangelogRecord]:
        """Return stored bytes by key as changelog records; `times` (ms) are those of the updates."""

    def from_changelog(self, batch: ChangelogBatch) -> Iterable[bytes | None]:
        """Return the values of changelog records as stored bytes."""


class StoreCore:
    """The writes of a store since the last commit, with the cache that holds updates back before they are written."""

    __slots__ = ("_codec", "_context", "_read", "cache", "pending", "times")

    def __init__(self, codec: ChangelogCodec, read: Callable[[bytes], bytes | None], context: UpdateContext) -> None:
        # Stored bytes by store key; None deletes. Each commit replaces the dict, so functions must not keep it.
        self.pending: dict[bytes, bytes | None] = {}
        # The time (ms) of the last record that wrote each pending key.
        self.times: dict[bytes, int] = {}
        self.cache: NamedCache | None = None
        self._codec = codec
        self._read = read
        self._context = context

    def hold_back(
        self,
        codec: ValueCodec,
        pause: Callable[[], None],
        time_of: Callable[[CacheEntry], int] = stored_time,
        stored: Callable[[bytes], bytes | None] | None = None,
        write: Callable[[bytes, bytes | None, int], None] | None = None,
    ) -> NamedCache:
        """Put a cache in front of the store that holds updates back, and return it.

        `stored` and `write` access a key below the cache; they default to those of this object.
        """
        writes_at_once = self._context.keeps_sources
        self.cache = NamedCache(codec, stored or self.stored, write or self.write, time_of, pause, writes_at_once)
        return self.cache

    def stored(self, store_key: bytes) -> bytes | None:
        """Return the bytes that the store holds without the cache, or None."""
        pending = self.pending
        return pending[store_key] if store_key in pending else self._read(store_key)

    def write(self, store_key: bytes, data: bytes | None, timestamp: int) -> None:
        """Write bytes below the cache; None deletes. `timestamp` is the time of the causing record, ms."""
        self.pending[store_key] = data
        self.times[store_key] = timestamp

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:
        """Forward held-back updates to `listener`; return False without a cache."""
        if self.cache is None:
            return False
        self.cache.listen(listener, send_old_values=send_old_values)
        return True

    def flush(self) -> None:
        if self.cache is not None:
            self.cache.flush()

    def held_back_bytes(self) -> int:
        held_back = self.cache.dirty_bytes() if self.cache is not None else 0
        return held_back + written_bytes(self.pending)

    def changelog(self) -> Iterator[ChangelogRecord]:
        """Return one record per key written since the last commit."""
        return self._codec.to_changelog(self.pending, self.times)

    def committed(self) -> None:
        self.pending, self.times = {}, {}

    def forget_reads(self, limit_bytes: int | None = None) -> None:
        """Forget decoded values that are not held back, if they exceed a limit."""
        if self.cache is not None:
            self.cache.drop_clean(self._context.kept_bytes if limit_bytes is None else limit_bytes)

    def restored(self, batch: ChangelogBatch) -> Iterator[tuple[bytes, bytes | None]]:
        """Return changelog records as the store holds them, by key."""
        return zip(batch.keys(), self._codec.from_changelog(batch), strict=True)


class SegmentedCore:
    """A store's segments, the times that it keeps, and its writes since the last commit.

    Args:
        suffix_bytes: Length of the part of an entry's key after the user's key; it begins with the time (ms) that expires.
        span_ms: Entries are kept above the highest time ever put, less this span, ms.
    """

    __slots__ = ("codec", "kept", "segments", "writes")

    def __init__(
        self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext, suffix_bytes: int, span_ms: int
    ) -> None:
        self.codec = codec_of(builder)
        self.segments = Segments(builder.name, builder.retention_ms, backend, suffix_bytes)
        self.kept = Retention(self.segments, span_ms)
        self.writes = StoreCore(self.codec, self.segments.find, context)

    def times(self) -> tuple[int, ...]:
        """Return the highest time ever put, ms, also if its entry has been deleted."""
        return (self.kept.highest,)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from committed times: expired entries stay expired."""
        self.kept.resume(times[0])

    def pending(self) -> Puts:
        return self.segments.puts(self.writes.pending.items(), self.kept.find_first())

    def committed(self) -> None:
        """Forget the pending writes, which are in the backend, and drop segments with only expired entries."""
        self.writes.committed()
        self.segments.drop_before(self.kept.find_first())

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Convert changelog records to the backend's form; the first commit drops expired ones."""
        entries = dict(self.writes.restored(batch))
        self.kept.forget()
        return self.segments.puts(entries.items())
