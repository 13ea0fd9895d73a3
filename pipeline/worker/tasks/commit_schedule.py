"""Decides which tasks are to commit now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from pipeline.hosting.tasks.owned_task import OwnedTask
    from pipeline.records import TaskId

_PARTS = 4
"""The commits that are due begin in so many turns, so that not all tasks wait for brokers at the same time."""
_UNCACHED_MAX_BYTES = 10 * 1024 * 1024
"""Stores without caches, too, hold what is not committed in memory: a commit comes early when it is larger."""


class CommitSchedule:
    """When each task has begun its last commit, and when the next one is due.

    Args:
        interval_ms: Time between two commits of a task (`commit.interval.ms`).
        cache_max_bytes: With more than so much held back by the stores of all tasks, they commit early
            (`statestore.cache.max.bytes`). With 0 stores have no caches, and commit early as by default.
    """

    def __init__(self, interval_ms: int, cache_max_bytes: int) -> None:
        self._interval_ms = interval_ms
        self._cache_max_bytes = cache_max_bytes or _UNCACHED_MAX_BYTES
        self._begun_at_ms: dict[TaskId, int] = {}

    def note(self, task_id: TaskId, now_ms: int) -> None:
        """Begin the interval of a task, which begins to commit, or to process."""
        self._begun_at_ms[task_id] = now_ms

    def forget(self, task_id: TaskId) -> None:
        """Forget a task, which does not run any more."""
        del self._begun_at_ms[task_id]

    def due(self, running: Collection[OwnedTask], resting: Collection[OwnedTask], now_ms: int) -> list[OwnedTask]:
        """The tasks whose commit is to begin: of those for which it is time only a part, since there is a next turn.

        Tasks with nothing to commit do not count as a part: they make nothing wait, and their intervals begin again.

        Args:
            running: All tasks.
            resting: Those whose commit is not under way.
            now_ms: The time.
        """
        if sum(owned.task.held_back_bytes() for owned in running) > self._cache_max_bytes:
            return list(resting)
        latest = now_ms - self._interval_ms
        late = [owned for owned in resting if self._begun_at_ms[owned.id] <= latest]
        busy = sorted((self._begun_at_ms[owned.id], owned.id) for owned in late if owned.task.needs_commit)
        chosen = {task_id for _, task_id in busy[: -(-len(running) // _PARTS)]}
        chosen |= {owned.id for owned in late if not owned.task.needs_commit}
        return [owned for owned in resting if owned.id in chosen or owned.task.commit_requested]
