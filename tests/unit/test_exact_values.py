"""NaN, infinity, nanoseconds and times outside Python's years: each way in or out keeps them, or names column and place."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riverrun import JSON, STRING, Serde, TopicPartition
from riverrun.errors import DeserializationError, StateError
from riverrun.processor.sinks import RefusedRecordsError, SinkTable
from riverrun.project.imported_rows import RowsOfFile
from riverrun.serde.exact_values import FIRST_MS, LAST_MS, in_microseconds, micros, rows_with_odd_numbers
from riverrun.spark.columns import columns_of
from riverrun.transfers.file_sink import FileSink
from riverrun.transfers.polled_files import _fields_of
from riverrun.transfers.sink_rows import SinkRows
from riverrun.transfers.sql_sink import SqlSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TP = TopicPartition("t", 0)
FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf])


class Row(msgspec.Struct):
    x: float | None = None
    xs: list[float] | None = None
    by_name: dict[str, float] | None = None
    either: float | str | None = None


PACKED: Serde[Row] = Serde("packed", msgspec.msgpack.encode, msgspec.msgpack.Decoder(Row).decode, value_type=Row)
ROWS = st.builds(
    Row, FLOATS, st.lists(FLOATS, max_size=2), st.dictionaries(st.just("k"), FLOATS), FLOATS | st.just("x")
)


def table_of(rows: SinkRows) -> SinkTable:
    return SinkTable("e", TP.topic, "id", rows.schema, rows.key_names)


def in_database(name: str) -> Callable[[SinkRows, Path], tuple[Any, Callable[[], dict[str, Any]]]]:
    def opened(rows: SinkRows, path: Path) -> tuple[Any, Callable[[], dict[str, Any]]]:
        url = f"{name}:///{path}/target.db"

        def read() -> dict[str, Any]:
            with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
                texts = [f"CAST({each} AS TEXT) AS {each}" for each in ("xs", "by_name", "either")]
                query = f"SELECT x, {', '.join(texts)} FROM target"  # noqa: S608 - names of this test
                found = dict(connection.exec_driver_sql(query).mappings().one())
            return {name: json.loads(each) if isinstance(each, str) else each for name, each in found.items()}

        return SqlSink(table_of(rows), url, "target"), read

    return opened


def in_files(form: str) -> Callable[[SinkRows, Path], tuple[Any, Callable[[], dict[str, Any]]]]:
    def opened(rows: SinkRows, path: Path) -> tuple[Any, Callable[[], dict[str, Any]]]:
        def read() -> dict[str, Any]:
            (file,) = path.glob(f"t-*.{form}")
            if form == "json":
                found: dict[str, Any] = json.loads(file.read_bytes())
                return found
            (row,) = pq.read_table(file).to_pylist(maps_as_pydicts="strict")
            return {**row, "either": row["either"] and json.loads(row["either"])}

        return FileSink(table_of(rows), str(path), form), read

    return opened


WAYS = {
    "sqlite": in_database("sqlite"),
    "duckdb": in_database("duckdb"),
    "json": in_files("json"),
    "parquet": in_files("parquet"),
}


@pytest.mark.parametrize("way", WAYS)
def test_sinks_keep_each_number_or_name_its_column_and_record(
    way: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = SinkRows.of(STRING, PACKED, {})

    @settings(max_examples=6 if way == "duckdb" else 25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(ROWS)
    def check(value: Row) -> None:
        sink, read = WAYS[way](rows, tmp_path_factory.mktemp("way"))
        sink.begin([TP])
        try:
            sink.write(rows.batch(TP, [(b"a", PACKED.serialize(value), 1, 7, ())]))
            sink.commit({TP: 8})
        except (RefusedRecordsError, DeserializationError) as error:
            refused = str(error).lower()
        else:
            refused = ""
        if refused:
            assert "nan" in refused or "inf" in refused
            assert any(f"column {name}" in refused for name in msgspec.structs.asdict(value))
            assert "t-0@7" in refused or "offset 7" in refused
            return
        sink.begin([])
        found = read()
        assert repr({name: found[name] for name in msgspec.structs.asdict(value)}) == repr(
            msgspec.structs.asdict(value)
        )

    check()


TIMES = {"2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.0000001", "253402300800000", "+10000-01-01T00:00:00Z"}


@pytest.mark.parametrize("text", sorted(TIMES))
@pytest.mark.parametrize("is_declared", [True, False])
def test_times_that_columns_do_not_have_are_refused_with_their_place(text: str, is_declared: bool) -> None:
    timed: Any = msgspec.defstruct("Timed", [("at", dt.datetime)])
    rows = SinkRows.of(STRING, JSON, {"at": "timestamp"}) if is_declared else SinkRows.of(STRING, JSON(timed), {})
    value = json.dumps({"at": text}).encode()
    with pytest.raises(DeserializationError, match=r"topic t, partition 0, offset 7"):
        rows.batch(TP, [(b"a", value, 1, 7, ())])


class Visit(msgspec.Struct, rename="camel"):
    when_seen: dt.datetime
    note: str = ""


NESTED: list[tuple[Any, str]] = [
    (Visit, '{{"whenSeen":"{0}","note":"{1}"}}'),
    (list[dt.datetime], '["2026-01-02T03:04:05Z","{0}"]'),
    (dict[str, Visit | None], '{{"n":null,"v":{{"whenSeen":"{0}","note":"{1}"}}}}'),
]


@pytest.mark.parametrize(("kind", "form"), NESTED)
def test_times_within_values_are_exact_or_refused_with_help(kind: Any, form: str) -> None:
    long, short = "2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456Z"
    rows = SinkRows.of(STRING, JSON(msgspec.defstruct("Timed", [("of", kind)])), {})
    with pytest.raises(DeserializationError, match="has nanoseconds") as raised:
        rows.batch(TP, [(b"a", f'{{"of":{form.format(long, short)}}}'.encode(), 1, 7, ())])
    assert "declare the column" in str(raised.value)
    assert rows.batch(TP, [(b"a", f'{{"of":{form.format(short, long)}}}'.encode(), 1, 7, ())]).records.num_rows == 1


DIGITS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?(e[-+]?[0-9]{1,2})?", fullmatch=True)


@given(st.recursive(DIGITS, lambda inner: st.lists(inner, max_size=3).map(lambda parts: f"[{','.join(parts)}]")))
def test_json_keeps_its_digits(text: str) -> None:
    for declared, column in ({"v": "json"}, "v"), ({}, "value"):
        rows = SinkRows.of(STRING, JSON, declared)
        (row,) = rows.batch(TP, [(b"a", f'{{"v" : {text}}}'.encode(), 1, 7, ())]).rows()
        whole = text if declared else f'{{"v":{text}}}'
        assert json.loads(row[column], parse_float=Decimal) == json.loads(whole, parse_float=Decimal)
    frame = columns_of("value", JSON)
    (found,) = frame.arrays([f'{{"v" : {text}}}'.encode()], lambda _: {})
    assert json.loads(found[0].as_py(), parse_float=Decimal)["v"] == json.loads(text, parse_float=Decimal)


ANY: Any = Any
OPEN = [object, dict, dict | list, ANY | None, dict[str, ANY] | list[ANY] | str | bool | None]


@pytest.mark.parametrize("kind", OPEN, ids=str)
def test_json_whose_type_says_nothing_of_its_parts_keeps_its_digits(kind: Any) -> None:
    data = b'{"v":[1.10000000000000000001,1E-400]}'
    (row,) = SinkRows.of(STRING, JSON(kind), {}).batch(TP, [(b"a", data, 1, 7, ())]).rows()
    (column,) = columns_of("value", JSON(kind)).arrays([data], lambda _: {})
    assert row["value"] == column[0].as_py() == data.decode()


class Cat(msgspec.Struct, tag=True):
    weight: float
    name: str = ""


class Dog(msgspec.Struct, tag=True):
    name: str


PARTS = st.text() | st.sampled_from(["0.12345678901234567", "1e5"]) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(max_size=3), PARTS | st.lists(PARTS)), st.booleans())
def test_json_has_one_form_whatever_is_in_its_texts(value: dict[str, Any], is_escaped: bool) -> None:
    data = json.dumps({**value, "twice": 1}, ensure_ascii=is_escaped)[:-1] + ',"twice": 2}'
    wanted = msgspec.json.encode({**value, "twice": 2}).decode()
    for rows, column in (SinkRows.of(STRING, JSON, {}), "value"), (SinkRows.of(STRING, JSON, {"v": "json"}), "v"):
        written = data if column == "value" else f'{{"v": {data}}}'
        assert rows.batch(TP, [(b"a", written.encode(), 1, 7, ())]).rows()[0][column] == wanted


@given(PARTS, st.floats(allow_nan=False, allow_infinity=False))
def test_typed_json_is_written_as_its_type_has_it(further: Any, weight: float) -> None:
    either: Any = Cat | Dog
    rows = SinkRows.of(STRING, JSON(either), {})
    data = json.dumps({"type": "Cat", "weight": weight, "further": further}).encode()
    (row,) = rows.batch(TP, [(b"a", data, 1, 7, ())]).rows()
    assert row["value"] == msgspec.json.encode(Cat(weight)).decode()


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        (dt.time, "12:00:00.1234567", "has nanoseconds"),
        (dt.timedelta, "PT0.1234567S", "has nanoseconds"),
        (list[dt.timedelta], ["PT1S", "P1DT2H0.0000001S"], "has nanoseconds"),
        (dt.datetime, "9999-12-31T23:59:59-01:00", "date value out of range"),
        (list[dt.datetime], ["0001-01-01T00:00:00+01:00"], "date value out of range"),
    ],
)
def test_other_times_within_values_are_exact_or_refused(kind: Any, text: Any, problem: str) -> None:
    rows = SinkRows.of(STRING, JSON(msgspec.defstruct("Timed", [("of", kind)])), {})
    value = json.dumps({"of": text}).encode()
    with pytest.raises(DeserializationError, match=rf"(?s){problem}.*offset 7"):
        rows.batch(TP, [(b"a", value, 1, 7, ())])
    for place in "value", "key":
        with pytest.raises(DeserializationError, match=rf"(?s){problem}.*offset 7"):
            columns_of(place, JSON(msgspec.defstruct("Timed", [("of", kind)]))).arrays([value], lambda _: {"offset": 7})


def test_typed_whole_numbers_are_exact_as_doubles_or_refused() -> None:
    rows = SinkRows.of(STRING, JSON(msgspec.defstruct("Mixed", [("n", int | float)])), {})
    with pytest.raises(DeserializationError, match="9007199254740993 is not exact as a double"):
        rows.batch(TP, [(b"a", b'{"n":9007199254740993}', 1, 7, ())])


@pytest.mark.parametrize(("text", "micro"), [("05.123456000", 123456), ("05.1", 100_000), ("05", 0)])
def test_zeros_of_nanoseconds_are_left_out(text: str, micro: int) -> None:
    rows = SinkRows.of(STRING, JSON, {"at": "timestamp"})
    (row,) = rows.batch(TP, [(b"a", f'{{"at":"2026-01-02T03:04:{text}Z"}}'.encode(), 1, 7, ())]).rows()
    assert row["at"].microsecond == micro


@pytest.mark.parametrize("time_ms", [LAST_MS + 1, FIRST_MS - 1, 2**62])
def test_records_with_times_outside_pythons_years_are_refused(time_ms: int) -> None:
    with pytest.raises(DeserializationError, match=r"outside the years 1 to 9999.*offset 7"):
        SinkRows.of(STRING, STRING, {}).batch(TP, [(b"a", b"x", time_ms, 7, ())])


@given(st.integers(FIRST_MS, LAST_MS))
def test_times_of_pythons_years_are_kept(time_ms: int) -> None:
    assert pa.array([micros(time_ms)], pa.timestamp("us", "UTC")).to_pylist()[0].tzinfo is not None


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_become_equal_doubles_or_are_refused(number: int) -> None:
    rows = SinkRows.of(STRING, JSON, {"n": "double"})
    record = (b"a", b'{"n":%d}' % number, 1, 7, ())
    if float(number) == number:
        assert rows.batch(TP, [record]).rows()[0]["n"] == number
    else:
        with pytest.raises(DeserializationError, match="is not exact as a double"):
            rows.batch(TP, [record])


KINDS: list[pa.DataType] = [
    pa.float64(),
    pa.list_(pa.float64()),
    pa.map_(pa.string(), pa.float64()),
    pa.struct([("a", pa.list_(pa.float64()))]),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(st.lists(FLOATS | st.none(), max_size=6), st.integers(0, 3))
def test_odd_numbers_are_found_within_all_types(kind: pa.DataType, values: list[float | None], start: int) -> None:
    shapes: dict[Any, Callable[[Any], Any]] = {
        KINDS[0]: lambda value: value,
        KINDS[1]: lambda value: [0.0, value],
        KINDS[2]: lambda value: [("k", value)],
        KINDS[3]: lambda value: {"a": [value]},
    }
    whole = pa.array([None if each is None else shapes[kind](each) for each in values], kind)
    odd = [at for at, each in enumerate(values[start:]) if each is not None and not math.isfinite(each)]
    assert rows_with_odd_numbers(whole.slice(start)) == odd


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5), st.sampled_from(["s", "ms", "us", "ns"]))
def test_files_of_times_keep_them_or_name_row_and_column(numbers: list[int], unit: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(numbers, pa.timestamp(unit)), pa.array(numbers)], names=["at", "n"])
    exact = {"s": 10**6, "ms": 1000, "us": 1}.get(unit)
    for number, (fields, problem) in zip(numbers, _fields_of(batch), strict=True):
        assert fields["n"] == number
        found = number * exact if exact else number // 1000 if number % 1000 == 0 else None
        if found is None or not FIRST_MS * 1000 <= found <= LAST_MS * 1000 + 999:
            assert problem is not None
            assert problem.startswith("column at cannot be read")
        else:
            assert (fields["at"] - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) == found  # noqa: DTZ001


def test_times_within_other_types_are_kept_or_refused() -> None:
    kind = pa.struct([("x", pa.map_(pa.string(), pa.list_(pa.timestamp("ns"))))])
    assert (
        in_microseconds(pa.array([{"x": [("k", [1000])]}], kind)).type.field("x").type.item_type.value_type.unit == "us"
    )
    with pytest.raises(ValueError, match="nanoseconds"):
        in_microseconds(pa.array([{"x": [("k", [1001])]}], kind))


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_list(pa.timestamp("ns")),
        pa.list_(pa.timestamp("ns"), 1),
        pa.struct([("x", pa.large_list(pa.timestamp("ns")))]),
        pa.dictionary(pa.int32(), pa.timestamp("ns")),
    ],
)
def test_times_within_lists_of_all_kinds_are_kept_or_refused(kind: pa.DataType) -> None:
    def column(nanos: int) -> pa.Array:
        if pa.types.is_dictionary(kind):
            return pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([nanos], pa.timestamp("ns")))
        return pa.array([{"x": [nanos]} if pa.types.is_struct(kind) else [nanos]], kind)

    assert "ns" not in str(in_microseconds(column(1000)).type)
    with pytest.raises(ValueError, match="nanoseconds"):
        in_microseconds(column(1001))


@pytest.mark.parametrize("number", [1_000_001, 1_000, 2**62])
def test_times_of_rows_for_a_store_are_not_rounded(number: int, tmp_path: Path) -> None:
    unit = "us" if number == 2**62 else "ns"
    batch = pa.RecordBatch.from_arrays([pa.array([0, number], pa.timestamp(unit, "UTC"))], names=["window_start"])
    with pytest.raises(StateError, match=r"Row 12 of .* cannot be imported: window_start does not fit"):
        RowsOfFile(batch, [], tmp_path, 10)


@pytest.mark.parametrize(("unit", "number"), [("us", 1_999), ("ns", 1_999_999), ("ms", 1)])
def test_times_of_updates_for_a_store_are_rounded_down(unit: str, number: int, tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([None, number], pa.timestamp(unit, "UTC"))], names=["timestamp"])
    rows = RowsOfFile(batch, [], tmp_path, 0)
    assert [rows.time("timestamp", at) for at in range(2)] == [None, 1]
