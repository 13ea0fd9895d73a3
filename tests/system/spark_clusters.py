"""A Spark cluster of real processes: a standalone master and workers, each on a loopback address of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from riverrun.spark.java import archive_options, classes_archive
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SPARK_HOME = Path(pyspark.__file__).parent
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *archive_options(classes_archive(os.environ)).split())
"""Options of Java for processes that live for a minute: the collector and the compiler that take least CPU time."""
_CLASS_PATH = f"{SPARK_HOME}/conf:{next(SPARK_HOME.glob('jars/slf4j-api-*.jar'))}:{SPARK_HOME}/jars/*"
"""That of spark-submit: Java ignores an archive that was made with another one."""


def processes_with(text: str) -> list[int]:
    """Ids of the processes that have `text` in their command lines or environments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes():
                found.append(int(process.name))
    return sorted(set(found) - {os.getpid()})


@dataclass
class SparkCluster:
    """The processes of a cluster; executors are children of its workers."""

    directory: Path
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of `[spark]` with which two executors of one core each start quickly and use little memory."""
        return {
            "spark.master": self.master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": " ".join(QUICK),
            "spark.executor.extraJavaOptions": " ".join(QUICK),
        }

    def start(self, workers: int = 2) -> None:
        ui = ["--webui-port", "0"]
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(self.port), *ui)
        until(lambda: "Starting Spark master" in self.log("master.Master"), "started a master")
        for number in range(workers):
            host, work = f"127.0.0.{2 + number}", self.directory / f"work-{number}"
            options = ["--host", host, "--cores", "1", "--memory", "600m", "--work-dir", str(work), *ui]
            self._start("worker.Worker", *options, self.master)
        until(lambda: self.log("worker.Worker").count("Successfully registered") == workers, "registered the workers")

    def _start(self, name: str, *options: str) -> None:
        command = ["java", "-Xmx192m", *QUICK, "-cp", _CLASS_PATH, f"org.apache.spark.deploy.{name}"]
        log = (self.directory / f"{name}.log").open("ab")
        environ = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",  # pyspark's wheel has no file that says so
            "SPARK_LOCAL_DIRS": str(self.directory),
        }
        self.processes.append(
            subprocess.Popen([*command, *options], env=environ, stdout=log, stderr=log, cwd=self.directory)
        )

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        found = []
        for pid in processes_with("executor.CoarseGrainedExecutorBackend"):
            with contextlib.suppress(OSError):
                if str(Path(f"/proc/{pid}/cwd").resolve()).startswith(f"{self.directory}/"):
                    found.append(pid)
        return found

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(DEADLINE_S)
        for pid in self.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def spark_cluster(directory: Path, port: int) -> Iterator[SparkCluster]:
    directory.mkdir(parents=True, exist_ok=True)
    cluster = SparkCluster(directory, port)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def search_path(*first: Path) -> str:
    """The `PYTHONPATH` of processes that find the modules of this one."""
    return os.pathsep.join([*map(str, first), *filter(None, sys.path)])
