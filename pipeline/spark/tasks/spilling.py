"""Records of repartition topics in an order that does not depend on their writers' speeds, with little of them in memory.

The runs of several writers lie mixed in a partition. They are taken apart while the partition is read, once, and merged by
event time, as if each were a partition of its own. Within a run the order of the log stays: a record comes where the latest
one before it of its writer does. What does not fit into memory waits in a file.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import IO, TYPE_CHECKING, Final, Self, TypeAlias

import msgspec

from pipeline.errors import StateError
from pipeline.records import Headers, TaskId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pipeline.records import RawFields, TopicPartition

WRITER_HEADER = "__millrace.writer"
"""On records of repartition topics: which task wrote them. Stripped on reading."""
_WRITER = Struct(">ii")

RECORD_OVERHEAD_BYTES = 350
"""What Python's objects of a record and its place take besides its bytes, roughly."""
_BLOCK_BYTES = 16 * 1024, 4 * 1024 * 1024
"""Smallest and largest parts of a run that are read back at once, as Python's objects; in the file they take less."""

Placed: TypeAlias = "tuple[int, int, int, RawFields]"
"""A record behind its place: the latest event time (ms) of its writer so far, its writer, and its number in the partition."""
_RECORD: Final = 3
_HEADERS = itemgetter(4)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    list[tuple[int, int, int, tuple[bytes | None, bytes | None, int, int, Headers]]]
).decode


def writer_tag(writer: TaskId) -> Headers:
    """The header that names a writer."""
    return ((WRITER_HEADER, _WRITER.pack(*writer)),)


@dataclass(slots=True)
class _Writer:
    """What has been added of a writer, in order: blocks in the file, and then the records in memory.

    Args:
        number: Its place among the writers, the same in every run.
        latest_ms: The latest event time (ms) of its records so far.
        blocks: Where they are in the file, and their sizes.
        kept: The records in memory.
    """

    number: int
    latest_ms: int = -1
    blocks: list[tuple[int, int]] = field(default_factory=list)
    kept: list[Placed] = field(default_factory=list)


@dataclass(slots=True)
class _Partition:
    """The writers of a partition by their tags, the number of their records, and the bytes of those in memory."""

    writers: dict[bytes | None, _Writer] = field(default_factory=dict)
    count: int = 0
    kept_bytes: int = 0

    def add(self, records: Iterable[RawFields]) -> None:
        """Append records, without the tag of their writer. A live worker's have none: they count as one writer's."""
        count, size = self.count, self.kept_bytes
        for headers, run in groupby(
            records, _HEADERS
        ):  # a writer's records come in batches, mostly with the same headers
            writer, own = self._taken_apart(headers)
            number, keep, latest_ms = writer.number, writer.kept.append, writer.latest_ms
            own_size = RECORD_OVERHEAD_BYTES + sum(RECORD_OVERHEAD_BYTES + len(data or b"") for _, data in own)
            for key, value, timestamp, offset, _ in run:
                if timestamp > latest_ms:
                    latest_ms = timestamp
                keep((latest_ms, number, count, (key, value, timestamp, offset, own)))
                count += 1
                size += own_size + len(key or b"") + len(value or b"")
            writer.latest_ms = latest_ms
        self.count, self.kept_bytes = count, size

    def _taken_apart(self, headers: Headers) -> tuple[_Writer, Headers]:
        """A record's writer, and its own headers."""
        tag, own = None, headers
        if headers and headers[-1][0] == WRITER_HEADER:
            tag, own = headers[-1][1], headers[:-1]
        writer = self.writers.get(tag)
        if writer is None:
            writer = self.writers[tag] = _Writer(_number(tag))
        return writer, own


class WriterMerge:
    """Merges the writers of all partitions of repartition topics that a task reads; a context that ends with its file.

    Args:
        directory: Where the file is made, if one is needed. It has no name: whatever kills the process, it is gone.
        limit_bytes: How much of the records may be in memory while they are added.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        """Nothing has been added."""
        self.spilled_bytes = 0
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._file: IO[bytes] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """The merge, still to be filled."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the file up."""
        self._open.close()

    def add(self, tp: TopicPartition, records: Iterable[RawFields]) -> None:
        """Append records of a partition, in order of offsets.

        Raises:
            StateError: If the file cannot be written.
        """
        self._partitions.setdefault(tp, _Partition()).add(records)
        if sum(partition.kept_bytes for partition in self._partitions.values()) > self._limit_bytes:
            try:
                self._spill()
            except OSError as error:
                message = f"Records cannot be spilled to {self._directory}: {error}"
                raise StateError(message, hint="Is the disk full, or the directory read-only?") from error

    def merged(self) -> Iterator[tuple[TopicPartition, Iterator[list[RawFields]]]]:
        """Each partition with its records, batch by batch; to be asked when all have been added."""
        for tp, partition in sorted(self._partitions.items()):
            yield tp, _merged([self._blocks(writer) for writer in partition.writers.values()])

    def _blocks(self, writer: _Writer) -> Iterator[list[Placed]]:
        for position, size in writer.blocks:
            yield _decode(os.pread(self._opened().fileno(), size, position))
        if writer.kept:
            kept, writer.kept = writer.kept, []
            yield kept

    def _spill(self) -> None:
        """Move everything to the file: of each writer some blocks, of a size that lets one of each be in memory."""
        smallest, largest = _BLOCK_BYTES
        writers = sum(len(partition.writers) for partition in self._partitions.values())
        block_bytes = min(max(self._limit_bytes // (2 * writers), smallest), largest)
        file = self._opened()
        for partition in self._partitions.values():
            kept = sum(len(writer.kept) for writer in partition.writers.values())
            count = max(1, kept * block_bytes // max(1, partition.kept_bytes))
            for writer in partition.writers.values():
                for start in range(0, len(writer.kept), count):
                    block = _encode(writer.kept[start : start + count])
                    writer.blocks.append((self.spilled_bytes, len(block)))
                    self.spilled_bytes += file.write(block)
                writer.kept.clear()
            partition.kept_bytes = 0
        file.flush()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - it is left with this context
            self._file = self._open.enter_context(file)
        return self._file


def _number(tag: bytes | None) -> int:
    """A writer's place among those whose records have the same time; 0 is for records whose writer is not known."""
    if not tag:
        return 0
    writer = TaskId(*_WRITER.unpack(tag))
    return (writer.sub_topology << 32 | writer.partition) + 1


def _merged(runs: list[Iterator[list[Placed]]]) -> Iterator[list[RawFields]]:
    """The records of several writers in order of their places. Of each run one block is in memory.

    All that comes before the end of the block that ends first is at hand, and sorted at once: that is quick, as it consists of
    sorted pieces.
    """
    heads = [(block, 0, run) for run in runs if (block := next(run, None))]
    while heads:
        end = min(block[-1] for block, _, _ in heads)
        ready: list[Placed] = []
        left = []
        for block, start, run in heads:
            stop = bisect_right(block, end, start)
            ready += block[start:stop]
            if stop < len(block):
                left.append((block, stop, run))
            elif following := next(run, None):
                left.append((following, 0, run))
        heads = left
        ready.sort()
        yield [placed[_RECORD] for placed in ready]
