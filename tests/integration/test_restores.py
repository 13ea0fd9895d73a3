"""Restores do not disturb running tasks, proceed in parts, and end at the committed offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.hosting.active_task import ActiveTask, start_task
from riverrun.hosting.claim import Claim
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.kept_offsets import KeptOffsets
from riverrun.hosting.process import SystemClock
from riverrun.hosting.restoring import StoreChangelogReader
from riverrun.hosting.standby_tasks import StandbyTasks
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import TransactionalProducer
from riverrun.records import TaskId, TopicPartition
from riverrun.worker.queries import AnswerPage, KeyQuery, Refusal, RefusalReason, StoreQuery
from riverrun.worker.stream_thread.stream_thread import StreamThread
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.runtime.task import Task
    from riverrun.worker.states import WorkerSummary
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

RUNNING, RESTORED = TaskId(0, 0), TaskId(0, 1)
LOGGED = 60_000
"""Records in the changelog: several slices of a restore."""


class Case:
    """Counts of words in two partitions; the second has a long changelog."""

    def __init__(self, broker: Broker, name: str, tmp_path: Path) -> None:
        self.broker, self.name = broker, name
        builder = StreamsBuilder()
        words = builder.stream(f"{name}.in", Consumed(STRING, STRING))
        counts = words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
        counts.to_stream().to(f"{name}.out", Produced(STRING, LONG))
        self.shown: list[tuple[int, int]] = []
        broker.create(2, f"{name}.in", f"{name}.out")
        self.tasks = StreamThread(
            broker.application(name, builder.build(), tmp_path / "state", commit_interval_ms=10),
            on_restore=lambda _changelog, done, expected: self.shown.append((done, expected)),
        )
        self.tasks.start()
        log = ((b"w%d" % n, (n + 1).to_bytes(8, "big"), n + 1) for n in range(LOGGED))
        KeptOffsets(broker.admin(), f"{name}-v1").note_import("counts")
        broker.write(f"{name}-v1-counts-changelog", log, partition=1)

    def write(self, count: int) -> None:
        """Words for the task that runs."""
        self.broker.write(f"{self.name}.in", [(b"word", b"x", 1)] * count, partition=0)

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, "came to that", turn=self.tasks.run_once)

    def is_restored(self) -> bool:
        return RESTORED in self.tasks.figures.active and RESTORED not in self.tasks.figures.restoring

    def ask(self, word: bytes, task: TaskId) -> AnswerPage | Refusal:
        return self.tasks.answer(StoreQuery("counts", task, KeyQuery(word)))


@pytest.fixture
def case(broker: Broker, unique: str, tmp_path: Path) -> Iterator[Case]:
    case = Case(broker, unique, tmp_path)
    yield case
    case.tasks.close()


def test_a_task_goes_on_while_another_one_is_restored(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.tasks.assign(frozenset({RUNNING}), frozenset())
    case.write(1)
    case.until(lambda: case.tasks.figures.summary().processed == 1)
    before: list[WorkerSummary] = []
    answers = []
    restore = StoreChangelogReader.run_once

    def has_gone_on() -> bool:
        now = case.tasks.figures.summary()
        return bool(before) and now.processed > before[0].processed and now.commits > before[0].commits

    def restore_slowly(self: StoreChangelogReader, max_records: int, timeout_s: float) -> list[Task]:
        """Have a restore last until the other task has gone on, however busy the machine is."""
        return restore(self, max_records if has_gone_on() else 1, timeout_s)

    def is_restored() -> bool:
        missing = case.tasks.figures.restoring.get(RESTORED)
        if missing:
            if not before:
                before.append(case.tasks.figures.summary())
                case.write(1_000)
            answers.append((missing, case.ask(b"w1", RESTORED)))
        return case.is_restored()

    monkeypatch.setattr(StoreChangelogReader, "run_once", restore_slowly)
    case.tasks.assign(frozenset({RUNNING, RESTORED}), frozenset())
    case.until(is_restored)
    assert has_gone_on()
    assert answers[0][0] > answers[-1][0]
    for missing, answer in answers:
        assert isinstance(answer, Refusal)
        assert (answer.reason, answer.missing) == (RefusalReason.RESTORING, missing)
    assert case.shown[-1] == (LOGGED, LOGGED)
    assert len(case.shown) > 1
    answer = case.ask(b"w1", RESTORED)
    assert isinstance(answer, AnswerPage)
    (row,) = answer.rows
    assert (row.value, row.timestamp) == ((2).to_bytes(8, "big"), 2)


def test_a_restore_that_is_called_off_goes_on_where_it_was(case: Case) -> None:
    case.tasks.assign(frozenset({RESTORED}), frozenset())
    case.until(lambda: bool(case.shown))
    case.tasks.assign(frozenset(), frozenset())
    assert case.tasks.figures.active == frozenset()
    done = case.tasks.figures.summary().restored
    assert 0 < done < LOGGED
    case.tasks.assign(frozenset({RESTORED}), frozenset())
    case.until(case.is_restored)
    assert case.tasks.figures.summary().restored == LOGGED
    assert case.shown[-1] == (LOGGED - done, LOGGED - done)


def test_a_task_that_is_wanted_again_before_it_was_let_go_of_is_taken_over_once(case: Case) -> None:
    case.tasks.assign(frozenset({RESTORED}), frozenset())
    case.tasks.assign(frozenset(), frozenset())
    assert case.tasks.figures.active == {RESTORED}
    assert case.tasks.is_closing_tasks
    case.tasks.assign(frozenset({RESTORED}), frozenset())
    assert not case.tasks.is_closing_tasks
    case.until(case.is_restored)
    assert case.tasks.figures.summary().restored == LOGGED


def test_a_task_that_is_sent_away_is_let_go_of_even_if_nothing_is_processed(case: Case) -> None:
    case.tasks.assign(frozenset({RESTORED}), frozenset())
    case.tasks.assign(frozenset(), frozenset())
    assert case.tasks.is_closing_tasks
    until(lambda: not case.tasks.is_closing_tasks, "let go of it", turn=case.tasks.rest)
    assert case.tasks.figures.active == frozenset()


def test_a_task_that_is_sent_away_may_be_followed_at_once(case: Case) -> None:
    case.tasks.assign(frozenset({RESTORED}), frozenset())
    case.tasks.assign(frozenset(), frozenset({RESTORED}))
    assert (case.tasks.figures.active, case.tasks.figures.standby) == (frozenset(), frozenset({RESTORED}))
    case.until(lambda: case.tasks.figures.lags() == {RESTORED: 0})
    case.tasks.assign(frozenset({RESTORED}), frozenset())
    case.until(case.is_restored)
    assert case.tasks.figures.summary().restored == 0


def test_a_process_can_be_asked_for_its_figures_while_it_fills_its_global_tables(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    builder = StreamsBuilder()
    builder.global_table(f"{unique}.names", Consumed(STRING, STRING), Materialized(name="names"))
    builder.stream(f"{unique}.in", Consumed(STRING, STRING)).to(f"{unique}.out", Produced(STRING, STRING))
    broker.create(1, f"{unique}.names", f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.names", [(b"k", b"v", 1)])
    application = broker.application(unique, builder.build(), tmp_path)
    figures: list[Any] = []
    tasks = StreamThread(application, on_restore=lambda *_: figures.append(tasks.figures.by_task()))
    tasks.start()
    tasks.close()
    assert figures == [{}]


class Counting:
    """An application that counts words of one partition, whose task is taken over by hand."""

    def __init__(self, broker: Broker, name: str, state: Path, guarantee: str = "exactly_once_v2") -> None:
        self.name, self.admin = name, broker.admin()
        broker.create(1, f"{name}.in")
        broker.write(f"{name}.in", [(b"a", b"x", 1), (b"b", b"x", 1)])
        builder = StreamsBuilder()
        words = builder.stream(f"{name}.in", Consumed(STRING, STRING))
        words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
        self.app = broker.application(name, builder.build(), state, processing_guarantee=guarantee)
        self.connected = ConnectedApplication(self.app, self.admin)
        self.connected.prepare()
        self.changelog = TopicPartition(f"{self.app.id}-counts-changelog", 0)

    def opened(self, state: Path | None = None) -> ActiveTask:
        connected = self.connected if state is None else self.connected.in_directory(state)
        return start_task(Claim(connected, RUNNING, SystemClock()), {})

    def process(self, active: ActiveTask, word: bytes, offset: int) -> None:
        active.task.add_records(TopicPartition(f"{self.name}.in", 0), [(word, b"x", 1, offset, ())])
        active.task.process_all()


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_successors_records_after_a_commit_are_not_taken_for_local_state(
    broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    counting, commit = Counting(broker, unique, tmp_path / "here", guarantee), TransactionalProducer.commit

    def commit_and_be_out_of_reach(self: TransactionalProducer, *arguments: Any) -> None:
        commit(self, *arguments)
        monkeypatch.undo()
        successor = counting.opened(tmp_path / "there")
        counting.process(successor, b"b", 1)
        successor.commit()
        counting.admin.settled_end_offsets([counting.changelog])
        successor.close()

    first = counting.opened()
    counting.process(first, b"a", 0)
    monkeypatch.setattr(TransactionalProducer, "commit", commit_and_be_out_of_reach)
    first.commit()
    first.close(abort=False)
    again = counting.opened()
    found = {key: again.task.store("counts").get(key) for key in ("a", "b")}
    again.close()
    assert found == {"a": (1, 1), "b": (1, 1)}


def test_state_whose_commit_has_no_marker_yet_is_not_thrown_away(broker: Broker, unique: str, tmp_path: Path) -> None:
    counting = Counting(broker, unique, tmp_path)
    pending = TransactionalProducer(Kafka(broker.kafka), unique)  # the last stable offset stays before it
    pending.init()
    pending.send(counting.changelog.topic, b"c", bytes(16), 1, (), 0)
    pending.flush()
    active = counting.opened()
    counting.process(active, b"a", 0)
    active.commit()
    active.close()
    standbys = StandbyTasks(counting.connected, SystemClock())
    standbys.follow(RUNNING)
    found = standbys.task(RUNNING).store("counts").get("a")
    standbys.close()
    pending.close()
    assert found == (1, 1)
