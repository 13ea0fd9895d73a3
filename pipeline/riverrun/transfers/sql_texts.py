"""Judges texts for columns of numbers and times: whether a database would hold another value, without an error.

Texts that databases read each in another way count as changed: words for times, other orders of dates, signs of money.
"""

from __future__ import annotations

import re
import struct
from decimal import Decimal, InvalidOperation

_WORDS = frozenset({"nan", "inf", "infinity"})
"""Texts without digits that columns of numbers may hold; other columns refuse them."""
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_WHOLE_END = 2**63
_SINGLE_DIGITS, _MOST_SINGLE_DIGITS = 6, 9
"""32 bits hold all numbers of six digits but denormal ones; up to nine identify what they hold."""
_SMALLEST_NORMAL = 2.0**-126
_DATE = r"[0-9]{4,}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{4}/[0-9]{1,2}/[0-9]{1,2}|[0-9]{8}"
_CLOCK = (
    r"[0-9]{1,2}:[0-5]?[0-9](?::[0-5]?[0-9](?:[.,](?P<fraction>[0-9]+))?)?"
    r"|[0-9]{6}(?:[.,](?P<basic>[0-9]+))?|(?<=[0-9]{8}T)[0-9]{4}"
)
# Databases read other words as a day, an era or nothing, and each has other short names.
_ZONE = r"z|utc|gmt|[a-z]\w*(?:/[a-z][\w+-]*)+|[+-][0-9]{1,2}(?::?[0-9]{2}){0,2}"
_TIME = re.compile(
    rf"(?:(?P<date>{_DATE})(?:[T ]|$)|T)?(?:(?P<clock>{_CLOCK}) ?(?P<zone>{_ZONE})?)?", re.IGNORECASE | re.ASCII
)
"""ISO 8601, and how databases show times."""
_SPAN = re.compile(r"-?[0-9]{1,3}:[0-5]?[0-9](?::[0-5]?[0-9](?:\.(?P<fraction>[0-9]+))?)?")
"""Times of MySQL, which are also durations."""
_INFINITE = frozenset({"infinity", "-infinity"})
_UTC = frozenset({"z", "utc", "gmt", "etc/utc", "etc/gmt"})
_OFFSET = re.compile(r"[+-][0-9]{2}:[0-9]{2}")


def changes_number(text: str, kind: str, digits: int | None) -> bool:
    """Return whether a column of numbers would hold another number than a text.

    Args:
        text: The text.
        kind: `whole`, `exact`, `single`, `double`, or SQLite's `numeric`.
        digits: Those after the point of an `exact` number; None if it has no limit.

    >>> [changes_number(text, "exact", 2) for text in ("1.50", "1.500", "1.505", "$1")]
    [False, False, True, True]
    """
    number = _decimal_in(text.strip())
    if number is None:
        return text.strip().lower().lstrip("+-") not in _WORDS
    if kind == "single":
        return not _is_single(number)
    if kind == "numeric":
        return not _is_of_sqlite(text.strip(), number)
    if kind == "double":
        return Decimal(repr(float(number))) != number
    most = 0 if kind == "whole" else digits
    return most is not None and _places(number) > most


def is_number(text: str) -> bool:
    """Return whether databases may read a text as a finite number."""
    return _NUMBER.fullmatch(text.strip()) is not None


def _decimal_in(text: str) -> Decimal | None:
    """Return the finite number in a text; None for other texts, and for exponents that nothing has."""
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def _places(number: Decimal) -> float:
    """Return how many digits after the point a number needs; below 0 if its last ones before the point are zeros.

    >>> [_places(Decimal(text)) for text in ("1.50", "150", "0.0")]
    [1, -1, -inf]
    """
    # Not by `normalize`, which rounds to 28 digits.
    _, digits, exponent = number.as_tuple()
    zeros = next((at for at, digit in enumerate(reversed(digits)) if digit), None)
    return float("-inf") if zeros is None else -(int(exponent) + zeros)


def _is_of_sqlite(text: str, number: Decimal) -> bool:
    """Return whether SQLite holds a number in columns that are not declared for fractions alone."""
    # Only digits are read as a whole number. Doubles become whole numbers as well, so all of their digits are shown.
    if text.lstrip("+-").isdigit() and -_WHOLE_END <= number < _WHOLE_END:
        return True
    value = float(number)
    return Decimal(value if value.is_integer() and abs(value) < _WHOLE_END else repr(value)) == number


def _is_single(number: Decimal) -> bool:
    """Return whether 32 bits hold a number, as databases show it: with the fewest digits that identify the value.

    >>> [_is_single(Decimal(text)) for text in ("0.1", "16777216", "16777217", "0.123456789")]
    [True, True, False, False]
    """
    try:
        return Decimal(shortest(number)) == number
    except OverflowError:
        return False


def shortest(value: float | Decimal) -> str:
    """Return the number with the fewest digits that has the same 32 bits.

    >>> shortest(0.10000000149011612), shortest(16777217.0), shortest(1.401298464324817e-45)
    ('0.1', '16777216', '1e-45')
    """
    bits = struct.pack("f", value)
    (held,) = struct.unpack("f", bits)
    fewest = _SINGLE_DIGITS if abs(held) >= _SMALLEST_NORMAL else 1
    shown = (f"{held:.{digits}g}" for digits in range(fewest, _MOST_SINGLE_DIGITS))
    return next((text for text in shown if struct.pack("f", float(text)) == bits), f"{held:.{_MOST_SINGLE_DIGITS}g}")


def changes_time(text: str, kind: str, digits: int, zones: str) -> bool:
    """Return whether a column of times would hold another time than a text; one without a zone has UTC.

    Args:
        text: The text.
        kind: `date`, `time`, `moment`, or MySQL's `span`.
        digits: Those of a fraction of a second.
        zones: The zones that the column converts or keeps: `all`, `offsets` or `none`. It leaves others out.

    >>> [changes_time(f"2026-01-02{clock}", "date", 0, "none") for clock in ("", "T00:00:00Z", " 10:00")]
    [False, False, True]
    """
    if kind == "span" and (span := _SPAN.fullmatch(text.strip())) is not None:
        return _is_cut(span["fraction"], digits)
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return text.strip().lower() not in _INFINITE
    date, clock, zone = found["date"], found["clock"], (found["zone"] or "").lower()
    is_kept = zones == "all" or (zones == "offsets" and _OFFSET.fullmatch(zone) is not None)
    is_utc = zone in _UTC or not zone.strip("+-0:")
    if kind == "date":
        return date is None or not is_utc or bool((clock or "").strip("0:.,"))
    is_missing = date is None if kind == "moment" else (date is not None or clock is None)
    is_cut = _is_cut(found["fraction"] or found["basic"], digits)
    return is_missing or is_cut or not (is_kept or is_utc)


def _is_cut(fraction: str | None, digits: int) -> bool:
    return len((fraction or "").rstrip("0")) > digits
