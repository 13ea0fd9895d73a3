"""An archive as the target of a follower: each commit lists new files in the manifests of topics.

A manifest is written only if its number is free. The one before it must end where this owner of a partition has begun, and the
archive must not have been swept since (`upkeep`). So a record is in the archive once, whatever other owners,
`riverrun archive write`, compactions and sweeps do meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from riverrun.archive.archiving import begun, continued, require_same_topic
from riverrun.archive.parquet import FileWriter
from riverrun.errors import ArchiveError, EngineError, TaskMigratedError
from riverrun.kafka.tombstones import FOREVER_MS, Following, require_recent, since, whole_now
from riverrun.records import TopicPartition, Whole, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from riverrun.archive.manifest import ArchivedFile, ArchiveStore, TopicManifest
    from riverrun.kafka.admin import Admin
    from riverrun.processor.sinks import RefusedRecordsError
    from riverrun.records import OffsetRange, RawFields

_ATTEMPTS = 100
"""Attempts to write a manifest while other processes write theirs."""


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Records of one partition, in order of offsets, as they are."""

    tp: TopicPartition
    records: Sequence[RawFields]


class RawBatches:
    """Makes batches of records as they are, of which an archive refuses none (`Batches`)."""

    skipped = 0

    def batch(self, tp: TopicPartition, records: Sequence[RawFields]) -> RawBatch:
        return RawBatch(tp, records)

    def refuse(self, error: RefusedRecordsError) -> None:
        """Raise the error."""
        raise error

    def committed(self, _offsets: Mapping[TopicPartition, int]) -> None:
        """Do nothing."""


class ArchiveSink:
    """Archives partitions of topics.

    Args:
        may_skip: Whether to continue after records that neither the archive nor the topic has any more.
        on_listed: Called with a topic after each manifest that this owner has written.
    """

    def __init__(
        self,
        store: ArchiveStore,
        admin: Admin,
        *,
        may_skip: bool = False,
        on_listed: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        self._store, self._admin, self._on_listed = store, admin, on_listed
        self._may_skip = may_skip
        self._first: dict[str, TopicManifest] = {}
        self._known: dict[str, int] = {}
        self._listed: dict[TopicPartition, int | None] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._writers: dict[TopicPartition, FileWriter] = {}
        self._following: dict[TopicPartition, Following] = {}
        self._noted: dict[str, tuple[int, int]] = {}
        """By compacted topic, the time (ms) that the manifest has last got from this owner, and `delete.retention.ms`."""

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Take over exactly these partitions, and return the first offset of each that is not archived."""
        self._discard()
        self._first, self._listed, self._starts = {}, {}, {}
        self._following, self._noted = {}, {}
        for topic in sorted({tp.topic for tp in partitions}):
            with self._answering():
                stored = self._store.manifest(topic)
            found = begun(self._admin, topic, stored, self._store.url)
            starts = continued(self._admin, found, may_skip=self._may_skip)
            # A later manifest with `swept` above this number may have removed files that this owner is still to list.
            self._first[topic], self._known[topic] = found, found.number
            now = whole_now(self._admin, [topic])
            for tp in starts.keys() & {*partitions}:
                if now.kept_ms != FOREVER_MS:
                    self._noted[topic] = (0, now.kept_ms)
                    self._following[tp] = Following(since(found.whole_at(tp.partition), now))
                self._starts[tp], self._listed[tp] = starts[tp], found.end(tp.partition)
        return dict(self._starts)

    def write(self, batch: RawBatch) -> None:
        """Add records to the next file of a partition."""
        tp = batch.tp
        with self._answering():
            if tp not in self._writers:
                self._writers[tp] = FileWriter(self._store, tp.topic, tp.partition, self._starts[tp])
            self._writers[tp].write(batch.records)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Complete files, and list them: for each topic all or nothing."""
        written: dict[str, list[TopicPartition]] = defaultdict(list)
        for tp in sorted(self._writers):
            written[tp.topic].append(tp)
        for topic, own in written.items():
            # Before the files are completed: if brokers do not answer now, the writers still have every record.
            wholes = self._wholes({tp: offsets[tp] for tp in own})
            with self._answering():
                files = [file for tp in own for file in self._writers[tp].files(offsets[tp])]
                for tp in own:
                    self._writers.pop(tp).close()
                self._list(topic, files, own, wholes)
            for tp in own:
                self._starts[tp] = self._listed[tp] = offsets[tp]
            self._on_listed(topic)

    def to_read_again(self, _starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
        """Return nothing: `begin` refuses to continue where deletions may be missing."""
        return {}

    def require_recent(self) -> None:
        """Make sure that nothing was missed among what was read just now."""
        for following in () if self._may_skip else self._following.values():
            require_recent(self._admin, following.whole)

    def look(self, reached: Mapping[TopicPartition, int]) -> None:
        """Note how far the archive is, and write it to the manifest from time to time."""
        # An open writer has records that no manifest lists, so `reached` is ahead of the archive.
        if self._writers:
            return
        for topic, (listed, kept_ms) in list(self._noted.items()):
            wholes = self._wholes({tp: offset for tp, offset in reached.items() if tp.topic == topic})
            oldest_ms = min((time_ms for time_ms, _ in wholes.values()), default=listed)
            # A quiet topic costs four manifests per `delete.retention.ms`, and its noted time never becomes too old.
            if oldest_ms - listed > kept_ms // 4:
                with self._answering():
                    self._list(topic, [], [tp for tp in reached if tp.topic == topic], wholes)

    def note(self) -> str:
        """Return nothing: the manifest says when the archive was whole."""
        return ""

    def _wholes(self, archived: Mapping[TopicPartition, int]) -> dict[int, tuple[int, int]]:
        """Return when the archive had all of partitions of a topic, where that is known and matters."""
        own = {tp: offset for tp, offset in archived.items() if tp in self._following}
        if not own:
            return {}
        now_ms, ends = self._admin.clock.noted_ms(), self._admin.end_offsets(own)
        found = {}
        for tp, offset in own.items():
            following = self._following[tp]
            following.look(Whole(now_ms, self._noted[tp.topic][1]), {tp: ends[tp]}, {tp: offset})
            if (whole := following.whole) is not None:
                found[tp.partition] = (whole.time_ms, whole.kept_ms)
        return found

    def _list(
        self,
        topic: str,
        files: list[ArchivedFile],
        own: Collection[TopicPartition],
        wholes: Mapping[int, tuple[int, int]],
    ) -> None:
        """List files in the manifest that follows the latest one of a topic."""
        for _ in range(_ATTEMPTS):
            found = self._store.manifest(topic) or replace(
                self._first[topic], number=0, files=(), swept=0, _by_partition={}
            )
            require_same_topic(found, self._first[topic].topic_id, self._store.url)
            migrated = [tp for tp in own if found.end(tp.partition) != self._listed[tp]]
            if migrated or found.swept > self._known[topic]:
                # No manifest lists these files, so no reader can have them.
                self._store.remove(topic, [file.name for file in files if file.name])
                doing = (
                    f"has archived {', '.join(map(str, migrated))}" if migrated else f"has swept the files of {topic}"
                )
                message = f"Another archiver {doing}"
                raise TaskMigratedError(message)
            # The first manifest may be that of a sweep, which has neither files nor the topic's id.
            if not found.topic_id:
                first = self._first[topic]
                found = replace(found, topic_id=first.topic_id, timestamp_type=first.timestamp_type)
            partitions = max(found.partitions, self._first[topic].partitions)
            changed = replace(found.with_files(files), partitions=partitions)
            others = {
                number: each for number, each in found.whole.items() if number not in {tp.partition for tp in own}
            }
            changed = replace(changed, whole={**others, **wholes})
            if (written := self._store.commit_unless_taken(changed)) is not None:
                if wholes:
                    self._noted[topic] = (min(time_ms for time_ms, _ in wholes.values()), self._noted[topic][1])
                self._known[topic] = written.number
                return
        self._store.remove(topic, [file.name for file in files if file.name])
        message = (
            f"Gave up after {counted(_ATTEMPTS, 'attempt')}: the manifest of {topic} keeps being modified concurrently"
        )
        raise EngineError(message, hint="Let fewer processes archive a topic.")

    def _discard(self) -> None:
        """Forget records that were not committed, and remove their files."""
        while self._writers:
            tp, writer = self._writers.popitem()
            writer.close()
            with self._answering():
                self._store.remove(tp.topic, writer.uploaded)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        # A follower retries an `EngineError`, and ends at any other error.
        try:
            yield
        except ArchiveError as error:
            raise EngineError(error.message, hint=error.hint) from error
