"""ksqlDB's arithmetic, comparisons and casts, for generated code."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import TYPE_CHECKING, Any

from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CONTEXT = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)
_DAY_MS = 86_400_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def wrapped(bits: int) -> Callable[[int], int]:
    """Return a function that wraps whole numbers to a number of bits, as Java does.

    >>> wrapped(32)(2**31)
    -2147483648
    """
    half, full = 1 << (bits - 1), 1 << bits
    return lambda value: value if -half <= value < half else (value + half) % full - half


def whole_division(left: int, right: int) -> int:
    """Divide towards zero.

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


def scaled(scale: int) -> Callable[[Any], decimal.Decimal]:
    """Return a function that rounds a number to `scale` digits after the decimal point."""
    step = decimal.Decimal(1).scaleb(-scale)
    return lambda value: decimal.Decimal(value).quantize(step, decimal.ROUND_HALF_UP, CONTEXT)


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


def exact(value: float | None) -> decimal.Decimal | None:
    """Return the decimal number as which a DOUBLE is written, for comparisons (Java's `BigDecimal.valueOf`)."""
    return None if value is None else decimal.Decimal(repr(value))


def value_or_null(compute: Callable[[], Any]) -> Any:
    """Return a value; None, for NULL, if it cannot be computed."""
    try:
        return compute()
    except Exception:  # noqa: BLE001 - any failure
        return None


_PARTIAL = re.compile(
    r"(?P<date>\d{4}(-\d{2}(-\d{2})?)?)(T(?P<time>\d{2}(:\d{2}(:\d{2}(\.\d{1,3})?)?)?)?)?(?P<zone>Z|[+-]\d{2}:?\d{2})?"
)


def partial_timestamp(text: str) -> int:
    """Return ms since 1970 of a timestamp that may be incomplete, in UTC unless it has an offset.

    >>> partial_timestamp("2018") == partial_timestamp("2018-01-01T01:00+0100")
    True

    Raises:
        ValueError: If the text is not a timestamp.
    """
    match = _PARTIAL.fullmatch(text)
    if match is None:
        message = f"{text} is no timestamp"
        raise ValueError(message)
    date, time, zone = (match[name] or "" for name in ("date", "time", "zone"))
    whole = (
        f"{date}{'-01-01'[len(date) - 10 :] if len(date) < len('2018-01-01') else ''}T{time}{'00:00:00'[len(time) :]}"
    )
    return parsed_timestamp(f"{whole}{zone}")


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
    if not (isinstance(source, Decimal) or source in _WIDTHS or source in {Primitive.DOUBLE, Primitive.STRING}):
        return None
    to_scale, limit = scaled(target.scale), decimal.Decimal(10) ** (target.precision - target.scale)

    def convert(value: Any) -> decimal.Decimal:
        number = to_scale(repr(value) if isinstance(value, float) else value)
        if abs(number) >= limit:
            message = f"Numeric field overflow: {number} is no {target}"
            raise ValueError(message)
        return number

    return convert


def _double_text(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value == 0 or 1e-3 <= abs(value) < 1e7:  # noqa: PLR2004 - Java's bounds of plain notation
        return repr(value) if "e" not in repr(value) else f"{value:f}"
    digits, _, exponent = f"{decimal.Decimal(repr(value)).normalize():E}".partition("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def date_text(days: int) -> str:
    """Return a date, in days since 1970, as text."""
    return (_EPOCH + dt.timedelta(days=days)).date().isoformat()


def time_text(time_ms: int) -> str:
    """Return ms since midnight as text."""
    moment = (_EPOCH + dt.timedelta(milliseconds=time_ms)).time()
    text = moment.isoformat("milliseconds" if moment.microsecond else "seconds")
    return text[:5] if text.endswith(":00") and len(text) == len("00:00:00") else text


def timestamp_text(time_ms: int) -> str:
    """Return ms since 1970 as text."""
    return (_EPOCH + dt.timedelta(milliseconds=time_ms)).replace(tzinfo=None).isoformat(timespec="milliseconds")


def parsed_timestamp(text: str) -> int:
    """Return ms since 1970 of an ISO 8601 text, in UTC unless it has an offset."""
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def _parsed_time(text: str) -> int:
    moment = dt.time.fromisoformat(text)
    return ((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1000 + moment.microsecond // 1000


_TEXTS: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.BOOLEAN: lambda value: "true" if value else "false",
    Primitive.INTEGER: str,
    Primitive.BIGINT: str,
    Primitive.DOUBLE: _double_text,
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


def _within(bits: int) -> Callable[[Any], int]:
    half = 1 << (bits - 1)

    def convert(value: Any) -> int:
        number = int(value.strip()) if isinstance(value, str) else int(value)
        if isinstance(value, float | decimal.Decimal):
            return wrapped(bits)(number)
        if isinstance(value, str) and not -half <= number < half:
            message = f"{number} does not fit into {bits} bits"
            raise ValueError(message)
        return wrapped(bits)(number)

    return convert


def _begins(text: str, *words: str) -> bool:
    return bool(text) and any(word.startswith(text.lower()) for word in words)


def parsed_boolean(text: str) -> bool:
    """Return whether a text begins with `true` or `yes`, rather than with `false` or `no` (ksqlDB's `SqlBooleans`).

    >>> parsed_boolean("Y"), parsed_boolean("fal")
    (True, False)

    Raises:
        ValueError: If it begins with none of them.
    """
    if not _begins(text, "true", "yes", "false", "no"):
        message = f"{text!r} is no BOOLEAN"
        raise ValueError(message)
    return _begins(text, "true", "yes")


def _truth(text: str) -> bool:
    return _begins(text.strip(), "true", "yes")


_WIDTHS = {Primitive.INTEGER: 32, Primitive.BIGINT: 64}
_PRIMITIVE: dict[tuple[str, str], Callable[[Any], Any]] = {
    **{
        (source, str(target)): _within(bits)
        for target, bits in _WIDTHS.items()
        for source in ("INTEGER", "BIGINT", "DOUBLE", "DECIMAL", "STRING")
    },
    **{(source, "DOUBLE"): float for source in ("INTEGER", "BIGINT", "DECIMAL", "STRING")},
    ("STRING", "BOOLEAN"): _truth,
    ("STRING", "TIMESTAMP"): partial_timestamp,
    ("STRING", "DATE"): lambda text: partial_timestamp(text[:10]) // _DAY_MS,
    ("STRING", "TIME"): _parsed_time,
    ("TIMESTAMP", "DATE"): lambda value: value // _DAY_MS,
    ("TIMESTAMP", "TIME"): lambda value: value % _DAY_MS,
    ("DATE", "TIMESTAMP"): lambda value: value * _DAY_MS,
}
