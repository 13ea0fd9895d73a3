"""Page views in each format: a serde, and the values that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from rows import AVRO, JSON_SCHEMA, PROTOBUF
from rows import JSON as PLAIN

from riverrun import JSON, Avro, JsonSchema, Protobuf

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import Serde

_TYPES = {
    int: FieldDescriptorProto.TYPE_INT64,
    str: FieldDescriptorProto.TYPE_STRING,
    bool: FieldDescriptorProto.TYPE_BOOL,
}


class View(msgspec.Struct):
    """One record of the input."""

    id: int
    user: str
    page: str
    millis: int
    ok: bool


def format_of(name: str) -> tuple[Serde[Any], Callable[..., Any]]:
    """The serde of page views, and the class of its values, which is called with the fields."""
    if name == PROTOBUF:
        kind = _message_of_a_view()
        return Protobuf(kind), kind
    serdes: dict[str, Callable[[Any], Serde[Any]]] = {PLAIN: JSON, AVRO: Avro, JSON_SCHEMA: JsonSchema}
    return serdes[name](View), View


def _message_of_a_view() -> Any:
    file = FileDescriptorProto(name="view.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="View")
    kinds = {"id": int, "user": str, "page": str, "millis": int, "ok": bool}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        message.field.add(name=name, number=number, type=_TYPES[kind], label=FieldDescriptorProto.LABEL_OPTIONAL)
    return GetMessageClass(DescriptorPool().AddSerializedFile(file.SerializeToString()).message_types_by_name["View"])
