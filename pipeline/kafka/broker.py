"""The embedded broker: real Apache Kafka, one node, on the loopback interface; for development, tests and the demo."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import EmbeddedBrokerError
from pipeline.kafka.artifacts import Artifact, find_java, resolve

KAFKA_VERSION = "4.3.1"
DEFAULT_PORT = 19092
_ARTIFACTS = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),  # else the broker logs nothing
)
_CLUSTER_ID = "bWlsbHJhY2UtZW1iZWRkZQ"  # 16 bytes in base64, as StorageTool wants it
_START_SECONDS = 120
_STOP_SECONDS = 60

_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=4
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
# Replayed records carry the event times of years ago: time retention would delete them within minutes.
log.retention.ms=-1
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
"""

_LOGGING = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """Whether the broker runs, as which process, and where clients find it."""

    is_running: bool
    pid: int | None
    bootstrap_servers: str


class EmbeddedBroker:
    """One broker below one directory. Any number of processes may ask for it; all calls are idempotent.

    Args:
        directory: Holds its data, settings, pid and log.
        libraries: Where Kafka's libraries are kept; filled on the first start, which needs a network.
        port: Port on the loopback interface; the controller takes the next one.
    """

    def __init__(self, directory: Path, libraries: Path, port: int = DEFAULT_PORT) -> None:
        """Nothing is started."""
        self._directory = directory
        self._libraries = libraries / f"kafka-{KAFKA_VERSION}"
        self._port = port

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self._port}"

    @property
    def log_file(self) -> Path:
        """What the broker prints."""
        return self._directory / "broker.log"

    def status(self) -> BrokerStatus:
        """Whether it runs. A pid file left by a broker that died, or whose pid another process has now, does not count."""
        pid = self._live_pid()
        return BrokerStatus(pid is not None, pid, self.bootstrap_servers)

    def start(self) -> BrokerStatus:
        """Start it unless it runs, and wait until it answers.

        Raises:
            EmbeddedBrokerError: If there is no Java, the port is taken, the download fails, or the broker does not come
                up (its data may be damaged).
        """
        if self._live_pid() is not None:
            self._wait_until_ready()
            return self.status()
        java = find_java()
        for port in (self._port, self._port + 1):
            self._check_free(port)
        libraries = resolve(_ARTIFACTS, self._libraries)
        self._directory.mkdir(parents=True, exist_ok=True)
        properties, logging = self._write_settings()
        command = [java, "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}"]
        command += ["-cp", f"{libraries}/*"]
        if not (self._directory / "data" / "meta.properties").exists():
            self._format([*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)])
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                [*command, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._pid_file.write_text(str(process.pid))
        self._wait_until_ready(process)
        return self.status()

    def stop(self) -> None:
        """Stop it if it runs; kill it if it does not stop.

        Raises:
            EmbeddedBrokerError: If it cannot be stopped.
        """
        pid = self._live_pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            if not self._wait_for(lambda: self._live_pid() is None, _STOP_SECONDS):
                os.kill(pid, signal.SIGKILL)
                if not self._wait_for(lambda: self._live_pid() is None, _STOP_SECONDS):
                    message = f"The broker (process {pid}) cannot be stopped"
                    raise EmbeddedBrokerError(message)
        self._pid_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill it as a power failure would; for tests of recovery."""
        pid = self._live_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self._wait_for(lambda: self._live_pid() is None, _STOP_SECONDS)

    def reset(self) -> None:
        """Stop it and delete all its data."""
        self.stop()
        shutil.rmtree(self._directory / "data", ignore_errors=True)

    def log_tail(self, lines: int) -> str:
        """The last lines of its log; empty if it never ran."""
        if not self.log_file.exists():
            return ""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _pid_file(self) -> Path:
        return self._directory / "broker.pid"

    def _write_settings(self) -> tuple[Path, Path]:
        properties = self._directory / "server.properties"
        data = self._directory / "data"
        properties.write_text(_PROPERTIES.format(port=self._port, controller_port=self._port + 1, data=data.resolve()))
        logging = self._directory / "log4j2.xml"
        logging.write_text(_LOGGING)
        return properties.resolve(), logging.resolve()

    def _format(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            message = f"The broker's data directory cannot be prepared: {(done.stderr or done.stdout).strip()[-400:]}"
            raise EmbeddedBrokerError(message, hint="`millrace broker start --reset` deletes it and begins anew.")

    def _live_pid(self) -> int | None:
        """The broker's process, if that pid is ours and alive."""
        try:
            pid = int(self._pid_file.read_text())
            status = Path(f"/proc/{pid}/stat")
            if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
                _reap(pid)
                return None
            command = subprocess.run(
                ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
            ).stdout
        except (FileNotFoundError, ValueError):
            return None
        return pid if str(self._directory.resolve()) in command and "kafka.Kafka" in command else None

    def _check_free(self, port: int) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                message = f"Port {port} is taken by another process"
                raise EmbeddedBrokerError(
                    message, hint="Stop that process, or choose another port with --port."
                ) from error

    def _wait_until_ready(self, process: subprocess.Popen[bytes] | None = None) -> None:
        def is_settled() -> bool:
            return self._answers() or (process is not None and process.poll() is not None)

        if not self._wait_for(is_settled, _START_SECONDS) or not self._answers():
            self.stop()
            tail = self.log_tail(5)
            message = f"The broker did not come up. Its log ends with:\n{tail}"
            hint = f"See {self.log_file}. If its data is damaged, `millrace broker start --reset` deletes it."
            raise EmbeddedBrokerError(message, hint=hint)

    def _answers(self) -> bool:
        """Whether the broker accepts connections, and is ours."""
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return self._live_pid() is not None

    @staticmethod
    def _wait_for(condition: object, seconds: int) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():  # type: ignore[operator]
                return True
            time.sleep(0.1)
        return False


def _reap(pid: int) -> None:
    """Let go of a child that has ended, so that it does not look alive."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
