"""SQL's types for Protobuf schemas, by the rules of Connect's `ProtobufData`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.sql.columns.schema_types.proto_messages import message_of
from riverrun.sql.columns.schema_types.unsupported import UnsupportedFieldError
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from riverrun.sql.columns.written_schemas import WrittenSchema

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
_DIGITS = "64"


def protobuf_type(schema: WrittenSchema, full_name: str | None) -> SqlType:
    """Return the type of a message of a schema.

    Raises:
        UnsupportedFieldError: If SQL has no type for a part of it.
        SchemaError: If the schema cannot be read, or has no such message, or several and none is named.
    """
    return _struct(message_of(schema, full_name), (), ())


def _struct(message: Any, path: tuple[str, ...], around: tuple[str, ...]) -> Struct:
    if message.full_name in around:
        raise UnsupportedFieldError(path, f"message {message.full_name} contains itself")
    within = (*around, message.full_name)
    return Struct(tuple((each.name, _of(each, (*path, each.name), within)) for each in message.fields))


def _of(field: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
    choice = field.containing_oneof
    if choice is not None and (len(choice.fields) > 1 or choice.name != f"_{field.name}"):
        raise UnsupportedFieldError(path, f"oneof {choice.name} has no type in SQL")
    if not field.is_repeated:
        return _single(field, path, around)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return Map(Primitive.STRING, _single(field.message_type.fields_by_name["value"], path, around))
    return Array(_single(field, path, around))


def _single(field: Any, path: tuple[str, ...], around: tuple[str, ...]) -> SqlType:
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
    """Return the type of decimals, whose digits Connect writes into the options of a field."""
    from confluent_kafka.schema_registry.confluent import meta_pb2  # noqa: PLC0415 - of an extra
    from google.protobuf.descriptor_pb2 import FieldOptions  # noqa: PLC0415

    options = FieldOptions.FromString(field.GetOptions().SerializeToString())  # with the extensions of this process
    given = options.Extensions[meta_pb2.field_meta].params
    return Decimal(int(given.get("precision", _DIGITS)), int(given.get("scale", "0")))
