"""How long a task processes before others have their turn, and how often questions are answered meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.runtime.task import Task
    from pipeline.worker.stream_thread.interruptions import Interruptions

_STRETCH_SECONDS = 0.0004
"""So long does a task process without anybody being answered; the number of records is found out."""
_RECORDS_PER_TURN = 1_000
"""How many records a task processes before the next one has its turn."""
_TURN_SECONDS = 0.2
"""So long does a turn last if records are slow: transactions must be committed, and supervisors answered, in time."""


class Turns:
    """Lets tasks process, one after the other.

    Args:
        interruptions: What may happen between two records.
    """

    def __init__(self, interruptions: Interruptions) -> None:
        """Begins with short stretches."""
        self._interruptions = interruptions
        self._stretch = 16

    def take(self, task: Task) -> int:
        """Let a task process, in stretches between which questions are answered; gives how many records it were."""
        done, ends = 0, time.perf_counter() + _TURN_SECONDS
        while done < _RECORDS_PER_TURN and (began := time.perf_counter()) < ends:
            asked = self._stretch
            part = task.process(asked)
            done += part
            self._interruptions.attend()
            if part < asked:
                break
            took_s = time.perf_counter() - began
            self._stretch = min(
                max(int(asked * _STRETCH_SECONDS / took_s), asked // 2, 1), 2 * asked, _RECORDS_PER_TURN
            )
        return done
