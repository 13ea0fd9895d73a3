"""Statements within generated functions do what their plain functions do, record by record."""

from __future__ import annotations

import linecache
import pickle
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import StreamsBuilder, TopicPartition
from riverrun.config.by_value import dumps
from riverrun.errors import StreamsError
from riverrun.processor.handlers import ErrorHandlers, Response
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.compile import fused_code
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.sql import build_sql
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun import Topology

SOURCES = """
    CREATE STREAM s (k STRING KEY, n BIGINT, i INTEGER, d DOUBLE, t STRING, b BOOLEAN, l ARRAY<INTEGER>)
        WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
    CREATE STREAM v (n BIGINT, t STRING) WITH (KAFKA_TOPIC = 'v', VALUE_FORMAT = 'JSON');
    CREATE STREAM w (a STRING KEY, c INTEGER KEY, n BIGINT, t STRING)
        WITH (KAFKA_TOPIC = 'w', KEY_FORMAT = 'JSON', VALUE_FORMAT = 'JSON');
    CREATE TABLE u (k STRING PRIMARY KEY, name STRING, size INTEGER) WITH (KAFKA_TOPIC = 'u', VALUE_FORMAT = 'JSON');
"""
STATEMENTS = {
    "filter and map": """CREATE STREAM o AS SELECT k, n / 10 AS q, n % 7 AS m, i + 1 AS p, d / n AS r, t FROM s
        WHERE b;""",
    "arithmetic": """CREATE STREAM o AS SELECT k, n * n AS a, n + n AS b1, n - i AS c, -n AS e, i * i AS f, n / i AS g,
        n / -3 AS h, d * i AS j, i / 2 AS p, CAST(d AS BIGINT) / 3 AS q FROM s
        WHERE n > 3 OR i <= 2 AND NOT (d = 1.5) OR t = 'x';""",
    "functions": """CREATE STREAM o AS SELECT k, AS_VALUE(k) AS k2, UCASE(t) AS a, l[1] AS c, COALESCE(i, 7) AS e,
        CASE WHEN n > 2 THEN 'y' ELSE t END AS f, TRANSFORM(l, x => x + i) AS g FROM s
        WHERE t LIKE '%a%' OR n BETWEEN 1 AND 5 OR i IN (1, 2) OR t IS NULL;""",
    "two filters": """CREATE STREAM p AS SELECT * FROM s WHERE n IS NOT NULL;
        CREATE STREAM o AS SELECT k, n FROM p WHERE i = n;""",
    "partition by": "CREATE STREAM o AS SELECT n + 1 AS x, t FROM s PARTITION BY n + 1;",
    "windows": """CREATE TABLE o AS SELECT k, COUNT(*) AS a, COUNT(n) AS b, SUM(i) AS c, SUM(d) AS e, SUM(n) AS f, MAX(t) AS g,
        WINDOWSTART AS w FROM s WINDOW TUMBLING (SIZE 20 MILLISECONDS, GRACE PERIOD 10 MILLISECONDS) GROUP BY k;""",
    "calendar": """CREATE TABLE o AS SELECT k, COUNT(*) AS a, SUM(i) AS c, WINDOWSTART AS w, WINDOWEND AS z FROM s
        WINDOW TUMBLING (SIZE 1 DAY, TIMEZONE 'UTC', OFFSET 20 MILLISECONDS, GRACE PERIOD 10 MILLISECONDS, LATE INTO p)
        GROUP BY k;""",
    "late rows": """CREATE TABLE o AS SELECT k, COUNT(*) AS a, SUM(i) AS c FROM s WINDOW TUMBLING (SIZE 20 MILLISECONDS,
        GRACE PERIOD 0 SECONDS, LATE INTO p) WHERE n > 0 GROUP BY k; CREATE STREAM q AS SELECT k, n + 1 AS m, t FROM p;""",
    "repetitions": """CREATE STREAM o AS SELECT DISTINCT ON (n, t) k, n + 1 AS m FROM s WITHIN 20 MILLISECONDS WHERE i > 0;""",
    "rolling": """CREATE STREAM o AS SELECT k, n, SUM(n) OVER (PARTITION BY k ORDER BY ROWTIME RANGE BETWEEN 20 MILLISECONDS
        PRECEDING AND CURRENT ROW) AS a, t FROM s WHERE b;""",
    "rolling elsewhere": """CREATE STREAM o AS SELECT k, n - LAG(n) OVER (PARTITION BY t, b ORDER BY ROWTIME ROWS BETWEEN 1
        PRECEDING AND CURRENT ROW WITHIN 20 MILLISECONDS) AS a FROM s;""",
    "averages": """CREATE TABLE o AS SELECT k, AVG(n) AS a, SUM(n) + 1 AS b, COLLECT_LIST(t) AS c FROM s GROUP BY k
        HAVING COUNT(*) > 1;""",
    "counts": "CREATE TABLE o AS SELECT k, COUNT(*) AS a FROM s WHERE b GROUP BY k;",
    "sums": "CREATE TABLE o AS SELECT k, SUM(n) AS a FROM s GROUP BY k;",
    "groups": """CREATE TABLE o WITH (KEY_FORMAT = 'JSON') AS SELECT t, b, COUNT(*) AS a FROM s GROUP BY t, b;""",
    "hopping": """CREATE TABLE o AS SELECT k, COUNT(*) AS a FROM s
        WINDOW HOPPING (SIZE 20 MILLISECONDS, ADVANCE BY 7 MILLISECONDS) GROUP BY k;""",
    "join": "CREATE STREAM o AS SELECT s.k AS k, n, name, size + i AS z FROM s JOIN u ON s.k = u.k WHERE size > 1;",
    "several": """CREATE STREAM o AS SELECT k, n FROM s WHERE n > 1;
        CREATE TABLE p AS SELECT k, MAX(i) AS m FROM s GROUP BY k;
        CREATE STREAM q AS SELECT t, k AS kk, ROWTIME AS at FROM s PARTITION BY t;""",
    "without a key": "CREATE STREAM o AS SELECT n + 1 AS m, t FROM v WHERE n > 0;",
    "two keys": """CREATE STREAM o AS SELECT a, c, n, AS_VALUE(c) AS d FROM w;
        CREATE TABLE p AS SELECT a, c, SUM(n) AS m FROM w GROUP BY a, c;""",
    "unused": "CREATE TABLE o AS SELECT k, COUNT(*) AS a, MIN(ROWTIME) AS b FROM s GROUP BY k;",
    "exploded": "CREATE STREAM o AS SELECT k, EXPLODE(l) AS e, n FROM s;",
    "join by a value": "CREATE STREAM o AS SELECT s.t AS t, n, name FROM s JOIN u ON s.t = u.k;",
    "joined table": """CREATE TABLE x AS SELECT k, size + 1 AS more FROM u WHERE size > 1;
        CREATE STREAM o AS SELECT s.k AS k, n + more AS z FROM s JOIN x ON s.k = x.k;""",
    "casts": """CREATE STREAM o AS SELECT k, CAST(d AS INTEGER) AS a, CAST(d AS BIGINT) AS b1, CAST(n AS INTEGER) AS c,
        CAST(n AS DECIMAL(12, 2)) AS e, CAST(d AS DECIMAL(5, 1)) AS f, CAST(t AS INTEGER) AS g, CAST(t AS DOUBLE) AS h, -i AS j,
        -n AS m, ABS(i) AS p, ROUND(d) AS q, CAST(n AS DECIMAL(19, 0)) * CAST(n AS DECIMAL(19, 0)) AS r, d % 0E0 AS u,
        -CAST(n AS DECIMAL(40, 20)) AS v FROM s;""",
    "left join": "CREATE STREAM o AS SELECT s.k AS k, n, name, u.k AS uk, size + i AS z FROM s LEFT JOIN u ON s.k = u.k;",
}
WHOLE = ("null", "0", "-7", "1", "2", "5", "9223372036854775807", "2147483647", "2.0")
VALUES = {
    "n": (*WHOLE, '"3"', "true", "-9223372036854775808", "9223372036854775808", "1e30", "1.7", '"1_0"'),
    "i": (*WHOLE, "[]", "-2147483648", "2147483648", "1e2", "1e999999999"),
    "d": ("null", "0", "1.5", "-0.0", "1e300", '"NaN"', '"x"', "4e9", "-4e19", '"-Infinity"', "1e400"),
    "t": ("null", '"a"', '"banana"', '"x"', "5", '{"a": 1}', '" 12 "', '"1_0"', '"1e400"', "1.50"),
    "b": ("null", "true", "false", "1"),
    "l": ("null", "[]", "[1, 2]", "[null]", '["a"]'),
    "name": ("null", '"a"', "1"),
    "size": ("null", "1", "7"),
}
KEYS = (None, b"a", b"b", b"c", b"\xff", b'{"A": "x", "C": 1}', b'{"a": null}', b"null")


@st.composite
def records(draw: Any, *names: str) -> RawRecord:
    """A record, mostly of an object with some of the names in some case."""
    key = draw(st.sampled_from(KEYS))
    kind = draw(st.integers(0, 20))
    if kind < 2:
        return RawRecord(key, (None, b"null", b"broken")[draw(st.integers(0, 2))], draw(st.integers(0, 60)), 0)
    chosen = draw(st.lists(st.sampled_from(names), unique=True)) if kind < 6 else names
    upper = draw(st.booleans()) if kind < 8 else True
    parts = [f'"{name.upper() if upper else name}": {draw(st.sampled_from(VALUES[name]))}' for name in chosen]
    return RawRecord(key, ("{" + ", ".join(parts) + "}").encode(), draw(st.integers(0, 60)), 0)


class Sent:
    """Keeps what a task sends, in order."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []

    def send(self, *record: Any) -> None:
        self.records.append(record)

    def partitions(self, _topic: str) -> int:
        return 3


def skipping(*_failure: Any) -> Response:
    return Response.resume()


def failing(*_failure: Any) -> Response:
    """A handler; to ask it, a task takes record by record."""
    return Response.fail()


@cache
def built(statement: str) -> Topology:
    return build_sql(SOURCES + statement, StreamsBuilder())


def outcome(topology: Topology, inputs: Mapping[str, Sequence[RawRecord]], batch: int, *, fused: bool) -> list[Any]:
    """The records, drops and errors of the first sub-topology's task."""
    sub = topology.sub_topologies()[0]
    tps = {topic: TopicPartition(topic, 0) for topic in sorted(sub.source_topics)}
    handlers = ErrorHandlers(deserialization=skipping, processing=None if fused else failing)
    sent = Sent()
    task = Task(
        TaskSpec(TaskId(0, 0), sub, "app", tuple(tps.values()), handlers), Ports(sent, MemoryBackend(), MockClock())
    )
    task.start({})
    found: list[Any] = [sent.records]
    try:
        for begin in range(0, 24, batch):
            for topic, tp in tps.items():
                part = inputs[topic][begin : begin + batch]
                task.add_records(tp, [record._replace(offset=begin + n) for n, record in enumerate(part)])
            task.process_all()
            task.prepare_commit()
            task.post_commit({})
    except StreamsError as error:
        found.append((type(error), str(error)))
    return [*found, task.dropped]


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
@settings(max_examples=25)
@given(
    views=st.lists(records("n", "i", "d", "t", "b", "l"), min_size=4, max_size=24),
    users=st.lists(records("name", "size"), max_size=12),
    batch=st.integers(1, 24),
)
def test_generated_functions_do_what_plain_ones_do(
    statement: str, views: list[RawRecord], users: list[RawRecord], batch: int
) -> None:
    topology = built(statement)
    inputs = {"s": views, "v": views, "w": views, "u": users}
    assert repr(outcome(topology, inputs, batch, fused=True)) == repr(outcome(topology, inputs, batch, fused=False))


@pytest.mark.parametrize("statement", ["filter and map", "windows", "sums", "join"])
def test_no_expression_is_a_call_of_a_plain_function(statement: str) -> None:
    (code, *_) = fused_code(build_sql(SOURCES + STATEMENTS[statement], StreamsBuilder()))
    (loop,) = [text for text in code.functions.values() if "def run(queue" in text and "_value(" in text + "_value("][
        :1
    ]
    assert "_mapper(" not in loop
    assert "_predicate(" not in loop
    assert "_add(" not in loop
    assert "value_of(" not in loop


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_pickled_statements_have_equal_fingerprints_and_lines(statement: str) -> None:
    topology = built(statement)
    copy = pickle.loads(dumps(topology))  # noqa: S301 - our own
    assert copy.fingerprint() == topology.fingerprint()
    assert [each.functions for each in fused_code(copy)] == [each.functions for each in fused_code(topology)]


HOSTILE = (
    "'); raise SystemExit(3) #",
    '"""',
    "\\",
    "\n    raise SystemExit(3)\n",
    "{key}",
    "row[0]",
    "c1",
    "%s",
    "\u2028",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_names_and_texts_of_users_never_stand_in_code(text: str) -> None:
    quoted, named = text.replace("'", "''"), text.replace("`", "``")
    statements = f"""
        CREATE STREAM s (k STRING KEY, `{named}` STRING, n BIGINT) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
        CREATE STREAM o AS SELECT k, `{named}`, '{quoted}' AS c, `{named}` + '{quoted}' AS d,
            STRUCT(`{named}` := n) AS e FROM s WHERE `{named}` <> '{quoted} ' OR n = 1;
        CREATE TABLE t AS SELECT k, MAX(`{named}`) AS `{named}`, COUNT(*) AS n FROM s
            WHERE `{named}` LIKE '%{quoted}%' GROUP BY k;
    """
    topology = build_sql(statements, StreamsBuilder())
    given = RawRecord(b"a", b'{"n": 1}', 5, 0)
    fused, plain = (outcome(topology, {"s": [given, given]}, 2, fused=fused) for fused in (True, False))
    assert repr(fused) == repr(plain)
    assert len(fused[0]) == 2
    code = "".join(text_ for each in fused_code(topology) for text_ in each.functions.values())
    assert "SystemExit" not in code
    assert not any(
        "SystemExit" in line
        for name in linecache.cache
        if name.startswith("<riverrun")
        for line in linecache.getlines(name)
    )
