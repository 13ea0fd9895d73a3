"""Tracks for which mark an instance holds, and for how long it has not published."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.hosting.control.publication import LiveVersion


class Holds:
    """Follows the records of an application.

    Args:
        version: The version that runs.
        clock: Monotonic seconds.
    """

    def __init__(self, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without a hold."""
        self._version = version
        self._clock = clock
        self._since = 0.0
        self.mark: str | None = None
        """Id of the mark for which it holds; None without a hold."""
        self.last_s: float | None = None
        """How long the last hold was, s; None before its end."""

    def note(self, record: LiveVersion) -> None:
        """Take note of a record of the control topic."""
        mark = record.mark
        wanted = mark.id if mark is not None and self._version in mark.limits else None
        if wanted == self.mark:
            return
        now = self._clock()
        if self.mark is not None:
            self.last_s = now - self._since
        self.mark, self._since = wanted, now
