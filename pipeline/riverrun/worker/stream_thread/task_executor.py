"""Lets running tasks process in slices of time, between which queries are answered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from riverrun.errors import TaskMigratedError
from riverrun.runtime.context import KEPT_BYTES
from riverrun.worker.tasks.state_updater import RECOVERABLE

if TYPE_CHECKING:
    from riverrun.hosting.barrier_listener import ReleaseFollower
    from riverrun.runtime.task import Task
    from riverrun.worker.states import TaskCounts
    from riverrun.worker.tasks.fetching import Interruptions
    from riverrun.worker.tasks.task_manager import TaskManager

_STRETCH_SECONDS = 0.0004
"""Time for which a task processes before queries are answered; the number of records adapts to it."""
_RECORDS_PER_SLICE = 1_000
"""How many records a task processes before the next task does."""
_SLICE_SECONDS = 0.2
"""Maximum duration of a slice if records are slow: transactions must be committed, and instances answered, in time."""


class TaskExecutor:
    """Lets running tasks process, one after another (`TaskExecutor`).

    Args:
        manager: Owns the tasks.
        follower: Applies records of the control topic between two commits.
        counts: Counts the work of tasks.
        interruptions: Called between two records.
        cache_max_bytes: Memory for the caches of all stores (`statestore.cache.max.bytes`).
    """

    def __init__(
        self,
        manager: TaskManager,
        follower: ReleaseFollower,
        counts: TaskCounts,
        interruptions: Interruptions,
        cache_max_bytes: int,
    ) -> None:
        self._manager = manager
        self._follower = follower
        self._counts = counts
        self._interruptions = interruptions
        self._cache_max_bytes = cache_max_bytes
        self._stretch = 16

    def process(self) -> int:
        """Let each task process whose commit is not under way. Returns the number of records."""
        processed, kept_bytes = 0, self._kept_bytes
        for active in self._manager.ready():
            if not self._follower.let_process(active):
                continue
            active.task.set_cache_limit(kept_bytes)
            try:
                done = self._slice(active.task)
                active.task.punctuate_wall_clock()
                if active.task.has_reached_barrier():
                    active.task.request_commit()  # acknowledges it at once
                processed += done
                self._counts.processed(active.id, done)
            except (*RECOVERABLE, TaskMigratedError) as error:
                self._manager.fail(active, error)
        return processed

    @property
    def _kept_bytes(self) -> int:
        """Return each store's part of `statestore.cache.max.bytes`, or the minimum that stores keep."""
        stores = sum(len(active.task.stores()) for active in self._manager.running.values())
        return max(KEPT_BYTES, self._cache_max_bytes // max(1, stores))

    def _slice(self, task: Task) -> int:
        """Let a task process in short intervals, between which queries are answered. Returns the number of records."""
        done, ends = 0, time.perf_counter() + _SLICE_SECONDS
        while done < _RECORDS_PER_SLICE and (began := time.perf_counter()) < ends:
            asked = self._stretch
            part = task.process(asked)
            done += part
            self._interruptions.attend()
            if part < asked:
                break
            took_s = time.perf_counter() - began
            self._stretch = min(
                max(int(asked * _STRETCH_SECONDS / took_s), asked // 2, 1), 2 * asked, _RECORDS_PER_SLICE
            )
        return done
