"""`riverrun broker` finds its port in the project's file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from riverrun.cli.broker import local_port
from riverrun.config import ProjectConfig
from riverrun.kafka.embedded import broker
from riverrun.kafka.embedded.broker import EmbeddedBroker, cpu_seconds
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECT = '[kafka]\n"bootstrap.servers" = "{}"\n'


@pytest.mark.parametrize("server", ["127.0.0.1:29095", "localhost:29095"])
def test_the_embedded_broker_is_where_the_project_looks_for_one(server: str) -> None:
    project = ProjectConfig.read(Path("streams.toml"), {"kafka": {"bootstrap.servers": server}}, {})
    assert local_port(project) == 29095


@pytest.mark.parametrize("servers", ["kafka.example.org:9092", "127.0.0.1:9092,127.0.0.1:9094"])
def test_brokers_elsewhere_are_not_the_embedded_one(
    servers: str, tmp_path: Path, riverrun_here: Callable[..., tuple[int, str]]
) -> None:
    (tmp_path / "streams.toml").write_text(PROJECT.format(servers))
    code, shown = riverrun_here("--home", "home", "broker", "status")
    assert code == 1
    assert f"the project's brokers are at {servers}" in shown
    assert "Broker is not running" in riverrun_here("--home", "home", "broker", "status", "--port", "29095")[1]


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
