"""Commits that are under way when something else happens to their tasks."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from riverrun.errors import TaskMigratedError
from riverrun.hosting.active_task import TaskState
from riverrun.records import TaskId
from riverrun.worker.tasks.task_executor import Commits, CommitSchedule

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


class Active:
    """A task whose commit waits until it is told to end."""

    def __init__(self, outcome: Callable[[], None]) -> None:
        self.id, self.task, self.state = TaskId(0, 0), self, TaskState.RUNNING
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


def commits_of(active: Any, given_up: list[Any]) -> Commits:
    def give_up(failed: Any, _error: Exception) -> None:
        given_up.append(failed)
        failed.state = TaskState.CLOSED

    schedule = CommitSchedule(100, 0)
    schedule.note(active.id, 0)
    commits = Commits(schedule, Alone(), give_up)
    commits.begin_due([active], 0)
    assert active.id in commits.under_way
    return commits


def test_a_task_is_given_up_once_though_its_commit_is_under_way() -> None:
    active: Any = Active(fenced)
    given_up = list[Any]()
    commits = commits_of(active, given_up)
    threading.Timer(0.05, active.may_end.set).start()
    assert not commits.come_to_end(active)
    commits.finish()
    assert given_up == [active]


def test_a_task_whose_commit_succeeds_runs_on() -> None:
    active: Any = Active(lambda: None)
    given_up = list[Any]()
    commits = commits_of(active, given_up)
    active.may_end.set()
    assert commits.come_to_end(active)
    assert (given_up, active.id in commits.under_way, commits.done) == ([], False, 1)
    last = commits.last[active.id]
    assert (last.sent, last.latency_ms) == ({"out": 7}, last.at_ms - active.stream_time)
