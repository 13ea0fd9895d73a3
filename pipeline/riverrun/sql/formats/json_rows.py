"""Rows as JSON, read in one step as objects of a class that is made from the names seen in records."""

from __future__ import annotations

import base64
import decimal
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from riverrun.decoders import json_decoder
from riverrun.serde.api import Serde, WritesFields, reading_fields, writing_fields
from riverrun.sql.operators import cast
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct, columns_text
from riverrun.sql.values import RANGES, bytes_of_text, decimal_of, double_of, double_text, unfit, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

# A topic whose records never stop having new names or types would make a class per record. Beyond these numbers of names,
# classes, and records that no class reads, the plain reader reads the topic.
_MOST_NAMES = 256
_MOST_CLASSES = 32
_MOST_ODD = 1000
# Classes of values that msgspec reads as those of another class.
_ALIKE: Mapping[type, Collection[type]] = {float: {float, int, decimal.Decimal}}
# Any JSON, for names that are not columns. Not `Any`, with which the float hook would make decimals that nobody reads.
_SCALARS = int | float | str | bool | dict | list | None  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """One column.

    Args:
        declared: The type by which msgspec accepts just its values: the class, or a part of the class.
    """

    name: str
    kind: type | None
    declared: Any
    read: Callable[[Any], Any]

    @property
    def passing(self) -> type | None:
        """Return the class all of whose objects are values of the column."""
        return self.kind if self.declared is self.kind else None


class _Nothing(msgspec.Struct, gc=False):
    """An object whose names do not matter."""


@dataclass(slots=True)
class ObjectReader:
    """Reads the values of columns from objects, with names in any case (`riverrun.serde.api.ReadsFields`).

    The names of a record are unknown until one is read. A class of the names seen so far reads records without other names. It
    has the types of columns whose values had these types in all records.

    Args:
        places: The index of a part for each item of a row; None for an item that is not read.
    """

    parts: Sequence[JsonColumn]
    places: Sequence[int | None]
    plain: Callable[[Any], Sequence[Any]]
    decode: Callable[[bytes], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    known: Callable[[bytes], Any] = field(init=False)
    """Reads a row of known names as an object with the attributes `fields`; raises for other rows."""
    _held: Any = field(init=False)
    _names: dict[str, None] = field(default_factory=dict)
    _loose: set[str] = field(default_factory=set)
    _classes: int = 0
    _odd: int = 0

    def __post_init__(self) -> None:
        """Start without known names; without parts, no name matters."""
        self.known = _refuse
        self._held = msgspec.defstruct("Held", [each for each in self.fields if each is not None], gc=False)
        if not self.parts:
            self._classes = _MOST_CLASSES
            self.known = json_decoder(_Nothing).decode

    @property
    def fields(self) -> tuple[str | None, ...]:
        return tuple(None if number is None else f"f{number}" for number in self.places)

    def holding(self, row: Sequence[Any] | None) -> Any:
        """Return an object with the items of a row as attributes; None for None."""
        if row is None:
            return None
        held = {each: item for each, item in zip(self.fields, row, strict=True) if each is not None}
        return self._held(**held)

    def reader(self) -> Callable[[bytes], Any]:
        """Return the function that reads a row, or None from JSON's null."""
        values_of = msgspec.structs.astuple

        def read(data: bytes) -> Any:
            try:
                return self._row(values_of(self.known(data)))
            except (msgspec.DecodeError, TypeError, ValueError, ArithmeticError):
                # A new name or type, or a mistake in the record: the plain reader finds it again, and names the column.
                return self._read_plainly(data)

        return reading_fields(read, self)

    def _read_plainly(self, data: bytes) -> Any:
        found = self.decode(data)
        if found is None:
            return None
        # The plain reader comes first: only a record without mistakes may shape the next class.
        row = self._row(self.plain(found))
        if self._classes < _MOST_CLASSES and self._learns(found):
            self.known = self._knowing()
        return row

    def _row(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row of the parts' values; `values` may have more items after those of the parts."""
        return tuple([None if number is None else values[number] for number in self.places])

    def _learns(self, found: dict[str, Any]) -> bool:
        """Return whether a record has changed the class."""
        before = len(self._names) + len(self._loose)
        self._names.update(dict.fromkeys(found))
        spelled = self._spelled()
        for each in self.parts:
            value = found.get(spelled.get(each.name.upper(), each.name))
            if each.kind is None or (value is not None and value.__class__ not in _ALIKE.get(each.kind, {each.kind})):
                self._loose.add(each.name)
        # The class refused the record, but there is nothing to learn from it, such as a number out of its range.
        if self._classes and before == len(self._names) + len(self._loose):
            self._odd += 1
            if self._odd > _MOST_ODD:
                self._classes = _MOST_CLASSES
            return False
        self._classes += 1
        return True

    def _spelled(self) -> dict[str, str]:
        return {name.upper(): name for name in self._names}

    def _knowing(self) -> Callable[[bytes], Any]:
        """Return the function that reads records of known names."""
        # Names that differ only in case would be one column: the plain reader decides which of them counts.
        spelled, columns = self._spelled(), {each.name.upper() for each in self.parts}
        alike = [name.upper() for name in self._names if name.upper() in columns]
        if len(columns) < len(self.parts) or len(set(alike)) < len(alike) or len(self._names) > _MOST_NAMES:
            return self._without_class()
        types = [Any if each.name in self._loose or each.kind is None else each.declared | None for each in self.parts]
        names = [spelled.get(each.name.upper(), each.name) for each in self.parts]
        others = [name for name in self._names if name.upper() not in columns]
        fields = [(f"f{n}", type_, None) for n, type_ in enumerate([*types, *([_SCALARS] * len(others))])]
        renamed = {f"f{n}": name for n, name in enumerate([*names, *others])}
        # Without `forbid_unknown_fields`, a column in another spelling would be skipped, and read as NULL.
        try:
            made: Any = msgspec.defstruct("Row", fields, rename=renamed, forbid_unknown_fields=True, gc=False)
        except ValueError:  # a name that msgspec does not allow
            return self._without_class()
        return self._finishing(json_decoder(made, **self.options).decode)

    def _without_class(self) -> Callable[[bytes], Any]:
        """Return the function that reads all records by the plain reader from now on."""
        self._classes = _MOST_CLASSES
        made: Any = msgspec.defstruct("Row", [f"f{number}" for number in range(len(self.parts))], gc=False)
        return lambda data: made(*self.plain(self.decode(data)))

    def _finishing(self, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Return a function that converts columns whose types the class lacks; the given one if there are none."""
        loose = [(f"f{n}", each.passing, each.read) for n, each in enumerate(self.parts) if each.name in self._loose]

        def finished(data: bytes) -> Any:
            row = decode(data)
            for name, kind, part in loose:
                value = getattr(row, name)
                if value is not None and value.__class__ is not kind:
                    setattr(row, name, part(value))
            return row

        return finished if loose else decode


def _refuse(_data: bytes) -> Any:
    raise ValueError("no record has been read yet")


_encode = msgspec.json.Encoder(decimal_format="number").encode


def reader_of(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts a value from JSON."""
    inner = _inner_reader(type_)
    return lambda value: None if value is None else inner(value)


def _inner_reader(type_: SqlType) -> Callable[[Any], Any]:
    if isinstance(type_, Decimal):
        return decimal_of(type_)
    if isinstance(type_, Array):
        item = reader_of(type_.item)
        return lambda value: [item(each) for each in _require(value, list, type_)]
    if isinstance(type_, Map):
        to_key, to_value = cast(Primitive.STRING, type_.key) or str, reader_of(type_.value)
        return lambda value: {to_key(name): to_value(each) for name, each in _require(value, dict, type_).items()}
    if isinstance(type_, Struct):
        return _struct_reader(type_.fields)
    return _PRIMITIVE.get(type_) or whole_of(type_, is_cut=True)


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return _encode(value).decode()


def _require(value: Any, kind: type, type_: SqlType | str) -> Any:
    if not isinstance(value, kind):
        raise unfit(value, type_)
    return value


_PRIMITIVE: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.STRING: _json_text,
    Primitive.BOOLEAN: lambda value: _require(value, bool, Primitive.BOOLEAN),
    Primitive.DOUBLE: double_of,
    Primitive.BYTES: lambda value: bytes_of_text(_require(value, str, Primitive.BYTES)),
}


# Sets of names are remembered up to this number: records could have new names without end.
_SHAPES = 1000


_PLAIN: dict[SqlType, type] = {
    Primitive.BOOLEAN: bool,
    Primitive.DOUBLE: float,
    Primitive.STRING: str,
}
"""Classes of JSON values that need no conversion to SQL."""


def _declared(type_: SqlType) -> tuple[type | None, Any]:
    """Return the class of JSON values that are SQL's as they are, and the type by which msgspec finds those in range."""
    if type_ in RANGES:
        least, greatest = RANGES[type_]
        return int, Annotated[int, msgspec.Meta(ge=least, le=greatest)]
    return _PLAIN.get(type_), _PLAIN.get(type_)


def fields_reader(
    columns: Columns, reader: Callable[[SqlType], Callable[[Any], Any]] = reader_of
) -> Callable[[Any], list[Any]]:
    """Return a function that returns the values of columns from an object, with names in any case."""
    readers = [(name, _PLAIN.get(type_), reader(type_)) for name, type_ in columns]
    known: dict[tuple[str, ...], list[tuple[str | None, type | None, Callable[[Any], Any]]]] = {}

    def placed(names: tuple[str, ...]) -> list[tuple[str | None, type | None, Callable[[Any], Any]]]:
        upper = {name.upper(): name for name in names}
        found = [(name if name in names else upper.get(name.upper()), kind, part) for name, kind, part in readers]
        if len(known) < _SHAPES:
            known[names] = found
        return found

    def read(value: Any) -> list[Any]:
        found = _require(value, dict, "object")
        names = tuple(found)
        get, places = found.get, known.get(names) or placed(names)
        try:
            return [
                each if (each := get(at)) is None or each.__class__ is kind else part(each) for at, kind, part in places
            ]
        except (TypeError, ValueError, ArithmeticError):
            # Which column failed is only found out now, so that good records do not pay for it.
            for (name, _), (at, _, part) in zip(columns, places, strict=True):
                read_column(name, part, get(at))
            raise

    return read


def read_column(name: str, read: Callable[[Any], Any], value: Any) -> None:
    """Read a value again, so that its error names the column."""
    try:
        _ = None if value is None else read(value)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{name}: {error}") from None


def _struct_reader(columns: Columns) -> Callable[[Any], dict[str, Any]]:
    names, read = [name for name, _ in columns], fields_reader(columns)
    return lambda value: dict(zip(names, read(value), strict=True))


def writer_of(type_: SqlType) -> Callable[[Any], Any] | None:
    """Return the function that converts a value to JSON; None if no conversion is needed."""
    if isinstance(type_, Array):
        item = writer_of(type_.item)
        return item and (lambda value: None if value is None else [item(each) for each in value])
    if isinstance(type_, Map):
        part, name_of = writer_of(type_.value) or _itself, cast(type_.key, Primitive.STRING) or str
        return lambda value: (
            None
            if value is None
            else {"null" if name is None else name_of(name): part(each) for name, each in value.items()}
        )
    if isinstance(type_, Struct):
        parts = {name: writer_of(each) or _itself for name, each in type_.fields}
        return lambda value: None if value is None else {name: part(value.get(name)) for name, part in parts.items()}
    if type_ is Primitive.BYTES:
        return lambda value: None if value is None else base64.b64encode(value).decode()
    return _double_json if type_ is Primitive.DOUBLE else None


def _double_json(value: float | None) -> float | str | None:
    """Return a number, or the text that represents one that JSON does not support."""
    if value is None or math.isfinite(value):
        return value
    return double_text(value)


def _itself(value: Any) -> Any:
    return value


def json_serde(columns: Columns, *, wrapped: bool, used: frozenset[str] | None = None) -> Serde[Any]:
    """Return the serde of rows as JSON: an object of all columns, or a single unwrapped value."""
    write, read = json_functions(columns, wrapped=wrapped, used=used)
    unused = [] if used is None else [name for name, _ in columns if name not in used]
    # In the name, and so in the fingerprint: state that such a version has written lacks these columns.
    without = f" without {', '.join(unused)}" if unused else ""
    name = f"sql-json[{columns_text(columns)}]{without}"
    return Serde(name, write, read, remake=(_again, (columns, wrapped, used)))


def _again(columns: Columns, wrapped: bool, used: frozenset[str] | None) -> Serde[Any]:  # noqa: FBT001 - pickled
    return json_serde(columns, wrapped=wrapped, used=used)


def json_functions(
    columns: Columns, *, wrapped: bool, used: frozenset[str] | None = None
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return the functions that write and read rows as JSON. Arguments are those of `json_serde`."""
    # As floats, numbers would lose digits that a DECIMAL or a STRING has.
    options: dict[str, Any] = {"float_hook": decimal.Decimal}
    decode = json_decoder(Any, **options).decode
    if not wrapped:
        read_one, write_one = reader_of(columns[0][1]), writer_of(columns[0][1]) or _itself
        return (lambda row: _encode(write_one(row[0]))), (lambda data: (read_one(decode(data)),))
    read_columns = tuple(each for each in columns if used is None or each[0] in used)
    numbers = {name: number for number, (name, _) in enumerate(read_columns)}
    parts = [JsonColumn(name, *_declared(type_), reader_of(type_)) for name, type_ in read_columns]
    places = [numbers.get(name) for name, _ in columns]
    return _writer(columns), ObjectReader(parts, places, fields_reader(read_columns), decode, options).reader()


def _writer(columns: Columns) -> Callable[[Any], bytes]:
    """Return the function that writes rows as objects of a class, which is faster than dictionaries."""
    writers = [writer_of(type_) for _, type_ in columns]
    names = {f"f{number}": name for number, (name, _) in enumerate(columns)}
    try:
        made: Any = msgspec.defstruct("Row", list(names), rename=names, gc=False)
    except ValueError:  # a name that msgspec does not allow

        def made(*values: Any) -> dict[str, Any]:
            return dict(zip(names.values(), values, strict=True))

    if not any(writers):
        return writing_fields(lambda row: _encode(made(*row)), WritesFields(made, _encode))
    return lambda row: _encode(
        made(*[value if part is None else part(value) for part, value in zip(writers, row, strict=True)])
    )
