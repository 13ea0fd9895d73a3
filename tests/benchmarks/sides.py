"""Who is measured: each side is a process that runs a row's topology until SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pipeline.kafka.artifacts import Artifact, find_java, resolve
from pipeline.kafka.broker import KAFKA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"
COMMIT_INTERVAL_MS = {EXACTLY_ONCE: 100, AT_LEAST_ONCE: 500}
"""The default of both, and one that shows progress: the default of `at_least_once` is 30 s."""
_STOP_SECONDS = 60


@dataclass(frozen=True)
class Run:
    """One side, one row, one guarantee, one time; topics and names nobody has used before."""

    row: str
    guarantee: str
    servers: str
    name: str
    source: str
    target: str
    directory: Path
    libraries: Path

    @property
    def group(self) -> str:
        """Where the side commits its offsets: `name` is an application's, and every application has a version."""
        return f"{self.name}-v1"

    @property
    def commit_interval_ms(self) -> str:
        return str(COMMIT_INTERVAL_MS[self.guarantee])


def java(run: Run) -> list[str]:
    runtime = find_java()
    streams = [Artifact("org.apache.kafka", "kafka-streams", KAFKA_VERSION)]
    jars = resolve(streams, run.libraries / f"kafka-streams-{KAFKA_VERSION}", runtime)
    guarantee = "exactly_once_v2" if run.guarantee == EXACTLY_ONCE else AT_LEAST_ONCE
    command = [runtime, "-cp", f"{jars}/*", str(HERE / "java" / "Bench.java"), run.row, run.servers, run.group]
    return [*command, run.source, run.target, guarantee, run.commit_interval_ms, str(run.directory)]


def millrace(run: Run) -> list[str]:
    config = run.directory / "streams.toml"
    config.write_text(
        f"""
[kafka]
"bootstrap.servers" = "{run.servers}"
[apps.{run.name}]
topology = "topologies:{run.row.replace("-", "_")}"
processing_guarantee = "{run.guarantee}"
[apps.{run.name}.config]
"commit.interval.ms" = {run.commit_interval_ms}
"""
    )
    return [sys.executable, "-m", "pipeline.cli", "--config", str(config), "worker", run.name, "--version", "v1"]


def bare_loop(run: Run) -> list[str]:
    command = [sys.executable, str(HERE / "bare_loop.py"), run.servers, run.group, run.source, run.target]
    return [*command, run.guarantee, run.commit_interval_ms]


SIDES: Mapping[str, Callable[[Run], list[str]]] = {"java": java, "millrace": millrace, "bare loop": bare_loop}


class Side:
    """A running process; ends with the block it is used in."""

    def __init__(self, side: str, run: Run) -> None:
        run.directory.mkdir(parents=True)
        self._log = run.directory / "log"
        path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH")]))
        names = {"BENCH_INPUT": run.source, "BENCH_OUTPUT": run.target, "PYTHONPATH": path}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                SIDES[side](run), cwd=HERE, env={**os.environ, **names}, stdout=log, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raise if it has died."""
        if self._process.poll() is not None:
            message = f"Ended with {self._process.returncode}:\n{self._log.read_text()[-3000:]}"
            raise RuntimeError(message)

    def cpu_seconds(self) -> float:
        """User and system time so far of the process and its children, all threads (`man 5 proc`)."""
        return sum(map(_ticks, _family(self._process.pid))) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    children = [
        int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
    ]
    return [pid, *(below for child in children for below in _family(child))]


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
