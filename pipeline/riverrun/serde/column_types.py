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
_DECLARED = re.compile(r"(?P<name>[\w.]+?)(?:\((?P<scale>\d+)\))?")


class Schema(msgspec.Struct):
    """A schema of Kafka Connect (`org.apache.kafka.connect.data.Schema`), as its JSON converter writes it."""

    type: str
    field: str = ""
    name: str | None = None
    parameters: dict[str, str] = {}
    fields: list[Schema] = []
    items: Schema | None = None
    values: Schema | None = None


def _date(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days)).isoformat()


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


def _timestamp(micros_of: Callable[[int], tuple[int, str]]) -> Convert:
    def convert(value: int) -> str:
        micros, nanos = micros_of(value)
        return _with_nanos((_EPOCH + timedelta(microseconds=micros)).isoformat(), nanos)

    return convert


def _time(micros_of: Callable[[int], tuple[int, str]]) -> Convert:
    def convert(value: int) -> str:
        micros, nanos = micros_of(value)
        if not 0 <= micros < _DAY_MICROS:
            message = f"{value} is not a time of day"
            raise ValueError(message)
        return _with_nanos((_EPOCH + timedelta(microseconds=micros)).time().isoformat(), nanos)

    return convert


def _duration(micros_of: Callable[[int], tuple[int, str]]) -> Convert:
    return lambda value: msgspec.to_builtins(timedelta(microseconds=micros_of(value)[0]))


def _unscaled(value: Any) -> int:
    return int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)


def _decimal(scale: int) -> Convert:
    def convert(value: Any) -> str:
        if not isinstance(value, str):
            # `decimal.handling.mode` is `double`: digits are lost already.
            return str(value)
        unscaled = _unscaled(value)
        digits = tuple(int(digit) for digit in str(abs(unscaled)))
        return format(Decimal((int(unscaled < 0), digits, -scale)), "f")

    return convert


def _variable_decimal(value: Mapping[str, Any]) -> str:
    return str(_decimal(int(value["scale"]))(value["value"]))


# By the name of the schema. Others are texts and numbers already: `ZonedTimestamp`, `Interval`, `Year`, `Uuid`, `Json`.
_CONVERTERS: Mapping[str, Convert] = {
    "io.debezium.time.Date": _date,
    "io.debezium.time.Time": _time(_MILLIS),
    "io.debezium.time.MicroTime": _time(_MICROS),
    "io.debezium.time.NanoTime": _time(_NANOS),
    "io.debezium.time.Timestamp": _timestamp(_MILLIS),
    "io.debezium.time.MicroTimestamp": _timestamp(_MICROS),
    "io.debezium.time.NanoTimestamp": _timestamp(_NANOS),
    "io.debezium.time.MicroDuration": _duration(_MICROS),
    "io.debezium.time.NanoDuration": _duration(_NANOS),
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "org.apache.kafka.connect.data.Date": _date,
    "org.apache.kafka.connect.data.Time": _time(_MILLIS),
    "org.apache.kafka.connect.data.Timestamp": _timestamp(_MILLIS),
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
                    message = f"column {name}: {error}"
                    raise ValueError(message) from error
        return found

    return _nullable(row)


def declared_converters(types: Mapping[str, str]) -> Convert | None:
    """Return the converter of rows whose columns have declared types.

    Types have the names of Debezium's and Kafka Connect's: `io.debezium.time.Date`, or, with its scale,
    `org.apache.kafka.connect.data.Decimal(2)`.
    """
    return row_converter({column: _declared(column, text) for column, text in types.items()})


def _declared(column: str, text: str) -> Convert:
    found = _DECLARED.fullmatch(text)
    name = found["name"] if found else text
    if found and name == DECIMAL:
        return _decimal(int(found["scale"] or 0))
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
