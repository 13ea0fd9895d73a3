"""Files of an archive, opened only if they are what their manifest says.

Each process checks a file once, in this order. Its bytes have the listed digest. Its columns and row groups are such as an
archiver writes, and take no more memory than these. Its partition, its topic, the number of its records and their times are the
listed ones, and its offsets rise within the listed range. A file that has changed since is checked again.
"""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from riverrun.archive.manifest import BRING_BACK
from riverrun.errors import ArchiveError
from riverrun.records import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.archive.manifest import ArchivedFile, ArchiveStore

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
"""Columns of a file. Times are ms since the epoch; their meaning is in the manifest, one for the topic."""
TOPIC = b"riverrun.topic"
"""Name of the file's property with the topic of its records. Earlier versions did not write it."""
GROUP_ROWS = 65_536
"""Rows of a row group: what is decoded at a time, and skipped if a range does not need it."""
GROUP_BYTES = 64 * 2**20
"""Bytes of keys, values and headers after which a row group ends, if it has fewer rows."""
_LARGEST_RECORD = 1_000_000_000
"""Bytes of the longest record that Kafka clients send."""
_VALUE_BYTES = 8
"""Bytes that a value takes in memory without its content, at most."""
_PLAIN = frozenset({"PLAIN", "RLE", "BIT_PACKED"})
# Earlier versions wrote these. A value is stored once but decoded in every row, so sizes in the footer say little about memory.
_DICTIONARIES = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
_OF_ANY_LENGTH = ("key", "value", "headers.list.element.name", "headers.list.element.value")
_CHUNK = 2**20
_MOST_KNOWN = 100_000


_known: dict[tuple[str, str, ArchivedFile, str], tuple[OffsetRange, ...]] = {}
"""Offsets of each row group of the files that were found right."""


@contextmanager
def opened(store: ArchiveStore, topic: str, file: ArchivedFile, *, again: bool = False) -> Iterator[VerifiedFile]:
    """Open a file with records for reading; `again` checks all of it even if this process has done so."""
    identity = store.identity(topic, file)
    key = (store.url, topic, file, identity or "")
    ranges = None if again else _known.get(key)
    with ExitStack() as stack:
        content = stack.enter_context(store.open(topic, file))
        stack.enter_context(_placed(store.path(topic, file.name)))
        if ranges is None:
            # An open file on a disk keeps its bytes. A file of another store is copied: a second read could get other bytes.
            copy = None if store.is_local else stack.enter_context(tempfile.TemporaryFile(prefix="riverrun-archive-"))
            # Until the digest matches, pyarrow sees none of the bytes: with some damaged files it ends the process.
            with store.reading(topic, file):
                digest = _digest(content, file.size, copy)
            _require(digest == file.sha256, f"its digest is {digest}, not {file.sha256}")
            content = copy or content
            content.seek(0)
            ranges = _check(content, topic, file)
            # None: the file is so young that a later change could leave its time as it is (`ArchiveStore.identity`).
            if identity is not None:
                if len(_known) >= _MOST_KNOWN:
                    _known.clear()
                _known[key] = ranges
            content.seek(0)
        yield VerifiedFile(pq.ParquetFile(content, pre_buffer=True, page_checksum_verification=True), ranges)


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """An open file with the content that its manifest lists."""

    parquet: Any
    ranges: tuple[OffsetRange, ...]

    def groups(self, wanted: OffsetRange) -> Iterator[int]:
        """Yield the numbers of the row groups that have records of a range."""
        return (n for n, has in enumerate(self.ranges) if has.start < wanted.end and has.end > wanted.start)

    def rows(self, number: int, *columns: str) -> Any:
        """Return columns of a row group."""
        table = self.parquet.read_row_group(number, list(columns))
        if "headers" in columns:
            is_named = not any(_has_nameless(chunk) for chunk in table["headers"].chunks)
            _require(is_named, "it has a header without a name")
        return table


class _Unlike(Exception):  # noqa: N818 - becomes an `ArchiveError` with the file's place
    """A file is not what its manifest says, and why."""


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - private
    if not holds:
        raise _Unlike(otherwise)


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Add the place of the file to its errors."""
    try:
        yield
    except _Unlike as error:
        message = f"File {place} of the archive is not what its manifest says: {error}"
        raise ArchiveError(message, hint=BRING_BACK) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"File {place} of the archive is damaged: {error}"
        raise ArchiveError(message, hint=BRING_BACK) from error


def _digest(content: Any, longest: int, copy: Any) -> str:
    """Return the SHA-256 sum of a file, and copy its bytes to `copy` unless that is None."""
    digest, size = hashlib.sha256(), 0
    # A file that grows while it is read, or never ends, is wrong as soon as it is longer than listed.
    while size <= longest and (chunk := content.read(_CHUNK)):
        digest.update(chunk)
        size += len(chunk)
        if copy is not None:
            copy.write(chunk)
    return digest.hexdigest()


def _check(content: Any, topic: str, file: ArchivedFile) -> tuple[OffsetRange, ...]:
    parquet = pq.ParquetFile(content, page_checksum_verification=True)
    columns = parquet.schema_arrow
    _require(columns.equals(SCHEMA), f"it has other columns: {', '.join(columns.names)}")
    metadata = parquet.metadata
    # Files of earlier versions have no name, and pass.
    named = (metadata.metadata or {}).get(TOPIC, topic.encode()).decode(errors="replace")
    _require(named == topic, f"it has records of topic {named}")
    _require(metadata.num_rows == file.records, f"it has {metadata.num_rows} records, not {file.records}")
    once = {name for number in range(metadata.num_row_groups) for name in _check_room(metadata.row_group(number))}
    if once:
        _check_dictionaries(content, sorted(once))
    ranges, times, end = [], list[int](), file.start
    for number in range(metadata.num_row_groups):
        rows = parquet.read_row_group(number, ["partition", "offset", "timestamp"])
        ranges.append(_check_rows(rows, file, end))
        times += pc.min_max(rows["timestamp"]).as_py().values()
        end = ranges[-1].end
    found, listed = f"{min(times)}..{max(times)}", f"{file.first_ms}..{file.last_ms}"
    _require(found == listed, f"its records are of {found} ms, not {listed} ms")
    return tuple(ranges)


def _check_room(group: Any) -> Iterator[str]:
    """Refuse a row group that could take more memory than those of archivers, and yield its columns with dictionaries."""
    _require(0 < group.num_rows <= GROUP_ROWS, f"it has a group of {group.num_rows} rows")
    room = 0
    for number in range(group.num_columns):
        column = group.column(number)
        encodings = {*column.encodings}
        room += max(0, column.total_uncompressed_size) + _VALUE_BYTES * column.num_values
        unknown = ", ".join(sorted(encodings - _PLAIN - _DICTIONARIES))
        _require(not unknown, f"column {column.path_in_schema} is encoded as {unknown}")
        if encodings & _DICTIONARIES and column.path_in_schema in _OF_ANY_LENGTH:
            yield column.path_in_schema
    _require(room <= GROUP_BYTES + _LARGEST_RECORD, f"a group of {group.num_rows} rows takes {room} bytes")


def _check_rows(rows: Any, file: ArchivedFile, first: int) -> OffsetRange:
    """Return the range of a group's offsets, which have to rise from `first` on."""
    is_whole = not any(column.null_count for column in rows.columns)
    _require(is_whole, "it has a record without partition, offset or time")
    is_own = {*pc.min_max(rows["partition"]).as_py().values()} == {file.partition}
    _require(is_own, f"it has records of another partition than {file.partition}")
    offsets = rows["offset"].combine_chunks()
    start, end = offsets[0].as_py(), offsets[-1].as_py() + 1
    # `all` of nothing is null: a single offset rises.
    rise = pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py() is not False
    _require(
        rise and first <= start and end <= file.end,
        f"its offsets {start}..{end} do not rise within {first}..{file.end}",
    )
    return OffsetRange(start, end)


def _check_dictionaries(content: Any, columns: list[str]) -> None:
    """Refuse a file of an earlier version whose rows, decoded from dictionaries, take more memory than those of an archiver."""
    content.seek(0)
    parquet = pq.ParquetFile(content, page_checksum_verification=True, read_dictionary=columns)
    for number in range(parquet.metadata.num_row_groups):
        for column in parquet.read_row_group(number, columns).columns:
            is_list, room, largest = pa.types.is_list(column.type), 0, 0
            for chunk in column.chunks:
                for leaf in filter(_is_dictionary, chunk.flatten().flatten() if is_list else [chunk]):
                    sizes = pc.take(pc.binary_length(leaf.dictionary), leaf.indices)
                    room += pc.sum(sizes).as_py() or 0
                    largest = max(largest, pc.max(sizes).as_py() or 0)
            # Earlier versions did not count headers. A group ends after the record that exceeds the limit, so the largest value
            # is not counted here.
            most = _LARGEST_RECORD if is_list else GROUP_BYTES
            _require(room - largest <= most, f"a group of rows takes {room} bytes")


def _is_dictionary(values: Any) -> bool:
    return bool(pa.types.is_dictionary(values.type))


def _has_nameless(headers: Any) -> bool:
    if headers.null_count == len(headers):
        return False
    each = headers.flatten()
    return bool(each.null_count or each.field("name").null_count)
