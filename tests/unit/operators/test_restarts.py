"""Restarts, take-overs and slices do not change which records are late, due or expired."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    JoinWindows,
    KStream,
    Materialized,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from riverrun.records import TopicPartition
from riverrun.runtime.times import OffsetMetadata, short_name
from tests.unit.operators.restarting import Restartable

if TYPE_CHECKING:
    from riverrun.topology.topology import Topology

INPUT = TopicPartition("in", 0)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def values(stream: KStream[str, str]) -> KStream[str, str]:
    """Without the records of key `dropped`, which move the time of the input, not that of what is below."""
    return stream.filter(lambda key, _value: key != "dropped")


def counted(windows: Any) -> Topology:
    builder = StreamsBuilder()
    grouped = values(builder.stream("in", Consumed(STRING, STRING))).group_by_key()
    counts = grouped.windowed_by(windows).count(Materialized(STRING, name="counts", caching=False))
    counts.to_stream().map(lambda key, count: (key.key, count)).to("out", Produced(STRING, LONG))
    return builder.build()


def suppressed() -> Topology:
    builder = StreamsBuilder()
    counts = (
        values(builder.stream("in", Consumed(STRING, STRING)))
        .group_by_key()
        .count(Materialized(STRING, name="counts", caching=False))
    )
    late = counts.suppress(Suppressed.until_time_limit(ms(20), BufferConfig.unbounded()))
    late.to_stream().to("out", Produced(STRING, LONG))
    return builder.build()


def joined() -> Topology:
    builder = StreamsBuilder()
    stream = values(builder.stream("in", Consumed(STRING, STRING)))
    windows = JoinWindows.of(ms(10), grace=ms(5))
    left, right = stream.filter(lambda key, _: key != "right"), stream.filter(lambda key, _: key == "right")
    left.outer_join(right, lambda one, other: f"{one}+{other}", windows).to("out", Produced(STRING, STRING))
    return builder.build()


TOPOLOGIES = {
    "tumbling": lambda: counted(TimeWindows.of(ms(10), grace=ms(5))),
    "hopping": lambda: counted(TimeWindows.of(ms(10), grace=ms(5)).advance_by(ms(5))),
    "sliding": lambda: counted(SlidingWindows.of(ms(10), grace=ms(5))),
    "sessions": lambda: counted(SessionWindows.of(ms(10), grace=ms(5))),
    "suppress": suppressed,
    "outer join": joined,
}
ROWS = [
    ("a", 1),
    ("b", 9),
    ("a", 18),
    ("dropped", 200),
    ("a", 9),
    ("a", 2),
    ("b", 3),
    ("right", 40),
    ("a", 11),
    ("b", 29),
]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_is_late_is_so_wherever_the_input_is_cut(name: str, loses_state: bool) -> None:
    in_one_go = Restartable(TOPOLOGIES[name]())
    in_one_go.run(*ROWS)
    whole = in_one_go.written()
    for cut in range(1, len(ROWS)):
        task = Restartable(TOPOLOGIES[name]())
        task.run(*ROWS[:cut])
        if loses_state:
            task.lose_state()
        task.run(*ROWS[cut:])
        assert task.written() == whole, f"cut before {ROWS[cut]}"


def test_the_time_is_committed_for_each_operator_and_store_with_every_input() -> None:
    task = Restartable(TOPOLOGIES["tumbling"]())
    task.run(("a", 18), ("dropped", 200))
    found = OffsetMetadata.decode(task.committed[INPUT][1])
    (operator,) = (node.name for node in task.topology.sub_topologies()[0].nodes if "AGGREGATE" in node.name)
    assert found == OffsetMetadata(
        200, times={f"{short_name(f'node {operator}')}0": 18, f"{short_name('store counts')}0": 10}
    )
