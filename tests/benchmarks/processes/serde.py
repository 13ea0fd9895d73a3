"""Reads and writes one record again and again with a serde, without a broker; says how long that took."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from events import tell
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from topologies import View

from pipeline import JSON, Avro, JsonSchema, Protobuf
from pipeline.serde.api import SerdePlace, placed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline import Serde

_PLACE = SerdePlace("views", is_key=False, registry={"url": "mock://serdes"})
_TYPES = {
    int: FieldDescriptorProto.TYPE_INT64,
    str: FieldDescriptorProto.TYPE_STRING,
    bool: FieldDescriptorProto.TYPE_BOOL,
}


def message_of_a_view() -> Any:
    """The class of Protobuf messages with the fields of a view."""
    file = FileDescriptorProto(name="view.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="View")
    kinds = {"id": int, "user": str, "page": str, "millis": int, "ok": bool}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        message.field.add(name=name, number=number, type=_TYPES[kind], label=FieldDescriptorProto.LABEL_OPTIONAL)
    return GetMessageClass(DescriptorPool().AddSerializedFile(file.SerializeToString()).message_types_by_name["View"])


def serde_of(side: str) -> tuple[Serde[Any], Any]:
    """A side's serde, and the value that it writes."""
    fields: dict[str, Any] = {
        "id": 123_456,
        "user": "user-000123",
        "page": "/products/123",
        "millis": 45_678,
        "ok": True,
    }
    if side == "Protobuf":
        kind = message_of_a_view()
        return Protobuf(kind), kind(**fields)
    serdes: dict[str, Callable[[Any], Serde[Any]]] = {"JSON": JSON, "Avro": Avro, "JSON Schema": JsonSchema}
    return serdes[side](View), View(**fields)


def cpu_of(function: Callable[[Any], Any], given: Any, times: int) -> float:
    """CPU time of a call, µs."""
    began = time.process_time()
    for _ in range(times):
        function(given)
    return (time.process_time() - began) / times * 1_000_000


def main(side: str, records: str) -> None:
    serde, value = serde_of(side)
    serde = placed(serde, _PLACE)
    data = serde.serialize(value)
    read, written = cpu_of(serde.deserialize, data, int(records)), cpu_of(serde.serialize, value, int(records))
    tell("done", read=read, write=written, bytes=len(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
