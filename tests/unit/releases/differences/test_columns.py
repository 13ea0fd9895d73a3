"""Columns of keys and values, for every serde: those that the documentation lists."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Avro,
    JsonSchema,
    Protobuf,
    session_windowed,
    windowed,
)
from riverrun.records import TopicPartition
from riverrun.releases.difference import Pair, Side, TableRow
from riverrun.releases.rows import difference_rows, log_rows, table_rows
from riverrun.serde.api import SerdePlace, placed
from riverrun.topology.nodes import SinkNode
from riverrun.windows import Window, Windowed
from tests.unit.schemas import flights

if TYPE_CHECKING:
    from riverrun.serde.api import Serde


@dataclass(frozen=True)
class Stats:
    n: int
    city: str | None = None


RECORD = {"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in ("n", "total")]}
TEXTS = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=5)
STATS = st.builds(Stats, st.integers(-9, 9), TEXTS)
SINGLE: list[tuple[Serde[Any], st.SearchStrategy[Any]]] = [
    (STRING, TEXTS),
    (LONG, st.integers(-(2**63), 2**63 - 1)),
    (INTEGER, st.integers(-(2**31), 2**31 - 1)),
    (SHORT, st.integers(-(2**15), 2**15 - 1)),
    (DOUBLE, st.floats(allow_nan=False)),
    (FLOAT, st.floats(width=32, allow_nan=False)),
    (BOOLEAN, st.booleans()),
    (BYTES, st.binary(max_size=4)),
    (UUID, st.uuids()),
]
WITH_FIELDS: list[tuple[Serde[Any], st.SearchStrategy[Any], tuple[str, ...]]] = [
    (JSON(Stats), STATS, ("n", "city")),
    (Avro(Stats), STATS, ("n", "city")),
    (JsonSchema(Stats), STATS, ("n", "city")),
    (Avro(schema=RECORD), st.fixed_dictionaries({"n": st.integers(0, 9), "total": st.integers(0, 9)}), ("n", "total")),
    (Protobuf(flights.Carrier), st.builds(lambda name: flights.Carrier(name=name), TEXTS), ("name",)),
]
UNTYPED = (JSON, st.fixed_dictionaries({"n": st.integers(0, 9)}, optional={"city": TEXTS}))


@st.composite
def written(draw: st.DrawFn, *, is_key: bool) -> tuple[Serde[Any], Any, tuple[str, ...], Any]:
    """A serde in its place, a value, its fields, and the value as a column holds it."""
    kinds = [(serde, values, ()) for serde, values in SINGLE] + WITH_FIELDS + ([] if is_key else [(*UNTYPED, ("n",))])
    serde, values, fields = draw(st.sampled_from(kinds))
    value = draw(values)
    own = placed(serde, SerdePlace("out", is_key, {"url": f"mock://{uuid.uuid4()}"}))
    return own, value, fields, str(value) if isinstance(value, uuid.UUID) else value


def field(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, dict) else getattr(value, name)


@settings(max_examples=150, deadline=None)
@given(key=written(is_key=True), value=written(is_key=False), window=st.sampled_from([None, "time", "session"]))
def test_rows_of_every_serde_have_the_documented_columns(key: Any, value: Any, window: str | None) -> None:
    (keys, one, key_fields, shown_key), (values, other, fields, shown) = key, value
    if window is not None:
        keys = windowed(keys, timedelta(seconds=1)) if window == "time" else session_windowed(keys)
        one = Windowed(one, Window(0, 1000))
    sink = SinkNode("out", (), "out", keys, values)
    raw, row = keys.serialize(one), TableRow(values.serialize(other), 5)
    (table,) = table_rows([Pair(3, raw, None, row)], sink, "out")
    (log, deleted) = log_rows([(TopicPartition("out", 3), [(raw, row.value, 5, 8, ()), (raw, None, 5, 9, ())])], sink)
    (differing,) = difference_rows([Pair(3, raw, row, row)], sink, sink, dict.fromkeys(Side, "out"), pytest.fail)

    windows = set() if window is None else {"window_start", "window_end"}
    of_values = {"city", "n"} if isinstance(other, dict) and values.name == "json" else set(fields or ["value"])
    of_values &= set(other) if isinstance(other, dict) else of_values
    of_keys = {f"_key_{name}" if name in fields or values.value_type is Any else name for name in key_fields}
    own = {"_key", "_partition", "_time"} | {f"_{name}" for name in windows}
    assert set(table) == own | {"_change"} | of_keys | of_values
    assert set(log) == own | {"_offset", "_late_ms"} | of_keys | of_values
    assert (log["_partition"], log["_offset"], deleted["_offset"]) == (3, 8, 9)
    of_none = of_values if values.name != "json" else {"value"}
    assert set(deleted) == own | {"_offset", "_late_ms"} | of_keys | of_none
    assert {deleted[name] for name in of_none} == {None}
    sides = {f"{side}_{name}" for side in ("old", "new") for name in of_values} if fields else {"old", "new"}
    names = {"key", "partition", "time", "change"} | windows | {f"key_{name}" for name in key_fields}
    assert set(differing) == names | sides

    whole = [field(shown_key, name) for name in key_fields]
    if len(whole) > 1:
        assert json.loads(log["_key"]) == dict(zip(key_fields, whole, strict=True))
    else:
        assert log["_key"] == (whole[0] if whole else shown_key)
    for name in of_values:
        assert log[name] == (field(shown, name) if fields else shown)
