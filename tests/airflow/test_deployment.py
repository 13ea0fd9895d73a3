"""The services of `docker/compose.yaml`, run as processes: their own commands and environments, on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.postgresql import binary, running_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
AIRFLOW = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
SECONDS = 300.0
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


def test_topics_are_made_and_the_worker_runs_with_the_commands_of_its_services(broker: Any, tmp_path: Path) -> None:
    text = (ROOT / "docker" / "streams.toml").read_text()
    (tmp_path / "streams.toml").write_text(text.replace("kafka:9092", broker.bootstrap_servers))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MILLRACE_CONFIG": str(tmp_path / "streams.toml")}

    def command(service: str) -> list[str]:
        given = [part.replace("/var/lib/millrace", str(tmp_path / "state")) for part in SERVICES[service]["command"]]
        return [sys.executable, "-m", "pipeline.cli", *given]

    for _ in range(2):  # made again, as after a restart, it changes nothing
        subprocess.run(command("kafka-topics"), env=environ, cwd=tmp_path, check=True)
    with subprocess.Popen(command("worker"), env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        said = iter(worker.stdout.readline, "")
        assert any("Worker is running" in line for line in said)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS) == 0


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
        until(lambda: is_healthy(port), lambda: logs(tmp_path))
        listed = subprocess.run(
            [sys.executable, "-m", "airflow", "dags", "list", "--output", "json"],
            env=environ,
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        found = {dag["dag_id"] for dag in json.loads(listed.stdout[listed.stdout.index("[{") :])}
        assert found == {
            *("delays__run", "delays__backfill", "delays__release", "delays__quality"),
            *("word-count__backfill", "word-count__release"),
        }
        anonymous = urllib.request.Request(f"http://127.0.0.1:{port}/api/v2/dags")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(anonymous)  # noqa: S310 - on this machine
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            try:
                process.wait(30)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def airflow_environment(directory: Path, postgres: int, port: int) -> dict[str, str]:
    """The environment of Airflow's services, with this machine's places for those of the containers."""
    kept = directory / "secrets"
    kept.mkdir()
    for name in COMPOSE["secrets"]:
        made = subprocess.run(["sh", "-c", SECRET], check=True, capture_output=True, text=True).stdout
        (kept / name).write_text(PASSWORD if name == "airflow-db-password" else made)
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
        "MILLRACE_CONFIG": str(ROOT / "streams.toml"),
        "SECRETS_DIRECTORY": str(kept),
        "AIRFLOW_DB_HOST": f"127.0.0.1:{postgres}",
        "AIRFLOW_HOME": str(directory),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=10) as answer:
            states = json.load(answer)
    except OSError:
        return False
    return {state["status"] for state in states.values()} == {"healthy"}


def until(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.5)


def logs(directory: Path) -> str:
    return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in directory.glob("*.log"))


@pytest.fixture
def postgres(new_port: Callable[[], int]) -> Iterator[int]:
    """The port of a PostgreSQL with an empty database for Airflow, which takes passwords only."""
    port = new_port()
    with running_postgres(port, "airflow", PASSWORD):
        address = ["-h", "127.0.0.1", "-p", str(port), "-U", "airflow", "postgres"]
        create = [binary("psql"), *address, "-c", "create database airflow"]
        subprocess.run(create, env={**os.environ, "PGPASSWORD": PASSWORD}, check=True, capture_output=True)
        yield port
