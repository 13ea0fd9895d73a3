"""The files of an archived topic, and the store of its manifests.

A manifest lists all files of a topic. Each change writes the next one, under a name that must not exist yet, so of two
concurrent archivers one is refused. A file that no manifest lists is not part of the archive.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from riverrun.archive.exclusive import LEFTOVER, creator, flush
from riverrun.config.addons import prefix_of
from riverrun.decoders import Line, Name, Natural, Small, Time, Word, foreign_decoder
from riverrun.errors import ArchiveError, ConfigError
from riverrun.extras import require_extra
from riverrun.foreign_files import (
    described,
    is_local,
    make_directories,
    read_document,
    require_no_links,
    sealed,
    store_at,
)
from riverrun.hosting.process import SystemClock
from riverrun.records import OffsetRange, TopicPartition, Whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from datetime import datetime

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
BRING_BACK = "Bring it back from a copy of the archive. riverrun archive verify TOPIC finds all such files."
_DAMAGED = (
    "Bring it back from a copy. Without one, move it out of the archive: the manifest before it counts then, and lacks what"
    " this one added."
)
_UNKNOWN = "Is the URL right, and the package for its kind installed?"
_OF_ADD_ONS = (
    "Is it of an add-on? Install its package on each machine that reads it; riverrun archive does not write there."
)
_MANIFESTS, _DATA, _SUFFIX = "manifests", "data", ".json"
# Readers list the manifests first and read one later; it must still be there.
_KEPT = 3
# An entry of a file takes about 300 bytes, so this is enough for 900,000 files.
_LONGEST = 256 * 2**20

_MOST_PARTITIONS = 1_000_000
_LARGEST_FILE = 16 * 2**30
# Disks keep coarse times. A younger file could change again and keep the time of its last change.
_SETTLED_SECONDS = 2.0

_FILE = r"[0-9]{5,6}/[0-9]{20}-[0-9]{20}-[0-9a-f]{8}\.parquet"
_NAME = rf"^(?:{_FILE})?\Z"
_IS_FILE = re.compile(rf"{_FILE}\Z")
_IS_MANIFEST = re.compile(rf"([0-9]{{12}}){re.escape(_SUFFIX)}")
FileName = Annotated[str, msgspec.Meta(pattern=rf"^{_FILE}\Z")]
"""The name of a file below `data`: partition, first offset, end, and random letters."""
# Producers may set any time, also one before 1970.
RecordTime = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A time of a record, ms since the epoch."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One file: a range of offsets of one partition.

    Args:
        start: The first offset.
        end: End offset (exclusive). Offsets without records were compacted away, aborted, or markers.
        records: Number of records.
        size: Size, bytes.
        sha256: Digest of its bytes, hexadecimal.
        first_ms: The lowest time of its records, ms since the epoch; 0 without records.
        last_ms: The highest time of its records, ms since the epoch.
        name: Its name below the topic's `data`; empty without records.
    """

    partition: Small
    start: Natural
    end: Natural
    records: Natural
    size: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_FILE)] = 0
    sha256: Word = ""
    first_ms: RecordTime = 0
    last_ms: RecordTime = 0
    name: Annotated[str, msgspec.Meta(pattern=_NAME)] = ""

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.start, self.end)

    @property
    def is_possible(self) -> bool:
        """Return whether its numbers fit each other and its name."""
        if not 0 <= self.records <= self.end - self.start or bool(self.records) != bool(self.name):
            return False
        if not self.name:
            return True
        partition, start, end = place_of(self.name)
        is_named = (partition, start) == (self.partition, self.start) and end <= self.end
        return is_named and self.size > 0 and self.first_ms <= self.last_ms

    @property
    def gaps(self) -> int:
        """Return the number of offsets without records."""
        return self.end - self.start - self.records


@dataclass(frozen=True, slots=True)
class TopicManifest:
    """The archived part of a topic.

    Args:
        topic_id: The brokers' id of the topic; a topic that is created again has another one. Empty if nothing was archived
            yet: then any topic of that name fits.
        partitions: Number of partitions when it was archived last.
        timestamp_type: Meaning of its records' times: `CreateTime` or `LogAppendTime`.
        number: Number of the manifest, from 1; 0 if it has not been written.
        written_ms: When it was written, ms since the epoch.
        by: The user that wrote it.
        files: The files, by partition and offset.
        replaced: Names of files that the last compaction has joined, which readers may still need.
        swept: Number of the manifest that the last sweep of unlisted files has written (`upkeep`).
        whole: By partition of a compacted topic, when the archive had all of it: brokers' time (ms), and how long brokers
            kept deletions then (ms).
    """

    topic: Name
    topic_id: Word
    partitions: Small
    timestamp_type: Word = "CreateTime"
    number: Natural = 0
    written_ms: Time = 0
    by: Line = ""
    files: tuple[ArchivedFile, ...] = ()
    replaced: tuple[str, ...] = ()
    swept: Natural = 0
    whole: dict[int, tuple[Time, Natural]] = field(default_factory=dict)
    format: int = FORMAT_VERSION
    _by_partition: dict[int, list[ArchivedFile]] = field(default_factory=dict, compare=False, repr=False)

    def of(self, partition: int) -> list[ArchivedFile]:
        """Return the files of a partition, by offset."""
        if not self._by_partition and self.files:
            for file in self.files:
                self._by_partition.setdefault(file.partition, []).append(file)
        return self._by_partition.get(partition, [])

    def stretches(self, partition: int) -> list[OffsetRange]:
        """Return the ranges of a partition without holes between them, by offset."""
        found: list[OffsetRange] = []
        for file in self.of(partition):
            if found and found[-1].end == file.start:
                found[-1] = OffsetRange(found[-1].start, file.end)
            else:
                found.append(file.range)
        return found

    def end(self, partition: int) -> int | None:
        """Return the end offset (exclusive) of a partition; None if nothing of it was archived."""
        files = self.of(partition)
        return files[-1].end if files else None

    def whole_at(self, partition: int) -> Whole | None:
        """Return the time at which the archive had all of a partition; None if it is unknown."""
        found = self.whole.get(partition)
        return None if found is None else Whole(*found)

    def with_files(self, added: Iterable[ArchivedFile], without: Iterable[ArchivedFile] = ()) -> TopicManifest:
        """Return the manifest with other files; those of a partition must not overlap."""
        gone = set(without)
        files = sorted({*(each for each in self.files if each not in gone), *added}, key=_place)
        for one, other in pairwise(files):
            if one.partition == other.partition and other.start < one.end:
                tp = TopicPartition(self.topic, one.partition)
                message = f"Files of {tp} overlap: {one.range} and {other.range}"
                raise ArchiveError(
                    message, hint="Another archiver has written them: check again (riverrun archive list)."
                )
        return replace(self, files=tuple(files), _by_partition={})

    def encode(self) -> bytes:
        """Return the manifest as JSON, as it is stored and sealed."""
        fields = asdict(self)
        del fields["_by_partition"]
        return msgspec.json.encode(fields)


def place_of(name: str) -> tuple[int, int, int]:
    """Return what the name of a file says: its partition, its first offset and its end.

    >>> place_of("00003/00000000000000000010-00000000000000000025-0123abcd.parquet")
    (3, 10, 25)
    """
    partition, offsets = name.split("/")
    start, end, _ = offsets.split("-")
    return int(partition), int(start), int(end)


def nothing_of(topic: str) -> TopicManifest:
    """Return the manifest of a topic of which nothing was archived. Number 0 has not been written."""
    return TopicManifest(topic, "", 0)


class _Stored(msgspec.Struct):
    topic: Name
    topic_id: Word
    partitions: Annotated[int, msgspec.Meta(ge=0, le=_MOST_PARTITIONS)]
    timestamp_type: Word
    number: Natural
    written_ms: Time
    by: Line
    files: tuple[ArchivedFile, ...]
    replaced: tuple[FileName, ...]
    format: int
    swept: Natural = 0
    whole: dict[int, tuple[Time, Natural]] = {}


_decode = foreign_decoder(_Stored, _LONGEST)


def _place(file: ArchivedFile) -> tuple[int, int, int]:
    return file.partition, file.start, file.end


def _decoded(data: bytes, place: str, topic: str, number: int) -> TopicManifest:
    # Everyone with access to the file store can write a manifest, so all of its content is checked.
    try:
        found = _decode(data)
    except ValueError as error:
        message = f"Manifest {place} cannot be read: {error}"
        raise ArchiveError(message, hint=_DAMAGED) from error
    if found.format != FORMAT_VERSION:
        message = f"Manifest {place} has format {found.format}, and this version of Riverrun reads {FORMAT_VERSION}"
        raise ArchiveError(message, hint="Use the version that wrote it.")
    if (found.topic, found.number) != (topic, number):
        message = f"Manifest {place} says that it is number {found.number} of topic {found.topic}"
        raise ArchiveError(message, hint=_DAMAGED)
    manifest = TopicManifest(**msgspec.structs.asdict(found))
    replaced = {*manifest.replaced}
    for file in manifest.files:
        if not file.is_possible or file.partition >= manifest.partitions or file.name in replaced:
            message = f"Manifest {place} has an impossible file: {file}"
            raise ArchiveError(message, hint=_DAMAGED)
    return replace(manifest, files=()).with_files(manifest.files)


class ArchiveStore:
    """The archived topics at a URL of fsspec, or a path; some kinds of stores connect at once.

    Args:
        by: The user that its manifests name.
    """

    def __init__(self, url: str, by: str = "") -> None:
        require_extra("snapshots")
        if not url.strip():
            message = "The archive has no place: its URL is empty"
            raise ArchiveError(message, hint='Name a path, or a URL such as "s3://company-archive/kafka".')
        self.url, self._by = url, by
        try:
            self.files, self._root = store_at(url)
        except Exception as error:  # every kind of file store has different errors
            message = f"There can be no archive at {url}: {error}"
            raise ArchiveError(message, hint=_OF_ADD_ONS if prefix_of(url) else _UNKNOWN) from error

    def topics(self) -> list[str]:
        """Return the sorted names of the topics in the archive."""
        return sorted(name for name in self._names() if self._manifests(name))

    def unlisted(self) -> list[str]:
        """Return the sorted names of topics with data files and no manifest: their first archivers died, or are running."""
        return sorted(name for name in self._names() if not self._manifests(name) and self.data(name))

    def manifest(self, topic: str) -> TopicManifest | None:
        """Return the latest manifest of a topic; None if there is nothing of it."""
        numbers = self._manifests(topic)
        if not numbers:
            return None
        place = self._place(topic, _MANIFESTS, _manifest_name(numbers[-1]))
        with _answering(f"Manifest {place} cannot be read", hint=_DAMAGED):
            data = read_document(self.files, self._root, place, _LONGEST)
        return _decoded(data, place, topic, numbers[-1])

    def commit(self, manifest: TopicManifest, added: Iterable[ArchivedFile] = ()) -> TopicManifest:
        """Write the next manifest of a topic, and remove those that nobody needs any more; only it lists `added`."""
        written = self.commit_unless_taken(manifest)
        # Only now are the files certainly unlisted. After an error of the store they stay: the manifest may have been written.
        if written is None:
            self.remove(manifest.topic, [file.name for file in added if file.name])
            message = f"Another archiver has written manifest {manifest.number + 1} of {manifest.topic} at {self.url}"
            raise ArchiveError(message, hint="Run one archiver at a time, and start this one again.")
        return written

    def commit_unless_taken(self, manifest: TopicManifest) -> TopicManifest | None:
        """Write the next manifest of a topic; return None, and change nothing, if another archiver was faster."""
        now_ms = SystemClock().now_ms()
        written = replace(manifest, number=manifest.number + 1, written_ms=now_ms, by=self._by)
        place = self._place(manifest.topic, _MANIFESTS, _manifest_name(written.number))
        with _answering(f"{place} cannot be written"):
            require_no_links(self.files, self._root, place)
            make_directories(self.files, self._place(manifest.topic, _MANIFESTS))
            try:
                creator(self.files, self.url)(place, sealed(written.encode()))
            except FileExistsError:
                return None
        self._remove_earlier(manifest.topic)
        return written

    def _remove_earlier(self, topic: str) -> None:
        """Remove manifests that nobody needs any more, and what dead archivers have left."""
        try:
            numbers = self._manifests(topic)
            obsolete = [_manifest_name(number) for number in numbers[:-_KEPT]]
            begins = f".{_manifest_name(numbers[-1])}"
            # Unfinished files of this number and later ones may belong to archivers that are running.
            left = [each for each in self._names(topic, _MANIFESTS) if each.endswith(LEFTOVER) and each < begins]
            for name in (*obsolete, *left):
                self.files.rm_file(self._place(topic, _MANIFESTS, name))
        # The manifest is written. Archivers may lack the right to delete, and more files do no harm.
        except Exception as error:  # noqa: BLE001 - every kind of file store has different errors
            log.warning("cannot delete earlier manifests of %s at %s: %s", topic, self.url, error)

    def upload(self, local: str, topic: str, name: str) -> None:
        """Upload a finished file to its place below a topic's data."""
        place = self.path(topic, name)
        with _answering(f"{place} cannot be written"):
            require_no_links(self.files, self._root, place)
            make_directories(self.files, place.rsplit("/", 1)[0])
            self.files.put_file(local, place)
            # A manifest is on the disk once it is written, so the files that it lists have to be there before.
            if is_local(self.files):
                flush(Path(place))

    def identity(self, topic: str, file: ArchivedFile) -> str | None:
        """Check that a file is one of the archive's and has the listed size.

        Returns what distinguishes its bytes from later ones in its place; None if it is too young for that.
        """
        place = self.path(topic, file.name)
        with self.reading(topic, file):
            found = described(self.files, self._root, place)
        if found["size"] != file.size:
            message = f"File {place} of the archive has {found['size']} bytes, and its manifest says {file.size}"
            raise ArchiveError(message, hint=BRING_BACK)
        if time.time() - found.get("mtime", 0) < _SETTLED_SECONDS:  # noqa: TID251 - disks keep times of the wall clock
            return None
        return str(found)

    def open(self, topic: str, file: ArchivedFile) -> Any:
        """Open a file for reading, without a check of its bytes (`verified.opened` checks them)."""
        with self.reading(topic, file):
            return self.files.open(self.path(topic, file.name), "rb")

    def reading(self, topic: str, file: ArchivedFile) -> AbstractContextManager[None]:
        """Return the context manager that turns errors of the file store into `ArchiveError`s while a file is read."""
        return _answering(f"File {self.path(topic, file.name)} of the archive cannot be read", hint=BRING_BACK)

    @property
    def is_local(self) -> bool:
        """True if the archive is on a local disk."""
        return is_local(self.files)

    def remove(self, topic: str, files: Iterable[str]) -> None:
        """Remove files below a topic's data; those that are gone already are fine."""
        for name in files:
            with _answering(f"{self.path(topic, name)} cannot be removed"):
                require_no_links(self.files, self._root, self.path(topic, name))
                if self.files.exists(self.path(topic, name)):
                    self.files.rm_file(self.path(topic, name))

    def forget(self, topic: str) -> None:
        """Remove everything of a topic."""
        with _answering(f"{self._place(topic)} cannot be removed"):
            require_no_links(self.files, self._root, self._place(topic, _MANIFESTS))
            # The manifests first, so that nobody begins to read files that are about to vanish.
            for number in self._manifests(topic):
                self.files.rm_file(self._place(topic, _MANIFESTS, _manifest_name(number)))
            self.files.rm(self._place(topic), recursive=True)

    def data(self, topic: str) -> dict[str, int]:
        """Return the sizes (bytes) of a topic's data files by name, listed in a manifest or not."""
        place = self._place(topic, _DATA)
        with _answering(f"{place} cannot be listed"):
            self.files.invalidate_cache()
            require_no_links(self.files, self._root, place)
            # Limited, as symbolic links may lead to directories without end.
            found = self.files.find(place, maxdepth=2, detail=True)
        names = {"/".join(path.rsplit("/", 2)[-2:]): each["size"] for path, each in found.items()}
        return {name: size for name, size in names.items() if _IS_FILE.match(name)}

    def modified_ms(self, topic: str, name: str) -> int | None:
        """Return when a data file was written, ms since the epoch; None if it is gone."""
        place = self.path(topic, name)
        with _answering(f"The time of {place} cannot be read"):
            try:
                found: datetime = self.files.modified(place)
            except FileNotFoundError:
                return None
        # Some file stores return UTC without a zone.
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)

    def path(self, topic: str, name: str) -> str:
        """Return the place of a file below a topic's data."""
        return self._place(topic, _DATA, name)

    def _manifests(self, topic: str) -> list[int]:
        names = self._names(topic, _MANIFESTS)
        return sorted(int(found[1]) for found in map(_IS_MANIFEST.fullmatch, names) if found)

    def _names(self, *parts: str) -> Iterator[str]:
        place = self._place(*parts)
        with _answering(f"{place} cannot be listed"):
            # fsspec caches listings, and other processes write here.
            self.files.invalidate_cache()
            try:
                found = self.files.ls(place, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return
        yield from (path.rstrip("/").rsplit("/", 1)[-1] for path in found)

    def _place(self, *parts: str) -> str:
        return "/".join((self._root.rstrip("/"), *parts))


@contextmanager
def _answering(what: str, hint: str | None = None) -> Iterator[None]:
    """Turn errors of a file store into `ArchiveError`s; every kind of store has its own errors."""
    try:
        yield
    except (ArchiveError, ConfigError):
        raise
    except Exception as error:
        message = f"{what}: {str(error) or type(error).__name__}"
        raise ArchiveError(message, hint=hint) from error


def _manifest_name(number: int) -> str:
    return f"{number:012d}{_SUFFIX}"
