"""Event time follows the clock while all inputs of a task are silent, and only then."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    EmitStrategy,
    Materialized,
    Produced,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
)
from riverrun.errors import ProcessingError
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MemoryTopics, MockClock
from riverrun.worker.tasks.silent_tasks import SilentTasks

FIRST, SECOND = TopicPartition("in", 0), TopicPartition("other", 0)
TASK = TaskId(0, 0)
IDLE_MS = 100


def counted(*, is_suppressed: bool, fails: bool = False) -> Topology:
    """Count records of two topics in windows of a second, each of which is forwarded when it closes."""
    builder = StreamsBuilder()
    grouped = builder.stream(["in", "other"], Consumed(STRING, STRING)).group_by_key()
    windows = grouped.windowed_by(TimeWindows.of(timedelta(seconds=1)))
    if is_suppressed:
        counts = windows.count(Materialized(name="counts")).suppress(
            Suppressed.until_window_closes(BufferConfig.unbounded())
        )
    else:
        counts = windows.emit_strategy(EmitStrategy.on_window_close()).count(Materialized(name="counts"))
    stream: Any = counts.to_stream(lambda key, _count: str(key))
    if fails:
        stream = stream.map_values(lambda count: count / 0)
    stream.to("out", Produced(STRING, LONG))
    return builder.build()


@dataclass
class Host:
    """A task with a clock that the test sets."""

    topology: Topology
    now_ms: int = 5_000
    topics: MemoryTopics = field(default_factory=MemoryTopics)
    offset: int = 0
    is_answered: bool = True
    """True if brokers tell the ends again when they are asked."""

    def __post_init__(self) -> None:
        self.silent = SilentTasks(IDLE_MS, self.look_again, lambda: self.now_ms)
        self.take_over({})

    def take_over(self, committed: dict[TopicPartition, tuple[int, str]]) -> None:
        (sub,) = self.topology.sub_topologies()
        spec = TaskSpec(TASK, sub, "app", (FIRST, SECOND))
        self.task = Task(spec, Ports(self.topics, MemoryBackend(), MockClock(), {}))
        self.task.start(committed)

    def look_again(self, task: TaskId) -> None:
        assert task == TASK
        if self.is_answered:
            self.read_to_ends()

    def read_to_ends(self) -> None:
        for tp in (FIRST, SECOND):
            self.task.reached_end(tp, self.offset)

    def add(self, timestamp: int, tp: TopicPartition = FIRST) -> None:
        self.task.add_records(tp, [RawRecord(b"a", b"v", timestamp, self.offset)])
        self.offset += 1

    def turn(self, passed_ms: int = 0) -> None:
        """One turn of the worker's loop."""
        self.now_ms += passed_ms
        self.silent.follow(TASK, self.task, self.task.process(100))

    def written(self) -> list[bytes | None]:
        found = []
        while (record := self.topics.take("out")) is not None:
            found.append(record.key)
        return found


@pytest.mark.parametrize("is_suppressed", [False, True])
def test_a_window_closes_when_its_inputs_have_been_silent(is_suppressed: bool) -> None:
    host = Host(counted(is_suppressed=is_suppressed))
    host.read_to_ends()
    host.add(300)
    host.read_to_ends()
    host.turn()
    for _ in range(6):
        host.turn(IDLE_MS)
        assert host.written() == []
    host.turn(IDLE_MS)  # 300 ms and 700 ms
    host.task.prepare_commit()
    assert host.written() == [b"[a@0/1000]"]
    assert host.task.stream_time == 1_000


def test_event_time_moves_once_per_interval() -> None:
    host = Host(counted(is_suppressed=False))
    host.add(300)
    host.read_to_ends()
    host.turn()
    times = []
    for _ in range(8):
        host.turn(IDLE_MS // 4)
        times.append(host.task.stream_time)
    assert times == [300, 300, 300, 400, 400, 400, 400, 500]


def test_a_record_ends_the_silence_and_is_late_behind_it() -> None:
    host = Host(counted(is_suppressed=False))
    host.add(300)
    host.read_to_ends()
    host.turn()
    host.turn(90)
    host.add(200, SECOND)
    host.read_to_ends()
    host.turn()
    host.turn(90)
    assert host.task.stream_time == 300
    host.turn(5_000)
    host.add(400)
    host.turn()
    assert host.task.dropped == {"late": 1}


def test_inputs_that_were_not_read_to_their_ends_are_not_silent() -> None:
    host = Host(counted(is_suppressed=False))
    host.read_to_ends()
    host.add(300)
    host.turn()
    host.turn(5_000)
    assert host.task.stream_time == 300  # there may be another record
    host.read_to_ends()
    host.turn()
    host.turn(IDLE_MS)
    assert host.task.stream_time > 300


@pytest.mark.parametrize("turns", [1, 7], ids=["the worker pauses", "brokers are away"])
def test_records_that_come_before_brokers_have_answered_again_are_not_late(turns: int) -> None:
    host = Host(counted(is_suppressed=False))
    host.add(300)
    host.read_to_ends()
    host.turn()
    host.is_answered = False
    for _ in range(turns):
        host.turn(5_000 // turns)
        assert host.task.stream_time == 300
    host.add(400)
    host.read_to_ends()
    host.turn(IDLE_MS - 1)
    assert (host.task.dropped, host.task.stream_time) == ({}, 400)
    host.turn(IDLE_MS)
    assert host.task.stream_time == 400
    host.read_to_ends()
    host.turn(IDLE_MS)
    assert host.task.stream_time == 400 + IDLE_MS, "as much as had passed when brokers were asked"


def test_records_at_hand_are_no_silence() -> None:
    host = Host(counted(is_suppressed=False))
    host.add(300)
    host.read_to_ends()
    host.turn()
    host.add(900)
    host.read_to_ends()
    host.task.process_until(500)  # the record waits for other tasks
    host.turn(5_000)
    host.turn(5_000)
    assert host.task.stream_time == 300


def test_a_task_without_records_has_no_time_to_go_on_from() -> None:
    host = Host(counted(is_suppressed=False))
    host.read_to_ends()
    host.turn()
    host.turn(5_000)
    assert host.task.stream_time == -1


def test_time_that_has_moved_on_stays_after_a_restart() -> None:
    host = Host(counted(is_suppressed=False))
    host.add(300)
    host.read_to_ends()
    host.turn()
    host.turn(2_000)
    committed = dict(host.task.prepare_commit().offsets)
    host.task.close()
    host.take_over(committed)
    host.read_to_ends()
    host.add(400)
    host.turn()
    assert host.task.dropped["late"] == 1
    host.read_to_ends()
    host.turn(50)
    assert host.task.stream_time == 2_300


def test_a_failure_of_user_code_names_the_task() -> None:
    host = Host(counted(is_suppressed=False, fails=True))
    host.add(300)
    host.read_to_ends()
    host.turn()
    with pytest.raises(ProcessingError, match="0_0"):
        host.turn(5_000)
