"""Schemas that cases give for their topics: they answer for a registry, and records are read and written with them."""

from __future__ import annotations

import base64
import decimal
import io
import json
from typing import TYPE_CHECKING, Any

from riverrun.schemas.framed import HEAD_BYTES
from riverrun.schemas.protobuf import ProtobufFormat
from riverrun.schemas.registry import registry_of
from riverrun.sql.columns_file import SCHEMA_TYPES
from riverrun.sql.formats.protobuf_rows import written_class
from riverrun.sql.schema_types import ReferencedSchema, WrittenSchema, as_registered
from riverrun.sql.statement_files import found_in
from riverrun.sql.statements import SqlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.sql.columns_file import ReadColumns, WantedColumns

_NO_ID = 0


class CaseSchemas:
    """Finds columns in the schemas of a case (`Resolver`), and remembers for which topics they were wanted.

    Args:
        topics: The topics of the case.
    """

    def __init__(self, topics: Iterable[Any]) -> None:
        self._topics: dict[str, dict[str, Any]] = {each["name"]: each for each in topics if isinstance(each, dict)}
        self.known: dict[tuple[str, bool], tuple[WrittenSchema, str | None]] = {}

    def found(self, wanted: WantedColumns) -> ReadColumns:
        """Return the columns of a topic's schema, or of the schema with the id.

        Raises:
            SqlError: If the case has no such schema, or it has no columns.
        """
        schema = self._by_id(wanted) or self._schema(wanted.topic, wanted)
        if schema is None:
            message = (
                f"Schema for message {wanted.part}s on topic '{wanted.topic}' does not exist in the Schema Registry."
            )
            raise SqlError(message)
        self.known[wanted.topic, wanted.is_key] = schema, wanted.full_name
        return found_in(wanted, schema)

    def _by_id(self, wanted: WantedColumns) -> WrittenSchema | None:
        name = f"{wanted.part}SchemaId"
        found = (each for each, given in self._topics.items() if given.get(name) == wanted.schema_id is not None)
        return next((self._schema(each, wanted) for each in found), None)

    def _schema(self, topic: str, wanted: WantedColumns) -> WrittenSchema | None:
        given = self._topics.get(topic, {})
        schema = given.get(f"{wanted.part}Schema")
        if schema is None:
            return None
        format_ = str(given.get(f"{wanted.part}Format", wanted.format))
        type_ = SCHEMA_TYPES.get(format_, format_)
        text = schema if type_ == "PROTOBUF" else json.dumps(schema)
        references = tuple(
            ReferencedSchema(each["name"], each["name"], 1, each["schema"])
            for each in given.get(f"{wanted.part}SchemaReferences") or ()
        )
        return WrittenSchema(given.get(f"{wanted.part}SchemaId", wanted.schema_id or _NO_ID), type_, text, references)


def encoded(
    value: Any, schema: WrittenSchema, full_name: str | None, subject: str, settings: Mapping[str, Any]
) -> bytes:
    """Return the bytes of a case's value, written with a schema that is registered under a subject."""
    registry = registry_of(settings)
    if schema.type == "PROTOBUF":
        for each in schema.references:
            registry.registered(each.subject, _registered(each), normalize=False)
    number: int = registry.registered(subject, as_registered(schema), normalize=False).schema_id
    if schema.type == "PROTOBUF":
        return _message(value, schema, full_name, number)
    head = b"\0" + number.to_bytes(4, "big")
    if schema.type == "JSON":
        return head + json.dumps(value).encode()
    from fastavro import parse_schema, schemaless_writer  # noqa: PLC0415 - of an extra

    out, named = io.BytesIO(), json.loads(schema.text)
    schemaless_writer(out, parse_schema(_numbers(named)), _to_avro(named)(value))
    return head + out.getvalue()


def decoded(data: bytes, schema: WrittenSchema, full_name: str | None) -> Any:
    """Return the value of a case for bytes that were written with a schema."""
    if schema.type == "PROTOBUF":
        kind, no_registry = written_class(schema, full_name), registry_of({"url": "mock://none"})
        return ProtobufFormat(kind, is_plain=True).reader(None, no_registry)(data)
    if schema.type == "JSON":
        return json.loads(data[HEAD_BYTES:])
    from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415 - of an extra

    return schemaless_reader(io.BytesIO(data[HEAD_BYTES:]), parse_schema(_numbers(json.loads(schema.text))), None)


def _message(value: Any, schema: WrittenSchema, full_name: str | None, id_: int) -> bytes:
    from google.protobuf.json_format import ParseDict  # noqa: PLC0415 - of an extra

    kind, no_registry = written_class(schema, full_name), registry_of({"url": "mock://none"})
    message = ParseDict(_to_protobuf(kind.DESCRIPTOR, value), kind())
    return ProtobufFormat(kind, is_plain=False).writer(None, b"\0" + id_.to_bytes(4, "big"), no_registry)(message)


def _registered(schema: ReferencedSchema) -> Any:
    return as_registered(WrittenSchema(_NO_ID, "PROTOBUF", schema.text, schema.references))


def _to_protobuf(descriptor: Any, value: Any) -> Any:
    """Return a value with the fields that a message has, and decimals as their messages."""
    if value is None:
        return {}
    fields = {each.name.upper(): each for each in descriptor.fields}
    found = {fields[name.upper()]: each for name, each in value.items() if name.upper() in fields and each is not None}
    return {field.name: _field_to_protobuf(field, each) for field, each in found.items()}


def _field_to_protobuf(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.full_name == "confluent.type.Decimal":
        number = decimal.Decimal(str(value))
        scale = -int(number.as_tuple().exponent)
        unscaled = int(number.scaleb(scale))
        data = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
        return {"value": base64.b64encode(data).decode(), "scale": scale}
    return value


def _numbers(schema: Any) -> Any:
    """Return a schema whose dates and times are plain numbers, as cases write them."""
    if isinstance(schema, list):
        return [_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = frozenset() if schema.get("logicalType") == "decimal" else {"logicalType"}
    return {name: _numbers(each) for name, each in schema.items() if name not in left_out}


def _to_avro(schema: Any) -> Callable[[Any], Any]:
    """Return the function that converts a case's value to that of a schema."""
    if isinstance(schema, list):
        others = [_to_avro(each) for each in schema if each != "null"]
        return lambda value: None if value is None else others[0](value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _to_avro(kind)
    if kind == "record":
        fields = [(each["name"], _to_avro(each["type"])) for each in schema["fields"]]
        return lambda value: {name: part(value.get(name)) for name, part in fields}
    if kind in {"array", "map"}:
        part = _to_avro(schema["items" if kind == "array" else "values"])
        if kind == "array":
            return lambda value: [part(each) for each in value]
        return lambda value: {name: part(each) for name, each in value.items()}
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        return lambda value: decimal.Decimal(str(value))
    return base64.b64decode if kind in {"bytes", "fixed"} else lambda value: value
