"""Writes and reads records as rows of Parquet: bytes of keys, values and headers as they are, null apart from empty bytes."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from riverrun.archive.manifest import ArchivedFile
from riverrun.archive.verified import GROUP_BYTES, GROUP_ROWS, HEADERS, SCHEMA, TOPIC, opened
from riverrun.records import RAW_HEADERS, RAW_KEY, RAW_OFFSET, RAW_VALUE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from riverrun.archive.manifest import ArchiveStore
    from riverrun.records import OffsetRange, RawFields

_ROWS, _BYTES = GROUP_ROWS, GROUP_BYTES
FILE_BYTES = 256 * 2**20
"""Bytes of keys and values after which another file begins."""
_BATCH = 1_000
"""Records of a batch, about as many as brokers return."""


@dataclass(slots=True)
class _Group:
    """Records that become a row group."""

    rows: list[RawFields]
    bytes: int = 0

    def add(self, row: RawFields) -> None:
        self.rows.append(row)
        self.bytes += len(row[RAW_KEY] or b"") + len(row[RAW_VALUE] or b"")
        if row[RAW_HEADERS]:
            self.bytes += sum(len(name) + len(value or b"") for name, value in row[RAW_HEADERS])

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= _ROWS or self.bytes >= _BYTES


class FileWriter:
    """Writes records of a partition from an offset on into files of useful size, and uploads each when it is complete.

    Args:
        start: The first offset, also if no record has it.
        file_bytes: Bytes of keys and values after which another file begins.
    """

    def __init__(
        self, store: ArchiveStore, topic: str, partition: int, start: int, file_bytes: int = FILE_BYTES
    ) -> None:
        self._store, self._topic, self._partition = store, topic, partition
        self._file_bytes = file_bytes
        self._directory = tempfile.TemporaryDirectory(prefix="riverrun-archive-")
        self._group = _Group([])
        self._start = start
        self._open: _OpenFile | None = None
        self._done: list[ArchivedFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what is local."""
        self.close()

    def close(self) -> None:
        """Remove what is local."""
        if self._open is not None:
            self._open.writer.close()
        self._directory.cleanup()

    def write(self, records: Iterable[RawFields]) -> None:
        """Add records, in order of their offsets."""
        for record in records:
            self._group.add(record)
            if self._group.is_full:
                self._end_group()

    @property
    def uploaded(self) -> tuple[str, ...]:
        """Return the names of the files that are in the archive's store already."""
        return tuple(file.name for file in self._done if file.name)

    def files(self, end: int) -> tuple[ArchivedFile, ...]:
        """Complete the last file, and return all: together they are the range from the first offset to `end`."""
        if self._group.rows:
            self._end_group()
        if self._open is not None:
            self._end_file(end)
        elif not self._done:
            self._done.append(ArchivedFile(self._partition, self._start, end, 0))
        # Only offsets without records followed. The range grows, and the uploaded file keeps the end in its name, which may be
        # lower (`ArchivedFile.is_possible`).
        elif self._start < end:
            last = self._done[-1]
            self._done[-1] = replace(last, end=end)
        return tuple(self._done)

    def _end_group(self) -> None:
        if self._open is None:
            path = Path(self._directory.name) / f"{self._start}.parquet"
            schema = SCHEMA.with_metadata({TOPIC: self._topic})
            # Without dictionaries, files are smaller here, and their footers show how much memory their rows take (`verified`).
            writer = pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False, write_page_checksum=True)
            self._open = _OpenFile(path, writer)
        group, self._group = self._group, _Group([])
        self._open.add(group, self._partition)
        if self._open.bytes >= self._file_bytes:
            self._end_file(group.rows[-1][RAW_OFFSET] + 1)

    def _end_file(self, end: int) -> None:
        if self._open is None:
            return
        opened, self._open = self._open, None
        opened.writer.close()
        # Random letters: two archivers of one range must not overwrite each other's file, of which one will be listed.
        name = f"{self._partition:05d}/{self._start:020d}-{end:020d}-{uuid.uuid4().hex[:8]}.parquet"
        # Of the local file: an upload that damages bytes is noticed when the file is read.
        with opened.path.open("rb") as content:
            digest: Any = hashlib.file_digest(content, "sha256")
        file = ArchivedFile(
            self._partition,
            self._start,
            end,
            opened.records,
            size=opened.path.stat().st_size,
            sha256=digest.hexdigest(),
            first_ms=opened.first_ms,
            last_ms=opened.last_ms,
            name=name,
        )
        self._store.upload(str(opened.path), self._topic, name)
        opened.path.unlink()
        self._start = end
        self._done.append(file)


@dataclass(slots=True)
class _OpenFile:
    path: Path
    writer: Any
    records: int = 0
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def add(self, group: _Group, partition: int) -> None:
        keys, values, times, offsets, headers = zip(*group.rows, strict=True)
        arrays = [
            pa.array([partition] * len(offsets), pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.int64()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([[*map(_header, each)] if each else None for each in headers], HEADERS),
        ]
        self.writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), row_group_size=len(offsets))
        first, last = min(times), max(times)
        self.first_ms = min(self.first_ms, first) if self.records else first
        self.last_ms = max(self.last_ms, last) if self.records else last
        self.records += len(offsets)
        self.bytes += group.bytes


def _header(pair: tuple[str, bytes | None]) -> dict[str, Any]:
    return {"name": pair[0], "value": pair[1]}


def read_file(store: ArchiveStore, topic: str, file: ArchivedFile, wanted: OffsetRange) -> Iterator[list[RawFields]]:
    """Yield the records of a file within a range, in order of their offsets."""
    if not file.records:
        return
    with opened(store, topic, file) as content:
        for number in content.groups(wanted):
            yield from _batches(content.rows(number, "offset", "timestamp", "key", "value", "headers"), wanted)


def read_keys(store: ArchiveStore, topic: str, file: ArchivedFile) -> list[bytes | None]:
    """Return the keys of a file's records, in order of their offsets."""
    with opened(store, topic, file) as content:
        groups = (content.rows(number, "key")["key"] for number in content.groups(file.range))
        return [key for group in groups for key in group.to_pylist()]


def offset_at(store: ArchiveStore, topic: str, file: ArchivedFile, wanted: OffsetRange, time_ms: int) -> int | None:
    """Return the offset of a file's first record in a range that is not before a time; None if there is none."""
    if not file.records or file.last_ms < time_ms:
        return None
    with opened(store, topic, file) as content:
        for number in content.groups(wanted):
            rows = content.rows(number, "offset", "timestamp")
            late = pc.and_(pc.greater_equal(rows["timestamp"], time_ms), pc.greater_equal(rows["offset"], wanted.start))
            found = rows["offset"].filter(late)
            if len(found):
                offset: int = found[0].as_py()
                return offset if offset < wanted.end else None
    return None


def _batches(rows: Any, wanted: OffsetRange) -> Iterator[list[RawFields]]:
    offsets = rows["offset"].to_pylist()
    first, last = bisect_left(offsets, wanted.start), bisect_left(offsets, wanted.end)
    if (first, last) != (0, len(offsets)):
        rows, offsets = rows.slice(first, last - first), offsets[first:last]
    column = rows["headers"]
    headers = repeat(()) if column.null_count == len(column) else map(_headers, column.to_pylist())
    keys, values, times = (rows[name].to_pylist() for name in ("key", "value", "timestamp"))
    found = list(zip(keys, values, times, offsets, headers))  # noqa: B905 - `repeat` has no end
    for start in range(0, len(found), _BATCH):
        yield found[start : start + _BATCH]


def _headers(found: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((each["name"], each["value"]) for each in found) if found else ()
