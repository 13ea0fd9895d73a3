"""SQL's types for schemas of Avro, JSON Schema and Protobuf, by the rules of Connect's data types."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import SchemaError
from riverrun.schemas.protobuf_files import add_file, file_of
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class ReferencedSchema:
    """A schema that another one imports: the name in the import, its subject and version, and its text."""

    name: str
    subject: str
    version: int
    text: str
    references: tuple[ReferencedSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """A schema of a registry.

    Args:
        type: `AVRO`, `JSON` or `PROTOBUF`.
    """

    id: int
    type: str
    text: str
    references: tuple[ReferencedSchema, ...] = ()


def as_registered(schema: WrittenSchema) -> Any:
    """Return a schema as the registry's client expects it."""
    from confluent_kafka.schema_registry import Schema, SchemaReference  # noqa: PLC0415 - of an extra

    references = [SchemaReference(each.name, each.subject, each.version) for each in schema.references]
    return Schema(schema.text, schema.type, references)


class UnsupportedFieldError(Exception):
    """A field that has no type in SQL, with the names that lead to it."""

    def __init__(self, path: tuple[str, ...], why: str) -> None:
        """Keep both for the message."""
        super().__init__(f"field {'.'.join(path)}: {why}" if path else why)


def message_of(schema: WrittenSchema, full_name: str | None) -> Any:
    """Return the descriptor of a schema's message: the named one, or the only one."""
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - of an extra

    # A pool for each schema: in the default one, two schemas with a message of one name would collide.
    pool = DescriptorPool()
    try:
        file = _added(pool, "schema.proto", schema)
    except (TypeError, ValueError, LookupError) as error:
        raise SchemaError(f"The Protobuf schema cannot be read: {error}") from error
    package = f"{file.package}." if file.package else ""
    names = [f"{package}{name}" for name in file.message_types_by_name]
    if full_name is None and len(names) == 1:
        full_name = names[0]
    if full_name is None:
        message = f"The schema has several messages: {', '.join(names)}"
        raise SchemaError(message, hint="Name one of them, with VALUE_SCHEMA_FULL_NAME or KEY_SCHEMA_FULL_NAME.")
    try:
        return pool.FindMessageTypeByName(full_name)
    except KeyError:
        raise SchemaError(f"The schema has no message {full_name}", hint=f"There are {', '.join(names)}.") from None


def _added(pool: Any, name: str, schema: WrittenSchema | ReferencedSchema) -> Any:
    """Add the file of a schema, after those that it imports."""
    for each in schema.references:
        _added(pool, each.name, each)
    return add_file(pool, file_of(schema.text, name))


_CONNECT = "org.apache.kafka.connect.data."
_SIMPLE: dict[str, SqlType] = {
    "boolean": Primitive.BOOLEAN,
    "int": Primitive.INTEGER,
    "long": Primitive.BIGINT,
    "float": Primitive.DOUBLE,
    "double": Primitive.DOUBLE,
    "string": Primitive.STRING,
    "bytes": Primitive.BYTES,
    "enum": Primitive.STRING,
    "fixed": Primitive.BYTES,
}
_AVRO_TIMES: dict[tuple[str, str], SqlType] = {
    ("int", "date"): Primitive.DATE,
    ("int", "time-millis"): Primitive.TIME,
    ("long", "timestamp-millis"): Primitive.TIMESTAMP,
    ("int", f"{_CONNECT}Date"): Primitive.DATE,
    ("int", f"{_CONNECT}Time"): Primitive.TIME,
    ("long", f"{_CONNECT}Timestamp"): Primitive.TIMESTAMP,
}
"""Types of numbers by their logical type, or by the name that Connect gives to it."""
# Connect's precision of decimals whose schema has none.
_AVRO_DIGITS = 64


def avro_type(text: str, references: Iterable[ReferencedSchema] = ()) -> SqlType:
    return _Types(referenced(references)).of(json.loads(text), ())


def referenced(references: Iterable[ReferencedSchema]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in references:
        found |= referenced(each.references)
        found |= _definitions(json.loads(each.text), "")
    return found


def _definitions(schema: Any, space: str) -> dict[str, Any]:
    if isinstance(schema, list):
        return {name: made for each in schema for name, made in _definitions(each, space).items()}
    if not isinstance(schema, dict):
        return {}
    found: dict[str, Any] = {}
    if "name" in schema:
        name = _full_name(schema, space)
        found[name], space = {**schema, "name": name}, name.rpartition(".")[0]
    parts = [schema.get("type"), schema.get("items"), schema.get("values")]
    parts += [each["type"] for each in schema.get("fields", ())]
    return found | {name: made for each in parts for name, made in _definitions(each, space).items()}


class _Types:
    """Knows the named types of references, and those seen so far."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def of(self, schema: Any, path: tuple[str, ...], around: tuple[str, ...] = (), space: str = "") -> SqlType:
        """Return the type of a schema at a path, within the records `around` it and their namespace."""
        if isinstance(schema, list):
            return self._union(schema, path, around, space)
        if isinstance(schema, str):
            return self._by_name(schema, path, around, space)
        if not isinstance(schema["type"], str):
            return self.of(schema["type"], path, around, space)
        if schema["type"] in {"record", "error"}:
            return self._record(schema, path, around, space)
        if schema["type"] == "array":
            return self._array(schema["items"], path, around, space)
        if schema["type"] == "map":
            return Map(Primitive.STRING, self.of(schema["values"], (*path, "values"), around, space))
        return self._single(schema, path, around, space)

    def _single(self, schema: Any, path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        if "name" in schema:
            self._named[_full_name(schema, space)] = schema
        names, kind = (schema.get("logicalType"), schema.get("connect.name")), schema["type"]
        if "decimal" in names or f"{_CONNECT}Decimal" in names:
            return Decimal(int(schema.get("precision", _AVRO_DIGITS)), int(schema.get("scale", 0)))
        found = next((_AVRO_TIMES[kind, name] for name in names if (kind, name) in _AVRO_TIMES), None)
        return found or self._by_name(kind, path, around, space)

    def _by_name(self, name: str, path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        if name in _SIMPLE:
            return _SIMPLE[name]
        full = name if "." in name or not space else f"{space}.{name}"
        found = self._named.get(full, self._named.get(name))
        if found is None:
            what = "it is always null" if name == "null" else f"the type {name} is unknown"
            raise UnsupportedFieldError(path, what)
        return self.of(found, path, around, space)

    def _union(self, schemas: list[Any], path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        others = [each for each in schemas if each != "null"]
        if len(others) != 1:
            raise UnsupportedFieldError(path, "a union of several types has no type in SQL")
        return self.of(others[0], path, around, space)

    def _array(self, items: Any, path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        # Connect writes a map as an array of entries if its keys are optional, as ksqlDB's are.
        if isinstance(items, dict) and (
            items.get("connect.internal.type") == "MapEntry" or items.get("name") == "MapEntry"
        ):
            entry = self.of(items, (*path, "entries"), around, space)
            value = entry.field("value") if isinstance(entry, Struct) else None
            if value is not None:
                return Map(Primitive.STRING, value)
        return Array(self.of(items, (*path, "items"), around, space))

    def _record(self, schema: Any, path: tuple[str, ...], around: tuple[str, ...], space: str) -> SqlType:
        name = _full_name(schema, space)
        if name in around:
            raise UnsupportedFieldError(path, f"record {name} contains itself")
        self._named[name] = schema
        within, inner = (*around, name), name.rpartition(".")[0]
        return Struct(
            tuple(
                (each["name"], self.of(each["type"], (*path, each["name"]), within, inner)) for each in schema["fields"]
            )
        )


def _full_name(schema: Any, space: str) -> str:
    name = str(schema["name"])
    space = schema.get("namespace", space)
    return name if "." in name or not space else f"{space}.{name}"


_JSON_TIMES: dict[str, SqlType] = {
    f"{_CONNECT}Date": Primitive.DATE,
    f"{_CONNECT}Time": Primitive.TIME,
    f"{_CONNECT}Timestamp": Primitive.TIMESTAMP,
}
_SMALL = {"int8", "int16", "int32"}
_JSON_DIGITS = "64"
_PARTS = ("oneOf", "anyOf", "allOf")


def json_schema_type(text: str) -> SqlType:
    whole = json.loads(text)
    return _of_json_schema(whole, whole, (), ())


def _of_json_schema(schema: Any, whole: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    if not isinstance(schema, dict):
        raise UnsupportedFieldError(path, "any value is allowed")
    if "$ref" in schema:
        reference = str(schema["$ref"])
        if reference in around:
            raise UnsupportedFieldError(path, f"{reference} contains itself")
        return _of_json_schema(_pointed(reference, whole, path), whole, path, (*around, reference))
    for part in _PARTS:
        if part in schema:
            return _only(schema[part], whole, path, around)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _only([{**schema, "type": each} for each in kind], whole, path, around)
    if kind == "array":
        return _array(schema, whole, path, around)
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(schema, whole, path, around)
    return _single_of_json_schema(schema, kind, path)


def _pointed(reference: str, whole: Any, path: tuple[str, ...]) -> Any:
    """Return the part of a schema that a reference points to."""
    found = whole
    for name in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        if not reference.startswith("#") or not isinstance(found, dict) or name not in found:
            raise UnsupportedFieldError(path, f"{reference} is not in the schema")
        found = found[name]
    return found


def _only(schemas: list[Any], whole: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    others = [each for each in schemas if not (isinstance(each, dict) and each.get("type") == "null")]
    if len(others) != 1:
        raise UnsupportedFieldError(path, "a choice of several types has no type in SQL")
    return _of_json_schema(others[0], whole, path, around)


def _array(schema: Any, whole: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    items = schema.get("items")
    if schema.get("connect.type") == "map":
        raise UnsupportedFieldError(path, "maps with other keys than texts have no type in SQL")
    return Array(_of_json_schema(items, whole, (*path, "items"), around))


def _object(schema: Any, whole: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    if schema.get("connect.type") == "map" or (not properties and isinstance(others, dict)):
        return Map(Primitive.STRING, _of_json_schema(others, whole, (*path, "additionalProperties"), around))
    if not properties:
        raise UnsupportedFieldError(path, "an object without properties has no type in SQL")
    # JSON objects have no order, so Connect numbers the properties. Without numbers, the sort keeps the text's order.
    ordered = sorted(properties.items(), key=_place)
    return Struct(tuple((name, _of_json_schema(each, whole, (*path, name), around)) for name, each in ordered))


def _place(named: tuple[str, Any]) -> int:
    schema = named[1]
    return int(schema.get("connect.index", 0)) if isinstance(schema, dict) else 0


def _single_of_json_schema(schema: Any, kind: Any, path: tuple[str, ...]) -> SqlType:
    title, connect = schema.get("title"), schema.get("connect.type")
    if title == f"{_CONNECT}Decimal":
        parameters = schema.get("connect.parameters") or {}
        digits, scale = (parameters.get(name) for name in ("connect.decimal.precision", "scale"))
        return Decimal(int(digits or _JSON_DIGITS), int(scale or 0))
    if title in _JSON_TIMES:
        return _JSON_TIMES[title]
    if kind == "string" or (kind is None and "enum" in schema):
        return Primitive.BYTES if connect == "bytes" else Primitive.STRING
    if kind == "integer":
        return Primitive.INTEGER if connect in _SMALL else Primitive.BIGINT
    found: dict[Any, SqlType] = {"boolean": Primitive.BOOLEAN, "number": Primitive.DOUBLE}
    if kind not in found:
        raise UnsupportedFieldError(path, "any value is allowed" if kind is None else f"it is always {kind}")
    return found[kind]


_SCALARS: dict[str, SqlType] = {
    "BOOL": Primitive.BOOLEAN,
    "INT32": Primitive.INTEGER,
    "SINT32": Primitive.INTEGER,
    "SFIXED32": Primitive.INTEGER,
    "UINT32": Primitive.BIGINT,
    "FIXED32": Primitive.BIGINT,
    "INT64": Primitive.BIGINT,
    "UINT64": Primitive.BIGINT,
    "SINT64": Primitive.BIGINT,
    "FIXED64": Primitive.BIGINT,
    "SFIXED64": Primitive.BIGINT,
    "FLOAT": Primitive.DOUBLE,
    "DOUBLE": Primitive.DOUBLE,
    "STRING": Primitive.STRING,
    "BYTES": Primitive.BYTES,
    "ENUM": Primitive.STRING,
}
_MESSAGES: dict[str, SqlType] = {
    "google.type.Date": Primitive.DATE,
    "google.type.TimeOfDay": Primitive.TIME,
    "google.protobuf.Timestamp": Primitive.TIMESTAMP,
    "google.protobuf.BoolValue": Primitive.BOOLEAN,
    "google.protobuf.Int32Value": Primitive.INTEGER,
    "google.protobuf.UInt32Value": Primitive.BIGINT,
    "google.protobuf.Int64Value": Primitive.BIGINT,
    "google.protobuf.UInt64Value": Primitive.BIGINT,
    "google.protobuf.FloatValue": Primitive.DOUBLE,
    "google.protobuf.DoubleValue": Primitive.DOUBLE,
    "google.protobuf.StringValue": Primitive.STRING,
    "google.protobuf.BytesValue": Primitive.BYTES,
}
_FREE = frozenset(
    {"google.protobuf.Any", "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"}
)
_PROTOBUF_DIGITS = "64"


def protobuf_type(schema: WrittenSchema, full_name: str | None) -> SqlType:
    return _struct(message_of(schema, full_name), (), ())


def _struct(message: Any, path: tuple[str, ...], around: tuple[str, ...]) -> Struct:
    if message.full_name in around:
        raise UnsupportedFieldError(path, f"message {message.full_name} contains itself")
    within = (*around, message.full_name)
    return Struct(tuple((each.name, _of_protobuf(each, (*path, each.name), within)) for each in message.fields))


def _of_protobuf(field: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    # An optional field of proto3 is the only one of a oneof called `_name`.
    choice = field.containing_oneof
    if choice is not None and (len(choice.fields) > 1 or choice.name != f"_{field.name}"):
        raise UnsupportedFieldError(path, f"oneof {choice.name} has no type in SQL")
    if not field.is_repeated:
        return _single_of_protobuf(field, path, around)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return Map(Primitive.STRING, _single_of_protobuf(field.message_type.fields_by_name["value"], path, around))
    return Array(_single_of_protobuf(field, path, around))


def _single_of_protobuf(field: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    message = field.message_type
    if message is None:
        kinds = {getattr(field, f"TYPE_{name}"): type_ for name, type_ in _SCALARS.items()}
        return kinds[field.type]
    if message.full_name in _FREE:
        raise UnsupportedFieldError(path, f"{message.full_name} has no type in SQL")
    if message.full_name == "confluent.type.Decimal":
        return _decimal(field)
    return _MESSAGES.get(message.full_name) or _struct(message, path, around)


def _decimal(field: Any) -> Decimal:
    """Return the type of a decimal, whose digits Connect writes into the options of its field."""
    from confluent_kafka.schema_registry.confluent import meta_pb2  # noqa: PLC0415 - of an extra
    from google.protobuf.descriptor_pb2 import FieldOptions  # noqa: PLC0415

    # The options belong to the schema's pool, which does not know Confluent's extension: parsed again, they have it.
    options = FieldOptions.FromString(field.GetOptions().SerializeToString())
    given = options.Extensions[meta_pb2.field_meta].params
    return Decimal(int(given.get("precision", _PROTOBUF_DIGITS)), int(given.get("scale", "0")))
