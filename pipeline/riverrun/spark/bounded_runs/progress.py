"""The progress of a bounded run in records: of tasks that are done, and of running tasks as they report it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.spark.tasks.reporting import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from riverrun.records import TopicPartition
    from riverrun.spark.tasks.reporting import Counts
    from riverrun.spark.tasks.work import TaskResult, TaskWork


class RunProgress:
    """Counts the records of a run. Safe to call from several threads.

    Records of repartition topics are counted once they have been written, so the total grows then.

    Args:
        counts: The counts that tasks report.
        everything: Offsets of the inputs, an upper bound of their records.
        done: Number of offsets that were processed before.
    """

    def __init__(self, counts: Counts, everything: int, done: int = 0) -> None:
        self._counts = counts
        self._everything = everything
        self._done = done
        self._turn = 0
        self._at_work: frozenset[TopicPartition] = frozenset()
        self._lock = threading.Lock()

    def begin(self, works: Iterable[TaskWork]) -> list[TaskWork]:
        """Note which tasks begin, and return their work with the number of this turn."""
        with self._lock:
            self._turn += 1
            numbered = [replace(work, turn=self._turn) for work in works]
            self._at_work = frozenset(place_of(work.ranges) for work in numbered if work.ranges)
            return numbered

    def end(self, works: Sequence[TaskWork], results: Iterable[TaskResult], sources: frozenset[str]) -> None:
        """Note the results of tasks.

        Args:
            works: The work of the tasks.
            results: Their results.
            sources: Topics counted by offsets; their total was known from the start.
        """
        found = list(results)
        offsets = sum(each.size for work in works for tp, each in work.ranges.items() if tp.topic in sources)
        with self._lock:
            self._at_work = frozenset()
            self._everything += sum(max(0, each.written - each.published) for each in found)
            self._done += offsets + sum(each.processed - each.read for each in found)

    def look(self) -> tuple[int, int]:
        """Return the number of processed records, and the total known so far.

        Raises:
            BrokerError: If brokers do not answer.
        """
        with self._lock:
            done, everything, turn, places = self._done, self._everything, self._turn, self._at_work
        return min(done + self._counts.of(places, turn), everything), everything
