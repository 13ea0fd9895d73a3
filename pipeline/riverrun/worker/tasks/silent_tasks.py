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
        """Return whether all its inputs have been read to their ends, and no record is buffered."""

    @property
    def stream_time(self) -> int:
        """The highest event time so far, ms; -1 before the first record."""

    def expect_ends(self) -> None:
        """Forget that inputs have been read to their ends, until they are again."""

    def follow_clock(self, time_ms: int) -> None:
        """Advance event time without a record."""


@dataclass(slots=True)
class _Silence:
    """The silence of a task.

    Args:
        task: The task; one that is taken over again is another object.
        since_ms: When it began, ms (monotonic).
        steps: For how many multiples of `idle_ms` event time has followed.
        asked_ms: When brokers were asked whether it lasts, ms (monotonic); None if no answer is awaited.
    """

    task: Followed
    since_ms: int
    stream_time: int
    steps: int = 0
    asked_ms: int | None = None


class SilentTasks:
    """Advances the event time of tasks without records by the time that has passed since their last record.

    Args:
        idle_ms: How long inputs must be silent, above 0.
        look_again: Has the inputs of a task read once more, so that their ends are reported again.
        now_ms: Monotonic milliseconds.
    """

    def __init__(
        self, idle_ms: int, look_again: Callable[[TaskId], None], now_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self._idle_ms = idle_ms
        self._look_again = look_again
        self._now_ms = now_ms
        self._known: dict[TaskId, _Silence] = {}

    def follow(self, task_id: TaskId, task: Followed, processed: int) -> None:
        """Check a task after it had time to process, with the number of records it has just processed."""
        known, now_ms = self._known.get(task_id), self._now_ms()
        is_known = known is not None and known.task is task and (task.is_silent or known.asked_ms is not None)
        if processed or known is None or not is_known:
            self._known[task_id] = _Silence(task, now_ms, task.stream_time)
            return
        # Once per `idle_ms`, as each step is a commit.
        is_due = (now_ms - known.since_ms) // self._idle_ms > known.steps and known.stream_time >= 0
        if is_due and known.asked_ms is None:
            # That all inputs were read to their ends may be old knowledge: brokers may have been away since, the
            # worker paused, or its process asleep. So the ends must be reached once more before event time moves.
            known.asked_ms = now_ms
            task.expect_ends()
            self._look_again(task_id)
        if known.asked_ms is not None and task.is_silent:
            # Silence is proven up to the question only.
            passed_ms, known.asked_ms = known.asked_ms - known.since_ms, None
            known.steps = passed_ms // self._idle_ms
            task.follow_clock(known.stream_time + passed_ms)
