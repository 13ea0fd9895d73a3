"""Records of repartition topics in an order that does not depend on their writers' speeds, with little of them in memory.

The runs of several writers lie mixed in a partition. They are merged by event time, as if each were a partition of its own:
within a run the order of the log stays, so a record comes where the latest one before it of its writer does. Each gets that
place when it is read, and the records are sorted by it; what does not fit into memory waits in a file, in sorted parts.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import dataclass, field
from struct import Struct
from typing import IO, TYPE_CHECKING, Self, TypeAlias

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
_BLOCK_BYTES = 4 * 1024, 1024 * 1024
"""Smallest and largest parts of the file that are read back at once."""
_BLOCKS_IN_MEMORY = 64
"""So many blocks take as much memory as records may: one is read of each time that records were spilled."""

Placed: TypeAlias = "tuple[int, int, int, RawFields]"
"""A record behind its place: the latest event time (ms) of its writer so far, its writer, and its number in the partition."""
_RECORD = 3

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    list[tuple[int, int, int, tuple[bytes | None, bytes | None, int, int, Headers]]]
).decode


def writer_tag(writer: TaskId) -> Headers:
    """The header that names a writer."""
    return ((WRITER_HEADER, _WRITER.pack(*writer)),)


@dataclass(slots=True)
class _Writer:
    """A writer's number among the writers of a partition, and the latest event time (ms) of its records so far."""

    number: int
    latest_ms: int = -1


@dataclass(slots=True)
class _Partition:
    """What has been added of a partition: the records in memory, and per time that some were spilled the blocks in the file."""

    kept: list[Placed] = field(default_factory=list)
    kept_bytes: int = 0
    spilled: list[list[tuple[int, int]]] = field(default_factory=list)
    count: int = 0
    writers: dict[bytes | None, _Writer] = field(default_factory=dict)

    def add(self, records: Iterable[RawFields]) -> None:
        """Append records, without the tag of their writer. A live worker's have none: they count as one writer's."""
        number, size, append, writers = self.count, self.kept_bytes, self.kept.append, self.writers
        for key, value, timestamp, offset, headers in records:
            tag, own = None, headers
            if headers and headers[-1][0] == WRITER_HEADER:
                tag, own = headers[-1][1], headers[:-1]
            writer = writers.get(tag)
            if writer is None:
                writer = writers[tag] = _Writer(_number(tag))
            if timestamp > writer.latest_ms:
                writer.latest_ms = timestamp
            append((writer.latest_ms, writer.number, number, (key, value, timestamp, offset, own)))
            number += 1
            size += RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
            if own:
                size += sum(RECORD_OVERHEAD_BYTES + len(data or b"") for _, data in own)
        self.count, self.kept_bytes = number, size

    def take(self) -> list[Placed]:
        """The records in memory, sorted; they are kept no longer."""
        taken, self.kept, self.kept_bytes = sorted(self.kept), [], 0
        return taken


def merge_writers(records: Iterable[RawFields]) -> list[RawFields]:
    """The records of a partition that are all at hand, in the order in which they are processed.

    Args:
        records: All records, those of each writer in order of the log.
    """
    partition = _Partition()
    partition.add(records)
    return [placed[_RECORD] for placed in partition.take()]


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
            parts = [self._blocks(blocks) for blocks in partition.spilled]
            if partition.kept:
                parts.append(iter([partition.take()]))
            yield tp, _merged(parts)

    def _blocks(self, blocks: list[tuple[int, int]]) -> Iterator[list[Placed]]:
        for position, size in blocks:
            yield _decode(os.pread(self._opened().fileno(), size, position))

    def _spill(self) -> None:
        """Move everything to the file: a sorted part of each partition, in blocks."""
        smallest, largest = _BLOCK_BYTES
        block_bytes = min(max(self._limit_bytes // _BLOCKS_IN_MEMORY, smallest), largest)
        file = self._opened()
        for partition in self._partitions.values():
            count = max(1, len(partition.kept) * block_bytes // max(1, partition.kept_bytes))
            records, blocks = partition.take(), []
            for start in range(0, len(records), count):
                block = _encode(records[start : start + count])
                blocks.append((self.spilled_bytes, len(block)))
                self.spilled_bytes += file.write(block)
            if blocks:
                partition.spilled.append(blocks)
        file.flush()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - it is left with this context
            self._file = self._open.enter_context(file)
        return self._file


def _number(tag: bytes | None) -> int:
    """A writer's number, the same in every run: its place among those whose records have the same time."""
    if not tag:
        return 0
    writer = TaskId(*_WRITER.unpack(tag))
    return (writer.sub_topology << 32 | writer.partition) + 1


def _merged(parts: list[Iterator[list[Placed]]]) -> Iterator[list[RawFields]]:
    """The records of sorted parts in order of their places. Of each part one block is in memory.

    All that lies before the end of the block that ends first is at hand: it is sorted at once, which is quick for what consists
    of sorted pieces.
    """
    heads = [(block, 0, part) for part in parts if (block := next(part, None))]
    while heads:
        end = min(block[-1] for block, _, _ in heads)
        ready: list[Placed] = []
        left = []
        for block, start, part in heads:
            stop = bisect_right(block, end, start)
            ready += block[start:stop]
            if stop < len(block):
                left.append((block, stop, part))
            elif following := next(part, None):
                left.append((following, 0, part))
        heads = left
        ready.sort()
        yield [placed[_RECORD] for placed in ready]
