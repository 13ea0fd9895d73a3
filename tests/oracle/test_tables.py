"""Inputs and outputs of Kafka Streams' own tests, as tables: `tables/<the test's class>.txt`.

A table begins with `[name of the test] kind operator option=value...`. Then come records, one a line, `topic < key value
timestamp` for what is read and `topic > key value timestamp` for what is written: all that has been written since the last
such line of the topic, in order. `topic >` alone says that nothing has. Left out are tests of what is deprecated, of stores,
and of what a cache still shows of expired windows (DIFFERENCES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import (
    STRING,
    EmitStrategy,
    Joined,
    JoinWindows,
    Materialized,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
)
from pipeline.testing import TopologyTestDriver
from tests.oracle.topologies import TEXTS, TO_TEXTS, both, flat, ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline import KTable
    from pipeline.windows import Windowed

Options = dict[str, str]


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
            pairs = dict(option.split("=") for option in options)
            yield Table(f"{path.stem}.{name}", kind, operator, pairs, tuple(lines))


def of_streams(builder: StreamsBuilder, operator: str, options: Options) -> None:
    windows = JoinWindows.of(ms(0), grace=ms(int(options["grace"])))
    windows = windows.before(ms(int(options["before"]))).after(ms(int(options["after"])))
    join = getattr(builder.stream("left", TEXTS), operator)
    join(builder.stream("right", TEXTS), both, windows, joined=StreamJoined(STRING, STRING, STRING)).to("out", TO_TEXTS)


def of_tables(builder: StreamsBuilder, operator: str, options: Options) -> None:
    stored = Materialized("joined", STRING, STRING) if options["stored"] == "yes" else None
    join = getattr(builder.table("left", TEXTS), operator)
    join(builder.table("right", TEXTS), both, stored).to_stream().to("out", TO_TEXTS)


def of_a_stream_and_a_table(builder: StreamsBuilder, operator: str, options: Options) -> None:
    join = getattr(builder.stream("left", TEXTS), operator)
    if "grace" not in options:
        join(builder.table("right", TEXTS), both).to("out", TO_TEXTS)
        return
    versions = Materialized("versions", STRING, STRING, history_retention=ms(300_000))
    joined: Joined[str, str, str] = Joined(STRING, STRING, "wait", grace_period=ms(int(options["grace"])))
    join(builder.table("right", TEXTS, versions), both, joined=joined).to("out", TO_TEXTS)


def of_a_stream_and_a_global_table(builder: StreamsBuilder, operator: str, _options: Options) -> None:
    def key(_key: str, value: str) -> str | None:
        return value.partition(",")[2] or None

    join = getattr(builder.stream("left", TEXTS), operator)
    join(builder.global_table("right", TEXTS), both, key=key).to("out", TO_TEXTS)


def of_windows(builder: StreamsBuilder, operator: str, options: Options) -> None:
    """The text of all values of a window; if two streams are joined, of each of them and of both."""

    def windows(topic: str) -> KTable[Windowed[str], str]:
        grouped = builder.stream(topic, TEXTS).group_by_key()
        windowed = grouped.windowed_by(TimeWindows.of(ms(10), grace=ms(int(options["grace"]))).advance_by(ms(5)))
        stored = Materialized(f"{topic}-store", STRING, STRING, caching=options["cache"] == "on")
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


EMIT = {"update": EmitStrategy.on_window_update(), "close": EmitStrategy.on_window_close()}
BUILD: dict[str, Callable[[StreamsBuilder, str, Options], None]] = {
    "streams": of_streams,
    "tables": of_tables,
    "lookup": of_a_stream_and_a_table,
    "windows": of_windows,
    "global": of_a_stream_and_a_global_table,
}


@pytest.mark.parametrize("table", [pytest.param(table, id=table.name) for table in tables()])
def test_the_tables_of_kafka_streams_own_tests(table: Table) -> None:
    builder = StreamsBuilder()
    BUILD[table.kind](builder, table.operator, table.options)
    with TopologyTestDriver(builder.build()) as driver:
        for (topic, direction), lines in groupby(table.lines, key=lambda line: tuple(line.split()[:2])):
            records = [record_of(line) for line in lines]
            if direction == "<":
                for key, value, timestamp in records:
                    driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=timestamp)
            else:
                found = driver.output_topic(topic, STRING, STRING).read_records_to_list()
                assert [(r.key, r.value, r.timestamp) for r in found] == [record for record in records if record]


def record_of(line: str) -> Any:
    """Key, value and timestamp; None if there is no record in the line."""
    fields: list[Any] = [None if field == "null" else field for field in line.split()[2:]]
    return (fields[0], fields[1], int(fields[2])) if fields else None
