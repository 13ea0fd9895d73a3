"""Records of a slice for a task, its punctuations by the wall clock, and waits for absent brokers. Imports no pyspark."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Self, TypeVar

from riverrun.errors import BrokerError, StreamsError, UnknownOutcomeError, UnsupportedByHostError
from riverrun.hosting.process import uncollected
from riverrun.kafka.ranges import read_fields
from riverrun.spark.tasks.spilling import WriterMerge

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.records import OffsetRange, RawFields, TaskId, TopicPartition
    from riverrun.runtime.task import Task

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_SECONDS = 5.0
_RETRY_SECONDS = 0.5


def retry_until_available(step: Callable[[], T], admin: Admin, timeout_ms: int) -> T:
    """Repeat a step while brokers are away, for `timeout_ms` after the first failure (`task.timeout.ms`).

    The step must be safe to repeat after any outcome.
    """
    # The step's clients wait for seconds only, and Spark's four attempts would be over within two minutes.
    deadline = None
    while True:
        try:
            return step()
        except (BrokerError, UnknownOutcomeError) as error:
            deadline = deadline or time.monotonic() + timeout_ms / 1000
            if not _may_pass(error) or not _come_back(admin, deadline, error.message):
                raise


def _may_pass(error: StreamsError) -> bool:
    return isinstance(error, UnknownOutcomeError) or bool(getattr(error, "retriable", False))


def _come_back(admin: Admin, deadline: float, missed: str) -> bool:
    """Wait until a broker answers; return False if none answers before the deadline."""
    while time.monotonic() < deadline:
        log.warning("waiting for brokers: %s", missed)
        time.sleep(_RETRY_SECONDS)
        if admin.is_answered(_LOOK_SECONDS):
            return True
    return False


def check_wall_clock(application: Application, task: Task) -> None:
    """Refuse processors that schedule by the wall clock, unless a setting says how to treat them."""
    if task.schedules_wall_clock and application.config.streams.bounded_wall_clock_punctuation == "refuse":
        message = f"{application.id} schedules punctuations by the wall clock, which has no meaning in a bounded run"
        hint = (
            "Use PunctuationType.STREAM_TIME; or pass --wall-clock-punctuation=once (each is called at the end of a slice) or "
            "never (bounded.wall.clock.punctuation in streams.toml)."
        )
        raise UnsupportedByHostError(message, hint=hint)


def punctuate_wall_clock(application: Application, task: Task) -> None:
    """Call wall-clock punctuations at the end of a slice, if the setting says so."""
    check_wall_clock(application, task)
    if application.config.streams.bounded_wall_clock_punctuation == "once":
        task.punctuate_wall_clock_once()


class Inputs:
    """Reads a slice's records for a task with little memory; a context that closes its files and connections.

    Args:
        repartitions: Full names of the application's repartition topics.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        ranges: Mapping[TopicPartition, OffsetRange],
        repartitions: frozenset[str],
    ) -> None:
        self.read = 0
        """Number of records of external topics handed out."""
        self.handed = 0
        """Number of all records handed out."""
        self._admin = connected.admin
        self._ranges = ranges
        self._repartitions = repartitions
        application = connected.application
        limit_bytes = application.config.streams.bounded_buffer_max_bytes
        self._writers = WriterMerge(application.state_directory, limit_bytes)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Return the inputs; nothing is read yet."""
        self._open.enter_context(self._writers)
        return self

    def __exit__(self, *_: object) -> None:
        """Release files and connections."""
        self._open.close()

    def feed(self, task: Task, handed_over: Iterable[tuple[TopicPartition, TaskId, list[RawFields]]] = ()) -> None:
        """Add all inputs to a task.

        `handed_over` has a dry run's records of repartition topics, which are not in Kafka, with their writers. They follow
        the records in Kafka.
        """
        asked = {tp: wanted for tp, wanted in self._ranges.items() if wanted.size}
        own = {tp: wanted for tp, wanted in asked.items() if tp.topic in self._repartitions}
        # Repartition topics are read in full first, because their writers have to be merged. Searching for garbage cycles among
        # the waiting records would take a third of the time.
        with uncollected():
            # A worker may have committed within a pack: that many of its records are done.
            taken = {tp: task.taken(tp) for tp in own}
            for tp, records in read_fields(self._admin, own):
                self._writers.add(tp, records, taken=taken.pop(tp, 0))
            for tp, writer, records in handed_over:
                self._writers.add(tp, records, writer, may_be_packs=False)
        for tp, batches in self._writers.merged():
            task.add_batches(tp, self._counted(batches))
        # External inputs are read while they are processed, each with a separate client, which fetches ahead.
        for tp in asked.keys() - own.keys():
            task.add_batches(tp, self._open.enter_context(closing(self._batches(tp))))

    def _batches(self, tp: TopicPartition) -> Generator[list[RawFields], None, None]:
        for _, records in read_fields(self._admin, {tp: self._ranges[tp]}):
            self.read += len(records)
            self.handed += len(records)
            yield records

    def _counted(self, batches: Iterable[list[RawFields]]) -> Iterator[list[RawFields]]:
        for batch in batches:
            self.handed += len(batch)
            yield batch
