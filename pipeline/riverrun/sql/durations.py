"""Durations and sizes of windows in statements: times of the clock, and units of a zone's calendar."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from riverrun.errors import TopologyError
from riverrun.serde.windowed import session_windowed, windowed
from riverrun.sql.statements import SqlError
from riverrun.windows import CalendarWindows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.serde.api import Serde

WindowSize: TypeAlias = int | CalendarWindows
"""Size of windows that do not depend on their records: ms, or the windows of a calendar, without a grace period."""

UNITS = {"MILLISECOND": 1, "SECOND": 1000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_TIMES = UNITS | {"WEEK": 7 * UNITS["DAY"]}
CALENDAR_UNITS = ("WEEK", *_MONTHS)
"""Units that only windows of a calendar have. Days may be either: with a zone, they are a calendar's."""
# Python's timedelta holds 999,999,999 days.
_LONGEST_MS = 999_999_999 * UNITS["DAY"]
# A number of that many digits is too large in every unit. Python refuses to convert texts of thousands of digits.
_MOST_DIGITS = 20
_AMOUNT = re.compile(r"\s*([0-9]+)\s+([A-Za-z]+)\s*")


def checked_duration(duration_ms: int, start: int) -> int:
    """Return a duration in ms, if windows and joins can have it."""
    if duration_ms > _LONGEST_MS:
        raise SqlError(f"A duration of {duration_ms} ms is too long: the most is {_LONGEST_MS} ms", start)
    return duration_ms


def millis_of(name: str, text: str, start: int) -> int:
    """Return the ms of a property that is a duration."""
    amount = _amounts(text)
    if len(amount) != 1 or amount[0][1] not in UNITS:
        raise SqlError(f"{name} {text!r} is not a duration such as '10 SECONDS'", start)
    return checked_duration(amount[0][0] * UNITS[amount[0][1]], start)


def window_size_of(size: str, zone: str | None, offset: str | None, start: int) -> WindowSize:
    """Return the size of windows whose parts are properties."""
    amount = _amounts(size)
    is_calendar = len(amount) == 1 and amount[0][1] in CALENDAR_UNITS
    if not is_calendar and zone is None and offset is None:
        return millis_of("WINDOW_SIZE", size, start)
    moved = _amounts(offset or "")
    if len(amount) != 1:
        raise SqlError(f"WINDOW_SIZE {size!r} is not a size such as '1 MONTH'", start)
    if offset is not None and not moved:
        raise SqlError(f"WINDOW_OFFSET {offset!r} is not an offset such as '5 DAYS'", start)
    return of_calendar(*amount[0], zone, moved, start)


def _amounts(text: str) -> list[tuple[int, str]]:
    """Return numbers and their units, in upper case and singular; none if the text has something else."""
    if not re.fullmatch(f"({_AMOUNT.pattern})*", text):
        return []
    return [
        (int((number.lstrip("0") or "0")[:_MOST_DIGITS]), unit.upper().removesuffix("S"))
        for number, unit in _AMOUNT.findall(text)
    ]


def of_calendar(
    count: int, unit: str, zone: str | None, offset: Iterable[tuple[int, str]], start: int
) -> CalendarWindows:
    """Return the windows of a calendar, in UTC without a zone. `offset` is a sum of numbers of units."""
    if unit not in {"DAY", *CALENDAR_UNITS}:
        message = f"Windows of {unit}S have no time zone and no offset"
        raise SqlError(message, start, hint="Those of DAYS, WEEKS, MONTHS, QUARTERS and YEARS have.")
    months = later_ms = 0
    for number, each in offset:
        if each in _TIMES:
            later_ms += number * _TIMES[each]
        elif each in _MONTHS and unit in _MONTHS:
            months += number * _MONTHS[each]
        else:
            message = f"Windows of {unit}S have no offset in {each}S"
            raise SqlError(message, start, hint="An offset of QUARTERS and YEARS is one such as 3 MONTHS 5 DAYS.")
    later = timedelta(milliseconds=checked_duration(later_ms, start))
    place = "UTC" if zone is None else zone
    try:
        if unit in _MONTHS:
            return CalendarWindows.months(place, count * _MONTHS[unit], offset_months=months, offset=later)
        return CalendarWindows.days(place, count * (7 if unit == "WEEK" else 1), offset=later)
    except TopologyError as error:
        raise SqlError(f"{error.message[0].upper()}{error.message[1:]}", start, hint=error.hint) from None


def key_serde_of_windows(keys: Serde[Any], window: str, size: WindowSize | None) -> Serde[Any]:
    """Return the serde of keys in windows of a kind."""
    if window == "SESSION":
        return session_windowed(keys)
    return windowed(keys, timedelta(milliseconds=size) if isinstance(size, int) else size)


def size_text(size: WindowSize | None) -> str:
    """Return the size of windows as text."""
    return str(size) if isinstance(size, CalendarWindows) else f"{size} ms"
