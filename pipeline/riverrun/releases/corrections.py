"""Publishes corrections of tables, and logs that only the new version writes, during a switch. Keeps rows for a rollback."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from riverrun.errors import RangeError, TaskMigratedError, VersionConflictError
from riverrun.hosting.kept_offsets import KeptOffsets, keep
from riverrun.hosting.progress import counted_batches, report_progress
from riverrun.hosting.release import staging_name
from riverrun.kafka.producer import LONGEST_TRANSACTION_MS, TransactionalProducer
from riverrun.kafka.ranges import read_fields
from riverrun.kafka.tombstones import oldest, require_recent, since, whole_now, why_incomplete
from riverrun.records import RAW_KEY, RAW_OFFSET, OffsetRange, TopicPartition, Whole
from riverrun.releases.differ import Differ, everything
from riverrun.releases.difference import Side, keyless
from riverrun.releases.topology import logs, outputs, tables
from riverrun.releases.versions import create_staging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.hosting.control_topic import ReleaseRegistry
    from riverrun.hosting.release import Release
    from riverrun.kafka.admin import Admin, CommittedOffset
    from riverrun.processor.handlers import ProducerRecord
    from riverrun.records import RawFields, Send
    from riverrun.releases.scope import Scope

# Bounds the rows in memory while a staging table is filled, and what a copy repeats after a crash.
_TRANSACTION_RECORDS = 50_000
Changed: TypeAlias = "Callable[[TopicPartition, RawFields], tuple[bytes | None, Sequence[ProducerRecord]]]"
"""Returns the value to write in place of a record's, and further records to write."""


class Corrections:
    """Makes public tables equal to a version's staging tables, or staging tables equal to the public ones.

    `mine` is the release as this process wrote it last. Counts of published records include earlier attempts of a switch.
    """

    def __init__(self, app: str, registry: ReleaseRegistry) -> None:
        self._app = app
        self._registry = registry

    def read_ahead(self, new: ConnectedApplication) -> None:
        """Read the public tables and those of a version as they are now, so that little is left to read at the switch."""
        for topic in tables(new.application):
            with Differ.of(new, topic) as differ:
                differ.advance(*differ.stable_ends())

    def publish(self, new: ConnectedApplication, mine: Release, scope: Scope | None = None) -> int:
        """Make the public tables equal to those of a version. Logs are not changed."""
        kinds = outputs(new.application)
        chosen = [topic for topic in tables(new.application) if scope is None or scope.is_about(topic, kinds)]
        return sum(
            self._brought(new, topic, f"{self._app}-corrections-{topic}", mine, Side.OLD, scope=scope)
            for topic in chosen
        )

    def publish_logs(
        self, new: ConnectedApplication, old: ConnectedApplication, mine: Release
    ) -> tuple[int, dict[str, int]]:
        """Publish the records of logs that only the new version writes: those not published before, exactly once.

        Neither version writes during this call. Return also how far staging topics are published (`Release.published`).
        """
        # Of logs that both versions write, the public topic has the old version's records, so the new one's count as published.
        known = set(outputs(old.application))
        count, published = 0, dict(mine.published)
        for topic in logs(new.application):
            with conflicts(mine):
                more, ends = self._sent(new, topic, mine, is_new=topic not in known)
            count += more
            published |= ends
        return count, published

    def publish_run(self, version: ConnectedApplication, mine: Release) -> tuple[int, dict[str, int]]:
        """Publish what a run of the live version has written to its staging topics: rows that differ, and records of logs.

        Nothing writes to these topics during this call; `mine.switch` is the run's id.
        """
        count, published = self.publish(version, mine), dict(mine.published)
        for topic in staged_logs(version):
            with conflicts(mine):
                more, ends = self._sent(version, topic, mine, is_new=True)
            count += more
            published |= ends
        return count, published

    def interrupt(self, new: ConnectedApplication) -> None:
        """End the transactions in which another attempt publishes logs, or has died."""
        for topic in logs(new.application):
            producer = self._producer(new.admin, topic)
            try:
                producer.init()
            finally:
                producer.close()

    def _producer(self, admin: Admin, topic: str) -> TransactionalProducer:
        name = f"{self._app}-corrections-{topic}"
        return TransactionalProducer(admin.kafka, name, transaction_timeout_ms=LONGEST_TRANSACTION_MS, admin=admin)

    def _sent(
        self, new: ConnectedApplication, topic: str, mine: Release, *, is_new: bool
    ) -> tuple[int, dict[str, int]]:
        admin, staging = new.admin, staging_name(new.id, topic)
        topic_id = admin.topic_ids([staging])[staging]
        tps = [TopicPartition(staging, number) for number in range(admin.partitions([staging])[staging])]
        producer = self._producer(admin, topic)
        try:
            # This order: fence others, make sure that none of them has taken the release over, and only then read.
            producer.init()
            self._registry.require(mine)
            ends = admin.settled_end_offsets(tps)
            if not is_new:
                return 0, {published_name(topic_id, tp): end for tp, end in ends.items()}
            starts = admin.beginning_offsets(tps)
            starts = {
                tp: max(first, mine.published.get(published_name(topic_id, tp), 0)) for tp, first in starts.items()
            }
            count = 0
            note = f"{mine.switch}:{topic_id}"
            # Where an earlier attempt of the same switch ended; its positions were committed with its records.
            for tp, done in KeptOffsets(admin, new.id).noted(note, starts).items():
                starts[tp], count = max(starts[tp], done.offset), max(count, int(done.metadata))
            ranges = {tp: OffsetRange(min(start, ends[tp]), ends[tp]) for tp, start in starts.items()}

            def commit(where: Mapping[TopicPartition, int], sent: int) -> None:
                keep(producer, new.id, {tp: (offset, f"{note}:{sent}") for tp, offset in where.items()})
                producer.commit({}, "")

            count = copied(admin, ranges, topic, commit, producer.send, count)
            return count, {published_name(topic_id, tp): end for tp, end in ends.items()}
        finally:
            producer.close()

    def keep(self, old: ConnectedApplication, mine: Release, *, is_settled: bool = True) -> None:
        """Make a version's staging tables equal to what is public. A rollback starts from them.

        If something still publishes (`is_settled` is false), this only leaves less to do for a later call.
        """
        create_staging(old, grows=True)
        for topic in tables(old.application):
            self._brought(old, topic, _staging_transactional_id(old, topic), mine, Side.NEW, is_settled=is_settled)

    def fill(self, new: ConnectedApplication, mine: Release, topics: Iterable[str]) -> None:
        """Copy the rows that are public at present to staging tables of a candidate. Others may change them meanwhile."""
        create_staging(new)
        for topic in topics:
            staging = staging_name(new.id, topic)
            tps = [TopicPartition(staging, n) for n in range(new.admin.partitions([staging])[staging])]
            # What an earlier call has begun can only be compared, which builds an index on disk, key by key. That takes as long
            # as computing the table, so an empty one is filled while the public one is read.
            if any(new.admin.written_offsets(tps).values()):
                self._brought(new, topic, _staging_transactional_id(new, topic), mine, Side.NEW, is_settled=False)
            else:
                with conflicts(mine):
                    self._filled(new, topic, staging, mine)

    def _filled(self, new: ConnectedApplication, topic: str, staging: str, mine: Release) -> None:
        """Write the public rows; within a transaction, only the last one of each key."""
        admin = new.admin
        rows: dict[tuple[int, bytes], RawFields] = {}
        tps = [TopicPartition(topic, n) for n in range(admin.partitions([topic])[topic])]
        producer = TransactionalProducer(
            admin.kafka,
            _staging_transactional_id(new, topic),
            transaction_timeout_ms=LONGEST_TRANSACTION_MS,
            admin=admin,
        )

        def write() -> None:
            for (partition, key), (_, value, timestamp, _, headers) in rows.items():
                producer.send(staging, key, value, timestamp, headers, partition)
            rows.clear()
            producer.commit({}, "")

        try:
            producer.init()
            self._registry.require(mine)
            starts, ends = admin.beginning_offsets(tps), admin.stable_end_offsets(tps)
            ranges = {tp: OffsetRange(min(starts[tp], end), end) for tp, end in ends.items()}
            everything = sum(each.size for each in ranges.values())
            for tp, batch in counted_batches(f"publish to {staging}", read_fields(admin, ranges), everything):
                for fields in batch:
                    key = fields[RAW_KEY]
                    if key is None:
                        raise keyless(tp, fields[RAW_OFFSET])
                    rows[tp.partition, key] = fields
                if len(rows) >= _TRANSACTION_RECORDS:
                    write()
            write()
        finally:
            producer.close()

    def _brought(
        self,
        version: ConnectedApplication,
        topic: str,
        name: str,
        mine: Release,
        side: Side,
        *,
        is_settled: bool = True,
        scope: Scope | None = None,
    ) -> int:
        """Make the topic of one side equal to the other; the public topic is the old side, the staging topic the new one."""
        sink = version.topology.sink_of(topic)
        covers = everything if scope is None or sink is None else scope.covers(sink, topic)
        with conflicts(mine), Differ.of(version, topic, name) as differ:
            return differ.publish(
                lambda: self._registry.require(mine), mine.switch, side, is_settled=is_settled, covers=covers
            )


def staged_logs(version: ConnectedApplication) -> list[str]:
    """Return the logs that a version writes, and the topic of its dead letters if its configuration names one."""
    letters = version.application.config.streams.errors_dead_letter_queue_topic_name
    return [*logs(version.application), *([letters] if letters is not None else [])]


def ends_of_staged_logs(version: ConnectedApplication) -> dict[str, int]:
    """Return how far the staging topics of a version's logs are written, in the form of `Release.published`."""
    admin, found = version.admin, dict[str, int]()
    for name in (staging_name(version.id, topic) for topic in staged_logs(version)):
        topic = admin.topics([name])[name]
        ends = admin.settled_end_offsets(TopicPartition(name, n) for n in range(topic.partitions))
        found |= {published_name(topic.id, tp): end for tp, end in ends.items()}
    return found


def _staging_transactional_id(version: ConnectedApplication, topic: str) -> str:
    """Return the transactional id of the producer that copies public rows to a staging table."""
    return f"{version.id}-keep-{topic}"


@contextmanager
def conflicts(mine: Release) -> Iterator[None]:
    """Report a fenced producer as a conflict: another process switches as well."""
    try:
        yield
    except TaskMigratedError as error:
        message = f"{mine.app}: another process is switching its version"
        raise VersionConflictError(message, hint="Look at `riverrun release status`.") from error


def published_name(topic_id: str, tp: TopicPartition) -> str:
    """Return the name of a partition in `Release.published`: a topic that is created again is another one."""
    return f"{topic_id}-{tp.partition}"


def copy_partitions(
    admin: Admin,
    application_id: str,
    name: str,
    ends: Mapping[TopicPartition, int],
    target: str,
    changed: Changed | None = None,
    *,
    attempt: str = "",
) -> None:
    """Copy the records of partitions to those of `target`, exactly once. Another call resumes what was interrupted.

    A call with another `attempt` starts from the beginning. One with the same `name` fences this one.
    """
    producer = TransactionalProducer(admin.kafka, name, transaction_timeout_ms=LONGEST_TRANSACTION_MS, admin=admin)
    note = f"{name}:{attempt}"
    try:
        producer.init()
        now = whole_now(admin, {tp.topic for tp in ends})
        # By source: the target may be an input of the application, and have committed offsets.
        done = KeptOffsets(admin, application_id).noted(note, ends)
        starts = admin.beginning_offsets(ends) | {tp: found.offset for tp, found in done.items()}
        begun = _continued(admin, target, done, ends, now)
        ranges = {tp: OffsetRange(min(starts[tp], end), end) for tp, end in ends.items()}

        def commit(reached: Mapping[TopicPartition, int], _sent: int) -> None:
            # Brokers may have removed tombstones while this took long: the copy would keep deleted rows.
            require_recent(admin, begun)
            keep(producer, application_id, {tp: (at, f"{note}:{begun.encode()}") for tp, at in reached.items()})
            producer.commit({}, "")

        copied(admin, ranges, target, commit, producer.send, 0, changed=changed)
    finally:
        producer.close()


def _continued(
    admin: Admin,
    target: str,
    done: Mapping[TopicPartition, CommittedOffset],
    ends: Mapping[TopicPartition, int],
    now: Whole,
) -> Whole:
    """Return since when a copy is whole that resumes; refuse one that may lack deletions (`kafka.tombstones`)."""
    if not done:
        return now
    whole = oldest(Whole.decode(found.metadata) for found in done.values())
    unread = {tp: found.offset for tp, found in done.items() if 0 < found.offset < ends[tp]}
    if reason := why_incomplete(admin, whole, now, unread):
        message = f"The copy to {target} was interrupted for too long: {reason}"
        hint = reason.hint("Abort the release, and start it again: it then copies everything again.")
        raise RangeError(message, hint=hint)
    return since(whole, now)


def copied(
    admin: Admin,
    ranges: Mapping[TopicPartition, OffsetRange],
    topic: str,
    commit: Callable[[Mapping[TopicPartition, int], int], None],
    send: Send,
    sent: int,
    *,
    changed: Changed | None = None,
) -> int:
    """Send the records of ranges to a topic, each to its partition, in transactions that also commit how far they reach."""
    reached: dict[TopicPartition, int] = {}
    pending = 0
    everything = sent + sum(each.size for each in ranges.values())
    for tp, batch in read_fields(admin, ranges):
        for fields in batch:
            key, value, timestamp, _, headers = fields
            if changed is not None:
                value, further = changed(tp, fields)
                for each in further:
                    send(each.topic, each.key, each.value, each.timestamp, each.headers, each.partition)
            send(topic, key, value, timestamp, headers, tp.partition)
        if not batch:
            continue
        sent, pending = sent + len(batch), pending + len(batch)
        reached[tp] = batch[-1][RAW_OFFSET] + 1
        if pending >= _TRANSACTION_RECORDS:
            commit(reached, sent)
            pending = 0
            report_progress(f"publish {topic}", sent, everything)
    if pending:
        commit(reached, sent)
    report_progress(f"publish {topic}", sent, everything)
    return sent
