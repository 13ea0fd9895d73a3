"""The common part of stores with windows and sessions: entries that are cut into segments, and expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.state.codec import codec_of
from riverrun.state.entries.retention import Retention
from riverrun.state.entries.segments import Segments
from riverrun.state.stores.core import StoreCore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.state.api import ChangelogBatch, Puts, StateBackend, StoreBuilder, UpdateContext


class SegmentedCore:
    """A store's segments, the times that it keeps, and its writes since the last commit.

    Each store has one, and lets the task use it.

    Args:
        builder: The store.
        backend: The backend with its tables.
        context: The record being processed, and the limit of values kept for the next read.
        suffix_bytes: Length of the part of an entry's key behind the user's key; it begins with the time (ms) that expires.
        span_ms: Entries are kept above the highest time ever put, less this span, ms.
    """

    __slots__ = ("codec", "kept", "segments", "writes")

    def __init__(
        self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext, suffix_bytes: int, span_ms: int
    ) -> None:
        """Find the existing segments."""
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
        """Return the pending writes in the backend's form."""
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
