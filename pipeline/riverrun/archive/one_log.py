"""An archive and a topic as one log: the archive has the records up to its end, and brokers have the rest."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING

from riverrun.archive.archiving import require_deletions, require_same_topic
from riverrun.archive.manifest import ArchiveStore
from riverrun.errors import ArchiveError
from riverrun.kafka.ranges import read_fields
from riverrun.records import RAW_OFFSET, OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.archive.manifest import ArchivedFile, TopicManifest
    from riverrun.kafka.admin import Admin
    from riverrun.records import RawFields

_INTERNAL = ("-changelog", "-repartition", "-committed-offsets")
"""Suffixes of an application's own topics, which no archive is asked for."""
_COMPARED = 100
"""Number of records at the end of each archived partition that are compared with those that brokers still have."""


class ArchivedLog:
    """The archived records that precede those of topics (`EarlierRecords`).

    Manifests are read when a topic is asked for. They are read again if a range needs more than they list, or if one of their
    files is gone: a process may live longer than files that are compacted.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._manifests: dict[str, TopicManifest | None] = {}
        self._checked: set[TopicPartition] = set()
        self._lock = threading.Lock()

    # Opened on demand: some file systems connect at once, and most processes never ask for archived records.
    @cached_property
    def _store(self) -> ArchiveStore:
        return ArchiveStore(self._url)

    def ranges(self, admin: Admin, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetRange]:
        """Return the archived ranges that reach the starts of partitions' logs without a hole."""
        found: dict[TopicPartition, OffsetRange] = {}
        for topic in {tp.topic for tp in starts if not tp.topic.endswith(_INTERNAL)}:
            own = {tp: start for tp, start in starts.items() if tp.topic == topic}
            reaching = self._reaching(admin, topic, own)
            # An archiver may have added files since the manifest was read.
            if len(reaching) < sum(start > 0 for start in own.values()):
                self._forget(topic)
                reaching = self._reaching(admin, topic, own)
            found |= reaching
        self._check(admin, found, starts)
        return found

    def check_seam(self, admin: Admin, tp: TopicPartition) -> None:
        """Make sure that brokers still have the deletions that follow the last archived record."""
        manifest = self._manifest(admin, tp.topic)
        end = None if manifest is None else manifest.end(tp.partition)
        if manifest is not None and end is not None:
            require_deletions(admin, manifest, {tp: end})

    def read(self, tp: TopicPartition, wanted: OffsetRange) -> Iterator[list[RawFields]]:
        """Yield the records of a range, in batches."""
        from riverrun.archive.parquet import read_file  # noqa: PLC0415 - pyarrow loads for long

        manifest: TopicManifest | None = self._covering(tp, wanted)
        while manifest is not None:
            try:
                for file in _overlapping(manifest, tp, wanted):
                    for batch in read_file(self._store, tp.topic, file, wanted):
                        yield batch
                        # If a compaction removes the next file, another manifest continues here, without a record twice.
                        wanted = OffsetRange(batch[-1][RAW_OFFSET] + 1, wanted.end) if batch else wanted
            except ArchiveError:
                manifest = self._later(manifest, tp, wanted)
                if manifest is None:
                    raise
            else:
                return

    def offset_at(self, tp: TopicPartition, wanted: OffsetRange, time_ms: int) -> int | None:
        """Return the offset of the first record of a range with a time or a later one; None if there is none."""
        from riverrun.archive.parquet import offset_at  # noqa: PLC0415 - pyarrow loads for long

        manifest: TopicManifest | None = self._covering(tp, wanted)
        while manifest is not None:
            try:
                offsets = (
                    offset_at(self._store, tp.topic, file, wanted, time_ms)
                    for file in _overlapping(manifest, tp, wanted)
                )
                return next((found for found in offsets if found is not None), None)
            except ArchiveError:
                manifest = self._later(manifest, tp, wanted)
                if manifest is None:
                    raise
        return None

    def _reaching(
        self, admin: Admin, topic: str, starts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetRange]:
        manifest = self._manifest(admin, topic)
        last = {tp: manifest.stretches(tp.partition)[-1:] if manifest else [] for tp in starts}
        return {tp: found for tp, stretch in last.items() for found in stretch if found.end >= starts[tp]}

    def _forget(self, topic: str) -> None:
        with self._lock:
            self._manifests.pop(topic, None)

    def _manifest(self, admin: Admin, topic: str) -> TopicManifest | None:
        with self._lock:
            if topic not in self._manifests:
                self._manifests[topic] = self._store.manifest(topic)
            found = self._manifests[topic]
        if found is not None:
            topic_id = admin.topic_ids([topic]).get(topic)
            if topic_id is not None and topic_id != found.topic_id:
                # The next question reads the manifest again: by then, the new topic may have been archived.
                self._forget(topic)
                require_same_topic(found, topic_id, self._url)
        return found

    def _covering(self, tp: TopicPartition, wanted: OffsetRange) -> TopicManifest:
        """Return a manifest with a whole range; it is read again if the known one lacks a part."""
        for look_again in (False, True):
            with self._lock:
                if look_again or tp.topic not in self._manifests:
                    self._manifests[tp.topic] = self._store.manifest(tp.topic)
                found = self._manifests[tp.topic]
            stretches = found.stretches(tp.partition) if found else []
            if found and any(each.start <= wanted.start and wanted.end <= each.end for each in stretches):
                return found
        message = f"The archive at {self._url} lacks a part of {tp}@{wanted}"
        raise ArchiveError(message, hint=f"riverrun archive list {self._url} shows its ranges.")

    def _later(self, known: TopicManifest, tp: TopicPartition, wanted: OffsetRange) -> TopicManifest | None:
        """Return a newer manifest with a range; None if `known`, one of whose files is missing, is the latest."""
        with self._lock:
            # Another thread may have read a later one meanwhile, which stays.
            if self._manifests.get(tp.topic) == known:
                self._manifests.pop(tp.topic)
        found = self._covering(tp, wanted)
        return None if found == known else found

    def _check(
        self, admin: Admin, found: Mapping[TopicPartition, OffsetRange], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Compare the last archived records with those of the topic, once for each partition."""
        seams = {
            tp: OffsetRange(max(archived.start, starts[tp], archived.end - _COMPARED), archived.end)
            for tp, archived in found.items()
            if tp not in self._checked
        }
        seams = {tp: seam for tp, seam in seams.items() if seam.size}
        if seams:
            kept: dict[TopicPartition, list[RawFields]] = {tp: [] for tp in seams}
            # `alone`: the records of brokers only, as `admin` itself may read this archive.
            for tp, batch in read_fields(admin.alone(), seams):
                kept[tp] += batch
            for tp, seam in seams.items():
                self._compare(tp, kept[tp], [record for batch in self.read(tp, seam) for record in batch])
        self._checked |= found.keys()

    def _compare(self, tp: TopicPartition, kept: list[RawFields], archived: list[RawFields]) -> None:
        """Refuse records of brokers that the archive lacks, or that differ."""
        known = {record[RAW_OFFSET]: record for record in archived}
        # Only in this direction: brokers may have compacted archived records away.
        other = next((record for record in kept if known.get(record[RAW_OFFSET]) != record), None)
        if other is not None:
            message = f"The archive at {self._url} has another record at {tp}@{other[RAW_OFFSET]} than the topic"
            raise ArchiveError(message, hint="It is the archive of another cluster's topic, or was changed.")


def _overlapping(manifest: TopicManifest, tp: TopicPartition, wanted: OffsetRange) -> Iterator[ArchivedFile]:
    """Yield the files that may have records of a range."""
    return (file for file in manifest.of(tp.partition) if file.start < wanted.end and file.end > wanted.start)
