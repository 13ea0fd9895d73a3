"""Finds the record that a thread is in, and names it in the log while the thread stays there for long."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_stack
from typing import TYPE_CHECKING

from riverrun.intervals import repeating
from riverrun.records import RAW_OFFSET, TopicPartition
from riverrun.runtime.inputs import RecordQueue
from riverrun.runtime.lookups import PendingLookups
from riverrun.runtime.node_frames import node_at
from riverrun.runtime.record_frames import held_back, place_of
from riverrun.runtime.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

log = logging.getLogger(__name__)

NAMED_SECONDS = 10.0
_LOOK_SECONDS = 2.0
_WAITS = PendingLookups.wait.__code__


@dataclass(frozen=True, slots=True)
class StuckRecord:
    """A record whose function does not return.

    Args:
        node: The node that the function belongs to; empty if it is not known.
        topic: Topic of the record; empty if there is none, as within a punctuation.
        partition: Its partition; -1 without a record.
        offset: Its offset; -1 without a record.
        seconds: How long a stream thread has been in it.
    """

    task: str
    node: str
    topic: str
    partition: int
    offset: int
    seconds: float

    @property
    def coordinates(self) -> Mapping[str, str | int]:
        place: dict[str, str | int] = {"task": self.task}
        if self.topic:
            place |= {"topic": self.topic, "partition": self.partition, "offset": self.offset}
        return place

    def is_at(self, other: StuckRecord) -> bool:
        """Return whether both are one record, whichever node has it; without a record, whether both have one node."""
        return self.coordinates == other.coordinates and (self.topic != "" or self.node == other.node)

    def __str__(self) -> str:
        """Return the task, and the record and the node if they are known."""
        record = f", record {self.topic}-{self.partition}@{self.offset}" if self.topic else ""
        return f"task {self.task}{record}{f', node {self.node}' if self.node else ''}"


def stuck_at(frame: FrameType | None, node_of: Callable[[object], str]) -> StuckRecord | None:
    """Return the task, the node and the record that a thread is at; None if it is at no node of a task."""
    node = node_at(frame, node_of)
    held = held_back(frame for frame, _line in walk_stack(frame)) if frame is not None else None
    place = None if held is None else held.place
    while frame is not None:
        if frame.f_globals.get("__name__") == "bdb":  # a person looks at the record in a debugger
            return None
        if frame.f_code is _WAITS and (awaited := frame.f_locals["self"].awaited) is not None:
            _rank, node, metadata = awaited
            place = place_of(metadata)
        place = place or _place_in(frame)
        task = frame.f_locals.get("self")
        if isinstance(task, Task):
            (topic, partition), offset = place or (TopicPartition("", -1), -1)
            return StuckRecord(str(task.spec.id), node, topic, partition, offset, 0.0)
        frame = frame.f_back
    return None


def _place_in(frame: FrameType) -> tuple[TopicPartition, int] | None:
    """Return the record that a frame reads or processes."""
    names = frame.f_locals
    this, queue = names.get("self"), names.get("queue")
    if isinstance(this, RecordQueue) and isinstance(names.get("raw"), tuple):
        return this.tp, names["raw"][RAW_OFFSET]
    if isinstance(queue, RecordQueue) and isinstance(names.get("offset"), int):
        return queue.tp, names["offset"]
    if isinstance(this, PendingLookups):
        return place_of(getattr(names.get("record"), "place", None))
    return None


@contextmanager
def named_if_stuck(node_of: Callable[[object], str]) -> Iterator[None]:
    """Warn of a record that the calling thread stays in within this context, for hosts that replace no silent thread.

    Args:
        node_of: Returns the node whose operator or queue an object is (`Task.node_of`).
    """
    thread = threading.get_ident()
    last: StuckRecord | None = None
    since, named_after_s = 0.0, NAMED_SECONDS

    def look() -> None:
        nonlocal last, since, named_after_s
        found, now = stuck_at(sys._current_frames().get(thread), node_of), time.monotonic()  # noqa: SLF001
        # Without a record, two looks may be at two calls of one punctuation.
        if found is None or not found.topic or last is None or not found.is_at(last):
            last, since, named_after_s = found, now, NAMED_SECONDS
        elif now - since >= named_after_s:
            log.warning("a function has not returned for %.0f s: %s", now - since, found)
            named_after_s *= 2

    with repeating(look, _LOOK_SECONDS, "stuck-records"):
        yield
