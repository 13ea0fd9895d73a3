"""An application run from Python: workers, bounded runs, queries and releases by `Riverrun`, on a real broker and Spark."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient

from riverrun import (
    LONG,
    STRING,
    Consumed,
    KeyTimers,
    Materialized,
    Processor,
    Produced,
    Record,
    Riverrun,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.errors import (
    BrokerError,
    ConfigError,
    InvalidStateStoreError,
    ProcessingError,
    StreamsError,
    TopicError,
    UnderWayError,
)
from riverrun.hosting.release import ReleaseStep
from riverrun.spark.session import spark_session
from riverrun.windows import Window, Windowed
from riverrun.worker.states import WorkerState
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from riverrun import Topology
    from riverrun.project.app import App
    from tests.brokers import Broker

pytestmark = pytest.mark.broker

_ROOT = Path(__file__).parents[2]
_NOTEBOOK = _ROOT / "docs" / "first_steps.ipynb"
_FILE = re.compile(r"`([\w.]+)`[^\n]*:\n\n```(?:python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Blocks that need a broker; those that say `python` are run in memory."""
_MINUTE = timedelta(minutes=1)
_SECONDS = 120


def topology(unique: str, mark: str = "") -> Callable[[StreamsBuilder], Topology]:
    """Values in capitals, and counts of all kinds; a value `bad` fails."""

    def loud(value: str) -> str:
        if value == "bad":
            message = "no word"
            raise ValueError(message)
        return value.upper() + mark

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        words.map_values(loud).to(f"{unique}.out", Produced(STRING, STRING))
        by_key = words.group_by_key()
        by_key.count(Materialized(STRING, LONG, name="counts"))
        by_key.windowed_by(TimeWindows.of(_MINUTE, grace=_MINUTE)).count(Materialized(STRING, LONG, name="windows"))
        by_key.windowed_by(SessionWindows.of(_MINUTE)).count(Materialized(STRING, LONG, name="sessions"))
        return builder.build()

    return build


@pytest.fixture
def app(broker: Broker, unique: str, tmp_path: Path) -> App:
    """An application that no other process could import, with two partitions."""
    broker.create(2, f"{unique}.in", f"{unique}.out")
    project = Riverrun(kafka=broker.kafka, directory=tmp_path)
    return project.app(
        unique, topology(unique), config={"consumer.session.timeout.ms": 6000, "commit.interval.ms": 100}
    )


def expectations() -> Any:
    """Great Expectations' own."""
    return importlib.import_module("great_expectations.expectations")


def write(broker: Broker, app: App, values: str, start_ms: int = 60_000) -> None:
    """A value each second, with the keys a and d in turns, each of which has a partition of its own."""
    records = [
        (b"ad"[n % 2 : n % 2 + 1], value.encode(), start_ms + n * 1000) for n, value in enumerate(values.split())
    ]
    broker.write(f"{app.name}.in", [record for record in records if record[0] == b"a"], 0)
    broker.write(f"{app.name}.in", [record for record in records if record[0] == b"d"], 1)


def until_done(app: App) -> None:
    until(lambda: {each.lag for each in app.lag()} == {0}, "processed all")


def test_a_worker_runs_in_a_program_and_its_stores_are_read_there(broker: Broker, app: App) -> None:
    write(broker, app, "one two three four five")
    seen: list[tuple[WorkerState, WorkerState]] = []
    worker = app.worker(threads=2)
    worker.set_state_listener(lambda new, old: seen.append((new, old)))
    assert worker.state is WorkerState.CREATED
    with worker:
        worker.wait_for(timeout_s=_SECONDS)
        until_done(app)
        counts = worker.stores["counts"]
        assert (counts["a"], counts.get("d"), counts.get("c"), counts.get("c", 0)) == (3, 2, None, 0)
        with pytest.raises(KeyError):
            counts["c"]
        assert sorted(counts.all()) == [("a", 3, 64_000), ("d", 2, 63_000)]
        assert [entry.key for entry in counts.range("d")] == ["d"]
        assert list(worker.stores) == ["counts", "sessions", "windows"]
        window = Windowed("a", Window(60_000, 120_000))
        assert list(worker.store("windows").fetch("a")) == [(window, 3, 64_000)]
        assert [entry.key for entry in worker.store("windows").fetch(time_from=60_001)] == []
        session = Windowed("d", Window(61_000, 63_000))
        assert [(entry.key, entry.value) for entry in worker.store("sessions").fetch("d")] == [(session, 2)]
        with pytest.raises(InvalidStateStoreError, match="has no store 'none'") as refused:
            worker.store("none")
        assert "counts, sessions, windows" in (refused.value.hint or "")
        with pytest.raises(InvalidStateStoreError):
            counts.fetch("a").__next__()
    assert worker.wait().processed == 5
    assert [new for new, _ in seen][-2:] == [WorkerState.PENDING_SHUTDOWN, WorkerState.NOT_RUNNING]
    assert all(old is before for (_, old), (before, _) in zip(seen[1:], seen[:-1], strict=True))


def test_a_worker_is_paused_scaled_and_cleaned_up_as_kafka_streams_is(broker: Broker, app: App) -> None:
    write(broker, app, "one two three four five")
    with app.worker() as worker:
        worker.wait_for(timeout_s=_SECONDS)
        until_done(app)
        with pytest.raises(StreamsError, match="was started before it is started"):
            worker.start()
        with pytest.raises(StreamsError, match="its state is in use"):
            worker.clean_up()
        with pytest.raises(TimeoutError):
            worker.wait(0)
        worker.pause()
        until(lambda: worker.status().paused, "paused")
        worker.resume()
        worker.scale(2)
        until(lambda: worker.status().threads == 2, "was scaled")
    assert app.state.directories()
    worker.clean_up()
    assert app.state.directories() == []


class Reminding(Processor[str, str, str, str]):
    """Forwards a key at the time that its value says."""

    def init(self, context: Any) -> None:
        self.context = context
        self.timers = KeyTimers(context, "reminders", STRING, self.remind)

    def process(self, record: Record[str, str]) -> None:
        self.timers.set(record.key, int(record.value))

    def remind(self, key: str, at_ms: int) -> None:
        self.context.forward(Record(key, "due", at_ms))


def test_timers_of_keys_outlive_the_worker_that_has_set_them(broker: Broker, unique: str, tmp_path: Path) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        builder.add_state_store(KeyTimers.store("reminders"))
        stream = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        stream.process(Reminding, "reminders").to(f"{unique}.out", Produced(STRING, STRING))
        return builder.build()

    broker.create(1, f"{unique}.in", f"{unique}.out")
    app = Riverrun(kafka=broker.kafka, directory=tmp_path).app(unique, build)
    broker.write(f"{unique}.in", [(b"a", b"70", 0), (b"b", b"50", 1)])
    assert app.catch_up().processed == 2
    assert broker.read(f"{unique}.out") == []
    broker.write(f"{unique}.in", [(b"c", b"500", 100)])
    assert app.catch_up(state_dir=tmp_path / "another").processed == 1
    assert [(record.key, record.timestamp) for record in broker.read(f"{unique}.out")] == [(b"b", 50), (b"a", 70)]


def test_two_workers_of_a_program_share_the_tasks_and_know_of_each_other(
    broker: Broker, app: App, tmp_path: Path
) -> None:
    write(broker, app, "one two three")
    first = app.worker(server="127.0.0.1:0", state_dir=tmp_path / "first")
    second = app.worker(server="127.0.0.1:0", state_dir=tmp_path / "second")
    with first, second:
        until(lambda: len(first.metadata()) == len(second.metadata()) == 2, "gave both a task")
        for worker in (first, second):
            worker.wait_for(timeout_s=_SECONDS)
        until_done(app)
        places = {key: first.query_metadata_for_key("counts", key).active for key in ("a", "d")}
        assert sorted(places.values()) == sorted([first.server, second.server])
        for worker in (first, second):
            (here,) = (key for key, server in places.items() if server == worker.server)
            (elsewhere,) = places.keys() - {here}
            assert [entry.key for entry in worker.stores["counts"].all()] == [here]
            with pytest.raises(InvalidStateStoreError, match=places[elsewhere]):
                worker.stores["counts"].get(elsewhere)
        status = app.status(first.server)
        assert len(status.members) == 2
        assert status.instance is not None
        assert status.instance["server"] == first.server
        with pytest.raises(UnderWayError):
            app.catch_up(state_dir=tmp_path / "third")


def test_an_error_of_a_worker_is_raised_where_somebody_waits(broker: Broker, app: App) -> None:
    write(broker, app, "one bad two")
    worker = app.worker()
    with pytest.raises(ProcessingError, match="no word"), worker:
        worker.wait_for(WorkerState.NOT_RUNNING, _SECONDS)
    assert worker.state is WorkerState.ERROR
    assert worker.close()
    errors: list[StreamsError] = []

    def handler(error: StreamsError) -> str:
        errors.append(error)
        return "replace_thread" if len(errors) < 3 else "shutdown_client"

    again = app.worker()
    again.set_uncaught_exception_handler(handler)
    again.start()
    with pytest.raises(ProcessingError, match="no word"):
        again.wait(_SECONDS)
    assert [type(error) for error in errors] == [ProcessingError] * 3


def test_what_is_wrong_is_said_when_it_is_asked_for(broker: Broker, app: App, tmp_path: Path) -> None:
    project = Riverrun(kafka=broker.kafka, directory=tmp_path)
    with pytest.raises(ConfigError, match="has no application 'clicks'"):
        project.app("clicks")
    with pytest.raises(ConfigError, match="is not a function"):
        project.app("clicks", 5)  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="cannot be sent to other processes: TypeError: cannot pickle"):
        project.app("clicks", lambda builder: builder.build(optimization=str(lock)))
    words = StreamsBuilder()
    words.stream("words", Consumed(STRING, STRING)).filter(lambda _key, _value: lock.locked())
    with pytest.raises(ConfigError, match="ReadyTopology cannot be sent to other processes: TypeError: cannot pickle"):
        project.app("clicks", words.build())
    with pytest.raises(ConfigError, match="threads is 0, and must be a whole number of at least 1"):
        app.worker(threads=0)
    with pytest.raises(ConfigError, match="has no version 'v9'"):
        app.release("v9")
    missing = project.app("missing", topology("missing"))
    with pytest.raises(TopicError, match=r"missing\.in"), missing.worker() as worker:
        worker.wait(_SECONDS)
    nowhere = Riverrun(kafka={"bootstrap.servers": "127.0.0.1:1"}, directory=tmp_path)
    with pytest.raises(BrokerError, match=r"127\.0\.0\.1:1"):
        nowhere.app("clicks", topology("clicks")).status()


_SCRIPT = """
import gc, json, logging, os, signal, sys
from riverrun import LONG, STRING, Consumed, Materialized, Produced, Riverrun, StreamsBuilder

SIGN = "!"

def loud(value):
    return value.upper() + SIGN

def build(builder):
    words = builder.stream("NAME.in", Consumed(STRING, STRING))
    words.map_values(loud).to("NAME.out", Produced(STRING, STRING))
    words.group_by_key().count(Materialized(STRING, LONG, name="counts"))
    return builder.build()

def everything():
    levels = {name: logging.getLogger(name).level for name in ["", *logging.root.manager.loggerDict]}
    handlers = [len(logging.root.handlers), len(logging.root.filters)]
    signals = [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    return [handlers, signals, gc.get_threshold(), gc.get_freeze_count(), os.fstat(1).st_ino, os.fstat(2).st_ino], levels

before, levels = everything()
app = Riverrun(kafka={"bootstrap.servers": sys.argv[1]}).app("NAME", build(StreamsBuilder()))
with app.worker() as worker:
    worker.wait_for(timeout_s=120)
    while sum(each.lag for each in app.lag()):
        worker.status()
    counted = worker.stores["counts"]["a"]
run = app.run()
after, further = everything()
changed = {name: level for name, level in levels.items() if further[name] != level}
print(json.dumps([counted, run.processed, before, after, changed]))
"""


@pytest.mark.spark
def test_a_script_without_a_guard_runs_its_own_functions_and_stays_as_it_was(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"a", b"one", 1000), (b"a", b"two", 2000)], 0)
    script = tmp_path / "start.py"
    script.write_text(_SCRIPT.replace("NAME", unique))
    command = [sys.executable, str(script), broker.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert not done.returncode, done.stderr
    counted, processed, before, after, changed = json.loads(done.stdout)
    assert (counted, processed, after, changed) == (2, 0, before, {})
    assert [record.value for record in broker.read(f"{unique}.out")] == [b"ONE!", b"TWO!"]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return spark_session()


@pytest.mark.spark
def test_a_bounded_run_a_release_and_the_way_back_are_steps_in_a_row(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    broker.create(2, f"{unique}.in", f"{unique}.out")
    project = Riverrun(kafka=broker.kafka, directory=tmp_path, spark=spark, by="ann@desk")
    app = project.app(
        unique,
        topology(unique),
        quality=lambda: [expectations().ExpectTableRowCountToBeBetween(min_value=2, max_value=2, severity="critical")],
        versions={"v2": topology(unique, "!")(StreamsBuilder())},
        outputs={f"{unique}.out": "table"},
    )
    write(broker, app, "one two three four")
    assert {topic: frame.count() for topic, frame in app.dry_run().items()} == {f"{unique}.out": 4}
    seen: list[tuple[int, int]] = []
    first = app.runs.bounded("earliest", f"{unique}.in-0@1,{unique}.in-1@1")
    assert first.plan().range.size == 2
    assert first.run(on_progress=lambda done, everything: seen.append((done, everything)), every_s=0.01).processed == 2
    assert {everything for _, everything in seen} <= {2}
    assert app.run(progress=True).processed == 2
    assert [record.by for record in app.runs.history()] == ["ann@desk", "ann@desk"]
    assert {(row.key, row.value) for row in app.state.frame("counts").collect()} == {("a", 2), ("d", 2)}
    assert app.state.export("counts", str(tmp_path / "counts")) == 2

    assert not app.checks.run().verdict.critical
    release = app.release("v2").reprocess().gate()
    assert release.status.step is ReleaseStep.GATED
    release.cut()
    assert app.version == "v2"
    latest = {record.key: record.value for record in broker.read(f"{unique}.out")}
    assert latest == {b"a": b"THREE!", b"d": b"FOUR!"}
    assert app.release().rollback().status.live == "v1"
    assert {record.key: record.value for record in broker.read(f"{unique}.out")} == {b"a": b"THREE", b"d": b"FOUR"}
    assert app.catch_up().processed == 0


def named(unique: str, text: str) -> str:
    """A text of a page, with the names of a test."""
    return re.sub(r'"click(s|-counts)"', rf'"{unique}\1"', text).replace("[apps.clicks", f"[apps.{unique}s")


def make_project_of_the_quick_start(broker: Broker, unique: str, directory: Path) -> None:
    """Write the files that the quick start shows, and a record for its application."""
    broker.create(2, f"{unique}s", f"{unique}-counts")
    broker.write(f"{unique}s", [(b"ann", b'{"page": "/"}', 1000)])
    for name, content in _FILE.findall((_ROOT / "docs/tutorials/quick-start.md").read_text()):
        (directory / name).write_text(named(unique, content).replace("127.0.0.1:19092", broker.bootstrap_servers))


_LOGGED = """
[kafka]
"bootstrap.servers" = "{servers}"
[logging.formatters.own]
format = "%(process)d %(name)s %(levelname)s %(message)s"
[logging.handlers.file]
class = "logging.FileHandler"
formatter = "own"
filename = "{file}"
[logging.loggers.shop]
level = "INFO"
[logging.root]
handlers = ["file"]
"""


@pytest.mark.spark
def test_functions_log_as_the_project_says_in_workers_and_on_spark(
    broker: Broker, unique: str, tmp_path: Path, spark: SparkSession
) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{unique}.in", Consumed(STRING, STRING))
        words.peek(lambda _key, word: logging.getLogger("shop").info("saw %s", word)).to(f"{unique}.out")
        return builder.build()

    broker.create(1, f"{unique}.in", f"{unique}.out")
    broker.write(f"{unique}.in", [(b"a", b"one", 1000)])
    (tmp_path / "streams.toml").write_text(_LOGGED.format(servers=broker.bootstrap_servers, file=tmp_path / "log"))
    before = list(logging.getLogger().handlers)
    app = Riverrun(tmp_path / "streams.toml", spark=spark).app(unique, build)
    assert app.dry_run()[f"{unique}.out"].count() == 1
    assert app.run().processed == 1
    broker.write(f"{unique}.in", [(b"a", b"two", 2000)])
    with app.worker():
        until(lambda: "saw two" in (tmp_path / "log").read_text(), "logged")
    said = ("one", "one", "two")  # of the dry run, the run and the worker
    lines = [line.split(" ", 1) for line in (tmp_path / "log").read_text().splitlines()]
    assert [text for _, text in lines if text.startswith("shop")] == [f"shop INFO saw {word}" for word in said]
    assert str(os.getpid()) not in {process for process, _ in lines}
    assert logging.getLogger().handlers == before


@pytest.mark.spark
@pytest.mark.parametrize("page", ["docs/tutorials/quick-start.md", "docs/python.md"])
def test_what_a_page_does_in_python_works(page: str, broker: Broker, unique: str, tmp_path: Path) -> None:
    make_project_of_the_quick_start(broker, unique, tmp_path)
    with (tmp_path / "streams.toml").open("a") as project:
        project.write(f'\n[apps.{unique}s.versions]\nv2 = "my_module:build"\n')
    for block in _PROGRAM.findall((_ROOT / page).read_text()):
        done = subprocess.run(
            [sys.executable, "-c", named(unique, block)], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert not done.returncode, done.stderr
    checked = subprocess.run(
        [sys.executable, "-m", "riverrun.cli", "check", f"{unique}s", "--json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(checked.stdout)["outcomes"] == {f"{unique}-counts: it has rows": "passed: 1"}


_ASKED = """
import time
from fastapi.testclient import TestClient

with TestClient(web) as client:
    began = time.monotonic()
    while (found := client.get("/clicks/ann")).text != '{"0":1}' and time.monotonic() < began + 120:
        time.sleep(0.1)
    print(found.text)
"""


def test_a_web_application_answers_from_its_worker_as_the_page_says(
    broker: Broker, unique: str, tmp_path: Path
) -> None:
    make_project_of_the_quick_start(broker, unique, tmp_path)
    program, script = _PROGRAM.findall((_ROOT / "docs/how-to/asyncio.md").read_text())
    for code in program + _ASKED, script:
        done = subprocess.run(
            [sys.executable, "-c", named(unique, code)], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert not done.returncode, done.stderr
        assert done.stdout == '{"0":1}\n'


@pytest.mark.spark
def test_the_notebook_of_the_documentation_runs(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    notebook = nbformat.read(_NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    assert [output.text for output in shown if output.output_type == "stream" and output.name == "stderr"] == []
    texts = [output["data"]["text/plain"] for output in shown if output.output_type == "execute_result"]
    assert "{'ann': 3, 'bob': 2}" in texts
    assert texts[-1].endswith("('v2', 'live')")
