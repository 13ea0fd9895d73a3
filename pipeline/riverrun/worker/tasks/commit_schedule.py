"""Decides which tasks are to commit now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from riverrun.hosting.tasks.owned_task import OwnedTask
    from riverrun.records import TaskId

_PARTS = 4
"""The number of turns over which due commits begin, so that not all tasks wait for brokers at once."""
_UNCACHED_MAX_BYTES = 10 * 1024 * 1024
"""Stores without caches also keep uncommitted records in memory; above this size, tasks commit early."""


class CommitSchedule:
    """Determines when the next commit of each task is due.

    Args:
        interval_ms: Time between two commits of a task, ms (`commit.interval.ms`).
        cache_max_bytes: Tasks commit early when the stores of all tasks hold back more bytes than this
            (`statestore.cache.max.bytes`). With 0, stores have no caches, and the limit for early commits is the default.
    """

    def __init__(self, interval_ms: int, cache_max_bytes: int) -> None:
        self._interval_ms = interval_ms
        self._cache_max_bytes = cache_max_bytes or _UNCACHED_MAX_BYTES
        self._begun_at_ms: dict[TaskId, int] = {}

    def note(self, task_id: TaskId, now_ms: int) -> None:
        """Begin the interval of a task, when it begins to commit, or to process."""
        self._begun_at_ms[task_id] = now_ms

    def forget(self, task_id: TaskId) -> None:
        """Forget a task that no longer runs."""
        del self._begun_at_ms[task_id]

    def due(self, running: Collection[OwnedTask], resting: Collection[OwnedTask], now_ms: int) -> list[OwnedTask]:
        """Return the tasks that begin to commit now; of those that are due only a part, since the next turn follows.

        Tasks with nothing to commit do not count towards that part: they delay nothing, and their intervals begin again.

        Args:
            running: All tasks.
            resting: Those whose commit is not under way.
            now_ms: The present time, ms.
        """
        if sum(owned.task.held_back_bytes() for owned in running) > self._cache_max_bytes:
            return list(resting)
        latest = now_ms - self._interval_ms
        late = [owned for owned in resting if self._begun_at_ms[owned.id] <= latest]
        busy = sorted((self._begun_at_ms[owned.id], owned.id) for owned in late if owned.task.needs_commit)
        chosen = {task_id for _, task_id in busy[: -(-len(running) // _PARTS)]}
        chosen |= {owned.id for owned in late if not owned.task.needs_commit}
        return [owned for owned in resting if owned.id in chosen or owned.task.commit_requested]
