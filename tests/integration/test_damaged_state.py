"""Local state that cannot be read, or does not fit its changelogs any more: it is thrown away, restored, and said."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.errors import TopicError
from riverrun.hosting.active_task import ActiveTask, TaskState, start_task
from riverrun.hosting.claim import Claim
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.local_state import left_positions
from riverrun.hosting.process import SystemClock
from riverrun.hosting.restoring import silently
from riverrun.hosting.standby_tasks import StandbyTasks
from riverrun.kafka.admin import Admin
from riverrun.records import OffsetVector, TaskId, TopicPartition
from riverrun.state.rocksdb import RocksDbBackend
from riverrun.worker.reset import plan_reset, reset
from riverrun.worker.tasks.state_updater import StateUpdater
from riverrun.worker.worker import Worker
from tests.presence import present
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.brokers import Broker

KEYS = [b"%04d" % n for n in range(3000)]
TASK = TaskId(0, 0)


class Case:
    """Counts of keys in one partition; every round counts each key once."""

    def __init__(self, broker: Broker, name: str, tmp_path: Path) -> None:
        self.broker, self.name = broker, name
        builder = StreamsBuilder()
        counts = builder.stream(f"{name}.in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
        counts.count(Materialized(name="counts")).to_stream().to(f"{name}.out", Produced(STRING, LONG))
        settings = {"commit_interval_ms": 50, "processing_exception_handler": "continue"}
        self.app = broker.application(name, builder.build(), tmp_path / "state", **settings)
        self.state = self.app.directory / "0_0"
        self.changelog = TopicPartition(f"{self.app.id}-counts-changelog", 0)
        self.rounds = 0
        broker.create(1, f"{name}.in", f"{name}.out")

    def work(self) -> int:
        """Count all keys once more, and return the number of restored changelog records."""
        self.rounds += 1
        self.broker.write(f"{self.name}.in", [(key, b"", self.rounds) for key in KEYS])
        summary = Worker(self.app).run(until_caught_up=True)
        assert summary.dropped == {}
        return summary.restored

    def check(self) -> None:
        found = {r.key: LONG.deserialize(present(r.value)) for r in self.broker.read(f"{self.name}.out")}
        assert found == dict.fromkeys(KEYS, self.rounds)


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def case(broker: Broker, unique: str, tmp_path: Path) -> Case:
    return Case(broker, unique, tmp_path)


def cut(broker: Broker, changelog: TopicPartition, before: int) -> None:
    """Delete a changelog's first records, as retention does where changelogs have one."""
    broker.configure(changelog.topic, {"cleanup.policy": "compact,delete"})
    broker.admin().delete_records({changelog: before})


class Cutting(Admin):
    """Asks brokers, and once deletes the records before an offset right after it was told where a changelog ends."""

    def __init__(self, case: Case, before: int) -> None:
        super().__init__(case.broker.door)
        self._broker = case.broker
        self._cuts = {case.changelog: before}

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = super().end_offsets(tps)
        for changelog in self._cuts.keys() & found.keys():
            cut(self._broker, changelog, self._cuts.pop(changelog))
        return found


def counts_of_standby(case: Case, admin: Admin) -> set[int]:
    """The counts that a standby has when it has followed the changelog for as many records as there are keys."""
    standbys = StandbyTasks(ConnectedApplication(case.app, admin), SystemClock())
    standbys.follow(TASK)
    applied: list[int] = []
    until(lambda: sum(applied) >= len(KEYS), "followed", turn=lambda: applied.append(standbys.run_once(0.1)))
    counts = {standbys.task(TASK).store("counts").get(key.decode()).value for key in KEYS}
    standbys.close()
    return counts


def overwrite_middle(paths: Iterable[Path]) -> None:
    for path in paths:
        data = bytearray(path.read_bytes())
        third = len(data) // 3
        data[third : 2 * third] = b"\x5a" * third
        path.write_bytes(data)


def note_position(case: Case, offset: int) -> None:
    backend = RocksDbBackend(case.state)
    backend.write({}, {case.changelog: offset})
    backend.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda case: overwrite_middle(case.state.glob("MANIFEST-*")), "is damaged"),
        (lambda case: overwrite_middle(case.state.glob("*.sst")), "is damaged"),
        (lambda case: (case.state / "CURRENT").write_text("MANIFEST"), "is damaged"),
        (lambda case: note_position(case, 1_000_000), "restores all of its state"),
    ],
    ids=["manifest", "tables", "pointer", "position"],
)
def test_damaged_state_is_restored_with_a_warning(
    case: Case, caplog: pytest.LogCaptureFixture, damage: Callable[[Case], None], said: str
) -> None:
    case.work()
    damage(case)
    assert case.work() >= len(KEYS)
    assert said in caplog.text
    case.check()
    caplog.clear()
    case.work()
    assert said not in caplog.text
    case.check()


@pytest.mark.parametrize("position", [len(KEYS), 0], ids=["committed", "acknowledged"])
def test_state_of_a_recreated_topic_is_thrown_away_though_its_offsets_fit(
    case: Case, caplog: pytest.LogCaptureFixture, tmp_path: Path, position: int
) -> None:
    case.work()
    note_position(case, position)
    admin, here = Admin(case.broker.door), case.app
    elsewhere = here.in_directory(tmp_path / "elsewhere")
    source = TopicPartition(f"{case.name}.in", 0)
    reset(plan_reset(ConnectedApplication(elsewhere, admin), OffsetVector(admin.end_offsets([source]))), admin)
    others = [b"other" + key for key in KEYS]
    case.broker.write(f"{case.name}.in", [(key, b"", 2) for key in others])
    Worker(elsewhere).run(until_caught_up=True)
    assert "restores all of its state" not in caplog.text
    case.broker.write(f"{case.name}.in", [(key, b"", 3) for key in (*KEYS, *others)])
    assert Worker(here).run(until_caught_up=True).restored >= len(others)
    assert "has been recreated since" in caplog.text
    found = {r.key: LONG.deserialize(present(r.value)) for r in case.broker.read(f"{case.name}.out")}
    assert found == dict.fromkeys(KEYS, 1) | dict.fromkeys(others, 2)


def test_what_dies_while_it_makes_state_leaves_nothing_that_others_stumble_over(case: Case) -> None:
    case.work()
    for left in (".checkpoint-0_0", ".0_0.unfinished"):
        shutil.copytree(case.state, case.app.directory / left)
    assert left_positions(case.app).keys() == {TASK}


def test_state_older_than_its_changelog_is_restored_from_what_is_left(case: Case, tmp_path: Path) -> None:
    case.work()
    shutil.copytree(case.state, tmp_path / "old")
    case.work()
    end = case.broker.admin().end_offsets([case.changelog])[case.changelog]
    case.work()
    cut(case.broker, case.changelog, end)
    shutil.rmtree(case.state)
    shutil.copytree(tmp_path / "old", case.state)
    assert case.work() == len(KEYS)
    case.check()


def test_a_changelog_cut_off_just_before_its_restore_is_restored_from_there(case: Case) -> None:
    case.work()
    end = case.broker.admin().end_offsets([case.changelog])[case.changelog]
    case.work()
    shutil.rmtree(case.state)
    admin = Cutting(case, end)
    active = start_task(Claim(ConnectedApplication(case.app, admin), TASK, SystemClock()), {})
    active.close()
    assert active.restored_records == len(KEYS)
    case.work()
    case.check()


def test_a_changelog_cut_off_during_a_take_over_is_restored_from_there(case: Case) -> None:
    case.work()
    end = case.broker.admin().end_offsets([case.changelog])[case.changelog]
    case.work()
    shutil.rmtree(case.state)
    admin = Cutting(case, end)
    updater = StateUpdater(admin, case.app.kafka, 60_000, silently, lambda claimed: ActiveTask(claimed, {}))
    updater.add(Claim(ConnectedApplication(case.app, admin), TASK, SystemClock()))
    deadline = time.monotonic() + DEADLINE_S
    while not (updated := updater.run_once(10_000, 0.1)).complete:
        assert not updated.refused
        assert time.monotonic() < deadline, "nothing is restored"
    (active,) = updated.complete
    assert (active.state, active.restored_records) == (TaskState.RESTORING, len(KEYS))
    updater.take(active.id)
    updater.close()
    active.close()


def test_a_standby_whose_changelog_is_cut_off_under_it_goes_on_with_what_is_left(case: Case) -> None:
    case.work()
    end = case.broker.admin().end_offsets([case.changelog])[case.changelog]
    case.work()
    backend = RocksDbBackend(case.state)
    backend.write({}, {case.changelog: 1})
    backend.close()
    assert counts_of_standby(case, Cutting(case, end)) == {2}


def test_a_standby_whose_state_is_damaged_restores_it(case: Case) -> None:
    case.work()
    overwrite_middle(case.state.glob("MANIFEST-*"))
    assert counts_of_standby(case, case.broker.admin()) == {1}


def test_a_deleted_changelog_is_not_recreated_before_a_reset(case: Case) -> None:
    case.work()
    admin = case.broker.admin()
    admin.delete_topics([case.changelog.topic])
    with pytest.raises(TopicError, match=f"internal topics are missing: {case.changelog.topic}\\n"):
        case.work()
    assert admin.list_topics(case.changelog.topic) == []
    beginning = OffsetVector({TopicPartition(f"{case.name}.in", 0): 0})
    reset(plan_reset(ConnectedApplication(case.app, admin), beginning), admin)
    assert case.work() == 0
    case.check()


@pytest.mark.broker
@pytest.mark.parametrize("age", [timedelta(days=400), timedelta(0)], ids=["of last year", "of today"])
def test_open_windows_that_brokers_have_deleted_by_event_time_are_missed_aloud(
    broker: Broker, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, age: timedelta
) -> None:
    builder = StreamsBuilder()
    words = builder.stream(f"{unique}.in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
    windows = words.windowed_by(TimeWindows.of(timedelta(minutes=5), grace=timedelta(minutes=1)))
    windows.count(Materialized(name="counts", log_config={"retention.ms": "86460000"})).to_stream().to(
        f"{unique}.out", Produced(windowed(STRING), LONG)
    )
    app = broker.application(unique, builder.build(), tmp_path / "state", commit_interval_ms=50)
    broker.create(1, f"{unique}.in", f"{unique}.out")
    then_ms = SystemClock().now_ms() - int(age.total_seconds() * 1000)

    def work() -> None:
        broker.write(f"{unique}.in", [(b"k", b"", then_ms)])
        Worker(app).run(until_caught_up=True)

    work()
    work()
    changelog = TopicPartition(f"{app.id}-counts-changelog", 0)
    broker.admin().delete_records({changelog: 1})  # brokers do it by themselves within minutes
    caplog.clear()  # at times within the steps before, which may have missed windows then
    work()
    assert "may be lost" not in caplog.text
    shutil.rmtree(app.directory)
    work()
    assert ("Open windows of store counts may be lost: event time is at" in caplog.text) == bool(age)
