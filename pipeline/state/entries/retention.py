"""Tells which rows a store that forgets still keeps and takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.state.entries.segments import Segments


class Retention:
    """The times of entries that are kept: those above the highest time ever put, less a span.

    A reader or writer of an entry of a time with `first <= time < end` need not call anything here.

    Args:
        segments: The store's entries.
        span_ms: How far back they are kept.

    Attributes:
        first: The first time (ms) that is kept; above `end` before it was found out.
        end: Times from here on (ms) are kept as well, and move `first`.
        refused: How many times `takes` has refused.
    """

    __slots__ = ("_resumed", "_segments", "_span_ms", "end", "first", "refused")

    def __init__(self, segments: Segments, span_ms: int) -> None:
        """The segments are asked at the first use: until then the changelog may be restored."""
        self._segments = segments
        self._span_ms = span_ms
        self._resumed = -1
        self.refused = 0
        self.forget()

    def find_first(self) -> int:
        """The first time (ms) that is kept; asked of the segments after the store was opened or restored."""
        if self.first > self.end:
            self._end_after(max(self._segments.highest_time(), self._resumed))
        return self.first

    @property
    def highest(self) -> int:
        """The highest time ever put, ms, as far as that has been found out; -1 if it has not."""
        return self._resumed if self.first > self.end else self.end - 1

    def resume(self, highest: int) -> None:
        """Go on from the highest time (ms) that a predecessor was given; its entry may have been deleted since."""
        self._resumed = highest
        self.forget()

    def takes(self, time: int) -> bool:
        """Whether an entry of a time (ms) may be written; if not, that is counted."""
        if time < self.find_first():
            self.refused += 1
            return False
        if time >= self.end:
            self._end_after(time)
        return True

    def forget(self) -> None:
        """Entries were restored: the content has to be determined again."""
        self.first, self.end = 0, -1

    def _end_after(self, highest: int) -> None:
        self.end = highest + 1
        self.first = self.end - self._span_ms
