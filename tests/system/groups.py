"""Instances of one application, as processes of their own, and what tests do with them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun import LONG
from tests.presence import present
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.brokers import Broker

APP = """
import re
import time
from datetime import timedelta
from riverrun import *

def build(builder):
    return _build(builder, "counts")

def build_other(builder):
    return _build(builder, "other-counts")

def build_copied(builder):
    texts = builder.stream(re.compile("{name}[.]in.*"), Consumed(STRING, STRING))
    texts.to("{name}.out", Produced(STRING, STRING))
    return builder.build()

def build_trimmed(builder):
    builder.stream("{name}.in", Consumed(STRING, STRING)).map_values(str.strip).to("{name}.out", Produced(STRING, STRING))
    return builder.build()

class Measured(FixedKeyProcessor):
    def init(self, context):
        self.context = context
        self.sensor = context.metrics.add_latency_rate_total_sensor("words", "all", operation_name="seen")

    def process(self, record):
        self.sensor.record(len(record.value))
        self.context.forward(record)

def build_queried(builder):
    words = builder.stream("{name}.in", Consumed(STRING, STRING)).process_values(Measured)
    keyed = words.select_key(lambda k, v: v).repartition(Repartitioned(STRING, STRING))
    grouped = keyed.group_by_key(Grouped(STRING, STRING))
    grouped.count(Materialized(name="counts")).to_stream().to("{name}.out", Produced(STRING, LONG))
    grouped.windowed_by(TimeWindows.of(timedelta(seconds=10))).count(Materialized(name="windows"))
    grouped.windowed_by(SessionWindows.of(timedelta(seconds=1))).count(Materialized(name="sessions"))
    return builder.build()

def build_slowly(builder):
    return _build(builder, "counts", lambda key, value: time.sleep(0.02) if int(key) % 100 == 0 else None)

def build_straggling(builder):
    # The first process to come to a certain word takes very long; a copy of it does not.
    import os
    def look(key, value):
        if value == "w7" and not os.path.exists("{directory}/straggles"):
            open("{directory}/straggles", "w").close()
            time.sleep(120)
            open("{directory}/arrived", "w").close()
    return _build(builder, "counts", look)

def build_fold(builder):
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    folded = words.group_by_key(Grouped(STRING, STRING)).aggregate(
        lambda: 0, lambda k, v, total: (total * 31 + int(v)) % 1_000_000_007, Materialized(STRING, LONG, name="folded"))
    folded.to_stream().to("{name}.folded", Produced(STRING, LONG))
    counts = words.group_by(lambda k, v: "w" + v[-1], Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().to("{name}.out", Produced(STRING, LONG))
    return builder.build()

def build_named(builder):
    names = builder.global_table("{name}.names", Consumed(STRING, STRING), Materialized(name="names"))
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    named = words.join(names, lambda word, name: name, key_selector=lambda k, v: v)
    named.to("{name}.out", Produced(STRING, STRING))
    return builder.build()

def stuck():
    return Serde("stuck", str.encode, stick)

def build_named_slowly(builder):
    names = builder.global_table("{name}.names", Consumed(STRING, stuck()), Materialized(name="names"))
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    words.join(names, lambda word, name: name, key_selector=lambda k, v: v).to("{name}.out", Produced(STRING, stuck()))
    return builder.build()

def build_slow(builder):
    words = builder.stream("{name}.in", Consumed(STRING, STRING)).map_values(slowly)
    counts = words.group_by(lambda k, v: v, Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().to("{name}.out", Produced(STRING, LONG))
    return builder.build()

def build_flushed_slowly(builder):
    words = builder.stream("{name}.in", Consumed(STRING, STRING)).peek(lambda key, word: print("seen", flush=True))
    counts = words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().map_values(very_slowly).to("{name}.out", Produced(STRING, LONG))
    return builder.build()

def build_stuck(builder):
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    counts = words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().map_values(stick).to("{name}.out", Produced(STRING, LONG))
    return builder.build()

def build_windowed(builder):
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    windows = TimeWindows.of(timedelta(seconds=30), grace=timedelta(seconds=10))
    counts = words.group_by(lambda k, v: v, Grouped(STRING, STRING)).windowed_by(windows).count(Materialized(name="counts"))
    counts.to_stream().to("{name}.out", Produced(windowed(STRING), LONG))
    return builder.build()

def slowly(value):
    time.sleep(0.025)
    return value

def very_slowly(value):
    time.sleep(0.3)
    return value

def stick(value):
    print("stuck", flush=True)
    time.sleep(3600)

def _build(builder, store, look=None):
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    if look is not None:
        words = words.peek(look)
    counts = words.group_by(lambda k, v: v, Grouped(STRING, STRING)).count(Materialized(name=store))
    counts.to_stream().to("{name}.out", Produced(STRING, LONG))
    return builder.build()
"""

PROJECT = """
[kafka]
"bootstrap.servers" = "{servers}"
[apps.{name}]
topology = "{name}_app:{build}"
[apps.{name}.config]
"commit.interval.ms" = {commit_interval_ms}
"num.standby.replicas" = {standbys}
"acceptable.recovery.lag" = {lag}
"consumer.session.timeout.ms" = {session_timeout_ms}
"consumer.heartbeat.interval.ms" = 300
{settings}
"""
WORDS = [f"w{n}" for n in range(23)]
PARTITIONS = int(os.environ.get("GROUP_PARTITIONS", "4"))
"""Of the topics of a group."""


@dataclass
class Group:
    """The instances of one application, and what they have to do."""

    broker: Broker
    name: str
    directory: Path
    instances: list[subprocess.Popen[str]] = field(default_factory=list)
    written: int = 0

    def start(
        self, *arguments: str, options: tuple[str, ...] = (), within: tuple[str, ...] = (), **configured: Any
    ) -> subprocess.Popen[str]:
        """Start one more, with the options of `configure`."""
        number = len(self.instances)
        project = self.configure(number, **configured)
        log = (self.directory / f"{number}.log").open("w")
        instance = subprocess.Popen(
            [
                *within,
                sys.executable,
                "-m",
                "riverrun.cli",
                "-v",
                *options,
                "--config",
                str(project),
                "worker",
                self.name,
                "--state-dir",
                str(self.directory / f"state-{number}"),
                *arguments,
            ],
            cwd=self.directory,
            env=self.environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.instances.append(instance)
        return instance

    def configure(
        self,
        number: int = 0,
        *,
        build: str = "build",
        standbys: int = 0,
        lag: int = 10_000,
        session_timeout_ms: int = 6000,
        commit_interval_ms: int = 50,
        settings: str = "",
    ) -> Path:
        """Write the project that an instance is started with."""
        project = self.directory / f"{number}.toml"
        values = {
            "servers": self.broker.bootstrap_servers,
            "name": self.name,
            "build": build,
            "standbys": standbys,
            "lag": lag,
            "session_timeout_ms": session_timeout_ms,
            "commit_interval_ms": commit_interval_ms,
            "settings": settings,
        }
        project.write_text(PROJECT.format(**values))
        (self.directory / f"{self.name}_app.py").write_text(APP.format(name=self.name, directory=self.directory))
        return project

    @property
    def environ(self) -> dict[str, str]:
        """Of commands: they find the application, and what this process finds."""
        path = os.pathsep.join([str(self.directory), *filter(None, sys.path)])
        return {**os.environ, "COLUMNS": "200", "PYTHONPATH": path}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `riverrun` with the first instance's project."""
        return subprocess.run(
            [sys.executable, "-m", "riverrun.cli", "--config", str(self.directory / "0.toml"), *arguments],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def children(self, instance: subprocess.Popen[str]) -> list[int]:
        """The stream threads of an instance."""
        found = subprocess.run(["pgrep", "-P", str(instance.pid)], capture_output=True, text=True, check=False)
        pids = [int(pid) for pid in found.stdout.split()]
        return [pid for pid in pids if "run_child" in Path(f"/proc/{pid}/cmdline").read_text()]

    def log(self, number: int) -> str:
        return (self.directory / f"{number}.log").read_text()

    def url(self, number: int) -> str:
        """The address of an instance, as soon as it answers there."""
        self.until(lambda: "Answers at " in self.log(number), "said where it answers")
        return self.log(number).split("Answers at ", 1)[1].split()[0]

    def write(self, count: int) -> None:
        numbers = range(self.written, self.written + count)
        self.broker.write(f"{self.name}.in", [(b"%d" % n, WORDS[n % len(WORDS)].encode(), n + 1) for n in numbers])
        self.written += count

    def counts(self) -> list[tuple[str, int]]:
        return [
            (present(r.key).decode(), LONG.deserialize(present(r.value))) for r in self.broker.read(f"{self.name}.out")
        ]

    def total(self) -> int:
        return sum(dict(self.counts()).values())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; else fail with the ends of all logs."""
        until(condition, what, self.logs)

    def logs(self) -> str:
        return "\n".join(f"--- {n}\n{self.log(n)[-3000:]}" for n in range(len(self.instances)))

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
        return instance.wait(DEADLINE_S)


def tasks_run(log: str) -> int:
    """Return how many tasks an instance said last that it runs."""
    return int(["0", *re.findall(r"all (\d+) tasks of this instance run", log)][-1])


def tasks_taken(log: str) -> set[str]:
    return {line.split(" taken over")[0].rsplit(" ", 1)[1] for line in log.splitlines() if " taken over, " in line}
