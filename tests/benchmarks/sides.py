"""The sides of a measurement: each is a process that runs a row's topology until SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import usage
from events import event_report
from rows import (
    AVRO,
    BARE,
    CALLED,
    EXACTLY_ONCE,
    FUSED,
    JAVA,
    JAVA_SMALL,
    JSON_SCHEMA,
    PATHWAY,
    PER_TRIGGER,
    PROTOBUF,
    QUIX,
    RIVERRUN,
    SPARK,
    SQL,
    STRUCTURED,
)

from riverrun.errors import EmbeddedBrokerError
from riverrun.kafka.embedded.artifacts import Artifact, find_java, resolve
from riverrun.kafka.embedded.broker import KAFKA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from inputs import Input
    from rows import Row

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMIT_INTERVAL_MS = {EXACTLY_ONCE: 100, "at_least_once": 500}
"""The default of both, and one that shows progress: the default of `at_least_once` is 30 s."""
QUIX_VERSION, PATHWAY_VERSION = "3.28.1", "0.33.0"
_CONNECTOR_VERSION = "4.1.1"
"""Of Spark's libraries for Kafka: not every repository has those of each patch of 4.1."""
SESSION_TIMEOUT_MS = 6_000
"""Of the instances of rows in which one dies."""
_STOP_SECONDS = 60
_EVENT_SECONDS = 600
_PAUSE_SECONDS = 0.02
_IN_MEMORY = "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"


@dataclass(frozen=True)
class Run:
    """One side, one row, one guarantee, one time; topics and names nobody has used before.

    Args:
        script: Which of processes/*.py runs Riverrun; empty for the command `riverrun worker`.
        serves: Whether stores are to be queried.
        version: Which version of the application runs.
        registry: The schema registry's address; empty where no schema is needed.
    """

    row: Row
    side: str
    guarantee: str
    servers: str
    name: str
    source: Input
    directory: Path
    libraries: Path
    script: str = ""
    serves: bool = False
    version: str = "v1"
    registry: str = ""

    @property
    def group(self) -> str:
        """The group in which the side commits its offsets: `name` is an application's, and every application has a version."""
        return f"{self.name}-{self.version}"

    @property
    def target(self) -> str:
        """The topic of the output."""
        return f"{self.name}.out"

    @property
    def commit_interval_ms(self) -> int:
        return COMMIT_INTERVAL_MS[self.guarantee]

    @property
    def state(self) -> Path:
        """The directory of local state."""
        return self.directory / "state"


def java(run: Run) -> list[str]:
    row = run.row
    settings = {
        "bootstrap.servers": run.servers,
        "application.id": run.group,
        "processing.guarantee": run.guarantee,
        "commit.interval.ms": run.commit_interval_ms,
        "state.dir": run.state,
        "num.stream.threads": row.threads,
        "auto.offset.reset": "earliest",
        **({} if row.cache else {"statestore.cache.max.bytes": 0}),
        **({"dsl.store.suppliers.class": _IN_MEMORY} if row.in_memory else {}),
        **_of_a_group(row),
    }
    properties = run.directory / "streams.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    options = ["-Dsun.net.httpserver.nodelay=true"]  # else each answer over HTTP waits 40 ms for an acknowledgement
    options += ["-Xmx256m"] if run.side == JAVA_SMALL else []
    return [find_java(), *options, "-cp", _classpath(run.libraries), "Bench", row.topology, str(properties)]


_SUFFIXES = {SQL: "_sql", AVRO: "_avro", PROTOBUF: "_protobuf", JSON_SCHEMA: "_json_schema"}
"""Ends of the names of topologies that are not in Python, or whose input is not JSON."""


def riverrun(run: Run) -> list[str]:
    row = run.row
    settings = {
        "processing.guarantee": f'"{run.guarantee}"',
        "commit.interval.ms": run.commit_interval_ms,
        "state.dir": f'"{run.state}"',
        "num.stream.threads": row.threads,
        **({} if row.cache else {"statestore.cache.max.bytes": 0}),
        **({"default.dsl.store": '"in_memory"'} if row.in_memory else {}),
        **({"snapshot.url": f'"{run.directory / "snapshots"}"'} if row.snapshots else {}),
        **_of_a_group(row),
    }
    registry = f'schema_registry = {{ url = "{run.registry}" }}' if run.registry else ""
    config = run.directory / "streams.toml"
    config.write_text(
        f"""
{registry}
[kafka]
"bootstrap.servers" = "{run.servers}"
[apps.{run.name}]
topology = "topologies:{row.topology.replace("-", "_")}{_SUFFIXES.get(run.side, "")}"
{_versions(row)}
[apps.{run.name}.config]
"""
        + "".join(f'"{key}" = {value}\n' for key, value in settings.items())
    )
    if run.script:
        return _script(run.script, str(config), run.name)
    options = ["-v"] if row.released else []
    return [
        sys.executable,
        "-m",
        "riverrun.cli",
        *options,
        "--config",
        str(config),
        "worker",
        run.name,
        "--version",
        run.version,
    ]


def _versions(row: Row) -> str:
    return f'versions = {{ v2 = "topologies:{row.topology.replace("-", "_")}_v2" }}' if row.released else ""


def _of_a_group(row: Row) -> dict[str, int]:
    """Settings of several instances: when one counts as dead, and to share the tasks however far behind they are."""
    if not row.fault:
        return {}
    return {
        "num.standby.replicas": row.standbys,
        "acceptable.recovery.lag": 2**62,
        "consumer.session.timeout.ms": SESSION_TIMEOUT_MS,
        "consumer.heartbeat.interval.ms": SESSION_TIMEOUT_MS // 4,
    }


def bare_loop(run: Run) -> list[str]:
    arguments = [run.row.topology, run.servers, run.group, run.guarantee, run.commit_interval_ms, run.state]
    return _script("bare_loop", *map(str, arguments))


def task(run: Run) -> list[str]:
    return _script("task", run.row.topology, run.side, str(run.source.records), str(run.source.keys))


def serde(run: Run) -> list[str]:
    return _script("serde", run.side, str(run.source.records))


def quixstreams(run: Run) -> list[str]:
    python = _environment(run.libraries, "quixstreams", QUIX_VERSION)
    arguments = [run.row.topology, run.servers, run.group, run.guarantee, run.commit_interval_ms, run.state]
    return [str(python), str(HERE / "processes" / "quix.py"), *map(str, arguments)]


def structured_streaming(run: Run) -> list[str]:
    return _script("structured", run.servers, str(_connector(run.libraries)), str(run.state), str(PER_TRIGGER))


def pathway(run: Run) -> list[str]:
    python = _environment(run.libraries, "pathway", PATHWAY_VERSION)
    arguments = [run.servers, run.group, run.commit_interval_ms, run.state]
    return [str(python), str(HERE / "processes" / "pathways.py"), *map(str, arguments)]


def absence(side: str, libraries: Path) -> str:
    """Return why a side cannot take part on this machine; empty if it can. What it needs is downloaded at its first use."""
    try:
        if side == PATHWAY:
            _environment(libraries, "pathway", PATHWAY_VERSION)
        if side == QUIX:
            _environment(libraries, "quixstreams", QUIX_VERSION)
        if side == STRUCTURED:
            _connector(libraries)
    except subprocess.CalledProcessError as error:
        return f"cannot be installed here: {(error.stderr or str(error)).strip().splitlines()[-1]}"
    except EmbeddedBrokerError as error:
        return f"needs a library that cannot be downloaded here: {error}"
    return ""


def _environment(libraries: Path, package: str, version: str) -> Path:
    """Return the interpreter of an environment of its own with a package, made at its first use."""
    environment = libraries / f"{package}-{version}"
    python = environment / "bin" / "python"
    if not (environment / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{package}=={version}"]
        subprocess.run([str(python), *install], check=True, stderr=subprocess.PIPE, text=True)
        (environment / ".ready").touch()
    return python


def _connector(libraries: Path) -> Path:
    """Return the directory of Spark's libraries for Kafka, downloaded at their first use."""
    artifact = Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", _CONNECTOR_VERSION)
    return resolve([artifact], libraries / f"spark-kafka-{_CONNECTOR_VERSION}", find_java())


SIDES: Mapping[str, Callable[[Run], list[str]]] = {
    JAVA: java,
    JAVA_SMALL: java,
    RIVERRUN: riverrun,
    SPARK: riverrun,
    SQL: riverrun,
    BARE: bare_loop,
    CALLED: task,
    FUSED: task,
    AVRO: riverrun,
    PROTOBUF: riverrun,
    JSON_SCHEMA: riverrun,
    QUIX: quixstreams,
    STRUCTURED: structured_streaming,
    PATHWAY: pathway,
}


class Side:
    """A running process; ends with the block it is used in."""

    def __init__(self, run: Run) -> None:
        run.directory.mkdir(parents=True, exist_ok=True)
        self._log = run.directory / f"log-{time.monotonic_ns()}"
        path = os.pathsep.join([str(HERE), str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")])
        names = {"BENCH_INPUT": run.source.views, "BENCH_TABLE": run.source.users, "BENCH_OUTPUT": run.target}
        environment = {**os.environ, **names, "PYTHONPATH": path, **({"BENCH_SERVER": "1"} if run.serves else {})}
        command = serde(run) if run.row.kind == "serde" else SIDES[run.side](run)
        self.started_ms = time.time() * 1000
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=HERE,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, as its operator would."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """End it and all its processes, as a power failure would."""
        for pid in usage.family(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def check(self) -> None:
        """Raise if it has died."""
        if self._process.poll() is not None:
            message = f"Ended with {self._process.returncode}:\n{self._log.read_text()[-3000:]}"
            raise RuntimeError(message)

    def log(self) -> str:
        """Its output so far."""
        return self._log.read_text()

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def event(self, name: str, after: int = 0) -> dict[str, Any]:
        """Wait until it tells of an event, for the first time after `after` others.

        Raises:
            RuntimeError: If it dies before, or takes too long.
        """
        deadline = time.monotonic() + _EVENT_SECONDS
        while time.monotonic() < deadline:
            found = event_report(self._log.read_text(), name, after)
            if found is not None:
                return found
            self.check()
            time.sleep(_PAUSE_SECONDS)
        message = f"No event {name} within {_EVENT_SECONDS} s:\n{self._log.read_text()[-3000:]}"
        raise RuntimeError(message)

    def cpu_seconds(self) -> float:
        """User and system time so far of the process and its children, all threads."""
        return usage.cpu_seconds(self._process.pid)

    def memory_bytes(self) -> int:
        """Resident memory of the process and its children."""
        return usage.memory_bytes(self._process.pid)

    def handles(self) -> int:
        """Open file handles of the process and its children."""
        return usage.handles(self._process.pid)

    def threads(self) -> int:
        """Threads of the process and its children."""
        return usage.threads(self._process.pid)


def compile_java(libraries: Path) -> None:
    """Compile java/*.java, with the libraries it needs; the compiler is in no figure."""
    runtime = find_java()
    streams = [Artifact("org.apache.kafka", "kafka-streams", KAFKA_VERSION)]
    jars = resolve(streams, libraries / f"kafka-streams-{KAFKA_VERSION}", runtime)
    sources = map(str, sorted((HERE / "java").glob("*.java")))
    compiler = [runtime, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    classpath = os.pathsep.join(map(str, jars.glob("*.jar")))
    subprocess.run([*compiler, "-cp", classpath, "-d", str(_classes(libraries)), *sources], check=True)


def _classes(libraries: Path) -> Path:
    return libraries / "benchmark-classes"


def _classpath(libraries: Path) -> str:
    return f"{libraries / f'kafka-streams-{KAFKA_VERSION}'}/*{os.pathsep}{_classes(libraries)}"


def _script(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / "processes" / f"{name}.py"), *arguments]
