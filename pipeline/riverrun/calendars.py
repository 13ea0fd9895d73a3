"""Borders of days and months on the clocks of a time zone, as event times (ms since the epoch)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from riverrun.records import EPOCH

if TYPE_CHECKING:
    from typing import Literal

_MS = timedelta(milliseconds=1)
_FIRST_MONDAY = datetime(1970, 1, 5)  # noqa: DTZ001 - local times have no zone
# Dates end with the year 9999. The last stretch has no end.
_LAST_MS = (datetime(9998, 1, 1, tzinfo=EPOCH.tzinfo) - EPOCH) // _MS
_NO_END_MS = 2**63 - 1
# Borders are found together for each stretch of this length.
_BLOCK_MS = timedelta(days=400) // _MS


class Calendar:
    """Stretches of event time between borders on local clocks, which follow each other without gaps.

    A border is the first instant at which clocks show its local time or a later one. So there is one where clocks leave out
    midnight, or show it twice. Stretches of dates that a zone has left out are empty, and hold no instant.

    Args:
        zone: Name of the time zone.
        count: Number of units of a stretch. Days are counted from Monday, 5 January 1970, months from January 1970.
        unit: Unit of the length.
        offset_months: Number of months by which borders come later.
        offset_ms: How much later local clocks show borders than the beginning of their day or month, ms.
    """

    def __init__(
        self, zone: str, count: int, unit: Literal["days", "months"], offset_months: int, offset_ms: int
    ) -> None:
        self._zone = ZoneInfo(zone)
        self._count = count
        self._in_months = unit == "months"
        self._offset_months = offset_months
        self._offset = offset_ms * _MS
        self._blocks: dict[int, list[int]] = {}

    def stretch_of(self, time_ms: int) -> tuple[int, int]:
        """Return start and end of the stretch that contains an instant at or after the epoch."""
        borders = self._blocks.get(time_ms // _BLOCK_MS) or self._borders(time_ms)
        place = bisect_right(borders, time_ms)
        return borders[place - 1], borders[place]

    def starts_for(self, time_ms: int) -> tuple[int, ...]:
        """Return the start of the stretch that contains an instant; none before the epoch."""
        return (self.stretch_of(time_ms)[0],) if time_ms >= 0 else ()

    def end_of(self, start_ms: int) -> int:
        """Return the end of the stretch that contains its start."""
        return self.stretch_of(start_ms)[1]

    def _borders(self, time_ms: int) -> list[int]:
        """Return the borders of an instant's block, with those before its first instant and after its last one."""
        block = min(time_ms, _LAST_MS) // _BLOCK_MS
        if block in self._blocks:
            return self._blocks[block]
        first_ms, end_ms = block * _BLOCK_MS, (block + 1) * _BLOCK_MS
        number = self._number_at(self._local(first_ms))
        found = [self._border(number)]
        while found[-1] < end_ms:
            number += 1
            border = self._border(number)
            found.append(border if border < _LAST_MS else _NO_END_MS)
        self._blocks[block] = found
        return found

    def _border(self, number: int) -> int:
        # Windows begin at the epoch, not before.
        return max(0, self._first_instant(self._beginning(number) + self._offset))

    def _beginning(self, number: int) -> datetime:
        if not self._in_months:
            return _FIRST_MONDAY + timedelta(days=number * self._count)
        year, month = divmod(number * self._count + self._offset_months, 12)
        return datetime(1970 + year, month + 1, 1)  # noqa: DTZ001 - as above

    def _number_at(self, local: datetime) -> int:
        local -= self._offset
        if not self._in_months:
            return (local - _FIRST_MONDAY).days // self._count
        return ((local.year - 1970) * 12 + local.month - 1 - self._offset_months) // self._count

    def _first_instant(self, local: datetime) -> int:
        """Return the first instant at which clocks show a local time or a later one."""
        first, second = (self._instant(local, fold) for fold in (0, 1))
        if first <= second:
            return first
        # Clocks leave this time out: they jump over it between these two instants.
        return second + bisect_left(range(second, first), True, key=lambda ms: self._local(ms) >= local)  # noqa: FBT003

    def _instant(self, local: datetime, fold: int) -> int:
        return (local.replace(tzinfo=self._zone, fold=fold) - EPOCH) // _MS

    def _local(self, time_ms: int) -> datetime:
        return (EPOCH + time_ms * _MS).astimezone(self._zone).replace(tzinfo=None)
