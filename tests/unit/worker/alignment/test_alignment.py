"""The tasks that may continue, given the event times of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun import STRING, Consumed, Grouped, Repartitioned, StreamsBuilder, TimeWindows
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.barrier import Limits
from riverrun.runtime.times import OffsetMetadata
from riverrun.windows import MAX_TIME_MS
from riverrun.worker.tasks.aligned_tasks import AlignedTasks, drift_of, limits
from riverrun.worker.tasks.alignment import PATIENCE_SECONDS, Alignment, FoundProgress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun import Topology
    from riverrun.runtime.task import Task

DRIFT_MS = 10
TASKS = [TaskId(0, n) for n in range(4)]
Times = st.dictionaries(st.sampled_from(TASKS), st.integers(0, 1000))


@given(Times)
def test_the_slowest_task_may_always_go_on(times: dict[TaskId, int]) -> None:
    found = limits(TASKS, times, DRIFT_MS)
    if times:
        slowest = min(times, key=lambda task: times[task])
        assert times[slowest] <= found[slowest]


@given(Times)
def test_no_task_may_go_further_than_a_drift_beyond_any_other_that_is_behind(times: dict[TaskId, int]) -> None:
    found = limits(TASKS, times, DRIFT_MS)
    assert all(found[task] <= time + DRIFT_MS for task in TASKS for other, time in times.items() if other != task)


@given(Times, st.sampled_from(TASKS))
def test_a_task_that_waits_does_so_for_another_one(times: dict[TaskId, int], task: TaskId) -> None:
    alone = {task: times[task]} if task in times else {}
    assert limits(TASKS, alone, DRIFT_MS)[task] == MAX_TIME_MS


def counted_in_windows(grace_ms: int | None, levels: int, size: timedelta = timedelta(seconds=1)) -> Topology:
    """Counts behind so many repartition topics, in windows if there is a grace."""
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).select_key(lambda _key, value: value)
    for level in range(1, levels):
        stream = stream.repartition(Repartitioned(STRING, STRING, name=f"{level}")).select_key(
            lambda _key, value: value
        )
    grouped = stream.group_by_key(Grouped(STRING, STRING))
    if grace_ms is None:
        grouped.count()
    else:
        grouped.windowed_by(TimeWindows.of(size, grace=timedelta(milliseconds=grace_ms))).count()
    return builder.build()


@pytest.mark.parametrize(
    ("grace_ms", "levels", "drift_ms"),
    [(10_000, 1, 5_000), (10_000, 2, 2_500), (0, 1, 1_000), (86_400_000_000, 1, 43_200_000_000), (None, 1, 86_400_000)],
)
def test_the_drift_is_half_of_the_grace_for_all_levels_together(
    grace_ms: int | None, levels: int, drift_ms: int
) -> None:
    assert drift_of(counted_in_windows(grace_ms, levels)) == drift_ms


def test_without_grace_tasks_may_be_a_tenth_of_a_window_apart() -> None:
    assert drift_of(counted_in_windows(0, 1, timedelta(hours=1))) == 360_000


@dataclass
class Simulated:
    """A task whose records have times, one per offset, as far as `Alignment` looks at it."""

    id: TaskId
    times: list[int]
    offset: int = 0
    latest_ms: int = MAX_TIME_MS
    needs_commit: bool = True
    commits: bool = False
    last_commit: Mapping[TopicPartition, tuple[int, str]] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        return self  # type: ignore[return-value] # what is looked at of it

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition("in", self.id.partition)

    def process_until(self, latest_ms: int) -> None:
        self.latest_ms = latest_ms

    def report_next_times(self, *, reports: bool) -> None:
        pass

    def next_times(self) -> dict[TopicPartition, int]:
        return {self.tp: self._reached(self.offset + 1)} if self.offset < len(self.times) else {}

    def request_commit(self) -> None:
        self.commits = self.needs_commit = True

    def commit(self) -> None:
        metadata = OffsetMetadata(self._reached(self.offset), {}, next_time=self.next_times().get(self.tp, -1))
        self.last_commit, self.commits, self.needs_commit = {self.tp: (self.offset, metadata.encode())}, False, False

    def process(self) -> int | None:
        """The time of the next record, if it may be processed."""
        if self.offset == len(self.times) or self.times[self.offset] > self.latest_ms:
            return None
        self.offset, self.needs_commit = self.offset + 1, True
        return self.times[self.offset - 1]

    def _reached(self, offset: int) -> int:
        return max(self.times[:offset], default=-1)


class Application:
    """Tasks, in as many processes as there are clocks to look at: what they commit is seen by all."""

    def __init__(self, inputs: list[list[int]], processes: int = 1) -> None:
        self.now = 0.0
        self.tasks = {TaskId(0, n): Simulated(TaskId(0, n), times) for n, times in enumerate(inputs)}
        self.written: list[int] = []
        owners = {task.tp: task.id for task in self.tasks.values()}
        self.processes = []
        for number in range(processes):
            own: dict[TaskId, Any] = {
                id_: task for id_, task in self.tasks.items() if id_.partition % processes == number
            }
            alignment = Alignment(own, (), DRIFT_MS, self.look_up, clock=lambda: self.now)
            alignment.begin([AlignedTasks(owners, frozenset(owners))])
            self.processes.append((alignment, own))

    def look_up(
        self,
        inputs: Iterable[TopicPartition],
        external: Iterable[TopicPartition],
        internal: Iterable[TopicPartition],
    ) -> FoundProgress:
        committed = {tp: found for task in self.tasks.values() for tp, found in task.last_commit.items()}
        ends = {task.tp: len(task.times) for task in self.tasks.values()}
        inner = {tp: ends[tp] for tp in internal}
        return FoundProgress(
            {tp: committed[tp] for tp in inputs if tp in committed}, {tp: ends[tp] for tp in external}, inner, inner
        )

    def turn(self, dead: TaskId | None = None) -> None:
        """A turn of all processes; a task that is dead neither processes nor commits."""
        self.now += 0.06
        for alignment, own in self.processes:
            alignment.run_once()
            if alignment._asked is not None:
                alignment._asked.result()
            for task in own.values():
                if task.id != dead:
                    self._process(task)

    def _process(self, task: Simulated) -> None:
        for _ in range(3):
            if (time := task.process()) is not None:
                self.written.append(time)
        if task.commits or not self.written:
            task.commit()

    def is_done(self) -> bool:
        return all(task.offset == len(task.times) for task in self.tasks.values())

    def close(self) -> None:
        for alignment, _ in self.processes:
            alignment.close()


Inputs = st.lists(
    st.lists(st.integers(0, 300).map(lambda n: n * n // 30), max_size=12).map(sorted), min_size=2, max_size=4
)


@given(Inputs, st.integers(1, 2))
def test_what_tasks_write_is_out_of_order_by_no_more_than_the_drift(inputs: list[list[int]], processes: int) -> None:
    application = Application(inputs, processes)
    for _ in range(400):
        application.turn()
    application.close()
    assert application.is_done()
    written = application.written
    assert all(max(written[: n + 1]) - time <= DRIFT_MS for n, time in enumerate(written))


def test_tasks_that_have_caught_up_do_not_wait() -> None:
    application = Application([[1, 2], [500]])
    for _ in range(20):
        application.turn()
    application.close()
    assert application.is_done()
    assert [task.latest_ms for task in application.tasks.values()] == [MAX_TIME_MS, MAX_TIME_MS]


def test_tasks_that_wait_say_for_how_long_and_for_which_slowest_task() -> None:
    application = Application([[0], [1_000_000], [2_000_000], list(range(12))])
    slow = TaskId(0, 0)
    ((alignment, _),) = application.processes
    for _ in range(20):
        application.turn(dead=slow)
    waits = alignment.waits()
    assert {task: others for task, (_, others) in waits.items()} == {TaskId(0, n): (slow,) for n in (1, 2, 3)}
    before = waits[TaskId(0, 1)][0]
    application.turn(dead=slow)
    assert alignment.waits()[TaskId(0, 1)][0] == pytest.approx(before + 0.06)
    for _ in range(100):
        application.turn()
    assert alignment.waits() == {}
    application.close()


def test_a_record_of_the_future_waits_for_all_others_and_holds_up_none() -> None:
    application = Application([[MAX_TIME_MS - DRIFT_MS - 1, 7], [1, 2, 3]])
    for _ in range(20):
        application.turn()
    application.close()
    assert application.written == [1, 2, 3, MAX_TIME_MS - DRIFT_MS - 1, 7]


def test_a_task_that_pauses_at_a_barrier_is_not_waited_for() -> None:
    application = Application([[1, 2], [5, 50, 500]])
    holds = TaskId(0, 0)
    for alignment, _ in application.processes:
        alignment.pause_at(Limits("m", 1, {TopicPartition("in", 1): 2}))
    for _ in range(20):
        application.turn(holds)
    assert 50 in application.written
    for alignment, _ in application.processes:
        alignment.pause_at(None)
    for _ in range(40):
        application.turn()
    application.close()
    assert application.is_done()


def test_a_task_that_makes_no_progress_is_waited_for_within_limits(caplog: pytest.LogCaptureFixture) -> None:
    application = Application([[1, 2], [5, 50, 500]])
    dead = TaskId(0, 0)
    for _ in range(20):
        application.turn(dead)
    assert application.written == [5]
    for _ in range(round(PATIENCE_SECONDS / 0.06)):
        application.turn(dead)
    application.close()
    assert application.written == [5, 50, 500]
    assert "task 0_0 makes no progress in in [0]: others continue without it" in caplog.text


def test_time_in_which_the_thread_waits_for_brokers_is_no_stall_of_others() -> None:
    application = Application([[1, 2], [5, 50, 500]])
    dead = TaskId(0, 0)
    for _ in range(20):
        application.now += PATIENCE_SECONDS / 2
        application.turn(dead)
    assert application.written == [5]
    for _ in range(40):
        application.turn()
    application.close()
    assert application.written == [5, 1, 2, 50, 500]
