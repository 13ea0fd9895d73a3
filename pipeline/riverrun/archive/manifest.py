"""The files of an archived topic, and the store of its manifests.

A manifest lists all files of a topic. Each change writes the next one, under a name that must not exist yet, so of two
archivers that work at once one is refused. A file that no manifest lists is not part of the archive.
"""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from riverrun.archive.exclusive import LEFTOVER, creator, flush
from riverrun.decoders import Line, Name, Natural, Small, Time, Word, foreign_decoder
from riverrun.errors import ArchiveError, ConfigError
from riverrun.extras import require_extra
from riverrun.records import OffsetRange, TopicPartition, Whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
_MANIFESTS, _DATA, _SUFFIX = "manifests", "data", ".json"
_KEPT = 3
"""Number of manifests that stay, for readers that have just looked at an earlier one."""
_LONGEST = 256 * 2**20
"""Bytes of the longest manifest; a file takes about 300."""

_FILE = r"\d{5,6}/\d{20}-\d{20}-[0-9a-f]{8}\.parquet"
_NAME = rf"^(?:{_FILE})?\Z"
_IS_FILE = re.compile(rf"{_FILE}\Z")
FileName = Annotated[str, msgspec.Meta(pattern=rf"^{_FILE}\Z")]
"""The name of a file below `data`: partition, first offset, end, and letters that no other file has."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One file: a range of offsets of one partition.

    Args:
        partition: The partition.
        start: The first offset.
        end: The offset behind the last one. Offsets without records were compacted away, aborted, or markers.
        records: Number of records.
        size: Size, bytes.
        sha256: Digest of its bytes, hexadecimal.
        first_ms: The lowest time of its records, ms since the epoch; 0 without records.
        last_ms: The highest one.
        name: Its name below the topic's `data`; empty without records.
    """

    partition: Small
    start: Natural
    end: Natural
    records: Natural
    size: Natural = 0
    sha256: Word = ""
    first_ms: int = 0
    last_ms: int = 0
    name: Annotated[str, msgspec.Meta(pattern=_NAME)] = ""

    @property
    def range(self) -> OffsetRange:
        """Return the offsets."""
        return OffsetRange(self.start, self.end)

    @property
    def gaps(self) -> int:
        """Return the number of offsets without records."""
        return self.end - self.start - self.records


@dataclass(frozen=True, slots=True)
class TopicManifest:
    """The archived part of a topic.

    Args:
        topic: Its name.
        topic_id: The brokers' id of it: a topic that is created again has another one. Empty if nothing was archived yet, so
            that any topic of that name may be.
        partitions: Number of partitions when it was archived last.
        timestamp_type: Meaning of its records' times: `CreateTime` or `LogAppendTime`.
        number: Number of the manifest.
        written_ms: When it was written, ms since the epoch.
        by: The user that wrote it.
        files: The files, by partition and offset.
        replaced: Names of files that the last compaction has joined, which readers may still need.
        swept: Number of the manifest before which files that no manifest listed were removed last.
        whole: By partition of a compacted topic, when the archive had all of it: brokers' time (ms), and how long brokers
            kept deletions then (ms).
        format: Version of this format.
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
        """Return the offset behind the last archived one; None if there is nothing of the partition."""
        files = self.of(partition)
        return files[-1].end if files else None

    def whole_at(self, partition: int) -> Whole | None:
        """Return when the archive had all of a partition; None if that is unknown."""
        found = self.whole.get(partition)
        return None if found is None else Whole(*found)

    def with_files(self, added: Iterable[ArchivedFile], without: Iterable[ArchivedFile] = ()) -> TopicManifest:
        """Return the manifest with other files.

        Raises:
            ArchiveError: If files of a partition overlap.
        """
        gone = set(without)
        files = sorted({*(each for each in self.files if each not in gone), *added}, key=_place)
        for one, other in pairwise(files):
            if one.partition == other.partition and other.start < one.end:
                tp = TopicPartition(self.topic, one.partition)
                message = f"Files of {tp} overlap: {one.range} and {other.range}"
                raise ArchiveError(
                    message, hint="Another archiver has written them: look again (riverrun archive list)."
                )
        return replace(self, files=tuple(files), _by_partition={})

    def encode(self) -> bytes:
        """Return the manifest as JSON, the form in which it is kept."""
        fields = asdict(self)
        del fields["_by_partition"]
        return msgspec.json.encode(fields)


def nothing_of(topic: str) -> TopicManifest:
    """Return the manifest of a topic of which nothing was archived. Number 0 has not been written."""
    return TopicManifest(topic, "", 0)


class _Stored(msgspec.Struct):
    topic: Name
    topic_id: Word
    partitions: Small
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


def _decoded(data: bytes, place: str) -> TopicManifest:
    """Read a manifest. Everyone with access to the file store can write it, so all content is checked.

    Raises:
        ArchiveError: If the bytes are not a manifest that this version can read.
    """
    try:
        found = _decode(data)
    except ValueError as error:
        message = f"Manifest {place} cannot be read: {error}"
        raise ArchiveError(message) from error
    if found.format != FORMAT_VERSION:
        message = f"Manifest {place} has format {found.format}, and this version of Riverrun reads {FORMAT_VERSION}"
        raise ArchiveError(message, hint="Use the version that wrote it.")
    manifest = TopicManifest(**msgspec.structs.asdict(found))
    for file in manifest.files:
        if file.end < file.start or file.records > file.end - file.start or bool(file.records) != bool(file.name):
            message = f"Manifest {place} has an impossible file: {file}"
            raise ArchiveError(message)
    return replace(manifest, files=()).with_files(manifest.files)


class ArchiveStore:
    """The archived topics at a URL.

    Args:
        url: Place of the archive: any URL of fsspec, or a path.
    """

    def __init__(self, url: str) -> None:
        """Open the file system; some kinds connect at once.

        Raises:
            ArchiveError: If it cannot be reached, or there is no such kind.
            MissingExtraError: If a package is not installed.
        """
        require_extra("snapshots")
        import fsspec

        self.url = url
        try:
            self.files, self._root = fsspec.url_to_fs(url)
        except Exception as error:  # every kind of file store has errors of its own
            message = f"There can be no archive at {url}: {error}"
            raise ArchiveError(message, hint="Is the URL right, and the package for its kind installed?") from error

    def topics(self) -> list[str]:
        """Return the sorted names of the topics in the archive."""
        return sorted(name for name in self._names() if self._manifests(name))

    def unlisted(self) -> list[str]:
        """Return the sorted names of the topics that have data files and no manifest: their first archivers died, or work.

        Raises:
            ArchiveError: If the file store does not answer.
        """
        return sorted(name for name in self._names() if not self._manifests(name) and self.data(name))

    def manifest(self, topic: str) -> TopicManifest | None:
        """Return the latest manifest of a topic; None if there is nothing of it.

        Raises:
            ArchiveError: If it cannot be read.
        """
        numbers = self._manifests(topic)
        if not numbers:
            return None
        place = self._place(topic, _MANIFESTS, _manifest_name(numbers[-1]))
        with _Answering(f"{place} cannot be read"):
            data = self.files.cat_file(place)
        return _decoded(data, place)

    def commit(self, manifest: TopicManifest, added: Iterable[ArchivedFile] = ()) -> TopicManifest:
        """Write the next manifest of a topic, and remove those that nobody needs any more.

        Args:
            manifest: The manifest, with the number of the one that it replaces.
            added: Files that only this manifest lists. They are removed if another archiver was faster. After other errors
                they stay, as the manifest may have been written.

        Returns:
            The written manifest.

        Raises:
            ArchiveError: If another archiver has written one in between, or the file store refuses.
        """
        written = self.commit_unless_taken(manifest)
        if written is None:
            self.remove(manifest.topic, [file.name for file in added if file.name])
            message = f"Another archiver has written manifest {manifest.number + 1} of {manifest.topic} at {self.url}"
            raise ArchiveError(message, hint="Let one archiver work at a time, and start this one again.")
        return written

    def commit_unless_taken(self, manifest: TopicManifest) -> TopicManifest | None:
        """Write the next manifest of a topic. Return None if another archiver was faster: the archive is as it has left it.

        Args:
            manifest: The manifest, with the number of the one that it replaces.

        Raises:
            ArchiveError: If the file store refuses. The manifest may have been written nevertheless.
            ConfigError: If it cannot create a file only if there is none.
        """
        written = replace(manifest, number=manifest.number + 1)
        place = self._place(manifest.topic, _MANIFESTS, _manifest_name(written.number))
        with _Answering(f"{place} cannot be written"):
            self.files.makedirs(self._place(manifest.topic, _MANIFESTS), exist_ok=True)
            try:
                creator(self.files, self.url)(place, written.encode())
            except FileExistsError:
                return None
        self._remove_earlier(manifest.topic)
        return written

    def _remove_earlier(self, topic: str) -> None:
        """Remove manifests that nobody needs any more, and what dead archivers have left. Without the right to, they stay."""
        try:
            numbers = self._manifests(topic)
            obsolete = [_manifest_name(number) for number in numbers[:-_KEPT]]
            begins = f".{_manifest_name(numbers[-1])}"
            left = [each for each in self._names(topic, _MANIFESTS) if each.endswith(LEFTOVER) and each < begins]
            for name in (*obsolete, *left):
                self.files.rm_file(self._place(topic, _MANIFESTS, name))
        except Exception as error:  # noqa: BLE001 - every kind of file store has errors of its own
            log.warning("earlier manifests of %s at %s stay: %s", topic, self.url, error)

    def upload(self, local: str, topic: str, name: str) -> None:
        """Bring a finished file to its place below a topic's data.

        Raises:
            ArchiveError: If the file store refuses.
        """
        place = self.path(topic, name)
        with _Answering(f"{place} cannot be written"):
            self.files.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
            self.files.put_file(local, place)
            if "file" in self.files.protocol:
                flush(Path(place))

    def open(self, topic: str, file: ArchivedFile) -> Any:
        """Open a file for reading.

        Raises:
            ArchiveError: If it is missing, has another size, or cannot be opened.
        """
        place = self.path(topic, file.name)
        with _Answering(f"File {place} of the archive cannot be read"):
            size = self.files.size(place)
            if size != file.size:
                message = f"File {place} of the archive has {size} bytes, and its manifest says {file.size}"
                raise ArchiveError(message, hint="Bring it back from a copy, or drop the topic from the archive.")
            return self.files.open(place, "rb")

    def remove(self, topic: str, files: Iterable[str]) -> None:
        """Remove files below a topic's data; those that are gone already are fine.

        Raises:
            ArchiveError: If the file store refuses.
        """
        for name in files:
            with _Answering(f"{self.path(topic, name)} cannot be removed"):
                if self.files.exists(self.path(topic, name)):
                    self.files.rm_file(self.path(topic, name))

    def forget(self, topic: str) -> None:
        """Remove everything of a topic: first its manifests, so that nobody reads files that vanish.

        Raises:
            ArchiveError: If the file store refuses.
        """
        with _Answering(f"{self._place(topic)} cannot be removed"):
            for number in self._manifests(topic):
                self.files.rm_file(self._place(topic, _MANIFESTS, _manifest_name(number)))
            self.files.rm(self._place(topic), recursive=True)

    def data(self, topic: str) -> dict[str, int]:
        """Return the data files of a topic that there are, listed or not, by name with their sizes in bytes.

        Raises:
            ArchiveError: If the file store does not answer.
        """
        place = self._place(topic, _DATA)
        with _Answering(f"{place} cannot be listed"):
            self.files.invalidate_cache()
            found = self.files.find(place, detail=True)
        names = {"/".join(path.rsplit("/", 2)[-2:]): each["size"] for path, each in found.items()}
        return {name: size for name, size in names.items() if _IS_FILE.match(name)}

    def modified_ms(self, topic: str, name: str) -> int | None:
        """Return when a data file was written, ms since the epoch; None if it is gone.

        Raises:
            ArchiveError: If the file store does not answer, or does not keep such times.
        """
        place = self.path(topic, name)
        with _Answering(f"The time of {place} cannot be read"):
            try:
                found: datetime = self.files.modified(place)
            except FileNotFoundError:
                return None
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)

    def path(self, topic: str, name: str) -> str:
        """Return the place of a file below a topic's data."""
        return self._place(topic, _DATA, name)

    def _manifests(self, topic: str) -> list[int]:
        names = self._names(topic, _MANIFESTS)
        stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _names(self, *parts: str) -> Iterator[str]:
        place = self._place(*parts)
        with _Answering(f"{place} cannot be listed"):
            self.files.invalidate_cache()
            try:
                found = self.files.ls(place, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return
        yield from (path.rstrip("/").rsplit("/", 1)[-1] for path in found)

    def _place(self, *parts: str) -> str:
        return "/".join((self._root.rstrip("/"), *parts))


@dataclass(frozen=True, slots=True)
class _Answering:
    """Turns errors of a file store, of which every kind has its own, into `ArchiveError`s."""

    what: str

    def __enter__(self) -> None:
        """Start to ask."""

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        """Raise the error in words.

        Raises:
            ArchiveError: If there is one.
        """
        if isinstance(error, Exception) and not isinstance(error, ArchiveError | ConfigError):
            message = f"{self.what}: {str(error) or type(error).__name__}"
            raise ArchiveError(message) from error


def _manifest_name(number: int) -> str:
    return f"{number:012d}{_SUFFIX}"
