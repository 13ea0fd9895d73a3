"""Keeps an archive in order: checks its files, joins small ones, and drops the oldest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from riverrun.errors import ArchiveError
from riverrun.records import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.archive.manifest import ArchivedFile, ArchiveStore, TopicManifest

_CHUNK = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that cannot be used, and why."""

    file: ArchivedFile
    reason: str


def verify(
    store: ArchiveStore, manifest: TopicManifest, on_file: Callable[[ArchivedFile], None] = lambda _file: None
) -> Iterator[Damage]:
    """Yield the files of a topic that are missing or damaged: bytes, digest, rows and their offsets are compared.

    Args:
        store: The archive.
        manifest: The topic's manifest.
        on_file: Called after each file.
    """
    for file in manifest.files:
        if file.records:
            try:
                _verify(store, manifest.topic, file)
            except ArchiveError as error:
                yield Damage(file, error.message)
        on_file(file)


def _verify(store: ArchiveStore, topic: str, file: ArchivedFile) -> None:
    from riverrun.archive.parquet import read_file  # noqa: PLC0415 - pyarrow loads for long

    with store.open(topic, file) as content:
        digest = hashlib.sha256()
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != file.sha256:
        message = f"File {store.path(topic, file.name)} of the archive has another digest than its manifest says"
        raise ArchiveError(message)
    last, count = file.start - 1, 0
    for batch in read_file(store, topic, file, OffsetRange(0, 2**63 - 1)):
        for _, _, _, offset, _ in batch:
            if not last < offset < file.end:
                message = f"File {store.path(topic, file.name)} of the archive has offset {offset} behind {last}"
                raise ArchiveError(message)
            last = offset
        count += len(batch)
    if count != file.records:
        message = f"File {store.path(topic, file.name)} of the archive has {count} records, not {file.records}"
        raise ArchiveError(message)


def compact(store: ArchiveStore, manifest: TopicManifest, *, below: int, now_ms: int, by: str) -> TopicManifest:
    """Join files of a partition that follow each other and are smaller than `below` bytes, until none are left.

    Readers that have an earlier manifest find their files until the next compaction: the files that were replaced stay for one.

    Args:
        store: The archive.
        manifest: The topic's manifest.
        below: Size of a small file, bytes.
        now_ms: The time, ms since the epoch.
        by: The user, for the manifest.

    Returns:
        The manifest now; the given one, if there is nothing to join.

    Raises:
        ArchiveError: If a file is damaged, another archiver is at work, or the archive refuses.
    """
    added: list[ArchivedFile] = []
    joined: list[ArchivedFile] = []
    for some in _runs(manifest, below):
        added += _joined(store, manifest.topic, some)
        joined += some
    if not joined and not manifest.replaced:
        return manifest
    names = tuple(file.name for file in joined if file.name)
    changed = replace(manifest.with_files(added, without=joined), written_ms=now_ms, by=by, replaced=names)
    found = store.commit(changed, added)
    store.remove(manifest.topic, manifest.replaced)
    return found


def _runs(manifest: TopicManifest, below: int) -> Iterator[list[ArchivedFile]]:
    """Yield runs of two or more small files that follow each other, none of which becomes much larger than two of them."""
    for _, files in groupby(manifest.files, lambda file: file.partition):
        run: list[ArchivedFile] = []
        for file in files:
            fits = run and run[-1].end == file.start and sum(each.size for each in run) < below
            if file.size >= below or not fits:
                if len(run) > 1:
                    yield run
                run = []
            if file.size < below:
                run.append(file)
        if len(run) > 1:
            yield run


def _joined(store: ArchiveStore, topic: str, files: list[ArchivedFile]) -> tuple[ArchivedFile, ...]:
    from riverrun.archive.parquet import FileWriter, read_file  # noqa: PLC0415 - pyarrow loads for long

    with FileWriter(store, topic, files[0].partition, files[0].start) as writer:
        for file in files:
            for batch in read_file(store, topic, file, file.range):
                writer.write(batch)
        return writer.files(files[-1].end)


def drop_before(
    store: ArchiveStore, manifest: TopicManifest, time_ms: int, *, now_ms: int, by: str
) -> tuple[TopicManifest, list[ArchivedFile]]:
    """Drop the oldest files whose records are all earlier than a time.

    A file stays if an earlier one of its partition does, so that no hole comes up.

    Args:
        store: The archive.
        manifest: The topic's manifest.
        time_ms: The time, ms since the epoch.
        now_ms: The present, ms since the epoch.
        by: The user, for the manifest.

    Returns:
        The manifest now, and the files that are gone.

    Raises:
        ArchiveError: If another archiver is at work, or the archive refuses.
    """
    gone: list[ArchivedFile] = []
    for _, files in groupby(manifest.files, lambda file: file.partition):
        for file in files:
            if file.records and file.last_ms >= time_ms:
                break
            gone.append(file)
    if not gone:
        return manifest, []
    found = store.commit(replace(manifest.with_files((), without=gone), written_ms=now_ms, by=by))
    store.remove(manifest.topic, [file.name for file in gone if file.name])
    return found, gone
