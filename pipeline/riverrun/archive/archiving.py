"""Archives what topics have got since they were archived last, in pieces of ranges with separate files.

The manifest of a topic is written after the files that it lists. So an interrupted archiver leaves files that nobody reads, and
the next one continues after the last range that a manifest has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from riverrun.archive.manifest import ArchivedFile, ArchiveStore, TopicManifest, nothing_of
from riverrun.decoders import json_decoder
from riverrun.errors import ArchiveError
from riverrun.kafka.ranges import read_fields
from riverrun.kafka.tombstones import FOREVER_MS, oldest, require_recent, since, whole_now, why_incomplete
from riverrun.records import OffsetRange, TopicPartition, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.kafka.door import Kafka
    from riverrun.records import Whole

PIECE = 1_000_000
"""Offsets of a piece, at most. An interruption loses the pieces that no manifest lists yet."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of offsets of one partition that is written at a time."""

    tp: TopicPartition
    range: OffsetRange


@dataclass(frozen=True, slots=True)
class Archived:
    """The outcome of archiving a topic.

    Args:
        manifest: The topic's manifest now.
        offsets: Number of offsets that were added.
        records: Number of records in them.
        size: Bytes of the new files.
    """

    manifest: TopicManifest
    offsets: int = 0
    records: int = 0
    size: int = 0


class WritesPieces(Protocol):
    """Writes pieces, in this process or elsewhere."""

    def __call__(self, pieces: list[Piece]) -> Iterable[tuple[ArchivedFile, ...]]:
        """Yield the files of each piece, in order."""
        ...


def write_piece(piece: Piece, url: str, admin: Admin) -> tuple[ArchivedFile, ...]:
    """Write the files of a piece, and return how a manifest lists them."""
    from riverrun.archive.parquet import FileWriter  # noqa: PLC0415 - pyarrow loads for long

    with FileWriter(ArchiveStore(url), piece.tp.topic, piece.tp.partition, piece.range.start) as writer:
        for _, batch in read_fields(admin, {piece.tp: piece.range}):
            writer.write(batch)
        return writer.files(piece.range.end)


def in_this_process(url: str, admin: Admin) -> WritesPieces:
    """Return the function that writes pieces here, one after the other."""

    def write(pieces: list[Piece]) -> Iterator[tuple[ArchivedFile, ...]]:
        return (write_piece(piece, url, admin) for piece in pieces)

    return write


def archive_topic(
    store: ArchiveStore,
    admin: Admin,
    topic: str,
    write: WritesPieces,
    *,
    at_once: int = 1,
    by: str = "",
    now_ms: int = 0,
    may_skip: bool = False,
    on_offsets: Callable[[int, int], None] = lambda _done, _all: None,
) -> Archived:
    """Archive the records of a topic from the end of the archive up to the last stable offset of each partition.

    A manifest is written after every `at_once` pieces. `on_offsets` gets the number of archived offsets, and of all to archive.
    """
    admin.require([topic], "are archived")
    found = begun(admin, topic, store.manifest(topic), store.url)
    # The time before the ends: once the archive has reached these ends, it has everything up to `now`.
    now = whole_now(admin, [topic])
    todo = _ranges(admin, found, may_skip=may_skip)
    pieces = [
        Piece(tp, OffsetRange(start, min(start + PIECE, whole.end)))
        for tp, whole in sorted(todo.items())
        for start in range(whole.start, whole.end, PIECE)
    ]
    done, everything = Archived(found), sum(each.size for each in todo.values())
    manifest = replace(found, by=by, written_ms=now_ms)
    last = max(len(pieces) - 1, 0) // at_once * at_once
    begun_with = {number: since(found.whole_at(number), now) for number in range(manifest.partitions)}
    known = oldest(begun_with.values())
    # A quiet topic has nothing to archive. The note that the archive is whole must still not become older than brokers keep
    # deletions; a quarter of that time keeps manifests few.
    if not pieces and found.files and known is not None and now.time_ms - known.time_ms > now.kept_ms // 4:
        manifest = _noted(manifest, dict.fromkeys(begun_with, now))
        done = Archived(store.commit(manifest))
    for first in range(0, len(pieces), at_once):
        some = pieces[first : first + at_once]
        files = [file for each in write(some) for file in each]
        # Before the manifest: once its ranges are listed, nothing shows that they were read too late.
        require_recent(admin, None if may_skip else known)
        # Only the last pieces reach the ends that were asked for after `now`.
        manifest = _noted(manifest, dict.fromkeys(begun_with, now) if first == last else begun_with)
        manifest = store.commit(manifest.with_files(files), files)
        done = Archived(
            manifest,
            done.offsets + sum(piece.range.size for piece in some),
            done.records + sum(file.records for file in files),
            done.size + sum(file.size for file in files),
        )
        on_offsets(done.offsets, everything)
    return done


def _noted(manifest: TopicManifest, wholes: Mapping[int, Whole]) -> TopicManifest:
    """Return the manifest with the time at which each partition was whole, if brokers forget deletions of the topic."""
    known = {number: (each.time_ms, each.kept_ms) for number, each in wholes.items() if each.kept_ms != FOREVER_MS}
    return replace(manifest, whole={**{n: each for n, each in manifest.whole.items() if n not in wholes}, **known})


def begun(admin: Admin, topic: str, found: TopicManifest | None, url: str) -> TopicManifest:
    """Return the manifest of a topic to continue from, as brokers describe the topic now."""
    described = admin.topics([topic])[topic]
    times = admin.topic_configs([topic]).get(topic, {}).get("message.timestamp.type", "CreateTime")
    found = found or nothing_of(topic)
    require_same_topic(found, described.id, url)
    return replace(found, topic_id=described.id, partitions=described.partitions, timestamp_type=times)


def require_same_topic(manifest: TopicManifest, topic_id: str, url: str) -> None:
    """Refuse the archive of an earlier topic of the same name."""
    if manifest.topic_id not in {"", topic_id}:
        message = (
            f"The archive at {url} is of an earlier topic {manifest.topic} (id {manifest.topic_id}, now {topic_id})"
        )
        hint = (
            "Its offsets mean other records. Archive it to another URL, or drop the earlier one: riverrun archive drop"
        )
        raise ArchiveError(message, hint=hint)


def _ranges(admin: Admin, manifest: TopicManifest, *, may_skip: bool) -> Mapping[TopicPartition, OffsetRange]:
    starts = continued(admin, manifest, may_skip=may_skip)
    ends = admin.end_offsets([*starts])
    return {tp: OffsetRange(start, ends[tp]) for tp, start in starts.items() if ends[tp] > start}


def continued(admin: Admin, manifest: TopicManifest, *, may_skip: bool) -> dict[TopicPartition, int]:
    """Return by partition the next offset to archive; `may_skip` allows records that archive and topic both lack."""
    tps = [TopicPartition(manifest.topic, number) for number in range(manifest.partitions)]
    starts = admin.log_starts(tps)
    reached = {tp: manifest.end(tp.partition) for tp in tps}
    _require_whole(manifest, reached, starts, may_skip=may_skip)
    if not may_skip:
        require_deletions(admin, manifest, {tp: end for tp, end in reached.items() if end is not None})
    return {tp: max(starts[tp], reached[tp] or 0) for tp in tps}


def require_deletions(admin: Admin, manifest: TopicManifest, ends: Mapping[TopicPartition, int]) -> None:
    """Make sure that a compacted topic still has the deletions that follow `ends`, the end offsets of the archive."""
    now = whole_now(admin, [manifest.topic])
    reasons = (why_incomplete(admin, manifest.whole_at(tp.partition), now, {tp: end}) for tp, end in ends.items())
    reason = next(filter(None, reasons), None)
    if reason is not None:
        message = f"The archive of {manifest.topic} lacks deletions, or may: {reason}"
        hint = reason.hint(
            "Archive the topic again, after riverrun archive drop, and then more often than brokers keep deletions. --skip-lost"
            " continues, and rows that were deleted meanwhile stay in the archive."
        )
        raise ArchiveError(message, hint=hint)


def _require_whole(
    manifest: TopicManifest,
    reached: Mapping[TopicPartition, int | None],
    starts: Mapping[TopicPartition, int],
    *,
    may_skip: bool,
) -> None:
    lost = {tp: (end, starts[tp]) for tp, end in reached.items() if end is not None and end < starts[tp]}
    if lost and not may_skip:
        places = "; ".join(f"{tp} {end}..{start}" for tp, (end, start) in sorted(lost.items()))
        count = counted(sum(start - end for end, start in lost.values()), "offset")
        message = f"Topic {manifest.topic} has lost {count} since it was archived: {places}"
        hint = (
            "Archive more often than records are deleted. --skip-lost continues after them; what needs earlier records"
            " is refused."
        )
        raise ArchiveError(message, hint=hint)


def on_spark(url: str, kafka: Kafka, spark: Any, client: Callable[[Kafka], Admin]) -> WritesPieces:
    """Return the function that writes pieces on Spark's executors, one task each; `client` is shared by an executor's tasks."""
    return partial(_on_spark, url, kafka, spark, client)


def _on_spark(
    url: str, kafka: Kafka, spark: Any, client: Callable[[Kafka], Admin], pieces: list[Piece]
) -> Iterator[tuple[ArchivedFile, ...]]:
    def process(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - loads for long

        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                files = write_piece(pieces[number], url, client(kafka))
                yield pa.RecordBatch.from_pydict({"piece": [number], "files": [msgspec.json.encode(files)]})

    # As many partitions as pieces, so that Spark repeats only the piece that failed. Names of files are random: a repetition
    # never overwrites the files of the attempt before, which nothing lists.
    rows = spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(process, "piece long, files binary").collect()
    decode = json_decoder(tuple[ArchivedFile, ...]).decode
    return iter([decode(bytes(row["files"])) for row in sorted(rows, key=lambda row: row["piece"])])
