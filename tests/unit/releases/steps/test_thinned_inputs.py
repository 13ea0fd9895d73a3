"""Releases that aggregate compacted topics as streams: what compaction has removed is missing, and a person is asked."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    Record,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.errors import ApprovalNeededError
from riverrun.records import OffsetRange, RawRecord
from riverrun.releases import thinned_inputs
from riverrun.releases.thinned_inputs import may_lack_records, streams_of_aggregations
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


def updates_counted(builder: StreamsBuilder) -> None:
    updates = builder.table("in", READ).map_values(str.upper).to_stream()
    updates.group_by(lambda _, value: value, Grouped(STRING, STRING)).count().to_stream().to("out", COUNTS)


def updates_of_groups_counted(builder: StreamsBuilder) -> None:
    rows = builder.table("in", READ).group_by(lambda key, value: (value, key), Grouped(STRING, STRING))
    rows.count().to_stream().group_by_key(Grouped(STRING, LONG)).count().to_stream().to("out", COUNTS)


def updates_made_a_table(builder: StreamsBuilder) -> None:
    updates = builder.table("in", READ).to_stream().filter(lambda _, value: bool(value))
    rows = updates.to_table(Materialized(STRING, STRING, name="rows"))
    rows.group_by(lambda key, value: (value, key), Grouped(STRING, STRING)).count().to_stream().to("out", COUNTS)


def enriched_by_counts(builder: StreamsBuilder) -> None:
    counts = builder.stream("other", READ).group_by_key(Grouped(STRING, STRING)).count()
    builder.stream("in", READ).join(counts, lambda one, count: f"{one}{count}").to("out", TEXTS)


def enriched(builder: StreamsBuilder) -> None:
    builder.stream("in", READ).join(builder.table("other", READ), lambda one, other: one + other).to("out", TEXTS)


class LooksUp(Processor[Any, Any]):
    def process(self, record: Record[Any, Any]) -> None: ...


def looked_up_by_a_processor(builder: StreamsBuilder) -> None:
    builder.table("other", READ, Materialized(STRING, STRING, name="rows"))
    builder.stream("in", READ).process(LooksUp, "rows").to("out", TEXTS)


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
        (enriched_by_counts, {"other"}),
        (enriched_and_counted, {"in"}),
        (joined, {"in", "other"}),
        (looked_up_by_a_processor, set()),
        (made_a_table, set()),
        (passed, set()),
        (updates_counted, {"in"}),
        (updates_made_a_table, set()),
        (updates_of_groups_counted, {"in"}),
    ],
)
def test_an_aggregation_of_a_stream_needs_all_records(
    describe: Callable[[StreamsBuilder], None], topics: set[str]
) -> None:
    assert streams_of_aggregations(topology_of(describe)) == topics


def topology_of(describe: Callable[[StreamsBuilder], None]) -> Topology:
    builder = StreamsBuilder()
    describe(builder)
    return builder.build()


def passed_before(builder: StreamsBuilder) -> None:
    builder.stream("first", READ).to("in", TEXTS)


def counted_after(builder: StreamsBuilder) -> None:
    builder.stream("out", READ).group_by_key(Grouped(STRING, STRING)).count().to_stream().to("counts", COUNTS)


@pytest.mark.parametrize(
    ("others", "topics"),
    [
        ([counted_by_another_key], {"first"}),
        ([counted_after, passed], {"first"}),
        ([counted_after], set()),
        ([made_a_table, passed], set()),
    ],
)
def test_an_aggregation_of_another_application_needs_all_records(
    others: list[Callable[[StreamsBuilder], None]], topics: set[str]
) -> None:
    assert streams_of_aggregations(topology_of(passed_before), [topology_of(each) for each in others]) == topics


def test_repartition_topics_of_two_applications_differ() -> None:
    def repartitioned(builder: StreamsBuilder) -> None:
        builder.stream("first", READ).repartition(Repartitioned(STRING, STRING, name="same")).to("in", TEXTS)

    def counted_elsewhere(builder: StreamsBuilder) -> None:
        by_key = builder.stream("x", READ).repartition(Repartitioned(STRING, STRING, name="same")).group_by_key()
        by_key.count().to_stream().to("out", COUNTS)

    assert streams_of_aggregations(topology_of(repartitioned), [topology_of(counted_elsewhere)]) == set()


def built(builder: StreamsBuilder) -> Topology:
    counted_by_another_key(builder)
    return builder.build()


def built_by_pattern(builder: StreamsBuilder) -> Topology:
    words = builder.stream(re.compile("in.*"), READ).group_by_key(Grouped(STRING, STRING))
    words.count().to_stream().to("out", COUNTS)
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


def built_of_updates(builder: StreamsBuilder) -> Topology:
    updates_counted(builder)
    return builder.build()


def write(cluster: Cluster, times: int) -> None:
    for _ in range(times):
        cluster.input_topic("in", STRING, STRING).pipe_key_value_list([(key, key[-1]) for key in KEYS])
        cluster.advance(timedelta(minutes=1))


def total(cluster: Cluster) -> int:
    return sum(cluster.table("out", STRING, LONG).values())


@pytest.mark.parametrize("build", [built, built_of_updates])
def test_a_release_over_records_that_compaction_has_removed_asks_a_person(
    cluster: Cluster, build: Callable[[StreamsBuilder], Topology]
) -> None:
    app = cluster.project().app("app", build, versions={"v2": build})
    for _ in range(3):
        write(cluster, 1)
        app.run()
    assert total(cluster) == 3 * len(KEYS)
    assert "maybe removed already: records of in" in str(app.release("v2").plan())
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


@pytest.mark.parametrize("build", [built, built_by_pattern])
@pytest.mark.parametrize(("keys_before", "rounds"), [(0, 3), (0, 100), (1_200, 3)])
def test_a_plan_names_compacted_topics_however_much_was_removed(
    cluster: Cluster, keys_before: int, rounds: int, build: Callable[[StreamsBuilder], Topology]
) -> None:
    app = cluster.project().app("app", build, versions={"v2": build})
    once = [(f"once-{number}", "text") for number in range(keys_before)]
    cluster.input_topic("in", STRING, STRING).pipe_key_value_list(once)
    cluster.advance(timedelta(minutes=1))
    write(cluster, rounds)
    app.run()
    assert "maybe removed already: records of in" in str(app.release("v2").plan())


def copied(builder: StreamsBuilder) -> Topology:
    builder.stream("before", READ).to("in", TEXTS)
    return builder.build()


@pytest.mark.parametrize(("again", "is_named"), [(False, False), (True, True)])
def test_markers_of_transactions_are_no_removed_records(cluster: Cluster, again: bool, is_named: bool) -> None:
    cluster.create_topic("before", 1)
    copying = cluster.project().app("copying", copied)
    app = cluster.project().app("app", built, versions={"v2": built})
    for key in KEYS[:1] * 5 if again else KEYS[:5]:
        cluster.input_topic("before", STRING, STRING).pipe_input(key, "text")
        copying.run()
        cluster.advance(timedelta(minutes=1))
    app.run()
    assert ("maybe removed already" in str(app.release("v2").plan())) is is_named


MARKER = ""
LETTERS = st.characters(codec="utf-8")
WRITTEN = st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), min_size=1)


def log_of(written: list[str], *, first: int = 0) -> tuple[OffsetRange, list[RawRecord]]:
    """Return a log of keys and markers, one for each offset."""
    log = OffsetRange(first, first + len(written))
    records = [RawRecord(key.encode(), b"", 0, offset) for offset, key in enumerate(written, first) if key != MARKER]
    return log, records


@given(written=WRITTEN, first=st.integers(0, 3))
def test_a_log_that_was_not_cleaned_lacks_nothing(written: list[tuple[str, bool]], first: int) -> None:
    keys = [each for key, is_committed in written for each in ([key, MARKER] if is_committed else [key])]
    assert not may_lack_records(*log_of(keys, first=first))


@given(keys=st.sets(LETTERS, min_size=2), rounds=st.integers(2, 5), dirty=st.lists(LETTERS))
def test_a_log_that_was_cleaned_lacks_records(keys: set[str], rounds: int, dirty: list[str]) -> None:
    log, records = log_of([*sorted(keys) * rounds, *dirty])
    assert may_lack_records(log, records[len(keys) * (rounds - 1) :])


@pytest.mark.parametrize(("most", "expected"), [(4, True), (5, False)])
def test_a_log_with_too_many_keys_is_not_taken_for_whole(
    monkeypatch: pytest.MonkeyPatch, most: int, expected: bool
) -> None:
    monkeypatch.setattr(thinned_inputs, "_MOST_KEYS", most)
    assert may_lack_records(*log_of(list("abcdea"))) is expected
