"""Local state that cannot be read, or does not fit its changelogs any more: it is thrown away, restored, and said."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from pipeline.config import AppConfig, StreamsConfig
from pipeline.hosting.application import Application, prepare
from pipeline.hosting.clock import SystemClock
from pipeline.hosting.owned_task import OwnedTask
from pipeline.hosting.restoring import silently
from pipeline.hosting.standby_tasks import StandbyTasks
from pipeline.kafka.admin import Admin
from pipeline.records import TaskId, TopicPartition
from pipeline.state.rocksdb import RocksDbBackend
from pipeline.worker.arrivals import Arrivals
from pipeline.worker.local_state import left_positions
from pipeline.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

pytestmark = pytest.mark.broker

KEYS = [b"%04d" % n for n in range(3000)]
TASK = TaskId(0, 0)


class Case:
    """Counts of keys in one partition; every round counts each key once."""

    def __init__(self, broker: Any, name: str, tmp_path: Path) -> None:
        self.broker, self.name = broker, name
        builder = StreamsBuilder()
        counts = builder.stream(f"{name}.in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
        counts.count(Materialized("counts")).to_stream().to(f"{name}.out", Produced(STRING, LONG))
        streams = StreamsConfig(commit_interval_ms=50, processing_exception_handler="continue")
        config = AppConfig(name, "none:none", streams=streams)
        self.app = Application(config, "v1", builder.build(), broker.kafka, tmp_path / "state")
        self.state = self.app.directory / "0_0"
        self.changelog = TopicPartition(f"{self.app.id}-counts-changelog", 0)
        self.rounds = 0
        broker.create(1, f"{name}.in", f"{name}.out")

    def work(self) -> int:
        """Count all keys once more; gives how many changelog records were restored."""
        self.rounds += 1
        self.broker.write(f"{self.name}.in", [(key, b"", self.rounds) for key in KEYS])
        summary = Worker(self.app).run(until_caught_up=True)
        assert summary.dropped == {}
        return summary.restored

    def check(self) -> None:
        found = {r.key: LONG.deserialize(r.value) for r in self.broker.read(f"{self.name}.out")}
        assert found == dict.fromkeys(KEYS, self.rounds)


@pytest.fixture
def case(broker: Any, unique: str, tmp_path: Path) -> Case:
    return Case(broker, unique, tmp_path)


def cut(admin: Admin, changelog: TopicPartition, before: int) -> None:
    """Delete a changelog's first records, as retention does where changelogs have one."""
    admin.alter_topic_config(changelog.topic, {"cleanup.policy": "compact,delete"})
    admin.delete_records({changelog: before})


class Cutting(Admin):
    """Asks brokers, and once deletes the records before an offset right after it was told where a changelog ends."""

    def __init__(self, case: Case, before: int) -> None:
        super().__init__(case.broker.kafka)
        self._cuts = {case.changelog: before}

    def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = super().end_offsets(tps)
        for changelog in self._cuts.keys() & found.keys():
            cut(self, changelog, self._cuts.pop(changelog))
        return found


def overwrite_middle(paths: Iterable[Path]) -> None:
    for path in paths:
        data = bytearray(path.read_bytes())
        third = len(data) // 3
        data[third : 2 * third] = b"\x5a" * third
        path.write_bytes(data)


def go_ahead(state: Path, changelog: TopicPartition) -> None:
    backend = RocksDbBackend(state)
    backend.write({}, {changelog: 1_000_000})
    backend.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda case: overwrite_middle(case.state.glob("MANIFEST-*")), "is damaged"),
        (lambda case: overwrite_middle(case.state.glob("*.sst")), "is damaged"),
        (lambda case: (case.state / "CURRENT").write_text("MANIFEST"), "is damaged"),
        (lambda case: go_ahead(case.state, case.changelog), "restores all of its state"),
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
    cut(case.broker.admin(), case.changelog, end)
    shutil.rmtree(case.state)
    shutil.copytree(tmp_path / "old", case.state)
    assert case.work() == len(KEYS)
    case.check()


def test_a_changelog_that_is_cut_off_just_when_it_is_to_be_restored_is_restored_from_there(case: Case) -> None:
    case.work()
    end = case.broker.admin().end_offsets([case.changelog])[case.changelog]
    case.work()
    shutil.rmtree(case.state)
    admin = Cutting(case, end)
    owned = OwnedTask(case.app, prepare(case.app, admin), TASK, admin, SystemClock(), {})
    owned.open()
    owned.close()
    assert owned.restored_records == len(KEYS)
    case.work()
    case.check()


def test_a_changelog_that_is_cut_off_just_when_a_worker_takes_its_task_over_is_restored_from_there(case: Case) -> None:
    case.work()
    end = case.broker.admin().end_offsets([case.changelog])[case.changelog]
    case.work()
    shutil.rmtree(case.state)
    admin = Cutting(case, end)
    owned = OwnedTask(case.app, prepare(case.app, admin), TASK, admin, SystemClock(), {})
    arrivals = Arrivals(admin, case.app.kafka, 60_000, silently)
    arrivals.add(owned)
    while not (arrived := arrivals.run_once(10_000, 0.1)):
        pass
    assert arrived == [(owned, None)]
    assert owned.restored_records == len(KEYS)
    arrivals.close()
    owned.close()


def test_a_standby_whose_changelog_is_cut_off_under_it_goes_on_with_what_is_left(case: Case) -> None:
    case.work()
    end = case.broker.admin().end_offsets([case.changelog])[case.changelog]
    case.work()
    backend = RocksDbBackend(case.state)
    backend.write({}, {case.changelog: 1})
    backend.close()
    admin = Cutting(case, end)
    standbys = StandbyTasks(case.app, prepare(case.app, admin), admin, SystemClock())
    standbys.follow(TASK)
    applied = 0
    while applied < len(KEYS):
        applied += standbys.run_once(0.1)
    assert {standbys.task(TASK).store("counts").get(key.decode()).value for key in KEYS} == {2}
    standbys.close()


def test_a_standby_whose_state_is_damaged_restores_it(case: Case) -> None:
    case.work()
    overwrite_middle(case.state.glob("MANIFEST-*"))
    admin = case.broker.admin()
    standbys = StandbyTasks(case.app, prepare(case.app, admin), admin, SystemClock())
    standbys.follow(TASK)
    applied = 0
    while applied < len(KEYS):
        applied += standbys.run_once(0.1)
    assert {standbys.task(TASK).store("counts").get(key.decode()).value for key in KEYS} == {1}
    standbys.close()
