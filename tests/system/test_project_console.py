"""`riverrun console` over a project whose workers run on a real broker, and whose runs and releases are recorded there."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.release import Release, ReleaseStep
from riverrun.spark.runs import DONE, RunLog, RunRecord
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.groups import Group

pytestmark = pytest.mark.broker

SETTINGS = """
"server.token" = "the workers' own token"
[apps.{name}.versions]
v2 = "{name}_app:build_fold"
[console]
"server.read.token" = "for the page, to read"
"""
SHOWN = {"Authorization": "Bearer for the page, to read"}
OF_WORKERS = {"Authorization": "Bearer the workers' own token"}


def started(project: Path, group: Group) -> tuple[subprocess.Popen[str], str]:
    """A console, and where it answers."""
    command = [sys.executable, "-m", "riverrun.cli", "--config", str(project), "console", "--server", "127.0.0.1:0"]
    console = subprocess.Popen(command, cwd=group.directory, env=group.environ, stdout=subprocess.PIPE, text=True)
    assert console.stdout is not None
    line = console.stdout.readline()
    assert line.startswith("Answers at http://127.0.0.1:")
    return console, line.split()[-1]


def check_answers(address: str, app: str, graph: str) -> None:
    """The picture has the live version, and a candidate that has processed nothing cannot be compared."""
    found = httpx.get(f"{address}graph", headers=SHOWN, timeout=DEADLINE_S).json()
    assert graph == found["name"] == f"{app} v1"
    assert f">{app} v1</text>" in found["picture"]
    refused = httpx.get(f"{address}apps/{app}/difference", headers=SHOWN, timeout=DEADLINE_S)
    assert refused.status_code == 409, refused.text


def test_one_page_shows_workers_lag_runs_and_releases_of_a_project(group: Group) -> None:
    settings = SETTINGS.format(name=group.name)
    group.start("--server", "127.0.0.1:0", settings=settings)
    group.write(100)
    admin = group.broker.admin()
    RunLog(admin)._put(RunRecord("r1", group.name, "v1", "ann", 1_000, "orders-0@0..7", DONE, 2_000, records_in=7))
    ReleaseRegistry.at(admin, "bob").write(Release(group.name, "v1", ReleaseStep.PLANNED, "v2"))
    console, address = started(group.directory / "0.toml", group)
    try:
        assert httpx.get(f"{address}status", timeout=DEADLINE_S).status_code == 401

        def seen() -> dict[str, Any]:
            found: dict[str, Any] = httpx.get(f"{address}status", headers=SHOWN, timeout=DEADLINE_S).json()
            return found

        def is_settled() -> bool:
            state = seen()
            if not state["at"] or not state["apps"][0]["versions"]:
                return False
            live = state["apps"][0]["versions"][0]
            states = [each["state"] for each in live.get("instances", [])]
            return (live["group"], states, live.get("lag")) == ("stable", ["running"], 0)

        def has_kept() -> bool:
            past = httpx.get(f"{group.url(0)}/history", headers=OF_WORKERS, timeout=DEADLINE_S).json()
            return {"rate", "lag", "threads/1/process", "threads/1/poll"} <= set(past["series"])

        group.until_done()
        group.until(is_settled, "was seen to run")
        state = seen()
        (app,) = state["apps"]
        live, candidate = app["versions"]
        assert state["error"] is app["error"] is live["error"] is candidate["error"] is None
        assert (live["version"], live["group"], live["members"]) == ("v1", "stable", 1)
        (instance,) = live["instances"]
        assert f"http://{instance['server']}/" == f"{group.url(0)}/", "believed, though no token was sent to it"
        assert (instance["active"], instance["error"]) == (8, None)
        assert (candidate["version"], candidate["members"], candidate["lag"]) == ("v2", 0, 100)
        assert (app["release"]["step"], app["history"][0]["by"]) == ("planned", "bob")
        assert [(run["id"], run["records_in"]) for run in state["runs"]] == [("r1", 7)]
        group.until(has_kept, "kept what its threads did")
        check_answers(address, group.name, state["graph"])
    finally:
        console.terminate()
        assert console.wait(DEADLINE_S) == 0
        assert console.stdout is not None
        console.stdout.close()


def test_a_console_whose_brokers_are_away_says_so(group: Group) -> None:
    project = group.configure()
    project.write_text(project.read_text().replace(group.broker.bootstrap_servers, "127.0.0.1:1"))
    console, address = started(project, group)
    try:

        def error() -> str:
            return str(httpx.get(f"{address}status", timeout=DEADLINE_S).json().get("error", ""))

        group.until(lambda: "nothing listens at 127.0.0.1:1" in error(), "was shown")
        assert httpx.get(address, timeout=DEADLINE_S).status_code == 200
    finally:
        console.terminate()
        assert console.wait(DEADLINE_S) == 0
        assert console.stdout is not None
        console.stdout.close()
