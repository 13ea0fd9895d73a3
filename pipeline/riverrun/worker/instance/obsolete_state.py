"""Deletes, at intervals, the local state of tasks that other instances have (`StateDirectory.cleanRemovedTasks`)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from riverrun.hosting.restoring.local_state import task_directories
from riverrun.state.backends.rocksdb import delete_unused, finish_deletions

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from riverrun.records import TaskId
    from riverrun.runtime.ports import Clock

log = logging.getLogger(__name__)


class ObsoleteState:
    """The state of tasks that have moved away; it is kept for a while, as they may come back.

    Args:
        directory: The directory of the application's state.
        delay_ms: How long state must have been closed, and how often to check, ms (`state.cleanup.delay.ms`).
        clock: Tells the time, which also has to be the time of files.
    """

    def __init__(self, directory: Path, delay_ms: int, clock: Clock) -> None:
        self._directory = directory
        self._delay_ms = delay_ms
        self._clock = clock
        self._looked_at = time.monotonic()

    def delete_if_due(self, kept: Collection[TaskId]) -> tuple[TaskId, ...]:
        """Delete obsolete state, if it is time to check.

        Keeps state that other processes use (bounded runs take over tasks of a worker), or that cannot be deleted.

        Args:
            kept: The tasks that run or are followed here, or will be.

        Returns:
            The tasks whose state is deleted.
        """
        if time.monotonic() - self._looked_at < self._delay_ms / 1000:
            return ()
        self._looked_at = time.monotonic()
        finish_deletions(self._directory)
        found = task_directories(self._directory)
        return tuple(task for task, path in found.items() if task not in kept and self._delete(task, path))

    def _delete(self, task: TaskId, path: Path) -> bool:
        try:
            idle_ms = self._clock.now_ms() - round(path.stat().st_mtime * 1000)
            if idle_ms <= self._delay_ms or not delete_unused(path):
                return False
        except OSError as error:
            log.warning("obsolete state of task %s is not deleted: %s", task, error, extra={"task": str(task)})
            return False
        message = "obsolete state of task %s is deleted: it was not used for %d ms"
        log.info(message, task, idle_ms, extra={"task": str(task)})
        return True
