"""The services of `docker/compose.yaml`, run as processes: their own commands and environments, on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cryptography.fernet import Fernet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
AIRFLOW = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
SECONDS = 300.0

pytestmark = pytest.mark.airflow


def test_each_volume_secret_and_dependency_of_a_service_is_declared() -> None:
    for name, service in SERVICES.items():
        mounted = [volume.partition(":")[0] for volume in service.get("volumes", ()) if ":" in volume]
        assert {volume for volume in mounted if not volume.startswith(".")} <= COMPOSE["volumes"].keys(), name
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys(), name
        for needed in service.get("depends_on", ()):
            missing = set(service["profiles"]) - set(SERVICES[needed]["profiles"])
            assert not missing, f"{name} needs {needed}, which {missing} do not start"


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
        assert found == {"millrace_delays_cut", "millrace_delays_release", "millrace_delays_run"}
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
        value = Fernet.generate_key().decode() if name == "fernet-key" else secrets.token_hex(32)
        (kept / name).write_text("pass@word:/%" if name == "airflow-db-password" else value)
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


def _binary(name: str) -> str:
    found = [shutil.which(name), *sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))]
    return next((path for path in found if path is not None), "")


@pytest.fixture
def postgres(new_port: Callable[[], int]) -> Iterator[int]:
    """The port of a PostgreSQL with an empty database for Airflow, which takes passwords only."""
    if not _binary("postgres"):
        pytest.skip("there is no PostgreSQL here (Debian: postgresql)")
    owner = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    directory, port = Path(tempfile.mkdtemp(prefix="millrace-airflow-")), new_port()
    (directory / "password").write_text("pass@word:/%")
    if owner is not None:
        for path in (directory, directory / "password"):
            os.chown(path, pwd.getpwnam(owner).pw_uid, -1)
    data = f"{directory}/data"
    make = [_binary("initdb"), "-D", data, "-A", "scram-sha-256", "-U", "airflow", "--no-sync"]
    subprocess.run(
        [*make, f"--pwfile={directory}/password"], user=owner, cwd=directory, check=True, capture_output=True
    )
    start = [_binary("postgres"), "-D", data, "-p", str(port), "-k", str(directory), "-h", "127.0.0.1", "-F"]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(start, user=owner, cwd=directory, stdout=log, stderr=log)
    environ = {**os.environ, "PGPASSWORD": "pass@word:/%"}
    create = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "airflow", "postgres", "-c", "create database airflow"]
    until(
        lambda: subprocess.run(create, env=environ, check=False, capture_output=True).returncode == 0,
        (directory / "log").read_text,
    )
    yield port
    server.terminate()
    server.wait(60)
    shutil.rmtree(directory)
