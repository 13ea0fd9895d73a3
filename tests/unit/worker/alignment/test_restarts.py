"""Tasks that start over, or whose commits take long, at any moment: what they write stays in order for those that read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.errors import BrokerError
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.times import OffsetMetadata
from riverrun.windows import MAX_TIME_MS
from riverrun.worker.tasks.aligned_tasks import AlignedTasks
from riverrun.worker.tasks.alignment import PATIENCE_SECONDS, Alignment, FoundProgress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DRIFT_MS = 10
PARTITIONS = 3
PER_TURN = 4
TURN_SECONDS = 0.06


class Log:
    """Partitions of one topic, by their number: event times of committed records."""

    def __init__(self, topic: str, times: list[list[int]]) -> None:
        self.topic = topic
        self.times = times


@dataclass
class Simulated:
    """A task that copies its partition, in transactions, to partitions that follow from event times."""

    id: TaskId
    source: Log
    sink: Log
    offset: int = 0
    fetched: int = 0
    reached: int = -1
    latest_ms: int = MAX_TIME_MS
    needs_commit: bool = True
    commits: bool = False
    sent: list[int] = field(default_factory=list)
    last_commit: Mapping[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    away_until: float = 0.0
    is_committing: bool = False

    @property
    def task(self) -> Any:
        return self

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.source.topic, self.id.partition)

    @property
    def times(self) -> list[int]:
        return self.source.times[self.id.partition]

    def process_until(self, latest_ms: int) -> None:
        self.latest_ms = latest_ms

    def report_next_times(self, *, reports: bool) -> None:
        pass

    def next_times(self) -> dict[TopicPartition, int]:
        if self.offset >= self.fetched:
            return {}
        return {self.tp: max(self.reached, self.times[self.offset])}

    def request_commit(self) -> None:
        self.commits = self.needs_commit = True

    def process(self) -> None:
        for _ in range(PER_TURN):
            if self.offset >= self.fetched or self.times[self.offset] > self.latest_ms:
                break
            time = self.times[self.offset]
            self.sent.append(time)
            self.offset, self.reached, self.needs_commit = self.offset + 1, max(self.reached, time), True
        self.fetched = len(self.times)

    def commit(self) -> None:
        for time in self.sent:
            self.sink.times[hash((self.id.sub_topology, time)) % PARTITIONS].append(time)
        metadata = OffsetMetadata(self.reached, {}, next_time=self.next_times().get(self.tp, -1))
        self.last_commit, self.commits, self.needs_commit = {self.tp: (self.offset, metadata.encode())}, False, False
        self.sent = []

    def start_over(self) -> None:
        """Forget all that is not committed."""
        self.sent, self.latest_ms, self.commits, self.needs_commit = [], MAX_TIME_MS, False, True
        self.offset, metadata = self.last_commit.get(self.tp, (0, ""))
        self.reached, self.fetched = OffsetMetadata.decode(metadata).partition_time, self.offset


class Application:
    """Levels of tasks in one process, the last of which writes `written`."""

    def __init__(self, inputs: list[list[int]], levels: int) -> None:
        self.now = 0.0
        self.logs = [Log("in", inputs)] + [Log(f"r{n}", [[] for _ in range(PARTITIONS)]) for n in range(levels)]
        self.tasks = {
            TaskId(n, p): Simulated(TaskId(n, p), self.logs[n], self.logs[n + 1])
            for n in range(levels)
            for p in range(PARTITIONS)
        }
        self.running: dict[TaskId, Any] = dict(self.tasks)
        self.resting: set[TaskId] = set()
        groups = []
        for level in range(levels):
            owners = {task.tp: task.id for task in self.tasks.values() if task.id.sub_topology == level}
            groups.append(AlignedTasks(owners, frozenset(owners) if level == 0 else frozenset()))
        self.alignment = Alignment(
            self.running,
            self.resting,
            DRIFT_MS,
            self.look_up,
            starting=lambda: self.tasks.keys() - self.running.keys(),
            clock=lambda: self.now,
        )
        self.alignment.begin(groups)
        self.answers = True

    def look_up(
        self,
        inputs: Iterable[TopicPartition],
        external: Iterable[TopicPartition],
        internal: Iterable[TopicPartition],
    ) -> FoundProgress:
        if not self.answers:
            message = "no leader"
            raise BrokerError(message, retriable=True)
        committed = {tp: found for task in self.tasks.values() for tp, found in task.last_commit.items()}
        ends = {task.tp: len(task.times) for task in self.tasks.values()}
        inner = {tp: ends[tp] for tp in internal}
        return FoundProgress(
            {tp: committed[tp] for tp in inputs if tp in committed}, {tp: ends[tp] for tp in external}, inner, inner
        )

    def disturb(self, task_id: TaskId, seconds: float, kind: str) -> None:
        """Let a task start over, or let its commit take so long."""
        task = self.tasks[task_id]
        if task_id not in self.running or task_id in self.resting:
            return
        task.away_until = self.now + seconds
        if kind == "start over":
            task.start_over()
            del self.running[task_id]
        else:
            self.resting.add(task_id)

    def turn(self) -> None:
        self.now += TURN_SECONDS
        for task in self.tasks.values():
            if self.now >= task.away_until:
                self.running[task.id] = task
                if task.id in self.resting:
                    self.resting.remove(task.id)
                    task.commit()
        self.alignment.run_once()
        if self.alignment._asked is not None:
            self.alignment._asked.exception()
        for task_id, task in self.running.items():
            if task_id in self.resting:
                continue
            task.process()
            if task.commits or not task.last_commit:
                task.commit()

    @property
    def is_done(self) -> bool:
        return all(task.offset == len(task.times) and not task.sent for task in self.tasks.values())


Inputs = st.lists(
    st.lists(st.integers(0, 1500), min_size=10, max_size=50).map(sorted),
    min_size=PARTITIONS,
    max_size=PARTITIONS,
)
Disturbances = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(0, 2),
        st.integers(0, PARTITIONS - 1),
        st.sampled_from([0.2, 5.0, 3 * PATIENCE_SECONDS]),
        st.sampled_from(["start over", "commit"]),
    ),
    max_size=4,
)


@settings(max_examples=60)
@given(Inputs, st.integers(1, 3), Disturbances)
def test_no_record_is_late_below_whichever_tasks_start_over_or_commit_slowly(
    inputs: list[list[int]], levels: int, disturbances: list[tuple[int, int, int, float, str]]
) -> None:
    application = Application(inputs, levels)
    at = {number: (TaskId(level % levels, p), s, kind) for number, level, p, s, kind in disturbances}
    for number in range(round(4 * 3 * PATIENCE_SECONDS / TURN_SECONDS) + 1000):
        if number in at:
            application.disturb(*at[number])
        application.turn()
        if application.is_done and number > 60:
            break
        for task in application.tasks.values():
            if task.needs_commit and task.id in application.running and task.id not in application.resting:
                task.commits |= number % 3 == 0
    application.alignment.close()
    assert application.is_done
    written = application.logs[-1].times
    assert Counter(time for times in written for time in times) == Counter(time for times in inputs for time in times)
    for times in written:  # half of the grace is for each level, and half of that for the inputs themselves
        assert all(max(times[: n + 1]) - time <= 2 * levels * DRIFT_MS for n, time in enumerate(times))


def test_without_answers_of_brokers_tasks_go_on_after_a_while() -> None:
    application = Application([list(range(0, 900, 100)) for _ in range(PARTITIONS)], 2)
    application.answers = False
    for number in range(round(3 * PATIENCE_SECONDS / TURN_SECONDS)):
        application.turn()
        for task in application.tasks.values():
            task.commits |= task.needs_commit and number % 3 == 0
    application.alignment.close()
    assert application.is_done
