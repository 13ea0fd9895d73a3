"""Sends commits in threads: a task whose commit waits for brokers rests, and the others go on."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.records import TaskId
    from pipeline.worker.tasks.task_states import StreamTask

_AT_ONCE = 16
"""How many tasks commit at the same time."""


class _Sent(NamedTuple):
    """A commit that is not finished yet, and when it began (monotonic seconds)."""

    task: StreamTask
    outcome: Future[None]
    began: float


class OpenCommits:
    """Sends prepared commits, each in a thread: tasks have transactions of their own, and wait for brokers most of the time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_AT_ONCE, "commit")
        self._sent: dict[TaskId, _Sent] = {}
        self.seconds = (0.0, 0.0)
        """How long commits took: all together, and the longest."""

    def __contains__(self, task_id: TaskId) -> bool:
        """Whether a task's commit is under way; then it must not process."""
        return task_id in self._sent

    def __bool__(self) -> bool:
        """Whether any is."""
        return bool(self._sent)

    def send(self, task: StreamTask) -> None:
        """Make durable what a task has prepared."""
        self._sent[task.id] = _Sent(task, self._threads.submit(task.owned.send_commit), time.monotonic())

    def wait_for_any(self, timeout_s: float) -> None:
        """Wait until one has an outcome, or the time is up."""
        wait([sent.outcome for sent in self._sent.values()], timeout_s, FIRST_COMPLETED)

    def wait_for(self, task_ids: Iterable[TaskId]) -> None:
        """Wait until these have outcomes."""
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
        """Wait for all, and forget their outcomes. Idempotent."""
        self._threads.shutdown()
        self._sent.clear()
