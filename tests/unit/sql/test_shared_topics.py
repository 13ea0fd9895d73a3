"""Several sources over one topic: each has its own columns, though a record is read once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import StreamsBuilder
from riverrun.config import StreamsConfig
from riverrun.sql import build_sql
from riverrun.sql.statements import SqlError
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

TWO = """
    CREATE STREAM a (k STRING KEY, x INT, y INT) WITH (KAFKA_TOPIC = 't', VALUE_FORMAT = 'JSON');
    CREATE STREAM b (id STRING KEY, y STRING) WITH (KAFKA_TOPIC = 't', VALUE_FORMAT = 'JSON');
"""
VALUES: Sequence[dict[str, int] | None] = [{"X": 1, "Y": 2}, {"Y": 3}, None, {"X": 4, "Y": 5, "Z": 6}]


def outputs(statements: str, *topics: str, values: Sequence[Any] = VALUES) -> list[list[tuple[Any, int]]]:
    with TopologyTestDriver(build_sql(statements, StreamsBuilder()), StreamsConfig()) as driver:
        for number, value in enumerate(values):
            written = None if value is None else json.dumps(value).encode()
            driver._pipe("t", b"k", written, 1000 + number, ())
        return [
            [(json.loads(each.value or b"null"), each.timestamp) for each in driver.read_raw(topic)] for topic in topics
        ]


def test_each_stream_reads_its_own_columns() -> None:
    """As if it were alone, in whatever order the statements stand."""
    first, second = "CREATE STREAM oa AS SELECT k, x, y FROM a;", "CREATE STREAM ob AS SELECT id, y FROM b;"
    lines = TWO.strip().splitlines()
    alone = outputs(lines[0] + first, "OA") + outputs(lines[1] + second, "OB")
    assert [value for value, _ in alone[1]] == [{"Y": "2"}, {"Y": "3"}, None, {"Y": "5"}]
    assert outputs(TWO + first + second, "OA", "OB") == alone
    assert outputs(TWO + second + first, "OA", "OB") == alone
    assert outputs(lines[0] + first + lines[1] + second, "OA", "OB") == alone


def test_streams_over_one_topic_are_joined_and_counted() -> None:
    joined = """
        CREATE STREAM pairs AS SELECT a.k, a.x, b.y FROM a JOIN b WITHIN 0 SECONDS GRACE PERIOD 1 DAY ON a.k = b.id;
        CREATE TABLE counts AS SELECT id, COUNT(*) AS n FROM b GROUP BY id;
    """
    pairs, counts = outputs(TWO + joined, "PAIRS", "COUNTS")
    assert pairs == [
        ({"X": 1, "B_Y": "2"}, 1000),
        ({"X": None, "B_Y": "3"}, 1001),
        ({"X": 4, "B_Y": "5"}, 1003),
    ]
    assert [value for value, _ in counts] == [{"N": 1}, {"N": 2}, {"N": 3}]


def test_the_time_of_shared_records_is_read_from_a_column_of_each_stream() -> None:
    declared = TWO.replace("x INT", "ts BIGINT").replace("y STRING", "y STRING, ts BIGINT")
    timed = declared.replace("'JSON')", "'JSON', TIMESTAMP = 'ts')")
    statements = timed + "CREATE STREAM ob AS SELECT id, y FROM b; CREATE STREAM oa AS SELECT k, y FROM a;"
    found = outputs(statements, "OA", "OB", values=[{"TS": 77, "Y": 1}])
    assert found == [[({"Y": 1}, 77)], [({"Y": "1"}, 77)]]


AT = "WITH (KAFKA_TOPIC = 't', VALUE_FORMAT = 'JSON', TIMESTAMP = 'ts');"
TIMED = f"CREATE TABLE a (k STRING PRIMARY KEY, x INT, ts BIGINT) {AT}"
SEEN = f"CREATE STREAM b (id STRING KEY, ts BIGINT) {AT}"
ROWS: Sequence[dict[str, int] | None] = [{"X": 1, "TS": 77}, None, {"X": 2, "TS": 5000}, {"X": 3, "TS": 80}, None]


@pytest.mark.parametrize("declared", ["CREATE TABLE", "CREATE SOURCE TABLE"])
@pytest.mark.parametrize(("columns", "also"), [("k, x", ""), ("k, x, ROWTIME AS at", ""), ("k, x", SEEN)])
def test_a_tombstone_deletes_a_row_whose_time_is_in_a_column(declared: str, columns: str, also: str) -> None:
    """It has no columns, so the time of its record counts, though rows may have later ones."""
    sources = TIMED.replace("CREATE TABLE", declared) + also
    streamed = "CREATE STREAM ob AS SELECT id, ts FROM b;" if also else ""
    rows = outputs(f"{sources} CREATE TABLE oa AS SELECT {columns} FROM a; {streamed}", "OA", values=ROWS)[0]
    assert [(value and value["X"], time_ms) for value, time_ms in rows] == [
        (1, 77),
        (None, 1001),
        (2, 5000),
        (3, 80),
        (None, 1004),
    ]


@pytest.mark.parametrize("also", ["", TIMED + "CREATE TABLE oa AS SELECT k, x FROM a;"])
def test_a_null_of_a_stream_has_no_time_in_a_column(also: str) -> None:
    found = outputs(f"{also} {SEEN} CREATE STREAM ob AS SELECT id, ts FROM b;", "OB", values=ROWS)[0]
    assert [time_ms for _, time_ms in found] == [77, 5000, 80]


def test_a_tombstone_has_the_time_of_its_key_if_that_is_the_column() -> None:
    at = AT.replace("'ts'", "'k', TIMESTAMP_FORMAT = 'HH'")
    declared = f"CREATE TABLE a (k STRING PRIMARY KEY, x INT) {at}"
    with TopologyTestDriver(
        build_sql(f"{declared} CREATE TABLE oa AS SELECT k, x FROM a;", StreamsBuilder())
    ) as driver:
        for value in (b'{"X": 1}', None):
            driver._pipe("t", b"01", value, 1000, ())
        assert [(each.value, each.timestamp) for each in driver.read_raw("OA")] == [
            (b'{"X":1}', 3_600_000),
            (None, 3_600_000),
        ]


MIXED = TWO.replace("CREATE STREAM b (id STRING KEY", "CREATE TABLE b (id STRING PRIMARY KEY")


@pytest.mark.parametrize("declared", ["CREATE TABLE", "CREATE SOURCE TABLE"])
@pytest.mark.parametrize("columns", ["id, y", "id, y, ROWTIME AS at"])
def test_a_table_and_a_stream_read_one_topic(declared: str, columns: str) -> None:
    first, second = "CREATE STREAM oa AS SELECT k, x, y FROM a;", f"CREATE TABLE ob AS SELECT {columns} FROM b;"
    mixed = MIXED.replace("CREATE TABLE", declared)
    lines = mixed.strip().splitlines()
    alone = outputs(lines[0] + first, "OA") + outputs(lines[1] + second, "OB")
    assert [value and value["Y"] for value, _ in alone[1]] == ["2", "3", None, "5"]
    assert outputs(mixed + first + second, "OA", "OB") == alone
    assert outputs(mixed + second + first, "OA", "OB") == alone
    assert outputs(lines[1] + second + lines[0] + first, "OA", "OB") == alone


TABLES = MIXED.replace("CREATE STREAM a (k STRING KEY", "CREATE TABLE a (k STRING PRIMARY KEY")


def test_tables_over_one_topic_are_read_apart() -> None:
    first, second = "CREATE TABLE oa AS SELECT k, x FROM a;", "CREATE TABLE ob AS SELECT id, y FROM b;"
    rows, texts = outputs(TABLES + first + second, "OA", "OB")
    assert [value for value, _ in rows] == [{"X": 1}, {"X": None}, None, {"X": 4}]
    assert [value for value, _ in texts] == [{"Y": "2"}, {"Y": "3"}, None, {"Y": "5"}]


@pytest.mark.parametrize("other", ["b AS o ON a.k = o.id", "a AS o ON a.k = o.k"], ids=["over its topic", "itself"])
@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", "FULL OUTER JOIN"])
def test_a_table_is_not_joined_with_itself_by_its_key(other: str, kind: str) -> None:
    """A deletion reaches both sides at once, and a row that either of them lacks deletes nothing (`KTableKTableInnerJoin`)."""
    with pytest.raises(SqlError, match="joined with itself: both sides read topic t") as raised:
        build_sql(f"{TABLES} CREATE TABLE p AS SELECT a.k, a.x, o.y FROM a {kind} {other};", StreamsBuilder())
    assert raised.value.line is not None


def test_a_table_is_joined_with_itself_by_a_foreign_key() -> None:
    statements = """
        CREATE TABLE p (id STRING PRIMARY KEY, boss STRING, name STRING) WITH (KAFKA_TOPIC = 't', VALUE_FORMAT = 'JSON');
        CREATE TABLE o AS SELECT p.id AS id, p.name AS name, b.name AS boss FROM p JOIN p AS b ON p.boss = b.id;
    """
    staff = [{"BOSS": "k", "NAME": "own boss"}, {"BOSS": "k", "NAME": "still"}, None]
    (found,) = outputs(statements, "O", values=staff)
    assert [value for value, _ in found if value is not None][-1] == {"NAME": "still", "BOSS": "still"}
    assert found[-1] == (None, 1002)


def test_the_table_of_a_query_is_read_as_a_stream_too() -> None:
    statements = """
        CREATE STREAM a (k STRING KEY, x INT) WITH (KAFKA_TOPIC = 't', VALUE_FORMAT = 'JSON');
        CREATE TABLE c AS SELECT k, COUNT(*) AS n FROM a GROUP BY k;
        CREATE STREAM updates (k STRING KEY, n BIGINT) WITH (KAFKA_TOPIC = 'C', VALUE_FORMAT = 'JSON');
        CREATE STREAM ou AS SELECT * FROM updates;
        CREATE TABLE ob AS SELECT * FROM c WHERE n > 1;
    """
    updates, table = outputs(statements, "OU", "OB")
    assert [value for value, _ in updates] == [{"N": 1}, {"N": 2}, {"N": 3}]
    assert [value for value, _ in table][-2:] == [{"N": 2}, {"N": 3}]


BOTH = "CREATE STREAM oa AS SELECT * FROM a; CREATE STREAM ob AS SELECT * FROM b;"


@pytest.mark.parametrize(
    "statements",
    [
        TWO.replace("id STRING KEY", "id BIGINT KEY") + BOTH,
        MIXED.replace("id STRING PRIMARY", "id BIGINT PRIMARY") + BOTH.replace("CREATE STREAM ob", "CREATE TABLE ob"),
        TWO.replace("y STRING) WITH (", "y STRING) WITH (TIMESTAMP = 'y', TIMESTAMP_FORMAT = 'yyyy', ") + BOTH,
        TWO.replace("id STRING", "k STRING")
        .replace("WITH (", "WITH (KEY_FORMAT = 'DELIMITED', ")
        .replace("'DELIMITED'", "'DELIMITED', KEY_DELIMITER = '|'", 1)
        + BOTH,
        "SET 'ksql.persistence.wrap.single.values' = 'true';" + TWO + BOTH,
        TWO.splitlines()[1]
        + "CREATE STREAM ob WITH (KAFKA_TOPIC = 'u') AS SELECT k, x FROM a;"
        + "CREATE STREAM c (k STRING KEY, y INT) WITH (KAFKA_TOPIC = 'u', VALUE_FORMAT = 'JSON');"
        + "CREATE STREAM oc AS SELECT * FROM c; CREATE STREAM od AS SELECT * FROM ob;",
    ],
    ids=[
        "other keys",
        "other keys of a table",
        "other times",
        "other delimiters of keys",
        "settings",
        "a topic that a query writes",
    ],
)
def test_streams_that_cannot_share_a_topic_are_refused(statements: str) -> None:
    with pytest.raises(SqlError, match=r"(A and B|C and OB) read topic (t|u) in different ways") as raised:
        build_sql(statements, StreamsBuilder())
    assert raised.value.line is not None
    assert "Sources over one topic need equal keys" in str(raised.value)
