"""Follows a topic into a sink: reads the partitions of this process's share, and commits rows and offsets to the target.

Offsets are read from the target whenever partitions are taken over, never from Kafka. So a follower can stop at any point, and
the next one resumes after the last record in the target.
"""

from __future__ import annotations

import logging
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from riverrun.errors import BrokerError, EngineError, RangeError, StreamsError, TaskMigratedError
from riverrun.kafka.tombstones import FOREVER_MS, Following, oldest, require_recent, since, whole_now, why_incomplete
from riverrun.processor.sinks import RefusedRecordsError
from riverrun.records import RAW_KEY, RAW_OFFSET, RAW_VALUE, OffsetRange, Whole, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from riverrun.kafka.admin import Admin
    from riverrun.kafka.consumer import Polled
    from riverrun.kafka.tombstones import Incomplete
    from riverrun.processor.sinks import RemovesRows
    from riverrun.records import RawFields, TopicPartition

Batch = TypeVar("Batch")
Taken_contra = TypeVar("Taken_contra", contravariant=True)
log = logging.getLogger(__name__)

REMOVE, REFUSE, IGNORE = "remove", "refuse", "ignore"
"""What to do with targets that may lack deletions (`MissedDeletions`)."""

_POLLED = 2_000
"""Records of a poll; those of a partition become one batch."""
_POLL_SECONDS = 0.1
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_JUDGED_SECONDS = 3.0
"""Seconds between two checks of how far the follower has read compacted topics."""
_LOOK_SECONDS = 10.0
"""Seconds between two checks whether another version of the application is live."""


class Share(Protocol):
    """Knows which partitions are this process's own (`riverrun.kafka.shares.PartitionShare`)."""

    def poll(self, give_up: Callable[[], None]) -> frozenset[TopicPartition] | None:
        """Return the partitions of a new assignment; None if there is none. Calls `give_up` before others get them."""
        ...

    def rejoin(self) -> None:
        """Give up all partitions, and ask for a new assignment."""
        ...

    def note(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Record committed offsets for monitoring, with the text of `Deletions.note` as their metadata."""
        ...


class Reader(Protocol):
    """Reads partitions from given offsets (`riverrun.kafka.consumer.RecordConsumer`)."""

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets as well."""
        ...

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        ...

    def poll(self, max_records: int, timeout_s: float) -> Polled:
        """Wait for records up to a timeout."""
        ...

    def known_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the known end offsets (exclusive); partitions without one are missing."""
        ...


class Target(Protocol[Taken_contra]):
    """Takes batches of one kind, with the contract of `riverrun.processor.sinks.Sink`."""

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Take over exactly these partitions, and return the end offset (exclusive) of each that the target has."""
        ...

    def write(self, batch: Taken_contra) -> None:
        """Take records."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make the records since the last commit visible, with their offsets."""
        ...


class Deletions(Protocol):
    """Knows whether the target may lack deletions (`MissedDeletions`)."""

    def to_read_again(self, starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
        """Return which partitions have to be read again, and up to where, as the target may lack deletions."""
        ...

    def require_recent(self) -> None:
        """Make sure that nothing was missed among what was read just now."""
        ...

    def look(self, reached: Mapping[TopicPartition, int]) -> None:
        """Note how far the follower has read."""
        ...

    def note(self) -> str:
        """Return the time at which the target was whole, as text."""
        ...


class _Whole:
    """`Deletions` of sources that forget none."""

    def to_read_again(self, _starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
        return {}

    def require_recent(self) -> None:
        pass

    def look(self, _reached: Mapping[TopicPartition, int]) -> None:
        pass

    def note(self) -> str:
        return ""


class MissedDeletions:
    """Knows whether a follower's target may lack deletions.

    The time at which the target was whole is the metadata of the offsets that the follower's group commits as a copy.

    Args:
        target: The follower and its target, for messages.
        lost_deletions: What to do if the target may lack deletions: `remove` what the topic no longer has, `refuse` to
            follow, or `ignore` it.
        hint: What to do if it is refused.
    """

    def __init__(self, admin: Admin, group: str, topic: str, *, target: str, lost_deletions: str, hint: str) -> None:
        self._admin = admin
        self._group = group
        self._topic = topic
        self._target = target
        self._lost_deletions = lost_deletions
        self._hint = hint
        self._following = Following(None)
        self._kept_ms = FOREVER_MS

    def to_read_again(self, starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
        """Return the partitions that have to be read again, with their present ranges; `starts` are the target's offsets."""
        admin, now = self._admin, whole_now(self._admin, [self._topic])
        self._kept_ms = now.kept_ms
        first, last = admin.log_starts(starts), admin.end_offsets(starts)
        wholes: list[Whole | None] = []
        again: dict[TopicPartition, OffsetRange] = {}
        noted = admin.committed(self._group, starts)
        for tp, start in starts.items():
            # A copy with a higher offset is of a target that has been taken back since: its time no longer holds.
            known = Whole.decode(noted[tp].metadata) if tp in noted and noted[tp].offset <= start else None
            reason = why_incomplete(admin, known, now, {tp: start} if start > first[tp] else {})
            if reason is not None and self._has_to_read_again(tp, reason, first[tp]):
                again[tp] = OffsetRange(first[tp], last[tp])
            wholes.append(now if reason is not None else since(known, now))
        self._following = Following(oldest(wholes))
        return again

    def _has_to_read_again(self, tp: TopicPartition, lacks: Incomplete, first: int) -> bool:
        reason = str(lacks)
        is_aged = self._lost_deletions == REMOVE and first > 0
        if is_aged:
            reason += (
                f". {tp} begins at offset {first}: rows of records that are gone because of their age would go, too"
            )
        if self._lost_deletions == REFUSE or is_aged:
            message = f"{self._target} may hold rows that have been deleted: {reason}"
            raise RangeError(message, hint=lacks.hint(self._hint))
        log.warning("%s may hold rows that have been deleted: %s", self._target, reason)
        return self._lost_deletions == REMOVE

    def require_recent(self) -> None:
        """Make sure that nothing was missed among what was read just now."""
        if self._kept_ms != FOREVER_MS and self._lost_deletions != IGNORE:
            require_recent(self._admin, self._following.whole)

    def look(self, reached: Mapping[TopicPartition, int]) -> None:
        """Note how far the follower has read."""
        if self._kept_ms != FOREVER_MS and reached:
            # The time before the ends: who has reached these ends has everything up to this time.
            now = Whole(self._admin.clock.noted_ms(), self._kept_ms)
            self._following.look(now, self._admin.end_offsets(reached), reached)

    def note(self) -> str:
        """Return the time at which the target was whole, as metadata of its offsets; empty if none is needed."""
        whole = self._following.whole
        return "" if whole is None or self._kept_ms == FOREVER_MS else whole.encode()


@dataclass(slots=True)
class _Sweep:
    """A partition that is read again, to find the rows of the target that the topic no longer has.

    Args:
        before: End offset (exclusive) of the target.
        end: End offset (exclusive) of the partition when this began.
        kept: Offsets below `before` of the records that the topic still has.
    """

    before: int
    end: int
    kept: array[int] = field(default_factory=lambda: array("q"))


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """When to commit, and how long to wait for a target.

    Args:
        commit_seconds: Time after the first record without a commit.
        commit_records: Number of records without a commit.
        commit_bytes: Size of their keys and values.
        retry_seconds: Time to wait for a target that does not answer. The follower then ends.
    """

    commit_seconds: float = 1.0
    commit_records: int = 10_000
    commit_bytes: int = 16_000_000
    retry_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class FollowReport:
    """The progress of a follower.

    Args:
        records: Records committed so far.
        commits: Number of commits.
        rate: Records committed per second since the last report.
        lag: Number of offsets of its partitions that are not committed; partitions of unknown end do not count.
        offsets: By partition, the end offset (exclusive) of the target.
        lags: By partition, the number of offsets that are not committed, if the end is known.
        since_commit: Seconds since the last commit; None before it.
        skipped: Number of records that could not be read and were skipped; those of `records` include them.
        place: The position of an import in its source; empty for topics.
    """

    records: int
    commits: int
    rate: float
    lag: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)
    since_commit: float | None = None
    skipped: int = 0
    place: str = ""

    def __str__(self) -> str:
        """Describe it on one line.

        >>> print(FollowReport(1200, 3, 400.5, 7))
        1,200 records in 3 commits, 400/s, 7 behind, no partitions
        """
        offsets = ", ".join(f"{tp}@{offset}" for tp, offset in sorted(self.offsets.items()))
        parts = self.place or offsets or "no partitions"
        done = f"{self.records:,} {'record' if self.records == 1 else 'records'} in {counted(self.commits, 'commit')}"
        if self.skipped:
            done += f" ({self.skipped:,} unreadable ones skipped)"
        return f"{done}, {self.rate:,.0f}/s, {self.lag:,} behind, {parts}"


class Follower(Generic[Batch]):
    """Keeps a target up to date.

    Args:
        batch: Makes a batch of a partition's records; None if there is nothing to write.
        starts: Returns where to begin partitions of which the target has no offset.
        skipped: Returns the number of records that were skipped so far.
        refuse: Notes records that the target refuses, so that `batch` leaves them out from now on, or raises.
        committed: Takes the end offsets (exclusive) that the target has; records before them are not read again.
        deletions: Knows whether the target may lack deletions; None for sources that forget none.
        clock: Returns seconds that only rise.
    """

    def __init__(
        self,
        share: Share,
        reader: Reader,
        sink: Target[Batch],
        batch: Callable[[TopicPartition, Sequence[RawFields]], Batch | None],
        starts: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]],
        settings: FollowSettings,
        *,
        skipped: Callable[[], int] = lambda: 0,
        refuse: Callable[[RefusedRecordsError], None] | None = None,
        committed: Callable[[Mapping[TopicPartition, int]], None] = lambda _offsets: None,
        deletions: Deletions | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._reader = reader
        self._sink = sink
        self._batch = batch
        self._starts = starts
        self._settings = settings
        self._skipped = skipped
        self._refuse = refuse
        self._note_committed = committed
        self._clock = clock
        self._pause = pause
        self._owned: frozenset[TopicPartition] | None = None
        self._begun: frozenset[TopicPartition] = frozenset()
        self._reached: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._read_to_end: set[TopicPartition] = set()
        self._deletions = deletions or _Whole()
        self._sweeps: dict[TopicPartition, _Sweep] = {}
        self._swept: set[TopicPartition] = set()
        self._judged_at = 0.0
        self._records = self._bytes = 0
        self._due_at = 0.0
        self._done = self._commits = self._done_before = 0
        self._reported_at = clock()
        self._committed_at: float | None = None
        self._failing_since: float | None = None
        self._again_at = 0.0
        self._next_pause = _FIRST_PAUSE_SECONDS

    def follow(
        self,
        ends: Callable[[], bool],
        *,
        until_caught_up: bool = False,
        on_report: Callable[[FollowReport], None] = lambda _report: None,
        report_seconds: float = 10.0,
        is_outdated: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Follow until a stop is requested, and commit what was read; return whether the rows are outdated.

        Args:
            ends: Returns whether a stop is requested.
            until_caught_up: Whether to stop at the present end of this process's partitions.
            on_report: Called with the progress every `report_seconds`.
            report_seconds: Time between two reports.
            is_outdated: Returns whether the rows have to be made in another way from now on, which ends this follower.
        """
        look_at = self._clock() + _LOOK_SECONDS
        try:
            while not ends():
                self.turn()
                now = self._clock()
                if now - self._reported_at >= report_seconds:
                    on_report(self.report())
                if until_caught_up and self._is_caught_up():
                    break
                if now >= look_at:
                    look_at = now + _LOOK_SECONDS
                    if is_outdated():
                        self._finish()
                        return True
            self._finish()
        finally:
            self._let_go()
        return False

    def turn(self) -> None:
        """Take part in the group, read some records, and commit what is due."""
        self._take_part()
        self._read()

    def report(self) -> FollowReport:
        """Return the progress; the rate is the one since the last call."""
        now = self._clock()
        seconds, done = now - self._reported_at, self._done - self._done_before
        self._reported_at, self._done_before = now, self._done
        found = self._reader.known_ends(self._begun)
        lags = {tp: max(0, found[tp] - offset) for tp, offset in self._committed.items() if tp in found}
        return FollowReport(
            self._done,
            self._commits,
            done / seconds if seconds else 0.0,
            sum(lags.values()),
            dict(self._committed),
            lags=lags,
            since_commit=None if self._committed_at is None else now - self._committed_at,
            skipped=self._skipped(),
        )

    def _take_part(self) -> None:
        given = self._share.poll(self._give_up)
        if given is not None:
            self._forget()
            self._owned = given
            self._again_at = 0.0
        if self._owned is not None and self._begun != self._owned and self._clock() >= self._again_at:
            with _Guard(self):
                self._begin(self._owned)

    def _begin(self, tps: frozenset[TopicPartition]) -> None:
        """Take over partitions, and read from where the target ends."""
        # The target first: taking over fences the previous owner, so the offsets that it returns are final.
        stored = self._sink.begin(tps)
        missing = tps - stored.keys()
        starts = {**(self._starts(missing) if missing else {}), **{tp: stored[tp] for tp in tps & stored.keys()}}
        again = self._deletions.to_read_again(starts)
        self._sweeps = {tp: _Sweep(starts[tp], found.end) for tp, found in again.items()}
        self._swept.clear()
        self._judged_at = self._clock()
        self._reader.unassign(self._begun)
        self._reader.assign({**starts, **{tp: found.start for tp, found in again.items()}})
        self._begun, self._reached, self._committed = tps, dict(starts), dict(starts)
        self._note_committed(starts)
        self._read_to_end.clear()
        self._records = self._bytes = 0
        for tp, offset in sorted(starts.items()):
            log.info("following %s from offset %d", tp, offset)

    def _read(self) -> None:
        """Read records and commit what is due; pause if there is no partition to read."""
        if not self._begun:
            self._pause(_POLL_SECONDS)
            return
        try:
            with _Guard(self):
                polled = self._reader.poll(_POLLED, _POLL_SECONDS)
                try:
                    self._take(polled)
                    if polled.ends and not self._records:
                        self._note_recovery()
                except BrokerError:
                    # The batch may be written in part: read it again from the last commit.
                    self._forget()
                    raise
                self._look()
        except BrokerError as error:
            if not error.retriable:
                raise
            log.warning("%s", error.message)
            self._pause(_POLL_SECONDS)

    def _note_recovery(self) -> None:
        """End a series of failures: whatever was read is written, and not only begun."""
        if self._failing_since is not None:
            log.warning("recovered after %.0f s", self._clock() - self._failing_since)
            self._failing_since, self._next_pause = None, _FIRST_PAUSE_SECONDS

    def _take(self, polled: Polled) -> None:
        """Write what was read, and commit what is due."""
        # Before anything of this poll can be committed: from then on, nothing shows that it was read too late.
        if polled.records or polled.ends:
            try:
                self._deletions.require_recent()
            except RangeError as error:
                log.warning("resuming from the last commit: %s", error.message)
                self._forget()
                return
        for tp, records in polled.records.items():
            self._write(tp, records)
        for tp, end in polled.ends.items():
            self._note_end(tp, end)
        for tp in [tp for tp, sweep in self._sweeps.items() if self._reached[tp] >= sweep.end]:
            sweep = self._sweeps.pop(tp)
            cast("RemovesRows", self._sink).remove(tp, sweep.before, sweep.kept)
            self._swept.add(tp)
        if self._is_due():
            self._commit()

    def _write(self, tp: TopicPartition, records: Sequence[RawFields]) -> None:
        if tp not in self._begun:
            return
        sweep = self._sweeps.get(tp)
        # The target has the records below its end, or later ones of their keys: they are only noted.
        if sweep is not None:
            sweep.kept.extend(each[RAW_OFFSET] for each in records if each[RAW_OFFSET] < sweep.before)
            records = [each for each in records if each[RAW_OFFSET] >= sweep.before]
        if not records:
            return
        if not self._records:
            self._due_at = self._clock() + self._settings.commit_seconds
        batch = self._batch(tp, records)
        if batch is not None:
            self._sink.write(batch)
        self._reached[tp] = records[-1][RAW_OFFSET] + 1
        self._read_to_end.discard(tp)
        self._records += len(records)
        self._bytes += sum(len(each[RAW_KEY] or b"") + len(each[RAW_VALUE] or b"") for each in records)

    def _note_end(self, tp: TopicPartition, end: int) -> None:
        if tp in self._begun:
            # The end may be higher than the last record's: markers of transactions have offsets as well.
            self._reached[tp] = max(end, self._reached[tp])
            self._read_to_end.add(tp)

    def _is_due(self) -> bool:
        settings = self._settings
        return bool(self._swept) or (
            self._records > 0
            and (
                self._records >= settings.commit_records
                or self._bytes >= settings.commit_bytes
                or self._clock() >= self._due_at
            )
        )

    def _look(self) -> None:
        """Note how far the target is, every few seconds, even while there is nothing to commit."""
        if self._begun and self._clock() >= self._judged_at + _JUDGED_SECONDS:
            self._judged_at = self._clock()
            before = self._deletions.note()
            self._deletions.look({} if self._sweeps else self._reached)
            if not self._records and not self._sweeps and self._deletions.note() != before:
                self._share.note(self._committed, self._deletions.note())

    def _commit(self) -> None:
        if not self._records and not self._swept:
            return
        reached = self._reached.items()
        moved = {tp: offset for tp, offset in reached if offset != self._committed[tp] or tp in self._swept}
        self._sink.commit(moved)
        self._note_committed(moved)
        self._committed |= moved
        self._done += self._records
        self._commits += 1
        self._committed_at = self._clock()
        self._records = self._bytes = 0
        self._swept.clear()
        # During a sweep, the target may still have rows that were deleted, so no time can be noted.
        self._share.note(moved, "" if self._sweeps else self._deletions.note())
        self._note_recovery()

    def _is_caught_up(self) -> bool:
        """Return whether all partitions have been read to their ends, after a commit of what was read."""
        if self._owned is None or self._begun != self._owned or not self._read_to_end >= self._begun:
            return False
        with _Guard(self):
            self._commit()
        # A commit that failed leaves neither records nor partitions.
        return not self._records and self._begun == self._owned

    def _finish(self) -> None:
        try:
            self._commit()
        # Nothing is lost: the next follower begins at the target's offsets, and writes these records.
        except (EngineError, TaskMigratedError, RefusedRecordsError) as error:
            log.warning("the last records are left to the next follower: %s", error.message)

    def _give_up(self) -> None:
        """Commit, and stop reading, before others get the partitions."""
        try:
            self._commit()
        # The group takes the partitions away in any case. Without this commit, their next owner reads the records again.
        except StreamsError as error:
            log.warning("records are left to the next owner of their partitions: %s", error.message)
        self._forget()
        self._owned = None

    def _forget(self) -> None:
        """Stop reading; what was not committed is read again by the next owner."""
        self._reader.unassign(self._begun)
        self._begun, self._reached, self._committed = frozenset(), {}, {}
        self._read_to_end.clear()
        self._sweeps.clear()
        self._swept.clear()
        self._records = self._bytes = 0

    def _let_go(self) -> None:
        self._forget()
        try:
            self._sink.begin(())
        except StreamsError as error:
            log.warning("the target was not released: %s", error.message)

    def fenced(self, error: TaskMigratedError) -> None:
        """Give way to another owner, and ask the group for partitions again."""
        self._forget()
        self._owned = None
        self._share.rejoin()
        log.warning("%s; joining the group again", error.message)

    def refused(self, error: RefusedRecordsError) -> bool:
        """Read again without the records that the target refuses; return False if nobody decides about them."""
        if self._refuse is None:
            return False
        self._refuse(error)
        log.warning("resuming from the last commit: %s", error.message)
        self._forget()
        self._again_at = 0.0
        return True

    def failed(self, error: EngineError) -> None:
        """Plan the next attempt to reach the target."""
        now = self._clock()
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        # The batch may or may not have been written: its records are read again from the target's offsets.
        self._forget()
        if now - since >= self._settings.retry_seconds:
            raise error
        self._again_at = now + self._next_pause
        left = self._settings.retry_seconds - (now - since)
        log.warning("%s; retrying in %.1f s, for at most %.0f s more", error.message, self._next_pause, left)
        self._next_pause = min(_LONGEST_PAUSE_SECONDS, 2 * self._next_pause)


class _Guard:
    """Lets a follower continue after errors that it recovers from."""

    def __init__(self, follower: Follower[Any]) -> None:
        self._follower = follower

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Return whether the follower continues."""
        if isinstance(error, TaskMigratedError):
            self._follower.fenced(error)
            return True
        if isinstance(error, EngineError):
            self._follower.failed(error)
            return True
        if isinstance(error, RefusedRecordsError):
            return self._follower.refused(error)
        return False
