"""Copies of a task's state on a file store: files by their content, and manifests that say which of them make a state.

A file is kept under its SHA-256 and uploaded once, so that of a large state only what has changed travels. A manifest is
written when all its files are there, and moved to its place in one step: a reader finds a whole snapshot, and one that
reads a file checks its sum. Any URL that fsspec understands will do.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pipeline.config.directories import make_directory
from pipeline.errors import ConfigError, SnapshotError
from pipeline.extras import require_extra
from pipeline.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

FORMAT_VERSION = 2
"""Of manifests and the places of files. Another version is passed over."""

_MANIFESTS, _FILES, _SUFFIX = "manifests", "files", ".json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\\\0]+")
"""Of a file within a directory: neither the directory itself nor the one above, and without separators."""

Digests: TypeAlias = dict[tuple[int, int, int], str]
"""SHA-256 sums of files that do not change any more, by inode, time of the last change (ns) and size (bytes)."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """One file of a state.

    Args:
        name: Its name within the state's directory.
        sha256: Digest of its content, hexadecimal: also where it is kept.
        size: Bytes.
    """

    name: str
    sha256: str
    size: int

    def check(self) -> None:
        """Make sure that both names stay within the directories they are joined to.

        Raises:
            ValueError: If one does not.
        """
        if not _DIGEST.fullmatch(self.sha256):
            message = f"{self.sha256!r} is no SHA-256 sum"
            raise ValueError(message)
        if not _NAME.fullmatch(self.name):
            message = f"{self.name!r} is no name of a file"
            raise ValueError(message)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a snapshot.

    Args:
        application: The application's id.
        task: The task, as text.
        fingerprint: Of the topology that made the state.
        created_ms: When, ms since the epoch.
        changelogs: Per changelog partition, as text, the next offset that is not in the state.
        topic_ids: What the brokers call each changelog topic: a recreated one has another id.
        inputs: Per input partition, as text, the committed offset at that time.
        files: What the state consists of.
        format: Version of this format.
        name: Where it is kept; sorts by time.
    """

    application: str
    task: str
    fingerprint: str
    created_ms: int
    changelogs: dict[str, int]
    topic_ids: dict[str, str]
    inputs: dict[str, int]
    files: tuple[StateFile, ...] = ()
    format: int = FORMAT_VERSION
    name: str = field(default="", compare=False)

    def encode(self) -> bytes:
        """Return the form in which it is kept: JSON."""
        return msgspec.json.encode(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read `encode`'s form. All that can write to the file store can write manifests: nothing in one is taken on trust.

        Raises:
            SnapshotError: If it is not one, or names files outside of the store.
        """
        try:
            found = msgspec.json.decode(data, type=cls)
            for file in found.files:
                file.check()
            for changelog in found.changelogs:
                TopicPartition.parse(changelog)
        except (ValueError, RecursionError) as error:  # msgspec's own are among them
            message = f"not a snapshot's manifest: {error}"
            raise SnapshotError(message) from error
        return found

    @property
    def size_bytes(self) -> int:
        """Size of the state."""
        return sum(file.size for file in self.files)


def check_url(url: str) -> None:
    """Make sure that there is a file system for a kind of URL; whether it answers is not asked.

    Of this machine's own, a directory that cannot be written is warned of: the first snapshot may be an hour away.

    Raises:
        ConfigError: If there is none, or its package is not installed.
        MissingExtraError: If fsspec is not installed.
    """
    require_extra("snapshots")
    import fsspec

    protocol = fsspec.utils.get_protocol(url)
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        message = f"Snapshots cannot be kept at {url}: {error}"
        raise ConfigError(
            message, hint="Is the URL right, and the package for its kind installed? (snapshot.url)"
        ) from error
    if protocol in {"file", "local"}:
        wanted = Path(url.removeprefix("file://").removeprefix("local://")).absolute()
        there = next(path for path in (wanted, *wanted.parents) if path.exists())
        if not (there.is_dir() and os.access(there, os.W_OK)):
            log.warning("no snapshots can be kept at %s: %s is no directory that can be written", url, there)


class SnapshotStore:
    """The snapshots of one task.

    Args:
        url: Where they are: any URL of fsspec, or a path.
        keep: How many of them.
    """

    def __init__(self, url: str, keep: int) -> None:
        """Connect, where a kind of file systems does so at once.

        Raises:
            SnapshotError: If it cannot be reached, or there is none of that kind.
        """
        import fsspec

        self._url = url
        self._keep = keep
        try:
            self._files, self._root = fsspec.url_to_fs(url)
        except Exception as error:  # every kind of file store has errors of its own
            message = f"Snapshots cannot be kept at {url}: {error}"
            raise SnapshotError(message) from error

    def manifests(self) -> Iterator[Manifest]:
        """The snapshots there are, newest first. Manifests that cannot be read are passed over, with a warning.

        Raises:
            SnapshotError: If the file store does not answer.
        """
        for name in reversed(self._names()):
            try:
                yield replace(Manifest.decode(self._read(name)), name=name)
            except SnapshotError as error:
                log.warning("snapshot %s/%s is passed over: %s", self._url, name, error.message)

    def publish(self, state: Path, draft: Manifest, digests: Digests | None = None) -> Manifest:
        """Upload what is not there yet of a state's files, then its manifest; remove snapshots that are too many.

        Args:
            state: A directory that does not change: a checkpoint.
            draft: The manifest, without files.
            digests: Sums of files that are known from the last time, and need not be read again; brought up to date.

        Raises:
            SnapshotError: If the file store refuses. A snapshot is there wholly or not at all.
        """
        known = {} if digests is None else digests
        before = dict(known)
        known.clear()
        files = tuple(_described_once(path, before, known) for path in sorted(filter(_is_state, state.iterdir())))
        name = f"{draft.created_ms:015d}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        manifest = replace(draft, files=files, name=name)
        unfinished = self._place(f"{name}.unfinished")
        try:
            if "file" in self._files.protocol:
                make_directory(Path(self._root))
            self._files.makedirs(self._place(_FILES), exist_ok=True)
            self._files.makedirs(self._place(_MANIFESTS), exist_ok=True)
            for file in files:
                self._upload(state / file.name, file)
            self._files.pipe_file(unfinished, manifest.encode())
            self._files.mv(unfinished, self._place(_MANIFESTS, name))
            self._collect()
        except Exception as error:  # as above
            message = f"A snapshot cannot be written to {self._url}: {error}"
            raise SnapshotError(message, hint="The state itself is safe: it is in its changelogs.") from error
        return manifest

    def fetch(self, manifest: Manifest, state: Path) -> None:
        """Download a snapshot into a directory that does not exist yet, or is empty.

        Raises:
            SnapshotError: If a file is missing or damaged, or cannot be written. The directory is not touched.
        """
        unfinished = state.with_name(f".{state.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            make_directory(unfinished)
            for file in manifest.files:
                self._download(file, unfinished)
            unfinished.replace(state)
        except SnapshotError:
            raise
        except Exception as error:  # as above
            message = f"Snapshot {self._url}/{manifest.name} cannot be read: {error}"
            raise SnapshotError(message) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _upload(self, source: Path, file: StateFile) -> None:
        place = self._place(_FILES, file.sha256)
        if self._files.exists(place) and self._files.size(place) == file.size:  # else an upload was cut off
            return
        self._files.put_file(str(source), place)

    def _download(self, file: StateFile, directory: Path) -> None:
        target = directory / file.name
        self._files.get_file(self._place(_FILES, file.sha256), str(target))
        if _described(target) != file:
            message = f"File {file.name} of snapshot {self._url} is damaged: its checksum is another"
            raise SnapshotError(message)

    def _collect(self) -> None:
        """Remove the oldest snapshots, and the files that only they have.

        Files go first: if that is cut off, their manifests say later what is left to remove. Files that are just being
        uploaded belong to no manifest and are not touched.
        """
        names = self._names()
        old, kept = names[: -self._keep], names[-self._keep :]
        if not old:
            return
        needed = {file.sha256 for name in kept for file in self._listed(name)}
        for digest in sorted({file.sha256 for name in old for file in self._listed(name)} - needed):
            if self._files.exists(self._place(_FILES, digest)):
                self._files.rm_file(self._place(_FILES, digest))
        for name in old:
            self._files.rm_file(self._place(_MANIFESTS, name))

    def _listed(self, name: str) -> tuple[StateFile, ...]:
        try:
            return Manifest.decode(self._read(name)).files
        except SnapshotError:
            return ()

    def _names(self) -> list[str]:
        try:
            self._files.invalidate_cache()
            found = self._files.ls(self._place(_MANIFESTS), detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:  # as above
            message = f"Snapshots at {self._url} cannot be listed: {error}"
            raise SnapshotError(message) from error
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in found)
        return sorted(
            name for name in names if name.endswith(_SUFFIX)
        )  # else other tools' files would count as snapshots

    def _read(self, name: str) -> bytes:
        try:
            content: bytes = self._files.cat_file(self._place(_MANIFESTS, name))
        except Exception as error:  # as above
            message = f"the manifest cannot be read: {error}"
            raise SnapshotError(message) from error
        return content

    def _place(self, *parts: str) -> str:
        return "/".join((self._root.rstrip("/"), *parts))


def _is_state(path: Path) -> bool:
    """Whether a file belongs to the state, rather than to the process that has it open."""
    return path.is_file() and path.name not in {"LOCK", "LOG"}


def _described_once(path: Path, before: Digests, known: Digests) -> StateFile:
    """Describe a file that may be known already: tables are never changed once they are written."""
    if path.suffix != ".sst":
        return _described(path)
    stat = path.stat()
    identity = stat.st_ino, stat.st_mtime_ns, stat.st_size
    known[identity] = before.get(identity) or _described(path).sha256
    return StateFile(path.name, known[identity], stat.st_size)


def _described(path: Path) -> StateFile:
    with path.open("rb") as content:
        digest: Any = hashlib.file_digest(content, "sha256")
    return StateFile(path.name, digest.hexdigest(), path.stat().st_size)
