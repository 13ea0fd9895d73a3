"""Event time follows the clock in tasks whose inputs are silent, so that their windows close (`window.idle.close.ms`)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.records import TaskId


class Followed(Protocol):
    """The part of a task that this module needs."""

    @property
    def is_silent(self) -> bool:
        """Return whether all its inputs have been read to their ends, and no record is at hand."""
        ...

    @property
    def stream_time(self) -> int:
        """The highest event time so far, ms; -1 before the first record."""
        ...

    def follow_clock(self, time_ms: int) -> None:
        """Advance event time without a record."""
        ...


@dataclass(slots=True)
class _Silence:
    """The silence of a task.

    Args:
        task: The task; one that is taken over again is another one.
        since_ms: When it began, by a clock that nobody sets, ms.
        stream_time: The event time at which it began, ms.
        steps: How many whole times `idle_ms` its event time has followed.
    """

    task: Followed
    since_ms: int
    stream_time: int
    steps: int = 0


def _monotonic_ms() -> int:
    """Return the time of a clock that nobody sets: windows must not close because the wall clock is corrected."""
    return time.monotonic_ns() // 1_000_000


class SilentTasks:
    """Moves the event time of tasks on while no record comes, as much as time has passed since their last record.

    That happens once per `idle_ms` of silence, since each time is a commit. A task is silent only if it knows that it has read
    its inputs to their ends: a backlog, or a slow broker, is no silence.

    Args:
        idle_ms: How long inputs must be silent, above 0.
        now_ms: Returns the time, ms.
    """

    def __init__(self, idle_ms: int, now_ms: Callable[[], int] = _monotonic_ms) -> None:
        self._idle_ms = idle_ms
        self._now_ms = now_ms
        self._known: dict[TaskId, _Silence] = {}

    def follow(self, task_id: TaskId, task: Followed, processed: int) -> None:
        """Look at a task after it had time to process.

        Args:
            task_id: Its id.
            task: The task.
            processed: How many records it has processed now.
        """
        known, now_ms = self._known.get(task_id), self._now_ms()
        if processed or known is None or known.task is not task or not task.is_silent:
            self._known[task_id] = _Silence(task, now_ms, task.stream_time)
            return
        steps = (now_ms - known.since_ms) // self._idle_ms
        if steps > known.steps and known.stream_time >= 0:
            known.steps = steps
            task.follow_clock(known.stream_time + now_ms - known.since_ms)
