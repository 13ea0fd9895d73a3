"""Measures how late a task's records are: how far their event times lie behind its stream time (`record-lateness`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAXIMA = 32
"""Maxima kept. Of more, the oldest are merged, so that a maximum may be reported as later than it was, but never missed."""


@dataclass(slots=True)
class Lateness:
    """The lateness of all records of a task since it was taken over.

    >>> lateness = Lateness()
    >>> lateness.add([40, 10], now_ms=1)
    >>> lateness.add([30], now_ms=2)
    >>> lateness
    Lateness(total_ms=80, maxima=[(1, 40), (2, 30)])

    Args:
        total_ms: Sum over all records, ms.
        maxima: For each wall-clock time that matters, the time and the highest lateness of records from then on, ms. The
            lateness falls from one to the next, so the first at or after a time has the maximum since that time.
    """

    total_ms: int = 0
    maxima: list[tuple[int, int]] = field(default_factory=list)

    def add(self, behind: Sequence[int], now_ms: int) -> None:
        """Add records that were late.

        Args:
            behind: Their lateness, ms; one or more.
            now_ms: The present time of the wall clock, ms.
        """
        self.total_ms += sum(behind)
        highest, maxima = max(behind), self.maxima
        while maxima and maxima[-1][1] <= highest:
            maxima.pop()
        if not maxima or maxima[-1][0] < now_ms:
            maxima.append((now_ms, highest))
        if len(maxima) > _MAXIMA:
            maxima[:2] = [(maxima[1][0], maxima[0][1])]
