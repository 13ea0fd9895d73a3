"""Commits that are under way when something else happens to their tasks."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from riverrun.errors import TaskMigratedError
from riverrun.hosting.active_task import TaskState
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.task import TaskCommit
from riverrun.worker.states import TaskCounts
from riverrun.worker.tasks.task_executor import Commits, CommitSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager


class Alone:
    def away(self) -> AbstractContextManager[None]:
        return nullcontext()

    def attend(self) -> None:
        pass

    def pause(self) -> None:
        pass


class Producer:
    """A producer of which a commit waits until it is allowed to end."""

    def __init__(self, outcome: Callable[[], None]) -> None:
        self.may_end = threading.Event()
        self.committed: Mapping[Any, Any] = {}
        self.doubted_since: float | None = 1.0
        self._outcome = outcome

    def present(self) -> Producer:
        return self

    def flush(self) -> None:
        pass

    def commit(self, offsets: Mapping[Any, Any], released: Mapping[Any, Any]) -> None:
        self.may_end.wait(60)
        self._outcome()
        self.committed = {**offsets, **released}


class Active:
    """A task with progress."""

    def __init__(self, partition: int) -> None:
        self.id, self.task, self.state = TaskId(0, partition), self, TaskState.RUNNING
        self.claim = self
        self.needs_commit = self.commit_requested = True
        self.held_back_bytes = lambda: 0
        self.awaits_lookups, self.settle = False, lambda: True
        self.stream_time = 1_000
        self.dropped, self.measured = Counter[str](), tuple
        self.prepared = TaskCommit({TopicPartition("in", partition): (7, "owned")}, ())
        self.finished = 0

    def prepare_commit(self) -> None:
        self.needs_commit = False

    def note_changelog_ends(self, _ends: Any) -> None:
        pass

    def finish_commit(self) -> None:
        self.finished += 1

    def released(self) -> dict[TopicPartition, tuple[int, str]]:
        return {tp: (offset, "") for tp, (offset, _metadata) in self.prepared.offsets.items()}

    def sent(self) -> dict[str, int]:
        return {"out": 7}


def fenced() -> None:
    message = "fenced"
    raise TaskMigratedError(message)


class Committing:
    """Commits of two tasks, one of which is under way."""

    def __init__(self, outcome: Callable[[], None]) -> None:
        self.tasks: Any = [Active(0), Active(1)]
        self.producer = Producer(outcome)
        self.failures: list[Exception] = []
        running = {active.id: active for active in self.tasks}
        producer: Any = self.producer
        self.commits = Commits(running, producer, CommitSchedule(100, 0), Alone(), self._fail, TaskCounts())
        self.commits.begin_if_due(0)
        assert self.commits.under_way

    def _fail(self, error: Exception) -> None:
        self.failures.append(error)
        for active in self.tasks:
            active.state = TaskState.CLOSED


def test_a_commit_that_is_refused_fails_all_its_tasks_once() -> None:
    committing = Committing(fenced)
    threading.Timer(0.05, committing.producer.may_end.set).start()
    committing.commits.come_to_end()
    committing.commits.finish()
    assert len(committing.failures) == 1
    assert [active.finished for active in committing.tasks] == [0, 0]


def test_tasks_commit_in_one_transaction_and_run_on() -> None:
    committing = Committing(lambda: None)
    committing.commits.begin_if_due(1_000)
    committing.producer.may_end.set()
    committing.commits.come_to_end()
    assert sorted(committing.producer.committed) == [TopicPartition("in", 0), TopicPartition("in", 1)]
    assert [active.finished for active in committing.tasks] == [1, 1]
    assert (committing.failures, bool(committing.commits.under_way), committing.commits.done) == ([], False, 2)
    assert committing.producer.doubted_since is None
    last = committing.commits.last[TaskId(0, 1)]
    assert (last.sent, last.latency_ms) == ({"out": 7}, last.at_ms - 1_000)


def test_a_task_that_leaves_commits_without_an_owner_even_without_progress() -> None:
    committing = Committing(lambda: None)
    committing.producer.may_end.set()
    first, second = committing.tasks
    second.needs_commit = True
    committing.commits.commit([first])
    assert committing.producer.committed == {
        TopicPartition("in", 0): (7, ""),
        TopicPartition("in", 1): (7, "owned"),
    }
