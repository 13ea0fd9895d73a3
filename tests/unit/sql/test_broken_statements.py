"""Statements that end early or lack a word are read or refused with their place, whatever is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun import StreamsBuilder
from riverrun.sql import build_sql
from riverrun.sql.commands import parse_commands
from riverrun.sql.statement_parser import parse
from riverrun.sql.statements import SqlError, words
from tests.unit.sql.test_limits import NESTED

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = "CREATE STREAM s (k STRING KEY, a INT)\n    WITH (KAFKA_TOPIC = 'in', VALUE_FORMAT = 'JSON');\n"
STATEMENTS = [
    """CREATE OR REPLACE STREAM s (a STRUCT<x ARRAY<INT>, y MAP<STRING, DECIMAL(3, 2)>> KEY, h BYTES HEADER('x'),
    g ARRAY<STRUCT<key STRING, value BYTES>> HEADERS) WITH (KAFKA_TOPIC = 'x', 'A' = TRUE);""",
    """CREATE TABLE IF NOT EXISTS t AS SELECT k, COUNT(*) FROM s WINDOW TUMBLING (SIZE 1 DAY, RETENTION 2 DAYS,
    GRACE PERIOD 1 HOUR, LATE INTO l WITH (KAFKA_TOPIC = 'x')) GROUP BY k EMIT FINAL;""",
    """CREATE TABLE t AS SELECT k FROM s AS r WINDOW w HOPPING (SIZE 1 DAY, ADVANCE BY 1 HOUR) GROUP BY (a, b)
    HAVING COUNT(*) > 1 EMIT CHANGES;""",
    "CREATE TABLE t AS SELECT k FROM s WINDOW SESSION (1 DAY) GROUP BY k;",
    """CREATE STREAM t AS SELECT s.a, CAST(a AS VARCHAR(10)) AS b, s.* FROM s LEFT OUTER JOIN u WITHIN (1 DAY, 2 DAYS)
    GRACE PERIOD 1 HOUR LATE s INTO l, u INTO m ON s.a = u.b WHERE a > 1 PARTITION BY a;""",
    "CREATE STREAM a AS SELECT DISTINCT ON (a, b) * FROM x WITHIN 1 DAY GRACE PERIOD 1 DAY;",
    """CREATE STREAM a AS SELECT SUM(n) OVER (PARTITION BY a, b ORDER BY ROWTIME ASC RANGE BETWEEN 1 DAY PRECEDING AND CURRENT
    ROW GRACE PERIOD 1 HOUR) + LAG(n) FILTER (WHERE n > 1) OVER (PARTITION BY a ORDER BY ROWTIME ROWS BETWEEN 1 PRECEDING
    AND CURRENT ROW WITHIN 1 DAY) AS over FROM x;""",
    """CREATE STREAM a AS SELECT b FROM x MATCH_RECOGNIZE (PARTITION BY k, a ORDER BY ROWTIME MEASURES FIRST(y.a) AS b,
    z.a + 1 AS c ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (y+ z{2,3} w{,2} v?) WITHIN 1 DAY GRACE PERIOD
    1 HOUR DEFINE y AS a > 1, z AS z.a < 2) AS m WHERE b > 1;""",
    "CREATE TYPE x AS STRUCT<a INT>; DROP TYPE IF EXISTS x; DROP STREAM IF EXISTS y DELETE TOPIC; UNSET 'a'; SET 'a' = 'b';",
    """INSERT INTO o SELECT TRANSFORM(a, (x, y) => x + y)[1]->b->*, STRUCT(a := 1), MAP('a' := 1), DATEADD(DAYS, 1, d)
    FROM s WHERE a IN (1, 2) AND b BETWEEN 1 AND 2 OR c LIKE 'x' ESCAPE '!' AND d IS NOT NULL;""",
    *(
        f"CREATE STREAM y AS SELECT {shown(1)} FROM s;"
        for kind, shown in NESTED.items()
        if kind not in {"quotes", "comments"}
    ),
]
COMMANDS = [
    "SELECT a, s.* FROM s WHERE a = 1 EMIT CHANGES LIMIT 3;",
    "PRINT 'x' FROM BEGINNING INTERVAL 3 LIMIT 3;",
    "SHOW ALL TOPICS EXTENDED; DESCRIBE FUNCTION abs; DESCRIBE x EXTENDED; EXPLAIN SELECT a FROM s; EXPLAIN x;",
    "DELETE FROM t WHERE k = 1; INSERT INTO t (a, b) VALUES (1, 'x'); SET 'auto.offset.reset' = 'latest';",
]


def broken(text: str) -> Iterator[str]:
    """Yield a text with an early end after each word, and without each word."""
    for word in words(text):
        yield text[: word.end + 1]
        yield text[: word.start] + text[word.end + 1 :]


@pytest.mark.parametrize("text", STATEMENTS + COMMANDS)
def test_a_statement_that_lacks_words_is_read_or_refused_with_its_place(text: str) -> None:
    places = []
    for given in broken(text):
        try:
            (parse_commands if text in COMMANDS else parse)(given)
        except SqlError as error:
            places.append((error.start, len(given)))
    assert all(start is not None and 0 <= start <= end for start, end in places)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE STREAM o AS SELECT ¦'x FROM s;", "This quote is not closed"),
        ("CREATE STREAM o AS SELECT 'it''s', \"a\", ¦`x -- it's\n FROM s;", "This quote is not closed"),
        ("CREATE STREAM o AS SELECT 'a' -- it's\n, ¦/* it's\n FROM s;", "This comment is not closed"),
        ("CREATE STREAM ¦o WITH (KAFKA_TOPIC = 'a b') AS SELECT * FROM s;", "'a b' is not a legal topic name"),
        ("CREATE STREAM ¦`a/b` AS SELECT * FROM s;", "'a/b' is not a legal topic name"),
        ("CREATE STREAM ¦o (k INT) WITH (KAFKA_TOPIC = '', VALUE_FORMAT = 'JSON');", "'' is not a legal topic name"),
        ("CREATE TABLE o AS SELECT k, COUNT(*) FROM s WINDOW ¦HOPPING (SIZE 1 DAY) GROUP BY k;", "take ADVANCE BY"),
        ("CREATE TABLE o AS SELECT k, COUNT(*) FROM s WINDOW ¦SESSION (0 DAYS) GROUP BY k;", "must be more than 0"),
        ("INSERT INTO s SELECT * FROM ¦s;", "Rows would go round for ever: in -> in"),
        ("CREATE STREAM o WITH (KAFKA_TOPIC = 'in') AS SELECT * FROM ¦s;", "in -> in"),
        (
            "CREATE STREAM o AS SELECT * FROM s; CREATE STREAM p AS SELECT * FROM o; INSERT INTO s SELECT * FROM ¦p;",
            "Rows would go round for ever: P -> in -> O -> P",
        ),
        (
            "CREATE TABLE t AS SELECT k, COUNT(*) AS n FROM s WINDOW TUMBLING (SIZE 1 DAY, LATE INTO l) GROUP BY k; \
            INSERT INTO s SELECT * FROM ¦l;",
            "L -> in -> L",
        ),
    ],
)
def test_a_mistake_has_its_place_in_the_file(statement: str, message: str) -> None:
    text = SOURCE + statement
    place = text.index("¦")
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    with pytest.raises(SqlError, match=message.replace("(", r"\(")) as raised:
        build_sql(text.replace("¦", ""), StreamsBuilder(), file="f.sql")
    assert f"(f.sql:{line}:{column})" in str(raised.value)


def test_queries_may_write_and_read_one_topic_without_a_circle() -> None:
    statements = (
        "CREATE STREAM o AS SELECT * FROM s; INSERT INTO o SELECT * FROM s; CREATE STREAM p AS SELECT * FROM o;"
    )
    build_sql(SOURCE + statements + "INSERT INTO p SELECT * FROM s; INSERT INTO p SELECT * FROM o;", StreamsBuilder())


@pytest.mark.parametrize("zeros", [0, 30, 6000])
def test_a_duration_may_have_any_number_of_zeros(zeros: int) -> None:
    def declared(size: str) -> str:
        return SOURCE.replace("VALUE", f"WINDOW_TYPE = 'TUMBLING', WINDOW_SIZE = '{size}', VALUE")

    query = "CREATE STREAM o AS SELECT * FROM s;"
    made, expected = (
        build_sql(declared(size) + query, StreamsBuilder()) for size in (f"{'0' * zeros}7 DAYS", "7 DAYS")
    )
    assert made.fingerprint() == expected.fingerprint()
