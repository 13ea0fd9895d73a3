"""Releases that aggregate compacted topics as streams: what compaction has removed is missing, and a person is asked."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.errors import ApprovalNeededError
from riverrun.releases.thinned_inputs import streams_of_aggregations
from riverrun.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.topology.topology import Topology

KEYS = [f"key-{number}" for number in range(12)]
READ = Consumed(STRING, STRING)
COUNTS, TEXTS = Produced(STRING, LONG), Produced(STRING, STRING)
HOUR = timedelta(hours=1)
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}


def counted(builder: StreamsBuilder) -> None:
    builder.stream("in", READ).group_by_key(Grouped(STRING, STRING)).count().to_stream().to("out", COUNTS)


def counted_by_another_key(builder: StreamsBuilder) -> None:
    by_value = (
        builder.stream("in", READ).map_values(str.upper).group_by(lambda _, value: value, Grouped(STRING, STRING))
    )
    by_value.count().to_stream().to("out", COUNTS)


def counted_in_windows(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", READ).group_by_key(Grouped(STRING, STRING))
    counts = grouped.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).count()
    counts.to_stream().to("out", Produced(windowed(STRING), LONG))


def joined(builder: StreamsBuilder) -> None:
    windows = JoinWindows.of_time_difference_with_no_grace(HOUR)
    both = builder.stream("in", READ).join(
        builder.stream("other", READ),
        lambda one, other: one + other,
        windows,
        joined=StreamJoined(STRING, STRING, STRING),
    )
    both.to("out", TEXTS)


def passed(builder: StreamsBuilder) -> None:
    builder.stream("in", READ).map_values(str.upper).to("out", TEXTS)


def made_a_table(builder: StreamsBuilder) -> None:
    table = builder.stream("in", READ).to_table(Materialized(STRING, STRING, name="rows"))
    table.to_stream().to("out", TEXTS)


def counted_as_a_table(builder: StreamsBuilder) -> None:
    rows = builder.table("in", READ).group_by(lambda key, value: (value, key), Grouped(STRING, STRING))
    rows.count().to_stream().to("out", COUNTS)


def enriched(builder: StreamsBuilder) -> None:
    builder.stream("in", READ).join(builder.table("other", READ), lambda one, other: one + other).to("out", TEXTS)


def enriched_and_counted(builder: StreamsBuilder) -> None:
    texts = builder.stream("in", READ).join(builder.table("other", READ), lambda one, other: one + other)
    texts.group_by_key(Grouped(STRING, STRING)).count().to_stream().to("out", COUNTS)


@pytest.mark.parametrize(
    ("describe", "topics"),
    [
        (counted, {"in"}),
        (counted_as_a_table, set()),
        (counted_by_another_key, {"in"}),
        (counted_in_windows, {"in"}),
        (enriched, set()),
        (enriched_and_counted, {"in"}),
        (joined, {"in", "other"}),
        (made_a_table, set()),
        (passed, set()),
    ],
)
def test_an_aggregation_of_a_stream_needs_all_records(
    describe: Callable[[StreamsBuilder], None], topics: set[str]
) -> None:
    builder = StreamsBuilder()
    describe(builder)
    assert streams_of_aggregations(builder.build()) == topics


def built(builder: StreamsBuilder) -> Topology:
    counted_by_another_key(builder)
    return builder.build()


def built_as_a_table(builder: StreamsBuilder) -> Topology:
    counted_as_a_table(builder)
    return builder.build()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(seed=4) as opened:
        opened.create_topic("in", 1, COMPACTED)
        opened.create_topic("out", 1)
        yield opened


def write(cluster: Cluster, times: int) -> None:
    for _ in range(times):
        cluster.input_topic("in", STRING, STRING).pipe_key_value_list([(key, key[-1]) for key in KEYS])
        cluster.advance(timedelta(minutes=1))


def total(cluster: Cluster) -> int:
    return sum(cluster.table("out", STRING, LONG).values())


def test_a_release_over_records_that_compaction_has_removed_asks_a_person(cluster: Cluster) -> None:
    app = cluster.project().app("app", built, versions={"v2": built})
    for _ in range(3):
        write(cluster, 1)
        app.run()
    assert total(cluster) == 3 * len(KEYS)
    assert "removed already: records of in" in str(app.release("v2").plan())
    release = app.release("v2").reprocess().gate()
    assert "v2 aggregates in, which is compacted" in str(release.status)
    with pytest.raises(ApprovalNeededError):
        release.cut()
    assert total(cluster) == 3 * len(KEYS)


@pytest.mark.parametrize(("build", "times"), [(built, 1), (built_as_a_table, 3)])
def test_a_release_that_lacks_no_record_asks_nobody(
    cluster: Cluster, build: Callable[[StreamsBuilder], Topology], times: int
) -> None:
    app = cluster.project().app("app", build, versions={"v2": build})
    write(cluster, times)
    app.run()
    before = total(cluster)
    app.release("v2").reprocess().gate().cut()
    assert total(cluster) == before
