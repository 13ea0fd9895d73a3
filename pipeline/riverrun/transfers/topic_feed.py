"""Partitions of topics that a follower reads into a target: those of this process's share of a group.

Offsets are read from the target whenever partitions are taken over, never from Kafka. So a follower can stop at any point, and
the next one resumes after the last record in the target.
"""

from __future__ import annotations

import logging
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from riverrun.errors import RangeError
from riverrun.records import RAW_KEY, RAW_OFFSET, RAW_VALUE
from riverrun.transfers.follower import FollowReport, forgetting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from riverrun.kafka.consumer import Polled, RecordConsumer
    from riverrun.kafka.shares import PartitionShare
    from riverrun.processor.sinks import RefusedRecordsError, RemovesRows
    from riverrun.records import OffsetRange, RawFields, TopicPartition

Batch = TypeVar("Batch")
Taken_contra = TypeVar("Taken_contra", contravariant=True)
Made_co = TypeVar("Made_co", covariant=True)
log = logging.getLogger(__name__)

_POLLED = 2_000
"""Records of a poll; those of a partition become one batch."""
_JUDGED_SECONDS = 3.0
"""Seconds between two checks of how far the follower has read compacted topics."""


class Target(Protocol[Taken_contra]):
    """Takes batches of one kind, with the contract of `riverrun.processor.sinks.Sink`."""

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Take over exactly these partitions, and return the end offset (exclusive) of each that the target has."""

    def write(self, batch: Taken_contra) -> None:
        """Take records."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make the records since the last commit visible, with their offsets."""


class Batches(Protocol[Made_co]):
    """Makes the batches of a target (`riverrun.transfers.unreadable.ReadableRows`)."""

    skipped: int
    """Number of records skipped so far."""

    def batch(self, tp: TopicPartition, records: Sequence[RawFields]) -> Made_co | None:
        """Return a batch of a partition's records; None if there is nothing to write."""

    def refuse(self, error: RefusedRecordsError) -> None:
        """Note records that the target refuses, so that `batch` leaves them out from now on, or raise."""

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take the end offsets (exclusive) that the target has; records before them are not read again."""


class Deletions(Protocol):
    """Knows whether the target may lack deletions (`MissedDeletions`)."""

    def to_read_again(self, starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
        """Return which partitions have to be read again, and up to where, as the target may lack deletions."""

    def require_recent(self) -> None:
        """Make sure that nothing was missed among what was read just now."""

    def look(self, reached: Mapping[TopicPartition, int]) -> None:
        """Note how far the follower has read."""

    def note(self) -> str:
        """Return the time at which the target was whole, as text."""


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


class TopicFeed(Generic[Batch]):
    """Feeds a target with records of topics (`riverrun.transfers.follower.Feed`).

    Args:
        starts: Returns where to begin partitions of which the target has no offset.
        clock: Returns seconds that only rise.
    """

    def __init__(
        self,
        share: PartitionShare,
        reader: RecordConsumer,
        sink: Target[Batch],
        batches: Batches[Batch],
        starts: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]],
        deletions: Deletions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._reader = reader
        self._sink = sink
        self._batches = batches
        self._starts = starts
        self._deletions = deletions
        self._clock = clock
        self.records = self.size = 0
        self._owned: frozenset[TopicPartition] | None = None
        self._begun: frozenset[TopicPartition] = frozenset()
        self._reached: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._read_to_end: set[TopicPartition] = set()
        self._sweeps: dict[TopicPartition, _Sweep] = {}
        self._swept: set[TopicPartition] = set()
        self._judged_at = 0.0

    @property
    def is_reading(self) -> bool:
        return bool(self._begun)

    @property
    def has_to_begin(self) -> bool:
        return self._owned is not None and self._begun != self._owned

    @property
    def is_at_end(self) -> bool:
        return self._owned is not None and self._begun == self._owned and self._read_to_end >= self._begun

    @property
    def is_urgent(self) -> bool:
        return bool(self._swept)

    def take_part(self, commit: Callable[[], None]) -> bool:

        def give_up() -> None:
            commit()
            self.forget()
            self._owned = None

        given = self._share.poll(give_up)
        if given is None:
            return False
        self.forget()
        self._owned = given
        return True

    def begin(self) -> None:
        tps = self._owned or frozenset()
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
        self._batches.committed(starts)
        self._read_to_end.clear()
        self.records = self.size = 0
        for tp, offset in sorted(starts.items()):
            log.info("following %s from offset %d", tp, offset)

    def read(self, timeout_s: float) -> bool:
        polled = self._reader.poll(_POLLED, timeout_s)
        with forgetting(self):
            self._take(polled)
        return bool(polled.ends)

    def look(self) -> None:
        """Note how far the target is, every few seconds, even while there is nothing to commit."""
        if self._begun and self._clock() >= self._judged_at + _JUDGED_SECONDS:
            self._judged_at = self._clock()
            before = self._deletions.note()
            self._deletions.look({} if self._sweeps else self._reached)
            if not self.records and not self._sweeps and self._deletions.note() != before:
                self._share.note(self._committed, self._deletions.note())

    def commit(self) -> None:
        reached = self._reached.items()
        moved = {tp: offset for tp, offset in reached if offset != self._committed[tp] or tp in self._swept}
        with forgetting(self):
            self._sink.commit(moved)
        self._batches.committed(moved)
        self._committed |= moved
        self.records = self.size = 0
        self._swept.clear()
        # During a sweep, the target may still have rows that were deleted, so no time can be noted.
        self._share.note(moved, "" if self._sweeps else self._deletions.note())

    def forget(self) -> None:
        self._reader.unassign(self._begun)
        self._begun, self._reached, self._committed = frozenset(), {}, {}
        self._read_to_end.clear()
        self._sweeps.clear()
        self._swept.clear()
        self.records = self.size = 0

    def give_way(self) -> None:
        self._owned = None
        self._share.rejoin()

    def refuse(self, error: RefusedRecordsError) -> None:
        self._batches.refuse(error)

    def release(self) -> None:
        self._sink.begin(())

    def reached(self) -> FollowReport:
        ends = self._reader.known_ends(self._begun)
        lags = {tp: max(0, ends[tp] - offset) for tp, offset in self._committed.items() if tp in ends}
        skipped = self._batches.skipped
        return FollowReport(lag=sum(lags.values()), offsets=dict(self._committed), lags=lags, skipped=skipped)

    def _take(self, polled: Polled) -> None:
        # Before anything of this poll can be committed: from then on, nothing shows that it was read too late.
        if polled.records or polled.ends:
            try:
                self._deletions.require_recent()
            except RangeError as error:
                log.warning("resuming from the last commit: %s", error.message)
                self.forget()
                return
        for tp, records in polled.records.items():
            self._write(tp, records)
        for tp, end in polled.ends.items():
            self._note_end(tp, end)
        for tp in [tp for tp, sweep in self._sweeps.items() if self._reached[tp] >= sweep.end]:
            sweep = self._sweeps.pop(tp)
            cast("RemovesRows", self._sink).remove(tp, sweep.before, sweep.kept)
            self._swept.add(tp)

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
        batch = self._batches.batch(tp, records)
        if batch is not None:
            self._sink.write(batch)
        self._reached[tp] = records[-1][RAW_OFFSET] + 1
        self._read_to_end.discard(tp)
        self.records += len(records)
        self.size += size_of(records)

    def _note_end(self, tp: TopicPartition, end: int) -> None:
        if tp in self._begun:
            # The end may be higher than the last record's: markers of transactions have offsets as well.
            self._reached[tp] = max(end, self._reached[tp])
            self._read_to_end.add(tp)


def size_of(records: Sequence[RawFields]) -> int:
    """Return the bytes of keys and values."""
    return sum(len(each[RAW_KEY] or b"") + len(each[RAW_VALUE] or b"") for each in records)
