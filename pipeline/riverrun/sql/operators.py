"""ksqlDB's arithmetic, comparisons and casts, for generated code.

Results are in the range of their types: whole numbers wrap and casts of DOUBLEs saturate, as in Java; other values that do not
fit raise.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct
from riverrun.sql.values import (
    DAY_MS,
    EPOCH,
    bytes_of_text,
    date_text,
    decimal_of_text,
    double_of_text,
    double_text,
    exact_of_double,
    in_range,
    rounded_to,
    saturated,
    time_text,
    timestamp_of_text,
    timestamp_text,
    trimmed,
    unfit,
    whole_of_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Python's default context has 28 digits, and would round a DECIMAL of up to 64.
CONTEXT = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)


def wrapped(bits: int) -> Callable[[int], int]:
    """Return a function that wraps whole numbers to a number of bits, as Java does.

    >>> wrapped(32)(2**31)
    -2147483648
    """
    half, full = 1 << (bits - 1), 1 << bits
    return lambda value: value if -half <= value < half else (value + half) % full - half


def whole_division(left: int, right: int) -> int:
    """Divide, rounding towards zero as Java does, not down as Python does.

    >>> whole_division(-7, 2)
    -3
    """
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def whole_remainder(left: int, right: int) -> int:
    """Return the remainder, which has the sign of the dividend.

    >>> whole_remainder(-7, 2)
    -1
    """
    return left - right * whole_division(left, right)


def double_division(left: float, right: float) -> float:
    """Divide as IEEE 754 does, by zero as well."""
    if right:
        return left / right
    return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)


def double_remainder(left: float, right: float) -> float:
    """Return the remainder with the sign of the dividend; NaN if there is none, as IEEE 754 says."""
    return math.fmod(left, right) if right and not math.isinf(left) else math.nan


def subscript(value: Any, index: Any) -> Any:
    """Return an item of an array, counted from 1, or from the end if negative; or of a map. None if there is none."""
    if value is None or index is None:
        return None
    if isinstance(value, dict):
        return value.get(index)
    place = index - 1 if index > 0 else len(value) + index
    return value[place] if index and 0 <= place < len(value) else None


def is_distinct(one: Any, other: Any) -> bool:
    """Return whether two values differ, where NULL is a value like others."""
    return (one is None) != (other is None) or bool(one != other)


def exact(value: float | None) -> decimal.Decimal | float | None:
    """Return the decimal number that a DOUBLE is written as, for comparisons (Java's `BigDecimal.valueOf`)."""
    return decimal.Decimal(repr(value)) if value is not None and math.isfinite(value) else value


def reason(error: Exception) -> str:
    """Return why something cannot be computed, for a message."""
    if isinstance(error, ZeroDivisionError | decimal.DivisionByZero | decimal.DivisionUndefined):
        return "division by zero"
    if isinstance(error, decimal.DecimalException):
        return "the number has too many digits"
    return str(error) or type(error).__name__


def value_or_null(compute: Callable[[], Any]) -> Any:
    """Return a value; None, for NULL, if it cannot be computed."""
    try:
        return compute()
    except Exception:  # noqa: BLE001 - any failure
        return None


_DATE = r"(?P<date>\d{4}(-\d{2}(-\d{2})?)?)"
_PARTIAL_DATE = re.compile(_DATE, re.ASCII)
_PARTIAL = re.compile(
    _DATE + r"(T(?P<time>\d{2}(:\d{2}(:\d{2}(\.\d{1,3})?)?)?)?)?(?P<zone>Z|[+-]\d{2}:?\d{2})?", re.ASCII
)
# Python reads 24:00 as a time from 3.14 on.
_TIME = re.compile(r"(?!24)\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?", re.ASCII)


def partial_timestamp(text: str) -> int:
    """Return ms since 1970 of a timestamp that may be incomplete, in UTC unless it has an offset.

    >>> partial_timestamp("2018") == partial_timestamp("2018-01-01T01:00+0100")
    True
    """
    match = _PARTIAL.fullmatch(trimmed(text))
    if match is None:
        raise unfit(text, Primitive.TIMESTAMP)
    time, zone = (match[name] or "" for name in ("time", "zone"))
    return timestamp_of_text(f"{_whole_date(match['date'])}T{time}{'00:00:00'[len(time) :]}{zone}")


def _whole_date(text: str) -> str:
    return text + "-01-01"[len(text) - 4 :]


def _parsed_date(text: str) -> int:
    plain = trimmed(text)
    if not _PARTIAL_DATE.fullmatch(plain):
        raise unfit(text, Primitive.DATE)
    return (dt.date.fromisoformat(_whole_date(plain)) - EPOCH.date()).days


def _parsed_time(text: str) -> int:
    plain = trimmed(text)
    if not _TIME.fullmatch(plain):
        raise unfit(text, Primitive.TIME)
    moment = dt.time.fromisoformat(plain)
    return ((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1000 + moment.microsecond // 1000


def cast(source: SqlType | None, target: SqlType) -> Callable[[Any], Any] | None:
    """Return the function that converts values from one type to another, None to None; None if there is no such cast."""
    if source is None or source == target:
        return lambda value: value
    inner = _cast(source, target)
    return None if inner is None else lambda value: None if value is None else inner(value)


def _cast(source: SqlType, target: SqlType) -> Callable[[Any], Any] | None:
    if isinstance(source, Array) and isinstance(target, Array):
        item = cast(source.item, target.item)
        return item and (lambda value: [item(each) for each in value])
    if isinstance(source, Map) and isinstance(target, Map):
        key, value_of = cast(source.key, target.key), cast(source.value, target.value)
        return key and value_of and (lambda value: {key(name): value_of(each) for name, each in value.items()})
    if isinstance(source, Struct) and isinstance(target, Struct):
        return _struct_cast(source, target)
    if isinstance(target, Decimal):
        return _to_decimal(source, target)
    if target is Primitive.STRING:
        return _to_text(source)
    return _PRIMITIVE.get((_kind(source), _kind(target)))


def _struct_cast(source: Struct, target: Struct) -> Callable[[Any], Any] | None:
    casts = {}
    for name, type_ in target.fields:
        given = source.field(name)
        converted = cast(given, type_)
        if converted is None:
            return None
        casts[name] = converted
    return lambda value: {name: convert(value.get(name)) for name, convert in casts.items()}


def _kind(of: SqlType) -> str:
    return "DECIMAL" if isinstance(of, Decimal) else str(of)


def _to_decimal(source: SqlType, target: Decimal) -> Callable[[Any], Any] | None:
    rounded = rounded_to(target)
    if source is Primitive.DOUBLE:
        return lambda value: rounded(exact_of_double(value))
    if source is Primitive.STRING:
        return lambda value: rounded(decimal_of_text(trimmed(value)))
    return rounded if isinstance(source, Decimal) or source in _WIDTHS else None


_TEXTS: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.BOOLEAN: lambda value: "true" if value else "false",
    Primitive.INTEGER: str,
    Primitive.BIGINT: str,
    Primitive.DOUBLE: double_text,
    Primitive.DATE: date_text,
    Primitive.TIME: time_text,
    Primitive.TIMESTAMP: timestamp_text,
}


def _to_text(source: SqlType) -> Callable[[Any], Any] | None:
    """Return the function that converts a value to text; arrays, maps and structs become the text that Java makes."""
    if isinstance(source, Array):
        item = _shown(source.item)
        return item and (lambda value: f"[{', '.join(map(item, value))}]")
    if isinstance(source, Map):
        key, value_of = _shown(source.key), _shown(source.value)
        return key and value_of and (lambda value: _in_braces(((key(n), value_of(v)) for n, v in value.items()), ", "))
    if isinstance(source, Struct):
        parts = {name: _shown(type_) or str for name, type_ in source.fields}
        return lambda value: f"Struct{_in_braces(((n, part(value.get(n))) for n, part in parts.items()), ',')}"
    return (lambda value: f"{value:f}") if isinstance(source, Decimal) else _TEXTS.get(source)


def _shown(type_: SqlType) -> Callable[[Any], str] | None:
    text = cast(type_, Primitive.STRING)
    return text and (lambda value: "null" if value is None else text(value))


def _in_braces(pairs: Iterable[tuple[str, str]], separator: str) -> str:
    return f"{{{separator.join(f'{name}={value}' for name, value in pairs)}}}"


def _wrapping(bits: int) -> Callable[[Any], int]:
    wrap = wrapped(bits)
    return lambda value: wrap(int(value))


def _parsed_whole(type_: SqlType) -> Callable[[str], int]:
    return lambda text: whole_of_text(trimmed(text), type_)


def _parsed_double(text: str) -> float:
    """Return a finite number (ksqlDB's `SqlDoubles`)."""
    number = double_of_text(text)
    if not math.isfinite(number):
        raise unfit(text, Primitive.DOUBLE)
    return number


def _begins(text: str, *words: str) -> bool:
    return bool(text) and any(word.startswith(text.lower()) for word in words)


def parsed_boolean(text: str) -> bool:
    """Return whether a text begins with `true` or `yes`, rather than with `false` or `no` (ksqlDB's `SqlBooleans`).

    >>> parsed_boolean("Y"), parsed_boolean("fal")
    (True, False)
    """
    if not _begins(text, "true", "yes", "false", "no"):
        raise ValueError(f"{text!r} is not a BOOLEAN")
    return _begins(text, "true", "yes")


def _truth(text: str) -> bool:
    return _begins(trimmed(text), "true", "yes")


def _date_of_timestamp(time_ms: int) -> int:
    return in_range(time_ms // DAY_MS, Primitive.DATE)


_WIDTHS = {Primitive.INTEGER: 32, Primitive.BIGINT: 64}
_PRIMITIVE: dict[tuple[str, str], Callable[[Any], Any]] = {
    **{
        (source, str(target)): _wrapping(bits)
        for target, bits in _WIDTHS.items()
        for source in ("INTEGER", "BIGINT", "DECIMAL")
    },
    **{("DOUBLE", str(target)): partial(saturated, type_=target) for target in _WIDTHS},
    **{("STRING", str(target)): _parsed_whole(target) for target in _WIDTHS},
    **{(source, "DOUBLE"): float for source in ("INTEGER", "BIGINT", "DECIMAL")},
    ("STRING", "DOUBLE"): _parsed_double,
    ("STRING", "BOOLEAN"): _truth,
    ("STRING", "BYTES"): lambda text: bytes_of_text(trimmed(text)),
    ("STRING", "TIMESTAMP"): partial_timestamp,
    ("STRING", "DATE"): _parsed_date,
    ("STRING", "TIME"): _parsed_time,
    ("TIMESTAMP", "DATE"): _date_of_timestamp,
    ("TIMESTAMP", "TIME"): lambda value: value % DAY_MS,
    ("DATE", "TIMESTAMP"): lambda value: value * DAY_MS,
}
