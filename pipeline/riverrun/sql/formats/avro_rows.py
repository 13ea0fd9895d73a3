"""Rows as Avro with a schema in a registry, as ksqlDB writes them through Connect's data types (`AvroDataTranslator`).

The schema is that of the columns, or one of the registry that a statement names by its id, which may have more fields.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError, SchemaError
from riverrun.extras import require_extra
from riverrun.generated import NotGenerated
from riverrun.schemas.avro.parsing import is_same_schema, parsed
from riverrun.schemas.avro.plain_reading import plain_reader
from riverrun.schemas.avro.reading import generated_reader
from riverrun.schemas.avro.values import Tags
from riverrun.schemas.avro.writing import writer_of
from riverrun.schemas.framed import framed
from riverrun.sql.formats.avro_fields import fields_of_avro, of_avro, row_of
from riverrun.sql.schema_types import as_registered, referenced
from riverrun.sql.statements import SqlError
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct, columns_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.schemas.framed import Read, Write
    from riverrun.schemas.registry import RegistryClient
    from riverrun.schemas.subjects import Registration
    from riverrun.serde.api import Serde, SerdePlace
    from riverrun.sql.schema_types import WrittenSchema


def check_written(text: str, columns: Columns) -> None:
    """Make sure that a schema has no required field that is not a column."""
    schema, names = json.loads(text), {name for name, _ in columns}
    for field in schema["fields"] if isinstance(schema, dict) and schema.get("type") == "record" else ():
        if field["name"] not in names and "default" not in field and not _is_nullable(field["type"]):
            message = f"Missing default value for required Avro field: [{field['name']}]. The query has no such column"
            raise SqlError(message, hint="Add the column, or name a schema in which the field has a default.")


def row_converter(schema: WrittenSchema, columns: Columns) -> Callable[[Any], Any]:
    """Return the function that converts rows to the records of a schema."""
    convert = _written_record(_schemas(schema), Struct(columns))
    names = [name for name, _ in columns]
    return lambda row: convert(dict(zip(names, row, strict=True)))


def value_converter(schema: WrittenSchema, type_: SqlType) -> Callable[[Any], Any]:
    """Return the function that converts values of one column to those of a schema."""
    return _converter(_schemas(schema), type_)


def _schemas(schema: WrittenSchema) -> _Schemas:
    named = {name.rpartition(".")[2]: each for name, each in referenced(schema.references).items()}
    return _Schemas(json.loads(schema.text), named)


class _Schemas:
    """A schema, and the schemas with names that are in it."""

    def __init__(self, schema: Any, named: dict[str, Any]) -> None:
        self.named = named
        self.schema = self._plain(schema)

    def part(self, schema: Any) -> _Schemas:
        return _Schemas(schema, self.named)

    def _plain(self, schema: Any) -> Any:
        """Return the only schema of a union other than null, or the schema that a name stands for."""
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            return self._plain(others[0]) if len(others) == 1 else schema
        if isinstance(schema, str):
            return self.named.get(schema.rpartition(".")[2], schema)
        if "name" in schema:
            self.named[str(schema["name"]).rpartition(".")[2]] = schema
        return self._plain(schema["type"]) if isinstance(schema["type"], dict | list) else schema


def _is_nullable(schema: Any) -> bool:
    return isinstance(schema, list) and "null" in schema


def _converter(schemas: _Schemas, type_: SqlType) -> Callable[[Any], Any]:
    schema = schemas.schema
    match type_:
        case Array():
            item = _converter(schemas.part(schema["items"]), type_.item)
            return lambda value: None if value is None else [item(each) for each in value]
        case Map():
            return _map(schemas, type_)
        case Struct():
            return _written_record(schemas, type_)
    return lambda value: value


def _map(schemas: _Schemas, type_: Map) -> Callable[[Any], Any]:
    schema = schemas.schema
    if schema["type"] == "map":
        part = _converter(schemas.part(schema["values"]), type_.value)
        return lambda value: None if value is None else {name: part(each) for name, each in value.items()}
    entry = schemas.part(schema["items"])
    fields = {each["name"]: each["type"] for each in entry.schema["fields"]}
    part = _converter(entry.part(fields["value"]), type_.value)
    return lambda value: None if value is None else [{"key": name, "value": part(each)} for name, each in value.items()]


def _written_record(schemas: _Schemas, type_: Struct) -> Callable[[Any], Any]:
    parts = []
    for field in schemas.schema["fields"]:
        known = type_.field(field["name"])
        if known is not None:
            parts.append((field["name"], _converter(schemas.part(field["type"]), known), "default" in field))

    def convert(value: Any) -> Any:
        if value is None:
            return None
        # A NULL of a field with a default is written as the default, as by Connect.
        made = {name: (part(value.get(name)), has_default) for name, part, has_default in parts}
        return {name: each for name, (each, has_default) in made.items() if each is not None or not has_default}

    return convert


_FULL_NAME = "io.confluent.ksql.avro_schemas.KsqlDataSourceSchema"
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = frozenset({"date", "time-millis", "timestamp-millis", "local-timestamp-millis", "local-timestamp-micros"})
_CONNECT = "org.apache.kafka.connect.data"
_SIMPLE: dict[SqlType, Any] = {
    Primitive.BOOLEAN: "boolean",
    Primitive.INTEGER: "int",
    Primitive.BIGINT: "long",
    Primitive.DOUBLE: "double",
    Primitive.STRING: "string",
    Primitive.BYTES: "bytes",
    **{
        type_: {"type": kind, "connect.version": 1, "connect.name": f"{_CONNECT}.{name}", "logicalType": logical}
        for type_, kind, name, logical in (
            (Primitive.DATE, "int", "Date", "date"),
            (Primitive.TIME, "int", "Time", "time-millis"),
            (Primitive.TIMESTAMP, "long", "Timestamp", "timestamp-millis"),
        )
    },
}


def avro_serde(
    columns: Columns, full_name: str | None, *, wrapped: bool, schema: WrittenSchema | None = None
) -> Serde[Any]:
    """Return the serde of rows as Avro: a record of all columns, or a single unwrapped value.

    Records are read by the schema that they were written with; columns are matched by name in any case.
    """
    require_extra("schemas")
    if wrapped:
        _check(columns)
    if schema is not None:
        only = columns[0][1]
        check_written(schema.text, only.fields if isinstance(only, Struct) and not wrapped else columns)
    made_of = AvroRows(columns, full_name or _FULL_NAME, wrapped, schema)
    name = f"sql-avro[{columns_text(columns)}]"
    return framed(name, made_of, {}, (_again, (columns, full_name, wrapped, schema)), None, is_same=is_same_schema)


def _again(columns: Columns, full_name: str | None, wrapped: bool, schema: WrittenSchema | None) -> Serde[Any]:  # noqa: FBT001 - pickled
    return avro_serde(columns, full_name, wrapped=wrapped, schema=schema)


@dataclass(frozen=True, slots=True)
class AvroRows:
    """The format of Avro serdes (`SchemaFormat`)."""

    columns: Columns
    full_name: str
    wrapped: bool
    written: WrittenSchema | None = None

    @property
    def form(self) -> str | None:
        """Return the requested form of schemas: as they were registered."""
        return None

    def schema(self) -> Any:
        """Return the writer's schema, as parsed JSON."""
        if self.wrapped:
            return _record(self.full_name, self.columns)
        return _schema(self.columns[0][1], self.full_name)

    def prepared(self, registry: RegistryClient, place: SerdePlace, registration: Registration) -> Any:  # noqa: ARG002
        if self.written is not None:
            return as_registered(self.written)
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - of an extra

        return Schema(json.dumps(self.schema()), "AVRO")

    def record_name(self, schema: Any) -> str | None:
        """Return the full name of its record; None for single values."""
        found = json.loads(schema.schema_str)
        if not isinstance(found, dict) or "name" not in found:
            return None
        return f"{found['namespace']}.{found['name']}" if "namespace" in found else str(found["name"])

    def writer(self, schema: Any, head: bytes, registry: RegistryClient) -> Write:
        known = _parsed(schema, registry)
        parts = [(name, _to_avro(type_) or _same) for name, type_ in self.columns]
        only = parts[0][1]
        if self.written is not None:
            return _writer_of(known, head, self._to_written(self.written))

        def plain(row: Any) -> Any:
            if not self.wrapped:
                return only(row[0])
            return {name: part(value) for (name, part), value in zip(parts, row, strict=True)}

        return _writer_of(known, head, plain)

    def _to_written(self, schema: WrittenSchema) -> Callable[[Any], Any]:
        """Return the function that converts rows to values of the named schema."""
        if self.wrapped:
            return row_converter(schema, self.columns)
        convert = value_converter(schema, self.columns[0][1])
        return lambda row: convert(row[0])

    @property
    def payload(self) -> None:
        """Return None: Avro cannot be read without its schema."""
        return

    def reader(self, schema: Any, registry: RegistryClient) -> Read:
        """Return the function that reads rows written with a schema; generated, unless the schema is not covered."""
        known = _parsed(schema, registry)
        plain = self.plain_reader(known)
        try:
            if self.wrapped:
                return generated_reader(known, None, row_of(self.columns, known), plain)
            single, read = of_avro(self.columns[0][1]), generated_reader(known, None, None, _plain_value(known))
        except NotGenerated:
            return plain
        return lambda data: (single(read(data)),)

    def plain_reader(self, known: Any) -> Read:
        """Return a function that reads rows, a call per value."""
        read = _plain_value(known)
        if not self.wrapped:
            single = of_avro(self.columns[0][1])
            return lambda data: (single(read(data)),)
        fields = fields_of_avro(self.columns)
        return lambda data: tuple(fields(read(data)).values())


def _plain_value(known: Any) -> Read:
    # Without tags for the branches of unions: a column has one type, whatever the branch.
    return plain_reader(known, None, None)


def _writer_of(known: Any, head: bytes, plain: Callable[[Any], Any]) -> Write:
    write = writer_of(known, head, Tags())
    return lambda row: write(plain(row))


def _check(columns: Columns) -> None:
    for name, type_ in columns:
        if not _NAME.fullmatch(name):
            message = f"Schema is not compatible with Avro: column `{name}` has a name that Avro does not allow"
            raise SqlError(message, hint="Names consist of letters, digits and _, and do not begin with a digit.")
        if isinstance(type_, Map) and type_.key is not Primitive.STRING:
            raise SqlError(f"Avro only supports MAPs with STRING keys: column `{name}` is a {type_}")
        if isinstance(type_, Struct):
            _check(type_.fields)


def _plain_times(schema: Any) -> Any:
    """Return a schema that reads dates and times as plain numbers."""
    # SQL has numbers, too, and Python's dates and times end with the year 9999.
    if isinstance(schema, list):
        return [_plain_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = {"logicalType"} if schema.get("logicalType") in _PLAIN else frozenset[str]()
    return {name: _plain_times(each) for name, each in schema.items() if name not in left_out}


def _parsed(schema: Any, registry: RegistryClient) -> Any:
    if schema.schema_type not in {None, "AVRO"}:
        raise SchemaError(f"A record has a schema of {schema.schema_type}, but the format of the source is AVRO")
    try:
        return parsed(schema, registry, _plain_times)
    except ConfigError as error:
        raise SchemaError(f"The schema of a record cannot be read: {error.message}") from error


def _record(full_name: str, columns: Columns) -> Any:
    namespace, _, name = full_name.rpartition(".")
    # Names of inner records are ksqlDB's: a registry would take others for another schema.
    fields = [
        {"name": column, "type": ["null", _schema(type_, f"{full_name}_{column}")], "default": None}
        for column, type_ in columns
    ]
    return {"type": "record", "name": name, **({"namespace": namespace} if namespace else {}), "fields": fields}


def _schema(type_: SqlType, full_name: str) -> Any:
    if isinstance(type_, Decimal):
        return {
            "type": "bytes",
            "scale": type_.scale,
            "precision": type_.precision,
            "connect.version": 1,
            "connect.parameters": {"scale": str(type_.scale), "connect.decimal.precision": str(type_.precision)},
            "connect.name": f"{_CONNECT}.Decimal",
            "logicalType": "decimal",
        }
    if isinstance(type_, Array):
        return {"type": "array", "items": ["null", _schema(type_.item, full_name)]}
    if isinstance(type_, Map):
        entry = _record(full_name, (("key", type_.key), ("value", type_.value)))
        entry["fields"][1]["type"][1] = _schema(type_.value, f"{full_name}_MapValue")
        return {"type": "array", "items": {**entry, "connect.internal.type": "MapEntry"}, "connect.name": full_name}
    if isinstance(type_, Struct):
        return {**_record(full_name, type_.fields), "connect.name": full_name}
    return _SIMPLE[type_]


def _same(value: Any) -> Any:
    return value


def _to_avro(type_: SqlType) -> Callable[[Any], Any] | None:
    """Return the function that converts a value to Avro; None if no conversion is needed."""
    if isinstance(type_, Array):
        item = _to_avro(type_.item)
        return item and (lambda value: None if value is None else [item(each) for each in value])
    if isinstance(type_, Map):
        part = _to_avro(type_.value) or _same
        return lambda value: (
            None if value is None else [{"key": name, "value": part(each)} for name, each in value.items()]
        )
    if isinstance(type_, Struct):
        parts = {name: _to_avro(each) or _same for name, each in type_.fields}
        return lambda value: None if value is None else {name: part(value.get(name)) for name, part in parts.items()}
    return None
