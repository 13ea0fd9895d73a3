"""Makes the picture of the console in the documentation: `python -m tests.console_picture docs/pictures/console.png`."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    StreamsBuilder,
    TimeWindows,
    windowed,
)
from riverrun.config import AppConfig
from riverrun.hosting.application import Application
from riverrun.hosting.process import SystemClock
from riverrun.kafka.door import Kafka
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.layout import Layout, plan_layout
from riverrun.service.api import new_api
from riverrun.service.instance import bound, serving
from riverrun.worker.group.protocol import AssignmentInfo
from riverrun.worker.states import InputProgress, InstanceStatus, LastCommit, TaskFigures, ThreadSeconds, WorkerSummary
from riverrun.worker.stream_thread.protocol import ThreadReport
from tests.browsers import chromium
from tests.unit.service.test_api import FakeInstance
from tests.unit.service.test_console import Topics, record

if TYPE_CHECKING:
    from collections.abc import Mapping

POINTS = 12
SIZE = (1100, 3700)
SERVERS = ("127.0.0.1:8090", "127.0.0.1:8091")
BUSY = {
    "KSTREAM-SOURCE-0000000000": 0.09,
    "by-page": 0.03,
    "by-page-repartition-sink": 0.04,
    "by-page-repartition-source": 0.01,
    "KSTREAM-AGGREGATE-0000000002": 0.22,
    "KSTREAM-SINK-0000000007": 0.02,
}
TASKS = tuple(TaskId(sub, partition) for sub in (0, 1) for partition in range(4))


def clicks(state: Path) -> Application:
    """An application with two sub-topologies, and some local state.

    Args:
        state: Where the state goes.
    """
    five = timedelta(minutes=5)
    builder = StreamsBuilder()
    pages = builder.stream("clicks", Consumed(STRING, JSON)).group_by(
        lambda _key, click: click["page"], Grouped(STRING, JSON, name="by-page")
    )
    counts = pages.windowed_by(TimeWindows.of(five)).count(Materialized(name="per-page"))
    counts.to_stream().to("page-counts", Produced(windowed(STRING, five), LONG))
    application = Application(AppConfig("clicks", "m:f"), "v1", builder.build(), Kafka({}), state)
    for task in (TaskId(1, 0), TaskId(1, 2)):
        (application.directory / str(task)).mkdir(parents=True)
        (application.directory / str(task) / "rows").write_bytes(bytes(3_400_000))
    return application


class Clicks(FakeInstance):
    """Processes between 500 and 800 records per second."""

    turn = 0

    @property
    def layout(self) -> Layout:
        """Four tasks of each sub-topology."""
        return plan_layout(self.application.topology, self.application.id, {"clicks": 4})

    def status(self) -> InstanceStatus:
        """The sum of all work so far."""
        summary = WorkerSummary(self._done(), 0, 10 * self.turn, {})
        return replace(super().status(), summary=summary, holding=None, held_s=None)

    def reports(self) -> Mapping[int, ThreadReport]:
        """A further second's work."""
        self.turn += 1
        done = self._done()
        tasks = {task: self._figures(task, done // 4) for task in self.active}
        parts = {"process": 0.41, "commit": 0.06, "poll": 0.46, "commit_wait": 0.04}
        seconds = ThreadSeconds(self.turn, **{part: self.turn * share for part, share in parts.items()})
        nodes = {node: self.turn * share for node, share in BUSY.items()}
        took = sum((30 + (turn * 31) % 20) / 1000 for turn in range(self.turn))
        summary = WorkerSummary(done, 0, 10 * self.turn, {})
        return {
            1: ThreadReport(
                active=self.active,
                standby=self.standby,
                positions={},
                lags={},
                summary=summary,
                obeyed=1,
                restoring={},
                commit_seconds=(took, 0.05),
                tasks=tasks,
                seconds=seconds,
                nodes=nodes,
            )
        }

    def _done(self) -> int:
        return sum(500 + (turn * 7919) % 300 for turn in range(self.turn))

    def _figures(self, task: TaskId, done: int) -> TaskFigures:
        own = f"{self.application.id}-by-page-repartition"
        topic = own if task.sub_topology else "clicks"
        sent = {f"{self.application.id}-per-page-changelog": done // 3, "page-counts": done // 3}
        lag = 40 + (self.turn * 53) % 90
        last = LastCommit(
            SystemClock().now_ms(), 120 + (self.turn * 37) % 80, sent if task.sub_topology else {own: done}
        )
        inputs = {TopicPartition(topic, task.partition): InputProgress(done, done + lag)}
        busy = 0.12 if task.sub_topology else 0.08
        return TaskFigures(
            done, {}, inputs=inputs, last_commit=last, at_ms=1000 * self.turn, process_s=busy * self.turn
        )


def main(path: Path) -> None:
    """Make the picture.

    Args:
        path: Where it goes.
    """
    with tempfile.TemporaryDirectory() as state:
        take(path, clicks(Path(state)))


def take(path: Path, application: Application) -> None:
    """Make the picture of an application's instance, which shares its tasks with another one."""
    assignment = AssignmentInfo(
        servers={str(task): SERVERS[task.partition % 2] for task in TASKS},
        standby_servers={str(task): [SERVERS[1 - task.partition % 2]] for task in TASKS if task.sub_topology},
    )
    active = frozenset(task for task in TASKS if task.partition % 2 == 0)
    standby = frozenset(task for task in TASKS if task.sub_topology and task not in active)
    instance = Clicks(active=active, standby=standby, server=SERVERS[0], assignment=assignment, application=application)
    api = new_api(
        instance,
        browsed=Topics(
            [record(n, f"user-{n % 3}", {"page": f"/{n % 2}", "ms": 40 + n}) for n in range(6)], value_serde="json"
        ),
    )
    with (
        bound("127.0.0.1:0", wants_token=False) as listener,
        serving(api, listener, None, api.state.events.end),
        chromium() as page,
    ):
        page.set_window_size(*SIZE)
        page.get(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        wait = WebDriverWait(page, 120)
        drawn = "return document.querySelector('.chart path')?.getAttribute('d')?.split(/[ML]/).length ?? 0"
        wait.until(lambda _: page.execute_script(drawn) >= POINTS)
        assert page.find_element(By.ID, "graph").text
        page.find_element(By.CSS_SELECTOR, "#topic-form button").click()
        wait.until(lambda _: "6 records" in page.find_element(By.ID, "topic-found").text)
        page.execute_script("scrollTo(0, 0)")
        page.save_screenshot(str(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
