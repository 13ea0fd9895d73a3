"""Event time follows the clock in tasks whose inputs are silent, so that their windows close (`window.idle.close.ms`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from riverrun.hosting.process import monotonic_ms

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

    def expect_ends(self) -> None:
        """Forget that inputs have been read to their ends, until they are again."""
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
        asked_ms: When brokers were asked whether it lasts, ms; None if no answer is awaited.
    """

    task: Followed
    since_ms: int
    stream_time: int
    steps: int = 0
    asked_ms: int | None = None


class SilentTasks:
    """Moves the event time of tasks on while no record comes, as much as time has passed since their last record.

    That happens once per `idle_ms` of silence, since each time is a commit. A task is silent only if it knows that it has read
    its inputs to their ends. What it knows may be old: brokers may have been away since, the worker paused, or its process
    asleep. So the ends must be reached once more, after the time has passed and before event time moves.

    Args:
        idle_ms: How long inputs must be silent, above 0.
        look_again: Has the inputs of a task read once more, so that their ends are reported again.
        now_ms: Returns the time, ms.
    """

    def __init__(
        self, idle_ms: int, look_again: Callable[[TaskId], None], now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self._idle_ms = idle_ms
        self._look_again = look_again
        self._now_ms = now_ms
        self._known: dict[TaskId, _Silence] = {}

    def follow(self, task_id: TaskId, task: Followed, processed: int) -> None:
        """Look at a task after it had time to process."""
        known, now_ms = self._known.get(task_id), self._now_ms()
        is_known = known is not None and known.task is task and (task.is_silent or known.asked_ms is not None)
        if processed or known is None or not is_known:
            self._known[task_id] = _Silence(task, now_ms, task.stream_time)
            return
        is_due = (now_ms - known.since_ms) // self._idle_ms > known.steps and known.stream_time >= 0
        if is_due and known.asked_ms is None:
            known.asked_ms = now_ms
            task.expect_ends()
            self._look_again(task_id)
        if known.asked_ms is not None and task.is_silent:
            passed_ms, known.asked_ms = known.asked_ms - known.since_ms, None
            known.steps = passed_ms // self._idle_ms
            task.follow_clock(known.stream_time + passed_ms)
