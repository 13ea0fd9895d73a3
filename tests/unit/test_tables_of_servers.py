"""Tables of PostgreSQL and MariaDB: what a follower writes is read back as it was, or refused."""

from __future__ import annotations

import datetime as dt
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
    (pa.binary(), [b"a", b"a ", b"\0", b"a\0\0", b"a" * 10]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.float64(), [0.1, 0.1 + 0.2, 1.505, 1e10, 123456789.125]),
    (pa.int64(), [0, 1, 69, 70, 255, 1901, 20260102, 20260102030405, 2**53 + 1]),
    (pa.decimal128(10, 3), [Decimal("1.505"), Decimal("1.500")]),
    (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2026, 1, 1, 1, 2, 3, 123456, dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)],
    ),
]
OF_POSTGRESQL = ["varchar(5)", "char(5)", "char", "text", "varchar", "bytea", "boolean", "smallint"]
OF_MARIADB = [
    *("VARCHAR(5)", "CHAR(5)", "NCHAR(5)", "TINYTEXT", "TEXT", "CHAR(5) CHARACTER SET latin1", "JSON", "BLOB"),
    *("BINARY(5)", "VARBINARY(5)", "BIT(8)", "YEAR", "ENUM('a','7')", "SET('a','7')", "BOOLEAN", "BIGINT UNSIGNED"),
    *(
        "FLOAT",
        "FLOAT(7,2)",
        "DOUBLE",
        "DOUBLE(7,2)",
        "DECIMAL(10,2)",
        "DATE",
        "DATETIME(6)",
        "TIMESTAMP(6)",
        "TIME(6)",
    ),
]


def is_same(value: Any, found: Any) -> bool:
    """Whether a value is read as it was written, maybe as another type with its text."""
    if isinstance(found, bytes | memoryview):
        found = bytes(found) if isinstance(value, bytes) else bytes(found).decode()
    if isinstance(value, bool):
        return found in {value, str(value), str(value).lower(), str(int(value))}
    if isinstance(found, bool):
        return str(value).strip() in ({"1", "true"} if found else {"0", "false"})
    if isinstance(found, dt.timedelta):
        return isinstance(value, str) and as_timedelta(value) == found
    if isinstance(found, dt.datetime) or isinstance(value, dt.datetime):
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


def changed(url: str, column: str, moment: str) -> list[str]:
    wrong = []
    own = f"_timestamp {moment}, _partition INT, _offset BIGINT"
    for kind, values in VALUES:
        run(url, "DROP TABLE IF EXISTS target", "DROP TABLE IF EXISTS riverrun_offsets")
        run(url, f"CREATE TABLE target (_key VARCHAR(9), n BIGINT, x {column}, {own})")
        taken = written(url, kind, values)
        # MariaDB shows six digits of a FLOAT.
        shown = "CAST(x AS DOUBLE)" if column == "FLOAT" else "x"
        found = [value for (value,) in run(url, f"SELECT {shown} FROM target ORDER BY _offset")]
        found = [np.float32(value) if column == "FLOAT" else value for value in found]
        pairs = zip(taken, found, strict=True)
        wrong += [f"{value!r} became {there!r}" for value, there in pairs if not is_same(value, there)]
    return wrong


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
    ("column", "kind", "value"),
    [
        ("BIGINT CHECK (x < 5)", pa.int64(), 5),
        ("JSON", pa.string(), "no JSON"),
        ("TINYINT", pa.int64(), 1000),
        ("VARCHAR(3)", pa.string(), "long"),
        ("VARCHAR(9) CHARACTER SET latin1", pa.string(), "\N{GRINNING FACE}"),
        ("DATE", pa.string(), "2026-02-30"),
        ("DATETIME(6)", pa.string(), "2026-13-01 00:00:00"),
        ("TIMESTAMP(6)", pa.timestamp("us", "UTC"), dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
        ("BIGINT UNSIGNED", pa.int64(), -1),
        ("BIGINT NOT NULL", pa.int64(), None),
        ("DECIMAL(4,2)", pa.decimal128(10, 2), Decimal("1234.50")),
        ("BIGINT, UNIQUE (x), CHECK (x <> 7)", pa.int64(), 7),
    ],
)
def test_a_row_that_mariadb_refuses_is_no_outage(column: str, kind: pa.DataType, value: Any, mariadb: str) -> None:
    run(mariadb, "DROP TABLE IF EXISTS target", "DROP TABLE IF EXISTS riverrun_offsets")
    own = "_timestamp DATETIME(6), _partition INT, _offset BIGINT"
    run(mariadb, f"CREATE TABLE target (_key VARCHAR(9), n BIGINT, x {column}, {own})")
    assert written(mariadb, kind, [value]) == []


@pytest.mark.slow
def test_a_row_that_a_trigger_of_mariadb_refuses_is_no_outage(mariadb: str) -> None:
    run(mariadb, "DROP TABLE IF EXISTS target", "DROP TABLE IF EXISTS riverrun_offsets")
    own = "_timestamp DATETIME(6), _partition INT, _offset BIGINT"
    run(
        mariadb,
        f"CREATE TABLE target (_key VARCHAR(9), n BIGINT, x BIGINT, {own})",
        "CREATE TRIGGER refuse BEFORE INSERT ON target FOR EACH ROW"
        " BEGIN IF NEW.x = 7 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF; END",
    )
    assert written(mariadb, pa.int64(), [6, 7, 8]) == [6, 8]


@pytest.mark.slow
def test_a_server_that_is_not_strict_cuts_nothing(mariadb: str) -> None:
    before = run(mariadb, "SELECT @@GLOBAL.sql_mode")[0][0]
    try:
        run(mariadb, "SET GLOBAL sql_mode = ''", "SET GLOBAL sql_mode = 'ANSI_QUOTES'")
        for column in ("VARCHAR(5)", "TINYINT", "DATE", "DATETIME(6)"):
            assert changed(mariadb, column, "DATETIME(6)") == []
    finally:
        run(mariadb, f"SET GLOBAL sql_mode = '{before}'")


@pytest.mark.slow
@pytest.mark.parametrize("column", OF_MARIADB)
def test_mariadb_has_each_value_or_refuses_it(column: str, mariadb: str) -> None:
    assert changed(mariadb, column, "DATETIME(6)") == []


@pytest.mark.slow
@pytest.mark.parametrize("column", OF_POSTGRESQL)
def test_texts_of_postgresql_are_neither_cut_nor_padded(column: str, postgres: str) -> None:
    assert changed(postgres, column, "timestamptz") == []
