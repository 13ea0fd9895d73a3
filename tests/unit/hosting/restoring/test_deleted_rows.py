"""Rows that were deleted stay deleted, however long an instance with a copy of them was away."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Materialized, StreamsBuilder
from riverrun.errors import BrokerError, RangeError
from riverrun.hosting import restoring, standby_tasks
from riverrun.hosting.restoring import StoreChangelogReader, find_missing, silently
from riverrun.hosting.standby_tasks import StandbyTasks
from riverrun.hosting.task_start import CommittedPoint, OpenedTask
from riverrun.kafka.consumer import PolledBatches
from riverrun.kafka.door import Kafka
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock
from tests.changelogs import Batch
from tests.compacted_log import TP, Brokers, CompactedLog, Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

RETENTION_MS = 100_000
KEYS = ["a", "b"]


def _spec() -> TaskSpec:
    builder = StreamsBuilder()
    builder.table("in", Consumed(STRING, STRING), Materialized(name="table"))
    (sub,) = builder.build().sub_topologies()
    return TaskSpec(TaskId(0, 0), sub, "app", (TopicPartition("in", 0),))


SPEC = _spec()


class Records(Batch):
    """Records of the log, as the client returns them."""

    def __init__(self, records: list[Written]) -> None:
        self._all = records
        super().__init__(SimpleNamespace(key=r.key, value=r.value, timestamp=0, headers=()) for r in records)  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._all)

    @property
    def end(self) -> int:
        return self._all[-1].offset + 1

    def split(self, offset: int) -> tuple[Records, Records]:
        return Records([r for r in self._all if r.offset < offset]), Records(
            [r for r in self._all if r.offset >= offset]
        )


class Reader:
    """A consumer of the log. It may have fetched records some time before it returns them."""

    def __init__(self, log: CompactedLog) -> None:
        self._log = log
        self._at: int | None = None
        self.fetched: PolledBatches | None = None

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        self._at, self.fetched = starts.get(TP, self._at), None

    def unassign(self, _tps: Iterable[TopicPartition]) -> None:
        self._at = self.fetched = None

    def fetch(self, most: int) -> None:
        if self._at is None or self.fetched is not None:
            return
        if self._at < self._log.start:
            return
        found = list(self._log.read(self._at, self._log.end))[:most]
        reached = found[-1].offset + 1 if len(found) == most else self._log.end
        self.fetched = PolledBatches({TP: Records(found)} if found else {}, {TP: max(reached, self._at)})  # type: ignore[dict-item]
        self._at = max(reached, self._at)

    def poll_batches(self, most: int, _timeout_s: float) -> PolledBatches:
        self.fetch(most)
        if self._at is not None and self._at < self._log.start and self.fetched is None:
            message = "no such offset"
            raise RangeError(message)
        found, self.fetched = self.fetched, None
        return found or PolledBatches({}, {})

    def close(self) -> None:
        self._at = self.fetched = None


def _copy_of(backend: MemoryBackend) -> MemoryBackend:
    copy = MemoryBackend()
    tables = {name: dict(backend.table(name).scan(None, None)) for name in backend.tables()}
    copy.write(tables, backend.positions(), whole=backend.whole())  # type: ignore[arg-type]
    copy.note_topic_ids(backend.topic_ids())
    return copy


@dataclass
class Instance:
    """An instance that has a copy of the rows: restores it, then follows the changelog as a standby."""

    log: CompactedLog
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    reader: Any = None

    def __post_init__(self) -> None:
        self.brokers: Any = Brokers(self.log)
        self.new_reader()
        self.restore: StoreChangelogReader | None = None
        self.opened: OpenedTask | None = None
        self.standbys: StandbyTasks | None = None

    def new_reader(self) -> None:
        self.reader = Reader(self.log)

    def found(self, *_arguments: Any, **_named: Any) -> OpenedTask:
        """Open the local state (`begin_task`)."""
        missing = find_missing(self.brokers, self.backend, SPEC, {})
        connected: Any = SimpleNamespace(admin=self.brokers, id="app")
        return OpenedTask(connected, SPEC, MockClock(), CommittedPoint({}, {}), missing, ())

    def come_back(self) -> None:
        """Begin as the owner: restore."""
        self.standbys, self.opened = None, self.found()
        self._begin()

    def _begin(self) -> None:
        assert self.opened is not None
        self.new_reader()
        self.restore = StoreChangelogReader(self.brokers, Kafka({}))
        self.restore.add(self.opened.new_task(), self.opened.missing, silently)

    def follow(self) -> None:
        """Begin as a standby."""
        self.restore = self.opened = None
        self.new_reader()
        self.standbys = StandbyTasks(_connected(self.brokers), MockClock())
        self.standbys.follow(SPEC.id)

    def read(self, most: int) -> None:
        if self.restore is not None and self.opened is not None:
            try:
                if self.restore.run_once(most, 0):
                    self.restore = None
            except RangeError:
                missing = find_missing(self.brokers, self.backend, SPEC, {})
                again = self.opened.missing.attempt + 1
                self.opened = OpenedTask(self.opened.connected, SPEC, MockClock(), CommittedPoint({}, {}), missing, ())
                assert again == 1, "it is never late again: time stands still until it has read all"
                self._begin()
        elif self.standbys is not None:
            self.standbys.run_once(0)

    def fetch(self, most: int) -> None:
        """Let the client fetch records, which wait while the process is stopped."""
        self.reader.fetch(most)

    def clean(self, passed_ms: int) -> None:
        self.log.clean_up(passed_ms)

    def trim(self) -> None:
        self.log.trim()

    def return_after_a_jump(self, ms: int) -> None:
        """Begin as the owner, with a broker whose clock was set to another time meanwhile."""
        self.log.jump(ms)
        self.come_back()

    def wait(self, passed_ms: int) -> None:
        self.log.now_ms += passed_ms

    def look(self) -> None:
        if self.standbys is not None:
            self.standbys.lags()

    def finish(self) -> None:
        """Read all that is left, at once, and take the task over."""
        for _ in range(3):
            self.look()
            self.read(1_000)
        self.come_back()
        for _ in range(3):
            self.read(1_000)

    def rows(self) -> dict[bytes, bytes]:
        store = self.found().new_task().store("table")
        found = {key: store.get(key) for key in KEYS}
        return {key.encode(): row.value.encode() for key, row in found.items() if row is not None}


def _connected(brokers: Any) -> Any:
    application = SimpleNamespace(kafka={}, config=SimpleNamespace(streams=SimpleNamespace(consumer={})))
    return SimpleNamespace(admin=brokers, application=application, committed=lambda _tps: {})


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance with an empty log."""
    found = Instance(CompactedLog(RETENTION_MS))
    return _patched(found, monkeypatch)


def _patched(found: Instance, monkeypatch: pytest.MonkeyPatch) -> Instance:
    for module in (restoring, standby_tasks):
        monkeypatch.setattr(module, "RecordConsumer", lambda *_arguments: found.reader)
    monkeypatch.setattr(standby_tasks, "begin_task", found.found)
    return found


def _steps(random: Random, *also: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield what happens, so that many copies are just about to lack a deletion."""
    for _ in range(random.randrange(4, 30)):
        key, marked = random.choice(KEYS), random.random() < 0.5
        passed_ms = random.choice([1, 8_000, 30_000, 70_000, 95_000, 300_000])
        some: list[list[tuple[Any, ...]]] = [
            [("write", key, marked)],
            [("delete", key, marked)],
            [("delete", key, marked), ("write", KEYS[0], marked), ("clean", RETENTION_MS)],
            [("write", key, marked), ("clean", random.choice([0, RETENTION_MS]))],
            [("wait", passed_ms)],
            [("fetch", 3), ("wait", passed_ms)],
            [("read", random.randint(1, 4))],
            [("look",)],
            [("look",), ("read", 10), ("look",)],
            [("come_back",)],
            [("follow",)],
            [("snapshot",)],
            [("lose",)],
            *([step] for step in also),
        ]
        yield from random.choice(some)


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_has_the_rows_of_the_whole_history(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        instance = _patched(Instance(CompactedLog(RETENTION_MS)), monkeypatch)
        steps = list(_steps(Random(f"{seed} {number}")))
        _go(instance, steps)
        assert instance.rows() == instance.log.table, steps


@pytest.mark.parametrize("jump_ms", [-RETENTION_MS // 11, RETENTION_MS // 11, 10 * RETENTION_MS])
def test_clocks_of_brokers_may_jump_back_by_a_tenth_and_forward(jump_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        instance = _patched(Instance(CompactedLog(RETENTION_MS)), monkeypatch)
        steps = list(_steps(Random(number), ("wait", jump_ms), ("wait", jump_ms)))
        _go(instance, steps)
        assert instance.rows() == instance.log.table, steps


@pytest.mark.parametrize("seed", range(4))
def test_clocks_of_brokers_may_be_set_to_any_time_while_an_instance_is_away(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumped = 0
    for number in range(100):
        random = Random(f"{seed} {number}")
        instance = _patched(Instance(CompactedLog(RETENTION_MS)), monkeypatch)
        steps = list(_steps(random))
        if any(step[0] == "come_back" for step in steps):
            jump_ms = random.choice([-1, 1]) * round(RETENTION_MS * random.choice([0.11, 0.9, 1, 1.5, 3, 1_000]))
            last = max(n for n, step in enumerate(steps) if step[0] == "come_back")
            steps[last] = ("return_after_a_jump", jump_ms)
            jumped += 1
        _go(instance, steps)
        assert instance.rows() == instance.log.table, steps
    assert jumped > 20


@pytest.mark.parametrize("seed", range(2))
def test_a_copy_whose_log_begins_later_has_no_row_that_was_deleted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        instance = _patched(Instance(CompactedLog(RETENTION_MS)), monkeypatch)
        steps = list(_steps(Random(f"{seed} {number}"), ("trim",), ("trim",)))
        _go(instance, steps)
        log, rows = instance.log, instance.rows()
        assert rows.items() <= log.table.items(), steps
        assert log.table.keys() & {record.key for record in log.records} <= rows.keys(), steps


def _go(instance: Instance, steps: list[tuple[Any, ...]]) -> None:
    instance.come_back()
    kept = _copy_of(instance.backend)
    for number, (what, *values) in enumerate(steps):
        if what == "snapshot":
            kept = _copy_of(instance.backend)
        elif what == "lose":  # begins with the snapshot
            instance.backend = _copy_of(kept)
            instance.come_back()
        elif what in {"write", "delete"}:
            key, marked = values
            instance.log.write(key.encode(), str(number).encode() if what == "write" else None, marked=marked)
        else:
            getattr(instance, what)(*values)
    instance.finish()


def _left_with_a_row(instance: Instance, *, marked: bool = True) -> None:
    instance.log.write(b"a", b"100", marked=marked)
    instance.come_back()
    instance.finish()


def _deleted_and_cleaned(log: CompactedLog) -> None:
    log.write(b"a", None)
    for number in range(4):
        log.write(b"b", str(number).encode())
        log.clean_up(2 * RETENTION_MS)
    assert all(each.key != b"a" for each in log.records)


@pytest.mark.parametrize("comes_back", ["come_back", "follow"])
def test_a_row_that_was_deleted_meanwhile_stays_deleted(instance: Instance, comes_back: str) -> None:
    _left_with_a_row(instance)
    _deleted_and_cleaned(instance.log)
    getattr(instance, comes_back)()
    instance.finish()
    assert instance.rows() == instance.log.table == {b"b": b"3"}


def test_a_process_that_was_stopped_for_too_long_begins_again(instance: Instance) -> None:
    _left_with_a_row(instance)
    instance.follow()
    instance.read(10)
    instance.look()
    _deleted_and_cleaned(instance.log)
    instance.read(10)
    instance.look()
    instance.finish()
    assert instance.rows() == instance.log.table


@pytest.mark.parametrize("marked", [True, False], ids=["in transactions", "without"])
def test_state_of_a_quiet_topic_is_kept_however_long_it_was_away(instance: Instance, *, marked: bool) -> None:
    _left_with_a_row(instance, marked=marked)
    instance.backend.write({"kept": {b"kept": b""}}, {TP: 1})  # before the marker, as a commit leaves it
    instance.log.now_ms += 1_000 * RETENTION_MS
    instance.come_back()
    assert "kept" in instance.backend.tables()


def test_the_settings_that_were_valid_when_a_copy_left_count_as_well(instance: Instance) -> None:
    _left_with_a_row(instance)
    _deleted_and_cleaned(instance.log)
    instance.brokers.settings["delete.retention.ms"] = str(1_000 * RETENTION_MS)  # raised when the absence was noticed
    instance.come_back()
    instance.finish()
    assert instance.rows() == instance.log.table


def _absent(*_arguments: Any, **_named: Any) -> Any:
    message = "brokers do not answer"
    raise BrokerError(message, retriable=True)


def test_a_standby_misses_no_record_if_brokers_are_absent_once_some_are_read(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.follow()
    instance.read(9)
    instance.log.write(b"a", b"1")
    standbys = instance.standbys
    assert standbys is not None
    with monkeypatch.context() as absent:
        absent.setattr(standbys, "_apply_held", _absent)
        with pytest.raises(BrokerError):
            standbys.run_once(0)
    for task_id in {SPEC.id} - standbys.tasks:
        standbys.follow(task_id)
    instance.log.write(b"b", b"2")
    instance.read(9)
    assert instance.rows() == {b"a": b"1", b"b": b"2"}


def test_nobody_asks_for_the_time_between_reading_and_applying(instance: Instance) -> None:
    instance.follow()
    instance.brokers.clock.now_ms = _absent
    instance.log.write(b"a", b"1")
    instance.read(9)
    assert instance.standbys is not None
    assert instance.standbys.applied(SPEC.id) == {TP: instance.log.end}
