"""Copies of a task's state on a file store: files named by their content, and manifests that list the files of a state.

A file is kept under its SHA-256 and uploaded once, so only changed files of a large state are sent. Readers find complete
snapshots only. They check the sum of the manifest, the size of each file before they download it, and its sum after that.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from riverrun.config.secrets import make_directory
from riverrun.decoders import Name, Natural, Time, Word, foreign_decoder
from riverrun.errors import ConfigError, SnapshotError
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
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

# Version of manifests and of the places of files. Others are skipped.
FORMAT_VERSION = 2

_MANIFESTS, _FILES, _SUFFIX = "manifests", "files", ".json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Name of a file within a directory: neither the directory itself nor its parent, and without separators.
_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\\\0]+")

Digests: TypeAlias = dict[tuple[int, int, int], str]
"""SHA-256 sums of files that no longer change, by inode, time of the last change (ns) and size (bytes)."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """One file of a state.

    Args:
        sha256: Digest of its content, hexadecimal; also its name on the file store.
        size: Size, bytes.
    """

    name: str
    sha256: str
    size: Natural

    def check(self) -> None:
        """Make sure that both names stay within the directories they are joined to; `ValueError` if not."""
        if not _DIGEST.fullmatch(self.sha256):
            raise ValueError(f"{self.sha256!r} is not a SHA-256 checksum")
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a name of a file")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a snapshot.

    Args:
        created_ms: Time of creation, ms since the epoch.
        changelogs: Per changelog partition, as text, the next offset that is not in the state.
        topic_ids: The brokers' id of each changelog topic: a recreated one has another id.
        inputs: Per input partition, as text, the committed offset at that time.
        name: Name on the file store; names sort by time.
        whole: When the state was whole (brokers' time, ms) and how long brokers kept deletions then (ms); None if that is
            unknown.
    """

    application: Name
    task: Word
    fingerprint: Word
    created_ms: Time
    changelogs: dict[str, Natural]
    topic_ids: dict[Name, Word]
    inputs: dict[str, Natural]
    files: tuple[StateFile, ...] = ()
    format: int = FORMAT_VERSION
    name: str = field(default="", compare=False)
    whole: tuple[Time, Natural] | None = None

    def encode(self) -> bytes:
        return msgspec.json.encode(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read `encode`'s form; `SnapshotError` if the bytes are no manifest, or name files outside of the store."""
        # Everyone with access to the file store can write manifests, so all content is checked.
        try:
            found = foreign_decoder(cls)(data)
            for file in found.files:
                file.check()
            if len({file.name for file in found.files}) < len(found.files):
                message = "two of its files have one name"
                raise ValueError(message)  # noqa: TRY301 - as those of the decoder
            for tp in (*found.changelogs, *found.inputs):
                TopicPartition.parse(tp)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise SnapshotError(f"not a snapshot's manifest: {error}") from error
        return found

    @property
    def size_bytes(self) -> int:
        """Size of the state, bytes."""
        return sum(file.size for file in self.files)


def check_url(url: str) -> None:
    """Make sure that there is a file system for a kind of URL, without asking whether it answers."""
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
    # The first snapshot may be an hour away, so a local directory that cannot be written is reported at once.
    if protocol in {"file", "local"}:
        wanted = Path(url.removeprefix("file://").removeprefix("local://")).absolute()
        there = next(path for path in (wanted, *wanted.parents) if path.exists())
        if not (there.is_dir() and os.access(there, os.W_OK)):
            log.warning("snapshots cannot be kept at %s: %s is not a writable directory", url, there)


class SnapshotStore:
    """The snapshots of one task.

    Args:
        url: Place of the snapshots: any URL of fsspec, or a path.
    """

    def __init__(self, url: str, keep: int) -> None:
        self._url = url
        self._keep = keep
        # Some kinds of file systems connect at once.
        try:
            self._files, self._root = store_at(url)
        except Exception as error:  # every kind of file store has its own errors
            raise SnapshotError(f"Snapshots cannot be kept at {url}: {error}") from error

    def manifests(self) -> Iterator[Manifest]:
        """Yield the existing snapshots, newest first. Unreadable manifests are skipped with a warning."""
        for name in reversed(self._names()):
            try:
                yield replace(Manifest.decode(self._read(name)), name=name)
            except SnapshotError as error:
                log.warning("skipping snapshot %s/%s: %s", self._url, name, error.message)

    def publish(self, state: Path, draft: Manifest, digests: Digests | None = None) -> Manifest:
        """Upload the missing files of a state, then its manifest; remove the oldest snapshots beyond the number to keep.

        Args:
            state: A directory that does not change meanwhile: a checkpoint.
            draft: The manifest, without files.
            digests: Sums of files known from the last call, which need not be read again; updated in place.
        """
        known = {} if digests is None else digests
        before = dict(known)
        known.clear()
        files = tuple(_described_once(path, before, known) for path in sorted(filter(_is_state, state.iterdir())))
        # Names sort by time; the random part keeps those of one ms apart.
        name = f"{draft.created_ms:015d}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        manifest = replace(draft, files=files, name=name)
        unfinished = self._place(f"{name}.unfinished")
        try:
            # Others may write below the directory: a symbolic link would lead this process to write elsewhere.
            require_no_links(self._files, self._root, self._place(_FILES))
            require_no_links(self._files, self._root, self._place(_MANIFESTS))
            if is_local(self._files):
                make_directory(Path(self._root))
            make_directories(self._files, self._place(_FILES))
            make_directories(self._files, self._place(_MANIFESTS))
            for file in files:
                self._upload(state / file.name, file)
            # After all its files, and moved to its place in one step: a failure leaves a complete snapshot or none.
            self._files.pipe_file(unfinished, sealed(manifest.encode()))
            self._files.mv(unfinished, self._place(_MANIFESTS, name))
            self._collect()
        except Exception as error:  # as above
            message = f"A snapshot cannot be written to {self._url}: {error}"
            raise SnapshotError(message, hint="The state itself is safe: it is in its changelogs.") from error
        return manifest

    def fetch(self, manifest: Manifest, state: Path) -> None:
        """Download a snapshot into a directory that does not exist yet, or is empty."""
        # Next to the directory, which stays unchanged if a file is missing or damaged.
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
            raise SnapshotError(f"Snapshot {self._url}/{manifest.name} cannot be read: {error}") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _upload(self, source: Path, file: StateFile) -> None:
        place = self._place(_FILES, file.sha256)
        require_no_links(self._files, self._root, place)
        # A smaller file is an interrupted upload.
        if self._files.exists(place) and self._files.size(place) == file.size:
            return
        self._files.put_file(str(source), place)

    def _download(self, file: StateFile, directory: Path) -> None:
        target, place = directory / file.name, self._place(_FILES, file.sha256)
        # Before the download: a file of any size could lie there.
        size = described(self._files, self._root, place)["size"]
        if size != file.size:
            message = f"File {file.name} of snapshot {self._url} is damaged: it has {size} bytes, not {file.size}"
            raise SnapshotError(message)
        self._files.get_file(place, str(target))
        if _described(target) != file:
            # Else it would count as uploaded, and each later snapshot that lists it could not be read either.
            with suppress(Exception):
                self._files.rm_file(place)
            raise SnapshotError(f"File {file.name} of snapshot {self._url} is damaged: its checksum does not match")

    def _collect(self) -> None:
        """Remove the oldest snapshots, and the files that only they have."""
        names = self._names()
        # Each manifest that is read is a request to the store.
        if len(names) <= self._keep:
            return
        listed = {name: self._listed(name) for name in names}
        # A file that is no manifest does not take the place of a snapshot.
        kept = [name for name, files in listed.items() if files][-self._keep :]
        old = [name for name in listed if name < kept[0]] if len(kept) == self._keep else []
        if not old:
            return
        require_no_links(self._files, self._root, self._place(_FILES))
        # Only files that a manifest lists: others are being uploaded.
        needed = {file.sha256 for name in kept for file in listed[name]}
        for digest in sorted({file.sha256 for name in old for file in listed[name]} - needed):
            if self._files.exists(self._place(_FILES, digest)):
                self._files.rm_file(self._place(_FILES, digest))
        # Last: after an interruption, they still list the files to remove.
        for name in old:
            self._files.rm_file(self._place(_MANIFESTS, name))

    def _listed(self, name: str) -> tuple[StateFile, ...]:
        """Return the files of a snapshot: none if it is gone, or its manifest is damaged."""
        try:
            return Manifest.decode(self._read(name)).files
        except SnapshotError as error:
            if isinstance(error.__cause__, FileNotFoundError | ValueError):
                return ()
            # A store that does not answer says nothing about the files that the snapshot needs: none may be removed.
            raise

    def _names(self) -> list[str]:
        try:
            # fsspec keeps listings, and other processes write here.
            self._files.invalidate_cache()
            found = self._files.ls(self._place(_MANIFESTS), detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:  # as above
            raise SnapshotError(f"Snapshots at {self._url} cannot be listed: {error}") from error
        names = (each["name"].rsplit("/", 1)[-1] for each in found if each["type"] != "directory")
        # Files of other tools would count as snapshots otherwise.
        return sorted(name for name in names if name.endswith(_SUFFIX))

    def _read(self, name: str) -> bytes:
        try:
            content = read_document(self._files, self._root, self._place(_MANIFESTS, name))
        except Exception as error:  # as above
            raise SnapshotError(f"the manifest cannot be read: {error}") from error
        return content

    def _place(self, *parts: str) -> str:
        return "/".join((self._root.rstrip("/"), *parts))


def _is_state(path: Path) -> bool:
    """Return whether a file belongs to the state, rather than to the process that has it open."""
    return path.is_file() and path.name not in {"LOCK", "LOG"}


def _described_once(path: Path, before: Digests, known: Digests) -> StateFile:
    """Describe a file, whose sum may be known from the last snapshot."""
    # Tables of RocksDB never change once they are written; its other files do.
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
