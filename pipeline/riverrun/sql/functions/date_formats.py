"""Patterns of Java's DateTimeFormatter, which write and read dates and times.

| Letters | Field |
|---|---|
| `y`, `u` | year |
| `M`, `L` | month |
| `d` | day |
| `D` | day of the year |
| `E` | day of the week |
| `a` | AM or PM |
| `H`, `k` | hours of a day |
| `h`, `K` | hours of half a day |
| `m` | minute |
| `s` | second |
| `S` | fraction of a second |
| `A` | milliseconds of a day |
| `n` | nanoseconds |
| `X`, `x`, `Z`, `O` | offset |
| `V`, `z` | zone |

Literal text has single quotes, and optional parts have brackets. Names are English.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PART = re.compile(r"'(?P<text>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<bracket>[\[\]])|(?P<other>.)", re.DOTALL)
_OFFSET = re.compile(
    r"(?P<prefix>UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2}))?(?::?(?P<seconds>\d{2}))?"
)
_NOON = 12
_SHORT = 3
_FULL = 4


@dataclass(frozen=True, slots=True)
class FormatField:
    """A run of one letter, with the function that writes it and the pattern that reads it.

    As in Java, reading never goes back, so that it takes linear time whatever the text is.
    """

    write: Callable[[dt.datetime], str]
    pattern: str
    read: Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Literal:
    """Literal text, or a bracket."""

    text: str
    pattern: str


@dataclass(frozen=True, slots=True)
class DateFormat:
    """A parsed pattern."""

    pieces: tuple[FormatField | Literal, ...]
    reader: re.Pattern[str]

    def write(self, moment: dt.datetime) -> str:
        return "".join(piece.text if isinstance(piece, Literal) else piece.write(moment) for piece in self.pieces)

    def read(self, text: str, *, is_whole: bool = True) -> dict[str, Any]:
        """Return the fields of a text; more may follow unless it `is_whole`."""
        found = self.reader.fullmatch(text) if is_whole else self.reader.match(text)
        if found is None:
            raise ValueError(f"{text!r} does not match the pattern")
        fields: dict[str, Any] = {}
        for number, piece in enumerate(self.pieces):
            value = found[f"p{number}"] if isinstance(piece, FormatField) else None
            if isinstance(piece, FormatField) and value is not None:
                fields |= piece.read(value)
        return fields


@lru_cache(maxsize=256)
def date_format(pattern: str, letters: frozenset[str] | None = None) -> DateFormat:
    """Parse a pattern.

    >>> date_format("dd.MM.yyyy").write(dt.datetime(2024, 2, 29, tzinfo=dt.UTC))
    '29.02.2024'
    """
    found = list(_PART.finditer(pattern))
    _check(pattern, found, letters)
    pieces = tuple(map(_piece, found))
    parts = [
        piece.pattern if isinstance(piece, Literal) else f"(?P<p{number}>{piece.pattern})"
        for number, piece in enumerate(pieces)
    ]
    return DateFormat(pieces, re.compile("".join(parts), re.IGNORECASE))


def _check(pattern: str, parts: Sequence[re.Match[str]], letters: frozenset[str] | None) -> None:
    """Make sure that a pattern is one of Java's, of letters that are supported."""
    problem, depth = None, 0
    for part in parts:
        run, letter = part["letters"] or "", (part["letters"] or "")[:1]
        depth += {"[": 1, "]": -1}.get(part["bracket"] or "", 0)
        if depth < 0:
            problem = "a ] has no ["
        elif part["other"] and part["other"] in "{}#'":
            problem = "a ' has no end" if part["other"] == "'" else f"{part['other']} is reserved: '{part['other']}'"
        elif letter and letter not in _LETTERS:
            problem = f"the letter {letter} is not supported; there are {''.join(sorted(_LETTERS))}"
        elif letter and letters is not None and letter not in letters:
            problem = f"the letter {letter} is not part of this type"
        elif letter and len(run) not in _COUNTS.get(letter, range(1, 3)):
            problem = f"{run} has a wrong number of letters"
        if problem:
            break
    if depth > 0 and problem is None:
        problem = "a [ has no ]"
    if problem:
        raise ValueError(f"pattern {pattern!r}: {problem}")


def _piece(found: re.Match[str]) -> FormatField | Literal:
    if found["text"] is not None:
        text = found["text"].replace("''", "'") or "'"
        return Literal(text, re.escape(text))
    if found["bracket"] is not None:
        # Possessive: as in Java, an optional part that matched is not given back.
        return Literal("", "(?:" if found["bracket"] == "[" else ")?+")
    if found["other"] is not None:
        return Literal(found["other"], re.escape(found["other"]))
    return _LETTERS[found["letters"][0]](len(found["letters"]))


def _number(
    name: str, value: Callable[[dt.datetime], int], read: Callable[[int], int] = int
) -> Callable[[int], FormatField]:
    def make(count: int) -> FormatField:
        digits = r"\d{1,9}+" if count == 1 else rf"\d{{{count}}}"
        return FormatField(lambda moment: f"{value(moment):0{count}}", digits, lambda text: {name: read(int(text))})

    return make


def _year(count: int) -> FormatField:
    if count == 2:  # noqa: PLR2004 - two digits
        return FormatField(lambda at: f"{at.year % 100:02}", r"\d{2}", lambda text: {"year": 2000 + int(text)})
    digits = r"\d{1,9}+" if count == 1 else rf"\d{{{count}}}"
    return FormatField(lambda at: f"{at.year:0{count}}", digits, lambda text: {"year": int(text)})


def _named(name: str, names: tuple[str, ...], value: Callable[[dt.datetime], int]) -> Callable[[int], FormatField]:
    """Return the maker of names, in full or as their first three letters."""

    def make(count: int) -> FormatField:
        shown = [each if count == _FULL else each[:3] for each in names]
        known = {each.lower(): number for number, each in enumerate(shown, 1)}
        return FormatField(lambda at: shown[value(at) - 1], "|".join(shown), lambda text: {name: known[text.lower()]})

    return make


def _month(count: int) -> FormatField:
    make = _number("month", lambda at: at.month)
    return make(count) if count < _SHORT else _named("month", MONTHS, lambda at: at.month)(count)


def _weekday(count: int) -> FormatField:
    return _named("weekday", WEEKDAYS, lambda at: at.isoweekday())(count)


def _fraction(count: int) -> FormatField:
    return FormatField(
        lambda at: f"{at.microsecond:06}000"[:count].ljust(count, "0"),
        rf"\d{{{count}}}",
        lambda text: {"microsecond": int(text[:6].ljust(6, "0"))},
    )


def _half(count: int) -> FormatField:  # noqa: ARG001 - one letter or more, all alike
    return FormatField(
        lambda at: "AM" if at.hour < _NOON else "PM", "AM|PM", lambda text: {"afternoon": text.upper() == "PM"}
    )


def _offset_text(moment: dt.datetime, separator: str, *, minutes: bool = True) -> str:
    total = int((moment.utcoffset() or dt.timedelta()).total_seconds()) // 60
    sign, (hours, rest) = "-" if total < 0 else "+", divmod(abs(total), 60)
    return f"{sign}{hours:02}{separator}{rest:02}" if minutes or rest else f"{sign}{hours:02}"


def _offset(zero: str | None, colons: tuple[str, ...]) -> Callable[[int], FormatField]:
    """Return the maker of offsets like X, x and Z, with or without a colon, by the number of letters."""

    def make(count: int) -> FormatField:
        separator = colons[min(count, len(colons)) - 1]

        def write(moment: dt.datetime) -> str:
            if zero is not None and not moment.utcoffset():
                return zero
            return _offset_text(moment, separator, minutes=count > 1 or colons is _ZONE_COLONS)

        return FormatField(write, r"Z|[+-]\d{2}(?::?\d{2})?", lambda text: {"zone": zone(text)})

    return make


_COLONS = ("", "", ":", "", ":")
_ZONE_COLONS = ("", "", "", "", ":")


def _zone(count: int) -> FormatField:  # noqa: ARG001 - VV is the only run there is
    return FormatField(
        lambda at: str(at.tzinfo), r"[A-Za-z][A-Za-z0-9/_+:-]*+|[+-]\d{2}:?\d{2}", lambda text: {"zone": zone(text)}
    )


def _zone_name(count: int) -> FormatField:  # noqa: ARG001 - short names only
    return FormatField(lambda at: at.tzname() or "", r"[A-Za-z][A-Za-z0-9/_+:-]*+", lambda text: {"zone": zone(text)})


def _localized(count: int) -> FormatField:  # noqa: ARG001 - both lengths alike
    return FormatField(
        lambda at: f"GMT{_offset_text(at, ':')}" if at.utcoffset() else "GMT",
        r"GMT(?:[+-]\d{1,2}(?::?\d{2})?)?",
        lambda text: {"zone": zone(text)},
    )


def _day_milliseconds(moment: dt.datetime) -> int:
    return ((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1000 + moment.microsecond // 1000


_LETTERS: dict[str, Callable[[int], FormatField]] = {
    "y": _year,
    "u": _year,
    "M": _month,
    "L": _month,
    "d": _number("day", lambda at: at.day),
    "D": _number("day_of_year", lambda at: at.timetuple().tm_yday),
    "E": _weekday,
    "a": _half,
    "H": _number("hour", lambda at: at.hour),
    "k": _number("hour", lambda at: at.hour or 24, lambda hour: hour % 24),
    "h": _number("half_hour", lambda at: at.hour % 12 or 12, lambda hour: hour % 12),
    "K": _number("half_hour", lambda at: at.hour % 12),
    "m": _number("minute", lambda at: at.minute),
    "s": _number("second", lambda at: at.second),
    "S": _fraction,
    "A": _number("day_millisecond", _day_milliseconds),
    "n": _number("microsecond", lambda at: at.microsecond * 1000, lambda nanoseconds: nanoseconds // 1000),
    "X": _offset("Z", _COLONS),
    "x": _offset(None, _COLONS),
    "Z": _offset(None, _ZONE_COLONS),
    "O": _localized,
    "V": _zone,
    "z": _zone_name,
}
_COUNTS: dict[str, range | tuple[int, ...]] = {
    **dict.fromkeys("yuAn", range(1, 20)),
    **dict.fromkeys("MLEz", range(1, 5)),
    **dict.fromkeys("XxZ", range(1, 6)),
    "D": range(1, 4),
    "S": range(1, 10),
    "O": (1, 4),
    "V": (2,),
    "a": (1,),
}
"""How often letters may repeat, other than once or twice. Java's names of one letter are not supported."""
LETTERS_OF_DATES = frozenset("yuMLdDE")
LETTERS_OF_TIMES = frozenset("aHkhKmsSAn")
_ABBREVIATIONS = {
    "EST": "America/New_York", "EDT": "America/New_York", "CST": "America/Chicago", "CDT": "America/Chicago",
    "MST": "America/Denver", "MDT": "America/Denver", "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles",
    "CEST": "Europe/Paris", "BST": "Europe/London", "JST": "Asia/Tokyo",
}  # fmt: skip


@lru_cache(maxsize=256)
def zone(name: str) -> dt.tzinfo:
    """Return a time zone by its name or offset: `UTC`, `Europe/London`, `PDT`, `+01:00`, `GMT+1`."""
    if name in {"Z", "UTC", "GMT", "UT"}:
        return dt.UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        seconds = int(offset["hours"]) * 3600 + int(offset["minutes"] or 0) * 60 + int(offset["seconds"] or 0)
        return dt.timezone(dt.timedelta(seconds=-seconds if offset["sign"] == "-" else seconds))
    try:
        return ZoneInfo(_ABBREVIATIONS.get(name, name))
    # ZoneInfo reads a file of that name: a name with `..`, or that of a directory, raises the other two.
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name}") from None


def moment_of(fields: dict[str, Any], default_zone: dt.tzinfo) -> dt.datetime:
    """Return the moment that fields of a text describe; missing fields are those of 1970-01-01T00:00."""
    rest, milliseconds = divmod(fields.get("day_millisecond", 0), 1000)
    day = dt.datetime(
        fields.get("year", 1970),
        fields.get("month", 1),
        fields.get("day", 1),
        tzinfo=fields.get("zone", default_zone),
    )
    if "day_of_year" in fields:
        day = day.replace(month=1, day=1) + dt.timedelta(days=fields["day_of_year"] - 1)
    if "weekday" in fields and {"day", "day_of_year"} & set(fields) and day.isoweekday() != fields["weekday"]:
        raise ValueError(f"{day:%Y-%m-%d} is not a {WEEKDAYS[fields['weekday'] - 1]}")
    return day.replace(
        hour=_hour(fields, rest // 3600),
        minute=fields.get("minute", rest // 60 % 60),
        second=fields.get("second", rest % 60),
        microsecond=fields.get("microsecond", milliseconds * 1000),
    )


def _hour(fields: dict[str, Any], default: int) -> int:
    if "half_hour" in fields:
        return int(fields["half_hour"]) + 12 * bool(fields.get("afternoon"))
    return int(fields.get("hour", default))
