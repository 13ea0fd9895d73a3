"""The demo's story in a terminal: live, archived, bounded, reprocessed, gated, switched, rolled back, and checked.

Every step uses the commands that users have, and deleting records does what retention does. The demo can be repeated at any
time, even after an interruption: it first deletes the application's earlier results, and loads missing input data.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from riverrun.apps.delays import FLIGHTS
from riverrun.demo.data import Span, compare, expected, load, load_rest, published, reset
from riverrun.demo.steps import Steps, following, progress_of
from riverrun.errors import ProcessingError
from riverrun.hosting.control_topic import ReleaseRegistry
from riverrun.hosting.earlier_records import archived_ranges
from riverrun.kafka.admin import Admin
from riverrun.kafka.door import Kafka
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console
    from rich.progress import TaskID

    from riverrun.apps.delays import Stats
    from riverrun.config import ProjectConfig
    from riverrun.demo.data import Key
    from riverrun.kafka.embedded.broker import EmbeddedBroker

APP = "delays"
_SHOWN_ROWS = 5
_LOOK_SECONDS = 0.1
_STOP_SECONDS = 60.0
_LOG_LINES = 30
_SUMMARY = re.compile(r"\d+ records processed, dropped: \{.*?\}(?:, engine: \w+ \([^)]*\))?")
"""The line of a bounded run in Airflow's log, with its engine."""


@dataclass(frozen=True)
class Story:
    """The demo, with the objects that its steps share.

    Args:
        project: The project with the application `delays`.
        config: Path of `streams.toml`.
        environ: Environment of the commands that it starts.
        scratch: Directory of Airflow's database and of its log.
        steps: The steps before it, with their seconds.
        days: Number of days of flights to load; None for the whole year.
    """

    project: ProjectConfig
    config: Path
    broker: EmbeddedBroker
    environ: Mapping[str, str]
    scratch: Path
    console: Console
    steps: Steps = field(default_factory=Steps)
    days: int | None = None

    def tell(self) -> bool:
        """Run all steps; return whether every check passed."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        # The migration takes a while, so it runs next to the steps that need no Airflow.
        with self._started_airflow("db", "migrate") as migrating:
            try:
                self._set_the_scene()
                self._live()
                self._history()
            except BaseException:
                migrating.terminate()
                raise
            with self.steps.timed("Waiting for Airflow's database"), self.console.status("airflow db migrate"):
                self._ended(migrating, "db", "migrate")
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
        self._tell_the_end(len(v1), held=held)
        return held

    def _tell_the_end(self, keys: int, *, held: bool) -> None:
        self.console.print()
        self.console.rule("[bold]The end", align="left")
        self.console.print(self.steps.table())
        verdict = "[bold green]Everything agrees" if held else "[bold red]Something differs"
        self.console.print(
            f"\n{verdict}[/]. The table of {keys:,} keys was compared with pandas, key by key, three times: version 1 after"
            " the worker and the bounded run, version 2 after its release, version 1 after the rollback. Version 2 was"
            " computed from the first flight on, though the topic had lost most of the first half."
        )

    def _set_the_scene(self) -> None:
        self._say("A broker on this machine, and real flights of 2013")
        with self.steps.timed("Kafka: download, start"), self.console.status("Starting Kafka") as shown:
            status = self.broker.start(shown.update)
        self.console.print(f"Apache Kafka runs at {status.bootstrap_servers}")
        app = self.project.app(APP)
        with self._writing() as written:
            load(self._admin, app, written, days=self.days, until_ms=self._span.middle_ms)
            reset(self._admin, app, self.project.state_directory(app))

    @contextmanager
    def _writing(self) -> Iterator[Callable[[str, int, int], None]]:
        """Yield a function that shows the number of records written to a topic."""
        with self.steps.timed("Writing the data to Kafka"), progress_of(self.console, "records") as bar:
            tasks: dict[str, TaskID] = {}

            def written(topic: str, records: int, of: int) -> None:
                if topic not in tasks:
                    tasks[topic] = bar.add_task(topic, total=of)
                bar.update(tasks[topic], completed=records)
                if records == of:
                    self.console.print(f"  {topic}: {of:,} records")

            yield written

    def _live(self) -> None:
        self._say("Live: a worker processes the first half of the flights, then stops")
        with self.steps.timed("Live: a worker, the first half"):
            half = sum(self._ends().values())
            worker = subprocess.Popen(
                self._riverrun("worker", APP), env=dict(self.environ), stdout=subprocess.PIPE, text=True
            )
            with progress_of(self.console, "flights") as bar:
                task = bar.add_task("Worker", total=half)
                while worker.poll() is None and not bar.finished:
                    bar.update(task, completed=sum(self._committed().values()))
                    time.sleep(_LOOK_SECONDS)
            worker.send_signal(signal.SIGTERM)
            told, _ = worker.communicate(timeout=_STOP_SECONDS)
        if worker.returncode:
            message = f"The worker ended with exit code {worker.returncode}"
            raise ProcessingError(message)
        self.console.print(told.strip().splitlines()[-1])
        self.console.print(f"Committed: {_vector(self._committed())}, {half:,} flights")

    def _history(self) -> None:
        self._say("History: an archive keeps what the topic loses")
        with self.steps.timed("Archiving the first half"), self.console.status("Archiving"):
            self._command("archive", "write", FLIGHTS)
        self._delete_the_first_months()
        self.console.print("The second half of the flights arrives:")
        with self._writing() as written:
            load_rest(self._admin, written, from_ms=self._span.middle_ms, days=self.days)

    def _delete_the_first_months(self) -> None:
        first = self._admin.offsets_for_time(self._flights(), self._span.kept_from_ms)
        self._admin.delete_records(first)
        day = datetime.fromtimestamp(self._span.kept_from_ms / 1000, UTC)
        self.console.print(
            f"{sum(first.values()):,} flights before {day:%Y-%m-%d} are deleted from the topic, as retention does;"
            f" it begins at {_vector(first)}"
        )
        kept = sum(self._ends().values()) - sum(first.values())
        self.console.print(f"It still has {kept:,} flights that are in the archive as well", highlight=False)

    def _bounded_run(self) -> None:
        self._say("Bounded: Airflow has the second half processed, from where the worker stopped")
        with self.steps.timed("Bounded: the second half, with Airflow"):
            self._followed_airflow("Bounded run", self.project.app(APP).version, "dags", "test", f"{APP}__run")
        for summary in _SUMMARY.findall(self._airflow_log.read_text()):
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
        # Its output goes to a file: nobody reads a pipe during the steps, and a full one would block the worker.
        self._say("A worker of version 1 continues: it runs during all following steps")
        starting = self.steps.timed("A worker of version 1 starts")
        with starting, self._worker_log.open("w") as log, self.console.status("Starting the worker"):
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
        self._say("Version 1 counts cancelled flights as on time: Airflow releases version 2")
        self.console.print("plan, reprocess from the start into fresh state, gate by Great Expectations, cut")
        with self.steps.timed("Release of version 2: reprocess, gate, cut"):
            self._followed_airflow("Reprocessing", "v2", "dags", "test", f"{APP}__release")
        release = ReleaseRegistry.at(self._admin).read(APP, self.project.app(APP).version)
        if release.verdict is not None:
            for name, outcome in release.verdict.outcomes.items():
                self.console.print(f"  {name}: {outcome}", highlight=False)
        self._tell_sources("v2")
        self.console.print(f"{release.live} is live; {release.corrections} corrections were published")
        self.console.print(
            f"Publication paused for {release.pause_ms / 1000:.1f} s, the worker now writes to staging topics"
        )

    def _tell_sources(self, version: str) -> None:
        """Show how much of a version's input came from the archive, and how much from the topic."""
        tps, url = self._flights(), self.project.app(APP).streams.archive_url
        archived, starts = archived_ranges(url, self._admin, tps), self._admin.log_starts(tps)
        from_archive = sum(found.size for found in archived.values())
        in_all, lost = sum(self._committed(version).values()), sum(starts.values())
        self.console.print(
            f"{version} has processed {in_all:,} flights, as one log: {from_archive:,} from the archive, of which the topic"
            f" has lost {lost:,}, and {in_all - from_archive:,} from the topic",
            highlight=False,
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
        with self.steps.timed("Rollback"), self.console.status("Rolling back"):
            self._command("release", "rollback", APP)

    def _command(self, *arguments: str) -> None:
        """Run a command, and show the first line of its output."""
        done = subprocess.run(
            self._riverrun(*arguments), env=dict(self.environ), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ProcessingError(done.stderr.strip() or done.stdout.strip())
        self.console.print(done.stdout.strip().splitlines()[0])

    def _check(self, version: str) -> bool:
        recomputing = self.console.status(f"Recomputing {version} with pandas from the original data")
        with self.steps.timed("Three comparisons with pandas"), recomputing:
            wanted = expected(cancelled_count_as_on_time=version == "v1", days=self.days)
            comparison = compare(published(self._admin), wanted)
        verdict = "[green]all equal[/]" if comparison.is_equal else f"[red]different[/], as {comparison.differing}"
        self.console.print(f"Checked against pandas, {version}: {comparison.compared} keys, {verdict}")
        return comparison.is_equal

    @cached_property
    def _admin(self) -> Admin:
        return Admin(Kafka(self.project.kafka))

    @property
    def _span(self) -> Span:
        return Span(self.days)

    def _say(self, title: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{title}", align="left")

    def _flights(self) -> list[TopicPartition]:
        count = self._admin.partitions([FLIGHTS])[FLIGHTS]
        return [TopicPartition(FLIGHTS, number) for number in range(count)]

    def _ends(self) -> Mapping[TopicPartition, int]:
        return self._admin.end_offsets(self._flights())

    def _committed(self, version: str | None = None) -> dict[TopicPartition, int]:
        app = self.project.app(APP)
        found = self._admin.committed(app.application_id(version or app.version), self._flights())
        return {tp: committed.offset for tp, committed in found.items()}

    def _riverrun(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "riverrun.cli", "--config", str(self.config), *arguments]

    @property
    def _worker_log(self) -> Path:
        return self.scratch / "worker.log"

    @property
    def _airflow_log(self) -> Path:
        return self.scratch / "airflow.log"

    def _followed_airflow(self, what: str, version: str, *arguments: str) -> None:
        """Run an Airflow command, and show how many flights a version has processed meanwhile."""
        flights, before = sum(self._ends().values()), sum(self._committed(version).values())

        def done() -> int:
            return sum(self._committed(version).values()) - before

        running = self._started_airflow(*arguments)
        with running, following(self.console, what, flights - before, "flights", done):
            self._ended(running, *arguments)

    def _started_airflow(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start an Airflow command, with its output in a file."""
        settings = {
            "AIRFLOW_HOME": str(self.scratch / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.config.resolve().parent / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "RIVERRUN_CONFIG": str(self.config.resolve()),
        }
        command = [str(Path(sys.executable).with_name("airflow")), *arguments]
        with self._airflow_log.open("w") as log:
            return subprocess.Popen(command, env={**self.environ, **settings}, stdout=log, stderr=subprocess.STDOUT)

    def _ended(self, process: subprocess.Popen[bytes], *arguments: str) -> None:
        """Wait for the end of an Airflow command, and raise if it has failed."""
        if code := process.wait():
            tail = "\n".join(self._airflow_log.read_text().splitlines()[-_LOG_LINES:])
            message = f"airflow {' '.join(arguments)} ended with exit code {code}\n{tail}"
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
