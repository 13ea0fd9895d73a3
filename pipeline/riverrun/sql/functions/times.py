"""Functions of dates, times and points in time."""

from __future__ import annotations

import datetime as dt
from typing import Any

from riverrun.sql.functions.date_formats import LETTERS_OF_DATES, LETTERS_OF_TIMES, date_format, moment_of, zone
from riverrun.sql.functions.registry import scalar
from riverrun.sql.types import Primitive
from riverrun.sql.values import DAY_MS, EPOCH, in_range

THEME = "Dates and times"
_UNITS: dict[str, int] = {
    "MILLISECOND": 1,
    "SECOND": 1000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": DAY_MS,
    "WEEK": 7 * DAY_MS,
}


def _unit(name: str) -> int:
    found = _UNITS.get(name.upper().removesuffix("S"))
    if found is None:
        raise ValueError(f"{name} is not a unit of time; there are {', '.join(f'{each}S' for each in _UNITS)}")
    return found


_UNIT = {"unit": _unit}
_PATTERN = {"pattern": date_format, "zone": zone}
_DATE_PATTERN = {"pattern": lambda pattern: date_format(pattern, LETTERS_OF_DATES)}
_TIME_PATTERN = {"pattern": lambda pattern: date_format(pattern, LETTERS_OF_TIMES)}


def _moment(milliseconds: int, in_zone: dt.tzinfo = dt.UTC) -> dt.datetime:
    return (EPOCH + dt.timedelta(milliseconds=milliseconds)).astimezone(in_zone)


def _since_epoch(moment: dt.datetime) -> int:
    return (moment - EPOCH) // dt.timedelta(milliseconds=1)


@scalar("DATEADD(unit STRING, interval INTEGER, date DATE) -> DATE", theme=THEME, constants=_UNIT)
def add_to_date(unit: str, interval: int, date: int) -> int:
    """The date some time later; the unit is a word such as DAYS."""
    return in_range((date * DAY_MS + _unit(unit) * interval) // DAY_MS, Primitive.DATE)


@scalar("DATESUB(unit STRING, interval INTEGER, date DATE) -> DATE", theme=THEME, constants=_UNIT)
def take_from_date(unit: str, interval: int, date: int) -> int:
    """The date some time earlier."""
    return add_to_date(unit, -interval, date)


@scalar("TIMEADD(unit STRING, interval INTEGER, time TIME) -> TIME", theme=THEME, constants=_UNIT)
def add_to_time(unit: str, interval: int, time: int) -> int:
    """The time some time later; it begins again at midnight."""
    return (time + _unit(unit) * interval) % DAY_MS


@scalar("TIMESUB(unit STRING, interval INTEGER, time TIME) -> TIME", theme=THEME, constants=_UNIT)
def take_from_time(unit: str, interval: int, time: int) -> int:
    """The time some time earlier; before midnight it is the end of a day."""
    return add_to_time(unit, -interval, time)


@scalar("TIMESTAMPADD(unit STRING, interval INTEGER, timestamp TIMESTAMP) -> TIMESTAMP", theme=THEME, constants=_UNIT)
def add_to_timestamp(unit: str, interval: int, timestamp: int) -> int:
    """The point in time some time later."""
    return in_range(timestamp + _unit(unit) * interval, Primitive.TIMESTAMP)


@scalar("TIMESTAMPSUB(unit STRING, interval INTEGER, timestamp TIMESTAMP) -> TIMESTAMP", theme=THEME, constants=_UNIT)
def take_from_timestamp(unit: str, interval: int, timestamp: int) -> int:
    """The point in time some time earlier."""
    return add_to_timestamp(unit, -interval, timestamp)


@scalar("FORMAT_DATE(date DATE, pattern STRING) -> STRING", theme=THEME, constants=_DATE_PATTERN)
@scalar(
    "DATETOSTRING(days INTEGER, pattern STRING) -> STRING",
    theme=THEME,
    description="An older name: use FORMAT_DATE.",
    constants=_DATE_PATTERN,
)
def format_date(date: int, pattern: str) -> str:
    """The date as text, by a pattern of Java's DateTimeFormatter."""
    return date_format(pattern, LETTERS_OF_DATES).write(_moment(date * DAY_MS))


@scalar("FORMAT_TIME(time TIME, pattern STRING) -> STRING", theme=THEME, constants=_TIME_PATTERN)
def format_time(time: int, pattern: str) -> str:
    """The time as text, by a pattern of Java's DateTimeFormatter."""
    return date_format(pattern, LETTERS_OF_TIMES).write(_moment(time))


@scalar(
    "FORMAT_TIMESTAMP(timestamp TIMESTAMP, pattern STRING, [zone STRING]) -> STRING", theme=THEME, constants=_PATTERN
)
@scalar(
    "TIMESTAMPTOSTRING(milliseconds BIGINT, pattern STRING, [zone STRING]) -> STRING",
    theme=THEME,
    description="An older name: use FORMAT_TIMESTAMP.",
    constants=_PATTERN,
)
def format_timestamp(timestamp: int, pattern: str, in_zone: str = "UTC") -> str:
    """The point in time as text, by a pattern of Java's DateTimeFormatter, in UTC or another zone."""
    return date_format(pattern).write(_moment(timestamp, zone(in_zone)))


@scalar("PARSE_DATE(text STRING, pattern STRING) -> DATE", theme=THEME, constants=_PATTERN)
def parse_date(text: str, pattern: str) -> int:
    """The date that a text begins with, by a pattern of Java's DateTimeFormatter."""
    return _date(date_format(pattern).read(text, is_whole=False))


@scalar(
    "STRINGTODATE(text STRING, pattern STRING) -> INTEGER",
    theme=THEME,
    description="An older name: use PARSE_DATE.",
    constants=_PATTERN,
)
def string_to_date(text: str, pattern: str) -> int:
    """The date in a text, by a pattern of Java's DateTimeFormatter."""
    return _date(date_format(pattern).read(text))


def _date(fields: dict[str, Any]) -> int:
    return (moment_of(fields, dt.UTC).date() - EPOCH.date()).days


@scalar("PARSE_TIME(text STRING, pattern STRING) -> TIME", theme=THEME, constants=_TIME_PATTERN)
def parse_time(text: str, pattern: str) -> int:
    """The time in a text, by a pattern of Java's DateTimeFormatter."""
    moment = moment_of(date_format(pattern, LETTERS_OF_TIMES).read(text), dt.UTC)
    return _since_epoch(moment.replace(tzinfo=dt.UTC)) % DAY_MS


@scalar("PARSE_TIMESTAMP(text STRING, pattern STRING, [zone STRING]) -> TIMESTAMP", theme=THEME, constants=_PATTERN)
@scalar(
    "STRINGTOTIMESTAMP(text STRING, pattern STRING, [zone STRING]) -> BIGINT",
    theme=THEME,
    description="An older name: use PARSE_TIMESTAMP.",
    constants=_PATTERN,
)
def parse_timestamp(text: str, pattern: str, in_zone: str = "UTC") -> int:
    """The point in time in a text, by a pattern of Java's DateTimeFormatter; in UTC unless text or zone say otherwise."""
    return _since_epoch(moment_of(date_format(pattern).read(text), zone(in_zone)))


@scalar(
    "CONVERT_TZ(timestamp TIMESTAMP, from STRING, to STRING) -> TIMESTAMP",
    theme=THEME,
    constants={"from": zone, "to": zone},
)
def convert_zone(timestamp: int, given: str, wanted: str) -> int:
    """The point in time that shows in UTC the local time of one zone as another zone's clocks have it."""
    local = _moment(timestamp).replace(tzinfo=zone(given))
    return _since_epoch(local.astimezone(zone(wanted)).replace(tzinfo=dt.UTC))


@scalar("FROM_DAYS(days INTEGER) -> DATE", theme=THEME)
def from_days(days: int) -> int:
    """The date so many days after 1970-01-01."""
    return days


@scalar("FROM_UNIXTIME(milliseconds BIGINT) -> TIMESTAMP", theme=THEME)
def from_milliseconds(milliseconds: int) -> int:
    """The point in time so many milliseconds after 1970-01-01T00:00 UTC."""
    return milliseconds


@scalar("UNIX_DATE(date DATE) -> INTEGER", theme=THEME)
def unix_date(date: int) -> int:
    """The days since 1970-01-01. Without an argument there is none: today is another day when a record is processed again."""
    return date


@scalar("UNIX_TIMESTAMP(timestamp TIMESTAMP) -> BIGINT", theme=THEME)
def unix_timestamp(timestamp: int) -> int:
    """The milliseconds since 1970-01-01T00:00 UTC. Without an argument there is none: ROWTIME is the record's time."""
    return timestamp
