"""Images of `docker/Dockerfile`, built without a registry, with compose's commands in them: `make images` runs these tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from base64 import urlsafe_b64encode
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow.test_deployment import DEFAULT, PASSWORD, SERVICES, is_healthy, logs
from tests.postgresql import binary, running_postgres
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.brokers import Broker

ROOT = Path(__file__).resolve().parents[2]
USER = 10001
SECONDS = 60
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
FLIGHT = {
    "carrier": "UA",
    "number": 1,
    "origin": "JFK",
    "dest": "SFO",
    "departed_ms": 1_357_034_400_000,
    "dep_delay": 3,
}
NEEDED = ("buildah", "mmdebstrap")

pytestmark = [
    pytest.mark.images,
    pytest.mark.only_deep,
    pytest.mark.broker,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason=f"{NEEDED} are not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root directory"),
]


@dataclass(frozen=True)
class Images:
    """The images, in a directory of these tests alone. A container is a process in the root directory of one.

    Args:
        storage: The directory.
        directory: Where files are that containers mount, and logs.
        places: What stands in compose's files, and what it is on this machine.
    """

    storage: Path
    directory: Path
    places: Mapping[str, str]

    def placed(self, text: str) -> str:
        """A text with the places of this machine."""
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def container(self, service: str) -> str:
        """The name of a new container of a service's image."""
        image = f"localhost/{SERVICES[service]['image']}"
        return self.buildah("from", "--pull-never", image).strip()

    def command(self, container: str, service: str, command: Sequence[str] = (), **environ: str) -> list[str]:
        """The command line of a service in a container; of another command, if one is given."""
        own = SERVICES[service]
        found = json.loads(self.buildah("inspect", "--type", "container", container))
        start = own.get("entrypoint", found["OCIv1"]["config"]["Entrypoint"])
        settings = {name: DEFAULT.sub(r"\1", str(value)) for name, value in own["environment"].items()} | environ
        given = [part for name, value in settings.items() for part in ("--env", f"{name}={self.placed(value)}")]
        mounts = [
            "--volume=" + mount
            for mount in (
                f"{self.directory}/streams.toml:/opt/riverrun/streams.toml:ro",
                f"{self.directory}/secrets:/run/secrets:ro",
                f"{self.directory}/logs:/opt/airflow/logs",
            )
        ]
        line = list(map(self.placed, command or [*start, *own["command"]]))
        # Java looks its machine's name up, which a container of buildah's cannot.
        return ["buildah", *self._roots, "run", "--hostname=localhost", *given, *mounts, container, "--", *line]

    def is_healthy(self, container: str, service: str) -> bool:
        """Ask a service's own check of its health, in its container."""
        kind, *check = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD"
        probe = self.command(container, service, [*map(self.placed, check)])
        return subprocess.run(probe, env=self._environ, capture_output=True, check=False).returncode == 0

    def run(self, service: str, command: Sequence[str] = (), **environ: str) -> str:
        """Run a service, or another command in its image, to its end, and return what it prints."""
        line = self.command(self.container(service), service, command, **environ)
        done = subprocess.run(line, env=self._environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def start(self, service: str, container: str, *options: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start a service in a container."""
        with (self.directory / f"{service}.log").open("ab") as log:
            line = [*self.command(container, service, **environ), *options]
            return subprocess.Popen(line, env=self._environ, stdout=log, stderr=log, start_new_session=True)

    def buildah(self, *arguments: str) -> str:
        """Run buildah, and return what it prints."""
        line = ["buildah", *self._roots, *arguments]
        return subprocess.run(line, env=self._environ, check=True, stdout=subprocess.PIPE, text=True).stdout

    @property
    def _roots(self) -> list[str]:
        return ["--root", f"{self.storage}/images", "--runroot", f"{self.storage}/running"]

    @property
    def _environ(self) -> dict[str, str]:
        return {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self.storage)}


@pytest.fixture(scope="module")
def storage() -> Iterator[Path]:
    """A directory with the images, deleted at the end: they take some 10 GB."""
    directory = Path(os.environ.get("STORAGE") or tempfile.mkdtemp(prefix="riverrun-images-", dir="/var/tmp"))
    environ = {**os.environ, "STORAGE": str(directory), "CERTIFICATES": str(CERTIFICATES)}
    try:
        subprocess.run([ROOT / "docker" / "build-images"], env=environ, check=True)
        yield directory
    finally:
        roots = ["--root", f"{directory}/images", "--runroot", f"{directory}/running"]
        subprocess.run(["buildah", *roots, "rm", "--all"], check=False, capture_output=True)
        subprocess.run(["buildah", *roots, "rmi", "--all", "--force"], check=False, capture_output=True)
        subprocess.run(["umount", "--recursive", f"{directory}/images/overlay"], check=False, capture_output=True)
        shutil.rmtree(directory)


@pytest.fixture
def images(storage: Path, broker: Broker, new_port: Callable[[], int], tmp_path: Path) -> Iterator[Images]:
    places = {
        "kafka:9092": broker.bootstrap_servers,
        ":8090": f":{new_port()}",
        "spark-master:7077": (master := f"127.0.0.1:{new_port()}"),
        "spark-master/7077": master.replace(":", "/"),
        "spark-master": "127.0.0.1",
        "8081": str(new_port()),
        "127.0.0.1:8080": (server := f"127.0.0.1:{new_port()}"),
        "airflow-api-server:8080": server,
    }
    found = Images(storage, tmp_path, places)
    (tmp_path / "streams.toml").write_text(found.placed((ROOT / "docker" / "streams.toml").read_text()))
    for name in ("secrets", "logs"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, USER, -1)
    for name in SERVICES["airflow-scheduler"]["secrets"]:
        random = urlsafe_b64encode(sha256(name.encode()).digest()).decode()
        secret = PASSWORD if name == "airflow-db-password" else random
        (tmp_path / "secrets" / name).write_text(secret)
    yield found
    for process in Path("/proc").glob(
        "[0-9]*"
    ):  # what containers have left: their processes are in sessions of their own
        with suppress(OSError):
            if process.joinpath("root").readlink().is_relative_to(storage):
                os.kill(int(process.name), signal.SIGKILL)
    found.buildah("rm", "--all")


def end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End containers, with all their processes."""
    for by in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, by)
        for process in running:
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                continue


def test_a_worker_is_healthy_in_its_image(images: Images) -> None:
    images.run("kafka-topics")
    worker = images.container("worker")
    running = [images.start("worker", worker)]
    try:
        until(partial(images.is_healthy, worker, "worker"), "was healthy", partial(logs, images.directory))
        shown = images.run("worker", ["sh", "-c", "id --user; which java || echo no Java"])
        assert shown.split("\n")[:2] == [str(USER), "no Java"]
    finally:
        end(running)


def test_a_cluster_of_spark_computes_a_bounded_run_in_its_image(images: Images, broker: Broker) -> None:
    images.run("kafka-topics")
    broker.write("flights", [(b"1", json.dumps(FLIGHT).encode(), 1)])
    port = images.places["spark-master:7077"].rpartition(":")[2]
    names = {service: images.container(service) for service in ("spark-master", "spark-worker")}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for service, container in names.items():
            ports: dict[str, Any] = {
                "SPARK_MASTER_PORT": port,
                "SPARK_MASTER_WEBUI_PORT": "0",
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            running.append(images.start(service, container, **ports))
            until(
                partial(images.is_healthy, container, service),
                f"{service} was healthy",
                partial(logs, images.directory),
            )
        line = ["riverrun", "run", "delays", "--engine", "spark"]
        shown = images.run("spark-worker", line, SPARK_MASTER="spark://spark-master:7077", SPARK_LOCAL_IP="127.0.0.1")
        assert "engine: spark (as chosen)" in shown
    finally:
        end(running)


def test_airflow_is_healthy_in_its_image(images: Images, new_port: Callable[[], int]) -> None:
    database, port = new_port(), images.places["airflow-api-server:8080"].rpartition(":")[2]
    with running_postgres(database, "airflow", PASSWORD):
        address = ["-h", "127.0.0.1", "-p", str(database), "-U", "airflow", "postgres", "-c", "create database airflow"]
        environ = {**os.environ, "PGPASSWORD": PASSWORD}
        subprocess.run([binary("psql"), *address], env=environ, check=True, capture_output=True)
        at = {"AIRFLOW_DB_HOST": f"127.0.0.1:{database}"}
        images.run("airflow-migrate", **at)
        running = []
        try:
            for service in ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"):
                options = ["--port", port] if service == "airflow-api-server" else []
                running.append(images.start(service, images.container(service), *options, **at))
            until(lambda: is_healthy(int(port)), "was healthy", partial(logs, images.directory))
        finally:
            end(running)
