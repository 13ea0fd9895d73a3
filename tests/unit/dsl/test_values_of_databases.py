"""Values that a database has and Python has not, and columns that it did not log, are read from changes of rows."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import BYTES, JSON, Consumed, KTable, Materialized, Produced, RowChange, Serde, StreamsBuilder, Topology
from riverrun.errors import StreamsError, TopologyError
from riverrun.sql import build_sql
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver
from tests.unit.operators.restarting import Restartable

DECIMAL = "org.apache.kafka.connect.data.Decimal"
DEFAULT = "__debezium_unavailable_value"


class Note(msgspec.Struct):
    id: int
    text: str
    day: date | None = None
    data: bytes | None = None


def changes(**options: Any) -> Serde[RowChange[Any]]:
    consumed: Consumed[Any, RowChange[Any]] = Consumed.debezium(**options)
    return consumed.value_serde


def change(op: str, after: Any) -> bytes:
    return json.dumps({"op": op, "before": None, "after": after, "source": {}, "ts_ms": 1}).encode()


def read(type_: str, value: Any, python: Any = Any) -> Any:
    row = msgspec.defstruct("Row", [("x", python)])
    found = changes(row=row, types={"x": type_}).deserialize(change("c", {"x": value})).after
    assert found is not None
    return getattr(found, "x")  # noqa: B009 - the class is made here


def forms(text: str) -> list[Any]:
    """The placeholder in columns of each type, as connectors write it in JSON."""
    data = text.encode()
    encoded = [base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), data.hex()]
    signed = [each - 256 if each > 127 else each for each in data]
    name = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
    shape = base64.b64encode(bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")).decode()
    shapes = [{"wkb": shape, "srid": 4326}, {"x": -99999999.0, "y": -99999999.0, "wkb": "", "srid": None}]
    lists = [[text], [encoded[0]], signed, [name]]
    return [
        text,
        *encoded,
        *lists,
        {text: text},
        json.dumps({text: text}, separators=(",", ":"), ensure_ascii=False),
        *shapes,
    ]


PLACEHOLDERS = st.just(DEFAULT) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters='"\\'), min_size=6
)


@given(st.data(), PLACEHOLDERS.filter(lambda text: not text.startswith("hex:") and text.isprintable()))
def test_a_placeholder_is_known_in_columns_of_every_type(data: st.DataObject, text: str) -> None:
    sent = {f"c{at}": form for at, form in enumerate(forms(text)) if data.draw(st.booleans())}
    values = {
        "a": "x",
        "b": [1, 2],
        "c": {"k": "v"},
        "d": None,
        "e": ["x"],
        "f": [],
        "g": base64.b64encode(b"x").decode(),
    }
    serde = changes(placeholder=text)
    found = serde.deserialize(change("u", {**values, **sent}))
    assert (found.after, set(found.unavailable)) == (values, set(sent))
    again = serde.deserialize(serde.serialize(found))
    assert (again.after, set(again.unavailable)) == (values, set(sent))


def test_a_placeholder_of_bytes_and_an_empty_one() -> None:
    found = changes(placeholder="hex:4a4b").deserialize(change("u", {"a": "JK", "b": "Sks="}))
    assert found.unavailable == ("a", "b")
    for wrong in ("", "hex:", "hex:x"):
        with pytest.raises(TopologyError):
            Consumed.debezium(placeholder=wrong)
        with pytest.raises(SqlError, match="DEBEZIUM_PLACEHOLDER"):
            build_sql(notes_in_sql(wrong), StreamsBuilder())


def notes_in_sql(placeholder: str) -> str:
    return f"""
        CREATE TABLE notes (id BIGINT PRIMARY KEY, text STRING, day DATE, seen TIMESTAMP, at TIME) WITH (KAFKA_TOPIC = 'in',
            FORMAT = 'DEBEZIUM_JSON', DEBEZIUM_PLACEHOLDER = '{placeholder}', DEBEZIUM_TYPES = 'day io.debezium.time.Date,
            seen io.debezium.time.MicroTimestamp, at io.debezium.time.MicroTime');
        CREATE TABLE o WITH (KAFKA_TOPIC = 'out') AS SELECT id, text, day, seen, at FROM notes;"""  # noqa: S608


def test_sql_knows_an_own_placeholder() -> None:
    with TopologyTestDriver(build_sql(notes_in_sql("gone"), StreamsBuilder())) as driver:
        source = driver.input_topic("in", BYTES, BYTES)
        with pytest.raises(StreamsError, match="did not log text"):
            source.pipe_input(b'{"id": 1}', change("u", {"id": 1, "text": "gone"}))


def test_sql_reads_dates_of_every_year_as_numbers() -> None:
    days = {"id": 1, "text": "a", "day": 3_000_000, "seen": -(2 * 10**17), "at": 1_000_000}
    with TopologyTestDriver(build_sql(notes_in_sql(DEFAULT), StreamsBuilder())) as driver:
        source = driver.input_topic("in", BYTES, BYTES)
        source.pipe_input(b'{"id": 1}', change("c", days))
        (row,) = driver.output_topic("out", BYTES, JSON).read_values_to_list()
        assert row is not None
        assert (row["DAY"], row["SEEN"], row["AT"]) == (3_000_000, -(2 * 10**14), 1000)
        for column, value, reason in (
            ("day", 2_146_033_979, "infinity"),
            ("at", 86_400_000_000, "24:00:00 is no time"),
        ):
            with pytest.raises(StreamsError, match=reason):
                source.pipe_input(b'{"id": 1}', change("c", {**days, column: value}))


@pytest.mark.parametrize("text", ["2017-09-15Z", "2017-09-15", "2017-09-15 10:00:00", "2017-09-15T10:00:00Z"])
def test_sql_reads_dates_as_texts_of_every_kind(text: str) -> None:
    sql = notes_in_sql(DEFAULT).replace("day io.debezium.time.Date,", "")
    with TopologyTestDriver(build_sql(sql, StreamsBuilder())) as driver:
        driver.input_topic("in", BYTES, BYTES).pipe_input(b'{"id": 1}', change("c", {"id": 1, "day": text}))
        (row,) = driver.output_topic("out", BYTES, JSON).read_values_to_list()
    assert row is not None
    assert row["DAY"] == (date(2017, 9, 15) - date(1970, 1, 1)).days


def notes(*, repartition: bool = False, row: Any = Note, placeholder: str = DEFAULT) -> Topology:
    builder = StreamsBuilder()
    types = {"day": "io.debezium.time.Date"}
    consumed: Consumed[Any, RowChange[Any]] = Consumed.debezium(row, types=types, placeholder=placeholder)
    table = builder.table_from_changes(
        "in", consumed, Materialized(name="notes"), repartition=repartition, keeps_unlogged=True
    )
    table.to_stream().to("out", Produced(JSON, JSON))
    return builder.build()


ROW = st.fixed_dictionaries(
    {"text": st.text(max_size=3), "day": st.none() | st.integers(0, 9), "data": st.none() | st.binary(max_size=3)}
)
STEPS = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from("cuuud"), ROW, st.sets(st.sampled_from(["text", "data"])))
)


@given(STEPS, st.sampled_from([None, Note]), st.sampled_from([DEFAULT, "own text"]), st.sets(st.integers(0, 20)))
def test_columns_that_were_not_logged_keep_their_values(
    steps: list[tuple[int, str, dict[str, Any], set[str]]], row: Any, placeholder: str, cuts: set[int]
) -> None:
    task = Restartable(notes(row=row, placeholder=placeholder))
    database: dict[int, dict[str, Any]] = {}
    encoded = base64.b64encode(placeholder.encode()).decode()
    batch: list[Any] = []
    for number, (row_id, op, wanted, left_alone) in enumerate(steps):
        key = json.dumps({"id": row_id})
        if op == "d":
            database.pop(row_id, None)
            batch.append((key, number, change("d", None)))
            continue
        sent = {"id": row_id, **wanted, "data": wanted["data"] and base64.b64encode(wanted["data"]).decode()}
        if not sent["data"]:
            sent["data"] = None
        stored = {**sent, "day": None if sent["day"] is None else str(date(1970, 1, 1) + timedelta(sent["day"]))}
        if row_id in database and op == "u":
            stored |= {name: database[row_id][name] for name in left_alone}
            sent |= {name: encoded if name == "data" else placeholder for name in left_alone}
        database[row_id] = stored
        batch.append((key, number, change(op, sent)))
        if number in cuts:
            task.run(*batch)
            batch = []
            task.lose_state()
    task.run(*batch)
    found = {each.key: each.value for each in task.written()}
    rows = {json.loads(key or b""): json.loads(value) for key, value in found.items() if value is not None}
    assert rows == database


@pytest.mark.parametrize("row", [None, Note])
def test_the_row_is_kept_across_a_repartition_topic(row: Any) -> None:
    with TopologyTestDriver(notes(repartition=True, row=row)) as driver:
        source = driver.input_topic("in", BYTES, BYTES)
        source.pipe_input(b'{"id": 1}', change("c", {"id": 1, "text": "long", "day": 1}))
        source.pipe_input(b'{"id": 1}', change("u", {"id": 1, "text": DEFAULT, "day": 2}))
        last = driver.output_topic("out", JSON, JSON).read_values_to_list()[-1]
        assert last is not None
        assert (last["text"], last["day"]) == ("long", "1970-01-03")
        with pytest.raises(StreamsError, match="did not log text"):
            source.pipe_input(b'{"id": 2}', change("u", {"id": 2, "text": DEFAULT, "day": 2}))


def test_a_table_that_keeps_columns_needs_a_name() -> None:
    with pytest.raises(TopologyError, match="needs a named store"):
        StreamsBuilder().table_from_changes("in", Consumed.debezium(), keeps_unlogged=True)
    with pytest.raises(TopologyError, match=r"use Consumed\.debezium"):
        StreamsBuilder().table_from_changes("in", Consumed(JSON, JSON), keeps_unlogged=True)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 6))
def test_decimals_that_are_sent_as_texts_stay_as_they_are(number: Decimal, scale: int) -> None:
    for text in (str(number), format(number, "f") if abs(number.adjusted()) < 50 else "0"):
        assert read(f"{DECIMAL}({scale}) string", text) == text
        # Without the mode, some texts may be bytes. They are refused, and never taken for another number.
        try:
            found = read(f"{DECIMAL}({scale})", text)
        except ValueError as error:
            assert "is a decimal as text, or bytes as base64" in str(error)  # noqa: PT017 - either is right
        else:
            assert found == text


BASE64 = st.text("ABCeE0129+/", min_size=4, max_size=8) | st.sampled_from(["1e10", "12E3", "+123", "Infinity"])


@given(BASE64)
def test_decimals_that_may_be_bytes_need_their_mode(text: str) -> None:
    try:
        sent = base64.b64decode(text, validate=True)
    except ValueError:
        return
    try:
        found = read(f"{DECIMAL}(0)", text)
    except ValueError as error:
        assert "is a decimal as text, or bytes as base64" in str(error)  # noqa: PT017 - either is right
        assert Decimal(text).is_finite() or text == "Infinity"
    else:
        assert Decimal(found) == int.from_bytes(sent, "big", signed=True)


@given(st.integers(-(10**12), 10**12))
def test_decimals_that_are_sent_as_bytes_keep_their_value(cents: int) -> None:
    data = cents.to_bytes((cents.bit_length() + 8) // 8, "big", signed=True)
    assert Decimal(read(f"{DECIMAL}(2) precise", base64.b64encode(data).decode())) == Decimal(cents).scaleb(-2)


TIMES = "io.debezium.time."


@pytest.mark.parametrize(
    ("type_", "sent", "wanted"),
    [
        ("Date", 2_146_033_979, "infinity"),
        ("Date", -2_147_472_691, "-infinity"),
        ("Date", 2_932_897, "+10000-01-01"),
        ("Date", -719_162 - 366, "0000-01-01"),
        ("Date", -719_162 - 367, "-0001-12-31"),
        ("Timestamp", 9_223_372_036_825_200, "infinity"),
        ("Timestamp", -9_223_372_036_832_400_000, "-infinity"),
        ("MicroTimestamp", 9_223_372_036_825_200_000, "infinity"),
        ("MicroTimestamp", -9_223_372_036_832_400_000, "-infinity"),
        ("MicroTimestamp", 253_402_300_800_000_001, "+10000-01-01T00:00:00.000001"),
        ("NanoTimestamp", 2**63 - 1, "infinity"),
        ("NanoTimestamp", -(2**63), "-infinity"),
        ("ZonedTimestamp", "+292278994-08-16T23:00:00Z", "infinity"),
        ("ZonedTimestamp", "-292275055-05-16T23:00:00Z", "-infinity"),
        ("ZonedTimestamp", "-0043-03-15T00:00:00Z", "-0043-03-15T00:00:00Z"),
        ("MicroTime", 86_400_000_000, "24:00:00"),
        ("MicroTime", -5_400_000_000, "-01:30:00"),
        ("MicroTime", 3_020_399_000_001, "838:59:59.000001"),
        ("Time", -1, "-00:00:00.001000"),
        ("NanoTime", -1, "-00:00:00.000000001"),
    ],
)
def test_times_that_python_does_not_have_are_texts(type_: str, sent: Any, wanted: str) -> None:
    assert read(TIMES + type_, sent, str) == wanted
    python = {"Date": date}.get(type_)
    if python is not None:
        with pytest.raises(ValueError, match="give x the type str"):
            read(TIMES + type_, sent, python)


@given(st.integers(-(2**31), 2**31 - 1))
def test_days_of_every_year_are_told_apart(days: int) -> None:
    text = read(TIMES + "Date", days)
    if "infinity" in text:
        return
    year, month, day = text.rsplit("-", 2)
    number = int(year)
    # The calendar repeats after 400 years.
    same = date(2000 + number % 400, int(month), int(day))
    assert (same - date(1970, 1, 1)).days + (number - number % 400 - 2000) // 400 * 146_097 == days
    assert text[0] in "+-" or len(year) == 4


@given(st.integers(-(10**13), 10**13), st.sampled_from([("Time", 1000), ("MicroTime", 1), ("NanoTime", 1000)]))
def test_times_of_every_length_keep_all_digits(value: int, unit: tuple[str, int]) -> None:
    text = read(TIMES + unit[0], value)
    hours, minutes, seconds = text.removeprefix("-").split(":")
    total = (int(hours) * 60 + int(minutes)) * 60 + Decimal(seconds)
    per_second = {"Time": 1000, "MicroTime": 10**6, "NanoTime": 10**9}[unit[0]]
    assert (-total if text.startswith("-") else total) * per_second == value


ROWS = st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.integers(0, 9)), max_size=12)


@given(ROWS, st.booleans(), st.booleans())
def test_rows_without_envelopes_that_are_marked_as_deleted_are_gone(
    rows: list[tuple[int, bool, int]], has_schema: bool, is_text: bool
) -> None:
    builder = StreamsBuilder()
    consumed: Consumed[Any, RowChange[Any]] = Consumed.debezium(types={"day": TIMES + "Date"})
    table: KTable[Any, Any] = builder.table_from_changes("in", consumed, repartition=False)
    table.to_stream().to("out", Produced(JSON, JSON))
    database: dict[int, Any] = {}
    fields = [{"type": "int64", "field": "id"}, {"type": "int32", "name": TIMES + "Date", "field": "day"}]
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input_topic("in", BYTES, JSON)
        for row_id, is_deleted, day in rows:
            mark: Any = str(is_deleted).lower() if is_text else is_deleted
            row = {"id": row_id, "day": day, "__deleted": mark, "__op": "d" if is_deleted else "u", "__lsn": 5}
            schema = {"type": "struct", "fields": [*fields, {"type": "string", "field": "__deleted"}]}
            source.pipe_input(b'{"id": %d}' % row_id, {"schema": schema, "payload": row} if has_schema else row)
            database[row_id] = None if is_deleted else {"id": row_id, "day": f"1970-01-{day + 1:02d}"}
        found = driver.output_topic("out", JSON, JSON).read_key_values_to_list()
    assert dict(found) == database


def test_what_a_connector_adds_to_a_row_is_its_source() -> None:
    row = {"id": 1, "__deleted": "true", "__source_ts_ms": 7, "__ts_ms": 9}
    found = changes().deserialize(json.dumps(row).encode())
    assert (found.op, found.after, found.before, found.ts_ms) == ("d", None, {"id": 1}, 9)
    assert found.source == {"source_ts_ms": 7, "ts_ms": 9}


ENVELOPE = ["op", "before", "after", "source", "ts_ms", "schema", "payload", "transaction"]
COLUMNS = st.dictionaries(
    st.sampled_from([*ENVELOPE, "id"]), st.none() | st.integers(0, 9) | st.sampled_from(["c", "d", "buy", ""])
)


@given(COLUMNS, st.booleans(), st.sampled_from(["payload", "schema", None]))
def test_columns_of_rows_without_envelopes_may_have_its_names(
    row: dict[str, Any], is_deleted: bool, inside: str | None
) -> None:
    sent: Any = {**row, "__deleted": str(is_deleted).lower()}
    fields = [{"type": "string", "field": name} for name in sent]
    if inside is not None:
        sent = {"payload": sent} | ({"schema": {"type": "struct", "fields": fields}} if inside == "schema" else {})
    other: Serde[Any] = Serde("other", JSON.serialize, lambda data: json.loads(data[1:]))
    readers = [(changes(), json.dumps(sent).encode())]
    if inside is None:
        readers.append((changes(envelopes=other), b"\0" + json.dumps(sent).encode()))
    for serde, data in readers:
        found = serde.deserialize(data)
        after, before = (None, row) if is_deleted else (row, None)
        assert (found.op, found.after, found.row_before) == ("d" if is_deleted else "u", after, before)


@given(st.dictionaries(st.sampled_from(["payload", "id", "op"]), st.integers(0, 9), min_size=1))
def test_columns_of_keys_may_have_the_names_of_an_envelope(columns: dict[str, int]) -> None:
    found = Consumed.debezium().key_serde.deserialize(json.dumps(columns).encode())
    assert found == (columns if len(columns) > 1 else next(iter(columns.values())))


class Day(msgspec.Struct):
    id: int
    day: date | None = None


def test_a_row_that_the_table_lacks_needs_only_the_columns_of_its_class() -> None:
    with TopologyTestDriver(notes(repartition=True, row=Day)) as driver:
        source = driver.input_topic("in", BYTES, BYTES)
        source.pipe_input(b'{"id": 1}', change("u", {"id": 1, "text": DEFAULT, "day": 2}))
        assert driver.output_topic("out", JSON, JSON).read_values_to_list() == [{"id": 1, "day": "1970-01-03"}]
        # The default of a column is not its value.
        with pytest.raises(StreamsError, match="did not log day"):
            source.pipe_input(b'{"id": 2}', change("u", {"id": 2, "text": DEFAULT, "day": DEFAULT}))
