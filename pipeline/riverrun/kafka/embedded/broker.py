"""The embedded broker: real Apache Kafka on the loopback interface; for development, tests and the demo."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.config.secrets import close_to_others
from riverrun.errors import EmbeddedBrokerError
from riverrun.kafka.embedded.artifacts import Artifact, classes_archive, find_java, publish, recording, resolve, using

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PROC = Path("/proc")
_HIGHEST = 2**31 - 1


def command_line(pid: int) -> str:
    """Return the command line of a process, joined by blanks; empty if there is no such process.

    A child of this process that has ended counts as gone, and is reaped.
    """
    if not 0 < pid <= _HIGHEST:
        return ""
    # Not every broker is a child of this process.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    # Linux has `/proc`; other systems have `ps` only.
    if (_PROC / "self").exists():
        try:
            return (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()
        except OSError:
            return ""
    shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used; 0 if there is no such process."""
    shown = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=False)
    # [days-]hours:minutes:seconds, or minutes:seconds.hundredths on macOS.
    parts = [float(each) for each in re.split("[-:]", shown.stdout.strip()) if each]
    return sum(part * unit for part, unit in zip(reversed(parts), (1, 60, 3_600, 86_400), strict=False))


KAFKA_VERSION = "4.3.1"
DEFAULT_PORT = 19092
_ARTIFACTS = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    # Without it, the broker logs nothing.
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)
_MEGABYTES = 45
"""Size of the libraries."""
# 16 bytes in base64, as StorageTool requires.
_CLUSTER_ID = "cml2ZXJydW4tZW1iZWRkZQ"
# The optimising compiler and the parallel collector take half of the CPU time of a start, and save none in millions of records.
_JAVA_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_SECONDS = 120
_STOP_SECONDS = 60
# CPU time that a broker uses in `_START_SECONDS` while it only waits; less than this.
_IDLE_SECONDS = 10.0
# Long, so that a lone broker keeps leading even if its machine stops for a while and it misses heartbeats (see `_fence`).
_SESSION_MS = 60_000
# Short, so that other brokers of the cluster take over soon.
_CLUSTER_SESSION_MS = 5_000
_ACTIVE = b"Performing controller activation"
"""A line of the controller's log: it has read all records, and begins."""
_FENCING = re.compile(rb"\bfenced=(-?1|true|false)\b")
"""Changes of the broker's registration in the controller's log; 1 and true fence it, 0 changes something else."""
_LET_GO_SECONDS = 5
"""Longest time in which a killed broker releases its ports."""
_TELLING = re.compile(r"Exception|Error|ERROR|FATAL|Failed")
"""Pattern of log lines that explain why the broker did not start."""
_DAMAGED = re.compile(
    r"meta\.properties|quorum-state|cluster.?id|node.?id|Corrupt|JsonParse|Invalid|InconsistentClusterId", re.IGNORECASE
)
"""Pattern of log lines about damaged data, as opposed to a busy or full machine."""
_DAMAGED_HINT = "If the data is damaged and not needed: `riverrun broker start --reset` deletes all of it."

_PROPERTIES = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=4
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
# A crashed broker may register again after its session has ended.
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms=500
# Records of an idle controller: twice a second, they take 3 % of a core.
metadata.max.idle.interval.ms=5000
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
# Replayed records carry the event times of years ago: time retention would delete them within minutes.
log.retention.ms=-1
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
"""

_FENCING_PROPERTIES = """process.roles=controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
broker.session.timeout.ms=300
broker.heartbeat.interval.ms=100
"""

_LOGGING = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c{{1}} %m%n"/></Console></Appenders>
<Loggers>
<Logger name="org.apache.kafka.controller.ClusterControlManager" level="{controller}"/>
<Root level="warn"><AppenderRef ref="out"/></Root>
</Loggers></Configuration>
"""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The state of the broker: running or not, its process, and the address for clients."""

    is_running: bool
    pid: int | None
    bootstrap_servers: str


class EmbeddedBroker:
    """One broker with one directory. Any number of processes may use it; all calls are idempotent.

    Args:
        directory: Holds its data, settings, pid and log.
        libraries: Directory of Kafka's libraries; filled on the first start, which needs a network.
        port: Port on the loopback interface; the controller uses the next one.
        java_home: Directory to check for Java before the PATH.
        cluster: Ports of all brokers of its cluster including its own, constant over time; by default a single broker.
    """

    def __init__(
        self,
        directory: Path,
        libraries: Path,
        port: int = DEFAULT_PORT,
        *,
        java_home: Path | None = None,
        cluster: tuple[int, ...] = (),
    ) -> None:
        self._directory = directory
        self._libraries = libraries / f"kafka-{KAFKA_VERSION}"
        self._port = port
        self._java_home = java_home
        self._cluster = cluster or (port,)

    @property
    def bootstrap_servers(self) -> str:
        """The address at which clients find it."""
        return f"127.0.0.1:{self._port}"

    @property
    def log_file(self) -> Path:
        """The file that the broker prints to."""
        return self._directory / "broker.log"

    def status(self) -> BrokerStatus:
        """Return its status. Pid files of crashed brokers, and pids that now belong to other processes, do not count."""
        pid = self._live_pid()
        port = self._port if pid is None else self._configured_port()
        return BrokerStatus(pid is not None, pid, f"127.0.0.1:{port}")

    def start(self, on_step: Callable[[str], None] = lambda _step: None) -> BrokerStatus:
        """Start it unless it runs, and wait until it answers."""
        with self._locked():
            status = self.status()
            if status.is_running and status.bootstrap_servers != self.bootstrap_servers:
                message = f"The broker in {self._directory} is already running at {status.bootstrap_servers}"
                raise EmbeddedBrokerError(message, hint="Use that port, or stop it first: `riverrun broker stop`.")
            if status.is_running:
                self._wait_for_answer(lambda: self._live_pid() is None, on_step)
            if self._live_pid() is None:
                self._launch(on_step)
            elif not self._answers():
                message = (
                    f"The broker (process {status.pid}) is running, but does not answer at {self.bootstrap_servers}"
                )
                raise EmbeddedBrokerError(
                    message, hint=f"Stop it with `riverrun broker stop`. Its log is {self.log_file}."
                )
            return self.status()

    def stop(self) -> None:
        """Stop it if it runs; kill it if it does not stop."""
        if self._directory.exists():
            with self._locked():
                # Java writes the archive at its end: that of a killed one may be incomplete.
                if self._terminate() and self._recorded.exists():
                    publish(self._recorded, classes_archive(find_java(self._java_home), self._libraries))

    def kill(self) -> None:
        """Kill it like a power failure; for tests of recovery."""
        pid = self._live_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self._wait_for(self._has_let_go, _STOP_SECONDS)

    def reset(self) -> None:
        """Stop it and delete all its data."""
        self.stop()
        if self._data.is_dir():
            shutil.rmtree(self._data)
        else:
            self._data.unlink(missing_ok=True)

    def log_tail(self, lines: int) -> str:
        """Return the last lines of its log; empty if it never ran."""
        if not self.log_file.exists():
            return ""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _pid_file(self) -> Path:
        return self._directory / "broker.pid"

    @property
    def _recorded(self) -> Path:
        """Return the archive of classes that the broker writes when it ends, if there was none."""
        return (self._directory / "classes.jsa").resolve()

    @property
    def _properties_file(self) -> Path:
        return (self._directory / "server.properties").resolve()

    @property
    def _data(self) -> Path:
        return (self._directory / "data").resolve()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Two starts would compete for the data.
        try:
            close_to_others(self._directory)
            lock = (self._directory / "broker.lock").open("w")
        except OSError as error:
            message = f"The broker's directory {self._directory} cannot be used: {error.strerror}"
            raise EmbeddedBrokerError(message, hint="Choose another with --home or RIVERRUN_HOME.") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _launch(self, on_step: Callable[[str], None]) -> None:
        java = find_java(self._java_home)
        # Left by a crashed broker, which may hold its ports for another moment.
        if self._pid_file.exists():
            self._wait_for(self._has_let_go, _LET_GO_SECONDS)
        for port in self._ports:
            if not _is_free(port):
                message = f"Port {port} is taken by another process"
                raise EmbeddedBrokerError(message, hint="Stop that process, or choose another port with --port.")
        checksums = resources.files(__package__).joinpath(f"kafka-{KAFKA_VERSION}.sha256").read_text()
        libraries = resolve(_ARTIFACTS, self._libraries, java, checksums, on_step, megabytes=_MEGABYTES)
        on_step(f"Starting Kafka {KAFKA_VERSION} at {self.bootstrap_servers}")
        logging = self._write_settings()
        command = [java, *_JAVA_OPTIONS, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{libraries}/*"]
        archive = classes_archive(java, libraries)
        command[1:1] = using(archive)
        properties = str(self._properties_file)
        if not (self._data / "meta.properties").exists():
            self._format([*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", properties])
        elif self._was_killed and len(self._cluster) == 1:
            self._fence([*command, "kafka.Kafka", properties])
        begin = self.log_file.stat().st_size if self.log_file.exists() else 0
        if not archive.exists():
            command[1:1] = recording(self._recorded)
        process = self._start_process([*command, "kafka.Kafka", properties], self.log_file)
        self._wait_for_answer(lambda: process.poll() is not None, on_step)
        if not self._answers():
            has_ended = process.poll() is not None
            self._terminate()
            what = "ended at once" if has_ended else f"was not ready, and did nothing for {_START_SECONDS} s"
            raise self._not_up(begin, what)

    def _start_process(self, command: list[str], output: Path) -> subprocess.Popen[bytes]:
        with output.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._pid_file.write_text(str(process.pid))
        return process

    @property
    def _was_killed(self) -> bool:
        """Return whether the broker ran before and was killed."""
        has_run = (self._data / "__cluster_metadata-0").exists()
        return has_run and not (self._data / ".kafka_cleanshutdown").exists()

    def _fence(self, command: list[str]) -> None:
        """Run the controller alone until it has fenced the killed broker."""
        # A broker that returns earlier finds itself the leader of all partitions, by its old metadata. It continues with
        # ending transactions, cannot reach itself, and is fenced. Then no partition has a leader, and Kafka 4.3.1 treats
        # it as deleted: `TransactionMarkerChannelManager` counts the marker as written, and the records stay open
        # forever. In a cluster, other brokers lead. Fencing first is also faster: a broker waits the whole
        # `broker.session.timeout.ms`.
        output = self._directory / "fencing.log"
        output.unlink(missing_ok=True)
        self._properties_file.write_text(_FENCING_PROPERTIES.format(controller_port=self._port + 1, data=self._data))
        self._write_logging(controller="info")
        process = self._start_process(command, output)

        def has_fenced() -> bool:
            said = output.read_bytes()
            return process.poll() is not None or (
                _ACTIVE in said and _FENCING.findall(said)[-1:] in ([b"1"], [b"true"])
            )

        def has_written() -> bool:
            return process.poll() is not None or self._metadata_bytes() > written

        is_fenced = self._wait_for(has_fenced, _START_SECONDS)
        written = self._metadata_bytes()
        # Once the log has grown, the record of the fencing is on disk, before or with the new bytes.
        is_fenced = is_fenced and self._wait_for(has_written, _START_SECONDS)
        self._terminate()
        if not is_fenced:
            message = f"The controller did not end the killed broker's session within {_START_SECONDS} s"
            raise EmbeddedBrokerError(message, hint=f"No data is lost: start it again. See {output}.")
        self._write_settings()

    def _metadata_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._data / "__cluster_metadata-0").glob("*.log"))

    def _not_up(self, begin: int, what: str) -> EmbeddedBrokerError:
        """Return the error for a failed start, with its log since the given position; `what` describes the symptom."""
        with self.log_file.open("rb") as log:
            log.seek(begin)
            lines = log.read().decode(errors="replace").splitlines()
        telling = [line for line in lines if _TELLING.search(line)][:3] or lines[-3:]
        said = f"The broker did not start with the data in {self._data}: it {what}. Its log says:"
        hint = (
            _DAMAGED_HINT
            if _DAMAGED.search("\n".join(telling))
            else "No data is lost: fix the cause, and start it again."
        )
        return EmbeddedBrokerError("\n".join([said, *telling]), hint=f"See {self.log_file}. {hint}")

    def _terminate(self) -> bool:
        """End the broker's process, and return whether it ended when it was asked to."""
        pid, is_ended = self._live_pid(), False
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            is_ended = self._wait_for(lambda: self._live_pid() is None, _STOP_SECONDS)
            if not is_ended:
                os.kill(pid, signal.SIGKILL)
                if not self._wait_for(lambda: self._live_pid() is None, _STOP_SECONDS):
                    message = f"The broker (process {pid}) cannot be stopped"
                    raise EmbeddedBrokerError(message)
            self._wait_for(self._has_let_go, _STOP_SECONDS)
        self._pid_file.unlink(missing_ok=True)
        return is_ended

    def _write_settings(self) -> Path:
        """Write the settings, and return the path of the logging settings."""
        nodes = enumerate(self._cluster, 1)
        settings = _PROPERTIES.format(
            node=self._cluster.index(self._port) + 1,
            voters=",".join(f"{node}@127.0.0.1:{port + 1}" for node, port in nodes),
            replicas=min(3, len(self._cluster)),
            in_sync=min(2, len(self._cluster)),
            port=self._port,
            controller_port=self._port + 1,
            data=self._data,
            session_ms=_SESSION_MS if len(self._cluster) == 1 else _CLUSTER_SESSION_MS,
        )
        self._properties_file.write_text(settings)
        return self._write_logging(controller="warn")

    def _write_logging(self, controller: str) -> Path:
        logging = self._directory / "log4j2.xml"
        logging.write_text(_LOGGING.format(controller=controller))
        return logging.resolve()

    def _format(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shown = (done.stderr or done.stdout).strip()[-400:]
            message = f"The broker's data directory {self._data} cannot be prepared: {shown}"
            raise EmbeddedBrokerError(message, hint=_DAMAGED_HINT if _DAMAGED.search(shown) else None)

    @property
    def _ports(self) -> tuple[int, int]:
        return self._port, self._port + 1

    def _has_let_go(self) -> bool:
        # A process loses its command line before its sockets.
        return self._live_pid() is None and all(map(_is_free, self._ports))

    def _live_pid(self) -> int | None:
        # The pid of a broker that has crashed may belong to another process by now: the command line decides.
        try:
            pid = int(self._pid_file.read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return pid if command_line(pid).endswith(f"kafka.Kafka {self._properties_file}") else None

    def _configured_port(self) -> int:
        """Return the port of its last start."""
        found = re.search(r"^advertised\.listeners=.*:(\d+)$", self._properties_file.read_text(), re.MULTILINE)
        return int(found[1]) if found else self._port

    def _answers(self) -> bool:
        """Return whether the broker accepts connections, and is ours."""
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return self._live_pid() is not None

    def _wait_for_answer(self, has_ended: Callable[[], bool], on_step: Callable[[str], None]) -> None:
        """Wait until the broker answers or has ended, as long as it computes: after a crash it recovers its logs."""
        computed = 0.0
        while not self._wait_for(lambda: self._answers() or has_ended(), _START_SECONDS):
            before, computed = computed, cpu_seconds(self._live_pid() or 0)
            if computed - before < _IDLE_SECONDS:
                return
            on_step(f"The broker does not answer yet: it is probably recovering its data. Its log is {self.log_file}")

    @staticmethod
    def _wait_for(condition: Callable[[], bool], seconds: int) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.1)
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
