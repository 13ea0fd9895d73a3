"""Measures how far a candidate that follows the tail is from the ends of its inputs, and when it will reach them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.errors import NotReadyError
from riverrun.hosting.inputs.lags import input_lags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.inputs.lags import InputLag


@dataclass(frozen=True, slots=True)
class Readiness:
    """The position of a candidate at one look.

    Args:
        lag: Offsets left to process, of all inputs together.
        largest: Offsets left in the input that is furthest behind.
        processed_per_s: Offsets processed per second since the look before; 0 at the first.
        arriving_per_s: New offsets per second.
        is_ready: Whether it has been close to all ends at the last looks.
    """

    lag: int
    largest: int
    processed_per_s: float
    arriving_per_s: float
    is_ready: bool

    @property
    def left_s(self) -> float | None:
        """Seconds until nothing is left at these rates; None if that is never."""
        gained = self.processed_per_s - self.arriving_per_s
        if not self.lag:
            return 0.0
        return self.lag / gained if gained > 0 else None

    def __str__(self) -> str:
        """Describe it in words."""
        if self.is_ready:
            return f"ready: {self.lag} offsets behind"
        left = self.left_s
        if not (self.processed_per_s or self.arriving_per_s):
            return f"{self.lag} offsets behind: nothing has been processed since the last look"
        when = "never at this rate" if left is None else f"about {left:.0f} s"
        rates = f"{self.processed_per_s:.0f}/s processed, {self.arriving_per_s:.0f}/s arriving"
        return f"{self.lag} offsets behind ({rates}): {when}"


def readiness(
    look: Callable[[], tuple[float, list[InputLag]]], *, max_lag: int, looks: int, timeout_s: float | None = None
) -> Iterator[Readiness]:
    """Yield the candidate's distance at each look, until it is ready.

    Args:
        look: Waits, then returns the time (seconds) and the lags of all inputs.
        max_lag: Offsets that an input may be behind.
        looks: Number of consecutive looks at which no input may be further behind.
        timeout_s: Seconds after which to give up; never by default.

    Raises:
        NotReadyError: If it is not ready by then.
    """
    began: float | None = None
    close, before = 0, None
    while close < looks:
        at, lags = look()
        began = at if began is None else began
        done, ends = sum(_position(each) for each in lags), sum(each.end for each in lags)
        largest = max((each.lag for each in lags), default=0)
        close = close + 1 if largest <= max_lag else 0
        then, done_then, ends_then = before or (at, done, ends)
        passed_s = at - then
        rates = ((done - done_then) / passed_s, (ends - ends_then) / passed_s) if passed_s > 0 else (0.0, 0.0)
        found = Readiness(sum(each.lag for each in lags), largest, *rates, is_ready=close >= looks)
        yield found
        if timeout_s is not None and at - began >= timeout_s and not found.is_ready:
            message = f"The candidate has not caught up within {timeout_s:g} s: {found}"
            raise NotReadyError(message, hint="Wait longer, or give it more workers.")
        before = at, done, ends


def looking(connected: ConnectedApplication, every_s: float) -> Callable[[], tuple[float, list[InputLag]]]:
    """Return a function that waits, then returns the time and an application's lags."""
    seen = False

    def look() -> tuple[float, list[InputLag]]:
        nonlocal seen
        if seen:
            time.sleep(every_s)
        seen = True
        return time.monotonic(), input_lags(connected)

    return look


def _position(each: InputLag) -> int:
    return each.start if each.committed is None else each.committed
