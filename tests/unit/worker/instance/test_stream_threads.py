"""How an instance shares its tasks out among its stream threads."""

from __future__ import annotations

import errno
import multiprocessing
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from riverrun.config import AppConfig
from riverrun.kafka.door import Kafka
from riverrun.records import TaskId
from riverrun.runtime.context import FailedRecord
from riverrun.worker.queries import QueryClient
from riverrun.worker.states import WorkerSummary
from riverrun.worker.stream_thread.protocol import Assign, Failed, StreamJob, ThreadReport
from riverrun.worker.stream_threads import StreamThreadProcess, StreamThreads
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

FIRST, SECOND = (frozenset(TaskId(sub, partition) for partition in range(4)) for sub in range(2))
NONE: frozenset[TaskId] = frozenset()


@dataclass
class Process:
    """The other end of the pipe to a stream thread: the last order that it got, and its reports."""

    pipe: Connection
    order: Assign = field(default_factory=lambda: Assign(NONE, NONE, 0))

    def listen(self) -> None:
        while self.pipe.poll():
            self.order = self.pipe.recv()

    def report(self, active: frozenset[TaskId] | None = None, failed: tuple[FailedRecord, ...] = ()) -> None:
        self.listen()
        active = self.order.active if active is None else active
        self.pipe.send(
            ThreadReport(
                active=active,
                standby=self.order.standby,
                positions={},
                lags={},
                summary=WorkerSummary(),
                obeyed=self.order.number,
                failed=failed,
            )
        )


@dataclass
class Instance:
    """Stream processes, and what is at the other ends of their pipes."""

    processes: StreamThreads
    others: list[Process] = field(default_factory=list)

    def add(self, count: int) -> None:
        for _ in range(count):
            (ours, theirs), (line, _) = multiprocessing.Pipe(), multiprocessing.Pipe()
            never_started: Any = multiprocessing.get_context("spawn").Process()
            number = len(self.others) + 1
            self.processes.all.append(
                StreamThreadProcess(number, never_started, ours, QueryClient(line, f"Stream thread {number}"))
            )
            self.others.append(Process(theirs))

    def distribute(
        self, active: frozenset[TaskId], standby: frozenset[TaskId] = NONE, stateful: tuple[int, ...] = ()
    ) -> None:
        self.processes.distribute(active, standby, stateful=stateful)
        for other in self.others:
            other.listen()

    def obey(self) -> None:
        for other in self.others:
            other.report()
        self.processes.listen(1.0)


@pytest.fixture
def new_instance() -> Iterator[Callable[[int], Instance]]:
    made: list[Instance] = []

    def make(threads: int) -> Instance:
        job = StreamJob(AppConfig("app", "m:f"), "v1", Kafka({}), Path(), {}, None)
        made.append(Instance(StreamThreads(job, lambda _: pytest.fail("nothing is built"))))
        made[-1].add(threads)
        return made[-1]

    yield make
    for instance in made:
        for stream, other in zip(instance.processes.all, instance.others, strict=True):
            stream.queries.gone()
            stream.pipe.close()
            other.pipe.close()


@pytest.mark.parametrize("fails", ["multiprocessing.Pipe", "subprocess.Popen"])
def test_a_machine_without_room_for_a_process_is_asked_again_later(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = StreamJob(AppConfig("app", "m:f"), "v1", Kafka({}), Path(), {}, None)
    processes = StreamThreads(job, lambda _: pytest.fail("nothing is built"))
    monkeypatch.setattr("riverrun.worker.stream_threads._RETRY_SECONDS", 0.0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as full:
        full.setattr(fails, Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert not processes.start()
    assert "cannot start stream thread 1, trying again in 0 s: [Errno 24]" in caplog.text
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert processes.start()
    (stream,) = processes.all
    assert stream.number == 1
    stream.process.kill()
    stream.process.join()
    stream.pipe.close()
    stream.queries.gone()


def shares(instance: Instance) -> list[Counter[int]]:
    return [Counter(task.sub_topology for task in other.order.active) for other in instance.others]


def test_each_thread_gets_its_share_of_each_sub_topology(new_instance: Callable[[int], Instance]) -> None:
    instance = new_instance(2)
    instance.distribute(FIRST | SECOND)
    assert shares(instance) == [{0: 2, 1: 2}, {0: 2, 1: 2}]


def test_tasks_with_state_are_even_in_themselves(new_instance: Callable[[int], Instance]) -> None:
    instance = new_instance(2)
    one_each = [TaskId(sub, 0) for sub in range(4)]
    instance.distribute(frozenset(one_each), stateful=(0, 1))
    for other in instance.others:
        assert len(other.order.active) == 2
        assert len(other.order.active.intersection(one_each[:2])) == 1


def test_threads_beyond_the_number_of_tasks_have_nothing_to_do(new_instance: Callable[[int], Instance]) -> None:
    instance = new_instance(6)
    instance.distribute(FIRST)
    assert sorted(len(other.order.active) for other in instance.others) == [0, 0, 1, 1, 1, 1]


def test_a_task_goes_to_a_new_thread_only_after_the_old_one_has_let_go_of_it(
    new_instance: Callable[[int], Instance],
) -> None:
    instance = new_instance(1)
    instance.distribute(FIRST | SECOND)
    instance.obey()
    instance.add(1)
    instance.distribute(FIRST | SECOND)
    old, new = instance.others
    assert (len(old.order.active), len(new.order.active)) == (4, 0)
    instance.obey()
    instance.distribute(FIRST | SECOND)
    assert shares(instance) == [{0: 2, 1: 2}, {0: 2, 1: 2}]
    assert not old.order.active & new.order.active


def test_nothing_moves_between_threads_while_the_tasks_are_the_same(new_instance: Callable[[int], Instance]) -> None:
    instance = new_instance(3)
    for _ in range(3):
        instance.distribute(FIRST, SECOND, (0, 1))
        instance.obey()
    orders = [other.order for other in instance.others]
    assert [order.number for order in orders] == [1, 1, 1]
    assert sorted(len(order.active | order.standby) for order in orders) == [2, 3, 3]


def test_a_standby_whose_task_becomes_active_stays_where_its_state_is_open(
    new_instance: Callable[[int], Instance],
) -> None:
    instance = new_instance(2)
    instance.distribute(NONE, FIRST)
    instance.obey()
    before = [other.order.standby for other in instance.others]
    instance.distribute(FIRST)
    assert [other.order.active for other in instance.others] == before


def test_a_task_that_another_owner_took_over_is_reported_once(new_instance: Callable[[int], Instance]) -> None:
    instance = new_instance(1)
    instance.distribute(FIRST)
    instance.obey()
    instance.others[0].report(FIRST - {TaskId(0, 3)})
    instance.processes.listen(1.0)
    assert instance.processes.take_losses() == {TaskId(0, 3)}
    assert instance.processes.take_losses() == NONE


FAILURE = FailedRecord(5, "0_1", "parse", "in", 1, 7, "ann", "ValueError", "no number", "skipped")


def test_an_instance_remembers_skipped_records_and_the_ends_of_threads(new_instance: Callable[[int], Instance]) -> None:
    instance = new_instance(2)
    instance.others[0].report(failed=(FAILURE,))
    place: dict[str, str | int] = {"task": "0_2", "topic": "in", "partition": 2, "offset": 9}
    instance.others[1].pipe.send(Failed("ProcessingError", "x" * 10_000, None, place))
    until(
        lambda: len(instance.processes.failed()) >= 1 and instance.processes.all[1].failure is not None,
        "heard of both failures",
        turn=lambda: instance.processes.listen(1.0),
    )
    first, second = instance.processes.all
    instance.processes.all = [second]
    instance.processes.dead()
    skipped, ended = instance.processes.failed()
    assert skipped == FAILURE
    assert (ended.error, ended.task, ended.topic, ended.partition, ended.offset) == (
        "ProcessingError",
        "0_2",
        "in",
        2,
        9,
    )
    assert ended.outcome == "stream thread 2 ended"
    assert len(ended.message) == 1000
    instance.processes.all = [first, second]
