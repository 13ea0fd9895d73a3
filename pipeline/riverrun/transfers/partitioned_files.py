"""Files in directories by columns or times as a sink: each directory is a chain of files, as `FileSink` writes it.

A commit adds a file to each directory that it has rows of, and then notes the offset in `_PARTITION-START`. START is the end
offset (exclusive) of the note before, so of two owners one is refused. An owner that dies before its note leaves files behind
it. The next one reads those records again, and leaves out what a directory has, by the end of its chain.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from riverrun.errors import TaskMigratedError
from riverrun.processor.sinks import OFFSET, SinkBatch
from riverrun.records import shortened
from riverrun.transfers.file_sink import FileSink
from riverrun.transfers.partitions import check_directories, directories, directory_fields
from riverrun.transfers.sink_rows import refuse

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from riverrun.processor.sinks import SinkTable
    from riverrun.records import TopicPartition

_NOTE = re.compile(r"_(\d+)-\d{20}")
_KEPT_NOTES = 2
_LONGEST_NAME = 255
"""Bytes that names of files have at most."""
_KNOWN_DIRECTORIES = 200
"""Number of directories whose ends are kept in memory between two commits."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """The files of one directory.

    Args:
        ends: By partition, the end offset (exclusive) of the files when they were found.
    """

    sink: FileSink
    ends: Mapping[TopicPartition, int]


@dataclass(slots=True)
class _Notes:
    """The notes of a partition."""

    names: list[str] = field(default_factory=list)
    end: int = 0


class PartitionedFiles:
    """A directory, or its URL, with directories by columns or times: `day=2026-01-01/country=DE`."""

    def __init__(self, table: SinkTable, target: str, form: str, partition_by: Sequence[str]) -> None:
        self._fields = directory_fields(partition_by)
        check_directories(table.schema, self._fields)
        # Readers take these columns from the names of directories.
        named = {each.column for each in self._fields if not each.unit}
        self._columns = [name for name in table.schema.names if name not in named]
        self._table = replace(table, schema=pa.schema([table.schema.field(name) for name in self._columns]))
        self._target = target
        self._form = form
        self._root = FileSink(table, target, form, partition_by)
        self._notes: dict[TopicPartition, _Notes] = {}
        self._chains: dict[str, _Chain] = {}
        self._written: set[str] = set()

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets of the last notes. An earlier owner may still add files, and is refused at its note."""
        self._notes, self._chains = {tp: _Notes() for tp in partitions}, {}
        self._written.clear()
        if not partitions:
            return {}
        found = defaultdict[int, list[str]](list)
        for name in sorted(self._root.claim(partitions)[0]):
            if note := _NOTE.fullmatch(name):
                found[int(note[1])].append(name)
        for tp, notes in self._notes.items():
            if names := found[tp.partition]:
                notes.names, notes.end = names, self._root.noted_end(names[-1])
        return {tp: notes.end for tp, notes in self._notes.items() if notes.names}

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the commit, but those that their directory has."""
        rows = defaultdict[str, list[int]](list)
        for row, directory in enumerate(directories(batch.records, self._fields)):
            rows[directory].append(row)
        long = (
            (row, f"is for directory {shortened(directory)}, whose name is too long")
            for directory, chosen in rows.items()
            if any(len(name.encode()) > _LONGEST_NAME for name in directory.split("/"))
            for row in chosen
        )
        refuse(batch, long, "Choose a column with shorter texts")
        offsets, inner = batch.records.column(OFFSET).to_pylist(), batch.records.select(self._columns)
        for directory, chosen in rows.items():
            chain = self._chain(directory)
            end = chain.ends.get(batch.tp, 0)
            if new := [row for row in chosen if offsets[row] >= end]:
                chain.sink.write(SinkBatch(batch.tp, inner.take(pa.array(new)), [batch.tombstones[row] for row in new]))
                self._written.add(directory)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Create a file in each directory with new records for each of their partitions, and then note the offsets."""
        for tp in offsets:
            if tp not in self._notes:
                message = f"{tp} is not this follower's partition"
                raise TaskMigratedError(message)
        for directory in sorted(self._written):
            self._chains[directory].sink.commit(offsets)
        self._written.clear()
        for tp, end in sorted(offsets.items()):
            self._note(tp, end)
        while len(self._chains) > _KNOWN_DIRECTORIES:
            # The one that was used least recently.
            del self._chains[next(iter(self._chains))]

    def _note(self, tp: TopicPartition, end: int) -> None:
        notes = self._notes[tp]
        if end <= notes.end:
            return
        name = f"_{tp.partition}-{notes.end:020}"
        self._root.note_end(name, end)
        gone, kept = notes.names[: 1 - _KEPT_NOTES], notes.names[1 - _KEPT_NOTES :]
        self._root.remove(gone)
        notes.names, notes.end = [*kept, name], end

    def _chain(self, directory: str) -> _Chain:
        chain = self._chains.pop(directory, None)
        if chain is None:
            sink = FileSink(self._table, f"{self._target.rstrip('/')}/{directory}", self._form)
            chain = _Chain(sink, sink.begin([*self._notes]))
        self._chains[directory] = chain
        return chain
