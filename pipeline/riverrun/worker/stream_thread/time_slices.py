"""Shares time between tasks, and with queries that are answered between records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverrun.runtime.task import Task
    from riverrun.worker.inputs.interruptions import Interruptions

_STRETCH_SECONDS = 0.0004
"""Time for which a task processes before queries are answered; the number of records adapts to it."""
_RECORDS_PER_SLICE = 1_000
"""How many records a task processes before the next task does."""
_SLICE_SECONDS = 0.2
"""Maximum duration of a slice if records are slow: transactions must be committed, and supervisors answered, in time."""


class TimeSlices:
    """Lets tasks process, one after another.

    Args:
        interruptions: Called between two records.
    """

    def __init__(self, interruptions: Interruptions) -> None:
        self._interruptions = interruptions
        self._stretch = 16

    def process(self, task: Task) -> int:
        """Let a task process in short intervals, between which queries are answered. Returns the number of records."""
        done, ends = 0, time.perf_counter() + _SLICE_SECONDS
        while done < _RECORDS_PER_SLICE and (began := time.perf_counter()) < ends:
            asked = self._stretch
            part = task.process(asked)
            done += part
            self._interruptions.attend()
            if part < asked:
                break
            took_s = time.perf_counter() - began
            self._stretch = min(
                max(int(asked * _STRETCH_SECONDS / took_s), asked // 2, 1), 2 * asked, _RECORDS_PER_SLICE
            )
        return done
