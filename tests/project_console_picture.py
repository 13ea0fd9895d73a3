"""Makes the picture of a project's console: `python -m tests.project_console_picture docs/pictures/project-console.png`."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from riverrun.console.api import new_api
from riverrun.console.looking import ProjectWatch
from riverrun.console.shown import change_object, instance_object, lag_object, release_object, run_object
from riverrun.hosting.gated import GateVerdict
from riverrun.hosting.inputs import InputLag
from riverrun.hosting.release import Release, ReleaseChange, ReleaseStep
from riverrun.project.graph import Member, ProjectGraph, Read, ReaderKind, Write
from riverrun.project.graph_pictures import as_picture
from riverrun.records import TopicPartition
from riverrun.releases.rows import DifferentRow
from riverrun.service.admission import Access
from riverrun.service.instance import bound, serving
from riverrun.spark.runs import RunRecord
from riverrun.topology.svg import svg
from tests.browsers import chromium

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = 1_767_261_600_000
MINUTE = 60_000
POINTS = 25
SIZE = (1280, 1800)
STEPS = (("none", "planned"), ("planned", "reprocessed"), ("reprocessed", "gated"))
BY = "ann@laptop"


def runs() -> list[RunRecord]:
    """Two applications that run every six hours and every day, with one failure and one run under way."""
    found = [RunRecord("now", "orders", "v1", "airflow@scheduler", NOW - 9 * MINUTE, "", "running")]
    for number in range(28):
        began, took = NOW - (number * 360 + 20) * MINUTE, (38 + (number * 17) % 40) * MINUTE
        state, error = ("failed", "BrokerError: no broker answers") if number == 9 else ("done", None)
        read = 120_000 + (number * 7919) % 50_000
        run = RunRecord(
            f"c{number}", "clicks", "v1", "airflow@scheduler", began, "", state, began + took, 4, read, error=error
        )
        found.append(run)
    for number in range(1, 7):
        began = NOW - number * 1440 * MINUTE
        took = (150 + (number * 31) % 60) * MINUTE
        found.append(
            RunRecord(f"o{number}", "orders", "v1", "airflow@scheduler", began, "", "done", began + took, 12, 900_000)
        )
    return sorted(found, key=lambda run: -run.started_ms)


def version(app: str, name: str, lag: int, servers: Sequence[str], *, live: bool) -> dict[str, Any]:
    """A version with its instances."""
    status = {
        "state": "running",
        "paused": False,
        "threads": 2,
        "active": ["0_0", "0_1", "1_0"],
        "standby": {"0_2": 0},
        "restoring": {},
        "waiting": {},
        "processed": 4_812_330,
        "recovery_s": 1.9,
    }
    inputs = [
        InputLag(TopicPartition(app, n), is_internal=False, committed=9000, start=0, end=9000 + lag // 2)
        for n in range(2)
    ]
    group = {"group": "stable" if servers else "empty", "members": 2 * len(servers), "scheme": "http"}
    known = {"version": name, "id": f"{app}-{name}", "live": live, "error": None}
    return known | group | {"instances": [instance_object(each, status) for each in servers]} | lag_object(inputs)


def application(
    release: Release, versions: Sequence[dict[str, Any]], changes: Sequence[ReleaseChange] = ()
) -> dict[str, Any]:
    """An application."""
    known = {"name": release.app, "schedule": "@daily", "error": None, "versions": list(versions)}
    return known | {"release": release_object(release), "history": [change_object(each) for each in changes]}


def project() -> dict[str, Any]:
    """Three applications: one is being released, one runs bounded only, one is live only."""
    outcomes = {
        "page-counts: counts are not negative": "passed",
        "page-counts: few rows change": "warning: 3 of 1,204 rows",
    }
    verdict = GateVerdict(
        "7d31c0aa", "clicks-0@9000,clicks-1@9000", "s", outcomes=outcomes, warnings=("few rows change",)
    )
    release = Release("clicks", "v1", ReleaseStep.GATED, "v2", verdict=verdict, revision=3)
    changes = [
        ReleaseChange("clicks", n + 1, BY, NOW - (90 - 30 * n) * MINUTE, "0.1.0", before, step, "v1", "v2")
        for n, (before, step) in enumerate(STEPS)
    ]
    clicks = [
        version("clicks", "v1", 348, ["worker-1:8090", "worker-2:8090"], live=True),
        version("clicks", "v2", 912, ["worker-3:8090"], live=False),
    ]
    return {
        "at": NOW,
        "seen_at": NOW,
        "project": "shop",
        "brokers": "127.0.0.1:19092",
        "error": None,
        "apps": [
            application(release, clicks, changes[::-1]),
            application(Release("orders", "v1"), [version("orders", "v1", 48_210, [], live=True)]),
            application(Release("sessions", "v3"), [version("sessions", "v3", 0, ["worker-1:8091"], live=True)]),
        ],
        "runs": [run_object(run) for run in runs()],
        "graph": "clicks v1, orders v1, sessions v3",
    }


def differences(app: str, limit: int) -> Sequence[DifferentRow]:  # noqa: ARG001 - as it is called
    """Three rows."""
    window = {"window_start": "10:00", "window_end": "10:05"}
    return [
        DifferentRow("page-counts", "changed", {"key": "/cart", **window}, {"": 41}, {"": 40}),
        DifferentRow("page-counts", "new", {"key": "/help", **window}, {}, {"": 3}),
        DifferentRow("page-counts", "gone", {"key": "/health", **window}, {"": 300}, {}),
    ]


def between() -> dict[str, Any]:
    """Return the graph of the three applications."""
    clicks, orders, sessions = (
        Member(name, version=v) for name, v in (("clicks", "v1"), ("orders", "v1"), ("sessions", "v3"))
    )
    reads = (
        Read(clicks, "clicks", ReaderKind.STREAM),
        Read(sessions, "clicks", ReaderKind.STREAM),
        Read(orders, "sessions", ReaderKind.TABLE),
    )
    writes = Write(clicks, "page-counts"), Write(sessions, "sessions"), Write(orders, "orders-by-visit")
    picture = svg(as_picture(ProjectGraph((clicks, sessions, orders), reads, writes)), "Topics between applications")
    return {"name": "clicks v1, orders v1, sessions v3", "picture": picture, "surprising": [], "unknown": []}


class Looks:
    """Each look comes a moment later, and sees another lag and further commits."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> dict[str, Any]:
        """Look."""
        self._count += 1
        found = project()
        clicks, _, sessions = (app["versions"][0] for app in found["apps"])
        clicks["lag"] = 200 + (self._count * 53) % 190
        clicks["committed"] = 21_000 * self._count + (self._count * 37) % 1900
        sessions["committed"] = 4_100 * self._count
        return found | {"at": NOW + 5_000 * self._count}


def main(path: Path) -> None:
    """Make the picture.

    Args:
        path: Where it goes.
    """
    with (
        closing(ProjectWatch(Looks(), 1.0)) as watch,
        bound("127.0.0.1:0", wants_token=False) as listener,
        chromium() as page,
    ):
        name = f"127.0.0.1:{listener.getsockname()[1]}"
        api = new_api(watch, differences, between, Access(server=name))
        with serving(api, listener, None, api.state.events.end):
            page.set_window_size(*SIZE)
            page.get(f"http://{name}/")
            wait = WebDriverWait(page, 120)
            drawn = "return document.querySelector('.chart path')?.getAttribute('d')?.split(/[ML]/).length ?? 0"
            wait.until(lambda _: page.execute_script(drawn) >= POINTS)
            page.find_element(By.ID, "compare").click()
            wait.until(lambda _: "3 rows differ" in page.find_element(By.ID, "compared").text)
            page.execute_script("scrollTo(0, 0)")
            page.save_screenshot(str(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
