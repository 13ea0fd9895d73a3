"""Rows as JSON with a JSON Schema in a registry, as ksqlDB writes them through Connect's data types."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import SchemaError
from riverrun.extras import require_extra
from riverrun.schemas.framed import HEAD_BYTES, Payload, framed
from riverrun.schemas.schema_text import is_same_json
from riverrun.sql.formats.json_rows import json_functions
from riverrun.sql.schema_types import as_registered
from riverrun.sql.types import Array, Columns, Decimal, Map, Primitive, SqlType, Struct, columns_text

if TYPE_CHECKING:
    from riverrun.schemas.framed import Read, Write
    from riverrun.schemas.registry import RegistryClient
    from riverrun.schemas.subjects import Registration
    from riverrun.serde.api import Serde, SerdePlace
    from riverrun.sql.schema_types import WrittenSchema

_DRAFT = "http://json-schema.org/draft-07/schema#"
_CONNECT = "org.apache.kafka.connect.data"
_SIMPLE: dict[SqlType, dict[str, Any]] = {
    Primitive.BOOLEAN: {"type": "boolean"},
    Primitive.INTEGER: {"type": "integer", "connect.type": "int32"},
    Primitive.BIGINT: {"type": "integer", "connect.type": "int64"},
    Primitive.DOUBLE: {"type": "number", "connect.type": "float64"},
    Primitive.STRING: {"type": "string"},
    Primitive.BYTES: {"type": "string", "connect.type": "bytes"},
    **{
        type_: {"type": "integer", "title": f"{_CONNECT}.{name}", "connect.version": 1, "connect.type": kind}
        for type_, name, kind in (
            (Primitive.DATE, "Date", "int32"),
            (Primitive.TIME, "Time", "int32"),
            (Primitive.TIMESTAMP, "Timestamp", "int64"),
        )
    },
}


def json_schema_serde(columns: Columns, *, wrapped: bool, schema: WrittenSchema | None = None) -> Serde[Any]:
    """Return the serde of rows as JSON with a schema: an object of all columns, or a single unwrapped value."""
    require_extra("schemas")
    name = f"sql-json-sr[{columns_text(columns)}]"
    return framed(
        name,
        JsonSchemaRows(columns, wrapped, schema),
        {},
        (_again, (columns, wrapped, schema)),
        None,
        is_same=is_same_json,
    )


def _again(columns: Columns, wrapped: bool, schema: WrittenSchema | None) -> Serde[Any]:  # noqa: FBT001 - pickled
    return json_schema_serde(columns, wrapped=wrapped, schema=schema)


@dataclass(frozen=True, slots=True)
class JsonSchemaRows:
    """The format of JSON serdes with a schema (`SchemaFormat`)."""

    columns: Columns
    wrapped: bool
    written: WrittenSchema | None = None

    @property
    def form(self) -> str | None:
        """Return the requested form of schemas: as they were registered."""
        return None

    def schema(self) -> dict[str, Any]:
        """Return the writer's schema."""
        # A schema of a single value names its draft, by which registries recognise the format.
        return _object(self.columns) if self.wrapped else {"$schema": _DRAFT, **_schema(self.columns[0][1])}

    def prepared(self, registry: RegistryClient, place: SerdePlace, registration: Registration) -> Any:  # noqa: ARG002
        if self.written is not None:
            return as_registered(self.written)
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - of an extra

        return Schema(json.dumps(self.schema()), "JSON")

    def record_name(self, schema: Any) -> str | None:
        title = json.loads(schema.schema_str).get("title")
        return None if title is None else str(title)

    def writer(self, schema: Any, head: bytes, registry: RegistryClient) -> Write:  # noqa: ARG002 - columns have the types
        write, _ = json_functions(self.columns, wrapped=self.wrapped)
        return lambda row: head + write(row)

    def reader(self, schema: Any, registry: RegistryClient) -> Read:  # noqa: ARG002 - JSON is read without it
        """Return the function that reads rows, whatever schema they were written with."""
        if schema.schema_type != "JSON":
            raise SchemaError(
                f"A record has a schema of {schema.schema_type or 'AVRO'}, but the format of the source is JSON_SR"
            )
        read = self.payload.read
        return lambda data: read(data[HEAD_BYTES:])

    @property
    def payload(self) -> Payload:
        _, read = json_functions(self.columns, wrapped=self.wrapped)
        return Payload(read, lambda _: HEAD_BYTES)


def _object(columns: Columns) -> dict[str, Any]:
    properties = {
        name: {"connect.index": number, "oneOf": [{"type": "null"}, _schema(type_)]}
        for number, (name, type_) in enumerate(columns)
    }
    return {"type": "object", "properties": properties}


def _schema(type_: SqlType) -> dict[str, Any]:
    if isinstance(type_, Decimal):
        return {
            "type": "number",
            "title": f"{_CONNECT}.Decimal",
            "connect.version": 1,
            "connect.type": "bytes",
            "connect.parameters": {"scale": str(type_.scale), "connect.decimal.precision": str(type_.precision)},
        }
    if isinstance(type_, Array):
        return {"type": "array", "items": {"oneOf": [{"type": "null"}, _schema(type_.item)]}}
    if isinstance(type_, Map):
        values = {"oneOf": [{"type": "null"}, _schema(type_.value)]}
        return {"type": "object", "connect.type": "map", "additionalProperties": values}
    return _object(type_.fields) if isinstance(type_, Struct) else _SIMPLE[type_]
