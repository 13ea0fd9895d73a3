"""Tables that others have made: what they cannot hold is refused, and rows in them are never others than the records."""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import sqlite3
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.schema import CreateTable

from riverrun.errors import ConfigError, EngineError, StreamsError
from riverrun.processor.sinks import JSON_FIELD, OFFSET, PARTITION, TIMESTAMP, RefusedRecordsError, SinkBatch, SinkTable
from riverrun.testing.sinks import sink_table
from riverrun.transfers import sql_sink
from riverrun.transfers.held_values import check_types
from riverrun.transfers.sql_columns import ColumnType, column_types
from riverrun.transfers.sql_sink import SqlSink, _offsets_table, _rows_table, updating
from riverrun.transfers.unreadable import ReadableRows
from tests.brokers import free_port
from tests.followed_tables import OWN, TP, URLS, Place, followed
from tests.postgresql import running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from riverrun.records import RawFields


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Place]]:
    """Databases that a test has to empty."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        found = {name: Place(url.format(directory)) for name, url in URLS.items()}
        for place in found.values():
            stack.enter_context(place.held())
        yield found


@pytest.fixture(scope="module")
def postgres() -> Iterator[Place]:
    with running_postgres(free_port(), "test") as server:
        yield Place(f"postgresql+psycopg2://test@127.0.0.1:{server.port}/postgres")


def table_with(name: str, kind: pa.DataType, *, is_upsert: bool = False) -> SinkTable:
    table = replace(sink_table(), topic=TP.topic, is_upsert=is_upsert)
    return replace(table, schema=table.schema.append(pa.field(name, kind)))


def batch(table: SinkTable, *rows: dict[str, Any]) -> SinkBatch:
    found = [{"_key": "a", PARTITION: 0, OFFSET: at, **row} for at, row in enumerate(rows)]
    return SinkBatch(TP, pa.RecordBatch.from_pylist(found, table.schema), [False] * len(rows))


def write(place: Place, table: SinkTable, *rows: dict[str, Any]) -> None:
    sink = SqlSink(table, place.url, "target")
    sink.begin([TP])
    sink.write(batch(table, *rows))
    sink.commit({TP: len(rows)})
    sink.begin([])


UTC = dt.UTC
KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.float64(), [1.5, 2.0**60 + 2.0**9, 0.1, 0.1 + 0.2, -1e300]),
    (pa.float32(), [1.5, 2.0**25]),
    (pa.int64(), [7, 2**53 + 1, -(2**62)]),
    (pa.int32(), [7, 2**24 + 1]),
    (pa.int16(), [7, 1234]),
    (pa.decimal128(30, 3), [Decimal("1.005"), Decimal("123456789012345678901.123")]),
    (pa.decimal128(20, 0), [Decimal(2**60 + 1)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 2, 23, 59, 59, 123456, UTC)]),
    (pa.string(), ["7", "1.5", "1.505", "9007199254740993", "1.10000000000000000001", "1E-20"]),
    (pa.string(), ["2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04:05+05:00"]),
]
COLUMNS = {
    "sqlite": ["BIGINT", "INTEGER", "REAL", "DOUBLE", "DECIMAL(10, 2)", "NUMERIC", "TEXT", "DATE", "DATETIME"],
    "duckdb": [
        "BIGINT",
        "UTINYINT",
        "INTEGER",
        "FLOAT",
        "REAL",
        "DOUBLE",
        "DECIMAL(10, 2)",
        "DECIMAL(38, 3)",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_S",
        "TIMESTAMP_MS",
        "TIMESTAMPTZ",
        "HUGEINT",
        "TIME",
    ],
    "postgresql": [
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "numeric",
        "numeric(10, 2)",
        "date",
        "numeric(38, 3)",
        "numeric(10, -2)",
        "timestamp",
        "timestamp(0)",
        "timestamptz",
        "timestamptz(3)",
        "time",
    ],
}


def as_shown(found: Any, column: str) -> str:
    """Return a number as databases show it: DuckDB's driver widens 32 bits to 64, which shows digits that are not held."""
    is_widened = column in {"FLOAT", "REAL"} and isinstance(found, float) and float(np.float32(found)) == found
    return str(np.float32(found)) if is_widened else str(found)


def is_equal(found: Any, value: Any, column: str) -> bool:
    if isinstance(value, str) and isinstance(found, dt.datetime):
        whole = dt.datetime.fromisoformat(value)
        return "1234567" not in value and (found if found.tzinfo else found.replace(tzinfo=UTC)) == whole
    if isinstance(value, str) and ":" not in value and found is not None:
        return Decimal(as_shown(found, column)) == Decimal(value)
    if isinstance(value, dt.datetime):
        found = dt.datetime.fromisoformat(found) if isinstance(found, str) else found
        return isinstance(found, dt.datetime) and (found if found.tzinfo else found.replace(tzinfo=UTC)) == value
    if isinstance(value, Decimal) and isinstance(found, float):
        return False
    if isinstance(value, Decimal):
        return Decimal(str(found)) == value
    return type(value)(found) == value if isinstance(found, str | Decimal) else bool(found == value)


def holds_or_refuses(place: Place, dialect: str, column: str) -> list[str]:
    """Return the values that a column of a type has changed."""
    wrong = []
    moment = {"sqlite": "TEXT"}.get(dialect, "TIMESTAMP")
    with place.held():
        for kind, values in KINDS:
            place.empty(f"CREATE TABLE target (_key VARCHAR(9), n BIGINT, x {column}, {OWN.format(moment)})")
            left = written(place, table_with("x", kind), values)
            found = [value for (value,) in place.run("SELECT x FROM target ORDER BY _offset")]
            changed = [pair for pair in zip(left, found, strict=True) if not is_equal(pair[1], pair[0], column)]
            wrong += [f"{value!r} of {kind} became {there!r} in {column}" for value, there in changed]
    return wrong


def written(place: Place, table: SinkTable, values: list[Any]) -> list[Any]:
    """Write the values that a table does not refuse, and return them."""
    try:
        write(place, table, *({"x": value} for value in values))
    except RefusedRecordsError as error:
        assert place.run("SELECT x FROM target") == []
        return written(place, table, [each for at, each in enumerate(values) if (TP, at) not in error.reasons])
    except ConfigError:
        return []
    return values


@pytest.mark.parametrize("column", COLUMNS["sqlite"])
def test_sqlite_has_each_value_or_refuses_it(column: str, tmp_path: Path) -> None:
    assert holds_or_refuses(Place(URLS["sqlite"].format(tmp_path)), "sqlite", column) == []


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(each, marks=[] if each in {"BIGINT", "DECIMAL(10, 2)", "TIMESTAMP"} else pytest.mark.slow)
        for each in COLUMNS["duckdb"]
    ],
)
def test_duckdb_has_each_value_or_refuses_it(column: str, tmp_path: Path) -> None:
    assert holds_or_refuses(Place(URLS["duckdb"].format(tmp_path)), "duckdb", column) == []


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS["postgresql"])
def test_postgresql_has_each_value_or_refuses_it(column: str, postgres: Place) -> None:
    # Its own sessions have another zone.
    postgres.run("ALTER ROLE test SET timezone = 'Asia/Tokyo'")
    assert holds_or_refuses(postgres, "postgresql", column) == []


@pytest.mark.parametrize(("column", "is_refused"), [("JSON", True), ("REAL", True), ("TEXT", False), ("BLOB", False)])
def test_a_column_of_sqlite_that_makes_numbers_of_json_is_refused(
    column: str, is_refused: bool, tmp_path: Path
) -> None:
    place = Place(URLS["sqlite"].format(tmp_path))
    place.run(f"CREATE TABLE target (_key TEXT, n BIGINT, x {column}, {OWN.format('TEXT')})")
    table = sink_table()
    table = replace(table, schema=table.schema.append(pa.field("x", pa.string(), metadata=JSON_FIELD)))
    sink = SqlSink(table, place.url, "target")
    if is_refused:
        with pytest.raises(ConfigError, match=f"Column x of table target is {column}, and the export has JSON"):
            sink.begin([TP])
    else:
        sink.begin([TP])
    sink.begin([])


def test_columns_of_the_sinks_own_tables_change_nothing(places: dict[str, Place]) -> None:
    for place in places.values():
        for kind, values in KINDS:
            place.empty()
            write(place, table_with("x", kind), *({"x": value} for value in values))
            write_again = SqlSink(table_with("x", kind), place.url, "target")
            assert write_again.begin([TP]) == {TP: len(values)}
            write_again.begin([])


@pytest.mark.parametrize(
    ("text", "kind", "digits"),
    [
        ("INTERVAL", "other", None),
        ("NUMERIC(10, -2)", "exact", -2),
        ("POINT", "other", None),
        ("BIGINT UNSIGNED", "whole", None),
        ("TIMESTAMP(3) WITHOUT TIME ZONE", "moment", 3),
        ("DOUBLE PRECISION", "double", None),
        ("character varying(9)", "text", None),
        ("", "other", None),
    ],
)
def test_types_are_read_as_databases_write_them(text: str, kind: str, digits: int | None) -> None:
    assert ColumnType.of(text, "postgresql") == ColumnType(kind, digits)


@pytest.mark.parametrize(
    ("dialect", "digits", "is_refused"), [("mssql", 3, True), ("mssql", 7, False), ("oracle", 3, True)]
)
def test_digits_of_times_are_those_that_the_catalog_has(
    dialect: str, digits: int, is_refused: bool, tmp_path: Path
) -> None:
    # Of SQL Server and Oracle there is the catalog only. SQLAlchemy reads the types without digits.
    engine = sa.create_engine(f"sqlite:///{tmp_path}/target.db", poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ATTACH '{tmp_path}/catalog.db' AS information_schema")
        connection.exec_driver_sql(
            "CREATE TABLE information_schema.columns"
            " AS SELECT 'target' table_name, 'main' table_schema, 'x' column_name, 'datetime2' data_type,"
            f" {digits} datetime_precision"
        )
        connection.exec_driver_sql(
            "CREATE TABLE all_tab_columns AS SELECT 'target' table_name, 'main' owner, 'x' column_name,"
            f" 'TIMESTAMP({digits})' data_type, {digits} data_scale"
        )
        connection.exec_driver_sql("CREATE TABLE target (_key TEXT, n BIGINT, x TIMESTAMP, y DATETIME)")
        rows = sa.Table("target", sa.MetaData(), schema="main")
        engine.dialect.name = dialect
        connection.dialect.name = dialect
        assert column_types(connection, rows)["x"] == f"TIMESTAMP({digits})"
        assert column_types(connection, rows)["y"] == "DATETIME"
        with pytest.raises(ConfigError, match=r"is TIMESTAMP\(3\)") if is_refused else nullcontext():
            check_types(connection, rows, table_with("x", pa.timestamp("us", "UTC")))


NAMES = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\"'\\\n\r\0%():.[]`?$ "), max_size=12)


@settings(max_examples=12, deadline=None)
@given(NAMES, st.booleans())
def test_columns_have_any_name_or_are_refused_before_anything_is_made(
    places: dict[str, Place], name: str, is_upsert: bool
) -> None:
    for place in places.values():
        place.empty()
        try:
            table = table_with(name, pa.string(), is_upsert=is_upsert)
            write(place, table, {name: "v"}, {"_key": "b", name: "v"})
            write(place, table, {name: "w"}, {"_key": "b", name: "w"})
        except ConfigError as error:
            assert "The name of the column" in str(error)  # noqa: PT017 - either is right
            assert sa.inspect(sa.create_engine(place.url, poolclass=sa.NullPool)).get_table_names() == []
            assert not name or "\0" in name or name.lower() in {"_key", "n", "_timestamp", "_partition", "_offset"}


@pytest.mark.parametrize("name", ["", "a\0b", "é" * 32, "x" * 64])
def test_names_that_postgresql_cuts_are_refused(name: str) -> None:
    url = "postgresql+psycopg2://nobody@127.0.0.1:1/none"
    with pytest.raises(ConfigError, match=r"The name of the column.* (is empty|has a NUL|has 64 bytes)"):
        SqlSink(table_with(name, pa.string()), url, "target")
    with pytest.raises(ConfigError, match="The name of the table"):
        SqlSink(sink_table(), url, f"public.{name}")


def test_duckdb_has_names_of_any_length(tmp_path: Path) -> None:
    place, name = Place(URLS["duckdb"].format(tmp_path)), "x" * 300
    write(place, table_with(name, pa.string()), {name: "v"})
    assert place.run("SELECT * FROM target")[0][-1] == "v"


@pytest.mark.parametrize(
    ("dialect", "key", "moment"),
    [
        ("mysql", "VARCHAR(255) COLLATE utf8mb4_0900_bin", "DATETIME(6)"),
        ("mariadb", "VARCHAR(255) COLLATE utf8mb4_nopad_bin", "DATETIME(6)"),
        ("mssql", "NVARCHAR(255) COLLATE Latin1_General_100_BIN2", "DATETIMEOFFSET"),
        ("oracle", "VARCHAR2(255 CHAR)", "TIMESTAMP WITH TIME ZONE"),
        ("postgresql", "TEXT", "TIMESTAMP WITH TIME ZONE"),
    ],
)
def test_tables_that_are_made_keep_keys_apart_and_have_whole_times(dialect: str, key: str, moment: str) -> None:
    table = table_with("at", pa.timestamp("us", "UTC"))
    rows, made_for = (
        _rows_table(replace(table, is_upsert=True), "target", dialect),
        sa.make_url(f"{dialect}://").get_dialect()(),
    )
    found = str(CreateTable(rows).compile(dialect=made_for))
    assert f"_key {key} NOT NULL" in found.replace('"', "")
    assert f" at {moment}" in found.replace('"', "").replace("\t", " ")
    offsets = str(CreateTable(_offsets_table(rows, dialect)).compile(dialect=made_for)).replace('"', "")
    assert f"topic {key.replace('255', '249').replace('TEXT', 'VARCHAR(249)')} NOT NULL" in offsets


@pytest.mark.parametrize("dialect", ["mysql", "mariadb", "mssql", "oracle"])
def test_statements_for_a_part_of_a_row_name_only_its_columns(dialect: str) -> None:
    table = replace(table_with("x", pa.float64(), is_upsert=True), key=("_key", "n"))
    row = {"_key": "a", "n": 1, "_offset": 7}
    make: Any = sa.make_url(f"{dialect}://").get_dialect()
    made_for = make(paramstyle="named")
    target = _rows_table(table, "target", dialect)
    change = str(updating(target, table.key, row).compile(dialect=made_for))
    assert change.replace('"', "") == (
        "UPDATE target SET _offset=:value_2 WHERE target._key = :value_0 AND target.n = :value_1"
    )
    add = sa.insert(target).compile(dialect=made_for, column_keys=list(row))
    assert str(add).replace('"', "") == "INSERT INTO target (_key, n, _offset) VALUES (:_key, :n, :_offset)"


@pytest.mark.parametrize("text", ["DATETIME", "TIMESTAMP", "DATETIME(3)"])
def test_times_of_mysql_without_a_precision_have_whole_seconds(text: str) -> None:
    for dialect in ("mysql", "mariadb"):
        assert ColumnType.of(text, dialect).changes(pa.timestamp("us", "UTC"))
        assert not ColumnType.of("DATETIME(6)", dialect).changes(pa.timestamp("us", "UTC"))


def keys_without_case(place: Place, column: str) -> None:
    place.run(f"CREATE TABLE target (_key {column} PRIMARY KEY, n BIGINT, {OWN.format('TIMESTAMP')})")
    sink = SqlSink(replace(sink_table(), is_upsert=True), place.url, "target")
    with pytest.raises(ConfigError, match=r"takes .a. and .+ for equal"):
        sink.begin([TP])
    sink.begin([])
    SqlSink(sink_table(), place.url, "target").begin([TP])


@pytest.mark.parametrize("column", ["TEXT COLLATE NOCASE", "VARCHAR(9) COLLATE RTRIM"])
def test_a_key_whose_collation_takes_texts_for_equal_is_refused(column: str, tmp_path: Path) -> None:
    keys_without_case(Place(URLS["sqlite"].format(tmp_path)), column)


def test_a_key_of_duckdb_with_a_collation_is_refused(tmp_path: Path) -> None:
    keys_without_case(Place(URLS["duckdb"].format(tmp_path)), "VARCHAR COLLATE NOCASE")


@pytest.mark.slow
@pytest.mark.parametrize("column", ["text COLLATE without_case", "char(9)"])
def test_a_key_of_postgresql_with_a_collation_is_refused(column: str, postgres: Place) -> None:
    made = "CREATE COLLATION IF NOT EXISTS without_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    postgres.empty(made)
    keys_without_case(postgres, column)


ROW = st.tuples(
    st.sampled_from(["a", "b", "c", "k\0", None]),
    st.none()
    | st.fixed_dictionaries({"n": st.none() | st.integers(0, 9), "s": st.sampled_from(["x", "long", "\0", None])}),
)
TABLE = "CREATE TABLE target (k {} NOT NULL, n BIGINT NOT NULL CHECK (n < 8), s {}, {}, UNIQUE (k))"


def is_refused(key: str | None, row: dict[str, Any] | None, *, is_upsert: bool, has_nul: bool) -> bool:
    if key is None or (not has_nul and "\0" in key):
        return True
    if row is None:
        return not is_upsert
    text = row["s"] or ""
    return row["n"] is None or row["n"] >= 8 or len(text) > 3 or (not has_nul and "\0" in text)


def only_refused_rows_are_missing(
    place: Place, table: str, sent: list[tuple[str | None, dict[str, Any] | None]], *, is_upsert: bool, has_nul: bool
) -> None:
    place.empty(table)
    records: list[RawFields] = [
        (None if key is None else key.encode(), None if row is None else json.dumps(row).encode(), 1, at, ())
        for at, (key, row) in enumerate(sent)
    ]
    wanted: dict[str | None, Any] = {}
    refused = set()
    for at, (key, row) in enumerate(sent):
        if is_refused(key, row, is_upsert=is_upsert, has_nul=has_nul) or (not is_upsert and key in wanted):
            refused.add(at)
        elif row is None:
            wanted.pop(key, None)
        else:
            wanted[key] = (row["n"], row["s"])
    letters = followed(place, records, "continue", is_upsert=is_upsert)
    found = {key: (n, text) for key, n, text in place.run("SELECT k, n, s FROM target")}
    offsets = sorted(int(dict(letter.headers)["__streams.errors.offset"] or b"") for letter in letters)
    assert found == wanted
    if is_upsert:
        # A row that a later one of its batch replaces is not written, and may have been one that would be refused.
        assert len(set(offsets)) == len(offsets)
        assert refused.issuperset(offsets)
    else:
        assert offsets == sorted(refused)
    assert all(dict(letter.headers)["__streams.errors.message"] for letter in letters)


@settings(max_examples=25, deadline=None)
@given(st.lists(ROW, max_size=14), st.booleans())
def test_rows_that_a_database_refuses_become_letters(
    places: dict[str, Place], sent: list[tuple[str | None, dict[str, Any] | None]], is_upsert: bool
) -> None:
    table = TABLE.format("TEXT", "TEXT CHECK (s IS NULL OR length(s || '') < 4)", OWN.format("TEXT"))
    only_refused_rows_are_missing(places["sqlite"], table, sent, is_upsert=is_upsert, has_nul=True)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(ROW, max_size=14), st.booleans())
def test_rows_that_postgresql_refuses_become_letters(
    postgres: Place, sent: list[tuple[str | None, dict[str, Any] | None]], is_upsert: bool
) -> None:
    table = TABLE.format("text", "varchar(3)", OWN.format("timestamp"))
    only_refused_rows_are_missing(postgres, table, sent, is_upsert=is_upsert, has_nul=False)


PARTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.none()
        | st.fixed_dictionaries({}, optional={"n": st.none() | st.integers(0, 7), "s": st.sampled_from(["x", "yy"])}),
    ),
    max_size=14,
)
# Rows of a part would break both conditions if they were added before the database looks for the row.
PARTED = (
    "CREATE TABLE target (k {0} PRIMARY KEY, n BIGINT DEFAULT 5, s {0} NOT NULL DEFAULT 'new', own {0} DEFAULT 'kept', {1},"
    " CHECK (n IS NULL OR n < 6 OR s <> 'new'))"
)


def absent_fields_keep_the_rows_values(
    place: Place, table: str, sent: list[tuple[str, dict[str, Any] | None]], *, has_upsert: bool = True
) -> None:
    place.empty(table, "INSERT INTO target (k, n, s, own) VALUES ('a', 6, 'old', 'mine')")
    wanted: dict[str, dict[str, Any]] = {"a": {"n": 6, "s": "old", "own": "mine"}}
    kept = []
    for key, row in sent:
        if row is None:
            wanted.pop(key, None)
        else:
            after = wanted.get(key, {"n": 5, "s": "new", "own": "kept"}) | row
            if (after["n"] or 0) > 5 and after["s"] == "new":
                continue
            wanted[key] = after
        kept.append((key, row))
    records: list[RawFields] = [
        (key.encode(), None if row is None else json.dumps(row).encode(), 1, at, ())
        for at, (key, row) in enumerate(kept)
    ]
    assert followed(place, records, "fail", is_upsert=True, keeps_absent=True) == []
    found = {key: {"n": n, "s": s, "own": own} for key, n, s, own in place.run("SELECT k, n, s, own FROM target")}
    if not has_upsert:
        # Whole rows are deleted and added.
        for row in (*found.values(), *wanted.values()):
            del row["own"]
    assert found == wanted


@pytest.mark.parametrize("has_upsert", [True, False])
@pytest.mark.parametrize("dialect", ["sqlite", pytest.param("duckdb", marks=pytest.mark.slow)])
def test_absent_fields_keep_the_values_of_a_row(
    places: dict[str, Place], dialect: str, has_upsert: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_upsert:
        monkeypatch.setattr(sql_sink, "_UPSERTS", {})
    table = PARTED.format("TEXT", OWN.format("TEXT" if dialect == "sqlite" else "TIMESTAMP"))

    @settings(max_examples=15, deadline=None)
    @given(PARTS)
    def check(sent: list[tuple[str, dict[str, Any] | None]]) -> None:
        absent_fields_keep_the_rows_values(places[dialect], table, sent, has_upsert=has_upsert)

    check()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(PARTS)
def test_absent_fields_keep_the_values_of_a_row_of_postgresql(
    postgres: Place, sent: list[tuple[str, dict[str, Any] | None]]
) -> None:
    absent_fields_keep_the_rows_values(postgres, PARTED.format("text", OWN.format("timestamp")), sent)


WHOLE = [("a", {"n": 1, "s": "x"}), ("b", {"n": 9, "s": "x"}), ("a", {"n": 2})]
SPLIT = [("a", {"n": 2}), ("b", {"n": 9, "s": "x"}), ("a", {"s": "x"})]
ODD = [("a", {"n": 9}), ("b", {"n": 9, "s": "x"}), ("a", {"n": 2, "s": "x"})]
BAD = [("a", {"n": 9, "s": "no"}), ("b", {"n": 9, "s": "x"}), ("a", {"n": 2}), ("a", {"n": 9}), ("a", {"s": "x"})]


@pytest.mark.parametrize(("sent", "refused"), [(WHOLE, [1]), (SPLIT, [1]), (ODD, [1]), (BAD, [1, 3])])
@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_parts_of_rows_are_refused_only_for_what_is_in_them(
    places: dict[str, Place], dialect: str, sent: list[tuple[str, dict[str, Any]]], refused: list[int]
) -> None:
    place = places[dialect]
    text, moment = ("TEXT", "TEXT") if dialect == "sqlite" else ("VARCHAR", "TIMESTAMP")
    place.empty(
        f"CREATE TABLE target (k {text} PRIMARY KEY, n BIGINT CHECK (n < 8), s {text} NOT NULL, {OWN.format(moment)})"
    )
    records: list[RawFields] = [
        (key.encode(), json.dumps(row).encode(), 1, at, ()) for at, (key, row) in enumerate(sent)
    ]
    letters = followed(place, records, "continue", is_upsert=True, keeps_absent=True)
    assert [int(dict(letter.headers)["__streams.errors.offset"] or b"") for letter in letters] == refused
    assert place.run("SELECT k, n, s FROM target") == [("a", 2, "x")]


@pytest.mark.parametrize("keeps_absent", [True, False])
def test_values_that_must_be_unique_pass_from_row_to_row(keeps_absent: bool, tmp_path: Path) -> None:
    place = Place(URLS["sqlite"].format(tmp_path))
    place.run(
        f"CREATE TABLE target (k TEXT PRIMARY KEY, n BIGINT UNIQUE, s TEXT, {OWN.format('TEXT')})",
        "INSERT INTO target (k, n) VALUES ('a', 1), ('b', 5)",
    )
    sent: list[tuple[str, dict[str, Any]]] = (
        [("c", {"n": 7, "s": "x"}), ("a", {"n": 2}), ("d", {"n": 1, "s": "y"})]
        if keeps_absent
        else [("a", {"n": 1}), ("b", {"n": 6}), ("a", {"n": 5})]
    )
    records: list[RawFields] = [
        (key.encode(), json.dumps(row).encode(), 1, at, ()) for at, (key, row) in enumerate(sent)
    ]
    assert followed(place, records, "fail", is_upsert=True, keeps_absent=keeps_absent) == []
    wanted = [("a", 2), ("b", 5), ("c", 7), ("d", 1)] if keeps_absent else [("a", 5), ("b", 6)]
    assert place.run("SELECT k, n FROM target ORDER BY k") == wanted
    assert place.run("SELECT next_offset FROM riverrun_offsets") == [(3,)]


@contextmanager
def failing_at(number: int, error: Exception) -> Iterator[None]:
    """Raise an error at an INSERT."""
    left = [error, *[None] * (number - 1)]

    def fail(_cursor: Any, statement: str, *_others: Any) -> None:
        if statement.startswith("INSERT INTO target") and left and (found := left.pop()):
            raise found

    events = [(sa.engine.default.DefaultDialect, name, fail) for name in ("do_execute", "do_executemany")]
    for event in events:
        sa.event.listen(*event)
    try:
        yield
    finally:
        for event in events:
            sa.event.remove(*event)


@pytest.mark.parametrize("kind", [sqlite3.OperationalError, sqlite3.InterfaceError])
def test_a_database_that_fails_while_rows_are_tried_is_waited_for(kind: type[Exception], tmp_path: Path) -> None:
    place = Place(URLS["sqlite"].format(tmp_path))
    place.run(f"CREATE TABLE target (k TEXT, n BIGINT CHECK (n < 8), s TEXT, {OWN.format('TEXT')})")
    records: list[RawFields] = [(b"a", b'{"n":%d}' % n, 1, n, ()) for n in (7, 8, 5)]
    with failing_at(2, kind("server closed the connection")):
        letters = followed(place, records, "continue", is_upsert=False, retry_seconds=60)
    assert [letter.value for letter in letters] == [b'{"n":8}']
    assert place.run("SELECT n FROM target") == [(7,), (5,)]


@pytest.mark.slow
def test_postgresql_says_whether_an_error_is_about_a_row(postgres: Place) -> None:
    refuse = "BEGIN IF NEW.s = 'no' THEN RAISE EXCEPTION 'refused'; END IF; RETURN NEW; END"
    postgres.empty(
        f"CREATE TABLE real (k text, n bigint, s text, {OWN.format('timestamptz')})",
        "CREATE INDEX ON real (s)",
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {refuse} $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON real FOR EACH ROW EXECUTE FUNCTION refuse()",
        "CREATE VIEW target AS SELECT * FROM real WHERE s <> 'hidden' WITH CHECK OPTION",
    )
    noise = base64.b64encode(random.Random(1).randbytes(9000)).decode()
    texts = ["yes", "no", "hidden", noise, "yes"]
    records: list[RawFields] = [
        (b"a", json.dumps({"n": at, "s": text}).encode(), 1, at, ()) for at, text in enumerate(texts)
    ]
    letters = followed(postgres, records, "continue", is_upsert=False)
    assert [letter.value for letter in letters] == [record[1] for record in records[1:4]]
    assert postgres.run("SELECT n FROM real ORDER BY n") == [(0,), (4,)]
    # As after a failover, on a server that only reads.
    more = [*records, (b"a", b'{"n":5,"s":"yes"}', 1, 5, ())]
    fail = "BEGIN RAISE read_only_sql_transaction; END"
    postgres.run(f"CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {fail} $$")
    with pytest.raises(EngineError, match="read_only_sql_transaction"):
        followed(postgres, more, "continue", is_upsert=False)
    postgres.run("DROP VIEW target", "DROP TABLE real")


def test_a_refused_row_ends_a_follower_that_must_not_skip_it(tmp_path: Path) -> None:
    place = Place(URLS["sqlite"].format(tmp_path))
    place.run(f"CREATE TABLE target (k TEXT, n BIGINT CHECK (n < 8), s TEXT, {OWN.format('TEXT')})")
    records: list[RawFields] = [(b"a", b'{"n":%d}' % n, 1, n, ()) for n in range(10)]
    with pytest.raises(ConfigError, match="refuses record t-0@8 for table target: CHECK constraint failed"):
        followed(place, records, "fail", is_upsert=False)
    assert place.run("SELECT max(n) FROM target") == [(7,)]


def test_a_target_that_refuses_what_it_does_not_get_is_not_tried_for_ever() -> None:
    found = ReadableRows("e", lambda _tp, _records: None, None, lambda _letters: None)  # type: ignore[arg-type, return-value]
    error = RefusedRecordsError("no", {(TP, 1): "no"})
    found.refuse(error)
    with pytest.raises(StreamsError, match="no"):
        found.refuse(error)


def test_a_table_without_rights_or_columns_asks_no_handler(tmp_path: Path) -> None:
    place = Place(URLS["sqlite"].format(tmp_path))
    place.run(
        f"CREATE TABLE real (k TEXT, n BIGINT, s TEXT, {OWN.format('TEXT')})",
        "CREATE VIEW target AS SELECT * FROM real",
    )
    with pytest.raises(StreamsError, match="cannot modify target because it is a view"):
        followed(place, [(b"a", b'{"n":1}', 1, 0, ())], "continue", is_upsert=False)
    assert TIMESTAMP == "_timestamp"
