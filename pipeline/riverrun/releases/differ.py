"""Keeps the difference of two topics in an index on disk, and makes one topic equal to the other.

The index is a cache of the topics. It is rebuilt if it is damaged or lost, or if the topics were created again.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.config.secrets import make_directory
from riverrun.errors import CorruptStateError, RangeError, StateInUseError
from riverrun.hosting.progress import counted_batches, counted_rows
from riverrun.hosting.release import staging_name
from riverrun.kafka.producer import LONGEST_TRANSACTION_MS, TransactionalProducer
from riverrun.kafka.ranges import read_fields
from riverrun.kafka.tombstones import require_recent, since, whole_now, why_incomplete
from riverrun.records import RAW_OFFSET, OffsetRange, TopicPartition, whole_number
from riverrun.releases.difference import DifferenceIndex, Side
from riverrun.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self, TypeAlias

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.records import Whole
    from riverrun.releases.difference import Digests, Pair

    Ends: TypeAlias = Mapping[TopicPartition, int]
    Covers: TypeAlias = Callable[[Pair], bool]

log = logging.getLogger(__name__)

_DIRECTORY = "differences"
_FIRST = "first of "


def everything(_pair: Pair) -> bool:
    """Cover every row."""
    return True


class Differ:
    """Compares the rows of two topics by key, and makes one topic equal to the other.

    It remembers how far it has read, so later calls read only the tail of both topics.

    Args:
        name: Transactional id and group of the publisher, the same in every process; needed only for publishing.
        topic: The public topic: `old`.
        wanted: The staging topic of a version: `new`. It has as many partitions.
    """

    def __init__(self, name: str, topic: str, wanted: str, directory: Path, admin: Admin) -> None:
        self._name = name
        self.topics = {Side.OLD: topic, Side.NEW: wanted}
        self._admin = admin
        self._temporary: Path | None = None
        self._backend = self._opened(directory)
        self._index = DifferenceIndex(self._backend)

    @classmethod
    def of(cls, connected: ConnectedApplication, topic: str, name: str = "") -> Self:
        """Return the differ of a version's output, whose index is below the version's directory."""
        staging, directory = staging_name(connected.id, topic), connected.application.directory / _DIRECTORY / topic
        return cls(name, topic, staging, directory, connected.admin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the index. Idempotent."""
        self._backend.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def stable_ends(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the ends of both topics once the transactions that are open now have ended. Others may continue to write."""
        old, new = (self._admin.stable_end_offsets(self._partitions(side)) for side in Side)
        return old, new

    def advance(self, ends: Ends, wanted_ends: Ends) -> None:
        """Read the records of both topics into the index, exactly up to the given ends (exclusive).

        Ends may not lie below those of an earlier call.
        """
        try:
            self._advance(ends, wanted_ends)
        except CorruptStateError as error:
            self._rebuild(error.message)
            self._advance(ends, wanted_ends)

    def differences(self) -> Iterator[Pair]:
        """Return the keys under which the topics differ, with their rows, sorted by partition and key."""
        return self._index.differences()

    def rows(self) -> Iterator[Pair]:
        """Return all keys with their rows in both topics, sorted by partition and key."""
        return self._index.rows()

    def digests(self) -> Digests:
        """Return digests of both topics by partition and range of keys' hashes. Reads all rows."""
        return self._index.digests()

    def publish(
        self,
        check: Callable[[], None],
        switch: str = "",
        side: Side = Side.OLD,
        *,
        is_settled: bool = True,
        covers: Covers = everything,
    ) -> int:
        """Make one topic equal to the other, all or nothing. Nothing else may write to it meanwhile.

        Writes the rows that differ, and tombstones for keys that are gone. After a crash at any point, another call with the
        same `switch` publishes what is missing, and nothing twice. Return the number of records of all these calls.

        Args:
            check: Raises if this process may no longer publish; called once others are fenced.
            switch: Identifies the switch; all its attempts use one name.
            side: The topic to change; defaults to the public one.
            is_settled: Whether nothing writes to the other topic. Otherwise, its content at the time of the call is used.
            covers: Selects the rows to change; all others stay as they are.
        """
        try:
            return self._publish(check, switch, side, is_settled=is_settled, covers=covers)
        except CorruptStateError as error:
            self._rebuild(error.message)
            return self._publish(check, switch, side, is_settled=is_settled, covers=covers)

    def _publish(self, check: Callable[[], None], switch: str, side: Side, *, is_settled: bool, covers: Covers) -> int:
        producer = TransactionalProducer(
            self._admin.kafka, self._name, transaction_timeout_ms=LONGEST_TRANSACTION_MS, admin=self._admin
        )
        try:
            # Fence first: an open transaction of a predecessor is aborted, and a live one can commit nothing more. A process
            # that has taken over before is found by the check.
            producer.init()
            check()
            ends = dict(zip(Side, self._settled_ends() if is_settled else self.stable_ends(), strict=True))
            self.advance(ends[Side.OLD], ends[Side.NEW])
            published = self._published(switch, side)
            count = self._send(producer, side, filter(covers, self._index.differences()))
            # The count is committed with the records, so it is right whichever attempt has published them.
            if count:
                note = f"{switch}:{published + count}"
                producer.commit({tp: (end, note) for tp, end in ends[side].items()}, self._name)
            return published + count
        finally:
            producer.close()

    def _settled_ends(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        old, new = (self._admin.settled_end_offsets(self._partitions(side)) for side in Side)
        return old, new

    def _send(self, producer: TransactionalProducer, side: Side, pairs: Iterator[Pair]) -> int:
        topic, count = self.topics[side], 0
        for partition, key, old, new in counted_rows(f"publish to {topic}", pairs):
            present, wanted = (old, new) if side is Side.OLD else (new, old)
            if wanted is not None:
                producer.send(topic, key, wanted.value, wanted.timestamp, wanted.headers, partition)
            elif present is not None:
                producer.send(topic, key, None, present.timestamp, (), partition)
            count += 1
        return count

    def _published(self, switch: str, side: Side) -> int:
        """Return the number of records that earlier attempts of a switch published."""
        for found in self._admin.committed(self._name, self._partitions(side)).values():
            noted, _, count = found.metadata.rpartition(":")
            published = whole_number(count)
            if noted == switch and published is not None:
                return published
        return 0

    def _advance(self, ends: Ends, wanted_ends: Ends) -> None:
        sides = {self.topics[Side.OLD]: Side.OLD, self.topics[Side.NEW]: Side.NEW}
        upto = {**ends, **wanted_ends}
        now = whole_now(self._admin, self.topics.values())
        last = self._admin.end_offsets(upto)
        starts = self._starts(upto, now, last)
        ranges = {tp: OffsetRange(start, upto[tp]) for tp, start in starts.items()}
        # Noted before anything is read: after a crash on the way, the index is only as recent as when it was last whole.
        begun = since(self._backend.whole(), now)
        self._backend.write({}, {}, whole=begun)
        everything = sum(each.size for each in ranges.values())
        batches = read_fields(self._admin, ranges)
        for tp, records in counted_batches(f"compare {self.topics[Side.OLD]}", batches, everything):
            if records:
                self._require_recent(begun)
                self._index.apply(sides[tp.topic], tp, records, records[-1][RAW_OFFSET] + 1)
        self._require_recent(begun)
        has_all = all(upto[tp] >= end for tp, end in last.items())
        # Positions become the ends themselves: transaction markers and gaps may follow the last record.
        self._backend.write({}, upto, whole=now if has_all else None)

    def _require_recent(self, begun: Whole) -> None:
        try:
            require_recent(self._admin, begun)
        except RangeError as error:
            self._rebuild(error.message)
            raise

    def _starts(self, upto: Ends, now: Whole, last: Ends) -> dict[TopicPartition, int]:
        """Return the positions to read from; wipe an index that no longer matches the topics."""
        ids = self._admin.topic_ids(self.topics.values())
        first = self._admin.beginning_offsets(upto)
        known = self._index.positions()
        if known and not self._is_of(ids, first, last):
            self._rebuild("the topics were created again, or records have been deleted since it was read")
            known = {}
        unread = {tp: offset for tp, offset in known.items() if offset < last.get(tp, 0)}
        if reason := why_incomplete(self._admin, self._backend.whole(), now, unread):
            self._rebuild(str(reason))
            known = {}
        if not known:
            self._backend.note_topic_ids(ids)
            for tp, offset in first.items():
                self._index.note(_FIRST + str(tp), offset)
        past = next((tp for tp, end in upto.items() if known.get(tp, 0) > end), None)
        # A compacted topic cannot show an earlier state.
        if past is not None:
            message = f"{past} was compared up to offset {known[past]}: what it held at {upto[past]} is no longer known"
            raise RangeError(message, hint="Compare both versions at a later offset.")
        return {tp: known.get(tp, min(offset, upto[tp])) for tp, offset in first.items()}

    def _is_of(self, ids: Mapping[str, str], first: Ends, last: Ends) -> bool:
        """Return whether the index was read from these topics, and none of its records has been deleted since."""
        # Ids and ends show a topic that was created again, first offsets one whose records were deleted.
        known = self._index.positions()
        return (
            self._backend.topic_ids() == ids
            and all(end >= known.get(tp, 0) for tp, end in last.items())
            and all(self._index.noted(_FIRST + str(tp)) == offset for tp, offset in first.items())
        )

    def _rebuild(self, why: str) -> None:
        log.warning("the index of differences of %s and %s is rebuilt: %s", *self.topics.values(), why)
        self._backend.wipe()

    def _partitions(self, side: Side) -> list[TopicPartition]:
        topic = self.topics[side]
        return [TopicPartition(topic, number) for number in range(self._admin.partitions([topic])[topic])]

    def _opened(self, directory: Path) -> RocksDbBackend:
        """Open the index, which is a cache: rebuild a damaged one, and use a temporary one while another process has it."""
        try:
            return RocksDbBackend(directory)
        except CorruptStateError as error:
            log.warning("the index of differences is rebuilt: %s", error.message)
            shutil.rmtree(directory, ignore_errors=True)
            return RocksDbBackend(directory)
        except StateInUseError:
            make_directory(directory.parent)
            self._temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=directory.parent))
            return RocksDbBackend(self._temporary)
