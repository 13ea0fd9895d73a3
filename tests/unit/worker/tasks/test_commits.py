"""Commits that are under way when something else happens to their tasks."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from riverrun.errors import TaskMigratedError
from riverrun.records import TaskId
from riverrun.worker.tasks.commits import Commits, CommitSchedule
from riverrun.worker.tasks.task_states import StreamTask, StreamTaskState

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Alone:
    def away(self) -> AbstractContextManager[None]:
        return nullcontext()

    def attend(self) -> None:
        pass

    def pause(self) -> None:
        pass


class Owned:
    """A task whose commit waits until it is told to end."""

    def __init__(self, outcome: Callable[[], None]) -> None:
        self.id, self.task = TaskId(0, 0), self
        self.needs_commit = self.commit_requested = True
        self.held_back_bytes = lambda: 0
        self.stream_time = 1_000
        self.may_end = threading.Event()
        self._outcome = outcome

    def prepare_commit(self) -> None:
        pass

    def send_commit(self) -> None:
        self.may_end.wait(60)
        self._outcome()

    def finish_commit(self) -> None:
        pass

    def sent(self) -> dict[str, int]:
        return {"out": 7}


def fenced() -> None:
    message = "fenced"
    raise TaskMigratedError(message)


def commits_of(owned: Any, given_up: list[Any]) -> tuple[Commits, StreamTask]:
    task = StreamTask(owned, StreamTaskState.RUNNING)

    def give_up(failed: Any, _error: Exception) -> None:
        given_up.append(failed)
        task.move_to(StreamTaskState.CLOSED)

    schedule = CommitSchedule(100, 0)
    schedule.note(owned.id, 0)
    commits = Commits(schedule, Alone(), give_up)
    commits.begin_due([task], 0)
    assert task.state is StreamTaskState.COMMITTING
    return commits, task


def test_a_task_is_given_up_once_though_its_commit_is_under_way() -> None:
    owned, given_up = Owned(fenced), list[Any]()
    commits, task = commits_of(owned, given_up)
    threading.Timer(0.05, owned.may_end.set).start()
    assert not commits.come_to_end(task)
    commits.finish()
    assert (given_up, task.state) == ([owned], StreamTaskState.CLOSED)


def test_a_task_whose_commit_succeeds_runs_on() -> None:
    owned, given_up = Owned(lambda: None), list[Any]()
    commits, task = commits_of(owned, given_up)
    owned.may_end.set()
    assert commits.come_to_end(task)
    assert (given_up, task.state, commits.done) == ([], StreamTaskState.RUNNING, 1)
    last = commits.last[owned.id]
    assert (last.sent, last.latency_ms) == ({"out": 7}, last.at_ms - owned.stream_time)
