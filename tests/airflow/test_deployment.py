"""The services of `docker/compose.yaml`, run as processes: their own commands and environments, on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.postgresql import binary, running_postgres
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.brokers import Broker

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
AIRFLOW = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
SECONDS = 300.0
DEFAULT = re.compile(r"\$\{\w+:-(.*)\}")
"""A variable of compose, with the value that it has if nobody sets it."""
PASSWORD = "pass@word:/%"  # noqa: S105 - of this test's own database
SECRET = "openssl rand -base64 32 | tr +/ -_"  # noqa: S105 - how the compose file says to make one

pytestmark = pytest.mark.airflow


def test_each_volume_secret_and_dependency_of_a_service_is_declared() -> None:
    for name, service in SERVICES.items():
        mounted = [volume.partition(":")[0] for volume in service.get("volumes", ()) if ":" in volume]
        assert {volume for volume in mounted if not volume.startswith(".")} <= COMPOSE["volumes"].keys(), name
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys(), name
        for needed in service.get("depends_on", ()):
            missing = set(service["profiles"]) - set(SERVICES[needed]["profiles"])
            assert not missing, f"{name} needs {needed}, which {missing} do not start"


def test_the_compose_file_says_how_secrets_are_made_that_are_used_here() -> None:
    assert SECRET in (ROOT / "docker" / "compose.yaml").read_text()


def test_kafka_writes_to_its_volume() -> None:
    kafka = SERVICES["kafka"]
    assert f"kafka:{kafka['environment']['KAFKA_LOG_DIRS']}" in kafka["volumes"]


def test_each_image_of_a_service_is_a_stage_that_runs_without_rights() -> None:
    stages = dockerfile_stages()
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets <= stages.keys()
    for target in targets:
        users = [line.split()[1] for line in stages[target] if line.startswith("USER ")]
        assert users == ["10001"], target
        assert not [line for line in stages[target] if "uv pip" in line], f"{target} has tools that install"


def test_only_what_the_images_copy_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = [line.split()[1:] for stage in dockerfile_stages().values() for line in stage if line.startswith("COPY")]
    copied = {word for words in lines if not words[0].startswith("--from") for word in words[:-1] if word[0] != "-"}
    assert copied == sent


def dockerfile_stages() -> dict[str, list[str]]:
    """The lines of each stage of the Dockerfile, by its name."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    parts = re.split(r"^FROM \S+ AS (\S+)$", text, flags=re.MULTILINE)[1:]
    return {name: lines.splitlines() for name, lines in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")
def test_the_compose_file_is_valid() -> None:
    checked = subprocess.run(
        ["docker-compose", "--file", "docker/compose.yaml", "config", "--quiet"],
        cwd=ROOT,
        env={
            **os.environ,
            "COMPOSE_PROFILES": ",".join(sorted({each for s in SERVICES.values() for each in s["profiles"]})),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_workers_run_side_by_side_as_their_service_says(
    broker: Broker, new_port: Callable[[], int], tmp_path: Path
) -> None:
    containers = [container(tmp_path / str(number), broker, new_port()) for number in range(2)]
    for _ in range(2):  # made again, as after a restart, it changes nothing
        subprocess.run(containers[0].command("kafka-topics"), env=containers[0].environ, check=True)
    running = []
    try:
        for each in containers:  # as with --scale worker=2
            log = (each.directory / "worker.log").open("w")
            command = each.command("worker")
            running.append(subprocess.Popen(command, env=each.environ, cwd=each.directory, stdout=log, stderr=log))
        for each in containers:
            until(partial(each.is_healthy, "worker"), "was healthy", lambda: logs(tmp_path))
        for each in containers:
            anonymous = urllib.request.Request(f"http://127.0.0.1:{each.port}/status")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(anonymous, timeout=DEADLINE_S)  # noqa: S310 - on this machine
            assert list((each.directory / "var/lib/riverrun").iterdir()), "keeps its state for itself"
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
    assert [process.wait(SECONDS) for process in running] == [0, 0]


@dataclass(frozen=True)
class Container:
    """The places of this machine that stand for those of a container."""

    directory: Path
    port: int
    places: Mapping[str, str]

    def placed(self, text: str) -> str:
        """A text with the places of this machine."""
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the service `worker`."""
        own = {name: DEFAULT.sub(r"\1", self.placed(v)) for name, v in SERVICES["worker"]["environment"].items()}
        return {**os.environ, "PYTHONPATH": str(ROOT), **own}

    def command(self, service: str) -> list[str]:
        """The command of a service, whose image's entry point is `riverrun`."""
        return [sys.executable, "-m", "riverrun.cli", *map(self.placed, SERVICES[service]["command"])]

    def is_healthy(self, service: str) -> bool:
        """Whether the check of a service's health says so."""
        _, *command = SERVICES[service]["healthcheck"]["test"]
        assert command[0] == "python"
        probe = subprocess.run([sys.executable, *map(self.placed, command[1:])], capture_output=True, check=False)
        return probe.returncode == 0


def container(directory: Path, broker: Broker, port: int) -> Container:
    """A container's files below a directory: the project that compose mounts, and the secrets."""
    for name in ("opt/riverrun", "run/secrets", "var/lib/riverrun"):
        (directory / name).mkdir(parents=True)
    for name in SERVICES["worker"]["secrets"]:
        (directory / "run/secrets" / name).write_text(f"{name}-of-all\n")
    paths = {f"/{name}": str(directory / name) for name in ("opt/riverrun", "run/secrets", "var/lib/riverrun")}
    found = Container(directory, port, {**paths, "kafka:9092": broker.bootstrap_servers, ":8090": f":{port}"})
    text = (ROOT / "docker" / "streams.toml").read_text()
    (directory / "opt/riverrun/streams.toml").write_text(found.placed(text))
    return found


def test_airflow_is_healthy_as_the_services_that_compose_starts(
    postgres: int, new_port: Callable[[], int], tmp_path: Path
) -> None:
    port = new_port()
    environ = airflow_environment(tmp_path, postgres, port)

    def airflow(service: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *SERVICES[service]["command"]]

    subprocess.run(airflow("airflow-migrate"), env=environ, cwd=tmp_path, check=True, capture_output=True)
    running = []
    try:
        for service in AIRFLOW:
            options = ["--port", str(port)] if service == "airflow-api-server" else []
            with (tmp_path / f"{service}.log").open("w") as log:
                running.append(
                    subprocess.Popen(
                        [*airflow(service), *options],
                        env=environ,
                        cwd=tmp_path,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        until(lambda: is_healthy(port), "was healthy", lambda: logs(tmp_path))
        expected = {
            *("delays__run", "delays__backfill", "delays__release", "delays__quality"),
            *("word-count__backfill", "word-count__release"),
        }
        until(lambda: dags_of(environ) == expected, "listed the DAGs", lambda: logs(tmp_path))
        anonymous = urllib.request.Request(f"http://127.0.0.1:{port}/api/v2/dags")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(anonymous, timeout=DEADLINE_S)  # noqa: S310 - on this machine
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            try:
                process.wait(DEADLINE_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def dags_of(environ: dict[str, str]) -> set[str]:
    """The DAGs that the DAG processor has read so far."""
    command = [sys.executable, "-m", "airflow", "dags", "list", "--output", "json"]
    shown = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    start = shown.find("[{")
    return set() if start < 0 else {dag["dag_id"] for dag in json.loads(shown[start:])}


def airflow_environment(directory: Path, postgres: int, port: int) -> dict[str, str]:
    """The environment of Airflow's services, with this machine's places for those of the containers."""
    kept = directory / "secrets"
    kept.mkdir()
    for name in COMPOSE["secrets"]:
        secret = subprocess.run(["sh", "-c", SECRET], check=True, capture_output=True, text=True).stdout
        (kept / name).write_text(PASSWORD if name == "airflow-db-password" else secret)
    (directory / "logs").mkdir()
    settings: dict[str, str] = {}
    for name, value in SERVICES["airflow-scheduler"]["environment"].items():
        here = str(value).replace("/run/secrets", str(kept)).replace("/opt/airflow", str(directory))
        settings[name] = here.replace("airflow-api-server:8080", f"127.0.0.1:{port}")
    found = os.pathsep.join([str(Path(sys.executable).parent), str(ROOT / "docker"), os.environ["PATH"]])
    return {
        **os.environ,
        **settings,
        "PATH": found,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")]),
        "RIVERRUN_CONFIG": str(ROOT / "streams.toml"),
        "SECRETS_DIRECTORY": str(kept),
        "AIRFLOW_DB_HOST": f"127.0.0.1:{postgres}",
        "AIRFLOW_HOME": str(directory),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=60) as answer:
            states = json.load(answer)
    except OSError:
        return False
    return {state["status"] for state in states.values()} == {"healthy"}


def logs(directory: Path) -> str:
    return "\n".join(f"--- {log}\n{log.read_text()[-3000:]}" for log in directory.rglob("*.log"))


@pytest.fixture
def postgres(new_port: Callable[[], int]) -> Iterator[int]:
    """The port of a PostgreSQL with an empty database for Airflow, which takes passwords only."""
    port = new_port()
    with running_postgres(port, "airflow", PASSWORD):
        address = ["-h", "127.0.0.1", "-p", str(port), "-U", "airflow", "postgres"]
        create = [binary("psql"), *address, "-c", "create database airflow"]
        subprocess.run(create, env={**os.environ, "PGPASSWORD": PASSWORD}, check=True, capture_output=True)
        yield port
