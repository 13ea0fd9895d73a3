"""Sends commits in threads: a task rests while its commit waits for brokers, and the others continue."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.records import TaskId
    from riverrun.worker.tasks.task_states import StreamTask

_AT_ONCE = 16
"""How many tasks may commit at the same time."""


class _Sent(NamedTuple):
    """An unfinished commit, with the time it began (monotonic seconds)."""

    task: StreamTask
    outcome: Future[None]
    began: float


class OpenCommits:
    """Sends prepared commits, each in a thread.

    Tasks have separate transactions, and mostly wait for brokers.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_AT_ONCE, "commit")
        self._sent: dict[TaskId, _Sent] = {}
        self.seconds = (0.0, 0.0)
        """Duration of commits, s: all together, and the longest."""

    def __contains__(self, task_id: TaskId) -> bool:
        """Return whether a task's commit is under way; then the task must not process."""
        return task_id in self._sent

    def __bool__(self) -> bool:
        """Return whether any commit is under way."""
        return bool(self._sent)

    def send(self, task: StreamTask) -> None:
        """Make a task's prepared commit durable."""
        self._sent[task.id] = _Sent(task, self._threads.submit(task.owned.send_commit), time.monotonic())

    def wait_for_any(self, timeout_s: float) -> None:
        """Wait until a commit has an outcome, or the time is up."""
        wait([sent.outcome for sent in self._sent.values()], timeout_s, FIRST_COMPLETED)

    def wait_for(self, task_ids: Iterable[TaskId]) -> None:
        """Wait until the commits of the given tasks have outcomes."""
        wait([self._sent[task_id].outcome for task_id in task_ids if task_id in self._sent])

    def take_done(self) -> list[tuple[StreamTask, Future[None]]]:
        """Remove and return the commits with an outcome."""
        done = [sent for sent in self._sent.values() if sent.outcome.done()]
        for sent in done:
            del self._sent[sent.task.id]
            took = time.monotonic() - sent.began
            self.seconds = self.seconds[0] + took, max(self.seconds[1], took)
        return [(sent.task, sent.outcome) for sent in done]

    def close(self) -> None:
        """Wait for all commits, and discard their outcomes. Idempotent."""
        self._threads.shutdown()
        self._sent.clear()
