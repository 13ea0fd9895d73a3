"""Messages as protoc would generate them, out of two files."""

from __future__ import annotations

from typing import Any

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass

_ONE, _MANY = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
_FIELD = FieldDescriptorProto

CARRIERS = FileDescriptorProto(name="riverrun/carriers.proto", package="riverrun.test", syntax="proto3")
_carrier = CARRIERS.message_type.add(name="Carrier")
_carrier.field.add(name="name", number=1, type=_FIELD.TYPE_STRING, label=_ONE)

FLIGHTS = FileDescriptorProto(
    name="riverrun/flights.proto",
    package="riverrun.test",
    syntax="proto3",
    dependency=["riverrun/carriers.proto", "google/protobuf/timestamp.proto"],
)
_status = FLIGHTS.enum_type.add(name="Status")
_status.value.add(name="PLANNED", number=0)
_status.value.add(name="LATE", number=1)
_airport = FLIGHTS.message_type.add(name="Airport")
_airport.field.add(name="code", number=1, type=_FIELD.TYPE_STRING, label=_ONE)
_flight = FLIGHTS.message_type.add(name="Flight")
_leg = _flight.nested_type.add(name="Leg")
_leg.field.add(name="origin", number=1, type=_FIELD.TYPE_STRING, label=_ONE)
_delays = _flight.nested_type.add(name="DelaysEntry")
_delays.options.map_entry = True
_delays.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_ONE)
_delays.field.add(name="value", number=2, type=_FIELD.TYPE_INT64, label=_ONE)


def _add(name: str, type_: Any, of: str = "", label: Any = _ONE) -> None:
    number = len(_flight.field) + 1
    _flight.field.add(name=name, number=number, type=type_, label=label, type_name=of or None)


_add("carrier", _FIELD.TYPE_MESSAGE, ".riverrun.test.Carrier")
_add("delay", _FIELD.TYPE_INT64)
_add("status", _FIELD.TYPE_ENUM, ".riverrun.test.Status")
_add("legs", _FIELD.TYPE_MESSAGE, ".riverrun.test.Flight.Leg", _MANY)
_add("delays", _FIELD.TYPE_MESSAGE, ".riverrun.test.Flight.DelaysEntry", _MANY)
_add("departed", _FIELD.TYPE_MESSAGE, ".google.protobuf.Timestamp")
_add("photo", _FIELD.TYPE_BYTES)

assert timestamp_pb2.DESCRIPTOR.name in FLIGHTS.dependency
for _file in (CARRIERS, FLIGHTS):
    Default().AddSerializedFile(_file.SerializeToString())


def _class(name: str) -> Any:
    return GetMessageClass(Default().FindMessageTypeByName(f"riverrun.test.{name}"))


Carrier = _class("Carrier")
Airport = _class("Airport")
Flight = _class("Flight")
Leg = _class("Flight.Leg")
