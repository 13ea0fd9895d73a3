"""Ends a function that does not return, once its record has been tried often enough.

A function of the topology that never returns holds up all tasks of its stream thread. The instance replaces the thread, so the
record is tried again: what the function waits for may have come back. Where no attempt returns, the function is made to fail
like any other, so that the handler decides. The instance ends if even that is impossible.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.generated import owner_of
from riverrun.runtime.stuck_records import NAMED_SECONDS, stuck_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from riverrun.runtime.stuck_records import StuckRecord

# Not the signal of samples, whose system calls are restarted: it would not wake a thread that waits for a lock.
LOOK = signal.SIGWINCH
TRIES = 3
"""How often a record is tried whose function does not return: what it waits for may come back."""
_AGAIN_SECONDS = 0.1
# In multiples of `max.poll.interval.ms`: each try takes that long.
_REMEMBERED = 10
# Just before the process would be replaced, so that the function fails instead.
_EARLY = 0.9
_OWN = str(Path(__file__).parents[1])


def named_after_s(limit_s: float) -> float:
    """Return the time in one record after which it is named, s."""
    return min(NAMED_SECONDS, limit_s / 2)


class RecordWatch:
    """Looks from the handler of a signal at what the main thread of a process does.

    Args:
        silent_s: Returns for how long the process has not come to the end of a record, s.
    """

    def __init__(
        self,
        node_of: Callable[[object], str],
        silent_s: Callable[[], float],
        tell: Callable[[StuckRecord], None],
        limit_s: float,
    ) -> None:
        self.tried: Collection[StuckRecord] = ()
        """Records whose function is made to fail at the next try."""
        self._node_of = node_of
        self._silent_s = silent_s
        self._tell = tell
        self._limit_s = limit_s
        self._named_after_s = named_after_s(limit_s)
        self._next_at = 0.0

    def look(self, frame: FrameType | None) -> None:
        """Report the record if the thread has been in it for long, and end its function if it was tried often enough."""
        silent_s, now = self._silent_s(), time.monotonic()
        if silent_s < self._named_after_s or now < self._next_at:
            return
        self._next_at = now + _AGAIN_SECONDS
        found = stuck_at(frame, self._node_of)
        if found is None:
            return
        self._tell(replace(found, seconds=silent_s))
        if silent_s > _EARLY * self._limit_s and _is_the_users(frame) and any(map(found.is_at, self.tried)):
            # Raised from the signal handler, so within the user's frame: the function fails like any other.
            raise TimeoutError(f"the function has not returned within {silent_s:.0f} s, for the {TRIES}rd time")


class Tries:
    """Counts how often stream threads of an instance have been stuck in the same record."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._stuck: list[tuple[float, StuckRecord | None]] = []

    def note(self, record: StuckRecord | None) -> None:
        """Note that a thread has ended that was stuck in a record; None if it is not known in which."""
        now = time.monotonic()
        recent = [(at, each) for at, each in self._stuck if now - at < _REMEMBERED * self.limit_s]
        self._stuck = [*recent, (now, record)]

    def enough(self) -> tuple[StuckRecord, ...]:
        """Return the records whose next try is the last."""
        return tuple(each for _, each in self._stuck if each is not None and self._count(each) >= TRIES - 1)

    def is_over(self, record: StuckRecord | None) -> bool:
        """Return whether a record has been tried often enough; for None, whether threads were silent that often."""
        return self._count(record) >= TRIES

    def _count(self, record: StuckRecord | None) -> int:
        known = [each for _, each in self._stuck]
        if record is None:
            return known.count(None)
        return sum(each is not None and each.is_at(record) for each in known)


def _is_the_users(frame: FrameType | None) -> bool:
    # Nothing is raised in code of this package, which would leave something half-done.
    if frame is None:
        return False
    code = frame.f_code
    return bool(owner_of(code.co_filename, frame.f_lineno)) or not code.co_filename.startswith(_OWN)
