"""Suppressed tables; the tables are those of `SuppressScenarioTest`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    Materialized,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    StreamsError,
    Suppressed,
    TimeWindows,
    TopologyError,
)
from riverrun.testing import TopologyTestDriver
from tests.presence import present
from tests.unit.operators.restarting import Restartable

UNBOUNDED = BufferConfig.unbounded()
FOREVER = timedelta(days=10_000)
Rows = list[tuple[str, int | None, int]]
COUNTS: Rows = [("v1", 1, 0), ("v1", 0, 1), ("v2", 1, 1), ("v1", 1, 2)]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def suppressing(suppressed: Suppressed) -> TopologyTestDriver:
    """The updates of a table, suppressed."""
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, LONG), Materialized(name="table", caching=False))
    table.suppress(suppressed).to_stream().to("out", Produced(STRING, LONG))
    return TopologyTestDriver(builder.build())


def pipe(driver: TopologyTestDriver, rows: Rows) -> Rows:
    topic = driver.input_topic("in", STRING, LONG)
    for key, value, timestamp in rows:
        topic.pipe_input(key, value, timestamp=timestamp)
    found = driver.output_topic("out", STRING, LONG).read_records_to_list()
    return [(r.key or "", r.value, r.timestamp) for r in found]


def final(windows: Any, rows: list[tuple[str, int]], *, caching: bool = False) -> Rows:
    """Final counts under the text of their windows."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", Consumed(STRING, STRING)).group_by_key()
    counts = grouped.windowed_by(windows).count(Materialized(STRING, name="counts", caching=caching))
    last = counts.suppress(Suppressed.until_window_closes(UNBOUNDED)).to_stream()
    last.map(lambda k, v: (str(k), v)).to("out", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for key, timestamp in rows:
            topic.pipe_input(key, "v1", timestamp=timestamp)
        found = driver.output_topic("out", STRING, LONG).read_records_to_list()
        return [(r.key or "", r.value, r.timestamp) for r in found]


@pytest.fixture(params=[True, False], ids=["cached", "uncached"])
def caching(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_time_limit_of_zero_lets_every_update_through_at_once() -> None:
    with suppressing(Suppressed.until_time_limit(ms(0), UNBOUNDED)) as driver:
        assert pipe(driver, COUNTS) == COUNTS
        assert pipe(driver, [("x", 1, 3)]) == [("x", 1, 3)]


def test_updates_within_the_time_limit_become_one_counted_from_the_first() -> None:
    with suppressing(Suppressed.until_time_limit(ms(2), UNBOUNDED)) as driver:
        assert pipe(driver, COUNTS) == [("v1", 1, 2)]
        assert pipe(driver, [("tick", 1, 3)]) == [("v2", 1, 1)]
        assert pipe(driver, [("tick", 0, 4), ("tock", 1, 4)]) == []


def test_the_oldest_update_goes_early_when_there_are_too_many_keys() -> None:
    with suppressing(Suppressed.until_time_limit(FOREVER, BufferConfig.max_records(1))) as driver:
        assert pipe(driver, COUNTS) == [("v1", 0, 1), ("v2", 1, 1)]
        assert pipe(driver, [("x", 1, 3)]) == [("v1", 1, 2)]


@pytest.mark.parametrize(("limit", "expected"), [(80, []), (79, [("v1", 1, 0)])])
def test_the_oldest_update_goes_early_when_there_are_too_many_bytes(limit: int, expected: Rows) -> None:
    rows: Rows = [("v1", 1, 0), ("v2", 1, 1)]  # 8 + 8 + 8 + 4 bytes, topic, key and value each: 40
    with suppressing(Suppressed.until_time_limit(FOREVER, BufferConfig.max_bytes(limit))) as driver:
        assert pipe(driver, rows) == expected


@pytest.mark.parametrize(
    "limits", [BufferConfig.max_records(1).with_max_bytes(1000), BufferConfig.max_bytes(1000).with_max_records(1)]
)
def test_a_buffer_that_must_not_forward_early_fails_when_it_is_full(limits: BufferConfig) -> None:
    config = limits.shut_down_when_full()
    with suppressing(Suppressed.until_time_limit(FOREVER, config).with_name("held")) as driver:
        assert pipe(driver, [("v1", 1, 0)]) == []
        with pytest.raises(StreamsError, match=r"held buffer exceeded its max capacity. Currently \[2/1\] records"):
            pipe(driver, [("v2", 1, 0)])


def test_deletions_are_forwarded_after_a_time_limit() -> None:
    with suppressing(Suppressed.until_time_limit(ms(2), UNBOUNDED)) as driver:
        assert pipe(driver, [("a", 1, 0), ("a", None, 1), ("tick", 1, 5)]) == [("a", None, 1)]


def test_an_update_is_forwarded_with_its_own_time_and_headers() -> None:
    with suppressing(Suppressed.until_time_limit(ms(2), UNBOUNDED)) as driver:
        topic = driver.input_topic("in", STRING, LONG)
        topic.pipe_input("a", 1, timestamp=0, headers=(("h", b"first"),))
        topic.pipe_input("a", 2, timestamp=1, headers=(("h", b"last"), ("none", None)))
        topic.pipe_input("tick", 1, timestamp=2, headers=(("h", b"tick"),))
        (record,) = driver.read_raw("out")
        assert (record.timestamp, record.headers) == (1, (("h", b"last"), ("none", None)))


def test_a_window_is_forwarded_once_after_its_end_and_grace(caching: bool) -> None:
    rows = [("k1", 0), ("k1", 1), ("k1", 2), ("k1", 1), ("k1", 0), ("k1", 5), ("k1", 0)]
    assert final(TimeWindows.of(ms(2), grace=ms(1)), rows, caching=caching) == [("[k1@0/2]", 4, 1), ("[k1@2/4]", 1, 2)]


def test_records_within_the_grace_count_and_the_last_window_waits(caching: bool) -> None:
    rows = [("k1", t) for t in (0, 1, 2, 0, 3, 0, 4, 0, 30)]
    assert final(TimeWindows.of(ms(2), grace=ms(2)), rows, caching=caching) == [
        ("[k1@0/2]", 4, 1),
        ("[k1@2/4]", 2, 3),
        ("[k1@4/6]", 1, 4),
    ]


def test_sliding_windows_are_forwarded_in_order_of_their_ends(caching: bool) -> None:
    rows = [("k1", t) for t in (10, 11, 10, 13, 10, 24, 5, 7, 90)]
    assert final(SlidingWindows.of(ms(5), grace=ms(15)), rows, caching=caching) == [
        ("[k1@5/10]", 5, 10),
        ("[k1@6/11]", 5, 11),
        ("[k1@8/13]", 5, 13),
        ("[k1@11/16]", 2, 13),
        ("[k1@12/17]", 1, 13),
        ("[k1@19/24]", 1, 24),
    ]


def test_sessions_are_forwarded_without_those_that_were_merged_away(caching: bool) -> None:
    rows = [("k1", 0), ("k1", 5), ("k1", 1), ("k2", 11), ("k1", 5), ("k1", 30)]
    assert final(SessionWindows.of(ms(5)), rows, caching=caching) == [("[k1@0/5]", 3, 5), ("[k2@11/11]", 1, 11)]


def test_a_table_without_windows_has_none_to_wait_for() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in", Consumed(STRING, STRING)).group_by_key().count(Materialized(name="counts"))
    table.suppress(Suppressed.until_window_closes(UNBOUNDED)).to_stream().to("out")
    with pytest.raises(
        TopologyError, match=r"only defined for windowed computations. Got .*KSTREAM-SOURCE-0000000000->"
    ):
        builder.build()


def test_final_results_and_early_ones_exclude_each_other() -> None:
    with pytest.raises(TopologyError, match="never forwards early"):
        Suppressed.until_window_closes(BufferConfig.max_records(10))
    Suppressed.until_window_closes(BufferConfig.max_records(10).shut_down_when_full())


def test_a_join_sees_the_suppressed_table_as_it_was_forwarded() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, LONG)).suppress(Suppressed.until_time_limit(ms(10), UNBOUNDED))
    stream = builder.stream("stream", Consumed(STRING, STRING))
    stream.left_join(table, lambda v, count: f"{v}{count}").to("joined", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver:
        pipe(driver, [("A", 1, 0), ("B", 1, 0)])
        left, joined = driver.input_topic("stream", STRING, STRING), driver.output_topic("joined", STRING, STRING)
        left.pipe_input("A", "buffered:", timestamp=5)
        pipe(driver, [("tick", 1, 10), ("A", 2, 11)])
        left.pipe_input("A", "forwarded:", timestamp=12)
        left.pipe_input("B", "not buffered:", timestamp=12)
        pipe(driver, [("tick", 2, 21)])
        left.pipe_input("A", "forwarded again:", timestamp=22)
        assert joined.read_key_values_to_list() == [
            ("A", "buffered:None"),
            ("A", "forwarded:1"),
            ("B", "not buffered:1"),
            ("A", "forwarded again:2"),
        ]


@pytest.mark.parametrize("logging", [True, False])
def test_what_is_buffered_survives_a_restart(loses_state: bool, logging: bool) -> None:
    config = UNBOUNDED if logging else UNBOUNDED.with_logging_disabled()
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, LONG), Materialized(name="table"))
    table.suppress(Suppressed.until_time_limit(ms(10), config)).to_stream().to("out", Produced(STRING, LONG))
    task = Restartable(builder.build())
    task.run(("a", 0, LONG.serialize(1)), ("b", 3, LONG.serialize(2)), ("gone", 1, LONG.serialize(3)))
    task.run(("a", 5, LONG.serialize(4)), ("tick", 11, LONG.serialize(5)))
    task.run()
    assert [(r.key, r.timestamp) for r in task.written()] == [(b"a", 5), (b"gone", 1)]
    if loses_state:
        task.lose_state()
    task.run(("tock", 20, LONG.serialize(6)))
    found = [(r.key, LONG.deserialize(present(r.value)), r.timestamp) for r in task.written()]
    assert found == ([] if loses_state and not logging else [(b"b", 2, 3)])
    if not logging:
        assert not any("SUPPRESS" in topic for topic in task.topics.logs)


def test_the_buffers_changelog_has_the_layout_of_kafka_streams() -> None:
    """The bytes are what Kafka Streams 4.3.1 writes for the same records."""
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).group_by_key()
    counts = stream.windowed_by(SessionWindows.of(ms(10), grace=ms(5))).count(Materialized(STRING, name="counts"))
    counts.suppress(Suppressed.until_window_closes(UNBOUNDED).with_name("last")).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        topic.pipe_input("A", "1", timestamp=10, headers=(("h", b"\7"), ("n", None)))
        topic.pipe_input("A", "2", timestamp=15)
        records = driver.read_raw("test-last-store-changelog")
    expected = [
        (
            "000000000000000a000000000000000000000002696e000000000000000200000001680000000107000000016effffffff"
            "ffffffffffffffff000000080000000000000001000000000000000a"
        ),
        (
            "000000000000000a000000000000000100000002696e0000000000000000ffffffff000000080000000000000001ffffffff"
            "000000000000000a"
        ),
        (
            "000000000000000f000000000000000100000002696e0000000000000000ffffffffffffffff000000080000000000000002"
            "000000000000000f"
        ),
    ]
    assert [(r.value or b"").hex() for r in records] == expected
    assert {r.headers for r in records} == {(("v", b"\3"),)}
    keys = ["41000000000000000a000000000000000a"] * 2 + ["41000000000000000f000000000000000a"]
    assert [(r.key or b"").hex() for r in records] == keys


def test_a_suppressed_table_can_be_suppressed_again() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, LONG), Materialized(name="table"))
    twice = table.suppress(Suppressed.until_time_limit(ms(2), UNBOUNDED)).suppress(
        Suppressed.until_time_limit(ms(0), BufferConfig.max_bytes(10).with_no_bound())
    )
    twice.to_stream().to("out", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        assert pipe(driver, [("a", 1, 0), ("a", 2, 1), ("tick", 1, 2)]) == [("a", 2, 1)]
