"""Changes of rows that Debezium writes are read as the table that they come from."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    JSON,
    STRING,
    Avro,
    Consumed,
    KTable,
    Materialized,
    Produced,
    RowChange,
    StreamsBuilder,
    Topology,
)
from riverrun.errors import StreamsError, TopologyError
from riverrun.serde.api import Serde, SerdePlace, placed
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

READ: Consumed[Any, RowChange[Any]] = Consumed.debezium()


class Customer(msgspec.Struct):
    id: int
    name: str
    born: date | None = None
    credit: Decimal | None = None


COLUMNS = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": False, "field": "name"},
    {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1, "field": "born"},
    {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
        "field": "credit",
    },
]
TYPES = {"born": "io.debezium.time.Date", "credit": "org.apache.kafka.connect.data.Decimal(2)"}


def schema_of(columns: list[dict[str, Any]]) -> dict[str, Any]:
    row = {"type": "struct", "fields": columns, "optional": True, "name": "shop.public.customers.Value"}
    source = {"type": "struct", "fields": [{"type": "int64", "optional": False, "field": "lsn"}], "field": "source"}
    fields = [{**row, "field": "before"}, {**row, "field": "after"}, source, {"type": "string", "field": "op"}]
    return {"type": "struct", "fields": fields, "optional": False, "name": "shop.public.customers.Envelope"}


def envelope(op: str, before: Any = None, after: Any = None, columns: list[dict[str, Any]] | None = None) -> bytes:
    """An envelope as the JSON converter writes it: with a schema, if columns are given."""
    payload = {
        "before": before,
        "after": after,
        "source": {"connector": "postgresql", "lsn": 24_023_128, "ts_ms": 1_559_033_904_863},
        "op": op,
        "ts_ms": 1_559_033_904_961,
        "transaction": None,
    }
    return json.dumps(payload if columns is None else {"schema": schema_of(columns), "payload": payload}).encode()


def key_of(row_id: int, *, with_schema: bool = True) -> bytes:
    fields = [{"type": "int32", "optional": False, "field": "id"}]
    schema = {"type": "struct", "fields": fields, "optional": False, "name": "shop.public.customers.Key"}
    payload = {"id": row_id}
    return json.dumps({"schema": schema, "payload": payload} if with_schema else payload).encode()


def unscaled(cents: int) -> str:
    return base64.b64encode(cents.to_bytes((cents.bit_length() + 8) // 8, "big", signed=True)).decode()


def customers(
    consumed: Consumed[Any, Any], materialized: Materialized[Any, Any] | None = None, *, truncates: bool = False
) -> Topology:
    builder = StreamsBuilder()
    table = builder.table_from_changes("in", consumed, materialized, repartition=False, truncates=truncates)
    table.to_stream().to("out", Produced(JSON, JSON))
    return builder.build()


def test_rows_of_a_class_have_the_types_that_the_schema_names() -> None:
    serde = Consumed.debezium(Customer).value_serde
    after = {"id": 1001, "name": "Sally", "born": 4383, "credit": unscaled(-1234)}
    change = serde.deserialize(envelope("c", after=after, columns=COLUMNS))
    assert change.after == Customer(1001, "Sally", date(1982, 1, 1), Decimal("-12.34"))
    assert (change.op, change.before, change.ts_ms, change.source["lsn"]) == ("c", None, 1_559_033_904_961, 24_023_128)


def test_types_are_declared_where_there_is_no_schema() -> None:
    serde = Consumed.debezium(Customer, types=TYPES).value_serde
    row = {"id": 1001, "name": "Sally", "born": 4383, "credit": unscaled(990)}
    change = serde.deserialize(envelope("u", before=row, after={**row, "credit": None}))
    assert change.before == Customer(1001, "Sally", date(1982, 1, 1), Decimal("9.90"))
    assert change.after == Customer(1001, "Sally", date(1982, 1, 1), None)


NOON = datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001 - the column has no time zone
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - likewise
MICROS = (NOON - EPOCH) // timedelta(microseconds=1)
OF_DAY = MICROS % 86_400_000_000


@pytest.mark.parametrize(
    ("name", "type_", "sent", "python", "wanted"),
    [
        ("io.debezium.time.Date", "int32", -1, date, date(1969, 12, 31)),
        ("org.apache.kafka.connect.data.Date", "int32", 19_782, date, date(2024, 2, 29)),
        ("io.debezium.time.Time", "int32", OF_DAY // 1000, time, time(12, 30, 15, 123000)),
        ("io.debezium.time.MicroTime", "int64", OF_DAY, time, time(12, 30, 15, 123456)),
        ("io.debezium.time.NanoTime", "int64", OF_DAY * 1000 + 1, str, "12:30:15.123456001"),
        ("io.debezium.time.Timestamp", "int64", MICROS // 1000, datetime, NOON.replace(microsecond=123000)),
        ("org.apache.kafka.connect.data.Timestamp", "int64", 0, datetime, EPOCH),
        ("io.debezium.time.MicroTimestamp", "int64", MICROS, datetime, NOON),
        ("io.debezium.time.MicroTimestamp", "int64", -1, datetime, EPOCH - timedelta(microseconds=1)),
        ("io.debezium.time.NanoTimestamp", "int64", MICROS * 1000, datetime, NOON),
        (
            "io.debezium.time.ZonedTimestamp",
            "string",
            "2024-02-29T12:30:15Z",
            datetime,
            datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
        ),
        ("io.debezium.time.MicroDuration", "int64", 90_000_001, timedelta, timedelta(seconds=90, microseconds=1)),
        ("io.debezium.time.NanoDuration", "int64", 90_000_001_000, timedelta, timedelta(seconds=90, microseconds=1)),
        ("io.debezium.time.Interval", "string", "P1Y2M3DT4H", str, "P1Y2M3DT4H"),
        ("io.debezium.time.Year", "int32", 2024, int, 2024),
        (
            "io.debezium.data.VariableScaleDecimal",
            "struct",
            {"scale": 1, "value": unscaled(-5)},
            Decimal,
            Decimal("-0.5"),
        ),
        ("io.debezium.data.Json", "string", '{"a": 1}', str, '{"a": 1}'),
        (
            "io.debezium.data.Uuid",
            "string",
            "8f8a1a52-7d1e-4b6f-9f0e-0a2b3c4d5e6f",
            str,
            "8f8a1a52-7d1e-4b6f-9f0e-0a2b3c4d5e6f",
        ),
        (None, "bytes", base64.b64encode(b"\x00\xff").decode(), bytes, b"\x00\xff"),
        (None, "double", 1.5, float, 1.5),
    ],
)
def test_a_column_of_each_type_is_read(name: str | None, type_: str, sent: Any, python: Any, wanted: Any) -> None:
    fields = [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}] if type_ == "struct" else []
    column = {"type": type_, "optional": True, "field": "x", "fields": fields, **({"name": name} if name else {})}
    row = msgspec.defstruct("Row", [("x", python | None)])
    change = Consumed.debezium(row).value_serde.deserialize(envelope("r", after={"x": sent}, columns=[column]))
    assert change.after == row(wanted)


class Amount(msgspec.Struct):
    """A row with a decimal, and a double next to it."""

    x: Decimal
    y: float


@given(st.decimals(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_decimals_that_are_numbers_of_json_keep_all_digits(number: Decimal, double: float) -> None:
    # As with `decimal.format=NUMERIC`: as a class has it, and where the type is declared or in the schema.
    row = f'{{"x": {format(number, "f")}, "y": {double!r}}}'
    sent = f'{{"op": "u", "before": {row}, "after": {row}}}'.encode()
    column = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {}, "field": "x"}
    doubles = {"type": "double", "field": "y"}
    with_schema = f'{{"schema": {json.dumps(schema_of([column, doubles]))}, "payload": {sent.decode()}}}'.encode()
    declared = {"x": "org.apache.kafka.connect.data.Decimal(2)"}
    for data, types in ((sent, None), (sent, declared), (with_schema, None)):
        serde = Consumed.debezium(Amount, types=types).value_serde
        change = serde.deserialize(data)
        # Also behind a repartition.
        for each in (change, serde.deserialize(serde.serialize(change))):
            assert each.before == each.after == Amount(number, double)
    for data, types in ((sent, declared), (with_schema, None)):
        read: RowChange[Any] = Consumed.debezium(types=types).value_serde.deserialize(data)
        assert read.after is not None
        assert read.before is not None
        assert (Decimal(read.after["x"]), read.after["y"]) == (number, double)
        assert (Decimal(read.before["x"]), read.before["y"]) == (number, double)


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        ("1.10", 1.1),
        ("-0.0", -0.0),
        ("5.6843418860808015E-14", 2**-44),
        ("1234567890123456.78", "1234567890123456.78"),
        ("12345678901234567890123", 12345678901234567890123),
        ("[0.1234567890123456789]", ["0.1234567890123456789"]),
    ],
)
def test_a_number_without_a_type_is_a_double_unless_it_has_more_digits(sent: str, wanted: Any) -> None:
    serde: Serde[Any] = Consumed.debezium().value_serde
    data = f'{{"op": "u", "before": {{"x": {sent}}}, "after": {{"x": {sent}}}}}'.encode()
    change = serde.deserialize(data)
    for each in (change, serde.deserialize(serde.serialize(change))):
        assert repr(each.after["x"]) == repr(each.before["x"]) == repr(wanted)


class Loose(msgspec.Struct):
    """A row whose fields have any values."""

    a: Any = None
    o: object = None
    d: dict = msgspec.field(default_factory=dict)  # type: ignore[type-arg]
    n: list[Any] = []
    f: float = 0.0
    m: dict[str, float] = {}
    e: float | str = 0.0
    x: Decimal | None = None


@pytest.mark.parametrize(
    ("field", "sent", "wanted"),
    [
        ("a", "5.6843418860808015E-14", 2**-44),
        ("a", "1234567890123456.78", "1234567890123456.78"),
        ("a", '{"y": [1234567890123456.78, 1.0E23]}', {"y": ["1234567890123456.78", 1e23]}),
        ("a", "1e400", "1E+400"),
        ("o", "1.0E23", 1e23),
        ("d", '{"y": 5.6843418860808015E-14}', {"y": 2**-44}),
        ("n", "[5.6843418860808015E-14]", [2**-44]),
        ("f", "5.6843418860808015E-14", 2**-44),
        ("f", "0.1234567890123456789", 0.1234567890123456789),
        ("m", '{"y": 0.1234567890123456789}', {"y": 0.1234567890123456789}),
        ("e", "1234567890123456.78", 1234567890123456.78),
        ("x", "1234567890123456.78", Decimal("1234567890123456.78")),
        ("x", "1e400", Decimal("1e400")),
    ],
)
def test_fields_without_decimals_have_none(field: str, sent: str, wanted: Any) -> None:
    serde = Consumed.debezium(Loose).value_serde
    row = f'{{"{field}": {sent}}}'
    change = serde.deserialize(f'{{"op": "u", "before": {row}, "after": {row}}}'.encode())
    # Also behind a repartition.
    for each in (change, serde.deserialize(serde.serialize(change))):
        assert repr(getattr(each.after, field)) == repr(getattr(each.before, field)) == repr(wanted)


@pytest.mark.parametrize(
    ("field", "sent", "reason"),
    [
        ("f", "1e400", "1E\\+400 is more than a double can hold"),
        ("f", "-1e400", "-1E\\+400 is more than a double can hold"),
        ("m", '{"y": 1e400}', "more than a double can hold"),
        ("f", "1e999999999999999999999", "1e999999999999999999999 has an exponent that no number has"),
        ("a", "1e-999999999999999999999", "has an exponent that no number has"),
    ],
)
def test_numbers_that_a_field_cannot_hold_are_refused(field: str, sent: str, reason: str) -> None:
    serde = Consumed.debezium(Loose).value_serde
    with pytest.raises(ValueError, match=reason):
        serde.deserialize(f'{{"op": "u", "after": {{"{field}": {sent}}}}}'.encode())


@given(st.integers(-(10**38), 10**38), st.integers(0, 38))
def test_decimals_keep_all_digits(digits: int, scale: int) -> None:
    column = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": str(scale)},
        "field": "x",
    }
    change = READ.value_serde.deserialize(envelope("c", after={"x": unscaled(digits)}, columns=[column]))
    assert change.after is not None
    assert Decimal(change.after["x"]) == Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))


def test_arrays_and_nested_rows_are_read() -> None:
    day = {"type": "int32", "name": "io.debezium.time.Date"}
    columns: list[dict[str, Any]] = [
        {"type": "array", "items": day, "field": "days"},
        {"type": "struct", "field": "inner", "fields": [{**day, "field": "day"}]},
        {"type": "map", "keys": {"type": "string"}, "values": day, "field": "by_name"},
    ]
    after = {"days": [0, None, 1], "inner": {"day": 2}, "by_name": {"x": 3}}
    change = READ.value_serde.deserialize(envelope("c", after=after, columns=columns))
    assert change.after == {
        "days": ["1970-01-01", None, "1970-01-02"],
        "inner": {"day": "1970-01-03"},
        "by_name": {"x": "1970-01-04"},
    }


@pytest.mark.parametrize("with_schema", [True, False])
def test_the_only_column_of_a_primary_key_is_the_key(with_schema: bool) -> None:
    assert READ.key_serde.deserialize(key_of(7, with_schema=with_schema)) == 7


def test_keys_of_several_columns_are_dicts_or_of_a_class() -> None:
    class LineKey(msgspec.Struct, frozen=True):
        order: int
        line: int

    data = b'{"order": 7, "line": 2}'
    assert READ.key_serde.deserialize(data) == {"order": 7, "line": 2}
    keys = Consumed.debezium(key=LineKey).key_serde
    assert keys.deserialize(data) == LineKey(7, 2)
    assert keys.deserialize(keys.serialize(LineKey(7, 2))) == LineKey(7, 2)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, str, int]]:
    """Ids, operations and values: x is a deletion with a tombstone, t a tombstone alone, e empties the table."""
    return draw(
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from("cccurdxte"), st.integers(0, 9)), min_size=1, max_size=30)
    )


@given(
    history=histories(), with_schema=st.booleans(), cuts=st.sets(st.integers(0, 30), max_size=3), loses=st.booleans()
)
def test_the_table_is_that_of_the_database(
    history: list[tuple[int, str, int]], *, with_schema: bool, cuts: set[int], loses: bool
) -> None:
    task = Restartable(customers(Consumed.debezium(types=TYPES), Materialized(name="customers"), truncates=True))
    database: dict[int, dict[str, Any]] = {}
    batch: list[Any] = []
    columns = COLUMNS if with_schema else None
    for number, (row_id, op, value) in enumerate(history):
        key = key_of(row_id, with_schema=with_schema).decode()
        row = {"id": row_id, "name": f"n{value}", "born": value, "credit": unscaled(value)}
        if op == "e":
            database.clear()
            batch.append((key, number, envelope("t", columns=columns)))
        elif op in "dxt":
            database.pop(row_id, None)
        else:
            born, credit = date(1970, 1, 1) + timedelta(value), f"{Decimal(value) / 100:.2f}"
            database[row_id] = {"id": row_id, "name": f"n{value}", "born": born.isoformat(), "credit": credit}
        if op in "dx":
            batch.append((key, number, envelope("d", before={"id": row_id}, columns=columns)))
        elif op in "cur":
            batch.append((key, number, envelope(op, after=row, columns=columns)))
        if op in "xt":
            batch.append((key, number, None))
        if number in cuts:
            task.run(*batch)
            batch = []
            if loses:
                task.lose_state()
    task.run(*batch)
    found: dict[int, Any] = {}
    for record in task.written():
        assert record.key is not None
        found[json.loads(record.key)] = None if record.value is None else json.loads(record.value)
    assert {key: row for key, row in found.items() if row is not None} == database


def test_the_changelog_has_keys_and_rows_as_json() -> None:
    task = Restartable(customers(Consumed.debezium(Customer), Materialized(name="customers")))
    after = {"id": 1, "name": "Ann", "born": 0, "credit": unscaled(5)}
    task.run((key_of(1).decode(), 5, envelope("c", after=after, columns=COLUMNS)))
    (record,) = task.topics.logs["app-customers-changelog"]
    assert record.key == b"1"
    assert record.value is not None
    assert record.value.endswith(b'{"id":1,"name":"Ann","born":"1970-01-01","credit":"0.05"}')


def test_streams_of_changes_have_the_row_before() -> None:
    builder = StreamsBuilder()
    moves = builder.stream("in", Consumed.debezium(Customer)).filter(lambda _, change: change is not None)
    moves.map_values(
        lambda change: [change.op, change.before and change.before.name, change.after and change.after.name]
    ).to("out", Produced(JSON, JSON))
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input_topic("in", READ.key_serde, JSON)
        ann, bob = {"id": 1, "name": "Ann"}, {"id": 1, "name": "Bob"}
        for op, before, after in (("c", None, ann), ("u", ann, bob), ("d", bob, None)):
            source.pipe_input(1, json.loads(envelope(op, before, after)))
        source.pipe_input(1, None)
        out = driver.output_topic("out", JSON, JSON)
        assert out.read_values_to_list() == [["c", None, "Ann"], ["u", "Ann", "Bob"], ["d", "Bob", None]]


def test_a_row_before_without_all_columns_is_refused_only_if_it_is_read() -> None:
    change = Consumed.debezium(Customer).value_serde.deserialize(envelope("d", before={"id": 1}))
    assert change.after is None
    with pytest.raises(ValueError, match="missing required field `name`"):
        _ = change.before


@given(
    op=st.sampled_from("curd"),
    after=st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3)),
)
def test_changes_survive_an_internal_topic(op: str, after: dict[str, Any] | None) -> None:
    consumed: Consumed[Any, RowChange[Any]] = Consumed.debezium(types=TYPES)
    keys, values = consumed.key_serde, consumed.value_serde
    before = {"id": 1, "born": 1, "credit": unscaled(1)}
    change = values.deserialize(envelope(op, before, {**after, "born": 2} if after else after))
    assert values.deserialize(values.serialize(change)) == change
    key = keys.deserialize(b'{"id": 1, "born": 3}')
    assert key == {"id": 1, "born": "1970-01-04"}
    assert keys.deserialize(keys.serialize(key)) == key


def refusal_of(topology: Topology, key: bytes | None, value: bytes) -> str:
    with TopologyTestDriver(topology) as driver:
        source = driver.input_topic("in", BYTES, BYTES)
        with pytest.raises(StreamsError) as refused:
            source.pipe_input(key, value)
    return str(refused.value)


def test_a_truncated_table_and_columns_that_were_not_logged_go_to_the_handler() -> None:
    topology = customers(Consumed.debezium(Customer))
    assert "its table was truncated" in refusal_of(topology, None, envelope("t"))
    partly = {"id": 1, "name": "Ann", "born": "__debezium_unavailable_value"}
    told = refusal_of(topology, key_of(1), envelope("u", after=partly))
    assert "did not log born" in told
    assert "REPLICA IDENTITY FULL" in told
    without_name = {"id": 1, "name": "__debezium_unavailable_value"}
    assert "did not log name" in refusal_of(topology, key_of(1), envelope("u", after=without_name))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id": 1, "name": "Ann"}', "there is no op"),
        (b'{"op": "z", "after": {}}', "its op is 'z'"),
        (b'{"op": 3}', "op"),
        (b'{"op": "c", "after": [1]}', "after"),
        (b'{"op": "c", "after": {"id": "x", "name": "Ann"}}', "id"),
        (b'{"schema": {"type": 1}, "payload": {"op": "c"}}', "schema|type"),
        (b"{", "truncated|JSON"),
        (b"\x00\x00\x00\x00\x01abc", "JSON|malformed"),
        (b"[]", "object"),
        (b"7", "object"),
    ],
)
def test_anything_else_is_refused_as_a_record_that_cannot_be_read(value: bytes, reason: str) -> None:
    told = refusal_of(customers(Consumed.debezium(Customer)), key_of(1), value)
    assert any(each in told for each in reason.split("|")), told


def test_a_date_that_python_does_not_have_names_its_column() -> None:
    after = {"id": 1, "name": "Ann", "born": 2**31 - 1}
    told = refusal_of(customers(Consumed.debezium(Customer)), key_of(1), envelope("c", after=after, columns=COLUMNS))
    assert "give born the type str" in told


def test_types_and_serdes_that_do_not_fit_are_refused_when_the_topology_is_built() -> None:
    with pytest.raises(TopologyError, match=r"column born: there is no type 'date'\. Types are"):
        Consumed.debezium(types={"born": "date"})
    with pytest.raises(TopologyError, match=r"does not read changes of rows: use Consumed\.debezium\(\)"):
        StreamsBuilder().table_from_changes("in", Consumed(STRING, JSON))


def test_envelopes_in_avro_are_read_by_the_serde_that_is_named() -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "name", "type": "string"},
            {"name": "born", "type": ["null", {"type": "int", "connect.name": "io.debezium.time.Date"}]},
            {"name": "credit", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        ],
    }
    fields = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ]
    schemas: dict[str, Any] = {"key": {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}}
    schemas["value"] = {"type": "record", "name": "Envelope", "fields": fields}
    registry = {"url": f"mock://test-{uuid.uuid4()}"}
    keys, values = (
        placed(Avro(schema=json.dumps(schemas[part])), SerdePlace("in", is_key=part == "key", registry=registry))
        for part in ("key", "value")
    )
    consumed = Consumed.debezium(Customer, types={"born": TYPES["born"]}, keys=Avro(), envelopes=Avro())
    read_keys, read_changes = (
        placed(serde, SerdePlace("in", is_key=is_key, registry=registry))
        for serde, is_key in ((consumed.key_serde, True), (consumed.value_serde, False))
    )
    after = {"id": 7, "name": "Ann", "born": 1, "credit": Decimal("12.30")}
    assert read_keys.deserialize(keys.serialize({"id": 7})) == 7
    change = read_changes.deserialize(values.serialize({"before": None, "after": after, "op": "c"}))
    assert change.after == Customer(7, "Ann", date(1970, 1, 2), Decimal("12.30"))
    assert read_changes.deserialize(read_changes.serialize(change)).after == change.after


def test_another_type_of_a_column_changes_the_fingerprint() -> None:
    def fingerprint(types: dict[str, str]) -> str:
        builder = StreamsBuilder()
        rows: KTable[Any, Any] = builder.table_from_changes("in", Consumed.debezium(types=types))
        rows.to_stream().to("out")
        return builder.build().fingerprint()

    times = ["io.debezium.time.Timestamp", "io.debezium.time.MicroTimestamp"]
    found = {fingerprint({"born": each}) for each in times} | {fingerprint(dict.fromkeys(["name"], times[0]))}
    assert len(found) == 3
    assert fingerprint({"a": times[0], "b": times[1]}) == fingerprint({"b": times[1], "a": times[0]})
