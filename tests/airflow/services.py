"""Airflow's servers on a real PostgreSQL, as processes that may be killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.postgresql import running_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("api-server", "scheduler", "dag-processor", "triggerer")
USERS = {"ann": "viewer", "bob": "op", "cy": "admin"}
SECONDS = 240.0
_ENDED = {"success", "failed"}


class Services:
    """All servers of an Airflow, and users that ask it.

    Args:
        directory: Its home.
        environ: The environment of its servers.
        port: Where its API server listens.
    """

    def __init__(self, directory: Path, environ: dict[str, str], port: int) -> None:
        self.directory, self.environ, self.port = directory, environ, port
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens: dict[str, str] = {}

    def start(self, server: str) -> None:
        """Start a server."""
        options = ["--port", str(self.port), "--workers", "1"] if server == "api-server" else []
        with (self.directory / f"{server}.log").open("ab") as log:
            command = [sys.executable, "-m", "airflow", server, *options]
            self._running[server] = subprocess.Popen(
                command, env=self.environ, cwd=self.directory, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, server: str) -> None:
        """Kill a server at once, with the tasks that it runs and their Spark."""
        process = self._running.pop(server)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if server == "scheduler":
            for found in self.sparks():
                with suppress(ProcessLookupError):
                    if os.getsid(found) == process.pid:  # drivers apart have a session of their own
                        os.kill(found, signal.SIGKILL)

    def end(self) -> None:
        """End all servers."""
        for process in self._running.values():
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)

    def kill_spark(self) -> None:
        """Wait until Spark works for a task, and kill it."""
        self.until(lambda: bool(self.sparks()), "Spark works")
        for found in self.sparks():
            with suppress(ProcessLookupError):
                os.kill(found, signal.SIGKILL)

    def sparks(self) -> list[int]:
        """Processes of Java in which Spark works for tasks."""
        return self._processes(b"org.apache.spark")

    def drivers(self) -> list[int]:
        """Processes of drivers that tasks wait for."""
        return self._processes(b"riverrun_airflow.drivers")

    def _processes(self, command: bytes) -> list[int]:
        ours = f"AIRFLOW_HOME={self.directory}".encode()
        found = [each for each in Path("/proc").glob("[0-9]*") if ours in _read(each / "environ").split(b"\0")]
        return [int(each.name) for each in found if command in _read(each / "cmdline")]

    def ask(self, user: str, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        """Ask as a user; nobody is anonymous."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        if user:
            request.add_header("Authorization", f"Bearer {self.token(user)}")
        if content is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(content).encode()
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - here
                code, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read()
        try:
            return code, json.loads(text)
        except ValueError:
            return code, text.decode(errors="replace")

    def token(self, user: str) -> str:
        """The credentials that a user shows."""
        if user not in self._tokens:
            login = {"username": user, "password": user}
            code, found = self.ask("", "POST", "/auth/token", login)
            assert code == 201, found
            self._tokens[user] = found["access_token"]
        return self._tokens[user]

    def done(self, path: str, method: str = "GET", content: Any = None) -> Any:
        """Ask the API with the rights of an administrator."""
        code, found = self.ask("cy", method, f"/api/v2{path}", content)
        failure = f"{method} {path}: {code} {found}"
        if code >= 500:
            raise OSError(failure)
        assert code < 300, failure
        return found

    def unpause(self, dag: str) -> None:
        """Let a DAG's runs start."""
        self.done(f"/dags/{dag}", "PATCH", {"is_paused": False})

    def pause(self, dag: str) -> None:
        """Let no further run of a DAG start."""
        self.done(f"/dags/{dag}", "PATCH", {"is_paused": True})

    def trigger(self, dag: str, **conf: Any) -> str:
        """Begin a run, and return its id."""
        self.unpause(dag)
        run: str = self.done(f"/dags/{dag}/dagRuns", "POST", {"logical_date": None, "conf": conf})["dag_run_id"]
        return run

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Runs of a DAG."""
        found: list[dict[str, Any]] = self.done(f"/dags/{dag}/dagRuns")["dag_runs"]
        return found

    def tasks(self, dag: str, run: str) -> dict[str, tuple[str, int]]:
        """State and number of attempts of each task of a run."""
        found = self.done(f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {task["task_id"]: (task["state"], task["try_number"]) for task in found}

    def log(self, dag: str, run: str, task: str, attempt: int = 1) -> str:
        """The log of an attempt of a task, as the interface shows it."""
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{attempt}?full_content=true"
        return json.dumps(self.done(path), ensure_ascii=False)

    def import_errors(self) -> str:
        """The errors shown of DAG files that cannot be read."""
        return "\n".join(error["stack_trace"] for error in self.done("/importErrors")["import_errors"])

    def kill_task(self, dag: str, run: str, task: str) -> None:
        """Kill the process of a task alone, unless it has just ended."""
        self.await_task(dag, run, task, "running", "success")
        process = self.done(f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}")["pid"]
        if b"airflow worker" in _read(Path(f"/proc/{process}/cmdline")):
            os.kill(process, signal.SIGKILL)

    def clear(self, dag: str, run: str, task: str) -> None:
        """Let a task that has ended be done again."""
        only = {"dag_run_id": run, "task_ids": [task], "only_failed": False, "dry_run": False}
        self.done(f"/dags/{dag}/clearTaskInstances", "POST", only)

    def await_task(self, dag: str, run: str, task: str, *states: str) -> None:
        """Wait until a task stands at one of some states."""

        def stands() -> bool:
            has_ended = self.state(dag, run) in _ENDED
            found = self.tasks(dag, run)
            if found.get(task, ("", 0))[0] in states:
                return True
            assert not has_ended, f"{run} of {dag} has ended, and {task} is not {states}: {found}\n{self.logs()}"
            return False

        self.until(stands, f"{task} of {dag} is {states}")

    def await_run(self, dag: str, run: str) -> str:
        """Wait until a run has ended, and return how."""
        self.until(lambda: self.state(dag, run) in _ENDED, f"{run} of {dag} has ended")
        return self.state(dag, run)

    def state(self, dag: str, run: str) -> str:
        """The state of a run."""
        state: str = self.done(f"/dags/{dag}/dagRuns/{run}")["state"]
        return state

    def until(self, condition: Callable[[], bool], awaited: str) -> None:
        """Wait until a condition holds. Servers that do not answer are asked again.

        Args:
            condition: The condition.
            awaited: It in words, for the message when it does not hold in time.
        """
        deadline, problem = time.monotonic() + SECONDS, ""
        while True:
            try:
                if condition():
                    return
                problem = ""
            except OSError as error:
                problem = f" ({error!r})"
            ended = [server for server, process in self._running.items() if process.poll() is not None]
            assert not ended, f"{ended} ended, while waiting until {awaited}{problem}\n{self.logs()}"
            assert time.monotonic() < deadline, f"not in {SECONDS:.0f} s: {awaited}{problem}\n{self.logs()}"
            time.sleep(0.3)

    def logs(self) -> str:
        """The ends of all logs, those written last at the end."""
        found = sorted(self.directory.rglob("*.log"), key=lambda log: log.stat().st_mtime)
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in found)

    def answers(self) -> bool:
        """Whether the API server answers."""
        return self.ask("", "GET", "/api/v2/version")[0] == 200

    def is_healthy(self) -> bool:
        """Whether all servers say that they live."""
        code, states = self.ask("", "GET", "/api/v2/monitor/health")
        return code == 200 and {state["status"] for state in states.values()} == {"healthy"}


def _read(file: Path) -> bytes:
    """Read a file about a process; it is empty if the process has ended."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


@contextmanager
def running_services(directory: Path, postgres: int, port: int, environ: dict[str, str]) -> Iterator[Services]:
    """Run an Airflow with a scheduler, a triggerer, a DAG processor and an API server.

    Args:
        directory: Its home; DAG files are in `dags` below it.
        postgres: A free port.
        port: Another one.
        environ: Variables of its servers.
    """
    (directory / "passwords").write_text(json.dumps({user: user for user in USERS}))
    with running_postgres(postgres, "airflow"):
        database = f"127.0.0.1:{postgres}/postgres"
        settings = {
            "AIRFLOW_HOME": str(directory),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
            "AIRFLOW__API__SECRET_KEY": "of this test",
            "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789012345678901234567890123456789012345678901234567890123",
            "AIRFLOW__CORE__DAGS_FOLDER": str(directory / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(directory / "passwords"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in USERS.items()),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://airflow@{database}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg://airflow@{database}",
            "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "2",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "8",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "3",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
            # By default, a task fails once the API server has not answered for 5 s a few times: a busy machine takes longer.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        }
        services = Services(directory, {**os.environ, **settings, **environ}, port)
        migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
        subprocess.run(migrate, env=services.environ, cwd=directory, check=True, capture_output=True)
        try:
            for server in SERVERS:
                services.start(server)
            services.until(services.is_healthy, "all servers are healthy")
            yield services
        finally:
            services.end()
