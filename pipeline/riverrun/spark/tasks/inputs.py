"""Records of a slice for a task: external inputs in log order, repartition topics with merged writers. Imports no pyspark."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Self

from riverrun.hosting.garbage_collection import uncollected
from riverrun.kafka.ranges import read_fields
from riverrun.spark.tasks.spilling import WriterMerge

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import OffsetRange, RawFields, TaskId, TopicPartition
    from riverrun.runtime.task import Task


class Inputs:
    """Reads a slice's records for a task with little memory; a context that closes its files and connections.

    External inputs are read while they are processed. Each has a client of its own, which fetches ahead. Repartition topics
    are read before, because their writers have to be merged.

    Args:
        connected: The application that the task belongs to.
        ranges: The ranges to read.
        repartitions: Full names of the application's repartition topics.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        ranges: Mapping[TopicPartition, OffsetRange],
        repartitions: frozenset[str],
    ) -> None:
        self.read = 0
        """Number of records of external topics that have been handed out."""
        self.handed = 0
        """Number of all records that have been handed out."""
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
        """Let a task process all its inputs; `read` counts the records of external topics.

        Args:
            task: The task.
            handed_over: Records of repartition topics that are not in Kafka (a dry run's), with their writers. They follow
                the records in Kafka.

        Raises:
            RangeError: If a range cannot be read completely.
            StateError: If records cannot be spilled.
            BrokerError: If the brokers do not answer.
        """
        asked = {tp: wanted for tp, wanted in self._ranges.items() if wanted.size}
        own = {tp: wanted for tp, wanted in asked.items() if tp.topic in self._repartitions}
        with uncollected():
            taken = {tp: task.taken(tp) for tp in own}
            for tp, records in read_fields(self._admin, own):
                self._writers.add(tp, records, taken=taken.pop(tp, 0))
            for tp, writer, records in handed_over:
                self._writers.add(tp, records, writer, may_be_packs=False)
        for tp, batches in self._writers.merged():
            task.add_batches(tp, self._counted(batches))
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
