"""Several streams over one topic: each has its own columns, though a record is read once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import StreamsBuilder
from pipeline.config import StreamsConfig
from pipeline.sql import build_sql
from pipeline.sql.errors import SqlError
from pipeline.testing import TopologyTestDriver

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


BOTH = "CREATE STREAM oa AS SELECT * FROM a; CREATE STREAM ob AS SELECT * FROM b;"


@pytest.mark.parametrize(
    "statements",
    [
        TWO.replace("id STRING KEY", "id BIGINT KEY") + BOTH,
        TWO.replace("y STRING) WITH (", "y STRING) WITH (TIMESTAMP = 'y', TIMESTAMP_FORMAT = 'yyyy', ") + BOTH,
        "SET 'ksql.persistence.wrap.single.values' = 'true';" + TWO + BOTH,
        TWO.splitlines()[1]
        + "CREATE STREAM ob WITH (KAFKA_TOPIC = 'u') AS SELECT k, x FROM a;"
        + "CREATE STREAM c (k STRING KEY, y INT) WITH (KAFKA_TOPIC = 'u', VALUE_FORMAT = 'JSON');"
        + "CREATE STREAM oc AS SELECT * FROM c; CREATE STREAM od AS SELECT * FROM ob;",
    ],
    ids=["other keys", "other times", "settings", "a topic that a query writes"],
)
def test_streams_that_cannot_share_a_topic_are_refused(statements: str) -> None:
    with pytest.raises(SqlError, match=r"(A and B|C and OB) read topic (t|u) in different ways") as raised:
        build_sql(statements, StreamsBuilder())
    assert raised.value.line is not None
    assert "Streams over one topic need equal keys" in str(raised.value)
