"""Columns of Kafka Connect and Debezium, as JSON shows them: dates and times as ISO 8601, decimals as text with all digits."""

from __future__ import annotations

import base64
import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Convert: TypeAlias = "Callable[[Any], Any]"

_DAY_MICROS = 86_400_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - these columns have no time zone
_DECLARED = re.compile(r"(?P<name>[\w.]+?)(?:\((?P<scale>\d+)\))?(?: (?P<mode>precise|string))?")
# Python's years are 1 to 9999. The calendar repeats after 400 years.
_CYCLE_YEARS, _CYCLE_DAYS, _LAST_YEAR = 400, 146_097, 9999
_EXPANDED = re.compile(r"(?P<year>[+-]?\d{4,})(?P<rest>-\d\d-\d\d.*)")
_DECIMAL_TEXT = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?|NaN|-?Infinity")
_MAYBE_BASE64 = re.compile(r"([A-Za-z0-9+/]{4})+")
_DATE = re.compile(r"[+-]?\d{4,}-\d\d-\d\d")


class Schema(msgspec.Struct):
    """A schema of Kafka Connect (`org.apache.kafka.connect.data.Schema`), as its JSON converter writes it."""

    type: str
    field: str = ""
    name: str | None = None
    parameters: dict[str, str] = {}
    fields: list[Schema] = []
    items: Schema | None = None
    values: Schema | None = None


# PostgreSQL's infinite dates and times, as its connector writes them: those of its JDBC driver, also in other units.
_INFINITE_DAYS = {
    2_146_033_979: "infinity",
    # Of connectors with a fault in the sign.
    -2_147_472_692: "infinity",
    -2_147_472_691: "-infinity",
}
_INFINITE_MILLIS = {
    9_223_372_036_825_200: "infinity",
    -9_223_372_036_832_400: "-infinity",
    9_223_372_036_825_200_000: "infinity",
    -9_223_372_036_832_400_000: "-infinity",
}
_INFINITE_MICROS = {
    9_223_372_036_825_200_000: "infinity",
    -9_223_372_036_832_400_000: "-infinity",
}
_INFINITE_ZONED = {"+292278994-08-16T23:00:00Z": "infinity", "-292275055-05-16T23:00:00Z": "-infinity"}
_INFINITE_NANOS = {2**63 - 1: "infinity", -(2**63): "-infinity"}


def _date(days: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days)).isoformat()
    except OverflowError:
        return _INFINITE_DAYS.get(days) or _expanded(days)


def _expanded(days: int) -> str:
    """Return a day of any year as ISO 8601: `+10000-01-01`, and `-0043-03-15` for 44 BC."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    found = date(1970, 1, 1) + timedelta(rest)
    year = found.year + _CYCLE_YEARS * cycles
    sign = "-" if year < 0 else "+" if year > _LAST_YEAR else ""
    return f"{sign}{abs(year):04d}{found.isoformat()[4:]}"


def days_of_text(text: str) -> int:
    """Return the days since 1970 of a date in ISO 8601, of any year. A time or a zone may follow.

    >>> days_of_text("1970-01-02Z"), days_of_text(_expanded(-(10**6)))
    (1, -1000000)
    """
    found = _DATE.match(text)
    within, days = year_within(found.group() if found else text)
    return (date.fromisoformat(within) - date(1970, 1, 1)).days + days


def year_within(text: str) -> tuple[str, int]:
    """Return a date or a time in a year that Python has, and the days from there to the year of the text.

    >>> year_within("+10000-01-01T00:00:00")
    ('2000-01-01T00:00:00', 2921940)
    """
    if text in {"infinity", "-infinity"}:
        raise ValueError(f"{text} is later or earlier than any number: only a text can hold it")
    found = _EXPANDED.fullmatch(text)
    if found is None or 0 < (year := int(found["year"])) <= _LAST_YEAR:
        return text, 0
    cycles = (year - 2000) // _CYCLE_YEARS
    return f"{year - cycles * _CYCLE_YEARS}{found['rest']}", cycles * _CYCLE_DAYS


def _micros(per_micro: int, micros_per: int) -> Callable[[int], tuple[int, str]]:
    """Return the function from a number to microseconds, and the text of the nanoseconds that they lack."""
    # Python's times have microseconds, so the digits of nanoseconds are appended as text.

    def micros(value: int) -> tuple[int, str]:
        whole, rest = divmod(value * micros_per, per_micro)
        return whole, f"{rest:03d}" if rest else ""

    return micros


_MILLIS, _MICROS, _NANOS = _micros(1, 1000), _micros(1, 1), _micros(1000, 1)


def _with_nanos(text: str, nanos: str) -> str:
    if not nanos:
        return text
    return text + nanos if "." in text else f"{text}.000000{nanos}"


def _timestamp(micros_of: Callable[[int], tuple[int, str]], infinite: Mapping[int, str]) -> Convert:
    def convert(value: int) -> str:
        if value in infinite:
            return infinite[value]
        micros, nanos = micros_of(value)
        try:
            return _with_nanos((_EPOCH + timedelta(microseconds=micros)).isoformat(), nanos)
        except OverflowError:
            days, of_day = divmod(micros, _DAY_MICROS)
            return f"{_expanded(days)}T{_of_day(of_day, nanos)}"

    return convert


def _of_day(micros: int, nanos: str) -> str:
    return _with_nanos((_EPOCH + timedelta(microseconds=micros)).time().isoformat(), nanos)


def _time(micros_of: Callable[[int], tuple[int, str]]) -> Convert:
    def convert(value: int) -> str:
        micros, nanos = micros_of(abs(value))
        if value >= 0 and micros < _DAY_MICROS:
            return _of_day(micros, nanos)
        # PostgreSQL has 24:00, and MySQL times of -838 to 838 hours.
        hours, rest = divmod(micros, 3_600_000_000)
        return f"{'-' if value < 0 else ''}{hours:02d}{_of_day(rest, nanos)[2:]}"

    return convert


def _duration(micros_of: Callable[[int], tuple[int, str]]) -> Convert:
    return lambda value: msgspec.to_builtins(timedelta(microseconds=micros_of(value)[0]))


def _decimal(scale: int, mode: str | None = "precise") -> Convert:
    """Return the converter of decimals; without a mode, it refuses what may be a text, or bytes as base64."""

    def convert(value: Any) -> str:
        if not isinstance(value, str):
            # `decimal.handling.mode` is `double`, or the converter writes numbers (`decimal.format`).
            return str(value)
        if mode != "precise" and _DECIMAL_TEXT.fullmatch(value):
            if mode is None and _MAYBE_BASE64.fullmatch(value):
                declared = f"{DECIMAL}({scale})"
                raise ValueError(
                    f"{value} is a decimal as text, or bytes as base64. Declare which, by decimal.handling.mode of the "
                    f"connector: {declared} string, or {declared} precise"
                )
            return value
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        digits = tuple(int(digit) for digit in str(abs(unscaled)))
        return format(Decimal((int(unscaled < 0), digits, -scale)), "f")

    return convert


def _variable_decimal(value: Mapping[str, Any]) -> str:
    return str(_decimal(int(value["scale"]))(value["value"]))


def _zoned(text: str) -> str:
    return _INFINITE_ZONED.get(text, text)


# By the name of the schema. Others are texts and numbers already: `Interval`, `Year`, `Uuid`, `Json`.
_CONVERTERS: Mapping[str, Convert] = {
    "io.debezium.time.Date": _date,
    "io.debezium.time.Time": _time(_MILLIS),
    "io.debezium.time.MicroTime": _time(_MICROS),
    "io.debezium.time.NanoTime": _time(_NANOS),
    "io.debezium.time.Timestamp": _timestamp(_MILLIS, _INFINITE_MILLIS),
    "io.debezium.time.MicroTimestamp": _timestamp(_MICROS, _INFINITE_MICROS),
    "io.debezium.time.NanoTimestamp": _timestamp(_NANOS, _INFINITE_NANOS),
    "io.debezium.time.ZonedTimestamp": _zoned,
    "io.debezium.time.MicroDuration": _duration(_MICROS),
    "io.debezium.time.NanoDuration": _duration(_NANOS),
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "org.apache.kafka.connect.data.Date": _date,
    "org.apache.kafka.connect.data.Time": _time(_MILLIS),
    "org.apache.kafka.connect.data.Timestamp": _timestamp(_MILLIS, _INFINITE_MILLIS),
}
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def column_converter(schema: Schema) -> Convert | None:
    """Return the converter of a column; None if its values stay as they are."""
    if schema.name == DECIMAL:
        return _nullable(_decimal(int(schema.parameters.get("scale", "0"))))
    known = _CONVERTERS.get(schema.name or "")
    if known is not None:
        return _nullable(known)
    if schema.type == "struct":
        return row_converter({each.field: column_converter(each) for each in schema.fields})
    inner = schema.items or schema.values
    part = None if inner is None else column_converter(inner)
    return None if part is None else _nullable(_parts(part))


def row_converter(columns: Mapping[str, Convert | None]) -> Convert | None:
    """Return the converter of a row; None if it stays as it is. It names the column that cannot be read in a `ValueError`."""
    changing = [(name, convert) for name, convert in columns.items() if convert is not None]
    if not changing:
        return None

    def row(found: dict[str, Any]) -> dict[str, Any]:
        for name, convert in changing:
            if found.get(name) is not None:
                try:
                    found[name] = convert(found[name])
                except (ValueError, TypeError, ArithmeticError, KeyError) as error:
                    raise ValueError(f"column {name}: {error}") from error
        return found

    return _nullable(row)


def declared_converters(types: Mapping[str, str]) -> Convert | None:
    """Return the converter of rows whose columns have declared types.

    Types have the names of Debezium's and Kafka Connect's: `io.debezium.time.Date`, or, with its scale,
    `org.apache.kafka.connect.data.Decimal(2)`, followed by `string` or `precise` if digits alone could be both.
    """
    return row_converter({column: _declared(column, text) for column, text in types.items()})


def _declared(column: str, text: str) -> Convert:
    found = _DECLARED.fullmatch(text)
    name = found["name"] if found else text
    if found and name == DECIMAL:
        return _decimal(int(found["scale"] or 0), found["mode"])
    if name not in _CONVERTERS:
        message = f"column {column}: there is no type {text!r}. Types are {DECIMAL}(SCALE), {', '.join(_CONVERTERS)}"
        raise ValueError(message)
    return _CONVERTERS[name]


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _parts(convert: Convert) -> Convert:
    def parts(found: Any) -> Any:
        if isinstance(found, dict):
            return {name: convert(each) for name, each in found.items()}
        return [convert(each) for each in found]

    return parts
