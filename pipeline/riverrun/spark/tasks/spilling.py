"""Orders records of repartition topics independently of their writers' speeds, with little of them in memory.

The runs of several writers lie mixed in a partition. They are separated while the partition is read, once, and merged by
event time, as if each were a partition. Within a run the order of the log stays: a record takes the place of the latest
record before it of its writer. Until they are merged, records stay in the packs of a bounded run. Packs that do not fit into
memory wait in a file.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, groupby, repeat
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

import msgspec

from riverrun.config.secrets import make_directory
from riverrun.decoders import msgpack_decoder
from riverrun.errors import StateError
from riverrun.records import RAW_HEADERS, RAW_OFFSET, RAW_TIMESTAMP, RAW_VALUE
from riverrun.runtime.packs import columns_of, opened, packed, records_of, rest_of, writer_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from riverrun.records import RawFields, TaskId, TopicPartition

# Approximate size of the Python objects of a block, besides its bytes.
_BLOCK_OVERHEAD_BYTES = 250
# Size of a frame: blocks that lie together in the file. During the merge, one frame of each writer is in memory.
_FRAME_BYTES = 64 * 1024

Placed: TypeAlias = "tuple[int, int, int, RawFields]"
"""A record after its place: the latest event time (ms) of its writer so far, the writer, and its number of that writer."""
_LATEST: Final = 0
_RECORD: Final = 3
_TIME = itemgetter(RAW_TIMESTAMP)

_encode = msgspec.msgpack.Encoder().encode
_decode_singles = msgpack_decoder(tuple[list[int], bytes]).decode


class _Block(NamedTuple):
    """Consecutive records of a writer.

    Args:
        offset: Offset of their pack; None if `data` holds offsets.
        data: The pack; for records outside of packs, their offsets and a pack of them.
    """

    offset: int | None
    data: bytes

    def records(self) -> list[RawFields]:
        if self.offset is not None:
            return list(opened(self.data, self.offset))
        offsets, pack = _decode_singles(self.data)
        return list(records_of(columns_of(pack), offsets))


@dataclass(slots=True)
class _Writer:
    """The records of one writer, in order: first the blocks in the file, then those in memory.

    Args:
        number: Its place among the writers; the same in every run, as it decides the order at equal times.
        frames: Positions and sizes in the file of frames of several blocks.
    """

    number: int
    frames: deque[tuple[int, int]] = field(default_factory=deque)
    kept: deque[_Block] = field(default_factory=deque)

    def take(self) -> Iterator[list[_Block]]:
        """Remove its blocks from memory, and yield them in groups of the size of a frame."""
        while self.kept:
            frame, size = [], 0
            while self.kept and size < _FRAME_BYTES:
                frame.append(self.kept.popleft())
                size += len(frame[-1].data)
            yield frame

    def placed(self, file: IO[bytes] | None) -> Iterator[list[Placed]]:
        """Yield its records with their places, block by block; a block is forgotten once it is read."""
        latest, count = -1, 0
        for block in self._blocks(file):
            records = block.records()
            # A late record takes the place of the latest one before it: the order of the log is kept within a writer.
            latests = accumulate(map(_TIME, records), max, initial=latest)
            next(latests)
            numbers = range(count, count + len(records))
            placed = list(zip(latests, repeat(self.number), numbers, records, strict=False))
            latest, count = placed[-1][_LATEST], count + len(records)
            yield placed

    def _blocks(self, file: IO[bytes] | None) -> Iterator[_Block]:
        while self.frames and file is not None:
            position, size = self.frames.popleft()
            yield from _decode_frame(os.pread(file.fileno(), size, position))
        while self.kept:
            yield self.kept.popleft()


_decode_frame = msgpack_decoder(list[_Block]).decode


class WriterMerge:
    """Merges the writers of all repartition partitions that a task reads; a context that removes its file at the end.

    Args:
        limit_bytes: Maximum size of records in memory while they are added, bytes.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.spilled_bytes = 0
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._kept_bytes = 0
        self._partitions: dict[TopicPartition, dict[TaskId | None, _Writer]] = {}
        self._file: IO[bytes] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(
        self,
        tp: TopicPartition,
        records: Sequence[RawFields],
        writer: TaskId | None = None,
        *,
        taken: int = 0,
        may_be_packs: bool = True,
    ) -> None:
        """Append records of a partition, in order of offsets.

        Args:
            tp: The partition.
            records: The next records.
            writer: Writer of the records outside of packs; None for live workers, which do not name themselves.
            taken: Number of records of the first pack that were processed before.
            may_be_packs: Whether the records come from a repartition topic in Kafka.
        """
        for packer, run in groupby(records, _writer_of if may_be_packs else _nobody):
            if packer is None:
                self._keep(tp, writer, _singles(list(run)))
            else:
                for record in run:
                    self._keep(tp, packer, _pack(record, taken if record is records[0] else 0))
        if self._kept_bytes > self._limit_bytes:
            try:
                self._spill()
            except OSError as error:
                message = f"Records cannot be spilled to {self._directory}: {error}"
                raise StateError(message, hint="Is the disk full, or the directory read-only?") from error

    def merged(self) -> Iterator[tuple[TopicPartition, Iterator[list[RawFields]]]]:
        """Yield each partition with its records, in batches; call it when all records have been added.

        A damaged pack is one record that no source can decode (`packs.opened`).
        """
        for tp, writers in sorted(self._partitions.items()):
            yield tp, _merged([writer.placed(self._file) for writer in writers.values()])

    def _keep(self, tp: TopicPartition, writer: TaskId | None, block: _Block) -> None:
        writers = self._partitions.setdefault(tp, {})
        if writer not in writers:
            writers[writer] = _Writer(_number(writer))
        writers[writer].kept.append(block)
        self._kept_bytes += len(block.data) + _BLOCK_OVERHEAD_BYTES

    def _spill(self) -> None:
        """Move everything to the file."""
        file = self._opened()
        for writers in self._partitions.values():
            for writer in writers.values():
                for frame in writer.take():
                    data = _encode(frame)
                    writer.frames.append((self.spilled_bytes, len(data)))
                    self.spilled_bytes += file.write(data)
        file.flush()
        self._kept_bytes = 0

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            make_directory(self._directory)
            # The file has no name, so it disappears even if the process is killed.
            file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - this context closes it
            self._file = self._open.enter_context(file)
        return self._file


def _writer_of(record: RawFields) -> TaskId | None:
    return writer_of(record[RAW_HEADERS])


def _nobody(_record: RawFields) -> None:
    """Take no record for a pack."""


def _pack(record: RawFields, taken: int) -> _Block:
    data = record[RAW_VALUE] or b""
    return _Block(record[RAW_OFFSET], rest_of(data, taken) if taken else data)


def _singles(records: Sequence[RawFields]) -> _Block:
    keys, values, times, offsets, headers = zip(*records, strict=True)
    return _Block(None, _encode((offsets, packed(keys, values, times, headers))))


def _number(writer: TaskId | None) -> int:
    """Return a writer's place among those with records of equal time; 0 is for records whose writer is not known."""
    return 0 if writer is None else (writer.sub_topology << 32 | writer.partition) + 1


def _merged(runs: list[Iterator[list[Placed]]]) -> Iterator[list[RawFields]]:
    """Yield the records of several writers in order of their places. One block of each writer is in memory."""
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
        # All records up to the earliest end of a block are here. They are sorted pieces, which Python's sort merges fast.
        ready.sort()
        yield [placed[_RECORD] for placed in ready]
