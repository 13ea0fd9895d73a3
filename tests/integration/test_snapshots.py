"""State that comes from a snapshot and the changelog's tail, and snapshots that must not be used."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder
from riverrun.config import AppConfig, StreamsConfig
from riverrun.errors import ConfigError
from riverrun.foreign_files import sealed
from riverrun.hosting.application import Application
from riverrun.hosting.process import SystemClock
from riverrun.hosting.progress import Progress, reporting_progress
from riverrun.hosting.standby_tasks import publish_snapshots
from riverrun.records import TopicPartition
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from riverrun.worker.worker import Worker
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor
from tests.presence import present
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from tests.brokers import Broker

WORDS = 5


def counting(name: str) -> Callable[[StreamsBuilder], Topology]:
    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{name}.in", Consumed(STRING, STRING))
        counts = words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
        counts.to_stream().to(f"{name}.out", Produced(STRING, LONG))
        return builder.build()

    return build


class Case:
    """Counts of words in one partition, with snapshots."""

    def __init__(self, broker: Broker, name: str, tmp_path: Path) -> None:
        self.broker, self.name, self.tmp_path = broker, name, tmp_path
        self.build = counting(name)
        self.streams = StreamsConfig(commit_interval_ms=50, snapshot_url=f"file://{tmp_path}/snapshots")
        config = AppConfig(name, "none:none", streams=self.streams)
        self.app = Application(config, "v1", self.build(StreamsBuilder()), broker.door, tmp_path / "state")
        self.changelog = TopicPartition(f"{self.app.id}-counts-changelog", 0)
        broker.create(1, f"{name}.in", f"{name}.out")

    def write(self, first: int, last: int) -> None:
        self.broker.write(f"{self.name}.in", [(b"w%d" % (n % WORDS), b"x", n + 1) for n in range(first, last)])

    def work(self) -> int:
        """Let a worker catch up, and return the number of changelog records that it restored."""
        return Worker(self.app).run(until_caught_up=True).restored

    def lose_state(self) -> None:
        shutil.rmtree(self.app.directory)

    def publish(self) -> list[Progress]:
        """Publish snapshots of all tasks, and return the logged messages."""
        connected, reports = self.broker.connected(self.app), list[Progress]()
        connected.prepare()
        with reporting_progress(reports.append):
            publish_snapshots(connected, SystemClock())
        return reports

    def counts(self) -> dict[bytes, int]:
        return {present(r.key): LONG.deserialize(present(r.value)) for r in self.broker.read(f"{self.name}.out")}

    def manifests(self) -> list[Path]:
        return sorted((self.tmp_path / "snapshots" / self.app.id / "0_0" / "manifests").glob("*"))

    @property
    def regularly(self) -> Application:
        """The application with workers that publish whenever something has changed."""
        streams = replace(self.app.config.streams, snapshot_interval_ms=1)
        return replace(self.app, config=replace(self.app.config, streams=streams))

    def until_published(self, holds: Callable[[dict[str, int]], bool]) -> Any:
        """The newest snapshot as soon as something holds for its inputs."""
        found: list[Any] = []

        def is_published() -> bool:
            for path in self.manifests()[-1:]:
                with suppress(FileNotFoundError):  # too old meanwhile
                    found.append(json.loads(path.read_text()))
            return bool(found) and holds(found[-1]["inputs"])

        until(is_published, "published a snapshot")
        return found[-1]


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def case(broker: Broker, unique: str, tmp_path: Path) -> Case:
    return Case(broker, unique, tmp_path)


@pytest.mark.broker
def test_a_worker_without_state_restores_a_snapshot_and_what_came_after(case: Case) -> None:
    case.write(0, 50)
    case.work()
    doing, done, everything = case.publish()[-1]
    assert (doing, 0 < done <= (everything or 0)) == ("restore 0_0", True)
    case.write(50, 52)
    case.work()
    case.lose_state()
    case.write(52, 60)
    assert 0 < case.work() <= 2
    assert case.counts() == {b"w%d" % n: 12 for n in range(WORDS)}


def test_publishing_disturbs_nobody_and_publishes_nothing_twice(case: Case) -> None:
    case.write(0, 50)
    case.work()
    case.publish()
    case.publish()
    assert len(case.manifests()) == 1
    manifest = json.loads(case.manifests()[0].read_text())
    assert manifest["inputs"] == {
        f"{case.name}.in-0": case.broker.admin()
        .committed(case.app.id, [TopicPartition(f"{case.name}.in", 0)])[TopicPartition(f"{case.name}.in", 0)]
        .offset
    }
    assert manifest["fingerprint"] == case.app.topology.fingerprint()


def test_a_worker_publishes_what_has_changed_now_and_then(case: Case) -> None:
    case.write(0, 50)
    worker = Worker(case.regularly)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        first = case.until_published(lambda inputs: sum(inputs.values()) >= 50)
        case.write(50, 52)
        second = case.until_published(lambda inputs: sum(inputs.values()) >= 52)
    finally:
        worker.stop()
        running.join()
    assert sum(first["changelogs"].values()) < sum(second["changelogs"].values())
    case.lose_state()
    case.write(52, 60)
    assert case.work() <= 1  # the marker of a transaction is not a record
    assert case.counts() == {b"w%d" % n: 12 for n in range(WORDS)}


def test_every_slice_leaves_a_snapshot_with_which_another_machine_goes_on(case: Case) -> None:
    case.write(0, 50)
    summary = run(
        case.broker.connected(case.app),
        resolve(case.broker.connected(case.app)),
        SPARK_ON_DEMAND,
        on_executor(case.build),
    )
    (task,) = summary.tasks
    assert task.snapshot == case.manifests()[-1].name
    case.lose_state()
    case.write(50, 60)
    summary = run(
        case.broker.connected(case.app),
        resolve(case.broker.connected(case.app)),
        SPARK_ON_DEMAND,
        on_executor(case.build),
    )
    assert summary.restored == 0
    assert summary.warnings == ()
    assert case.counts() == {b"w%d" % n: 12 for n in range(WORDS)}


def test_a_store_that_cannot_be_written_is_a_warning_of_the_run(case: Case) -> None:
    (case.tmp_path / "snapshots").write_text("a file, no directory")
    case.write(0, 50)
    summary = run(
        case.broker.connected(case.app),
        resolve(case.broker.connected(case.app)),
        SPARK_ON_DEMAND,
        on_executor(case.build),
    )
    assert "cannot be" in summary.warnings[0]
    assert case.counts() == {b"w%d" % n: 10 for n in range(WORDS)}


def edit_manifest(case: Case, **changes: Any) -> None:
    (path,) = case.manifests()
    content = json.loads(path.read_text()) | changes
    del content["sha256"]
    path.write_bytes(sealed(json.dumps(content).encode()))


def files(case: Case) -> list[Path]:
    """The files of all snapshots, the largest first."""
    found = (case.tmp_path / "snapshots" / case.app.id / "0_0" / "files").iterdir()
    return sorted(found, key=lambda path: -path.stat().st_size)


def damage_file(case: Case) -> None:
    for path in files(case):
        path.write_bytes(bytes(path.stat().st_size))


def truncate_file(case: Case) -> None:
    os.truncate(files(case)[0], files(case)[0].stat().st_size // 2)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda case: edit_manifest(case, application="other-v1"), "a snapshot of task 0_0 of other-v1"),
        (lambda case: edit_manifest(case, task="0_1"), "a snapshot of task 0_1 of"),
        (lambda case: edit_manifest(case, fingerprint="other"), "made by another topology"),
        (lambda case: edit_manifest(case, format=99), "has format 99"),
        (lambda case: edit_manifest(case, changelogs={str(case.changelog): 10**6}), "ahead of changelog"),
        (lambda case: edit_manifest(case, topic_ids={case.changelog.topic: "x"}), "recreated"),
        (damage_file, "checksum does not match"),
        (truncate_file, "is damaged: it has "),
        (lambda case: files(case)[0].unlink(), "cannot be read"),
        (lambda case: shutil.rmtree(files(case)[0].parent), "cannot be read"),
        (lambda case: case.manifests()[0].write_bytes(b"\xff\xfe"), "not a snapshot's manifest"),
        (lambda case: case.manifests()[0].write_text("{"), "not a snapshot's manifest"),
    ],
    ids=[
        "other application",
        "other task",
        "other topology",
        "other format",
        "ahead",
        "other topic",
        "damaged",
        "cut off",
        "file missing",
        "files missing",
        "no text",
        "torn manifest",
    ],
)
def test_a_snapshot_that_does_not_fit_is_passed_over_with_a_warning(
    case: Case, spoil: Callable[[Case], object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    case.write(0, 50)
    case.work()
    case.publish()
    spoil(case)
    case.lose_state()
    case.write(50, 60)
    with caplog.at_level(logging.WARNING):
        assert case.work() >= WORDS
    assert reason in caplog.text
    assert case.counts() == {b"w%d" % n: 12 for n in range(WORDS)}


def test_a_snapshot_that_may_lack_deletions_is_passed_over(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.write(0, 50)
    case.work()
    case.publish()
    edit_manifest(case, whole=[1, 86_400_000])
    case.write(50, 60)
    case.work()
    case.lose_state()
    case.write(60, 65)
    with caplog.at_level(logging.WARNING):
        assert case.work() >= WORDS
    assert "skipping snapshot" in caplog.text
    assert "brokers keep deletions for 86400000 ms (delete.retention.ms)" in caplog.text


def test_state_that_was_away_for_too_long_is_restored_again(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.write(0, 50)
    case.work()
    left = case.app.directory.with_name("left")
    case.app.directory.rename(left)
    case.write(50, 60)
    case.work()
    case.lose_state()
    left.rename(case.app.directory)
    case.broker.configure(case.changelog.topic, {"delete.retention.ms": "1"})
    case.write(60, 65)
    with caplog.at_level(logging.WARNING):
        assert case.work() >= WORDS
    assert "restores all of its state: nothing is known of" in caplog.text
    assert case.counts() == {b"w%d" % n: 13 for n in range(WORDS)}


def warnings_of_snapshots(caplog: pytest.LogCaptureFixture) -> list[str]:
    # By level: commands that ran in this process may have started the logs of each step.
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [each for each in said if "snapshot" in each]


def test_without_any_snapshot_the_changelog_is_used_and_nothing_is_said(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    case.write(0, 50)
    case.work()
    case.lose_state()
    case.write(50, 60)
    assert case.work() >= WORDS
    assert not warnings_of_snapshots(caplog)
    assert case.counts() == {b"w%d" % n: 12 for n in range(WORDS)}


def test_files_of_others_among_the_manifests_are_no_snapshots(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.write(0, 50)
    case.work()
    case.publish()
    for name in ("_SUCCESS", "one.crc", "readme.txt", "two.crc"):
        case.manifests()[0].with_name(name).write_text("of another tool")
    case.write(50, 60)
    case.work()
    case.publish()
    case.lose_state()
    assert case.work() == 0
    assert not warnings_of_snapshots(caplog)


def test_an_unreachable_store_is_a_warning_and_an_unknown_one_is_refused(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    def kept_at(url: str) -> Application:
        return replace(case.app, config=replace(case.app.config, streams=replace(case.streams, snapshot_url=url)))

    case.write(0, 50)
    with pytest.raises(ConfigError, match="Snapshots cannot be kept at sss://bucket: Protocol not known: sss"):
        Worker(kept_at("sss://bucket")).run(until_caught_up=True)
    with caplog.at_level(logging.WARNING):
        Worker(kept_at("ftp://127.0.0.1:1/snapshots")).run(until_caught_up=True)
    assert "Snapshots cannot be kept at ftp://127.0.0.1:1/snapshots" in caplog.text
    assert case.counts() == {b"w%d" % n: 10 for n in range(WORDS)}
