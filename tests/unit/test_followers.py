"""Followers lose and double nothing: whatever fails, dies, pauses or changes hands, a target has each record once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.errors import BrokerError, EngineError, RegistryError, TaskMigratedError
from riverrun.kafka.consumer import Polled
from riverrun.processor.sinks import OFFSET, SinkBatch
from riverrun.records import RAW_OFFSET, TopicPartition
from riverrun.transfers.follower import Follower, FollowOptions, FollowReport, FollowSettings
from riverrun.transfers.topic_feed import TopicFeed
from tests.feeds import NothingMissed, PlainBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from riverrun.records import RawFields

PARTITIONS = 3
TPS = [TopicPartition("t", number) for number in range(PARTITIONS)]
GAP = 7
"""Each offset that is a multiple has a transaction's marker, and no record."""


@dataclass
class Target:
    """A target with transactions, rows and offsets of partitions, and epochs of their owners."""

    rows: dict[TopicPartition, list[int]] = field(default_factory=lambda: {tp: [] for tp in TPS})
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    epochs: dict[TopicPartition, int] = field(default_factory=lambda: dict.fromkeys(TPS, 0))

    def sink(self) -> Memory:
        return Memory(self)

    def rows_of(self, tp: TopicPartition) -> list[int]:
        return self.rows[tp]

    def offset_of(self, tp: TopicPartition) -> int:
        return self.offsets.get(tp, 0)


class Place(Protocol):
    """A target, and what tests ask of it."""

    def sink(self) -> Any: ...

    def rows_of(self, tp: TopicPartition) -> list[int]: ...

    def offset_of(self, tp: TopicPartition) -> int: ...


class Unreliable:
    """A sink whose next calls fail as told."""

    def __init__(self, sink: Any, failures: list[str]) -> None:
        self._sink = sink
        self._failures = failures
        self.begun = 0

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        if partitions:
            self.begun += 1
            self._fail("begin")
        found: Mapping[TopicPartition, int] = self._sink.begin(partitions)
        return found

    def write(self, batch: Any) -> None:
        self._fail("write")
        self._sink.write(batch)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._fail("commit")
        self._sink.commit(offsets)
        self._fail("answer")  # the transaction happened, and its owner does not know

    def _fail(self, at: str) -> None:
        where, _, is_away = self._failures[0].partition(" ") if self._failures else ("", "", "")
        if where != at:
            return
        del self._failures[0]
        if is_away:
            message = "a schema registry does not answer"
            raise RegistryError(message, retriable=True)
        message = "the target does not answer"
        raise EngineError(message)


class Memory:
    """A sink into a target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._epochs: dict[TopicPartition, int] = {}
        self._pending: list[SinkBatch] = []

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._pending, self._epochs = [], {}
        for tp in partitions:
            self._target.epochs[tp] += 1
            self._epochs[tp] = self._target.epochs[tp]
        return {tp: self._target.offsets[tp] for tp in partitions if tp in self._target.offsets}

    def write(self, batch: SinkBatch) -> None:
        self._pending.append(batch)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp in offsets:
            if self._target.epochs[tp] != self._epochs.get(tp):
                message = f"fenced from {tp}"
                raise TaskMigratedError(message)
        for batch in self._pending:
            assert batch.tp in offsets
            self._target.rows[batch.tp] += batch.records.column(OFFSET).to_pylist()
        self._target.offsets |= offsets
        self._pending = []


@dataclass
class Log:
    """The partitions of a topic."""

    ends: dict[TopicPartition, int] = field(default_factory=lambda: dict.fromkeys(TPS, 0))

    def offsets(self, tp: TopicPartition) -> list[int]:
        return [offset for offset in range(self.ends[tp]) if offset % GAP]


class LogReader:
    """Reads a log in small pieces."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._at: dict[TopicPartition, int] = {}
        self.fails = 0

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        assert not self._at.keys() & starts.keys()
        self._at |= starts

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._at.pop(tp, None)

    def poll(self, _max_records: int, _timeout_s: float) -> Polled:
        if self.fails:
            self.fails -= 1
            message = "brokers do not answer"
            raise BrokerError(message, retriable=True)
        records: dict[TopicPartition, list[RawFields]] = {}
        ends = {}
        for tp, at in self._at.items():
            until = min(at + 3, self._log.ends[tp])
            records[tp] = [(b"k", b"v", 0, offset, ()) for offset in range(at, until) if offset % GAP]
            self._at[tp] = until
            if until == self._log.ends[tp]:
                ends[tp] = until
        return Polled({tp: found for tp, found in records.items() if found}, ends)

    def known_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._log.ends[tp] for tp in tps}


class Group:
    """Assigns partitions to followers; some hear of it late, and some have been paused meanwhile."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, int] = dict.fromkeys(TPS, 0)
        self.generation = 0

    def give(self, tp: TopicPartition, owner: int) -> None:
        self.owners[tp] = owner
        self.generation += 1


class Member:
    """A follower's share of the group."""

    def __init__(self, group: Group, number: int) -> None:
        self._group = group
        self._number = number
        self._heard = -1
        self.deaf = 0

    def poll(self, give_up: Callable[[], None]) -> frozenset[TopicPartition] | None:
        if self.deaf:
            self.deaf -= 1
            return None
        if self._heard == self._group.generation:
            return None
        if self._heard >= 0:
            give_up()
        self._heard = self._group.generation
        return frozenset(tp for tp, owner in self._group.owners.items() if owner == self._number)

    def rejoin(self) -> None:
        self._group.generation += 1

    def note(self, offsets: Mapping[TopicPartition, int], _metadata: str) -> None:
        """Take no copy."""


class World:
    """Two followers of a topic with one target."""

    def __init__(self, commit_records: int = 5, place: Place | None = None, batch: Any = None) -> None:
        self.log, self.target, self.group = Log(), Target(), Group()
        self.place = place or self.target
        self.batch = batch or as_batch
        self.failures: list[str] = []
        self.now = 0.0
        self._settings = FollowSettings(commit_seconds=2, commit_records=commit_records, retry_seconds=10_000)
        self.members: list[Member] = []
        self.readers: list[LogReader] = []
        self.sinks: dict[int, Unreliable] = {}
        self.followers: list[Follower] = []
        for number in range(2):
            self.members.append(Member(self.group, number))
            self.readers.append(LogReader(self.log))
            self.followers.append(self._follower(number))

    def _follower(self, number: int) -> Follower:
        member: Any = self.members[number]
        reader: Any = self.readers[number]
        sink = self.sinks[number] = Unreliable(self.place.sink(), self.failures)
        batches: PlainBatches = PlainBatches(self.batch)
        feed = TopicFeed(
            member,
            reader,
            sink,
            batches,
            lambda tps: dict.fromkeys(tps, 0),
            NothingMissed(),
            clock=lambda: self.now,
        )
        return Follower(feed, self._settings, clock=lambda: self.now, pause=self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def turn(self, number: int) -> None:
        self.now += 0.1
        self.followers[number].turn()
        self.check()

    def kill(self, number: int) -> None:
        """End a follower at this moment, and start another one in its place."""
        self.members[number] = Member(self.group, number)
        self.readers[number] = LogReader(self.log)
        self.followers[number] = self._follower(number)

    def act(self, what: str, number: int, times: int) -> None:
        """Do one of `ACTIONS`."""
        if what == "append":
            self.log.ends[TPS[number]] += times
        elif what == "turn":
            for _ in range(times):
                self.turn(number)
        elif what == "give":
            self.group.give(TPS[number], times)
        elif what == "kill":
            self.kill(number)
        elif what == "deafen":
            self.members[number].deaf = times
        elif what == "read":
            self.readers[number].fails = 1
        else:
            self.failures.append(what)

    def ends_at(self, end: int) -> bool:
        """Return whether the target has everything, a moment later."""
        self.now += 0.1
        return all(self.place.offset_of(tp) == end for tp in TPS)

    def check(self) -> None:
        """The target has the records before its offsets, each once and in order."""
        for tp in TPS:
            end = self.place.offset_of(tp)
            assert self.place.rows_of(tp) == [offset for offset in self.log.offsets(tp) if offset < end]

    def settle(self) -> None:
        """Let both go on until everything is in the target."""
        self.failures.clear()
        for _ in range(1_000):
            self.now += 40
            for number in range(2):
                self.turn(number)
            if all(self.place.rows_of(tp) == self.log.offsets(tp) for tp in TPS):
                return
        pytest.fail(f"never wrote everything: {self.place}")


def as_batch(tp: TopicPartition, records: Sequence[RawFields]) -> SinkBatch:
    offsets = pa.array([record[RAW_OFFSET] for record in records], pa.int64())
    return SinkBatch(tp, pa.RecordBatch.from_arrays([offsets], [OFFSET]), [False] * len(records))


PLACES = ["begin", "write", "commit", "answer"]
FAILURES = [*PLACES, *(f"{each} away" for each in PLACES)]
"""Places at which a target, or a schema registry that it needs, does not answer."""

ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1), st.integers(1, 12)),
    st.tuples(st.just("turn"), st.integers(0, 1), st.integers(1, 6)),
    st.tuples(st.just("give"), st.integers(0, PARTITIONS - 1), st.integers(0, 1)),
    st.tuples(st.just("kill"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("deafen"), st.integers(0, 1), st.integers(1, 8)),
    st.tuples(st.sampled_from([*FAILURES, "read"]), st.integers(0, 1), st.just(0)),
)


@given(st.lists(ACTIONS, min_size=10, max_size=60))
@settings(max_examples=300)
def test_a_target_has_each_record_once_whatever_happens(actions: list[tuple[str, int, int]]) -> None:
    world = World()
    for action in actions:
        world.act(*action)
    world.settle()


def test_a_follower_stops_at_the_end_and_reports_what_it_has_done() -> None:
    world = World(commit_records=1_000)
    world.log.ends |= dict.fromkeys(TPS, 20)
    follower = world.followers[0]
    reports: list[FollowReport] = []
    assert not follower.follow(FollowOptions(until_caught_up=True, on_report=reports.append, report_seconds=0))
    assert {tp: len(rows) for tp, rows in world.target.rows.items()} == dict.fromkeys(TPS, 17)
    assert reports[-1].records in {0, 51}
    assert world.target.offsets == dict.fromkeys(TPS, 20)


def test_a_stop_commits_what_was_read() -> None:
    world = World(commit_records=1_000)
    world.log.ends[TPS[0]] = 3
    turns = iter(range(4))
    world.followers[0].follow(FollowOptions(ends=lambda: next(turns, None) is None))
    assert world.target.rows[TPS[0]] == [1, 2]


def test_a_target_that_never_answers_ends_the_follower_with_its_error() -> None:
    world = World()
    world.log.ends[TPS[0]] = 3
    world.failures += ["begin"] * 10_000
    with pytest.raises(EngineError, match="the target does not answer"):
        world.followers[0].follow(FollowOptions())
    assert 10_000 <= world.now < 10_100


@pytest.mark.parametrize("place", ["begin", "write", "commit"])
def test_a_follower_waits_for_a_registry_with_growing_pauses(place: str) -> None:
    world = World(commit_records=1_000)
    world.log.ends = dict.fromkeys(TPS, 3)
    # It waits without an end, as for brokers, and unlike for a target.
    world.failures += [f"{place} away"] * 400
    world.followers[0].follow(FollowOptions(ends=lambda: world.ends_at(3)))
    assert world.sinks[0].begun == 401
    assert world.now > 390 * 30
    assert {tp: world.target.rows_of(tp) for tp in TPS} == {tp: world.log.offsets(tp) for tp in TPS}


@pytest.mark.parametrize("place", ["begin", "write", "commit", "read"])
def test_a_batch_ends_if_brokers_or_a_registry_stay_away(place: str) -> None:
    world = World(commit_records=1_000)
    world.log.ends = dict.fromkeys(TPS, 3)
    world.failures += [f"{place} away"] * 10_000
    world.readers[0].fails = 10_000 if place == "read" else 0
    with pytest.raises(BrokerError, match="brokers do not answer" if place == "read" else "registry does not answer"):
        world.followers[0].follow(FollowOptions(until_caught_up=True))
    assert 10_000 <= world.now < 10_100
    assert world.sinks[0].begun < 400


@pytest.mark.parametrize("place", ["begin", "write", "commit", "read"])
def test_a_batch_waits_for_brokers_or_a_registry_for_a_while(place: str) -> None:
    world = World(commit_records=1_000)
    world.log.ends = dict.fromkeys(TPS, 3)
    world.failures += [f"{place} away"] * (0 if place == "read" else 100)
    world.readers[0].fails = 100 if place == "read" else 0
    world.followers[0].follow(FollowOptions(until_caught_up=True))
    assert {tp: world.target.rows_of(tp) for tp in TPS} == {tp: world.log.offsets(tp) for tp in TPS}


@pytest.mark.parametrize("place", ["begin", "write", "commit"])
def test_an_outage_of_others_is_no_time_in_which_a_target_fails(place: str) -> None:
    world = World(commit_records=1_000)
    world.log.ends = dict.fromkeys(TPS, 3)
    world.failures += [place, *[f"{place} away"] * 400, place]
    world.followers[0].follow(FollowOptions(ends=lambda: world.ends_at(3)))
    assert world.now > 390 * 30
    assert {tp: world.target.rows_of(tp) for tp in TPS} == {tp: world.log.offsets(tp) for tp in TPS}


def test_pauses_are_short_again_after_a_recovery() -> None:
    world = World(commit_records=1)
    world.log.ends[TPS[0]] = 3
    world.failures += ["write away"] * 9
    world.followers[0].follow(FollowOptions(until_caught_up=True))
    world.log.ends[TPS[0]] = 6
    began = world.now
    world.failures += ["write away"]
    world.followers[0].follow(FollowOptions(until_caught_up=True))
    assert world.target.rows[TPS[0]] == [1, 2, 3, 4, 5]
    assert world.now - began < 2


@pytest.mark.parametrize("failure", ["commit", "commit away"])
def test_a_stop_leaves_what_cannot_be_committed_to_the_next_follower(failure: str) -> None:
    world = World(commit_records=1_000)
    world.log.ends[TPS[0]] = 3
    turns = iter(range(4))
    world.failures += [failure]
    world.followers[0].follow(FollowOptions(ends=lambda: next(turns, None) is None))
    assert world.target.rows[TPS[0]] == []
    world.kill(0)
    world.followers[0].follow(FollowOptions(until_caught_up=True))
    assert world.target.rows[TPS[0]] == [1, 2]


def test_records_are_due_some_time_after_their_reading_began() -> None:
    world = World(commit_records=1_000)

    def slow(tp: TopicPartition, records: Sequence[RawFields]) -> SinkBatch:
        world.now += 3
        return as_batch(tp, records)

    world.batch = slow
    world.kill(0)
    world.log.ends[TPS[0]] = 3
    world.turn(0)
    assert world.target.rows[TPS[0]] == [1, 2]


def test_offsets_move_past_records_that_make_no_rows() -> None:
    world = World(commit_records=1_000, batch=lambda tp, records: as_batch(tp, records) if tp != TPS[0] else None)
    world.log.ends = dict.fromkeys(TPS, 3)
    world.followers[0].follow(FollowOptions(until_caught_up=True))
    assert {tp: world.target.offset_of(tp) for tp in TPS[:2]} == dict.fromkeys(TPS[:2], 3)
    assert world.target.rows_of(TPS[0]) == []


def test_another_version_ends_the_follower_after_a_commit() -> None:
    world = World(commit_records=1_000)
    world.log.ends[TPS[0]] = 3
    follower = world.followers[0]

    def tick() -> bool:
        world.now += 1
        return False

    assert follower.follow(FollowOptions(ends=tick), lambda: world.now > 20)
    assert world.target.rows[TPS[0]] == [1, 2]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("failures", [1, 3])
def test_a_failure_at_the_end_is_not_taken_for_the_end(failure: str, failures: int) -> None:
    world = World(commit_records=1_000)
    world.log.ends = dict.fromkeys(TPS, 20)
    for tp in TPS:
        world.group.give(tp, 0)
    world.failures += [failure] * failures
    world.followers[0].follow(FollowOptions(until_caught_up=True))
    assert {tp: world.place.rows_of(tp) for tp in TPS} == {tp: world.log.offsets(tp) for tp in TPS}
