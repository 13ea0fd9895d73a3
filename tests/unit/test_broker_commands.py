"""`riverrun broker` finds its port in the project's file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.cli.broker import local_port
from riverrun.config import ProjectConfig
from riverrun.kafka.embedded import broker
from riverrun.kafka.embedded.broker import EmbeddedBroker, cpu_seconds
from tests.waiting import until

PROJECT = '[kafka]\n"bootstrap.servers" = "{}"\n'


def status(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "riverrun.cli", "--home", str(directory / "home"), "broker", "status", *options]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=directory, env=os.environ | {"COLUMNS": "200"}
    )


@pytest.mark.parametrize("server", ["127.0.0.1:29095", "localhost:29095"])
def test_the_embedded_broker_is_where_the_project_looks_for_one(server: str) -> None:
    project = ProjectConfig.read(Path("streams.toml"), {"kafka": {"bootstrap.servers": server}}, {})
    assert local_port(project) == 29095


@pytest.mark.parametrize("servers", ["kafka.example.org:9092", "127.0.0.1:9092,127.0.0.1:9094"])
def test_brokers_elsewhere_are_not_the_embedded_one(servers: str, tmp_path: Path) -> None:
    (tmp_path / "streams.toml").write_text(PROJECT.format(servers))
    done = status(tmp_path)
    assert done.returncode == 1
    assert f"the project's brokers are at {servers}" in done.stderr
    assert "Broker is not running" in status(tmp_path, "--port", "29095").stdout


@pytest.mark.parametrize(("computed", "waits"), [([0.0], 1), ([20.0, 40.0, 41.0], 3), ([11.0, 11.0], 2), ([9.0], 1)])
def test_a_broker_is_awaited_as_long_as_it_recovers(
    computed: list[float], waits: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps: list[str] = []
    times = iter(computed)
    monkeypatch.setattr(broker, "_START_SECONDS", 0.2)
    monkeypatch.setattr(broker, "cpu_seconds", lambda _pid: next(times))
    EmbeddedBroker(tmp_path, tmp_path, port=1)._wait_for_answer(lambda: False, steps.append)
    assert len(steps) == waits - 1
    assert list(times) == []


def test_the_time_that_a_process_has_computed_is_known() -> None:
    # Linux counts whole seconds.
    until(lambda: cpu_seconds(os.getpid()) > 0, "computed for a second", turn=lambda: sum(range(1_000_000)))
    assert cpu_seconds(2**30) == 0
