"""Tables that are read from compacted topics: what was deleted while nothing ran is deleted downstream as well."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.errors import BrokerError
from riverrun.hosting import table_inputs
from riverrun.hosting.table_inputs import TableInputs
from riverrun.kafka.admin import CommittedOffset
from riverrun.records import RawFields, TaskId, TopicPartition, Whole
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock
from tests.compacted_log import Brokers, CompactedLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.records import OffsetRange

RETENTION_MS = 100_000
TP = TopicPartition("in", 0)
KEYS = [b"a", b"b"]


def _spec(materialized: Any) -> TaskSpec:
    builder = StreamsBuilder()
    table = builder.table("in", Consumed(STRING, STRING), materialized)
    table.to_stream().to("out", Produced(STRING, STRING))
    (sub,) = builder.build().sub_topologies()
    return TaskSpec(TaskId(0, 0), sub, "app", (TP,))


STORES: dict[str, Any] = {
    "plain": Materialized(name="table"),
    "versioned": Materialized(name="table", history_retention=timedelta(days=1)),
    "expiring": Materialized(name="table", ttl=timedelta(days=100)),
}


class Owner:
    """The owner of a task, and those that come after it. Its outputs make a table."""

    def __init__(self, log: CompactedLog, spec: TaskSpec) -> None:
        self.log, self.spec = log, spec
        self.looks = False
        """Return whether it looks for ends from time to time, as workers do."""
        brokers: Any = Brokers(log)
        self.brokers = brokers
        self.brokers.alone = lambda: self.brokers
        self.backend = MemoryBackend()
        self.commits: dict[TopicPartition, CommittedOffset] = {}
        self.repartitioned: list[bytes] = []
        self.out: dict[bytes, bytes] = {}
        self.come_back()

    def send(self, topic: str, key: Any, value: Any, _time: int, _headers: Any, _partition: Any) -> None:
        if topic == "out":
            self.sent.append((key, value))
        elif topic.endswith("-repartition"):
            self.repartitioned.append(value)

    def partitions(self, _topic: str) -> int:
        return 1

    def come_back(self) -> None:
        """Take the task over; what was not committed is lost."""
        self.sent: list[tuple[bytes, bytes | None]] = []
        self.tables = TableInputs.begun(self.brokers, self.spec, self.commits)
        self.task = Task(self.spec, Ports(self, self.backend, MockClock()))
        self.task.start(self.commits)
        self.at = self.commits[TP].offset if TP in self.commits else 0
        self.tables.remove_rows(self.task)

    def read(self, most: int) -> None:
        found = list(self.log.read(self.at, self.log.end))[:most]
        records: list[RawFields] = [(r.key, r.value, r.offset, r.offset, ()) for r in found]
        self.at = found[-1].offset + 1 if len(found) == most else self.log.end
        self.task.add_records(TP, records)
        if len(found) < most:
            self.task.reached_end(TP, self.at)
        self.task.process_all()

    def look(self) -> None:
        if self.tables.tps:
            now = Whole(self.log.now_ms, self.tables.kept_ms)
            self.tables.following.look(now, {TP: self.log.end}, {TP: self.task.position(TP)})

    def commit(self) -> None:
        try:
            self.tables.require_recent(self.brokers)
        except BrokerError:
            self.come_back()
            return
        if not self.looks:
            self.tables.reach(self.task)
        self.task.tell_whole(dict.fromkeys(self.tables.tps, self.tables.whole))
        prepared = self.task.prepare_commit()
        for key, value in self.sent:
            if value is None:
                self.out.pop(key, None)
            else:
                self.out[key] = value
        self.sent.clear()
        self.commits |= {tp: CommittedOffset(*found) for tp, found in prepared.offsets.items()}
        self.task.post_commit({})

    def wait(self, passed_ms: int) -> None:
        self.log.now_ms += passed_ms

    def finish(self) -> None:
        for _ in range(3):
            self.read(1_000)
            self.commit()


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> CompactedLog:
    """A log that owners read."""
    found = CompactedLog(RETENTION_MS)

    def read(admin: Brokers, ranges: Mapping[TopicPartition, OffsetRange]) -> Iterator[Any]:
        for tp, wanted in ranges.items():
            yield tp, [(r.key, r.value, 0, r.offset, ()) for r in admin.log.read(wanted.start, wanted.end)]

    monkeypatch.setattr(table_inputs, "read_fields", read)
    return found


def _steps(random: Random) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for _ in range(random.randrange(4, 25)):
        key, passed_ms = random.choice(KEYS), random.choice([1, 8_000, 30_000, 95_000, 300_000])
        some: list[list[tuple[str, tuple[Any, ...]]]] = [
            [("write", (key, b"%d" % random.randrange(9)))],
            [("write", (key, None))],
            [("write", (key, None)), ("write", (b"a", b"x")), ("clean_up", (RETENTION_MS,))],
            [("wait", (passed_ms,))],
            [("read", (random.randint(1, 4),))],
            [("look", ())],
            [("commit", ())],
            [("read", (9,)), ("look", ()), ("commit", ())],
            [("come_back", ())],
        ]
        yield from random.choice(some)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("seed", range(2))
def test_the_output_has_the_rows_of_the_whole_history(seed: int, store: str) -> None:
    spec = _spec(STORES[store])
    for number in range(60):
        log = CompactedLog(RETENTION_MS)
        owner = Owner(log, spec)
        owner.looks = bool(seed)
        steps = list(_steps(Random(f"{seed} {number}")))
        for what, values in steps:
            getattr(log if hasattr(log, what) and what != "read" else owner, what)(*values)
        owner.finish()
        assert owner.out == log.table, steps


def _deleted_while_away(owner: Owner) -> None:
    owner.log.write(b"a", b"1")
    owner.log.write(b"b", b"1")
    owner.finish()
    owner.log.write(b"a", None)
    owner.log.write(b"c", b"1")
    owner.log.clean_up(2 * RETENTION_MS)
    assert all(each.key != b"a" for each in owner.log.records)


def test_rows_that_were_deleted_while_nothing_ran_are_deleted_downstream(log: CompactedLog) -> None:
    owner = Owner(log, _spec(STORES["plain"]))
    _deleted_while_away(owner)
    before = owner.commits[TP].offset
    owner.come_back()
    owner.commit()
    assert owner.out == {b"b": b"1"}
    assert owner.commits[TP].offset == before, "no record is skipped"
    owner.finish()
    assert owner.out == {b"b": b"1", b"c": b"1"}


def test_an_aggregation_is_told_of_rows_that_were_deleted_while_nothing_ran(log: CompactedLog) -> None:
    builder = StreamsBuilder()
    rows = builder.table("in", Consumed(STRING, STRING))
    rows.group_by(lambda key, _value: ("all", key), Grouped(STRING, STRING)).count(Materialized(STRING, LONG, name="n"))
    owner = Owner(log, TaskSpec(TaskId(0, 0), builder.build().sub_topologies()[0], "app", (TP,)))
    _deleted_while_away(owner)
    owner.come_back()
    owner.repartitioned.clear()
    owner.commit()
    assert len(owner.repartitioned) == 1, "the deletion of a"


def test_deletions_are_looked_for_also_if_the_topic_is_compacted_no_more(log: CompactedLog) -> None:
    owner = Owner(log, _spec(STORES["plain"]))
    _deleted_while_away(owner)
    owner.brokers.settings["cleanup.policy"] = "delete"
    owner.come_back()
    owner.commit()
    assert owner.out == {b"b": b"1"}
    sent = owner.log.end
    owner.finish()
    owner.come_back()
    assert (owner.out, owner.sent, owner.log.end) == ({b"b": b"1", b"c": b"1"}, [], sent), "not twice"


def test_a_process_that_was_stopped_for_too_long_takes_its_task_over_again(log: CompactedLog) -> None:
    owner = Owner(log, _spec(STORES["plain"]))
    _deleted_while_away(owner)
    owner.finish()
    assert owner.out == {b"b": b"1", b"c": b"1"}


def test_rows_of_a_topic_from_which_records_were_deleted_are_left(
    log: CompactedLog, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(log, _spec(STORES["plain"]))
    _deleted_while_away(owner)
    owner.brokers.log_starts = lambda tps: dict.fromkeys(tps, 1)
    owner.come_back()
    assert not owner.sent
    assert "Rows are not looked for: records were deleted, too" in caplog.text


def test_runs_that_follow_each_other_soon_do_not_read_a_topic_again(
    log: CompactedLog, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(log, _spec(STORES["plain"]))
    for number in range(20):
        log.write(b"a", b"%d" % number)
        log.write(b"b", None)
        owner.finish()
        owner.wait(RETENTION_MS // 3)
        owner.come_back()
    assert "looks for rows" not in caplog.text


def test_a_topic_that_is_not_compacted_is_not_read_again(log: CompactedLog) -> None:
    owner = Owner(log, _spec(STORES["plain"]))
    owner.brokers.settings["cleanup.policy"] = "delete"
    owner.brokers.clock = SimpleNamespace()
    owner.come_back()
    _deleted_while_away(owner)
    owner.come_back()
    assert not owner.sent
