"""Records of repartition topics as one run per writer, of which no more than a limit is kept in memory.

The runs of several writers lie mixed in a partition, in an order that depends on the writers' speeds. They are taken apart
while the partition is read, once; within a run the order of the log stays. What does not fit into memory waits in a file.
"""

from __future__ import annotations

import os
import struct
import tempfile
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Self, TypeAlias

import msgspec

from pipeline.errors import StateError
from pipeline.records import Headers, RawFields, TaskId, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

WRITER_HEADER = "__millrace.writer"
"""On records of repartition topics: which task wrote them. Stripped on reading."""
_WRITER = struct.Struct(">ii")

RECORD_OVERHEAD_BYTES = 250
"""What Python's objects of a record take besides its bytes, roughly."""
_BLOCK_BYTES = 4 * 1024, 1024 * 1024
"""Smallest and largest parts of a run that are read back at once."""
_ARRAY = struct.Struct(">cI")
"""The head of an array in MessagePack: its encoded elements follow one another."""

Run: TypeAlias = "tuple[TopicPartition, int]"
"""A partition, and the number of one of its writers (`run_of`)."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes | None, bytes | None, int, int, Headers]]).decode


def writer_tag(writer: TaskId) -> Headers:
    """The header that names a writer."""
    return ((WRITER_HEADER, _WRITER.pack(*writer)),)


def run_of(writer: TaskId) -> int:
    """The number of a writer's run of records within a partition; 0 is for records whose writer is not known."""
    return (writer.sub_topology << 32 | writer.partition) + 1


def split_writers(records: Iterable[RawFields]) -> dict[int, list[RawFields]]:
    """Records of a repartition topic by who wrote them, each in order of offsets, without the tag.

    Records without one (a live worker's) are run 0.
    """
    runs: dict[int, list[RawFields]] = {}
    for record in records:
        run, (key, value, timestamp, offset, headers) = 0, record
        if headers and headers[-1][0] == WRITER_HEADER:
            run, headers = run_of(TaskId(*_WRITER.unpack(headers[-1][1] or b""))), headers[:-1]
        runs.setdefault(run, []).append((key, value, timestamp, offset, headers))
    return runs


class WriterRuns:
    """The runs of all partitions of repartition topics that a task reads; a context that ends with its file.

    Args:
        directory: Where the file is made, if one is needed. It has no name: whatever kills the process, it is gone.
        limit_bytes: How much of the records may be in memory while they are added.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        """Nothing has been added."""
        self.spilled_bytes = 0
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._kept: dict[Run, list[RawFields]] = {}
        self._kept_bytes = 0
        self._blocks: dict[Run, list[tuple[int, int]]] = {}
        self._file: IO[bytes] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """The runs, still to be filled."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the file up."""
        self._open.close()

    def add(self, tp: TopicPartition, records: Iterable[RawFields]) -> None:
        """Append records of a partition, in order of offsets.

        Raises:
            StateError: If the file cannot be written.
        """
        for number, part in split_writers(records).items():
            self._kept.setdefault((tp, number), []).extend(part)
            self._kept_bytes += sum(_size(record) for record in part)
        if self._kept_bytes > self._limit_bytes:
            try:
                self._spill()
            except OSError as error:
                message = f"Records cannot be spilled to {self._directory}: {error}"
                raise StateError(message, hint="Is the disk full, or the directory read-only?") from error

    def runs(self) -> Iterator[tuple[Run, Iterator[list[RawFields]]]]:
        """Each run with its records, batch by batch; to be asked when all have been added."""
        for run in sorted(self._kept.keys() | self._blocks.keys()):
            yield run, self._batches(run)

    def _batches(self, run: Run) -> Iterator[list[RawFields]]:
        for position, size in self._blocks.get(run, ()):
            block = os.pread(self._opened().fileno(), size, position)
            yield _decode(block)
        if run in self._kept:
            yield self._kept.pop(run)

    def _spill(self) -> None:
        """Move everything to the file: of each run some blocks, of a size that lets one of each be in memory."""
        smallest, largest = _BLOCK_BYTES
        block_bytes = min(max(self._limit_bytes // (4 * len(self._kept)), smallest), largest)
        file = self._opened()
        for run, records in self._kept.items():
            for block in _blocks(records, block_bytes):
                self._blocks.setdefault(run, []).append((self.spilled_bytes, len(block)))
                self.spilled_bytes += file.write(block)
        file.flush()
        self._kept.clear()
        self._kept_bytes = 0

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - it is left with this context
            self._file = self._open.enter_context(file)
        return self._file


def _size(record: RawFields) -> int:
    key, value, _, _, headers = record
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    return size + sum(RECORD_OVERHEAD_BYTES + len(data or b"") for _, data in headers) if headers else size


def _blocks(records: Iterable[RawFields], block_bytes: int) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    for record in records:
        part = _encode(record)
        parts.append(part)
        size += len(part)
        if size >= block_bytes:
            yield _array(parts)
            parts, size = [], 0
    if parts:
        yield _array(parts)


def _array(parts: list[bytes]) -> bytes:
    return _ARRAY.pack(b"\xdd", len(parts)) + b"".join(parts)
