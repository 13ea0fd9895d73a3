"""Followers of compacted topics: rows that were deleted while one was away do not stay in its target."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from riverrun.errors import BrokerError, ConfigError, RangeError
from riverrun.kafka.admin import CommittedOffset
from riverrun.kafka.consumer import Polled
from riverrun.processor.sinks import OFFSET, PARTITION, TIMESTAMP, SinkBatch, SinkTable
from riverrun.records import RAW_KEY, RAW_OFFSET, RAW_VALUE, RawFields, TopicPartition
from riverrun.transfers.follower import Follower, FollowSettings
from riverrun.transfers.missed_deletions import IGNORE, REFUSE, REMOVE, MissedDeletions
from riverrun.transfers.sql_sink import SqlSink
from riverrun.transfers.topic_feed import TopicFeed
from tests.compacted_log import TP, Brokers, CompactedLog
from tests.feeds import PlainBatches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

RETENTION_MS = 100_000
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.string()),
        (TIMESTAMP, pa.int64()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
    ]
)


class Noted(Brokers):
    """Brokers that keep the copies of committed offsets."""

    def __init__(self, log: CompactedLog) -> None:
        super().__init__(log)
        self.notes: dict[TopicPartition, Any] = {}

    def committed(self, _group: str, _tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, Any]:
        return self.notes


class Share:
    """The only member of its group."""

    def __init__(self, brokers: Noted) -> None:
        self._brokers = brokers
        self._given: frozenset[TopicPartition] | None = frozenset([TP])

    def poll(self, _give_up: Any) -> frozenset[TopicPartition] | None:
        given, self._given = self._given, None
        return given

    def rejoin(self) -> None:
        self._given = frozenset([TP])

    def note(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        self._brokers.notes |= {tp: CommittedOffset(offset, metadata) for tp, offset in offsets.items()}


class Reader:
    """Reads a few records at a time; `fetched` ones wait while the process is stopped."""

    def __init__(self, log: CompactedLog) -> None:
        self._log = log
        self._at: int | None = None
        self._fetched: Polled | None = None

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        self._at, self._fetched = starts[TP], None

    def unassign(self, _tps: Iterable[TopicPartition]) -> None:
        self._at = self._fetched = None

    def fetch(self) -> None:
        if self._at is None or self._fetched is not None:
            return
        found = list(self._log.read(self._at, self._log.end))[:3]
        records: list[RawFields] = [(r.key, r.value, 0, r.offset, ()) for r in found]
        if len(found) == 3:
            self._at, self._fetched = found[-1].offset + 1, Polled({TP: records}, {})
        else:
            self._at = self._log.end
            self._fetched = Polled({TP: records} if records else {}, {TP: self._at})

    def poll(self, _most: int, _timeout_s: float) -> Polled:
        self.fetch()
        found, self._fetched = self._fetched, None
        return found or Polled({}, {})

    def known_ends(self, _tps: Any) -> dict[TopicPartition, int]:
        return {}


def as_batch(tp: TopicPartition, records: Sequence[RawFields]) -> SinkBatch:
    values = [r[RAW_VALUE] for r in records]
    columns = [
        [(r[RAW_KEY] or b"").decode() for r in records],
        [None if value is None else value.decode() for value in values],
        [0] * len(records),
        [tp.partition] * len(records),
        [r[RAW_OFFSET] for r in records],
    ]
    rows = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    return SinkBatch(tp, rows, [value is None for value in values])


class World:
    """A follower of the log into a table."""

    def __init__(self, directory: Path, lost_deletions: str = REMOVE) -> None:
        self.log = CompactedLog(RETENTION_MS)
        self.brokers = Noted(self.log)
        self.url = f"sqlite:///{directory}/{Random().getrandbits(64):x}.db"
        self.lost_deletions = lost_deletions
        self.kill()

    def sink(self, export: str = "rows") -> SqlSink:
        table = SinkTable(export, TP.topic, "id", SCHEMA, ("key",), is_upsert=True)
        return SqlSink(table, self.url, "rows")

    def kill(self) -> None:
        """End the follower at this moment; another one begins."""
        self.reader = Reader(self.log)
        deletions = MissedDeletions(
            self.brokers,  # type: ignore[arg-type]
            "group",
            TP.topic,
            target="The table",
            lost_deletions=self.lost_deletions,
            hint="Begin again.",
        )
        share: Any = Share(self.brokers)
        reader: Any = self.reader
        self.batches = PlainBatches(as_batch)
        clock = lambda: self.log.now_ms / 1000  # noqa: E731
        feed = TopicFeed(
            share, reader, self.sink(), self.batches, lambda tps: dict.fromkeys(tps, 0), deletions, clock=clock
        )
        settings = FollowSettings(commit_seconds=1, commit_records=2)
        self.follower = Follower(feed, settings, clock=clock, pause=self.wait)

    def wait(self, seconds: float) -> None:
        self.log.now_ms += int(seconds * 1000)

    def turn(self, times: int) -> None:
        for _ in range(times):
            self.log.now_ms += 500
            self.follower.turn()

    def rows(self) -> dict[bytes, bytes]:
        engine = sa.create_engine(self.url)
        with engine.connect() as connection:
            found = {k.encode(): v.encode() for k, v in connection.execute(sa.text("SELECT key, value FROM rows"))}
        engine.dispose()
        return found

    def was_away(self) -> None:
        """Write two rows, and delete one while the follower is away."""
        self.log.write(b"a", b"1")
        self.log.write(b"b", b"1")
        self.turn(8)
        assert self.rows() == {b"a": b"1", b"b": b"1"}
        self.log.write(b"a", None)
        self.log.write(b"c", b"1")
        self.log.clean_up(2 * RETENTION_MS)
        assert all(r.key != b"a" for r in self.log.records)


def _steps(random: Random) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for _ in range(random.randrange(4, 20)):
        key, seconds = random.choice([b"a", b"b"]), random.choice([1, 8, 30, 95, 300])
        some: list[list[tuple[str, tuple[Any, ...]]]] = [
            [("write", (key, b"%d" % random.randrange(9)))],
            [("write", (key, None))],
            [("write", (key, None)), ("write", (b"a", b"x")), ("clean_up", (RETENTION_MS,))],
            [("fetch", ()), ("wait", (seconds,))],
            [("turn", (random.randint(1, 9),))],
            [("kill", ())],
            [("turn", (9,)), ("kill", ())],
        ]
        yield from random.choice(some)


@pytest.mark.parametrize("seed", range(3))
def test_the_target_has_the_rows_of_the_whole_history(seed: int, tmp_path: Path) -> None:
    for number in range(20):
        world = World(tmp_path)
        steps = list(_steps(Random(f"{seed} {number}")))
        for what, values in steps:
            owner: Any = next(one for one in (world, world.log, world.reader) if hasattr(one, what))
            getattr(owner, what)(*values)
        world.turn(40)
        assert world.rows() == world.log.table, steps


def test_rows_that_were_deleted_while_a_follower_was_away_are_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.was_away()
    world.kill()
    world.turn(8)
    assert world.rows() == {b"b": b"1", b"c": b"1"}


def test_a_follower_that_dies_while_it_looks_for_deleted_rows_looks_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.was_away()
    for number in range(9):
        world.log.write(b"d", b"%d" % number)
    for turns in (2, 3, 4, 20):
        world.kill()
        world.turn(turns)
    assert world.rows() == {b"b": b"1", b"c": b"1", b"d": b"8"}


def test_a_follower_whose_group_was_forgotten_looks_for_deleted_rows(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.was_away()
    world.brokers.notes.clear()
    world.kill()
    world.turn(8)
    assert world.rows() == {b"b": b"1", b"c": b"1"}


def test_a_follower_that_was_stopped_for_too_long_begins_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.was_away()
    world.turn(8)
    assert world.rows() == {b"b": b"1", b"c": b"1"}


def test_a_follower_refuses_to_leave_deleted_rows_behind_if_told_so(tmp_path: Path) -> None:
    world = World(tmp_path, REFUSE)
    world.was_away()
    world.kill()
    with pytest.raises(RangeError, match="The table may hold rows that have been deleted: nothing is known of"):
        world.turn(8)


def test_rows_of_records_that_are_gone_because_of_their_age_are_not_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.was_away()
    world.brokers.log_starts = lambda tps: dict.fromkeys(tps, 1)  # type: ignore[method-assign]
    world.kill()
    with pytest.raises(RangeError, match="begins at offset 1: rows of records that are gone because of their age"):
        world.turn(8)


def test_a_follower_may_leave_deleted_rows_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, IGNORE)
    world.was_away()
    world.kill()
    world.turn(8)
    assert world.rows() == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert "The table may hold rows that have been deleted" in caplog.text


def test_rows_of_another_export_in_the_same_table_are_not_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.was_away()
    world.sink("another").begin([TP])
    world.kill()
    with pytest.raises(ConfigError, match="cannot be removed from rows"):
        world.turn(8)
    assert b"a" in world.rows()


def test_nothing_is_read_again_of_a_topic_that_is_not_compacted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.brokers.settings["cleanup.policy"] = "delete"
    world.was_away()
    world.kill()
    world.turn(8)
    assert world.rows() == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_rows_are_removed_also_if_the_topic_is_compacted_no_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.was_away()
    world.brokers.settings["cleanup.policy"] = "delete"
    world.kill()
    world.turn(8)
    assert world.rows() == {b"b": b"1", b"c": b"1"}


def test_no_record_is_passed_over_if_brokers_are_absent_once_some_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, failed = World(tmp_path), list[TopicPartition]()

    def absent(tp: TopicPartition, records: Sequence[RawFields]) -> SinkBatch:
        if len(failed) < 2:
            failed.append(tp)
            message = "brokers do not answer"
            raise BrokerError(message, retriable=True)
        return as_batch(tp, records)

    monkeypatch.setattr(world.batches, "batch", absent)
    for number in range(6):
        world.log.write(b"a%d" % number, b"1")
    world.turn(20)
    assert world.rows() == world.log.table
