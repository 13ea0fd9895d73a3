"""Restores the state of tasks to the committed point from their changelogs, one slice at a time."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, RangeError
from riverrun.kafka.consumer import UP_TO_AN_END, RecordConsumer
from riverrun.kafka.ranges import check_ranges
from riverrun.kafka.tombstones import oldest, require_recent, since, whole_now, why_incomplete
from riverrun.records import OffsetRange, TopicPartition
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.api import WINDOWED, StoreKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.kafka.admin import Admin, CommittedOffset
    from riverrun.kafka.consumer import MessageBatch
    from riverrun.kafka.door import Kafka
    from riverrun.records import Whole
    from riverrun.runtime.layout import TaskSpec
    from riverrun.runtime.task import Task
    from riverrun.state.api import StateBackend, StoreBuilder

    OnRestore = Callable[[TopicPartition, int, int], None]

log = logging.getLogger(__name__)
# Records of a slice when there is nothing else to do: smaller slices cost more per record.
WHOLE_SLICE = 10_000
_POLL_SECONDS = 1.0
_SILENT_SECONDS = 10.0
"""After this time without any record or end, checks whether the brokers answer and the records exist."""
_LOST_SECONDS = 120.0
"""After this time no more records are expected, even if the brokers answer."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The part of its changelogs that a task's local state lacks.

    Args:
        ranges: The missing offsets of each changelog; empty if none are missing.
        whole: When the state is whole once it has all of them; None if that is unknown.
        since: When the state that the restore began with was whole: brokers must not have removed tombstones since.
        attempt: How often a restore was begun before, to read them in one go.
        lacked_deletions: Why the state that there was may have lacked deletions, and was deleted; empty if it was not.
    """

    backend: StateBackend
    ranges: Mapping[TopicPartition, OffsetRange]
    whole: Whole | None
    since: Whole
    attempt: int = 0
    lacked_deletions: str = ""


def find_missing(
    admin: Admin,
    backend: StateBackend,
    spec: TaskSpec,
    committed: Mapping[TopicPartition, int],
    inputs_whole: Whole | None = None,
) -> Missing:
    """Find the changelog records that a task's local state lacks.

    Deletes state that was not made from the present changelogs, and state that may lack deletions; such state then lacks
    all of their records.
    """
    sources = set(spec.source_changelogs.values())
    tps = sources.union(spec.own_changelogs.values())
    # Before the ends are asked for: state that reaches them is whole at this time.
    now = whole_now(admin, {tp.topic for tp in tps})
    first, last = admin.beginning_offsets(tps), dict(admin.end_offsets(tps))
    # Stores whose changelog is an input are restored up to the committed offset: what follows is still to be processed.
    last |= {tp: max(first[tp], committed.get(tp, 0)) for tp in sources}
    known, noted = backend.positions(), backend.topic_ids()
    ids = admin.topic_ids({tp.topic for tp in tps})
    starts = {tp: known.get(tp, 0) for tp in tps}
    # State ahead of the last stable offset is committed, but its marker is not there yet; or the state is foreign.
    ahead = [tp for tp in tps - sources if starts[tp] > last[tp]]
    last |= {tp: max(last[tp], min(starts[tp], end)) for tp, end in admin.written_offsets(ahead).items()}
    reasons = (
        _why_foreign(tp, start, first[tp], last[tp], is_same_topic=noted.get(tp.topic, ids[tp.topic]) == ids[tp.topic])
        for tp, start in starts.items()
    )
    unread = {tp: start for tp, start in starts.items() if 0 < start < last[tp]}
    foreign = next(filter(None, reasons), None)
    lacks = None if foreign else why_incomplete(admin, backend.whole(), now, unread)
    reason = foreign or lacks
    if reason is not None:
        log.warning("task %s restores all of its state: %s", spec.id, reason, extra={"task": str(spec.id)})
        backend.wipe()
        starts, noted = dict.fromkeys(tps, 0), {}
    begun = since(backend.whole(), now)
    # A restore that is interrupted continues from here, and has to know since when tombstones may be missing.
    backend.write({}, {}, whole=begun)
    if not ids.items() <= noted.items():
        backend.note_topic_ids(ids)
    ranges = {tp: OffsetRange(max(start, first[tp]), last[tp]) for tp, start in starts.items()}
    whole = oldest([now, inputs_whole] if sources else [now])
    return Missing(backend, ranges, whole, begun, lacked_deletions=str(lacks or ""))


def _why_foreign(tp: TopicPartition, start: int, first: int, last: int, *, is_same_topic: bool) -> str | None:
    """Return why state at an offset was not made from a changelog with records from `first` to `last`; None if it was."""
    # Offsets alone do not show it: a topic that was deleted and created again (by a reset from another machine) soon has them.
    if not is_same_topic:
        return f"the local state is at offset {start} of another topic {tp.topic}, which has been recreated since"
    if start > last or 0 < start < first:
        return f"the local state is at offset {start} of {tp}, which has offsets {first} to {last}"
    return None


def silently(_changelog: TopicPartition, _done: int, _expected: int) -> None:
    """Show no progress."""


def restore(task: Task, missing: Missing, admin: Admin, kafka: Kafka, on_restore: OnRestore = silently) -> int:
    """Apply all records that the state of a task lacks."""
    reader = StoreChangelogReader(admin, kafka)
    try:
        reader.add(task, missing, on_restore)
        while reader.is_busy:
            reader.run_once(WHOLE_SLICE, _POLL_SECONDS)
        return reader.restored
    finally:
        reader.close()


@dataclass(slots=True)
class _Restore:
    """A restore that is under way; `open` has the ranges that are still to be read."""

    task: Task
    missing: Missing
    open: dict[TopicPartition, OffsetRange]
    on_restore: OnRestore
    expected: int
    restored: int = 0
    is_late: bool = False

    def apply(self, tp: TopicPartition, batch: MessageBatch, reached: int) -> int:
        """Apply records, and note how far they reach. Returns how many of them were missing."""
        end = self.open[tp].end
        kept, _ = batch.split(end)
        self.task.restore(tp, kept, min(reached, end))
        self.restored += len(kept)
        self.on_restore(tp, self.restored, self.expected)
        return len(kept)

    def require_in_time(self, admin: Admin) -> None:
        """Make sure that brokers have removed no tombstones since the restore began, or else begin again, once."""
        missing = self.missing
        try:
            require_recent(admin, missing.since)
        except RangeError as error:
            # Only once: a restore that is too slow twice would never end. The state is kept then, with a warning.
            if not missing.attempt:
                missing.backend.wipe()
                raise
            if not self.is_late:
                named = {"task": str(self.task.spec.id)}
                log.warning(
                    "task %s: deleted rows may be back. %s. %s",
                    self.task.spec.id,
                    error.message,
                    error.hint,
                    extra=named,
                )
            self.is_late = True


class StoreChangelogReader:
    """Restores several tasks at once, with one consumer.

    Keeps applied records with their positions: the next restore of the task continues there.
    """

    def __init__(self, admin: Admin, kafka: Kafka) -> None:
        self.restored = 0
        self._admin = admin
        self._kafka = kafka
        self._consumer: RecordConsumer | None = None
        self._restores: dict[Task, _Restore] = {}
        self._reader: dict[TopicPartition, _Restore] = {}
        self._heard_at = self._asked_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Return whether there is anything to restore."""
        return bool(self._restores)

    def add(self, task: Task, missing: Missing, on_restore: OnRestore) -> None:
        """Begin to restore a task in the state `restoring`."""
        wanted = {tp: r for tp, r in missing.ranges.items() if r.size}
        restore = _Restore(task, missing, wanted, on_restore, sum(r.size for r in wanted.values()))
        self._restores[task] = restore
        self._reader |= dict.fromkeys(wanted, restore)
        if wanted:
            self._reading.assign({tp: r.start for tp, r in wanted.items()})
            self._heard_at = self._asked_at = time.monotonic()

    def remove(self, task: Task) -> None:
        """Stop restoring a task."""
        restore = self._restores.pop(task, None)
        if restore is not None:
            self._stop_reading(restore.open)

    def run_once(self, max_records: int, timeout_s: float) -> list[Task]:
        """Apply a slice of records. Returns the tasks whose state is complete."""
        # Slices run between other work, not in a thread as in Kafka Streams' `StateUpdater`: client and store hold the
        # interpreter's lock while they make and take records, so a thread would delay running tasks at any moment.
        if self._reader:
            self._read(max_records, timeout_s)
        complete = [restore for restore in self._restores.values() if not restore.open]
        for restore in complete:
            missing = restore.missing
            missing.backend.write({}, {tp: r.end for tp, r in missing.ranges.items()}, whole=missing.whole)
            del self._restores[restore.task]
        if not self._restores:
            self.close()
        return [restore.task for restore in complete]

    def close(self) -> None:
        """Stop restoring, and release connections. Idempotent."""
        self._restores.clear()
        self._reader.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _read(self, max_records: int, timeout_s: float) -> None:
        polled = self._reading.poll_batches(max_records, timeout_s)
        self._watch(heard=bool(polled.reached))
        for tp, reached in polled.reached.items():
            restore = self._reader.get(tp)
            if restore is None:
                continue
            restore.require_in_time(self._admin)
            if tp in polled.batches:
                self.restored += restore.apply(tp, polled.batches[tp], reached)
            if reached >= restore.open[tp].end:
                self._stop_reading([tp])
                del restore.open[tp]

    def _stop_reading(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            del self._reader[tp]
        if self._consumer is not None:
            self._consumer.unassign(tps)

    def _watch(self, *, heard: bool) -> None:
        """Find out why no records arrive."""
        now = time.monotonic()
        if heard:
            self._heard_at = self._asked_at = now
        elif now - self._heard_at > _LOST_SECONDS:
            waiting = ", ".join(map(str, sorted(self._reader)))
            message = f"No records of {waiting} for {_LOST_SECONDS:.0f} s"
            raise BrokerError(message, retriable=True)
        elif now - self._asked_at > _SILENT_SECONDS:
            self._asked_at = now
            # Raises if the last records were deleted, or lie behind an open transaction: they would never arrive.
            tails = {tp: restore.open[tp] for tp, restore in self._reader.items()}
            check_ranges(self._admin, {tp: OffsetRange(r.end - 1, r.end) for tp, r in tails.items()})

    @property
    def _reading(self) -> RecordConsumer:
        if self._consumer is None:
            # A changelog ends with a transaction's marker, at which brokers would otherwise wait for more.
            self._consumer = RecordConsumer(self._kafka.with_defaults(UP_TO_AN_END))
        return self._consumer


def lost_history(
    admin: Admin, missing: Missing, spec: TaskSpec, committed: Iterable[CommittedOffset], now_ms: int
) -> Iterator[str]:
    """Yield warnings about stores to be restored that may lack rows, open windows, or versions within their history."""
    # Where a store's `log_config` sets `retention.ms` or `min.compaction.lag.ms`, as Kafka Streams does for all windows and
    # versions, brokers compare event times with their own clock. When old records are processed again, they then delete
    # records that are still needed, and a task without local state cannot restore them.
    changelogs = spec.own_changelogs
    reached_ms = max((OffsetMetadata.decode(found.metadata).partition_time for found in committed), default=-1)
    for store in spec.sub_topology.stores:
        tp = changelogs.get(store.name)
        if tp is None:
            continue
        known, wanted = missing.backend.positions().get(tp, 0), missing.ranges[tp]
        if store.kind not in WINDOWED and known < wanted.start:
            yield (
                f"Rows of store {store.name} may be lost: {tp} begins at offset {wanted.start}, and what stood before it was"
                " deleted. Leave cleanup.policy out of the store's log_config, and delete no records of changelogs;"
                " a new version computes them again"
            )
        if reached_ms < 0:
            continue
        needed_ms = now_ms - (reached_ms - store.retention_ms)
        reached = _shown(reached_ms)
        if store.kind in WINDOWED and known < wanted.start:
            kept_ms = int(admin.topic_config(tp.topic)["retention.ms"])
            if 0 <= kept_ms < needed_ms:
                yield (
                    f"Open windows of store {store.name} may be lost: event time is at {reached}, and brokers have deleted"
                    f" what is older than {kept_ms} ms (retention.ms) from {tp}, which begins at offset {wanted.start}."
                    " Leave retention.ms out of the store's log_config; a new version computes them again"
                )
        elif _is_compacted_early(admin, store, tp.topic, needed_ms) and known < wanted.end:
            yield (
                f"Versions of store {store.name} may be lost: event time is at {reached}, and brokers keep one per key of what"
                f" is older than min.compaction.lag.ms in {tp}, which is restored from offset {wanted.start}."
                " Leave min.compaction.lag.ms out of the store's log_config; a new version computes them again"
            )


def _is_compacted_early(admin: Admin, store: StoreBuilder, topic: str, needed_ms: int) -> bool:
    """Return whether brokers may compact versions as old as `needed_ms`, by their clock."""
    return store.kind is StoreKind.VERSIONED and int(admin.topic_config(topic)["min.compaction.lag.ms"]) < needed_ms


def _shown(time_ms: int) -> str:
    """Return an event time as text; committed ones may be later than any date."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
