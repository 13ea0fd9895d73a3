"""The choice of the next record, and a task's wait for more to choose from (`PartitionGroupTest`, `RecordQueueTest`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    DeserializationError,
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    Produced,
    StreamsBuilder,
    TopicPartition,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from riverrun.processor.timestamps import timestamp_extractor
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock

if TYPE_CHECKING:
    from collections.abc import Mapping

ONE, TWO = TopicPartition("one", 0), TopicPartition("two", 0)
STRINGS = Consumed(STRING, STRING)


class Chooser:
    """A task with two inputs that says in which order it took their records."""

    def __init__(self, max_task_idle_ms: int = 0, **committed: int) -> None:
        builder = StreamsBuilder()
        builder.stream(["one", "two"], STRINGS).to("out", Produced(STRING, STRING))
        (sub,) = builder.build().sub_topologies()
        self.clock = MockClock()
        self.topics = MemoryTopics()
        spec = TaskSpec(TaskId(0, 0), sub, "app", (ONE, TWO), max_task_idle_ms=max_task_idle_ms)
        self.task = Task(spec, Ports(self.topics, MemoryBackend(), self.clock))
        self.task.start({TopicPartition(t, 0): (0, OffsetMetadata(time).encode()) for t, time in committed.items()})

    def add(self, tp: TopicPartition, *timestamps: int) -> None:
        start = max(0, self.task.position(tp)) + self.task.buffered(tp)
        records = [RawRecord(None, f"{tp.topic}@{t}".encode(), t, start + n) for n, t in enumerate(timestamps)]
        self.task.add_records(tp, records)

    def take(self, limit: int = 100) -> list[str]:
        before = len(self.topics.logs.get("out", []))
        self.task.process(limit)
        return [record.value.decode() for record in self.topics.logs.get("out", [])[before:] if record.value]


def test_the_lowest_time_among_the_heads_comes_next_and_logs_keep_their_order() -> None:
    chooser = Chooser(max_task_idle_ms=-1)
    chooser.add(ONE, 1, 5, 3)
    chooser.add(TWO, 2, 4, 6)
    assert chooser.take() == ["one@1", "two@2", "two@4", "one@5", "one@3", "two@6"]


@pytest.mark.parametrize(
    ("max_task_idle_ms", "lag_of_two", "waited_ms", "is_ready"),
    [
        (-1, None, 0, True),
        (-1, 5, 0, True),
        (0, None, 0, False),
        (0, None, 1_000_000, False),
        (0, 5, 1_000_000, False),
        (0, 0, 0, True),
        (100, 0, 0, False),
        (100, 0, 99, False),
        (100, 0, 100, True),
        (100, None, 1_000_000, False),
        (100, 5, 1_000_000, False),
    ],
)
def test_an_input_without_records_holds_the_others_back_while_it_may_get_some(
    max_task_idle_ms: int, lag_of_two: int | None, waited_ms: int, is_ready: bool
) -> None:
    chooser = Chooser(max_task_idle_ms)
    chooser.add(ONE, 1)
    if lag_of_two == 0:  # a lag that is not 0 is as good as unknown: only a fetch ends the wait
        chooser.task.reached_end(TWO, 0)
    chooser.task.is_ready()
    chooser.clock.time_ms += waited_ms
    assert chooser.task.is_ready() is is_ready
    assert chooser.take() == (["one@1"] if is_ready else [])


def test_a_task_says_for_which_empty_inputs_its_records_wait_and_since_when() -> None:
    chooser = Chooser(max_task_idle_ms=100)
    chooser.task.process(1)
    assert chooser.task.waiting is None, "it has no records"
    chooser.clock.time_ms = 20
    chooser.add(ONE, 1)
    chooser.task.process(1)
    chooser.clock.time_ms = 50
    chooser.task.reached_end(TWO, 0)
    chooser.task.process(1)
    assert chooser.task.waiting == (20, (TWO,))
    chooser.clock.time_ms = 200
    assert chooser.take() == ["one@1"]
    assert chooser.task.waiting is None


def test_a_task_without_any_record_is_not_ready() -> None:
    chooser = Chooser()
    chooser.task.reached_end(ONE, 0)
    chooser.task.reached_end(TWO, 0)
    assert not chooser.task.is_ready()


def test_the_time_to_wait_restarts_when_the_input_had_records() -> None:
    chooser = Chooser(max_task_idle_ms=100)
    chooser.add(ONE, 1, 9)
    chooser.task.reached_end(TWO, 0)
    assert not chooser.task.is_ready()
    chooser.clock.time_ms = 60
    chooser.add(TWO, 2)
    assert chooser.take() == ["one@1", "two@2"]
    chooser.task.reached_end(TWO, 1)
    assert not chooser.task.is_ready()
    chooser.clock.time_ms = 120
    assert not chooser.task.is_ready()
    chooser.clock.time_ms = 160
    assert chooser.take() == ["one@9"]


def test_an_input_that_has_been_empty_for_longer_holds_nothing_back() -> None:
    chooser = Chooser(max_task_idle_ms=100)
    chooser.task.reached_end(ONE, 0)
    chooser.task.reached_end(TWO, 0)
    assert chooser.take() == []
    chooser.clock.time_ms = 100
    chooser.add(ONE, 1)
    assert chooser.take() == ["one@1"]
    chooser.add(TWO, 2)
    chooser.task.reached_end(ONE, 1)  # empty since now, not since the start
    assert chooser.take() == []
    chooser.clock.time_ms = 200
    assert chooser.take() == ["two@2"]


def test_a_task_stops_when_an_input_runs_dry_that_the_broker_may_have_more_of() -> None:
    chooser = Chooser()
    chooser.add(ONE, 1, 2, 3)
    chooser.add(TWO, 2)
    assert chooser.take() == ["one@1", "one@2", "two@2"]
    chooser.add(TWO, 1)
    assert chooser.take() == ["two@1"]
    chooser.task.reached_end(TWO, 2)
    assert chooser.take() == ["one@3"]


def test_stream_time_is_the_highest_time_taken_and_goes_on_from_the_committed_one() -> None:
    chooser = Chooser(-1, one=50, two=70)
    assert chooser.task.stream_time == 70
    chooser.add(ONE, 60)
    chooser.take()
    assert chooser.task.stream_time == 70
    chooser.add(TWO, 80)
    chooser.take()
    assert chooser.task.stream_time == 80


def test_stream_time_is_unknown_before_the_first_record() -> None:
    assert Chooser().task.stream_time == -1


def test_partition_times_are_committed_with_the_offsets() -> None:
    chooser = Chooser(-1, one=50)
    chooser.add(ONE, 10)
    chooser.add(TWO, 20)
    chooser.take()
    offsets = chooser.task.prepare_commit().offsets
    known = {tp.topic: (offset, OffsetMetadata.decode(text).partition_time) for tp, (offset, text) in offsets.items()}
    assert known == {"one": (1, 50), "two": (1, 20)}


def times_given(extractor: Any, *timestamps: int, settings: Mapping[str, str] | None = None) -> list[int]:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, STRING, timestamp_extractor=extractor)).to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build(), settings or {}, initial_wall_clock_time_ms=1_000) as driver:
        for timestamp in timestamps:
            driver._pipe("in", None, b"v", timestamp, ())
        assert driver.dropped().total() == len(timestamps) - len(driver._topics.logs.get("out", []))
        return [record.timestamp for record in driver.read_raw("out")]


@pytest.mark.parametrize("extractor", [None, FailOnInvalidTimestamp()])
def test_a_negative_timestamp_stops_the_task(extractor: Any) -> None:
    with pytest.raises(
        DeserializationError, match=r"invalid \(negative\) timestamp -1.*topic in, partition 0, offset 1"
    ):
        times_given(extractor, 5, -1)


def test_a_negative_timestamp_is_skipped() -> None:
    assert times_given(LogAndSkipOnInvalidTimestamp(), 5, -1, 7) == [5, 7]


def test_whatever_extractor_gives_a_negative_time_the_record_is_skipped_and_counted() -> None:
    assert times_given(lambda record, _: record.timestamp - 6, 5, 9) == [3]


def test_a_negative_timestamp_becomes_the_highest_of_the_partition_so_far() -> None:
    assert times_given(UsePartitionTimeOnInvalidTimestamp(), 5, 3, -1, 9) == [5, 3, 5, 9]


def test_a_negative_timestamp_without_a_valid_one_before_stops_the_task() -> None:
    with pytest.raises(DeserializationError, match=r"Could not infer a timestamp.*offset 0"):
        times_given(UsePartitionTimeOnInvalidTimestamp(), -1)


def test_the_wall_clock_is_that_of_the_host() -> None:
    assert times_given(WallclockTimestampExtractor(), 5, -1) == [1_000, 1_000]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("LogAndSkipOnInvalidTimestamp", [5]),
        ("UsePartitionTimeOnInvalidTimestamp", [5, 5]),
        ("WallclockTimestampExtractor", [1_000, 1_000]),
        ("tests.handlers:one_later", [6, 0]),
    ],
)
def test_sources_that_do_not_say_otherwise_use_the_default_extractor(chosen: str, expected: list[int]) -> None:
    assert times_given(None, 5, -1, settings={"default.timestamp.extractor": chosen}) == expected


def test_a_sources_own_extractor_comes_before_the_default() -> None:
    settings = {"default.timestamp.extractor": "WallclockTimestampExtractor"}
    assert times_given(LogAndSkipOnInvalidTimestamp(), 5, settings=settings) == [5]


def test_repartitioned_records_keep_the_time_they_were_given() -> None:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).repartition().to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build(), {"default.timestamp.extractor": "tests.handlers:one_later"}) as driver:
        driver._pipe("in", b"k", b"v", 5, ())
        assert [record.timestamp for record in driver.read_raw("out")] == [6]


def test_the_default_extractor_is_the_quick_way() -> None:
    assert timestamp_extractor("FailOnInvalidTimestamp") is None
