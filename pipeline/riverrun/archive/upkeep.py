"""Keeps an archive in order: checks its files, joins small ones, drops the oldest, and sweeps what killed archivers have left.

A file without a manifest may also belong to a running archiver, or to one that was paused and resumes in a week. So a sweep
first takes away their chance to list it, and does not trust clocks for that:

1. It reads manifest N, then lists the data. It chooses the files that N neither lists nor has replaced.
2. It writes manifest N + 1, which has its own number as `swept`. If another process has written N + 1, a chosen file may be
   listed by now: the sweep is refused, and removes nothing.
3. It removes the files.

An archiver or a compaction that had uploaded such a file has read manifest N or an earlier one. It lists files in the next
number only, which is taken, so it is refused. A follower lists its files in any later manifest, so it compares. If `swept` is
above the number that it knew before it wrote them, they may be gone. It then begins again after the last listed offset.
A topic without a manifest has number 0. Its sweep writes number 1, without files and without the topic's id, and the first
archiver continues from there. That manifest stays: without it, an archiver that was paused could write number 1.

A list of files may lack a file, which then stays. It may not lack a manifest; lists of S3, Google Cloud Storage, Azure Blob
Storage and local disks do not.

The age of files only avoids disturbance: a sweep that leaves young files alone refuses no running archiver. It also covers
followers of earlier versions, which do not compare.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from riverrun.archive.manifest import place_of
from riverrun.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.archive.manifest import ArchivedFile, ArchiveStore, TopicManifest

MOST_KEYS = 2_000_000
"""Keys that a compaction has in memory at a time; each takes about 100 bytes."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that cannot be used, and why."""

    file: ArchivedFile
    reason: str


def verify(
    store: ArchiveStore, manifest: TopicManifest, on_file: Callable[[ArchivedFile], None] = lambda _file: None
) -> Iterator[Damage]:
    """Yield the files of a topic that are missing or damaged. All bytes are read, even those that this process has checked."""
    for file in manifest.files:
        if file.records:
            try:
                _verify(store, manifest.topic, file)
            except ArchiveError as error:
                yield Damage(file, error.message)
        on_file(file)


def _verify(store: ArchiveStore, topic: str, file: ArchivedFile) -> None:
    from riverrun.archive.verified import SCHEMA, opened  # noqa: PLC0415 - pyarrow loads for long

    with opened(store, topic, file, again=True) as content:
        for number in content.groups(file.range):
            content.rows(number, *SCHEMA.names)


def compact(store: ArchiveStore, manifest: TopicManifest, *, below: int) -> TopicManifest:
    """Join files of a partition that follow each other and are smaller than `below` bytes, until none are left."""
    return _rewritten(store, manifest, ((some, {}) for some in _runs(manifest, below)))


def compact_by_key(store: ArchiveStore, manifest: TopicManifest, *, most_keys: int = MOST_KEYS) -> TopicManifest:
    """Drop the records that a later one in the archive with their key has superseded, as brokers compact topics.

    The last record of each key stays with its offset, even if it is a tombstone; so do records without a key. Files that change
    are joined with changed neighbours. `most_keys` bounds the keys in memory.
    """

    def changed() -> Iterator[tuple[list[ArchivedFile], Mapping[ArchivedFile, bytearray]]]:
        for _, files in groupby(manifest.files, lambda file: file.partition):
            superseded = _superseded(store, manifest.topic, [*files], most_keys)
            yield from ((some, superseded) for some in _changed(superseded))

    return _rewritten(store, manifest, changed())


def _rewritten(
    store: ArchiveStore,
    manifest: TopicManifest,
    runs: Iterable[tuple[list[ArchivedFile], Mapping[ArchivedFile, bytearray]]],
) -> TopicManifest:
    """Join each run of files to new ones, without its superseded records."""
    _require_replacements(store, manifest)
    added: list[ArchivedFile] = []
    gone: list[ArchivedFile] = []
    for files, superseded in runs:
        added += _joined(store, manifest.topic, files, superseded)
        gone += files
    # Without a file to join, a manifest is still due if the last compaction has left replaced files to remove.
    if not gone and not manifest.replaced:
        return manifest
    names = tuple(file.name for file in gone if file.name)
    found = store.commit(replace(manifest.with_files(added, without=gone), replaced=names), added)
    # Files replaced by this compaction stay until the next one, for readers that have an earlier manifest.
    store.remove(manifest.topic, manifest.replaced)
    return found


def _require_replacements(store: ArchiveStore, manifest: TopicManifest) -> None:
    """Make sure that the files of the last compaction are whole, before those that they have replaced are removed."""
    from riverrun.archive.verified import opened  # noqa: PLC0415 - pyarrow loads for long

    for name in manifest.replaced:
        partition, start, end = place_of(name)
        for file in manifest.of(partition):
            if not (file.records and file.start < end and file.end > start):
                continue
            try:
                with opened(store, manifest.topic, file):
                    pass
            except ArchiveError as error:
                hint = f"{store.path(manifest.topic, name)}, which it has replaced, is still there. {error.hint or ''}"
                raise ArchiveError(error.message, hint=hint.strip()) from error


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


def _joined(
    store: ArchiveStore, topic: str, files: list[ArchivedFile], superseded: Mapping[ArchivedFile, bytearray]
) -> tuple[ArchivedFile, ...]:
    from riverrun.archive.parquet import FileWriter, read_file  # noqa: PLC0415 - pyarrow loads for long

    with FileWriter(store, topic, files[0].partition, files[0].start) as writer:
        for file in files:
            rows = iter(superseded.get(file) or bytearray(file.records))
            for batch in read_file(store, topic, file, file.range):
                # `batch` comes first: `zip` stops at its end without taking a flag that belongs to the next batch.
                writer.write(record for record, is_gone in zip(batch, rows) if not is_gone)  # noqa: B905 - of one batch
        return writer.files(files[-1].end)


def _superseded(
    store: ArchiveStore, topic: str, files: list[ArchivedFile], most_keys: int
) -> dict[ArchivedFile, bytearray]:
    """Return by file of a partition, for each of its records, whether a later one has its key."""
    from riverrun.archive.parquet import read_keys  # noqa: PLC0415 - pyarrow loads for long

    found = {file: bytearray(file.records) for file in files if file.records}
    # The number of distinct keys is unknown, so memory is planned for as many as records. Each pass reads all keys again, and
    # keeps those whose digest belongs to it.
    passes = 1 + sum(file.records for file in files) // most_keys
    for number in range(passes):
        seen: set[bytes] = set()
        # From the end: the first record seen of a key is the one that stays.
        for file in reversed(found):
            keys = read_keys(store, topic, file)
            for row in range(file.records - 1, -1, -1):
                if (key := keys[row]) is None:
                    continue
                digest = hashlib.blake2b(key, digest_size=16).digest()
                if int.from_bytes(digest[:4]) % passes != number:
                    continue
                if digest in seen:
                    found[file][row] = True
                seen.add(digest)
    return found


def _changed(superseded: Mapping[ArchivedFile, bytearray]) -> Iterator[list[ArchivedFile]]:
    """Yield runs of files that follow each other, of which each has superseded records."""
    run: list[ArchivedFile] = []
    for file, rows in superseded.items():
        has_some = any(rows)
        if run and not (has_some and run[-1].end == file.start):
            yield run
            run = []
        if has_some:
            run.append(file)
    if run:
        yield run


def drop_before(store: ArchiveStore, manifest: TopicManifest, time_ms: int) -> tuple[TopicManifest, list[ArchivedFile]]:
    """Drop the oldest files whose records are all earlier than a time."""
    gone: list[ArchivedFile] = []
    for _, files in groupby(manifest.files, lambda file: file.partition):
        for file in files:
            # All later files stay as well, even older ones: a partition must not get a hole.
            if file.records and file.last_ms >= time_ms:
                break
            gone.append(file)
    if not gone:
        return manifest, []
    # The manifest first: an interrupted drop leaves files that nothing lists, never listed files that are missing.
    found = store.commit(manifest.with_files((), without=gone))
    store.remove(manifest.topic, [file.name for file in gone if file.name])
    return found, gone


@dataclass(frozen=True, slots=True)
class Leftover:
    """A data file that no manifest lists.

    Args:
        name: Its name below the topic's `data`.
        size: Size, bytes.
        modified_ms: Time of its last change by the file store's clock, ms since the epoch.
    """

    name: str
    size: int
    modified_ms: int


def leftovers(store: ArchiveStore, manifest: TopicManifest) -> list[Leftover]:
    """Return the data files that a manifest does not know, by name."""
    known = {file.name for file in manifest.files} | {*manifest.replaced}
    sizes = store.data(manifest.topic)
    found = {name: store.modified_ms(manifest.topic, name) for name in sorted(sizes.keys() - known)}
    return [Leftover(name, sizes[name], written_ms) for name, written_ms in found.items() if written_ms is not None]


def sweep(store: ArchiveStore, manifest: TopicManifest, before_ms: int) -> tuple[TopicManifest, list[Leftover]]:
    """Remove the leftovers that are older than a time, and return them with the new manifest."""
    old = [each for each in leftovers(store, manifest) if each.modified_ms < before_ms]
    if not old:
        return manifest, []
    # Taking the number refuses all who could still list one of the files; only then can they go.
    found = store.commit(replace(manifest, swept=manifest.number + 1))
    store.remove(manifest.topic, [each.name for each in old])
    return found, old
