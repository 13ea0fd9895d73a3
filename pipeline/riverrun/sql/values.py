"""Values in the ranges of their types, read from texts as Java reads them, and written as ISO 8601 writes times.

Whatever has a type of SQL is exactly in it: readers, casts and functions return such a value or raise `ValueError` or
`ArithmeticError`.
"""

from __future__ import annotations

import binascii
import datetime as dt
import decimal
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from riverrun.records import shortened
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
DAY_MS = 86_400_000
RANGES: dict[SqlType, tuple[int, int]] = {
    Primitive.INTEGER: (-(1 << 31), (1 << 31) - 1),
    Primitive.BIGINT: (-(1 << 63), (1 << 63) - 1),
    Primitive.DATE: (-(1 << 31), (1 << 31) - 1),
    Primitive.TIME: (0, DAY_MS - 1),
    Primitive.TIMESTAMP: (-(1 << 63), (1 << 63) - 1),
}
"""The least and the greatest value of each type of whole numbers."""
# What Java's `trim` removes. Python's `strip` would also remove spaces of Unicode.
_SPACES = "".join(map(chr, range(33)))
_WHOLE = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEXADECIMAL = re.compile(r"([+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII)
_EXACT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,10})?")
# Last characters of numbers that Python reads as Java does: not `1.5f`, `infinity` or `nan`.
_LAST_DIGITS = frozenset("0123456789.")
# Python refuses to convert whole numbers of more than 4,300 digits, and no type holds them.
_MOST_CHARACTERS = 4000
# Numbers from here on are out of every range, and are not converted to an int: 1E999999999 has a billion digits.
_BEYOND = 1 << 64
# A wrong value may be large, and its error goes to logs and dead letters.
_SHOWN = 60


def unfit(value: Any, type_: SqlType | str) -> ValueError:
    return ValueError(f"{shortened(value, _SHOWN)} is not of type {type_}")


def in_range(number: int, type_: SqlType) -> int:
    """Return a whole number; raise if its type does not have it."""
    least, greatest = RANGES[type_]
    if not least <= number <= greatest:
        raise unfit(number, type_)
    return number


def saturated(value: float, type_: SqlType) -> int:
    """Return the whole number of a type that is nearest to a DOUBLE without its fraction; 0 for NaN (Java's casts).

    >>> saturated(-1.9, Primitive.INTEGER), saturated(4e9, Primitive.INTEGER)
    (-1, 2147483647)
    """
    least, greatest = RANGES[type_]
    if least < value < greatest:
        return int(value)
    return 0 if math.isnan(value) else greatest if value > 0 else least


# Java's syntax of texts


def trimmed(text: str) -> str:
    """Return a text without spaces and control characters at its ends (Java's `trim`): other spaces remain."""
    return text.strip(_SPACES)


def whole_of_text(text: str, type_: SqlType = Primitive.BIGINT) -> int:
    """Return the whole number in a text (Java's `Long.parseLong`).

    >>> whole_of_text("+12")
    12
    """
    if len(text) <= _MOST_CHARACTERS and (text.isdecimal() or _WHOLE.fullmatch(text)):
        number, (least, greatest) = int(text), RANGES[type_]
        if least <= number <= greatest:
            return number
    raise unfit(text, type_)


def double_of_text(text: str) -> float:
    """Return the number in a text (Java's `Double.parseDouble`), but no infinity for one that is too large.

    >>> double_of_text(" 1.5e3f "), double_of_text("-Infinity")
    (1500.0, -inf)
    """
    # The usual case without a regular expression. Python also takes `1_000` and digits of other scripts, which Java refuses.
    if text[-1:] in _LAST_DIGITS and "_" not in text and text.isascii():
        try:
            number = float(text)
        except ValueError:  # perhaps a hexadecimal number
            number = math.inf
        if math.isfinite(number):
            return number
    plain = trimmed(text)
    if _DOUBLE.fullmatch(plain):
        number = float(plain if plain[-1] in "Ny" else plain.rstrip("fFdD"))
        if math.isfinite(number) or plain[-1] in "Ny":
            return number
    elif found := _HEXADECIMAL.fullmatch(plain):
        return float.fromhex(found[1])
    raise unfit(text, Primitive.DOUBLE)


def decimal_of_text(text: str) -> decimal.Decimal:
    """Return the number in a text (Java's `BigDecimal`), with all its digits."""
    if not _EXACT.fullmatch(text):
        raise unfit(text, "DECIMAL")
    return decimal.Decimal(text)


def bytes_of_text(text: str) -> bytes:
    """Return the bytes of a Base64 text (Java's `Base64.getDecoder`): padding may be left out, but not be wrong.

    >>> bytes_of_text("AAE=") == bytes_of_text("AAE") == bytes([0, 1])
    True
    """
    padded = text if "=" in text else text + "=" * (-len(text) % 4)
    try:
        return binascii.a2b_base64(padded, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"{shortened(text, _SHOWN)} is not Base64: {error}") from None


_OF_DOUBLES = decimal.Context(prec=17)
"""Rounds no double; the context of a thread may be a user's."""


def double_text(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value == 0 or 1e-3 <= abs(value) < 1e7:  # noqa: PLR2004 - Java's bounds of plain notation
        return repr(value) if "e" not in repr(value) else f"{value:f}"
    digits, _, exponent = f"{decimal.Decimal(repr(value)).normalize(_OF_DOUBLES):E}".partition("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


_END_OF_DAY = re.compile("[T ]24")


def timestamp_of_text(text: str) -> int:
    """Return ms since 1970 of an ISO 8601 text, in UTC unless it has an offset."""
    # Python takes 24:00 from 3.14 on, and Java does not: results must not depend on the version of Python.
    if _END_OF_DAY.search(text):
        raise ValueError(f"Invalid hour in {text!r}")
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - EPOCH) // dt.timedelta(milliseconds=1)


# Exact numbers


@lru_cache(maxsize=1000)
def rounded_to(type_: Decimal) -> Callable[[decimal.Decimal | int], decimal.Decimal]:
    """Return a function that rounds exact numbers, halves away from 0, and raises for those with too many digits."""
    return _quantizing(type_, [decimal.InvalidOperation])


@lru_cache(maxsize=1000)
def fitted_to(type_: Decimal) -> Callable[[decimal.Decimal | int], decimal.Decimal]:
    """Return a function that raises for numbers that would have to be rounded, as for those with too many digits."""
    return _quantizing(type_, [decimal.InvalidOperation, decimal.Inexact])


def _quantizing(type_: Decimal, traps: list[Any]) -> Callable[[decimal.Decimal | int], decimal.Decimal]:
    step, make = decimal.Decimal(1).scaleb(-type_.scale), decimal.Decimal
    context = decimal.Context(prec=type_.precision, rounding=decimal.ROUND_HALF_UP, traps=traps)
    zero = decimal.Decimal(0).quantize(step)

    def quantized(value: decimal.Decimal | int) -> decimal.Decimal:
        # `or zero`: the -0.00 that rounding may leave is 0.00.
        try:
            return make(value).quantize(step, None, context) or zero
        except (decimal.InvalidOperation, decimal.Inexact):
            raise unfit(value, type_) from None

    return quantized


def exact_of_double(value: float) -> decimal.Decimal:
    """Return the number that a DOUBLE is written as (Java's `BigDecimal.valueOf`): 0.1 is 0.1, not its binary value."""
    if not math.isfinite(value):
        raise unfit(value, "DECIMAL")
    return decimal.Decimal(repr(value))


# Foreign values


def whole_of(type_: SqlType, *, is_cut: bool = False) -> Callable[[Any], int]:
    """Return a function that converts numbers and texts to whole numbers; `is_cut` drops fractions, as ksqlDB does in JSON."""
    least, greatest = RANGES[type_]

    def whole(value: Any) -> int:
        number: int
        # By class: True is an instance of int, and no number in JSON.
        if value.__class__ is int:
            number = value
        elif isinstance(value, str):
            return whole_of_text(value, type_)
        elif (
            isinstance(value, decimal.Decimal | float)
            and -_BEYOND <= value <= _BEYOND
            and (is_cut or value == int(value))
        ):
            number = int(value)
        else:
            raise unfit(value, type_)
        if least <= number <= greatest:
            return number
        raise unfit(value, type_)

    return whole


def double_of(value: Any) -> float:
    """Convert a number or a text of JSON to a DOUBLE."""
    if isinstance(value, str):
        return double_of_text(value)
    if value.__class__ is float:
        found: float = value
        return found
    if value.__class__ is not int and not isinstance(value, decimal.Decimal):
        raise unfit(value, Primitive.DOUBLE)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise unfit(value, Primitive.DOUBLE)
    return number


def decimal_of(type_: Decimal) -> Callable[[Any], decimal.Decimal]:
    """Return a function that converts numbers and texts to a DECIMAL; it raises instead of rounding."""
    fitted = fitted_to(type_)

    def exact(value: Any) -> decimal.Decimal:
        if isinstance(value, str):
            return fitted(decimal_of_text(value))
        if isinstance(value, float):
            return fitted(exact_of_double(value))
        if value.__class__ is int or (isinstance(value, decimal.Decimal) and value.is_finite()):
            return fitted(value)
        raise unfit(value, type_)

    return exact


def checked(type_: SqlType) -> Callable[[Any], Any]:
    """Return a function that checks what user code returns: an int counts as a DOUBLE, and a decimal gets its scale."""
    inner = _checking(type_)
    return lambda value: None if value is None else inner(value)


def _checking(type_: SqlType) -> Callable[[Any], Any]:  # noqa: PLR0911 - one case for each type
    match type_:
        case Array():
            item = checked(type_.item)
            return lambda value: [item(each) for each in _of_class(value, (list, tuple), type_)]
        case Map():
            key, part = checked(type_.key), checked(type_.value)
            return lambda value: {key(name): part(each) for name, each in _of_class(value, dict, type_).items()}
        case Struct():
            parts = {name: checked(each) for name, each in type_.fields}
            return lambda value: _struct(_of_class(value, dict, type_), parts, type_)
        case Decimal():
            exact = decimal_of(type_)
            return lambda value: exact(_of_class(value, (decimal.Decimal, int), type_))
        case Primitive.BOOLEAN:
            return lambda value: bool(_of_class(value, bool, type_))
        case Primitive.DOUBLE:
            return lambda value: float(_number(value, (float, int), type_))
        case Primitive.STRING:
            return _text
        case Primitive.BYTES:
            return lambda value: bytes(_of_class(value, (bytes, bytearray, memoryview), type_))
    whole = whole_of(type_)
    return lambda value: whole(int(_number(value, int, type_)))


def _of_class(value: Any, kinds: Any, type_: SqlType) -> Any:
    if not isinstance(value, kinds):
        raise unfit(value, type_)
    return value


def _number(value: Any, kinds: Any, type_: SqlType) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise unfit(value, type_)
    return value


def _text(value: Any) -> str:
    # Of a subclass, such as an enum's member, the plain text: `str()` may call a method of the user's.
    text = str.__str__(_of_class(value, str, Primitive.STRING))
    if not text.isascii():
        # Raises for a lone surrogate, half of a character, which no format can write.
        text.encode()
    return text


def _struct(value: dict[str, Any], parts: dict[str, Callable[[Any], Any]], type_: Struct) -> dict[str, Any]:
    if not value.keys() <= parts.keys():
        raise unfit(value, type_)
    return {name: part(value.get(name)) for name, part in parts.items()}


# Times as texts

# The calendar repeats after 400 years, so dates outside of Python's years are those of another cycle.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_LAST_YEAR = 9999


def date_text(days: int) -> str:
    """Return a date, in days since 1970, as text. Years after 9999 have a sign, as in Java.

    >>> date_text(18911), date_text(2932897)
    ('2021-10-11', '+10000-01-01')
    """
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = (EPOCH + dt.timedelta(days=rest)).date()
    year = day.year + cycles * _CYCLE_YEARS
    sign = "+" if year > _LAST_YEAR else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{day.month:02}-{day.day:02}"


def time_text(time_ms: int) -> str:
    """Return ms since midnight as text; seconds and milliseconds only if they are not zero.

    >>> time_text(48_300_000), time_text(48_300_005)
    ('13:25', '13:25:00.005')
    """
    seconds, rest = divmod(time_ms, 1000)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}"
    if second or rest:
        text += f":{second:02}"
    return f"{text}.{rest:03}" if rest else text


def timestamp_text(time_ms: int) -> str:
    """Return ms since 1970 as text, in UTC, with milliseconds.

    >>> timestamp_text(1_625_055_519_446)
    '2021-06-30T12:18:39.446'
    """
    days, rest = divmod(time_ms, DAY_MS)
    seconds, milliseconds = divmod(rest, 1000)
    minutes, second = divmod(seconds, 60)
    return f"{date_text(days)}T{minutes // 60:02}:{minutes % 60:02}:{second:02}.{milliseconds:03}"


_TEXTS: Mapping[SqlType, Callable[[int], str]] = {
    Primitive.DATE: date_text,
    Primitive.TIME: time_text,
    Primitive.TIMESTAMP: timestamp_text,
}


def shown(value: Any, type_: SqlType) -> Any:
    """Return a value as JSON shows it, with times as texts.

    >>> shown(0, Primitive.DATE)
    '1970-01-01'
    """
    text = _TEXTS.get(type_)
    return value if value is None or text is None else text(value)
