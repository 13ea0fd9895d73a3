"""Inputs and outputs of Kafka Streams' own tests, as tables: `tables/<the test's class>.txt`.

A table begins with `[name of the test] kind operator option=value...`; `one,other` makes two tables. Lines follow:

```
    topic < key value timestamp     is read
    topic > key value timestamp     has been written: all since the last such line of the topic, in order; nothing if empty
    topic * key value timestamp     likewise, in any order, and however often
    topic ~ key value timestamp     likewise, in the order of keys, then of windows
    topic ! key value timestamp     is the last that has been written under the key
    store = key value timestamp     is what a store holds; sessions and versions have no time
    dropped = number                the number of dropped records
```

A timestamp `-` is not looked at, nor is the store `kept` where the option `stored` says that there is none of that name.
`tables/README.md` says which tests are here, which elsewhere, and which are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun import (
    STRING,
    Joined,
    JoinWindows,
    Materialized,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.testing import TopologyTestDriver
from tests.oracle.tables_on import (
    EMIT,
    of_a_grouped_stream,
    of_a_grouped_table,
    of_a_table,
    of_cogrouped_streams,
    of_foreign_tables,
    of_joined_windows,
    of_suppressed_tables,
    watch,
)
from tests.oracle.topologies import TEXTS, TO_TEXTS, both, flat, ms
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from riverrun import KTable
    from riverrun.windows import Windowed
    from tests.oracle.tables_on import Options, Watched

    Row = tuple[str | None, ...]


@dataclass(frozen=True)
class Table:
    """One test."""

    name: str
    kind: str
    operator: str
    options: Options
    lines: tuple[str, ...]


def tables() -> Iterator[Table]:
    for path in sorted((Path(__file__).parent / "tables").glob("*.txt")):
        for block in path.read_text().split("\n\n"):
            title, *lines = block.splitlines()
            name, _, what = title.removeprefix("[").partition("] ")
            kind, operator, *options = what.split()
            pairs = [option.split("=") for option in options]
            for one, *values in product(operator.split(","), *(value.split(",") for _, value in pairs)):
                chosen = dict(zip((option for option, _ in pairs), values, strict=True))
                yield Table(f"{path.stem}.{name}", kind, one, chosen, tuple(lines))


def of_streams(builder: StreamsBuilder, operator: str, options: Options) -> None:
    windows = JoinWindows.of(ms(0), grace=ms(int(options["grace"])))
    windows = windows.before(ms(int(options["before"]))).after(ms(int(options["after"])))
    join = getattr(builder.stream("left", TEXTS), operator)
    join(builder.stream("right", TEXTS), both, windows, joined=StreamJoined(STRING, STRING, STRING)).to("out", TO_TEXTS)


def of_tables(builder: StreamsBuilder, operator: str, options: Options) -> None:
    stored = Materialized(STRING, STRING, name="joined") if options["stored"] == "yes" else None
    join = getattr(builder.table("left", TEXTS), operator)
    join(builder.table("right", TEXTS), both, stored).to_stream().to("out", TO_TEXTS)


def of_a_stream_and_a_table(builder: StreamsBuilder, operator: str, options: Options) -> None:
    join = getattr(builder.stream("left", TEXTS), operator)
    if "grace" not in options and "versions" not in options:
        join(builder.table("right", TEXTS), both).to("out", TO_TEXTS)
        return
    table = builder.table("right", TEXTS, Materialized(STRING, STRING, name="versions", history_retention=ms(300_000)))
    grace = ms(int(options["grace"])) if "grace" in options else None
    joined: Joined[str, str, str] = Joined(STRING, STRING, name="wait", grace_period=grace)
    join(table, both, joined=joined).to("out", TO_TEXTS)


def of_a_stream_and_a_global_table(builder: StreamsBuilder, operator: str, _options: Options) -> None:
    def key(_key: str, value: str) -> str | None:
        return value.partition(",")[2] or None

    join = getattr(builder.stream("left", TEXTS), operator)
    join(builder.global_table("right", TEXTS), both, key_selector=key).to("out", TO_TEXTS)


def of_windows(builder: StreamsBuilder, operator: str, options: Options) -> None:
    """The text of all values of a window; if two streams are joined, of each of them and of both."""

    def windows(topic: str) -> KTable[Windowed[str], str]:
        grouped = builder.stream(topic, TEXTS).group_by_key()
        windowed = grouped.windowed_by(TimeWindows.of(ms(10), grace=ms(int(options["grace"]))).advance_by(ms(5)))
        stored = Materialized(STRING, STRING, name=f"{topic}-store", caching=options["cache"] == "on")
        return windowed.emit_strategy(EMIT[options["emit"]]).aggregate(lambda: "0", lambda _k, v, a: f"{a}+{v}", stored)

    def write(table: KTable[Windowed[str], str], topic: str) -> None:
        table.to_stream().select_key(lambda key, _v: flat(key)).to(topic, TO_TEXTS)

    if operator == "aggregate":
        write(windows("left"), "out")
        return
    left, right = windows("left"), windows("right")
    write(left, "left-windows")
    write(right, "right-windows")
    write(left.join(right, lambda a, b: f"{a}%{b}"), "out")


BUILD: dict[str, Callable[[StreamsBuilder, str, Options], Watched | None]] = {
    "streams": of_streams,
    "tables": of_tables,
    "lookup": of_a_stream_and_a_table,
    "windows": of_windows,
    "global": of_a_stream_and_a_global_table,
    "table": of_a_table,
    "grouped_table": of_a_grouped_table,
    "grouped_stream": of_a_grouped_stream,
    "joined_windows": of_joined_windows,
    "cogrouped": of_cogrouped_streams,
    "suppressed": of_suppressed_tables,
    "foreign_tables": of_foreign_tables,
}


@pytest.mark.parametrize("table", [pytest.param(table, id=table.name) for table in tables()])
def test_the_tables_of_kafka_streams_own_tests(table: Table) -> None:
    builder = StreamsBuilder()
    watched = BUILD[table.kind](builder, table.operator, table.options)
    topology = builder.build()
    watch(topology, watched or {})
    with TopologyTestDriver(topology, application_id="dummy-topology-test-driver-app-id-0") as driver:  # it takes bytes
        unnamed = table.options.get("stored", "yes") != "yes"
        follow(driver, [line for line in table.lines if not (unnamed and line.startswith("kept = "))])


def follow(driver: TopologyTestDriver, lines: Sequence[str]) -> None:
    """Write what is to be read, and compare the rest."""
    written: dict[str, list[Row]] = {}
    for (topic, sign), group in groupby(lines, key=lambda line: tuple(line.split()[:2])):
        fields = [row_of(line) for line in group]
        if sign == "<":
            for key, value, timestamp in fields:
                driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=int(present(timestamp)))
        elif sign == "=":
            assert timed_as(fields, [held(driver, topic, row) for row in fields]) == fields
        else:
            news = driver.output_topic(topic, STRING, STRING).read_records_to_list()
            found: list[Row] = [(record.key, record.value, str(record.timestamp)) for record in news]
            written.setdefault(topic, []).extend(found)
            compare(sign, found, written[topic], [row for row in fields if row])


def compare(sign: str, found: list[Row], written: list[Row], expected: list[Row]) -> None:
    if sign == "!":
        last = {row[0]: row for row in written}
        found = [last[row[0]] for row in expected]
    found = timed_as(expected, found)
    if sign == "*":
        found, expected = sorted(set(found), key=str), sorted(set(expected), key=str)
    elif sign == "~":
        found = sorted(found, key=by_window)
    assert found == expected


def timed_as(expected: Sequence[Row], found: list[Row]) -> list[Row]:
    """The records found, without their times if none are expected."""
    timeless = any(row[2:] == ("-",) for row in expected)
    return [(*row[:2], "-") if timeless and len(row) > 2 else row for row in found]


def by_window(row: Row) -> tuple[str, int]:
    key, _, window = str(row[0]).partition("@")
    return key, int(window.partition("/")[0])


def held(driver: TopologyTestDriver, store: str, row: Row) -> Row:
    """The value of a row's key in a store, as rows write it."""
    if store == "dropped":
        return (str(driver.metrics()["dropped-records-total"]),)
    key, _, window = str(row[0]).partition("@")
    kept = driver.get_state_store(store)
    start, _, end = window.partition("/")
    if window and hasattr(kept, "fetch_session"):
        value = kept.fetch_session(key, int(start), int(end))
        return (row[0], None) if value is None else (row[0], str(value), "-")
    entry = kept.fetch(key, int(start)) if window else kept.get(key)
    return (row[0], None) if entry is None else (row[0], str(entry.value), str(entry.timestamp))


def row_of(line: str) -> Row:
    """The record of a line; nothing if there is none."""
    return tuple(None if field == "null" else field.replace("''", "") for field in line.split()[2:])
