"""Rows as Protobuf, with or without a schema in a registry, as ksqlDB writes them through Connect's data types.

Protobuf has no NULL as a single value or in arrays and maps: NULL is read back as 0, or as an empty text or collection. With
`VALUE_PROTOBUF_NULLABLE_REPRESENTATION`, single values keep NULL: they are `OPTIONAL` or have a `WRAPPER`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.extras import require_extra
from riverrun.schemas.framed import framed
from riverrun.schemas.protobuf import ProtobufFormat
from riverrun.schemas.protobuf_files import DECIMAL_FILE, add_file, is_same_file
from riverrun.schemas.protobuf_types import plain_of
from riverrun.serde.api import Serde
from riverrun.sql.formats.avro_fields import of_avro
from riverrun.sql.formats.protobuf_written import filling, message_filler
from riverrun.sql.operators import CONTEXT, cast
from riverrun.sql.schema_types import as_registered, message_of
from riverrun.sql.statements import SqlError, nearest
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct, columns_text
from riverrun.sql.values import EPOCH, RANGES, decimal_of, whole_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.schemas.framed import Read, Write
    from riverrun.schemas.registry import RegistryClient
    from riverrun.schemas.subjects import Registration
    from riverrun.serde.api import SerdePlace
    from riverrun.sql.schema_types import WrittenSchema

_FULL_NAME = "ConnectDefault1"
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NULLABLE = ("OPTIONAL", "WRAPPER")
# A DECIMAL of 64 digits has 27 bytes. Longer ones are refused before they are converted to digits.
_DECIMAL_BYTES = 32
_KEYS = frozenset({Primitive.STRING, Primitive.INTEGER, Primitive.BIGINT, Primitive.BOOLEAN})
_SCALARS: dict[SqlType, tuple[str, str]] = {
    Primitive.BOOLEAN: ("TYPE_BOOL", "BoolValue"),
    Primitive.INTEGER: ("TYPE_INT32", "Int32Value"),
    Primitive.BIGINT: ("TYPE_INT64", "Int64Value"),
    Primitive.DOUBLE: ("TYPE_DOUBLE", "DoubleValue"),
    Primitive.STRING: ("TYPE_STRING", "StringValue"),
    Primitive.BYTES: ("TYPE_BYTES", "BytesValue"),
}
"""Names of scalar types, and of the messages that wrap them."""
_MESSAGES: dict[SqlType, tuple[str, str]] = {
    Primitive.DATE: ("google.type.Date", "google/type/date.proto"),
    Primitive.TIME: ("google.type.TimeOfDay", "google/type/timeofday.proto"),
    Primitive.TIMESTAMP: ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
}
"""Messages that represent times, and their files."""


def protobuf_serde(
    columns: Columns,
    full_name: str | None,
    nullable: str | None = None,
    *,
    has_registry: bool,
    schema: WrittenSchema | None = None,
) -> Serde[Any]:
    """Return the serde of rows as Protobuf messages.

    Messages of a registry are read by the schema that they were written with; columns are matched by name in any case.
    """
    require_extra("schemas")
    if nullable is not None and nullable not in _NULLABLE:
        message = f"NULLs of Protobuf are represented as OPTIONAL or WRAPPER, not {nullable}"
        raise SqlError(message, hint=nearest(nullable, _NULLABLE))
    _check(columns)
    made_of = ProtobufRows(columns, full_name if schema else full_name or _FULL_NAME, nullable, schema)
    remake = (_again, (columns, full_name, nullable, has_registry, schema))
    if has_registry:
        return framed(f"sql-protobuf[{columns_text(columns)}]", made_of, {}, remake, None, is_same=is_same_file)
    kind, fill, read = made_of.kind, _filler(columns, nullable), _fields_of(columns)
    plain = plain_of(kind.DESCRIPTOR)
    # Deterministic: equal keys must be equal bytes, whatever the order of the entries of a map.
    return Serde(
        f"sql-protobuf-nosr[{columns_text(columns)}]",
        lambda row: bytes(fill(kind(), row).SerializeToString(deterministic=True)),
        lambda data: tuple(read(plain(kind.FromString(data))).values()),
        remake=remake,
    )


def _again(
    columns: Columns,
    full_name: str | None,
    nullable: str | None,
    has_registry: bool,  # noqa: FBT001 - pickled
    schema: WrittenSchema | None,
) -> Serde[Any]:
    return protobuf_serde(columns, full_name, nullable, has_registry=has_registry, schema=schema)


@dataclass(frozen=True, slots=True)
class ProtobufRows:
    """The format of Protobuf serdes (`SchemaFormat`)."""

    columns: Columns
    full_name: str | None
    nullable: str | None
    written: WrittenSchema | None = None

    @property
    def kind(self) -> Any:
        if self.written is not None:
            return written_class(self.written, self.full_name)
        return _class(self.columns, self.full_name or _FULL_NAME, self.nullable)

    @property
    def form(self) -> str | None:
        """Return the requested form of schemas: as files of protoc."""
        return self._messages.form

    @property
    def _messages(self) -> ProtobufFormat:
        return ProtobufFormat(self.kind, is_plain=False)

    def prepared(self, registry: RegistryClient, place: SerdePlace, registration: Registration) -> Any:
        """Return the schema; registries have the files that it imports."""
        if self.written is not None:
            return as_registered(self.written)
        return self._messages.prepared(registry, place, registration)

    def record_name(self, schema: Any) -> str | None:
        return self._messages.record_name(schema)

    def writer(self, schema: Any, head: bytes, registry: RegistryClient) -> Write:
        kind, write = self.kind, self._messages.writer(schema, head, registry)
        if self.written is None:
            fill = _filler(self.columns, self.nullable)
        else:
            fill = message_filler(kind.DESCRIPTOR, self.columns, _written_filler)
        return lambda row: write(fill(kind(), row))

    @property
    def payload(self) -> None:
        """Return None: the schema has the names of the fields."""
        return

    def reader(self, schema: Any, registry: RegistryClient) -> Read:
        """Return the function that reads rows written with a schema."""
        messages, fields = ProtobufFormat(None, is_plain=True).reader(schema, registry), _fields_of(self.columns)
        return lambda data: tuple(fields(messages(data)).values())


@functools.cache
def written_class(schema: WrittenSchema, full_name: str | None) -> Any:
    """Return the class of a message of a registry's schema, one per process."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - of an extra

    return GetMessageClass(message_of(schema, full_name))


def _check(columns: Columns) -> None:
    for name, type_ in columns:
        if not _NAME.fullmatch(name):
            message = f"Schema is not compatible with Protobuf: column `{name}` has a name that Protobuf does not allow"
            raise SqlError(message, hint="Names consist of letters, digits and _, and do not begin with a digit.")
        _check_type(name, type_, is_inner=False)


def _check_type(name: str, type_: SqlType, *, is_inner: bool) -> None:
    problem = None
    if isinstance(type_, Array | Map) and is_inner:
        problem = "PROTOBUF format does not support arrays and maps directly within arrays and maps"
    elif isinstance(type_, Map) and type_.key not in _KEYS:
        problem = f"PROTOBUF format does not support maps with keys of {type_.key}"
    if problem is not None:
        raise SqlError(f"{problem}: column `{name}`", hint="Put the inner array or map into a STRUCT.")
    if isinstance(type_, Array | Map):
        _check_type(name, type_.item if isinstance(type_, Array) else type_.value, is_inner=True)
    if isinstance(type_, Struct):
        _check(type_.fields)


# Descriptors


@functools.cache
def _class(columns: Columns, full_name: str, nullable: str | None) -> Any:
    """Return the class of messages with these fields, one per process."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - of an extra
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

    package, _, name = full_name.rpartition(".")
    file = FileDescriptorProto(name=f"{full_name}.proto", package=package, syntax="proto3")
    made = _Descriptors(file, nullable)
    made.fill(file.message_type.add(name=name), columns)
    file.dependency.extend(sorted(made.imports))
    pool = DescriptorPool()
    add_file(pool, file)
    return GetMessageClass(pool.FindMessageTypeByName(full_name))


class _Descriptors:
    """Adds fields to the messages of a file."""

    def __init__(self, file: Any, nullable: str | None) -> None:
        self.imports: set[str] = set()
        self._nullable = nullable
        self._count = 1
        self._package = f".{file.package}" if file.package else ""

    def fill(self, message: Any, columns: Columns, around: str = "") -> None:
        """Add the fields of columns to a message, which may be nested in others."""
        path = f"{around}.{message.name}"
        for number, (name, type_) in enumerate(columns, 1):
            field = message.field.add(name=name, number=number, label="LABEL_OPTIONAL")
            if isinstance(type_, Array):
                field.label = field.LABEL_REPEATED
                self._set_type(field, type_.item, message, path)
            elif isinstance(type_, Map):
                self._set_entries(field, type_, message, path)
            else:
                self._set_type(field, type_, message, path)
                self._set_presence(field, type_, message)

    def _set_type(self, field: Any, type_: SqlType, message: Any, path: str) -> None:
        if type_ in _SCALARS:
            field.type = getattr(field, _SCALARS[type_][0])
            return
        field.type = field.TYPE_MESSAGE
        if isinstance(type_, Struct):
            self._count += 1
            inner = message.nested_type.add(name=f"ConnectDefault{self._count}")
            field.type_name = f"{self._package}{path}.{inner.name}"
            self.fill(inner, type_.fields, path)
            return
        name, file = ("confluent.type.Decimal", DECIMAL_FILE) if isinstance(type_, Decimal) else _MESSAGES[type_]
        field.type_name = f".{name}"
        self.imports.add(file)

    def _set_presence(self, field: Any, type_: SqlType, message: Any) -> None:
        if type_ not in _SCALARS or self._nullable is None:
            return
        # In descriptors, an optional field of proto3 is the only one of a oneof with this name.
        if self._nullable == "OPTIONAL":
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
            return
        field.type, field.type_name = field.TYPE_MESSAGE, f".google.protobuf.{_SCALARS[type_][1]}"
        self.imports.add("google/protobuf/wrappers.proto")

    def _set_entries(self, field: Any, type_: Map, message: Any, path: str) -> None:
        # The name that protoc gives to the entries of a map.
        name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        self._set_type(entry.field.add(name="key", number=1, label="LABEL_OPTIONAL"), type_.key, entry, path)
        value = entry.field.add(name="value", number=2, label="LABEL_OPTIONAL")
        self._set_type(value, type_.value, message, path)
        field.label, field.type, field.type_name = (
            field.LABEL_REPEATED,
            field.TYPE_MESSAGE,
            f"{self._package}{path}.{name}",
        )


# Writing


def _filler(columns: Columns, nullable: str | None) -> Callable[[Any, Any], Any]:
    """Return a function that sets the fields of a message to the values of a row, and returns it."""
    return filling([(name, _setter(type_, is_wrapped=nullable == "WRAPPER")) for name, type_ in columns])


def _setter(type_: SqlType, *, is_wrapped: bool) -> Callable[[Any, str, Any], None]:
    if isinstance(type_, Array):
        return _array_setter(type_.item, is_wrapped=is_wrapped)
    if isinstance(type_, Map):
        return _map_setter(type_.value, is_wrapped=is_wrapped)
    if type_ not in _SCALARS:
        into = _message_filler(type_, is_wrapped=is_wrapped)
        return lambda message, name, value: into(getattr(message, name), value)
    if is_wrapped:
        return lambda message, name, value: _set_wrapped(getattr(message, name), value)
    return setattr


def _set_wrapped(message: Any, value: Any) -> None:
    message.SetInParent()
    message.value = value


def _array_setter(item: SqlType, *, is_wrapped: bool) -> Callable[[Any, str, Any], None]:
    if item in _SCALARS:
        empty = _EMPTY[item]
        return lambda message, name, value: getattr(message, name).extend(empty if v is None else v for v in value)
    into = _message_filler(item, is_wrapped=is_wrapped)

    def put(message: Any, name: str, value: Any) -> None:
        for each in value:
            into(getattr(message, name).add(), each)

    return put


def _map_setter(type_: SqlType, *, is_wrapped: bool) -> Callable[[Any, str, Any], None]:
    if type_ in _SCALARS:
        empty = _EMPTY[type_]
        return lambda message, name, value: getattr(message, name).update(
            {key: empty if each is None else each for key, each in value.items()}
        )
    into = _message_filler(type_, is_wrapped=is_wrapped)

    def put(message: Any, name: str, value: Any) -> None:
        for key, each in value.items():
            into(getattr(message, name)[key], each)

    return put


def _message_filler(type_: SqlType, *, is_wrapped: bool) -> Callable[[Any, Any], None]:
    """Return a function that fills the message of a value; for NULL it stays empty."""
    fill: Callable[[Any, Any], Any]
    if isinstance(type_, Struct):
        fields = _filler(type_.fields, "WRAPPER" if is_wrapped else None)
        fill = functools.partial(_fill_struct, fields, [name for name, _ in type_.fields])
    elif isinstance(type_, Decimal):
        fill = functools.partial(_fill_decimal, type_)
    else:
        fill = _FILLERS[type_]

    def into(message: Any, value: Any) -> None:
        if hasattr(message, "SetInParent"):
            message.SetInParent()
        if value is not None:
            fill(message, value)

    return into


def _written_filler(type_: SqlType) -> Callable[[Any, Any], None]:
    """Return a function that fills the message of a decimal or a time in a named schema."""
    return _message_filler(type_, is_wrapped=False)


def _fill_struct(fields: Callable[[Any, Any], Any], names: list[str], message: Any, value: Any) -> None:
    fields(message, [value.get(name) for name in names])


def _fill_decimal(type_: Decimal, message: Any, value: decimal.Decimal) -> None:
    unscaled = int(value.scaleb(type_.scale, CONTEXT))
    message.value = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    message.precision, message.scale = type_.precision, type_.scale


def _fill_date(message: Any, days: int) -> None:
    day = (EPOCH + dt.timedelta(days=days)).date()
    message.year, message.month, message.day = day.year, day.month, day.day


def _fill_time(message: Any, time_ms: int) -> None:
    seconds, milliseconds = divmod(time_ms, 1000)
    minutes, message.seconds = divmod(seconds, 60)
    message.hours, message.minutes = divmod(minutes, 60)
    message.nanos = milliseconds * 1_000_000


def _fill_timestamp(message: Any, time_ms: int) -> None:
    message.FromMilliseconds(time_ms)


_FILLERS: dict[SqlType, Callable[[Any, Any], None]] = {
    Primitive.DATE: _fill_date,
    Primitive.TIME: _fill_time,
    Primitive.TIMESTAMP: _fill_timestamp,
}
_EMPTY: dict[SqlType, Any] = {
    Primitive.BOOLEAN: False,
    Primitive.INTEGER: 0,
    Primitive.BIGINT: 0,
    Primitive.DOUBLE: 0.0,
    Primitive.STRING: "",
    Primitive.BYTES: b"",
}

# Reading


def _of_protobuf(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts a plain value from Protobuf."""
    inner = _inner_of_protobuf(type_)
    return lambda value: None if value is None else inner(value)


def _inner_of_protobuf(type_: SqlType) -> Callable[[Any], Any]:
    if isinstance(type_, Decimal):
        return functools.partial(_decimal, decimal_of(type_))
    if isinstance(type_, Array):
        item = _of_protobuf(type_.item)
        return lambda value: [item(each) for each in value]
    if isinstance(type_, Map):
        to_key, part = cast(Primitive.STRING, type_.key) or str, _of_protobuf(type_.value)
        return lambda value: {to_key(name): part(each) for name, each in value.items()}
    if isinstance(type_, Struct):
        return _fields_of(type_.fields)
    if type_ not in RANGES:
        return of_avro(type_)
    whole, number_of = whole_of(type_), _TIMES.get(type_)
    return whole if number_of is None else lambda value: whole(number_of(value))


def _fields_of(columns: Columns) -> Callable[[Any], dict[str, Any]]:
    readers = [(name, name.upper(), _of_protobuf(type_)) for name, type_ in columns]

    def read(value: Any) -> dict[str, Any]:
        upper = {name.upper(): each for name, each in value.items()}
        return {name: read(value.get(name, upper.get(alike))) for name, alike, read in readers}

    return read


def _decimal(exact: Callable[[Any], decimal.Decimal], value: Any) -> decimal.Decimal:
    if not isinstance(value, dict):
        return exact(value)
    if len(value["value"]) > _DECIMAL_BYTES:
        raise ValueError(f"a DECIMAL of {len(value['value'])} bytes")
    unscaled = decimal.Decimal(int.from_bytes(value["value"], "big", signed=True))
    return exact(unscaled.scaleb(-value["scale"], CONTEXT))


def _days(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # In a `google.type.Date`, 0 stands for a part that is not specified.
    day = dt.date(value["year"] or 1, value["month"] or 1, value["day"] or 1)
    return (day - EPOCH.date()).days


def _time_ms(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    seconds = (value["hours"] * 60 + value["minutes"]) * 60 + value["seconds"]
    return seconds * 1000 + value["nanos"] // 1_000_000


def _timestamp_ms(value: Any) -> Any:
    return (value - EPOCH) // dt.timedelta(milliseconds=1) if isinstance(value, dt.datetime) else value


_TIMES: dict[SqlType, Callable[[Any], Any]] = {
    Primitive.DATE: _days,
    Primitive.TIME: _time_ms,
    Primitive.TIMESTAMP: _timestamp_ms,
}
