"""Warns if a large share of the records that tasks read is too late for their windows."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from riverrun.processor.drops import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.records import TaskId

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
"""How often to check tasks."""
_QUIET_SECONDS = 600.0
"""Minimum time between two warnings about one task."""
_MANY = 100
_SHARE = 0.05
"""A warning requires at least this number of late records, and this share of all records."""
_ADVICE = (
    "Raise the grace period of its windows, set task.alignment.max.drift.ms no higher than that, or process a backlog with"
    " riverrun run, which orders it by event time"
)


class Counting(Protocol):
    """A task that counts dropped records (`OwnedTask`)."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """Return the number of records that were not processed, by reason."""
        ...


class LateRecords:
    """Compares the number of late records with the number of processed ones, interval by interval.

    Args:
        tasks: The tasks that run here; looked up each time.
        processed: How many records each task has processed.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        tasks: Mapping[TaskId, Counting],
        processed: Mapping[TaskId, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = tasks
        self._processed = processed
        self._clock = clock
        self._look_at = clock() + _LOOK_SECONDS
        self._before: dict[TaskId, tuple[int, int]] = {}
        self._said_at: dict[TaskId, float] = {}

    def warn_if_due(self) -> None:
        """Check the tasks if it is time."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        for task_id, owned in self._tasks.items():
            late = owned.dropped.get(DropReason.LATE, 0) + owned.dropped.get(DropReason.EXPIRED_WINDOW, 0)
            self._look(task_id, late, self._processed.get(task_id, 0), now)

    def _look(self, task_id: TaskId, late: int, processed: int, now: float) -> None:
        late_before, processed_before = self._before.get(task_id, (0, 0))
        if late < late_before or processed < processed_before:  # the task has been taken over again
            late_before = processed_before = 0
        new_late, new = late - late_before, processed - processed_before
        self._before[task_id] = late, processed
        if new_late < _MANY or new_late < _SHARE * new or now < self._said_at.get(task_id, now):
            return
        self._said_at[task_id] = now + _QUIET_SECONDS
        message = "task %s drops %d records as late, having processed %d in the same time. %s"
        log.warning(message, task_id, new_late, new, _ADVICE, extra={"task": str(task_id)})
