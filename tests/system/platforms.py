"""An application whose versions change places while worker processes of both run, and what may happen to these."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from riverrun import LONG, STRING, windowed
from riverrun.config import ProjectConfig
from riverrun.errors import BrokerError, StreamsError
from riverrun.hosting.release import ReleaseStep
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from riverrun.records import OffsetVector
from riverrun.releases.releaser import Releaser
from tests.depth import depth
from tests.presence import present
from tests.spark_sessions import AS_COMMANDS_DO, new_session_if_any
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from riverrun.hosting.release import Release
    from tests.brokers import Broker

PARTITIONS, WORDS, WINDOW_MS = 2, 7, 10_000
FAULTS = depth(6, 60)
"""How many cases of a fault are tried; all there are with a large number."""
STEPS = ("prepared", "paused", "kept", "cutting", "corrected", "switched")
"""The progress of a switch when a fault happens."""

APP = """
from datetime import timedelta
from riverrun import *

WINDOWS = TimeWindows.of(timedelta(seconds=10), grace=timedelta(days=1))

def build(builder, version="v1", weight=1):
    words = builder.stream("{name}.in", Consumed(STRING, STRING))
    alerts = words.filter(lambda key, word: int(key) % 5 == 0)
    alerts.map_values(lambda word: version).to("{name}.alerts", Produced(STRING, STRING))
    counts = words.group_by(lambda key, word: word, Grouped(STRING, STRING)).windowed_by(WINDOWS).aggregate(
        lambda: 0, lambda word, value, total: total + (weight if word == "w1" else 1),
        Materialized(STRING, LONG, name="counts"))
    counts.to_stream().to("{name}.counts", Produced(windowed(STRING), LONG))
    return builder.build()

def build_v2(builder):
    return build(builder, "v2", 3)
"""


class Platform:
    """An application with two versions, its workers as processes, and a writer that goes on all the time."""

    def __init__(self, broker: Broker, name: str, directory: Path) -> None:
        self.broker, self.name, self.directory = broker, name, directory
        self.path = directory / "streams.toml"
        self.path.write_text(f"""
[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"
[apps.{name}]
topology = "{name}_app:build"
[apps.{name}.versions]
v2 = "{name}_app:build_v2"
[apps.{name}.config]
"commit.interval.ms" = 100
"num.stream.threads" = 2
"consumer.session.timeout.ms" = 6000
"consumer.heartbeat.interval.ms" = 300
""")
        (directory / f"{name}_app.py").write_text(APP.replace("{name}", name))
        broker.create(PARTITIONS, f"{name}.in", f"{name}.counts", f"{name}.alerts")
        self.workers: list[subprocess.Popen[str]] = []
        self.options: tuple[str, ...] = ()
        """Of workers that are started from now on."""
        self.written = 0
        self._paused = threading.Event()
        self._rests = threading.Event()
        self._ends = threading.Event()
        self._writer = threading.Thread(target=self._write)

    @property
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.directory), *filter(None, sys.path)])
        return {**os.environ, "COLUMNS": "200", "PYTHONPATH": path}

    def work(self, version: str) -> subprocess.Popen[str]:
        number = len(self.workers)
        log = (self.directory / f"{number}.log").open("w")
        state = str(self.directory / f"state-{number}")
        command = [sys.executable, "-m", "riverrun.cli", "-v", "--config", str(self.path), "worker", self.name]
        worker = subprocess.Popen(
            [*command, "--version", version, "--state-dir", state, *self.options],
            cwd=self.directory,
            env=self.environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.workers.append(worker)
        return worker

    def log(self, number: int) -> str:
        return (self.directory / f"{number}.log").read_text()

    def begin_to_write(self) -> None:
        self._writer.start()

    def rest(self) -> None:
        """Write nothing for now."""
        self._paused.set()
        assert self._rests.wait(DEADLINE_S)

    def go_on(self) -> None:
        self._rests.clear()
        self._paused.clear()

    def _write(self) -> None:
        producer = IdempotentProducer(Kafka(self.broker.kafka))
        while not self._ends.wait(0.02):
            if self._paused.is_set():
                self._rests.set()
                continue
            n = self.written
            producer.send(f"{self.name}.in", b"%d" % n, b"w%d" % (n % WORDS), 1_000_000 + n * 50, (), n % PARTITIONS)
            producer.flush()
            self.written = n + 1

    def close(self) -> None:
        self._ends.set()
        if self._writer.is_alive():
            self._writer.join()
        for worker in self.workers:
            worker.kill()
            worker.wait()

    def releaser(self, on_step: Callable[[str], None] = lambda _done: None) -> Releaser:
        config = ProjectConfig.load(self.path, {})
        return Releaser(config, self.name, self.broker.admin(), AS_COMMANDS_DO, on_step=on_step)

    def model(self, version: str) -> dict[tuple[str, int], int]:
        """The table of a version, by one pass over all inputs."""
        table: Counter[tuple[str, int]] = Counter()
        for n in range(self.written):
            start = (1_000_000 + n * 50) // WINDOW_MS * WINDOW_MS
            table[f"w{n % WORDS}", start] += 3 if version == "v2" and n % WORDS == 1 else 1
        return dict(table)

    def table(self) -> dict[tuple[str, int], int]:
        keys, found = windowed(STRING, timedelta(milliseconds=WINDOW_MS)), {}
        for record in self.broker.read(f"{self.name}.counts"):
            key = keys.deserialize(present(record.key))
            found[key.key, key.window.start] = LONG.deserialize(present(record.value))
        return found

    def alerts(self) -> list[tuple[int, str]]:
        return [(int(present(r.key)), present(r.value).decode()) for r in self.broker.read(f"{self.name}.alerts")]

    def check_alerts(self, cuts: list[Release]) -> None:
        """Every alert is there once, from the version that was live at its offset."""
        wanted = {}
        for n in range(0, self.written, 5):
            version = "v1"
            for release in cuts:
                vector = OffsetVector.parse(release.cut or "").offsets
                offset = next(end for tp, end in vector.items() if tp.partition == n % PARTITIONS)
                if self.offset_of(n) >= offset:
                    version = release.live
            wanted[n] = version
        assert sorted(self.alerts()) == sorted(wanted.items())

    def offset_of(self, n: int) -> int:
        """Its partition holds each second record, in order: one offset per record, as nothing is written in transactions."""
        return n // PARTITIONS

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; else fail with the ends of all logs."""
        until(lambda: _holds(condition), what, self.logs)

    def logs(self) -> str:
        return "\n".join(f"--- {n}\n{self.log(n)[-3000:]}" for n in range(len(self.workers)))

    def until_complete(self, version: str) -> None:
        """The writer rests; wait until all it has written is counted."""
        self.until(lambda: self.table() == self.model(version), f"had the table of {version}")
        self.until(lambda: len(self.alerts()) >= len(range(0, self.written, 5)), "had all alerts")


@contextmanager
def running_platform(broker: Broker, name: str, directory: Path) -> Iterator[Platform]:
    """A platform."""
    with new_session_if_any(), closing(Platform(broker, name, directory)) as platform:
        yield platform


def _holds(condition: Callable[[], bool]) -> bool:
    """Whether a condition holds; not as long as partitions are without leaders."""
    try:
        return condition()
    except BrokerError as error:
        if not error.retriable:
            raise
        return False


def gated(platform: Platform) -> Releaser:
    """Both versions run, and the second one has passed its gate."""
    platform.work("v1")
    platform.begin_to_write()
    platform.until(lambda: bool(platform.table()), "counted anything")
    releaser = platform.releaser()
    releaser.start("v2")
    releaser.reprocess()
    platform.work("v2")
    platform.until(lambda: " taken over, " in platform.log(1), "followed with version 2")
    *_, last = releaser.wait_ready(max_lag=1000, looks=2, every_s=0.2)
    assert last.is_ready
    release = completed(platform, Releaser.gate)
    assert release.step is ReleaseStep.GATED
    return releaser


def gated_again(platform: Platform) -> None:
    """The second version, which has followed as a shadow, passes its gate once more."""
    releaser = platform.releaser()
    releaser.start("v2")
    releaser.reprocess()
    completed(platform, Releaser.gate)


def processes(worker: subprocess.Popen[str]) -> list[int]:
    """A worker and its stream threads, those first that would notice of the others."""
    found = subprocess.run(["pgrep", "-P", str(worker.pid)], capture_output=True, text=True, check=False)
    return [worker.pid, *map(int, found.stdout.split())]


def signalled(worker: subprocess.Popen[str], number: signal.Signals) -> None:
    for pid in processes(worker):
        os.kill(pid, number)


def completed(
    platform: Platform, step: Callable[[Releaser], Release], on_step: Callable[[str], None] = lambda _done: None
) -> Release:
    """Take a step, again and again: workers may be on their way back, or have lost their group for a moment."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with suppress(StreamsError):
            return step(platform.releaser(on_step))
    return step(platform.releaser(on_step))


class Faults:
    """Faults of a platform's processes, at a step of a switch."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.worker = dict(zip(("v1", "v2"), platform.workers, strict=True))

    def of_coordinator(self) -> None:
        raise KeyboardInterrupt

    def of_worker(self, version: str) -> None:
        signalled(self.worker[version], signal.SIGKILL)

    def of_stream_thread(self, version: str) -> None:
        for pid in processes(self.worker[version])[1:]:
            os.kill(pid, signal.SIGKILL)

    def of_sleep(self, version: str) -> None:
        """It sleeps for longer than its session."""
        asleep = self.worker[version]
        signalled(asleep, signal.SIGSTOP)
        threading.Timer(8.0, lambda: signalled(asleep, signal.SIGCONT)).start()

    def restart_the_dead(self) -> None:
        for version, worker in self.worker.items():
            if worker.poll() is not None:
                self.worker[version] = self.platform.work(version)

    def all(self) -> list[tuple[str, Callable[[], None]]]:
        each: list[Callable[[str], None]] = [self.of_worker, self.of_stream_thread, self.of_sleep]
        return [("coordinator", self.of_coordinator)] + [
            (f"{fault.__name__} {version}", partial(fault, version)) for fault in each for version in self.worker
        ]


def once(at: str, fault: Callable[[], None]) -> Callable[[str], None]:
    """Return a function that lets a fault happen after a step, the first time."""
    pending = [fault]

    def happens(done: str) -> None:
        if done == at and pending:
            pending.pop()()

    return happens


def surviving(platform: Platform, step: Callable[[Releaser], Release], happens: Callable[[str], None]) -> Release:
    """Take a step until it is complete, also if its coordinator dies."""
    try:
        return completed(platform, step, happens)
    except KeyboardInterrupt:
        return completed(platform, step)
