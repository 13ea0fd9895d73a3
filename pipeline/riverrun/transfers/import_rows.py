"""Turns rows of a source into records: keys, values, times and partitions, in parts by Spark, or one by one without it."""

from __future__ import annotations

import datetime as dt
import math
import zlib
from array import array
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.decoders import plain_json
from riverrun.errors import (
    USER_ERRORS,
    DeserializationError,
    RangeError,
    RegistryError,
    SerializationError,
    as_exception,
)
from riverrun.partitioning import partition_for
from riverrun.records import EPOCH, moment
from riverrun.spark.failures import on_executor
from riverrun.spark.ranges import time_ms
from riverrun.topics.serdes import bytes_of, exactly, from_text, key_bytes_of
from riverrun.transfers.text_files import field_text
from riverrun.transfers.text_frames import BAD, FILE, KEY, LINE, OBJECT, OWN, TIME, TIME_KIND, VALUE, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.serde.api import Serde
    from riverrun.transfers.batches import Batch
    from riverrun.transfers.specs import ImportSpec

_RISING = "rising"
# Shorter numbers may be years.
_DIGITS = r"^\s*-?[0-9]{7,}\s*$"
"""Texts of times that are ms."""
_NO_NUMBER_HINT = "Remove such numbers from the source, or write null for them: --not-a-number null."
_SHOWN_BYTES = 200
"""Maximum number of characters of a refused row to show."""
# By default, Spark leaves out columns that are null, and cuts times to ms.
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def records_of(spec: ImportSpec, frame: Any, batch: Batch) -> Any:
    """Return rows of a frame as records: part, partition, key, value and timestamp (ms), by part, in the source's order."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegerType, StructField, StructType

    frame = without_odd_numbers(frame) if spec.not_a_number == "null" and OBJECT not in frame.columns else frame
    own = frame.columns
    key, value, bad = _written(spec) if OBJECT in own else _columns(spec, frame)
    time, no_time = _time(spec, frame)
    order = f.lit(0) if spec.incremental is None else f.col(f"`{spec.incremental}`")
    rising = [] if spec.incremental is None else [_rising(frame, spec.incremental).alias(_RISING)]
    nothing = f.lit(None).cast("string")
    records = frame.select(
        *rising,
        key.cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        time.alias("timestamp"),
        order.alias("order"),
        (f.col(FILE) if FILE in own else f.input_file_name()).alias("file"),
        f.monotonically_increasing_id().alias("row"),
        (f.col(LINE) if LINE in own else f.lit(None).cast("long")).alias("line"),
        f.coalesce(f.col(BAD) if BAD in own else nothing, bad, no_time).alias("bad"),
    )
    with_place = StructType([*records.schema, StructField("partition", IntegerType())])
    placed = records.mapInArrow(_placing(spec, batch.partitions), with_place)
    in_parts = placed.withColumn("part", f.col("partition") % batch.parts)
    sorted_parts = in_parts.repartition(batch.parts, "part").sortWithinPartitions("part", "order", "file", "row")
    return sorted_parts.select("part", "partition", "key", "value", "timestamp")


def _placing(spec: ImportSpec, partitions: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that checks the times of rows before any is written, and adds their partition."""
    # The key determines the partition, as in producers. Without a key, the client library would spread rows randomly, and
    # differently in each attempt. Other columns than the incremental one may have changed in a table by the next attempt.
    unkeyed = "value" if spec.incremental is None else _RISING

    def place(batches: Iterable[Any]) -> Iterator[Any]:
        for rows in batches:
            with on_executor():
                _check(spec, rows)
                if spec.timestamp is not None:
                    _check_times(spec, rows)
            keys, others = rows.column("key").to_pylist(), rows.column(unkeyed).to_pylist()
            chosen = array(
                "i",
                (
                    partition_for(key, partitions) if key is not None else zlib.crc32(other or b"") % partitions
                    for key, other in zip(keys, others, strict=True)
                ),
            )
            column = pa.Array.from_buffers(pa.int32(), len(chosen), [None, pa.py_buffer(chosen)])
            yield rows.append_column("partition", column)

    return place


def _check_times(spec: ImportSpec, rows: Any) -> None:
    times = rows.column("timestamp")
    at = pc.index(pc.fill_null(pc.less(times, 0), spec.missing_timestamp == "fail"), True).as_py()
    if at < 0:
        return
    time_ms = times[at].as_py()
    what = "has no event time" if time_ms is None else f"has an event time before 1970 ({time_ms} ms)"
    message = f"A row of {spec.source} {what} in column {spec.timestamp}"
    hint = "Remove such rows from the source, or use the time of the import for them: --missing-timestamp now."
    raise DeserializationError(message, hint=hint if time_ms is None else None).at(**_place(rows, at))


def _check(spec: ImportSpec, rows: Any) -> None:
    problems = rows.column("bad")
    if problems.null_count == len(problems):
        return
    at = pc.index(pc.is_valid(problems), True).as_py()
    message, _, hint = f"A row of {spec.source} cannot be imported: {problems[at].as_py()}".partition("\n")
    raise DeserializationError(message, hint=hint or None).at(**_place(rows, at))


def _place(rows: Any, at: int) -> dict[str, str | int]:
    """Return the file and the line of a row, if they are known, and its key or else its value."""
    row = rows.slice(at, 1).to_pylist()[0]
    found: dict[str, str | int] = {name: row[name] for name in ("file", "line") if row[name]}
    if found and "file" in found:
        found["file"] = name_of(row["file"])
    name = "value" if row["key"] is None else "key"
    return found | ({} if row[name] is None else {name: row[name][:_SHOWN_BYTES].decode(errors="replace")})


def _written(spec: ImportSpec) -> tuple[Any, Any, Any]:
    """Return key and value of objects of JSON files, which are written as they are in the file, and no problem."""
    from pyspark.sql import functions as f

    key = f.col(KEY) if spec.key else f.lit(None)
    return key, f.col(OBJECT if spec.value is None else VALUE), f.lit(None).cast("string")


def _columns(spec: ImportSpec, frame: Any) -> tuple[Any, Any, Any]:
    """Return key and value of rows with columns, and the problem of rows with numbers that JSON does not have."""
    from pyspark.sql import functions as f

    as_json: list[str] = []
    key = f.lit(None)
    if len(spec.key) == 1:
        key = _bytes(frame, spec.key[0])
    elif spec.key:
        as_json += spec.key
        key = f.to_json(f.struct(*(f.col(f"`{name}`") for name in sorted(spec.key))), _JSON)
    if spec.value is not None:
        return key, _bytes(frame, spec.value), _odd_numbers(spec, frame, as_json)
    names = [name for name in frame.columns if name not in OWN]
    value = f.to_json(f.struct(*(f.col(f"`{name}`") for name in names)), _JSON)
    return key, value, _odd_numbers(spec, frame, names)


def _odd_numbers(spec: ImportSpec, frame: Any, names: Iterable[str]) -> Any:
    """Return the problem of rows with NaN or infinity, which JSON does not have; null for all others."""
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    if spec.not_a_number == "null":
        return nothing
    found = [
        f.when(is_odd, f.lit(f"column {name} has NaN or infinity, which JSON does not have\n{_NO_NUMBER_HINT}"))
        for name in dict.fromkeys(names)
        if (is_odd := _is_odd(f.col(f"`{name}`"), frame.schema[name].dataType)) is not None
    ]
    return f.coalesce(nothing, *found)


def _is_odd(column: Any, kind: Any) -> Any:
    """Return whether a value has a number that JSON does not have; None if its type has none."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

    if isinstance(kind, DoubleType | FloatType):
        return f.isnan(column) | (f.abs(column) == f.lit(float("inf")))
    if isinstance(kind, ArrayType):
        return None if _is_odd(column, kind.elementType) is None else f.exists(column, _any_odd(kind.elementType))
    if isinstance(kind, MapType):
        return _is_odd(f.map_values(column), ArrayType(kind.valueType))
    if isinstance(kind, StructType):
        parts = [_is_odd(column.getField(field.name), field.dataType) for field in kind.fields]
        known = [f.coalesce(part, f.lit(False)) for part in parts if part is not None]  # noqa: FBT003 - Spark's function
        return reduce(or_, known) if known else None
    return None


def _any_odd(kind: Any) -> Callable[[Any], Any]:
    from pyspark.sql import functions as f

    return lambda item: f.coalesce(_is_odd(item, kind), f.lit(False))  # noqa: FBT003 - Spark's function


def without_odd_numbers(frame: Any) -> Any:
    """Return a frame with null in place of NaN and infinity."""
    from pyspark.sql import functions as f

    kinds = {name: frame.schema[name].dataType for name in frame.columns}
    made = [_finite(f.col(f"`{name}`"), kind).alias(name) for name, kind in kinds.items()]
    return frame.select(*made)


def _finite(column: Any, kind: Any) -> Any:
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

    if _is_odd(column, kind) is None:
        return column
    if isinstance(kind, DoubleType | FloatType):
        return f.when(~_is_odd(column, kind), column)
    if isinstance(kind, ArrayType):
        return f.transform(column, lambda item: _finite(item, kind.elementType))
    if isinstance(kind, MapType):
        return f.transform_values(column, lambda _, item: _finite(item, kind.valueType))
    assert isinstance(kind, StructType)  # noqa: S101 - the only other type with parts
    parts = (_finite(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields)
    return f.when(column.isNotNull(), f.struct(*parts))


def _bytes(frame: Any, column: str) -> Any:
    """Return a column's bytes, or its text in UTF-8."""
    from pyspark.sql import functions as f

    found = f.col(f"`{column}`")
    return found if frame.schema[column].dataType.simpleString() == "binary" else found.cast("string").cast("binary")


def as_text(value: str, kind: str) -> str:
    """Return SQL that converts a value to text; times as microseconds, which do not depend on the time zone.

    >>> as_text("at", "timestamp")
    'CAST(unix_micros(at) AS STRING)'
    """
    return f"CAST({f'unix_micros({value})' if kind == 'timestamp' else value} AS STRING)"


def _rising(frame: Any, column: str) -> Any:
    """Return the bytes of the incremental column, identical in every attempt."""
    from pyspark.sql import functions as f

    return f.expr(as_text(f"`{column}`", frame.schema[column].dataType.simpleString())).cast("binary")


def _time(spec: ImportSpec, frame: Any) -> tuple[Any, Any]:
    """Return event times as ms since the epoch, and the problem of those that are no times.

    Numbers are ms, whatever type a database has for them. Texts of digits are numbers as well.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import NumericType, StringType

    nothing = f.lit(None).cast("string")
    if spec.timestamp is None:
        return f.lit(None).cast("long"), nothing
    is_written = OBJECT in frame.columns
    found = f.col(TIME if is_written else f"`{spec.timestamp}`")
    kind = StringType() if is_written else frame.schema[spec.timestamp].dataType
    if isinstance(kind, NumericType):
        return found.cast("long"), nothing
    if not isinstance(kind, StringType):
        return f.unix_millis(found.cast("timestamp")), nothing
    is_number = f.col(TIME_KIND).isin("integer", "fraction") if is_written else found.rlike(_DIGITS)
    time = f.when(is_number, found.try_cast("decimal(38, 6)").try_cast("long")).otherwise(
        f.unix_millis(found.try_cast("timestamp"))
    )
    problem = f.concat(f.lit(f"column {spec.timestamp} is not a time: "), f.substring(found, 1, _SHOWN_BYTES))
    return time, f.when(found.isNotNull() & time.isNull(), problem)


_encode = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode
# As in `_DIGITS`.
_LONG_NUMBER = 7
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row of a source that is polled.

    Args:
        fields: Its columns: Python's values, or JSON as it is written.
        place: Its place in the source, for messages.
        text: The row as a JSON object, if the source has it as such; None to make one of the columns.
        problem: Why it cannot be read; None if it can.
    """

    fields: Mapping[str, Any]
    place: str
    text: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RowForm:
    """Makes records of rows, as `records_of` does, by the fields of `ImportSpec` with the same names.

    Args:
        key_serde: Writes keys; None for text.
        value_serde: Writes values; None for text.
    """

    key: tuple[str, ...] = ()
    value: str | None = None
    timestamp: str | None = None
    missing_timestamp: str = "fail"
    not_a_number: str = "fail"
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that rows must have."""
        return tuple(name for name in (*self.key, self.value, self.timestamp) if name is not None)

    def record(self, row: SourceRow, now_ms: int) -> tuple[bytes | None, bytes | None, int]:
        """Return key, value and event time (ms since the epoch) of a row; `now_ms` is the time of rows without one."""
        try:
            if row.problem is not None:
                raise ValueError(row.problem)
            return (
                _written_by(self.key_serde, self._key(row), key_bytes_of),
                _written_by(self.value_serde, self._value(row), bytes_of),
                self._time(row, now_ms),
            )
        # The row is not to blame for a schema registry that does not answer.
        except RegistryError:
            raise
        except USER_ERRORS as error:  # a serde may raise anything
            message = f"{row.place} cannot become a record: {as_exception(error)}"
            hint = "Correct the row, or let the import skip such rows: deserialization_exception_handler."
            raise SerializationError(message, hint=hint) from error

    def shown(self, row: SourceRow) -> bytes:
        """Return a row as JSON: the value of its dead letter."""
        return _encode({"row": row.text} if row.text is not None else _plain(dict(row.fields), "null"))

    def _key(self, row: SourceRow) -> str | bytes | None:
        if not self.key:
            return None
        parts = {name: _field(row, name) for name in sorted(self.key)}
        if row.text is None:
            parts = {name: _in_one_form(value, name) for name, value in parts.items()}
        if len(self.key) == 1:
            return _text_of(parts[self.key[0]])
        return _encode(_plain(parts, self.not_a_number)).decode()

    def _value(self, row: SourceRow) -> str | bytes | None:
        if self.value is not None:
            return _text_of(_field(row, self.value))
        return row.text if row.text is not None else _encode(_plain(dict(row.fields), self.not_a_number)).decode()

    def _time(self, row: SourceRow, now_ms: int) -> int:
        found = None if self.timestamp is None else _time_of(row.fields.get(self.timestamp), self.timestamp)
        if found is None:
            if self.timestamp is not None and self.missing_timestamp == "fail":
                message = (
                    f'it has no event time in column {self.timestamp} (missing_timestamp = "now" takes the present)'
                )
                raise ValueError(message)
            return now_ms
        if found < 0:
            message = f"it has an event time before 1970 ({found} ms)"
            raise ValueError(message)
        return found


def _field(row: SourceRow, name: str) -> Any:
    if name not in row.fields:
        message = f"it has no {name}"
        raise ValueError(message)
    return row.fields[name]


def _in_one_form(value: Any, column: str) -> Any:
    """Return JSON of a database as the JSON serde writes it, in which equal objects have equal bytes.

    >>> bytes(_in_one_form(msgspec.Raw(b'{"b": 1.10, "a": [1e-400]}'), "of"))
    b'{"a":[1E-400],"b":1.1}'
    """
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return msgspec.Raw(exactly(plain_json(bytes(value))))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column {column} has JSON that cannot be a key: {error}") from error


def _text_of(value: Any) -> str | bytes | None:
    """Return a value as text or bytes, as Spark casts it."""
    if isinstance(value, msgspec.Raw):
        return field_text(value)
    if value is None or isinstance(value, str | bytes):
        return value
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, bool):
        return str(value).lower()
    return _encode(_plain(value, "fail")).decode() if isinstance(value, dict | list) else str(value)


def _written_by(
    serde: Serde[Any] | None, found: str | bytes | None, serialize: Callable[[Serde[Any], Any], bytes]
) -> bytes | None:
    if found is None or isinstance(found, bytes):
        return found
    return found.encode() if serde is None else serialize(serde, from_text(serde, found))


def _time_of(value: Any, column: str) -> int | None:
    """Return an event time, ms since the epoch; times without a zone are UTC, and numbers are ms."""
    found = field_text(value) if isinstance(value, msgspec.Raw) else value
    match found:
        case None:
            return None
        # In Python, a bool is an int.
        case bool():
            pass
        case int() | float() | Decimal():
            return int(found)
        case dt.datetime():
            return (moment(found) - EPOCH) // dt.timedelta(milliseconds=1)
        case dt.date():
            return (found - EPOCH.date()).days * _DAY_MS
        case str():
            return _time_in(found.strip(), column)
    message = f"column {column} is not a time: {str(found)[:_SHOWN_BYTES]}"
    raise ValueError(message)


def _time_in(text: str, column: str) -> int:
    if len(text) >= _LONG_NUMBER and text.lstrip("-").replace(".", "", 1).isdigit():
        return int(Decimal(text))
    try:
        return time_ms(text)
    except RangeError as error:
        message = f"column {column} is not a time: {text[:_SHOWN_BYTES]}"
        raise ValueError(message) from error


def _plain(value: Any, not_a_number: str) -> Any:
    """Return a value as JSON has it: times in UTC to the microsecond, and no other numbers than finite ones."""
    match value:
        case float() if not math.isfinite(value):
            return _odd(not_a_number)
        case Decimal() if not value.is_finite():
            return _odd(not_a_number)
        case dt.datetime():
            return moment(value).astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case memoryview() | bytearray():
            return bytes(value)
        case dict():
            return {str(name): _plain(each, not_a_number) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each, not_a_number) for each in value]
    return value


def _odd(not_a_number: str) -> None:
    if not_a_number == "fail":
        message = 'it has NaN or infinity, which JSON does not have (not_a_number = "null" writes null)'
        raise ValueError(message)
