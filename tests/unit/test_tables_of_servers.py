"""Tables of PostgreSQL and MariaDB: what a follower writes is read back as it was, or refused."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa

from riverrun.errors import EngineError, StreamsError
from riverrun.processor.sinks import OFFSET, PARTITION, SinkBatch
from riverrun.records import TopicPartition
from riverrun.testing.sinks import SINK_CHECKS, SinkUnderTest, sink_table
from riverrun.transfers.sql_sink import SqlSink
from tests.brokers import free_port
from tests.mariadb import running_mariadb
from tests.postgresql import running_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TP = TopicPartition("sink-checks", 0)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres(free_port(), "test") as server:
        yield f"postgresql+psycopg2://test@127.0.0.1:{server.port}/postgres"


@pytest.fixture(scope="module")
def mariadb() -> Iterator[str]:
    port = free_port()
    with running_mariadb(port, "test"):
        yield f"mariadb+pymysql://test@127.0.0.1:{port}/test"


def run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    rows: list[tuple[Any, ...]] = []
    with engine.begin() as connection:
        for statement in statements:
            found = connection.exec_driver_sql(statement)
            rows = [tuple(row) for row in found] if found.returns_rows else []
    engine.dispose()
    return rows


def written(url: str, kind: pa.DataType, values: list[Any]) -> list[Any]:
    """Write values one by one into the column x, and return those that are not refused."""
    table = sink_table()
    table = replace(table, schema=table.schema.append(pa.field("x", kind)))
    sink, taken = SqlSink(table, url, "target"), list[Any]()
    is_begun = False
    for at, value in enumerate(values):
        row = {"_key": "a", PARTITION: 0, OFFSET: at, "x": value}
        try:
            if not is_begun:
                sink.begin([TP])
            is_begun = True
            sink.write(SinkBatch(TP, pa.RecordBatch.from_pylist([row], table.schema), [False]))
            sink.commit({TP: at + 1})
        except StreamsError as error:
            assert not isinstance(error, EngineError), error  # noqa: PT017 - others are refusals
            if not is_begun:
                break
            is_begun = False
            continue
        taken.append(value)
    sink.begin([])
    return taken


TEXTS = [
    *(
        "",
        " ",
        "a",
        "a ",
        "a      ",
        "abc",
        "abcde",
        "abcde ",
        "abcdef",
        "A",
        "é",
        " a",
        "\N{GRINNING FACE}",
        "7",
        "7 ",
    ),
    *("00:00:00.1", "25:00:00", "2026-01-02 03:04:05", "2026-01-02", "0000-00-00", "2026-00-00", "1.2.3.4", "0", "1e2"),
    *("1.505", "0.123456789012345678", "a,7", "7,a", "a,a", "123", "20260102", "1901", "true", "x" * 255 + " "),
]
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), TEXTS),
    (pa.binary(), [b"a", b"a ", b"\0", b"a\0\0", b"a" * 10, b"abcd\0"]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.float64(), [0.1, 0.1 + 0.2, 1.505, 1e10, 123456789.125, -2.2250738585072014e-308, 1.7976931348623157e308]),
    (pa.int64(), [-1, 0, 1, 69, 70, 255, 1901, 20260102, 20260102030405, 2**53 + 1]),
    (pa.decimal128(10, 3), [Decimal("1.505"), Decimal("1.500")]),
    (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2026, 1, 1, 1, 2, 3, 123456, dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)],
    ),
]
OF_POSTGRESQL = ["varchar(5)", "char(5)", "char", "text", "varchar", "bytea", "boolean", "smallint"]
OF_MARIADB = [
    *("VARCHAR(5)", "CHAR(5)", "NCHAR(5)", "TINYTEXT", "TEXT", "CHAR(5) CHARACTER SET latin1", "JSON", "BLOB"),
    *("VARCHAR(23)", "VARCHAR(24)", "CHAR(24)", "BINARY", "BINARY(5)", "VARBINARY(5)", "BIT(8)", "BIT(64)", "YEAR"),
    *("ENUM('a','7')", "SET('a','7')", "BOOLEAN", "BIGINT UNSIGNED", "FLOAT", "FLOAT(7,2)", "DOUBLE", "DOUBLE(7,2)"),
    *("DECIMAL(10,2)", "DATE", "DATETIME(6)", "TIMESTAMP(6)", "TIME(6)"),
]
DOUBLES = [0.1 + 0.2, -2.2250738585072014e-308, 1.7976931348623157e308, 1e10, -0.5]
TAKEN_BY_MARIADB: list[tuple[str, pa.DataType, list[Any]]] = [
    ("BINARY(16)", pa.binary(), [bytes(range(16)), bytes(16), b" " * 16]),
    ("BINARY(36)", pa.string(), [str(uuid.UUID(int=5))]),
    ("BIT(1)", pa.bool_(), [True, False]),
    ("BIT(8)", pa.int64(), [0, 5, 255]),
    ("BIT(64)", pa.int64(), [0, 2**63 - 1]),
    ("YEAR", pa.int64(), [0, 1901, 2026, 2155]),
    ("YEAR", pa.string(), ["1901", "2026"]),
    ("VARCHAR(255)", pa.float64(), DOUBLES),
    ("VARCHAR(24)", pa.float64(), DOUBLES),
    ("CHAR(24)", pa.float64(), DOUBLES),
    ("CHAR(5)", pa.string(), ["", "abc", "abcde", " a", "é"]),
    ("VARCHAR(5)", pa.string(), ["", "a ", "abcde"]),
    ("TINYTEXT", pa.string(), ["a ", "a" * 255]),
    ("ENUM('a','7')", pa.string(), ["a", "7"]),
    ("SET('a','7')", pa.string(), ["", "a", "7", "a,7"]),
    ("DATE", pa.string(), ["2026-01-02", "2026-01-02 00:00:00", "2026-01-02T00:00:00"]),
    ("DATETIME(6)", pa.string(), ["2026-01-02 03:04:05.123456", "2026-01-02T03:04:05", "2026-01-02"]),
    ("TIMESTAMP(6)", pa.string(), ["2026-01-02 03:04:05.123456", "2026-01-02T03:04:05"]),
    ("TIME(6)", pa.string(), ["10:00:00", "09:08:07.123456"]),
    ("FLOAT", pa.string(), ["0.1", "1.2345678"]),
    ("DECIMAL(10,3)", pa.string(), ["1.505", "1.5"]),
    ("DECIMAL(10,3)", pa.decimal128(10, 3), [Decimal("1.505"), Decimal("1234567.125")]),
    ("BIGINT", pa.int64(), [-(2**63), 2**63 - 1]),
    ("VARBINARY(5)", pa.binary(), [b"", b"a ", b"a\0\0"]),
]
TAKEN_BY_POSTGRESQL: list[tuple[str, pa.DataType, list[Any]]] = [
    # Padding counts neither in comparisons nor in length() and casts, and is the same as it is read again.
    ("char(3)", pa.string(), ["", "eu", "EUR", "eu "]),
    ("char(5)", pa.bool_(), [True, False]),
    ("char(10)", pa.date32(), [dt.date(2026, 1, 2)]),
    ("char(20)", pa.float64(), [0.1 + 0.2, 1e10, -0.5]),
    ("char(200)", pa.list_(pa.int64()), [[1, 2]]),
    ("varchar(5)", pa.string(), ["", "a ", "abcde"]),
    ("text", pa.string(), ["a ", "\N{GRINNING FACE}"]),
    ("bytea", pa.binary(), [b"a ", b"\0"]),
    ("boolean", pa.string(), ["true"]),
    ("smallint", pa.int64(), [-1, 255]),
]
REFUSED_BY_POSTGRESQL = [
    ("char(5)", "a "),
    ("char(5)", "abcde "),
    ("varchar(5)", "abcde "),
    ("char(5)", "abcdef"),
    ("char", "a "),
]


def is_same(value: Any, found: Any) -> bool:
    """Whether a value is read as it was written, maybe as another type with its text."""
    if isinstance(found, bytes | memoryview):
        found = bytes(found) if isinstance(value, bytes) else bytes(found).decode()
    if isinstance(value, list):
        return bool(json.loads(found) == value)
    if isinstance(value, bool):
        return found in {value, str(value), str(value).lower(), str(int(value))}
    if isinstance(found, bool):
        return str(value).strip() in ({"1", "true"} if found else {"0", "false"})
    if isinstance(found, dt.timedelta):
        return isinstance(value, str) and as_timedelta(value) == found
    if type(found) is dt.date or isinstance(found, dt.datetime) or isinstance(value, dt.datetime):
        return as_moment(value) == as_moment(found)
    if isinstance(found, int | float | Decimal | np.float32):
        return Decimal(str(found)) == Decimal(str(value).strip())
    if isinstance(value, float):
        return float(found) == value
    return str(found) == (value.decode() if isinstance(value, bytes) and isinstance(found, str) else str(value))


def as_moment(value: Any) -> dt.datetime:
    found = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    return found.replace(tzinfo=found.tzinfo or dt.UTC)


def as_timedelta(text: str) -> dt.timedelta:
    hours, minutes, *seconds = text.split(":")
    return dt.timedelta(hours=int(hours), minutes=int(minutes), seconds=float((*seconds, "0")[0]))


def changed(url: str, column: str) -> list[str]:
    """Write all values, and return those that are read as others."""
    return [each for kind, values in VALUES for each in changes(url, column, written_into(url, column, kind, values))]


def written_into(url: str, column: str, kind: pa.DataType, values: list[Any], options: str = "") -> list[Any]:
    """Write values into a new table, and return those that are taken."""
    moment = "timestamptz" if url.startswith("postgresql") else "DATETIME(6)"
    own = f"_timestamp {moment}, _partition INT, _offset BIGINT"
    run(url, "DROP TABLE IF EXISTS target", "DROP TABLE IF EXISTS riverrun_offsets")
    run(url, f"CREATE TABLE target (_key VARCHAR(9), n BIGINT, x {column}, {own}){options}")
    return written(url, kind, values)


def changes(url: str, column: str, taken: list[Any]) -> list[str]:
    """The values that are read as others."""
    # MariaDB shows six digits of a FLOAT, and bits as bytes.
    shown = "CAST(x AS DOUBLE)" if column == "FLOAT" else "x + 0" if column.startswith("BIT") else "x"
    found = [value for (value,) in run(url, f"SELECT {shown} FROM target ORDER BY _offset")]
    found = [np.float32(value) if column == "FLOAT" else value for value in found]
    if url.startswith("postgresql") and column.startswith("char"):
        taken, found = ([unpadded(each) for each in row] for row in (taken, found))
    pairs = zip(taken, found, strict=True)
    return [f"{value!r} became {there!r}" for value, there in pairs if not is_same(value, there)]


def unpadded(value: Any) -> Any:
    return value.rstrip(" ") if isinstance(value, str) else value


@pytest.mark.slow
@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
def test_mariadb_keeps_the_contract_of_sinks(check: Callable[[SinkUnderTest], None], mariadb: str) -> None:
    def places() -> list[tuple[int, int]]:
        try:
            return [(part, offset) for part, offset in run(mariadb, "SELECT _partition, _offset FROM target")]
        except sa.exc.ProgrammingError:
            return []

    run(mariadb, "DROP TABLE IF EXISTS target", "DROP TABLE IF EXISTS riverrun_offsets")
    check(SinkUnderTest(lambda: SqlSink(sink_table(), mariadb, "target"), places))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, _ in VALUES], ids=str)
def test_tables_that_followers_make_in_mariadb_have_all_values(kind: pa.DataType, mariadb: str) -> None:
    values = next(values for each, values in VALUES if each == kind)
    run(mariadb, "DROP TABLE IF EXISTS target", "DROP TABLE IF EXISTS riverrun_offsets")
    long = {pa.string(): "é" * 70_000 + " ", pa.binary(): b"\xff" * 70_000}.get(kind)
    sent = [*values, *([] if long is None else [long])]
    assert written(mariadb, kind, sent) == sent
    found = [value for (value,) in run(mariadb, "SELECT x FROM target ORDER BY _offset")]
    assert all(is_same(value, there) for value, there in zip(sent, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "kind", "value", "other"),
    [
        ("BIGINT CHECK (x < 5)", pa.int64(), 5, 4),
        ("JSON", pa.string(), "no JSON", "{}"),
        ("TINYINT", pa.int64(), 1000, 100),
        ("VARCHAR(3)", pa.string(), "long", "abc"),
        ("VARCHAR(9) CHARACTER SET latin1", pa.string(), "\N{GRINNING FACE}", "a"),
        ("DATE", pa.string(), "2026-02-30", "2026-02-28"),
        ("DATETIME(6)", pa.string(), "2026-13-01 00:00:00", "2026-12-01 00:00:00"),
        ("TIMESTAMP(6)", pa.timestamp("us", "UTC"), dt.datetime(1, 1, 1, tzinfo=dt.UTC), None),
        ("BIGINT UNSIGNED", pa.int64(), -1, 1),
        ("BIGINT NOT NULL", pa.int64(), None, 1),
        ("DECIMAL(4,2)", pa.decimal128(10, 2), Decimal("1234.50"), Decimal("34.50")),
        ("BIGINT, UNIQUE (x), CHECK (x <> 7)", pa.int64(), 7, 6),
        ("BIT(8)", pa.int64(), 256, 255),
    ],
)
def test_a_row_that_mariadb_refuses_is_no_outage(
    column: str, kind: pa.DataType, value: Any, other: Any, mariadb: str
) -> None:
    assert written_into(mariadb, column, kind, [value, other]) == [other]


@pytest.mark.slow
def test_a_field_without_a_default_in_mariadb_is_no_outage(mariadb: str) -> None:
    assert written_into(mariadb, "BIGINT, required BIGINT NOT NULL", pa.int64(), [1]) == []


@pytest.mark.slow
def test_a_row_without_a_partition_in_mariadb_is_no_outage(mariadb: str) -> None:
    parts = " PARTITION BY RANGE (x) (PARTITION p VALUES LESS THAN (5))"
    assert written_into(mariadb, "BIGINT", pa.int64(), [4, 5, 3], parts) == [4, 3]


@pytest.mark.slow
@pytest.mark.parametrize("number", ["", ", MYSQL_ERRNO = 30001"])
def test_a_row_that_a_trigger_of_mariadb_refuses_is_no_outage(number: str, mariadb: str) -> None:
    written_into(mariadb, "BIGINT", pa.int64(), [])
    run(
        mariadb,
        "CREATE TRIGGER refuse BEFORE INSERT ON target FOR EACH ROW BEGIN IF NEW.x = 7 THEN"
        f" SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'{number}; END IF; END",
    )
    assert written(mariadb, pa.int64(), [6, 7, 8]) == [6, 8]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["", "ANSI_QUOTES"])
def test_a_server_that_is_not_strict_cuts_nothing(mode: str, mariadb: str) -> None:
    before = run(mariadb, "SELECT @@GLOBAL.sql_mode")[0][0]
    try:
        run(mariadb, f"SET GLOBAL sql_mode = '{mode}'")
        for column in ("VARCHAR(5)", "TINYINT", "DATE", "DATETIME(6)"):
            assert changed(mariadb, column) == []
    finally:
        run(mariadb, f"SET GLOBAL sql_mode = '{before}'")


@pytest.mark.slow
@pytest.mark.parametrize("column", OF_MARIADB)
def test_mariadb_has_each_value_or_refuses_it(column: str, mariadb: str) -> None:
    assert changed(mariadb, column) == []


@pytest.mark.slow
@pytest.mark.parametrize("column", OF_POSTGRESQL)
def test_texts_of_postgresql_are_neither_cut_nor_padded(column: str, postgres: str) -> None:
    assert changed(postgres, column) == []


@pytest.mark.slow
@pytest.mark.parametrize(("column", "kind", "values"), TAKEN_BY_MARIADB)
def test_mariadb_has_what_its_columns_can_hold(column: str, kind: pa.DataType, values: list[Any], mariadb: str) -> None:
    assert written_into(mariadb, column, kind, values) == values
    assert changes(mariadb, column, values) == []


@pytest.mark.slow
@pytest.mark.parametrize(("column", "kind", "values"), TAKEN_BY_POSTGRESQL)
def test_postgresql_has_what_its_columns_can_hold(
    column: str, kind: pa.DataType, values: list[Any], postgres: str
) -> None:
    assert written_into(postgres, column, kind, values) == values
    assert changes(postgres, column, values) == []


@pytest.mark.slow
@pytest.mark.parametrize(("column", "text"), REFUSED_BY_POSTGRESQL)
def test_postgresql_loses_no_spaces_at_the_end_of_texts(column: str, text: str, postgres: str) -> None:
    assert written_into(postgres, column, pa.string(), [text, "a"]) == ["a"]
