"""Wrong calls of the DSL, wrong statements and wrong records get a clear answer, and none is accepted in silence."""

from __future__ import annotations

import functools
import re
import signal
import sys
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from riverrun import (
    BYTES,
    JSON,
    LONG,
    STRING,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Named,
    Produced,
    Repartitioned,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.errors import StreamsError
from riverrun.sql import build_sql
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Cases = Mapping[str, tuple[Callable[[StreamsBuilder], Any], str]]

SECONDS = 60
SECOND = timedelta(seconds=1)
TO = Produced(STRING, JSON)


def stream(b: Any, topic: Any = "in", key: Any = STRING, value: Any = JSON) -> Any:
    return b.stream(topic, Consumed(key, value))


def built(b: Any, *_made: Any) -> Any:
    """Build it, so that no step is left out."""
    return b.build()


def driven(
    b: Any, value: bytes | None = b'{"n":1}', key: bytes = b"k", ts: Any = 0, out: str | None = None, **more: Any
) -> None:
    with TopologyTestDriver(b.build(), **more) as driver:
        driver.input_topic("in", BYTES, BYTES).pipe_input(key, value, timestamp=ts)
        if out:
            driver.output_topic(out, BYTES, BYTES).read_value()


def passed_on(b: Any, *, key: Any = STRING, value: Any = JSON) -> Any:
    stream(b, key=key, value=value).to("out", Produced(key, value))
    return b


def mapped(b: Any, mapper: Any, value: Any = JSON) -> Any:
    stream(b).map_values(mapper).to("out", Produced(STRING, value))
    return b


def read(raw: bytes, b: Any) -> None:
    driven(passed_on(b), raw, out="out")


def swapped(b: Any) -> Any:
    return b.stream(Consumed(STRING, JSON), "in")


def named(name: Any) -> Materialized[Any, Any]:
    return Materialized(name=name)


async def awaited(value: Any) -> Any:
    return value


def windows(b: Any) -> Any:
    counts = stream(b).group_by_key().windowed_by(JoinWindows.of(SECOND))
    return counts.count()


CALLS: Cases = {
    "stream(5)": (lambda b: stream(b, 5), "topic"),
    "stream(None)": (lambda b: stream(b, None), "topic"),
    "stream([])": (lambda b: built(b, stream(b, [])), "topic"),
    "stream('')": (lambda b: built(b, stream(b, "")), "topic"),
    "stream('a b')": (lambda b: built(b, stream(b, "a b")), "topic"),
    "classes for serdes": (lambda b: stream(b, key=str, value=str), "serde"),
    "swapped arguments": (swapped, "topics"),
    "a store's name as text": (lambda b: stream(b).group_by_key().count("x"), r"Materialized\(name='x'\)"),
    "a store's name where its serde belongs": (
        lambda b: stream(b).group_by_key().count(Materialized("x")),  # type: ignore[arg-type]
        r"name='x'",
    ),
    "a store's name with a blank": (lambda b: stream(b).group_by_key().count(Materialized(name="a b")), "'a b'"),
    "a number as name": (lambda b: stream(b).group_by_key().count(named(5)), "name"),
    "a number as window": (lambda _b: TimeWindows.of(5), "timedelta"),  # type: ignore[arg-type]
    "a window of nothing": (lambda _b: TimeWindows.of(timedelta(0)), "positive"),
    "a negative window": (lambda _b: TimeWindows.of(timedelta(-1)), "window size"),
    "a window of microseconds": (lambda _b: TimeWindows.of(timedelta(microseconds=1)), "milliseconds"),
    "negative grace": (lambda _b: TimeWindows.of(SECOND, grace=-SECOND), "grace"),
    "advance beyond the size": (lambda _b: TimeWindows.of(SECOND).advance_by(2 * SECOND), "advance"),
    "windows of joins": (windows, "windows"),
    "a function without arguments": (lambda b: stream(b).map_values(lambda: 1), "mapper"),
    "a number as predicate": (lambda b: stream(b).filter(5), "predicate"),
    "None as mapper": (lambda b: stream(b).map_values(None), r"mapper must be a function.*(?<!named=\.)$"),
    "None as grouping": (lambda b: stream(b).group_by(None), "mapper"),
    "an async mapper": (lambda b: mapped(b, awaited), "async"),
    "to('')": (lambda b: built(b, stream(b).to("", TO)), "topic"),
    "to(5)": (lambda b: stream(b).to(5, TO), "topic"),
    "no serde after a map": (lambda b: built(b, stream(b).map(lambda k, v: (k, v)).to("out")), "serde"),
    "no serde of a grouping": (
        lambda b: (
            stream(b)
            .map(lambda k, v: (k, v))
            .group_by_key()
            .windowed_by(TimeWindows.of(SECOND))
            .count(Materialized(name="x"))
        ),
        "Grouped",
    ),
    "streams of two builders": (
        lambda b: stream(b).join(stream(StreamsBuilder()), max, JoinWindows.of(SECOND)),
        "StreamsBuilder",
    ),
    "a join without windows": (lambda b: stream(b).join(stream(b, "b"), max), "windows="),
    "a number as joiner": (lambda b: stream(b).join(stream(b, "b"), 5, JoinWindows.of(SECOND)), "joiner"),
    "a store twice": (
        lambda b: built(
            b,
            stream(b).group_by_key().count(Materialized(name="x")),
            stream(b, "b").group_by_key().count(Materialized(name="x")),
        ),
        "store x",
    ),
    "a branch of None": (lambda b: stream(b).split().branch(None), "predicate"),
    "an empty topology": (driven, "empty"),
    "a reducer of one": (lambda b: stream(b).group_by_key().reduce(lambda a: a), "reducer"),
    "no initializer": (lambda b: stream(b).group_by_key().aggregate(None, lambda _k, _v, a: a), "initializer"),
    "suppress(5)": (lambda b: stream(b).group_by_key().count(Materialized(name="c")).suppress(5), "suppressed"),
    "negative partitions": (
        lambda b: stream(b).repartition(Repartitioned(number_of_partitions=-1)),
        "number_of_partitions",
    ),
    "process(5)": (lambda b: stream(b).process(5), "supplier"),
    "an unknown option": (lambda _b: Grouped(partitions=0), "partitions"),  # type: ignore[call-arg]
    "Java's case": (lambda b: stream(b).mapValues(str), "mapValues"),
    "Named by position": (lambda b: stream(b).filter(max, Named("a")), "filter"),
    "Named('a b')": (lambda b: stream(b).filter(max, named=Named("a b")), "'a b'"),
    "a setting's typo": (
        lambda b: driven(passed_on(b), config={"processing.exception.handlr": "fail"}),
        r"processing\.exception\.handler",
    ),
    "a text as time": (lambda b: driven(passed_on(b), ts="now"), "timestamp"),
    "a negative time": (lambda b: driven(passed_on(b), ts=-5), "timestamp"),
    "a time beyond 64 bits": (lambda b: driven(passed_on(b), ts=2**70), "timestamp"),
    "an output without records": (lambda b: driven(passed_on(b), out="outt"), "outt"),
}
NOT_JSON = (
    b"x", b"\0", b"", b"[" * 100_000, b"1e400", b"9" * 5000, b'"\\ud800"', b"\xef\xbb\xbf1", b"NaN", b"{'a':1}", b"\xff",
)  # fmt: skip
RECORDS: Cases = {
    **{
        f"JSON {raw[:20]!r}": (functools.partial(read, raw), "decoded|serialise|refuses")
        for raw in NOT_JSON
    },
    "a key that is not UTF-8": (lambda b: driven(passed_on(b), key=b"\xff"), "decoded"),
    "LONG of 1 byte": (lambda b: driven(passed_on(b, value=LONG), b"\0"), "8 bytes"),
    "LONG of 9 bytes": (lambda b: driven(passed_on(b, value=LONG), b"\0" * 9), "8 bytes"),
    "a windowed key of 3 bytes": (lambda b: driven(passed_on(b, key=windowed(STRING, SECOND)), key=b"abc"), "decoded"),
    "null where a row is used": (lambda b: driven(mapped(b, lambda v: v["n"]), None), "NoneType"),
    "a missing field": (lambda b: driven(mapped(b, lambda v: v["m"])), "KeyError: 'm'"),
    "sys.exit in a function": (lambda b: driven(mapped(b, lambda _v: sys.exit(3))), r"sys\.exit\(3\)"),
    "NaN as JSON": (lambda b: driven(mapped(b, lambda _v: float("nan"))), "nan"),
    "an object as JSON": (lambda b: driven(mapped(b, lambda _v: object())), "object"),
    "a number beyond LONG": (lambda b: driven(mapped(b, lambda _v: 2**70, LONG)), "long"),
    "half a character": (lambda b: driven(mapped(b, lambda _v: "\ud800", STRING)), "surrogates"),
    "a scalar from map": (lambda b: driven(built_of(stream(b).map(lambda _k, _v: 5), b)), "pairs"),
}  # fmt: skip


def built_of(mapped_stream: Any, b: Any) -> Any:
    mapped_stream.to("out", TO)
    return b


SOURCE = (
    "CREATE STREAM orders (k STRING KEY, item STRING, n INT, d DECIMAL(8,2), a ARRAY<INT>) "
    "WITH (KAFKA_TOPIC='in', VALUE_FORMAT='JSON');"
)
OTHER = SOURCE.replace("orders", "o2").replace("'in'", "'b'")


def selected(what: str, rest: str = "") -> str:
    return f"{SOURCE} CREATE STREAM y AS SELECT k, {what} FROM orders{rest};"


def table(window: str) -> str:
    return f"{SOURCE} CREATE TABLE y AS SELECT k, COUNT(*) FROM orders {window} GROUP BY k;"


STATEMENTS: Mapping[str, tuple[str, str]] = {
    "nothing": ("", "nothing"),
    "a comment": ("-- x", "nothing"),
    "CREAT": ("CREAT STREAM x;", "CREAT"),
    "an open text": ("CREATE STREAM x (k STRING KEY) WITH (KAFKA_TOPIC='in", r"x\.sql:1"),
    "no topic": ("CREATE STREAM x (k STRING KEY) WITH (VALUE_FORMAT='JSON');", "KAFKA_TOPIC"),
    "format JSN": (SOURCE.replace("'JSON'", "'JSN'"), "JSN"),
    "type INTT": (SOURCE.replace("INT,", "INTT,"), "INTT"),
    "scale beyond precision": (SOURCE.replace("8,2", "2,8"), "DECIMAL"),
    "DECIMAL(0)": (SOURCE.replace("8,2", "0,0"), "DECIMAL"),
    "DECIMAL of billions": (SOURCE.replace("8,2", "99999999999,2"), "DECIMAL"),
    "a column twice": (SOURCE.replace("item STRING", "n STRING"), "Duplicate"),
    "two keys of KAFKA": (SOURCE.replace("item STRING", "item STRING KEY"), "KAFKA"),
    "a reserved word": (SOURCE.replace("item", "select"), "reserved"),
    "an unknown column": (selected("itm"), "ITM"),
    "an unknown function": (selected("UCAS(item)"), "UCAS"),
    "wrong arguments": (selected("UCASE(n)"), "UCASE"),
    "too many arguments": (selected("UCASE(item, item)"), "UCASE"),
    "an unknown source": ("CREATE STREAM y AS SELECT * FROM nope;", "NOPE"),
    "an aggregate without groups": (f"{SOURCE} CREATE TABLE y AS SELECT k, COUNT(*) FROM orders;", "COUNT"),
    "no key": (f"{SOURCE} CREATE TABLE y AS SELECT COUNT(*) AS c FROM orders GROUP BY k;", "K"),
    "a window of nothing": (table("WINDOW TUMBLING (SIZE 0 SECONDS)"), "window|SIZE"),
    "a negative window": (table("WINDOW TUMBLING (SIZE -1 SECONDS)"), "number|SIZE"),
    "a window without end": (table("WINDOW TUMBLING (SIZE 99999999999999999999 DAYS)"), "99999999999999999999|too|large|long"),
    "advance beyond the size": (table("WINDOW HOPPING (SIZE 1 SECOND, ADVANCE BY 5 SECONDS)"), "advance|ADVANCE"),
    "a join without WITHIN": (f"{SOURCE}{OTHER} CREATE STREAM y AS SELECT * FROM orders a JOIN o2 b ON a.k=b.k;", "WITHIN"),
    "a join without ON": (f"{SOURCE} CREATE STREAM y AS SELECT * FROM orders a JOIN orders b;", "ON"),
    "WHERE of a number": (f"{SOURCE} CREATE STREAM y AS SELECT * FROM orders WHERE n;", "boolean"),
    "other columns": (f"{selected('n')} INSERT INTO y SELECT k, item FROM orders;", "schema"),
    "DROP of nothing": ("DROP STREAM nope;", "NOPE"),
    "a stream twice": (SOURCE + SOURCE, "exists"),
    "a connector": ("CREATE SOURCE CONNECTOR x WITH ('a'='b');", "CONNECTOR"),
    "a script": ("RUN SCRIPT '/etc/passwd';", "RUN"),
    "400 parentheses": (selected(f"{'(' * 400}1{')' * 400}"), "nested|deep"),
    "5000 parentheses": (selected(f"{'(' * 5000}1{')' * 5000}"), "nested|deep"),
    "5000 digits": (selected("9" * 5000), "5000 (digits|characters)|large|long|range"),
    "1e999999": (selected("1e999999"), "1e999999"),
    "a bad expression": (selected("REGEXP_EXTRACT('(', item)"), "REGEXP_EXTRACT|expression|'\\('"),
    "a bad pattern of dates": (selected("FORMAT_TIMESTAMP(FROM_UNIXTIME(1), 'QQQQ{')"), "QQQQ|pattern"),
    "NUL in a name": (f"{SOURCE} CREATE STREAM y\0 AS SELECT * FROM orders;", "legal|x00|NUL"),
    "an unknown column of times": (SOURCE.replace("VALUE_FORMAT", "TIMESTAMP='zz', VALUE_FORMAT"), "ZZ"),
    "an unknown property": (SOURCE.replace("VALUE_FORMAT", "FOO='zz', VALUE_FORMAT"), "FOO"),
    "late rows without a stream": (table("WINDOW TUMBLING (SIZE 1 DAY, LATE INTO)"), "name"),
    "late rows into their source": (table("WINDOW TUMBLING (SIZE 1 DAY, LATE INTO orders)"), "ORDERS.*exists"),
    "late rows into their result": (table("WINDOW TUMBLING (SIZE 1 DAY, LATE INTO y)"), "Y.*late"),
    "late rows of no time": (f"{SOURCE}{OTHER} CREATE STREAM y AS SELECT * FROM orders a JOIN o2 b LATE a INTO c;", "ON"),
    "DISTINCT without ON": (selected("n").replace("SELECT", "SELECT DISTINCT"), "DISTINCT.*ON"),
    "DISTINCT without a time": (selected("n").replace("SELECT", "SELECT DISTINCT ON (n)"), "WITHIN"),
    "DISTINCT ON nothing": (selected("n", " WITHIN 1 DAY").replace("SELECT", "SELECT DISTINCT ON ()"), "column"),
    "ROW_NUMBER": (selected("ROW_NUMBER() OVER (PARTITION BY k ORDER BY n) AS r"), "OVER"),
    "a query in FROM": ("CREATE STREAM y AS SELECT * FROM (SELECT * FROM orders);", "FROM"),
    "windows of rows": (table("WINDOW TUMBLING (SIZE 3 ROWS)"), "ROWS"),
    "a TTL of a stream": (SOURCE.replace("VALUE_FORMAT", "TTL='1 DAY', VALUE_FORMAT"), "TTL"),
    "a TTL without a unit": (SOURCE.replace("STREAM", "TABLE").replace("VALUE_FORMAT", "TTL=5, VALUE_FORMAT"), "TTL"),
    "format DEBEZIUM": (SOURCE.replace("'JSON'", "'DEBEZIUM'"), "DEBEZIUM"),
    "changes with other columns": (SOURCE.replace("'JSON'", "'DEBEZIUM_JSON'"), "ITEM"),
    "changes that are written": (selected("n").replace("y AS", "y WITH (FORMAT='DEBEZIUM_JSON') AS"), "DEBEZIUM_JSON"),
}  # fmt: skip


def judged(call: Callable[[], Any], names: str) -> tuple[str, str]:
    """Return the judgement, and the message."""
    signal.alarm(SECONDS)
    try:
        call()
    except (StreamsError, TypeError, AttributeError) as error:
        message = str(error).replace("\n", " ")
        if not isinstance(error, StreamsError) and "riverrun" in message:
            return "traceback", message
        return "clear" if re.search(names, message) else "unclear", message
    except TimeoutError:
        return "hang", ""
    except BaseException as error:  # noqa: BLE001 - which is what must not happen
        return "traceback", repr(error)[:200]
    finally:
        signal.alarm(0)
    return "silent", ""


def stop(*_given: object) -> None:
    raise TimeoutError


def test_wrong_calls_records_and_statements_are_reported_clearly(record_property: Any) -> None:
    calls = [
        (name, lambda call=call: call(StreamsBuilder()), names) for name, (call, names) in {**CALLS, **RECORDS}.items()
    ]
    for name, (text, names) in STATEMENTS.items():
        calls.append((name, lambda text=text: build_sql(text, StreamsBuilder(), file="x.sql"), names))
    before = signal.signal(signal.SIGALRM, stop)
    try:
        judgements = [(name, *judged(call, names)) for name, call, names in calls]
    finally:
        signal.signal(signal.SIGALRM, before)
    record_property("wrong_inputs", dict(Counter(judgement for _, judgement, _ in judgements)))
    others = [f"{judgement}: {name}: {message}" for name, judgement, message in judgements if judgement != "clear"]
    assert not others, "\n".join(others)
