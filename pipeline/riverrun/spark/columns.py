"""Columns of frames: the types of serdes' values, and the conversion of bytes to them. Imports no pyspark.

Numbers, text, bytes and times have columns of their kind. Typed JSON (dataclasses, TypedDicts, `msgspec.Struct`s) is a struct.
Parts without a type are JSON text, which `with_variants` turns into `VARIANT` columns. If a serde names no type
(`Serde.value_type`), its bytes are kept.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec
import pyarrow as pa
from msgspec import inspect

from riverrun.errors import USER_ERRORS, DeserializationError, RegistryError, as_exception
from riverrun.serde.api import field_names, only_type, plain_reader
from riverrun.serde.exact_values import (
    TimeMisfitError,
    end_micros,
    exact_double,
    json_of,
    micros,
    moment_in,
    refuse_cut_times,
    written_json,
)
from riverrun.serde.serdes import is_json
from riverrun.windows import Windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from riverrun.serde.api import Serde

KEY = "key"
TIME = pa.timestamp("us", "UTC")
_KEPT = (bytes, dt.datetime, dt.date, decimal.Decimal)
# Number of bits of Spark's int, and maximum number of digits of its decimals; longer ones are text.
_INT_BITS, _MAX_PRECISION = 32, 38
_LONG_TIME = re.compile(rb"(:\d\d[.,]\d{6}\d*[1-9]|[.,]\d{6}\d*[1-9]S\")")
_PLAIN: dict[type, pa.DataType] = {
    inspect.BoolType: pa.bool_(),
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.StrType: pa.string(),
    inspect.UUIDType: pa.string(),
    inspect.DecimalType: pa.string(),
    inspect.BytesType: pa.binary(),
    inspect.DateTimeType: TIME,
    inspect.DateType: pa.date32(),
}
_NARROW = {(int, 16): pa.int16(), (int, 32): pa.int32(), (float, 32): pa.float32()}
_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)
_RECORDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class FrameColumn:
    """A column of a frame.

    Args:
        of: Makes its value from the value that `read` returns.
        is_variant: Whether it holds JSON text of any shape.
    """

    name: str
    kind: pa.DataType
    of: Callable[[Any], Any] = _same
    is_variant: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of keys or values.

    Args:
        read: Converts bytes to the value from which the columns are made.
        what: `key` or `value`, for messages.
    """

    columns: tuple[FrameColumn, ...]
    read: Callable[[bytes], Any]
    what: str

    def arrays(self, data: Sequence[bytes | None], places: Callable[[int], dict[str, str | int]]) -> list[pa.Array]:
        """Return the columns of some rows; `places` returns a row's origin, for messages."""
        values = []
        for number, each in enumerate(data):
            try:
                values.append(None if each is None else self.read(each))
            # The record is not to blame for a schema registry that does not answer.
            except RegistryError:
                raise
            except USER_ERRORS as error:  # a serde may raise anything
                message = f"A {self.what} cannot be read: {as_exception(error)}"
                raise DeserializationError(message, hint=_hint(error)).at(**places(number)) from error
        return [array(column, values, places) for column in self.columns]


def array(column: FrameColumn, values: Sequence[Any], places: Callable[[int], dict[str, str | int]]) -> pa.Array:
    try:
        return pa.array([None if value is None else column.of(value) for value in values], column.kind)
    except _MISFITS:
        # Arrow does not say which value failed, so they are converted again one by one.
        for number, value in enumerate(values):
            made = value
            try:
                made = None if value is None else column.of(value)
                pa.array([made], column.kind)
            except _MISFITS as error:
                message = f"{made!r} is not of type {column.kind}, as column {column.name} requires: {error}"
                raise DeserializationError(message, hint=_hint(error)).at(**places(number)) from error
        raise


def _hint(error: BaseException) -> str | None:
    return error.hint if isinstance(error, TimeMisfitError) else None


def columns_of(name: str, serde: Serde[Any] | None) -> Columns:
    """Return the columns of a key or a value; bytes if the serde is not known or names no type.

    >>> from riverrun.serde.serdes import LONG
    >>> [(column.name, str(column.kind)) for column in columns_of("value", LONG).columns]
    [('value', 'int64')]
    """
    if serde is None or serde.value_type is None:
        return Columns((FrameColumn(name, pa.binary()),), _same, name)
    if name == KEY and get_origin(serde.value_type) is Windowed:
        (inner,) = get_args(serde.value_type)
        key = column_of(name, inner)
        start = FrameColumn("window_start", TIME, lambda windowed: micros(windowed.window.start))
        end = FrameColumn("window_end", TIME, lambda windowed: end_micros(windowed.window.end))
        own = FrameColumn(name, key.kind, lambda windowed: key.of(windowed.key), key.is_variant)
        return Columns((own, start, end), plain_reader(serde), name)
    return Columns(*whole_column(name, serde), name)


def whole_column(name: str, serde: Serde[Any]) -> tuple[tuple[FrameColumn], Callable[[bytes], Any]]:
    """Return the column for whole values of a serde, and what reads it; JSON without a type keeps its digits."""
    column, read = column_of(name, serde.value_type), exact_reader(serde)
    if not (column.is_variant and is_json(serde) and _is_open(inspect.type_info(serde.value_type))):
        return (column,), read
    return (replace(column, of=_same),), lambda data: written_json(data, read(data))


def _is_open(found: Any) -> bool:
    """Return whether a msgspec type leaves values as JSON has them, also in all parts."""
    match found:
        case inspect.UnionType():
            return all(map(_is_open, found.types))
        case inspect.DictType():
            return _is_open(found.key_type) and _is_open(found.value_type)
        case inspect.ListType():
            return _is_open(found.item_type)
        case inspect.CustomType():
            return found.cls is object
    return isinstance(found, inspect.AnyType | inspect.NoneType | inspect.StrType | inspect.BoolType)


def exact_reader(serde: Serde[Any]) -> Callable[[bytes], Any]:
    """Return what reads a serde's values, and refuses times of JSON that decoders round to microseconds."""
    read = plain_reader(serde)
    if not is_json(serde):
        return read

    def exact(data: bytes) -> Any:
        value = read(data)
        if _LONG_TIME.search(data):
            refuse_cut_times(builtin(value), msgspec.json.decode(data))
        return value

    return exact


def column_of(name: str, value_type: Any) -> FrameColumn:
    """Return the column for values of a type (`Serde.value_type`); None stands for bytes."""
    if value_type is None:
        return FrameColumn(name, pa.binary())
    narrow = _NARROW.get(_bits(value_type))
    if narrow is not None:
        return FrameColumn(name, narrow)
    kind, of = _shape(inspect.type_info(value_type), ())
    if of is json_of:
        return FrameColumn(name, pa.string(), json_of, is_variant=True)
    return FrameColumn(name, kind, lambda value: of(builtin(value)))


def field_columns(value_type: Any) -> tuple[FrameColumn, ...]:
    """Return a column for each field that all values of a type have; empty if they have none.

    The columns are made from what `builtin` returns.

    >>> import dataclasses
    >>> [column.name for column in field_columns(dataclasses.make_dataclass("Click", [("user", str), ("extra", Any)]))]
    ['user', 'extra']
    """
    found = only_type(value_type)
    if not isinstance(found, _RECORDS):
        return ()
    known = {each.encode_name: each.type for each in found.fields}
    names = field_names(found.cls) or ()
    return tuple(_field_column(name, *_shape(known[name], (found.cls,))) for name in names)


def _field_column(name: str, kind: pa.DataType, of: Callable[[Any], Any]) -> FrameColumn:
    def take(value: dict[str, Any]) -> Any:
        found = value.get(name)
        return None if found is None else of(found)

    return FrameColumn(name, kind, take, is_variant=of is json_of)


def builtin(value: Any) -> Any:
    """Return a value of a serde as built-in values, from which columns are made."""
    return msgspec.to_builtins(value, builtin_types=_KEPT)


def with_variants(frame: Any, columns: Iterable[FrameColumn]) -> Any:
    """Return the frame with `VARIANT`s in place of JSON text."""
    from pyspark.sql import functions as f

    for column in columns:
        if column.is_variant:
            frame = frame.withColumn(column.name, f.parse_json(column.name))
    return frame


def spark_schema(columns: Iterable[FrameColumn]) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema([(column.name, column.kind) for column in columns]))


def _bits(value_type: Any) -> tuple[Any, ...]:
    """Return an annotated number's type and bits."""
    return get_args(value_type)[:2] if hasattr(value_type, "__metadata__") else ()


def _shape(found: Any, within: tuple[type, ...]) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Return a msgspec type's Arrow type and a converter of built-in values to it; `within` holds the enclosing types."""
    if isinstance(found, inspect.Metadata):
        return _narrowed(found, within)
    if isinstance(found, inspect.UnionType):
        return _union(found, within)
    if isinstance(found, _RECORDS) and found.cls not in within and not getattr(found, "array_like", False):
        return _record(found, (*within, found.cls))
    if isinstance(found, inspect.CollectionType):
        item, of = _shape(found.item_type, within)
        return pa.list_(item), lambda values: [None if value is None else of(value) for value in values]
    if isinstance(found, inspect.DictType) and isinstance(found.key_type, inspect.StrType):
        item, of = _shape(found.value_type, within)
        return pa.map_(pa.string(), item), lambda values: [
            (key, None if value is None else of(value)) for key, value in values.items()
        ]
    if isinstance(found, (inspect.LiteralType, inspect.EnumType)) and _is_of_text(found):
        return pa.string(), _same
    kind = _PLAIN.get(type(found))
    made: dict[Any, Callable[[Any], Any]] = {inspect.DateTimeType: _moment, inspect.DecimalType: str}
    return (pa.string(), json_of) if kind is None else (kind, made.get(type(found), _same))


def _moment(value: Any) -> Any:
    """Return a time as columns hold it; a text is one that Python may not have."""
    if isinstance(value, str):
        return moment_in(value)
    # In UTC it may be in another year.
    return value.astimezone(dt.UTC) if value.year in {dt.MINYEAR, dt.MAXYEAR} and value.tzinfo is not None else value


def _narrowed(found: inspect.Metadata, within: tuple[type, ...]) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Return the type of a number with known bits, or with known digits."""
    known = found.extra or {}
    if known.get("bits") == _INT_BITS:
        return pa.int32(), _same
    if known.get("precision", _MAX_PRECISION + 1) <= _MAX_PRECISION:
        return pa.decimal128(known["precision"], known["scale"]), _same
    return _shape(found.type, within)


def _union(found: inspect.UnionType, within: tuple[type, ...]) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Return an optional type as that type, mixed numbers as fractions, and every other union as JSON text."""
    types = [each for each in found.types if not isinstance(each, inspect.NoneType)]
    if len(types) == 1:
        return _shape(types[0], within)
    if {type(each) for each in types} == {inspect.IntType, inspect.FloatType}:
        return pa.float64(), exact_double
    return pa.string(), json_of


def _record(found: Any, within: tuple[type, ...]) -> tuple[pa.DataType, Callable[[Any], Any]]:
    known = {each.encode_name: each.type for each in found.fields}
    fields = {name: _shape(known[name], within) for name in field_names(found.cls) or known}
    # A struct needs fields.
    if not fields:
        return pa.string(), json_of

    def of(value: dict[str, Any]) -> dict[str, Any]:
        known = ((name, make, value.get(name)) for name, (_, make) in fields.items())
        return {name: None if each is None else make(each) for name, make, each in known}

    return pa.struct([(name, kind) for name, (kind, _) in fields.items()]), of


def _is_of_text(found: Any) -> bool:
    values = found.values if isinstance(found, inspect.LiteralType) else [member.value for member in found.cls]
    return all(isinstance(value, str) for value in values)
