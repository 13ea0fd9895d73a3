"""The demo's story in a terminal: live, bounded, reprocessed, gated, switched, rolled back, and checked.

Every step uses the commands that users have. The demo can be repeated at any time, also after an interruption: it first
deletes the application's earlier results. The input data is loaded once.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress
from rich.table import Table

from riverrun.apps.delays import FLIGHTS
from riverrun.demo.data import compare, expected, load, published, reset
from riverrun.errors import ProcessingError
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.kafka.admin import Admin
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from riverrun.apps.delays import Stats
    from riverrun.config import ProjectConfig
    from riverrun.demo.data import Key
    from riverrun.kafka.embedded.broker import EmbeddedBroker

APP = "delays"
_SHOWN_ROWS = 5
_LOOK_SECONDS = 0.1
_STOP_SECONDS = 60.0
_LOG_LINES = 30


@dataclass(frozen=True)
class Story:
    """The demo, with the objects that its steps share.

    Args:
        project: The project with the application `delays`.
        config: Path of `streams.toml`.
        broker: The embedded broker.
        environ: Environment of the commands that it starts.
        scratch: Directory of Airflow's database and of its log.
        console: Shows the story.
        days: Number of days of flights to load; None for the whole year.
    """

    project: ProjectConfig
    config: Path
    broker: EmbeddedBroker
    environ: Mapping[str, str]
    scratch: Path
    console: Console
    days: int | None = None

    def tell(self) -> bool:
        """Run all steps.

        Returns:
            Whether every check passed.

        Raises:
            ProcessingError: If a command failed.
        """
        begun = time.monotonic()
        self._set_the_scene()
        self._live_for_half()
        self._bounded_run()
        v1 = published(self._admin)
        self._query(v1)
        held = self._check("v1")
        with self._at_work():
            self._release()
            v2 = published(self._admin)
            self._changed(v1, v2)
            held &= self._check("v2")
            self._rollback()
            held &= self._check("v1")
        minutes = (time.monotonic() - begun) / 60
        verdict = "[bold green]Everything agrees" if held else "[bold red]Something differs"
        self.console.print(f"\n{verdict}[/], after {minutes:.1f} minutes. {len(v1)} keys were compared three times.")
        return held

    def _set_the_scene(self) -> None:
        self._say("A broker on this machine, and real flights of 2013")
        with self.console.status("Starting Kafka (the first time downloads it)"):
            status = self.broker.start()
        self.console.print(f"Apache Kafka runs at {status.bootstrap_servers}")
        with self.console.status("Writing flights, planes, airlines, airports and weather to Kafka"):
            load(self._admin, self._written, days=self.days)
            app = self.project.app(APP)
            reset(self._admin, app, self.project.state_directory(app))

    def _written(self, topic: str, records: int) -> None:
        self.console.print(f"  {topic}: {records} records")

    def _live_for_half(self) -> None:
        self._say("Live: a worker processes half of the flights, then stops")
        ends = self._admin.end_offsets(self._flights())
        worker = subprocess.Popen(
            self._riverrun("worker", APP), env=dict(self.environ), stdout=subprocess.PIPE, text=True
        )
        with Progress(console=self.console, transient=True) as bar:
            task = bar.add_task("flights", total=sum(ends.values()) // 2)
            while worker.poll() is None and not bar.finished:
                bar.update(task, completed=sum(self._committed().values()))
                time.sleep(_LOOK_SECONDS)
        worker.send_signal(signal.SIGTERM)
        told, _ = worker.communicate(timeout=_STOP_SECONDS)
        if worker.returncode:
            message = f"The worker ended with exit code {worker.returncode}"
            raise ProcessingError(message)
        self.console.print(told.strip().splitlines()[-1])
        self.console.print(f"Committed: {_vector(self._committed())}, of {sum(ends.values())} flights")

    def _bounded_run(self) -> None:
        self._say("Bounded: Airflow runs the rest on Spark, from where the worker stopped")
        self._airflow("db", "migrate")
        self._airflow("dags", "test", f"{APP}__run")
        for summary in re.findall(r"\d+ records processed, dropped: \{.*?\}", self._airflow_log.read_text()):
            self.console.print(summary, highlight=False)
        self.console.print(f"Committed: {_vector(self._committed())}")

    def _query(self, table: Mapping[Key, Stats]) -> None:
        self._say("The result: the hours with the most late flights")
        shown = Table("from", "airline", "hour (UTC)", "flights", "late", "minutes of delay")
        for key, stats in sorted(table.items(), key=lambda entry: -entry[1].late)[:_SHOWN_ROWS]:
            shown.add_row(*_words(key), str(stats.flights), str(stats.late), str(stats.delay_minutes))
        self.console.print(shown)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Run a worker of version 1 in the background."""
        self._say("A worker of version 1 continues: it runs during all following steps")
        self.scratch.mkdir(parents=True, exist_ok=True)
        with self._worker_log.open("w") as log, self.console.status("Starting the worker"):
            command = self._riverrun("worker", APP)
            worker = subprocess.Popen(command, env=dict(self.environ), stdout=log, stderr=subprocess.STDOUT)
            while worker.poll() is None and "Worker is running" not in self._worker_log.read_text():
                time.sleep(_LOOK_SECONDS)
        self.console.print("It runs")
        try:
            yield
            worker.send_signal(signal.SIGTERM)
            if worker.wait(_STOP_SECONDS):
                message = f"The worker ended with exit code {worker.returncode}"
                raise ProcessingError(message, hint=f"Its log is in {self._worker_log}.")
        finally:
            worker.kill()
            worker.wait()

    def _release(self) -> None:
        self._say("Version 1 counts cancelled flights as on time. Airflow releases v2 without stopping anything")
        self.console.print("plan, reprocess from the start into fresh state, gate by Great Expectations, cut")
        self._airflow("dags", "test", f"{APP}__release")
        release = ReleaseRegistry.at(self._admin).read(APP, self.project.app(APP).version)
        if release.verdict is not None:
            for name, outcome in release.verdict.outcomes.items():
                self.console.print(f"  {name}: {outcome}", highlight=False)
        self.console.print(f"{release.live} is live; {release.corrections} corrections were published")
        self.console.print(
            f"Publication paused for {release.pause_ms / 1000:.1f} s, the worker now writes to staging topics"
        )

    def _changed(self, before: Mapping[Key, Stats], after: Mapping[Key, Stats]) -> None:
        changed = [key for key in after if before.get(key) != after[key]]
        columns = "flights v1", "flights v2", "cancelled v1", "cancelled v2"
        shown = Table("from", "airline", "hour (UTC)", *columns)
        for key in sorted(changed, key=lambda key: -after[key].cancelled)[:_SHOWN_ROWS]:
            old, new = before[key], after[key]
            shown.add_row(*_words(key), *map(str, (old.flights, new.flights, old.cancelled, new.cancelled)))
        self.console.print(f"{len(changed)} rows of {len(after)} changed, these most:")
        self.console.print(shown)

    def _rollback(self) -> None:
        self._say("Rollback: the worker has kept the previous version up to date")
        with self.console.status("Rolling back"):
            done = subprocess.run(
                self._riverrun("release", "rollback", APP),
                env=dict(self.environ),
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise ProcessingError(done.stderr.strip() or done.stdout.strip())
        self.console.print(done.stdout.strip().splitlines()[0])

    def _check(self, version: str) -> bool:
        with self.console.status(f"Recomputing {version} with pandas from the original data"):
            wanted = expected(cancelled_count_as_on_time=version == "v1", days=self.days)
            comparison = compare(published(self._admin), wanted)
        verdict = "[green]all equal[/]" if comparison.is_equal else f"[red]different[/], as {comparison.differing}"
        self.console.print(f"Checked against pandas, {version}: {comparison.compared} keys, {verdict}")
        return comparison.is_equal

    @cached_property
    def _admin(self) -> Admin:
        return Admin(self.project.kafka)

    def _say(self, title: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{title}", align="left")

    def _flights(self) -> list[TopicPartition]:
        count = self._admin.partitions([FLIGHTS])[FLIGHTS]
        return [TopicPartition(FLIGHTS, number) for number in range(count)]

    def _committed(self) -> dict[TopicPartition, int]:
        app = self.project.app(APP)
        found = self._admin.committed(app.application_id(app.version), self._flights())
        return {tp: committed.offset for tp, committed in found.items()}

    def _riverrun(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "riverrun.cli", "--config", str(self.config), *arguments]

    @property
    def _worker_log(self) -> Path:
        return self.scratch / "worker.log"

    @property
    def _airflow_log(self) -> Path:
        return self.scratch / "airflow.log"

    def _airflow(self, *arguments: str) -> None:
        """Run a command of Airflow, with its output in a file.

        Raises:
            ProcessingError: If the command failed; with the end of that file.
        """
        settings = {
            "AIRFLOW_HOME": str(self.scratch / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.config.resolve().parent / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "RIVERRUN_CONFIG": str(self.config.resolve()),
        }
        self.scratch.mkdir(parents=True, exist_ok=True)
        command = [str(Path(sys.executable).with_name("airflow")), *arguments]
        with self._airflow_log.open("w") as log, self.console.status(f"airflow {' '.join(arguments)}"):
            done = subprocess.run(
                command, env={**self.environ, **settings}, stdout=log, stderr=subprocess.STDOUT, check=False
            )
        if done.returncode:
            tail = "\n".join(self._airflow_log.read_text().splitlines()[-_LOG_LINES:])
            message = f"airflow {' '.join(arguments)} ended with exit code {done.returncode}\n{tail}"
            raise ProcessingError(message, hint=f"The full output is in {self._airflow_log}.")


@contextmanager
def running(broker: EmbeddedBroker) -> Iterator[None]:
    """Restore the broker's state at the end: stop it if it was not running."""
    was_running = broker.status().is_running
    try:
        yield
    finally:
        if not was_running:
            broker.stop()


def _vector(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{tp}@{offset}" for tp, offset in sorted(offsets.items()))


def _words(key: Key) -> tuple[str, str, str]:
    origin, _, airline = key[0].partition(" ")
    return origin, airline, datetime.fromtimestamp(key[1] / 1000, UTC).strftime("%Y-%m-%d %H:%M")
