"""The bytes of a serde in a frame: typed if the serde has a type, else bytes."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypedDict

import pyarrow as pa
import pytest

from riverrun import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    FLOAT,
    INTEGER,
    JSON,
    LONG,
    SHORT,
    STRING,
    UUID,
    DeserializationError,
    Serde,
    Window,
    Windowed,
    session_windowed,
    windowed,
)
from riverrun.spark.columns import TIME, columns_of
from riverrun.windows import MAX_TIME_MS


class Item(TypedDict):
    name: str
    price: float


@dataclass
class Order:
    id: int
    items: list[Item] = field(default_factory=list)
    state: Literal["open", "paid"] = "open"
    paid_at: dt.datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)
    parent: Order | None = None
    extra: Any = None


def read(name: str, serde: Serde[Any] | None, *values: bytes | None) -> dict[str, list[Any]]:
    columns = columns_of(name, serde)
    arrays = columns.arrays(values, lambda row: {"topic": "t", "offset": row})
    return {column.name: array.to_pylist() for column, array in zip(columns.columns, arrays, strict=True)}


@pytest.mark.parametrize(
    ("serde", "value", "kind", "expected"),
    [
        (STRING, "ä", pa.string(), "ä"),
        (BYTES, b"\xff", pa.binary(), b"\xff"),
        (SHORT, -3, pa.int16(), -3),
        (INTEGER, 2**31 - 1, pa.int32(), 2**31 - 1),
        (LONG, -(2**63), pa.int64(), -(2**63)),
        (FLOAT, 0.5, pa.float32(), 0.5),
        (DOUBLE, 0.1, pa.float64(), 0.1),
        (BOOLEAN, True, pa.bool_(), True),
        (UUID, uuid.UUID(int=1), pa.string(), "00000000-0000-0000-0000-000000000001"),
        (JSON(list[int]), [1, 2], pa.list_(pa.int64()), [1, 2]),
        (JSON(int | float), 3, pa.float64(), 3.0),  # type: ignore[arg-type] # a union is not a class, but msgspec reads it
    ],
)
def test_a_serde_of_a_known_type_gives_a_column_of_it(
    serde: Serde[Any], value: Any, kind: pa.DataType, expected: Any
) -> None:
    (column,) = columns_of("value", serde).columns
    assert column.kind == kind
    assert read("value", serde, serde.serialize(value), None) == {"value": [expected, None]}


def test_typed_json_gives_a_struct_with_json_text_where_the_type_says_nothing() -> None:
    serde = JSON(Order)
    paid = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    order = Order(1, [Item(name="a", price=0.5)], "paid", paid, {"x": "y"}, Order(2), {"any": [1]})
    (found,) = read("value", serde, serde.serialize(order))["value"]
    parent = '{"id":2,"items":[],"state":"open","paid_at":null,"labels":{},"parent":null,"extra":null}'  # it may go on for ever
    assert found == {
        "id": 1,
        "items": [{"name": "a", "price": 0.5}],
        "state": "paid",
        "paid_at": paid,
        "labels": [("x", "y")],
        "parent": parent,
        "extra": '{"any":[1]}',
    }


def test_plain_json_is_text_that_becomes_a_variant() -> None:
    (column,) = columns_of("value", JSON).columns
    assert column.is_variant
    assert read("value", JSON, b'{"a": [1, null]}') == {"value": ['{"a":[1,null]}']}


def test_windowed_keys_have_their_window_beside_them() -> None:
    serde = windowed(SHORT, timedelta(minutes=1))
    minute = dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC)
    found = read("key", serde, serde.serialize(Windowed(3, Window(60_000, 120_000))))
    assert found == {"key": [3], "window_start": [minute], "window_end": [minute + timedelta(minutes=1)]}
    sessions = session_windowed(STRING)
    endless = sessions.serialize(Windowed("a", Window(60_000, MAX_TIME_MS)))
    assert read("key", sessions, endless) == {"key": ["a"], "window_start": [minute], "window_end": [None]}
    assert [column.kind for column in columns_of("key", serde).columns] == [pa.int16(), TIME, TIME]


def test_what_says_nothing_of_its_type_stays_bytes() -> None:
    upper: Serde[str] = Serde("upper", lambda text: text.upper().encode(), bytes.decode)
    for serde in (None, upper, windowed(STRING), windowed(upper, timedelta(minutes=1))):
        assert read("key", serde, b"\x01") == {"key": [b"\x01"]}


def test_a_value_that_does_not_fit_is_reported_by_its_coordinates() -> None:
    with pytest.raises(DeserializationError, match=r"A value cannot be read: .* \(topic t, offset 1\)"):
        read("value", LONG, LONG.serialize(1), b"short")
    with pytest.raises(
        DeserializationError, match=r"not of type int64, as column value requires: .* \(topic t, offset 1\)"
    ):
        read("value", JSON(int), b"1", b"123456789012345678901234567890")
