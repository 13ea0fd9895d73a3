"""How late the records of a task were, in sum and at most since any time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from riverrun import LONG, STRING, Consumed, Produced, StreamsBuilder
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.runtime.times import Lateness
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock

INPUT = TopicPartition("in", 0)


class Nowhere:
    def send(self, *_record: object) -> None:
        """Ignore a record."""

    def partitions(self, _topic: str) -> int:
        return 1


def highest_since(lateness: Lateness, since_ms: int) -> int:
    return next((highest for at_ms, highest in lateness.maxima if at_ms >= since_ms), 0)


@given(st.lists(st.tuples(st.integers(1, 20), st.lists(st.integers(1, 99), min_size=1, max_size=3)), max_size=30))
def test_the_highest_lateness_since_any_time_is_known(batches: list[tuple[int, list[int]]]) -> None:
    lateness, batches = Lateness(), sorted(batches, key=lambda batch: batch[0])
    for now_ms, behind in batches:
        lateness.add(behind, now_ms)
    assert lateness.total_ms == sum(sum(behind) for _now_ms, behind in batches)
    for since_ms in range(22):
        expected = max((late for now_ms, behind in batches if now_ms >= since_ms for late in behind), default=0)
        assert highest_since(lateness, since_ms) == expected


def test_of_very_many_maxima_old_ones_are_reported_later_but_never_missed() -> None:
    lateness = Lateness()
    for now_ms in range(1000):
        lateness.add([2000 - now_ms], now_ms)
    assert len(lateness.maxima) == 32
    assert all(highest_since(lateness, since_ms) >= 2000 - since_ms for since_ms in range(1000))
    assert highest_since(lateness, 980) == 1020


def test_a_record_is_late_by_what_its_time_lies_behind_the_latest_one_before_it() -> None:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, LONG)).to("out", Produced(STRING, LONG))
    (sub,) = builder.build().sub_topologies()
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (INPUT,)), Ports(Nowhere(), MemoryBackend(), MockClock()))
    task.start({})
    times = (100, 60, 100, 130, 120)
    task.add_records(INPUT, [RawRecord(b"k", LONG.serialize(1), time, at) for at, time in enumerate(times)])
    assert task.process(10) == 5
    assert (task.lateness.total_ms, highest_since(task.lateness, 0)) == (50, 40)
