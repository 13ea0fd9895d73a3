"""Schedules punctuations (`PunctuationQueue`, `PunctuationSchedule`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.errors import TopologyError
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

NEVER = 2**63 - 1


@dataclass(slots=True)
class Schedule:
    """One punctuation: its next due time and the function it calls."""

    due_ms: int
    interval_ms: int
    punctuate: Callable[[int], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Cancel the punctuation, also from within the punctuator."""
        self.is_cancelled = True

    def advance(self, now_ms: int) -> None:
        """Set the next due time on the grid of the first one; missed intervals are skipped."""
        missed = max(0, now_ms - self.due_ms) // self.interval_ms
        self.due_ms += (missed + 1) * self.interval_ms


@dataclass(slots=True)
class KeptSchedules:
    """Schedules made in a processor's `init`. Its successor makes them again and continues from their times."""

    _schedules: list[Schedule] = field(default_factory=list)
    _dues_ms: Sequence[int] = ()

    def add(self, schedule: Schedule) -> None:
        """Let a schedule continue, if the times of its predecessor are known."""
        number = len(self._schedules)
        self._schedules.append(schedule)
        if number < len(self._dues_ms):
            schedule.due_ms = self._dues_ms[number]

    def times(self) -> tuple[int, ...]:
        """Return when each schedule is due next, ms."""
        return tuple(schedule.due_ms for schedule in self._schedules)

    def resume(self, times: Sequence[int]) -> None:
        """Take over the due times."""
        self._dues_ms = times


@dataclass(slots=True)
class Punctuations:
    """The punctuations of a task by one clock."""

    next_due_ms: int = NEVER
    _schedules: list[Schedule] = field(default_factory=list)

    def schedule(self, first_ms: int, interval: timedelta, punctuate: Callable[[int], None]) -> Schedule:
        """Call `punctuate(time_ms)` first when the clock reaches `first_ms`, then at every interval.

        Raises:
            TopologyError: If the interval is below 1 ms.
        """
        interval_ms = millis(interval, "punctuation interval")
        if interval_ms < 1:
            message = f"The minimum supported scheduling interval is 1 ms, not {interval!r}"
            raise TopologyError(message)
        schedule = Schedule(first_ms, interval_ms, punctuate)
        self._schedules.append(schedule)
        self.next_due_ms = min(self.next_due_ms, first_ms)
        return schedule

    def schedule_from(
        self, start_ms: int, now_ms: int, interval: timedelta, punctuate: Callable[[int], None]
    ) -> Schedule:
        """Call `punctuate` first at `start_ms`, or at the next interval since then if that has passed (KIP-1146).

        Raises:
            TopologyError: If the interval is below 1 ms, or the start before the epoch.
        """
        if start_ms < 0:
            message = f"The minimum supported start time is the epoch, not {start_ms} ms"
            raise TopologyError(message)
        schedule = self.schedule(start_ms, interval, punctuate)
        if start_ms < now_ms:
            schedule.advance(now_ms)
        return schedule

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is scheduled."""
        return all(schedule.is_cancelled for schedule in self._schedules)

    def fire_all(self, now_ms: int) -> int:
        """Call every punctuator once, due or not; return the number of calls."""
        for schedule in self._schedules:
            schedule.due_ms = min(schedule.due_ms, now_ms)
        return self.fire(now_ms)

    def fire(self, now_ms: int) -> int:
        """Call due punctuators, in order of due times (`PunctuationQueue.maybePunctuate`); return the number of calls.

        Each is called at most once; so are those that a punctuator schedules meanwhile, if they are due already.
        """
        fired = 0
        while (schedule := self._first_due(now_ms)) is not None:
            schedule.advance(now_ms)  # before the call: even if it fails, it is not called for this time again
            schedule.punctuate(now_ms)
            fired += 1
        self._schedules = [s for s in self._schedules if not s.is_cancelled]
        self.next_due_ms = min((s.due_ms for s in self._schedules), default=NEVER)
        return fired

    def _first_due(self, now_ms: int) -> Schedule | None:
        due = (s for s in self._schedules if s.due_ms <= now_ms and not s.is_cancelled)
        return min(due, key=lambda schedule: schedule.due_ms, default=None)
