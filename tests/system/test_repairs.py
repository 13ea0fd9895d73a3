"""Repairs of a stretch of public tables, between runs and while a worker runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from riverrun import LONG, STRING, Window, Windowed, windowed
from riverrun.cli.main import app as cli
from riverrun.config import ProjectConfig
from riverrun.errors import ApprovalNeededError, GateFailedError, RangeError, ReleaseError, UnderWayError
from riverrun.hosting.barrier_coordinator import BarrierCoordinator
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.partitioning import partition_for
from riverrun.records import TopicPartition
from riverrun.releases.corrections import Corrections
from riverrun.releases.repair import Repairer
from riverrun.releases.scope import Scope
from riverrun.releases.topology import build_topology, load_application
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.ranges import resolve
from tests.presence import present
from tests.spark_sessions import AS_COMMANDS_DO, new_session_if_any
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.brokers import Broker

MINUTE = 60_000
KEYS = windowed(STRING, timedelta(minutes=1))
MODULE = """
from datetime import timedelta
import great_expectations.expectations as gxe
from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, TimeWindows, windowed
from riverrun.quality import Expectations

def build(builder):
    views = builder.stream("NAME.views", Consumed(STRING, STRING))
    counts = (
        views.group_by(lambda user, page: user, Grouped(STRING, STRING))
        .windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
        .count(Materialized(name="counts"))
    )
    counts.to_stream().to("NAME.counts", Produced(windowed(STRING), LONG))
    views.map_values(str.upper).to("NAME.latest", Produced(STRING, STRING))
    return builder.build()

def at_most(critical, warning):
    return lambda: {"NAME.counts": Expectations([
        gxe.ExpectColumnValuesToBeBetween(column="value", max_value=critical, severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="value", max_value=warning, severity="warning"),
    ])}

anything, few, none = at_most(1_000, 1_000), at_most(1_000, 1), at_most(0, 0)
"""


def row(user: str, minute: int) -> bytes:
    return KEYS.serialize(Windowed(user, Window(minute * MINUTE, (minute + 1) * MINUTE)))


class Project:
    """Views per user and minute, and the last page of each user; in topics of one test's own."""

    def __init__(self, broker: Broker, unique: str, directory: Path) -> None:
        self.broker, self.unique = broker, unique
        self.path = directory / "streams.toml"
        self.path.write_text(
            f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{unique}]
topology = "{unique}:build"
quality = "{unique}:anything"
[apps.{unique}.outputs]
"{unique}.latest" = "table"
[apps.{unique}.versions]
v2 = "{unique}:build"
[apps.{unique}.config]
"commit.interval.ms" = 100
"""
        )
        self.config = ProjectConfig.load(self.path, {})
        (directory / f"{unique}.py").write_text(MODULE.replace("NAME", unique))
        broker.create(2, f"{unique}.views", f"{unique}.counts", f"{unique}.latest")

    def view(self, *views: tuple[str, int]) -> None:
        """Write views: by whom, and in which minute."""
        records = [(user.encode(), b"page %d" % minute, minute * MINUTE + n) for n, (user, minute) in enumerate(views)]
        self.broker.write(f"{self.unique}.views", records)

    def run(self) -> None:
        application = load_application(self.config, self.unique, kafka=self.broker.door)
        run(
            self.broker.connected(application),
            resolve(self.broker.connected(application)),
            AS_COMMANDS_DO,
            build_topology,
        )

    @contextmanager
    def worker(self) -> Iterator[None]:
        command = [sys.executable, "-m", "riverrun.cli", "--config", str(self.path), "worker", self.unique]
        path = os.pathsep.join([str(self.path.parent), os.environ.get("PYTHONPATH", "")])
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}) as process:
            try:
                yield
            finally:
                process.terminate()
                assert process.wait(DEADLINE_S) == 0

    def table(self, topic: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for record in self.broker.read(f"{self.unique}.{topic}"):
            key = present(record.key)
            found.pop(key, None)
            if record.value is not None:
                found[key] = record.value
        return found

    def damage(self, topic: str, *rows: tuple[bytes, bytes | None, int]) -> None:
        """Overwrite rows of a public table, in the partitions of their users."""
        for key, value, at_ms in rows:
            user = KEYS.deserialize(key).key.encode() if topic == "counts" else key
            self.broker.write(f"{self.unique}.{topic}", [(key, value, at_ms)], partition_for(user, 2))

    def repairer(self, quality: str = "anything") -> Repairer:
        app = replace(self.config.app(self.unique), quality=f"{self.unique}:{quality}")
        return Repairer(replace(self.config, apps={self.unique: app}), self.unique, self.broker.admin(), AS_COMMANDS_DO)

    def topics_of_repairs(self) -> list[str]:
        return [name for name in self.broker.admin().list_topics() if name.startswith(f"{self.unique}-repair-")]


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def project(broker: Broker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(str(tmp_path))
    with new_session_if_any():
        yield Project(broker, unique, tmp_path)


def scope(first: int, last: int, *, keys: tuple[str, ...] = ()) -> Scope:
    """Whole minutes."""
    return Scope(first * MINUTE, last * MINUTE, frozenset(keys))


def check_commands(project: Project) -> None:
    """Repair a row of the ninth minute, by its key."""

    def repair(*options: str) -> str:
        command = ["--config", str(project.path), "release", "repair", project.unique, *times, *options]
        done = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    times = ("--from", "1970-01-01T00:08:00", "--to", "1970-01-01T00:09:00")
    assert "no row differs" in repair("--key", "bob", "--topic", f"{project.unique}.counts")
    assert "would recompute" in repair("--dry-run")
    assert json.loads(repair("--key", "ann", "--json"))["corrections"] == 1


def check_refusals(project: Project) -> None:
    with pytest.raises(ReleaseError, match="which may still change"):
        project.repairer().plan(scope(2, 10))
    with pytest.raises(ReleaseError, match="range to repair is empty"):
        project.repairer().plan(scope(6, 6))
    with pytest.raises(ReleaseError, match="v1 does not write it"):
        project.repairer().plan(replace(scope(2, 6), topics=frozenset({"other"})))


VIEWS = [(user, minute) for minute in range(10) for user in ("ann", "bob", "ann")]


def test_a_repair_brings_back_the_rows_of_its_range_and_no_others(project: Project) -> None:
    project.view(*VIEWS)
    project.run()
    whole, latest = project.table("counts"), project.table("latest")
    assert whole[row("ann", 3)] == LONG.serialize(2)
    wrong = {row("ann", 3): LONG.serialize(99), row("eve", 5): LONG.serialize(1), row("ann", 8): LONG.serialize(0)}
    project.damage("counts", *((key, value, 3 * MINUTE) for key, value in wrong.items()), (row("bob", 4), None, 0))
    project.damage("latest", (b"ann", b"ELSEWHERE", 9 * MINUTE), (b"gone", b"NOBODY", 4 * MINUTE))
    damaged = {key: value for key, value in {**whole, **wrong}.items() if key != row("bob", 4)}
    assert project.table("counts") == damaged

    check_refusals(project)
    with pytest.raises(GateFailedError, match=r"repair does not pass: .*ann.*changed: 99 -> 2"):
        project.repairer("none").repair(scope(2, 6))
    with pytest.raises(ApprovalNeededError) as asked:
        project.repairer("few").repair(scope(2, 6), "another")
    assert project.table("counts") == damaged, "nothing was published"

    verdict = str(asked.value.hint).rpartition(" ")[2]
    done = project.repairer("few").repair(scope(2, 6), verdict)
    assert (done.corrections, done.verdict.id if done.verdict else "") == (4, verdict)
    assert {(str(each.key["key"]), each.change) for each in done.rows} == {
        ("ann", "changed"),
        ("bob", "new"),
        ("eve", "gone"),
        ("gone", "gone"),
    }
    assert project.table("counts") == {**whole, row("ann", 8): LONG.serialize(0)}
    assert project.table("latest") == {**latest, b"ann": b"ELSEWHERE"}, "its time lies behind the range"
    assert project.repairer().repair(scope(2, 6)).verdict is None, "nothing differs any more"
    assert project.topics_of_repairs() == []

    project.run()
    registry = ReleaseRegistry.at(project.broker.admin())
    release = registry.read(project.unique, "v1")
    assert (release.barrier, release.live) == (None, "v1")
    assert "no row differs" in release.repaired
    assert any("repaired" in str(change) for change in registry.history(project.unique))


def test_records_that_are_gone_are_not_taken_for_rows_that_never_were(project: Project) -> None:
    project.view(*VIEWS)
    project.run()
    whole = project.table("counts")
    views = TopicPartition(f"{project.unique}.views", partition_for(b"ann", 2))
    admin = project.broker.admin()
    for left_from in (4, admin.end_offsets([views])[views]):  # some records of the range, then all there were
        admin.delete_records({views: left_from})
        with pytest.raises(RangeError, match="earlier records of the range may have been deleted"):
            project.repairer().repair(scope(0, 6))
    assert project.table("counts") == whole


def test_other_code_than_that_which_was_released_repairs_nothing(project: Project) -> None:
    project.view(*VIEWS)
    project.run()
    registry = ReleaseRegistry.at(project.broker.admin())
    registry.write(replace(registry.read(project.unique, "v1"), digests={"v1": "0123456789abcdef"}))
    with pytest.raises(ReleaseError, match="the code of v1 has changed since it was released"):
        project.repairer().plan(scope(2, 6))


def test_a_repair_that_died_during_the_pause_is_completed_by_its_command(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.view(*VIEWS)
    project.run()
    whole = project.table("counts")
    project.damage("counts", (row("ann", 3), LONG.serialize(99), 0))

    def dies(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as dead:
        dead.setattr(Corrections, "publish", dies)
        dead.setattr(BarrierCoordinator, "give_up", lambda *_: None)  # the dead do not
        with pytest.raises(SystemExit):
            project.repairer().repair(scope(2, 6))
    project.view(("ann", 11))
    with pytest.raises(UnderWayError, match="pauses at barrier") as refused:
        project.run()
    assert "repeat its command" in str(refused.value.hint)
    assert project.repairer().repair(scope(2, 6)).corrections == 1
    project.run()
    assert project.table("counts") == {**whole, row("ann", 11): LONG.serialize(1)}


@pytest.mark.broker
def test_a_worker_goes_on_after_a_repair_and_nothing_is_lost_or_doubled(project: Project) -> None:
    project.view(*VIEWS)
    with project.worker():
        whole = {row(*view): LONG.serialize(count) for view, count in Counter(VIEWS).items()}
        until(lambda: project.table("counts") == whole, "counted all views")
        project.damage("counts", (row("ann", 3), LONG.serialize(99), 0), (row("bob", 4), None, 0))
        assert project.repairer().repair(scope(2, 6)).corrections == 2
        assert project.table("counts") == whole
        project.damage("counts", (row("ann", 8), LONG.serialize(0), 8 * MINUTE))
        check_commands(project)
        assert project.table("counts") == whole
        registry = ReleaseRegistry.at(project.broker.admin())
        assert "1 correction, verdict" in registry.read(project.unique, "v1").repaired
        project.view(*((user, minute) for minute in range(10, 14) for user in ("ann", "bob")))
        more = {row(user, minute): LONG.serialize(1) for user in ("ann", "bob") for minute in range(10, 14)}
        until(lambda: project.table("counts") == {**whole, **more}, "counted all views")
