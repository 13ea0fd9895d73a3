"""Reports of the number of records that running tasks have processed. Imports no pyspark.

A task commits its count as an offset of its first input, in a group without members that belongs to the run. Executors and
the driver both reach the brokers, also with Spark Connect. The task's transaction stays open for minutes, and shows no
progress.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from riverrun.errors import StreamsError
from riverrun.hosting.progress import is_followed
from riverrun.intervals import repeating

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from riverrun.kafka.admin import Admin
    from riverrun.kafka.groups import GroupProgress
    from riverrun.records import TopicPartition

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
# Time to wait for a report that is being sent when the task ends.
_LAST_SECONDS = 1.0
# A report is `turn * _COUNTS + count`, so that one of an earlier turn does not count in the next one.
_COUNTS = 1 << 40


def place_of(inputs: Iterable[TopicPartition]) -> TopicPartition:
    """Return the input for which a task commits its count; no other task reads it."""
    return min(inputs)


def new_group(application_id: str) -> str:
    """Return the name of a group for the counts of a run; empty if nothing follows the progress."""
    return f"{application_id}:progress-{uuid.uuid4().hex[:8]}" if is_followed() else ""


def count_in(offset: int, turn: int) -> int:
    """Return the count that a report holds for a turn.

    >>> count_in(3 * _COUNTS + 700, turn=3), count_in(2 * _COUNTS + 700, turn=3)
    (700, 0)
    """
    return offset % _COUNTS if offset // _COUNTS == turn else 0


class Counts:
    """Reads the counts that tasks report in a group; its name is empty if they do not report."""

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin = admin
        self._group = group
        self._reader: GroupProgress | None = None

    def of(self, places: Collection[TopicPartition], turn: int) -> int:
        """Return the number of records that the tasks with these places have processed in a turn."""
        if not (self._group and places):
            return 0
        self._reader = self._reader or self._admin.progress_of(self._group)
        return sum(count_in(offset, turn) for offset, _ in self._reader.committed(places).values())

    def close(self) -> None:
        """Delete the reports, if brokers agree."""
        if self._reader is not None:
            self._reader.close()
            with suppress(StreamsError):
                self._admin.delete_group(self._group)


@contextmanager
def reporting(
    admin: Admin, group: str, inputs: Collection[TopicPartition], turn: int, count: Callable[[], int]
) -> Iterator[None]:
    """Report a count every second, from another thread, while the body runs."""
    if not (group and inputs):
        yield
        return
    place, said = place_of(inputs), 0

    def report() -> None:
        nonlocal said
        counted = count()
        if counted == said:
            return
        try:
            admin.alter_offsets(group, {place: turn * _COUNTS + counted})
            said = counted
        except StreamsError as error:
            # Dropped: the next report has a higher count, and progress must not end a task.
            log.debug("progress cannot be reported: %s", error)

    with repeating(report, _EVERY_SECONDS, "reporting", last_s=_LAST_SECONDS):
        yield
