"""The wall clock of hosts that run in real time."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return the present time, in ms since the epoch."""
        return time.time_ns() // 1_000_000
