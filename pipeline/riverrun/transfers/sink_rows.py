"""Makes rows for sinks: the columns of a topic's keys and values, and the records of a partition as Arrow batches.

Columns have the names that frames of gates have: fields of values have their own names, and Riverrun's columns begin with an
underscore. A key with named fields is one column for each of them, `_key_NAME` if the value has a field with that name.
Any other key is `_key`. Windowed keys have `_window_start` and `_window_end` as well.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec
import pyarrow as pa

from riverrun.decoders import json_decoder
from riverrun.errors import ConfigError
from riverrun.processor.sinks import JSON_FIELD, OFFSET, PARTITION, TIMESTAMP, RefusedRecordsError, SinkBatch
from riverrun.records import RAW_KEY, RAW_OFFSET, RAW_TIMESTAMP, RAW_VALUE
from riverrun.schemas.framed import HEAD_BYTES, MAGIC
from riverrun.serde.exact_values import (
    LAST_MS,
    exact_double,
    micros,
    rows_with_odd_numbers,
    written_json,
)
from riverrun.serde.serdes import JSON, is_json
from riverrun.serde.windowed import of_any_size
from riverrun.spark.columns import (
    TIME,
    Columns,
    FrameColumn,
    array,
    builtin,
    column_of,
    exact_reader,
    field_columns,
    whole_column,
)
from riverrun.windows import Windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from riverrun.records import RawFields, TopicPartition
    from riverrun.serde.api import Serde

_TYPES: Mapping[str, Any] = {
    "boolean": bool,
    "bigint": int,
    "double": float,
    "string": str,
    "timestamp": dt.datetime,
    "date": dt.date,
    "json": Any,
}
"""Python types by the names that configurations have for them (`riverrun.config.exports.COLUMN_TYPES`)."""
_WINDOW = ("_window_start", "_window_end")
_any = json_decoder(Any).decode
_TIME = FrameColumn(TIMESTAMP, TIME, micros)
_OWN = frozenset({"_key", *_WINDOW, TIMESTAMP, PARTITION, OFFSET})


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Makes rows of records, by the columns of keys and of values."""

    key: Columns
    value: Columns
    fields_of: Callable[[bytes], Collection[str]] | None = None
    """Returns the names of the fields that a value has; None if each value is a whole row."""

    @classmethod
    def of(
        cls,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        declared: Mapping[str, str],
        names: Sequence[str] = (),
        *,
        keeps_absent: bool = False,
    ) -> SinkRows:
        """Return the rows of a topic.

        Args:
            key_serde: Reads keys.
            value_serde: Reads values.
            declared: Types of columns by name, for JSON values without a type; empty for the columns of the serde.
            names: Names for the columns of the key; empty for their own.
            keeps_absent: Whether columns without a field in the record keep their values.
        """
        value = _declared(value_serde, declared) if declared else _value_part(value_serde)
        key = _key_part(of_any_size(key_serde), {column.name for column in value.columns})
        if names:
            key = _renamed(key, names)
        every = [column.name for column in (*key.columns, *value.columns)] + [TIMESTAMP, PARTITION, OFFSET]
        twice = sorted({name for name in every if every.count(name) > 1})
        if twice:
            message = f"Two columns have the name {twice[0]}"
            raise ConfigError(message, hint="Name the columns of the key with key = [...].")
        return cls(key, value, _fields_reader(value_serde, value) if keeps_absent else None)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Return the names of the columns of the key."""
        return tuple(column.name for column in self.key.columns)

    @property
    def schema(self) -> Any:
        """Return the columns as an Arrow schema."""
        found = [
            pa.field(column.name, column.kind, metadata=JSON_FIELD if column.is_variant else None)
            for column in (*self.key.columns, *self.value.columns)
        ]
        return pa.schema([*found, (TIMESTAMP, TIME), (PARTITION, pa.int32()), (OFFSET, pa.int64())])

    def batch(self, tp: TopicPartition, records: Sequence[RawFields]) -> SinkBatch:
        def place(number: int) -> dict[str, str | int]:
            return {"topic": tp.topic, "partition": tp.partition, "offset": records[number][RAW_OFFSET]}

        keys, values = [record[RAW_KEY] for record in records], [record[RAW_VALUE] for record in records]
        arrays = [
            *self.key.arrays(keys, place),
            *self.value.arrays(values, place),
            array(_TIME, [record[RAW_TIMESTAMP] for record in records], place),
            pa.array([tp.partition] * len(records), pa.int32()),
            pa.array([record[RAW_OFFSET] for record in records], pa.int64()),
        ]
        found = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return SinkBatch(tp, found, [value is None for value in values], self._absent(values))

    def _absent(self, values: Sequence[bytes | None]) -> list[frozenset[str]]:
        if self.fields_of is None:
            return []
        names = frozenset(column.name for column in self.value.columns)
        return [frozenset() if value is None else names.difference(self.fields_of(value)) for value in values]


def _fields_reader(serde: Serde[Any], value: Columns) -> Callable[[bytes], Collection[str]]:
    """Return the function that returns the names of the fields that a value has."""
    is_framed = serde.name.startswith("json_schema")
    if [column.name for column in value.columns] == ["value"] or not (is_json(serde) or is_framed):
        message = f'absent_fields = "keep" needs JSON with fields, and values have serde {serde.name}'
        raise ConfigError(message, hint="Declare the columns ([exports.NAME.columns]), or leave absent_fields out.")
    read = json_decoder(dict[str, msgspec.Raw] | None).decode
    # Where the head of a schema is part of the value, the first byte is no JSON.
    return lambda data: read(data[HEAD_BYTES:] if is_framed and data[0] == MAGIC else data) or {}


def _value_part(serde: Serde[Any]) -> Columns:
    """Return one column for each field of values, or the column `value` for values without a fixed set of fields."""
    if serde.value_type is None:
        return Columns((column_of("value", None),), bytes, "value")
    read, columns = exact_reader(serde), field_columns(serde.value_type)
    if not columns:
        return Columns(*whole_column("value", serde), "value")
    _refuse_own([column.name for column in columns])
    return Columns(columns, lambda data: builtin(read(data)), "value")


def _key_part(serde: Serde[Any], taken: set[str]) -> Columns:
    """Return the columns of keys, whose names differ from those that values have taken."""
    if serde.value_type is None:
        return Columns((column_of("_key", None),), bytes, "key")
    read = exact_reader(serde)
    if get_origin(serde.value_type) is not Windowed:
        columns, of = _key_columns(serde.value_type, taken)
        return Columns(columns, lambda data: of(read(data)), "key")
    columns, of = _key_columns(get_args(serde.value_type)[0], taken)
    inner = [_of_part(column, 0) for column in columns]
    window = [_of_part(FrameColumn(name, TIME, _bound), 1 + at) for at, name in enumerate(_WINDOW)]

    def parts(data: bytes) -> tuple[Any, int, int]:
        windowed = read(data)
        return of(windowed.key), windowed.window.start, windowed.window.end

    return Columns((*inner, *window), parts, "key")


def _key_columns(kind: Any, taken: set[str]) -> tuple[tuple[FrameColumn, ...], Callable[[Any], Any]]:
    """Return the columns of keys of a type, and the function that prepares a key for them."""
    columns = field_columns(kind)
    if not columns:
        return (column_of("_key", kind),), _same
    named = [f"_key_{each.name}" if each.name in taken or each.name in _OWN else each.name for each in columns]
    return tuple(replace(column, name=name) for column, name in zip(columns, named, strict=True)), builtin


def _same(value: Any) -> Any:
    return value


def _of_part(column: FrameColumn, at: int) -> FrameColumn:
    of = column.of
    return replace(column, of=lambda parts: None if parts[at] is None else of(parts[at]))


def _bound(time_ms: int) -> int:
    """Return a bound of a window in µs."""
    # A window without an end gets the latest time, as columns of a key cannot be null.
    return micros(min(time_ms, LAST_MS))


def _renamed(key: Columns, names: Sequence[str]) -> Columns:
    if len(names) != len(key.columns):
        known = ", ".join(column.name for column in key.columns)
        message = f"key has {len(names)} names, but the key of the topic has the columns {known}"
        raise ConfigError(message, hint="Name each of them, in this order, or leave key out.")
    renamed = zip(key.columns, names, strict=True)
    return replace(key, columns=tuple(replace(column, name=name) for column, name in renamed))


def _declared(serde: Serde[Any], declared: Mapping[str, str]) -> Columns:
    """Return the declared columns of JSON values. Other fields are left out, and missing ones are null."""
    if serde.name != JSON.name:
        message = f"columns are declared, but values have serde {serde.name}"
        raise ConfigError(message, hint="Declare columns only of JSON values without a type (serde json).")
    _refuse_own(declared)
    # As they are written: decoders round times to microseconds, whole numbers to doubles, and fractions of JSON.
    written = {"timestamp": str, "double": int | float, "json": msgspec.Raw}
    types = [written.get(kind, _TYPES[kind]) for kind in declared.values()]
    fields = [
        (f"f{number}", type_ if type_ is msgspec.Raw else type_ | None, None) for number, type_ in enumerate(types)
    ]
    rename = {f"f{number}": name for number, name in enumerate(declared)}
    row = msgspec.defstruct("Row", fields, rename=rename)
    read = json_decoder(row).decode
    made = [column_of(name, _TYPES[kind]) for name, kind in declared.items()]
    makes = {pa.float64(): exact_double}
    exact = (replace(each, of=_same if each.is_variant else makes.get(each.kind, each.of)) for each in made)
    columns = tuple(_of_part(column, at) for at, column in enumerate(exact))

    def parts(data: bytes) -> tuple[Any, ...]:
        found = msgspec.structs.astuple(read(data))
        return tuple(written_json(each, _any(each)) if isinstance(each, msgspec.Raw) else each for each in found)

    return Columns(columns, parts, "value")


def require_numbers(batch: SinkBatch, names: Iterable[str], what: str, *, nan_only: bool = False) -> None:
    """Refuse records with NaN, or an infinity, in columns for which the target, or JSON, has neither."""
    odd = "NaN" if nan_only else "NaN or infinity"
    found = (
        (row, f"has {odd} in column {name}, which {what} does not have")
        for name in names
        for row in rows_with_odd_numbers(batch.records.column(name), nan_only=nan_only)
    )
    refuse(batch, found, "Write null or a text instead")


def refuse(batch: SinkBatch, found: Iterable[tuple[int, str]], remedy: str) -> None:
    """Refuse records of a batch, if there are any, by row and what is wrong with it."""
    offsets = batch.records.column(OFFSET)
    reasons = {}
    for row, problem in found:
        offset = offsets[row].as_py()
        reasons[batch.tp, offset] = f"Record {batch.tp}@{offset} {problem}"
    if reasons:
        hint = f"{remedy}, or let the export skip such records: deserialization_exception_handler."
        raise RefusedRecordsError(next(iter(reasons.values())), reasons, hint=hint)


def _refuse_own(names: Mapping[str, str] | Sequence[str]) -> None:
    taken = sorted(_OWN & set(names))
    if taken:
        message = f"Values have a field {taken[0]}, which is the name of a column of Riverrun's own"
        raise ConfigError(message, hint="Rename the field; its serde may write it under the old name.")
