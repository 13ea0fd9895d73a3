"""A file of Protobuf with all kinds of fields, as text and as the classes that protoc would generate, and a message."""

from __future__ import annotations

import datetime as dt
from typing import Any

from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass
from google.type.money_pb2 import Money

from riverrun.schemas.protobuf_files import add_file, file_of

TEXT = """
syntax = "proto3";
package riverrun.test;

import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/type/money.proto";

message Passenger { string name = 1; }

message Ticket {
  enum Cabin { ECONOMY = 0; FIRST = 1; }
  message Seat {
    message Tray { bool folded = 1; }
    string row = 1;
    Tray tray = 2;
  }
  optional int64 gate = 1;  // stands before the choice
  oneof paid {
    double cash = 2;
    Seat traded = 3;
    google.protobuf.Empty free = 4;
  }
  Cabin cabin = 5;
  repeated Cabin cabins = 6;
  repeated Seat spare = 7;
  map<string, Seat> seats = 8;
  map<int32, Cabin> by_number = 9;
  map<bool, string> by_flag = 10;
  google.protobuf.Timestamp at = 11;
  repeated google.protobuf.Timestamp stops = 12;
  google.protobuf.Duration took = 13;
  google.protobuf.Int64Value miles = 14;
  google.protobuf.StringValue note = 15;
  repeated google.protobuf.BytesValue photos = 16;
  google.protobuf.Struct more = 17;
  google.protobuf.Value free_text = 18;
  google.protobuf.ListValue list = 19;
  google.protobuf.FieldMask mask = 20;
  google.type.Money price = 21;
  Ticket next = 22;
  optional Cabin upgrade = 23;
  float weight = 24;
  bytes code = 25;
}
"""
_FILE = file_of(TEXT, "riverrun/tickets.proto")
add_file(Default(), _FILE)


def _class(name: str) -> Any:
    return GetMessageClass(Default().FindMessageTypeByName(f"riverrun.test.{name}"))


Passenger = _class("Passenger")
Ticket = _class("Ticket")
Seat = _class("Ticket.Seat")
Tray = _class("Ticket.Seat.Tray")

AT = dt.datetime(2013, 1, 1, 5, 15, 0, 250_000, tzinfo=dt.UTC)
A_SEAT = {"row": "1A", "tray": {"folded": True}}
NOTHING: dict[str, Any] = {
    "gate": None,
    "cash": None,
    "traded": None,
    "free": None,
    "cabin": "ECONOMY",
    "cabins": [],
    "spare": [],
    "seats": {},
    "by_number": {},
    "by_flag": {},
    "at": None,
    "stops": [],
    "took": None,
    "miles": None,
    "note": None,
    "photos": [],
    "more": None,
    "free_text": None,
    "list": None,
    "mask": None,
    "price": None,
    "next": None,
    "upgrade": None,
    "weight": 0.0,
    "code": b"",
}
AS_DICT: dict[str, Any] = {
    "gate": 0,
    "cash": None,
    "traded": A_SEAT,
    "free": None,
    "cabin": "FIRST",
    "cabins": ["FIRST", "ECONOMY", 7],
    "spare": [A_SEAT, {"row": "", "tray": None}],
    "seats": {"a": A_SEAT},
    "by_number": {"-3": "FIRST"},
    "by_flag": {"true": "yes", "false": "no"},
    "at": AT,
    "stops": [AT, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)],
    "took": {"seconds": 3, "nanos": 5},
    "miles": 0,
    "note": "",
    "photos": [b"\0\xff", b""],
    "more": {"a": [1.5, None, {"b": True}]},
    "free_text": "x",
    "list": ["a", 2.5],
    "mask": {"paths": ["gate", "at"]},
    "price": {"currency_code": "EUR", "units": 3, "nanos": 4},
    "next": {**NOTHING, "free": {}, "next": {**NOTHING, "cash": 2.5}},
    "upgrade": "ECONOMY",
    "weight": float("inf"),
    "code": b"\xff",
}


def ticket() -> Any:
    """The message of `AS_DICT`, made without the code that is tested."""
    seat = Seat(row="1A", tray=Tray(folded=True))
    ticket = Ticket(
        gate=0,
        traded=seat,
        cabin=1,
        cabins=[1, 0, 7],
        spare=[seat, Seat()],
        seats={"a": seat},
        by_number={-3: 1},
        by_flag={True: "yes", False: "no"},
        stops=[{"seconds": 1_357_017_300, "nanos": 250_000_000}, {}],
        took={"seconds": 3, "nanos": 5},
        miles={},
        note={},
        photos=[{"value": b"\0\xff"}, {}],
        mask={"paths": ["gate", "at"]},
        price=Money(currency_code="EUR", units=3, nanos=4),
        next=Ticket(free={}, next=Ticket(cash=2.5)),
        upgrade=0,
        weight=float("inf"),
        code=b"\xff",
    )
    ticket.at.FromDatetime(AT)
    ticket.more.update({"a": [1.5, None, {"b": True}]})
    ticket.free_text.string_value = "x"
    ticket.list.extend(["a", 2.5])
    return ticket
