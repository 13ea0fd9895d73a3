"""Several instances of one application, as processes of their own: they share the tasks, and take over from each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.broker

APP = """
from pipeline import *

def build(builder):
    return _build(builder, "counts")

def build_other(builder):
    return _build(builder, "other-counts")

def _build(builder, store):
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    counts = words.group_by(lambda k, v: v, Grouped(STRING, STRING)).count(Materialized(store))
    counts.to_stream().to("{name}.out", Produced(STRING, LONG))
    return builder.build()
"""

PROJECT = """
[kafka]
"bootstrap.servers" = "{servers}"
[apps.{name}]
topology = "{name}_app:{build}"
[apps.{name}.config]
"commit.interval.ms" = 50
"num.standby.replicas" = {standbys}
"acceptable.recovery.lag" = {lag}
"consumer.session.timeout.ms" = 6000
"consumer.heartbeat.interval.ms" = 300
"""
WORDS = [f"w{n}" for n in range(23)]
PARTITIONS = 4
DEADLINE_S = 120.0


@dataclass
class Group:
    """The instances of one application, and what they have to do."""

    broker: Any
    name: str
    directory: Path
    instances: list[subprocess.Popen[str]] = field(default_factory=list)
    written: int = 0

    def start(
        self, *arguments: str, build: str = "build", standbys: int = 0, lag: int = 10_000
    ) -> subprocess.Popen[str]:
        number = len(self.instances)
        project = self.directory / f"{number}.toml"
        values = {
            "servers": self.broker.bootstrap_servers,
            "name": self.name,
            "build": build,
            "standbys": standbys,
            "lag": lag,
        }
        project.write_text(PROJECT.format(**values))
        (self.directory / f"{self.name}_app.py").write_text(APP.format(name=self.name))
        log = (self.directory / f"{number}.log").open("w")
        instance = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pipeline.cli",
                "-v",
                "--config",
                str(project),
                "worker",
                self.name,
                "--state-dir",
                str(self.directory / f"state-{number}"),
                *arguments,
            ],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(self.directory), *filter(None, sys.path)])},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.instances.append(instance)
        return instance

    def log(self, number: int) -> str:
        return (self.directory / f"{number}.log").read_text()

    def write(self, count: int) -> None:
        numbers = range(self.written, self.written + count)
        self.broker.write(f"{self.name}.in", [(b"%d" % n, WORDS[n % len(WORDS)].encode(), n + 1) for n in numbers])
        self.written += count

    def counts(self) -> list[tuple[str, int]]:
        return [(r.key.decode(), LONG.deserialize(r.value)) for r in self.broker.read(f"{self.name}.out")]

    def total(self) -> int:
        return sum(dict(self.counts()).values())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            logs = "\n".join(f"--- {n}\n{self.log(n)[-3000:]}" for n in range(len(self.instances)))
            assert time.monotonic() < deadline, f"never {what}\n{logs}"
            time.sleep(0.1)

    def until_done(self) -> None:
        self.until(lambda: self.total() >= self.written, f"counted {self.written}, but {self.total()}")

    def check(self) -> None:
        """Every word counted exactly once each time: no count is missing, comes twice or goes back."""
        counts = self.counts()
        assert dict(counts) == {word: len(range(n, self.written, len(WORDS))) for n, word in enumerate(WORDS)}
        for word in WORDS:
            own = [count for key, count in counts if key == word]
            assert own == sorted(set(own)), f"{word} went back or came twice"

    def stop(self, instance: subprocess.Popen[str]) -> int:
        instance.send_signal(signal.SIGTERM)
        return instance.wait(60)


@pytest.fixture
def group(broker: Any, unique: str, tmp_path: Path) -> Iterator[Group]:
    broker.create(PARTITIONS, f"{unique}.in", f"{unique}.out")
    group = Group(broker, unique, tmp_path)
    yield group
    for instance in group.instances:
        if instance.poll() is None:
            instance.kill()
            instance.wait()


def tasks_taken(log: str) -> set[str]:
    return {line.split(" taken over")[0].rsplit(" ", 1)[1] for line in log.splitlines() if " taken over, " in line}


def test_instances_share_the_tasks_and_a_killed_one_is_replaced_by_the_others(group: Group) -> None:
    first = group.start("--threads", "2")
    group.write(20_000)
    group.until_done()
    second = group.start()
    group.until(lambda: bool(tasks_taken(group.log(1))), "gave the second instance a task")
    group.write(20_000)
    group.until_done()
    first.kill()
    group.write(20_000)
    group.until_done()
    assert group.stop(second) == 0
    group.check()


def test_instances_come_and_go_under_load(group: Group) -> None:
    group.start()
    for _ in range(3):
        group.write(10_000)
    group.start()
    group.write(10_000)
    group.start()
    group.until(lambda: bool(tasks_taken(group.log(2))), "gave the third instance a task")
    group.write(10_000)
    assert group.stop(group.instances[0]) == 0
    group.write(10_000)
    assert group.stop(group.instances[1]) == 0
    group.write(10_000)
    group.until_done()
    assert group.stop(group.instances[2]) == 0
    group.check()


def test_a_standby_takes_over_without_restoring(group: Group) -> None:
    first = group.start(standbys=1, lag=0)
    group.write(30_000)
    group.until_done()
    group.start(standbys=1, lag=0)
    group.until(lambda: bool(tasks_taken(group.log(1))), "gave the second instance a task")
    group.write(10_000)
    group.until_done()
    first.kill()
    group.write(10_000)
    group.until_done()
    stateful = {line for line in group.log(1).splitlines() if " taken over, " in line and "task 1_" in line}
    restored = [int(line.split("taken over, ")[1].split(" ")[0]) for line in stateful]
    assert len(restored) >= PARTITIONS
    assert max(restored) < 1000, restored
    group.check()


def test_an_instance_of_another_topology_is_refused(group: Group) -> None:
    group.start()
    group.write(1000)
    group.until_done()
    other = group.start(build="build_other")
    assert other.wait(60) == 1
    assert "another topology" in group.log(1)
    assert "Traceback" not in group.log(1)
    assert group.instances[0].poll() is None


def test_a_second_instance_in_the_same_state_directory_is_refused(group: Group) -> None:
    group.start()
    group.until(lambda: "Worker is running" in group.log(0), "ran")
    same = group.start("--state-dir", str(group.directory / "state-0"))
    assert same.wait(60) == 1
    assert "Another worker uses the state directory" in group.log(1)


def test_a_stream_process_that_dies_is_replaced(group: Group) -> None:
    first = group.start("--threads", "2")
    group.write(10_000)
    group.until_done()
    children = subprocess.run(
        ["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    streams = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(streams[0]), signal.SIGKILL)
    group.write(10_000)
    group.until_done()
    assert group.stop(first) == 0
    group.check()


def test_an_instance_that_was_stopped_for_long_finds_its_tasks_gone_and_writes_nothing(group: Group) -> None:
    first = group.start()
    group.write(10_000)
    group.until_done()
    group.start()
    group.until(lambda: bool(tasks_taken(group.log(1))), "gave the second instance a task")
    children = subprocess.run(
        ["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    for pid in [*children, first.pid]:
        os.kill(int(pid), signal.SIGSTOP)
    group.write(10_000)
    group.until_done()
    for pid in [*children, first.pid]:
        os.kill(int(pid), signal.SIGCONT)
    group.write(10_000)
    group.until_done()
    for instance in group.instances:
        assert group.stop(instance) == 0
    group.check()
