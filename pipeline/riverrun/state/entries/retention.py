"""Decides which entries a store with retention keeps and accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverrun.state.entries.segments import Segments


class Retention:
    """The times of kept entries: those above the highest time ever put, less a span.

    Readers and writers of an entry with `first <= time < end` need not call any method here.

    Args:
        segments: The store's entries.
        span_ms: Length of the span, ms.

    Attributes:
        first: The first time (ms) that is kept; above `end` as long as it is unknown.
        end: Times from here on (ms) are kept as well, and move `first`.
        refused: Number of times that `takes` has refused.
    """

    __slots__ = ("_resumed", "_segments", "_span_ms", "end", "first", "refused")

    def __init__(self, segments: Segments, span_ms: int) -> None:
        """Prepare; the segments are read at the first use, as the changelog may be restored until then."""
        self._segments = segments
        self._span_ms = span_ms
        self._resumed = -1
        self.refused = 0
        self.forget()

    def find_first(self) -> int:
        """Return the first time (ms) that is kept; reads the segments after the store was opened or restored."""
        if self.first > self.end:
            self._end_after(max(self._segments.highest_time(), self._resumed))
        return self.first

    @property
    def highest(self) -> int:
        """The highest time ever put, ms, as far as it is known; -1 if unknown."""
        return self._resumed if self.first > self.end else self.end - 1

    def resume(self, highest: int) -> None:
        """Continue from the highest time (ms) ever put in an earlier owner's store; its entry may have been deleted since."""
        self._resumed = highest
        self.forget()

    def takes(self, time: int) -> bool:
        """Return whether an entry of a time (ms) may be written; refusals are counted."""
        if time < self.find_first():
            self.refused += 1
            return False
        if time >= self.end:
            self._end_after(time)
        return True

    def forget(self) -> None:
        """Forget the highest time, after a restore: it is determined again."""
        self.first, self.end = 0, -1

    def _end_after(self, highest: int) -> None:
        self.end = highest + 1
        self.first = self.end - self._span_ms
