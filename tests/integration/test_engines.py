"""Both engines of bounded runs, Spark and this process: equal topics, commits, state, figures and errors."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopicPartition,
)
from riverrun.errors import ProcessingError, StreamsError, TaskMigratedError
from riverrun.hosting.ownership import transactional_id
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import TransactionalProducer
from riverrun.records import TaskId
from riverrun.runtime.times import OffsetMetadata
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.options import RunOptions
from riverrun.spark.ranges import resolve
from riverrun.spark.runs import RunLog
from riverrun.spark.session import SessionOnDemand
from tests.conformance.hosts import on_executor
from tests.presence import present
from tests.spark_sessions import own_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.application import Application
    from riverrun.spark.bounded_runs.job import RunSummary
    from tests.brokers import Broker

    Build = Callable[[StreamsBuilder], Topology]

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ENGINES = ("local", "spark")
MINUTE = timedelta(minutes=1)
STRINGS: Consumed[str, str] = Consumed(STRING, STRING)


def repartitioned(name: str, engine: str) -> Build:
    """A stream joined with a table, counted by another key in windows without grace: some records are late."""

    def build(builder: StreamsBuilder) -> Topology:
        names = builder.table(f"{name}.names", STRINGS)
        words = builder.stream(f"{name}.words", STRINGS).left_join(names, lambda word, found: f"{word} {found}")
        counts = (
            words.group_by(lambda _k, v: v, Grouped(STRING, STRING))
            .windowed_by(TimeWindows.of_size_with_no_grace(MINUTE))
            .count(Materialized(name="counts"))
        )
        counts.to_stream().select_key(lambda k, _v: k.key).to(f"{name}.{engine}", Produced(STRING, LONG))
        return builder.build()

    return build


def asking(name: str, engine: str) -> Build:
    """A join by foreign key, whose two sub-topologies write to each other."""

    def build(builder: StreamsBuilder) -> Topology:
        words, names = builder.table(f"{name}.words", STRINGS), builder.table(f"{name}.names", STRINGS)
        joined = words.left_join(
            names, lambda word, found: f"{word} {found}", foreign_key_extractor=lambda word: f"k{len(word)}"
        )
        joined.to_stream().to(f"{name}.{engine}", Produced(STRING, STRING))
        return builder.build()

    return build


def waiting(name: str, engine: str) -> Build:
    """Two streams joined in windows, and counts that are suppressed until their windows close."""

    def build(builder: StreamsBuilder) -> Topology:
        words, names = builder.stream(f"{name}.words", STRINGS), builder.stream(f"{name}.names", STRINGS)
        windows = JoinWindows.of(timedelta(seconds=20), grace=timedelta(seconds=5))
        words.left_join(names, lambda word, found: f"{word} {found}", windows).to(
            f"{name}.{engine}", Produced(STRING, STRING)
        )
        counts = words.group_by_key(Grouped(STRING, STRING)).windowed_by(TimeWindows.of(MINUTE, grace=MINUTE)).count()
        final = counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_stream()
        final.map(lambda k, v: (k.key, f"final {v}")).to(f"{name}.{engine}", Produced(STRING, STRING))
        return builder.build()

    return build


def picky(name: str, engine: str) -> Build:
    """Sums of texts, of which some are no numbers."""

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{name}.words", STRINGS).map_values(lambda word: int(word.removeprefix("w")))
        sums = words.group_by(lambda _k, v: str(v % 3), Grouped(STRING, LONG)).reduce(
            lambda one, other: one + other, Materialized(STRING, LONG, name="sums")
        )
        sums.to_stream().to(f"{name}.{engine}", Produced(STRING, LONG))
        return builder.build()

    return build


@dataclass(frozen=True)
class Host:
    """An application of an engine's own."""

    broker: Broker
    name: str
    engine: str
    state: Path
    build: Build
    app: Application

    def run(self, end: str = "latest", **options: Any) -> RunSummary:
        connected = self.broker.connected(self.app)
        spark = own_session() if self.engine == "spark" else no_spark
        return run(connected, resolve(connected, "committed", end), spark, on_executor(self.build), **options)

    def written(self) -> list[Any]:
        """The records of all topics that it writes, with names that are not those of the engine."""
        admin = self.broker.admin()
        internal = [topic for topic in admin.list_topics(f"{self.app.id}-") if "-changelog" in topic]
        topics = {f"{self.name}.{self.engine}": "out"} | {topic: topic.removeprefix(self.app.id) for topic in internal}
        found = {}
        for topic, known in topics.items():
            found[known] = [(r.key, r.value, r.timestamp, r.headers) for r in self.broker.read(topic)]
        assert any(found.values())
        return sorted(found.items())

    def committed(self) -> dict[str, tuple[int, OffsetMetadata]]:
        """The committed offsets and times of all inputs, without the ids of topics, which are not alike."""
        connected = self.broker.connected(self.app)
        return {
            str(tp).replace(self.app.id, "app"): (
                found.offset,
                replace(OffsetMetadata.decode(found.metadata), topics={}),
            )
            for tp, found in connected.committed().items()
        }


def host(broker: Broker, name: str, engine: str, state: Path, build: Build, **streams: Any) -> Host:
    broker.create(2, f"{name}.{engine}")
    topology = build(StreamsBuilder())
    app = broker.application(f"{name}-{engine}", topology, state / engine, bounded_engine=engine, **streams)
    return Host(broker, name, engine, state, build, app)


def no_spark() -> Any:
    pytest.fail("Spark was started")


def figures(summary: RunSummary) -> Any:
    """Everything but durations, the engine, and the names of its topics."""
    tasks = [
        (replace(task, restore_ms=0, compute_ms=0, published={}, forgotten={}), sorted(task.published.values()))
        for task in summary.tasks
    ]
    return replace(summary, tasks=(), engine=None), tasks


def write_inputs(broker: Broker, name: str, *, start: int = 0) -> None:
    """Words, every seventh of which is a minute and a half late; and names that change."""
    if not start:
        broker.create(2, f"{name}.words", f"{name}.names")
    broker.write(f"{name}.names", [(b"k%d" % n, b"n%d" % (start + n), 1 + 1000 * (start + n)) for n in range(6)])
    times = [max(1, 1000 * n - (90_000 if n % 7 == 0 else 0)) for n in range(start, start + 200)]
    broker.write(f"{name}.words", [(b"k%d" % (n % 9), b"w%d" % (n % 12), time) for n, time in enumerate(times, start)])


@pytest.mark.parametrize("topology", [repartitioned, asking, waiting], ids=lambda each: each.__name__)
def test_both_engines_write_commit_and_report_the_same(
    broker: Broker, unique: str, tmp_path: Path, topology: Callable[[str, str], Build]
) -> None:
    found: dict[str, list[Any]] = {engine: [] for engine in ENGINES}
    hosts = [host(broker, unique, engine, tmp_path, topology(unique, engine)) for engine in ENGINES]
    for start in (0, 200):  # the second time with the state that the first run has left
        write_inputs(broker, unique, start=start)
        for each in hosts:
            until = "1970-01-01T00:08:20Z" if start else None
            summary = each.run(options=RunOptions(until, max_records_per_slice=100))
            assert str(summary).endswith(f"engine: {each.engine} (as chosen)")
            found[each.engine].append((figures(summary), each.written(), each.committed()))
    assert found["local"] == found["spark"]
    (first, _), _, _ = found["local"][0]
    assert first.processed >= 206
    if topology is repartitioned:
        assert first.dropped


def test_records_that_handlers_drop_are_dropped_by_both_engines(broker: Broker, unique: str, tmp_path: Path) -> None:
    write_inputs(broker, unique)
    broker.write(f"{unique}.words", [(b"k1", b"none", 250_000), (b"k2", b"w1", 250_000)])
    dropped = []
    for engine in ENGINES:
        letters = f"{unique}.letters-{engine}"
        broker.create(1, letters)
        settings = {"processing_exception_handler": "continue", "errors_dead_letter_queue_topic_name": letters}
        each = host(broker, unique, engine, tmp_path, picky(unique, engine), **settings)
        summary = each.run()
        dropped.append((figures(summary), each.written(), each.committed(), [r.value for r in broker.read(letters)]))
    assert dropped[0] == dropped[1]
    assert sum(dropped[0][0][0].dropped.values()) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_that_fails_for_good_leaves_the_work_of_the_others(
    broker: Broker, unique: str, tmp_path: Path, engine: str
) -> None:
    broker.create(2, f"{unique}.words")
    for number in range(2):
        broker.write(f"{unique}.words", [(b"k", b"none" if number == 0 else b"w1", 1 + n) for n in range(3)], number)
    each = host(broker, unique, engine, tmp_path, picky(unique, engine))
    with pytest.raises(ProcessingError, match="invalid literal for int") as failed:
        each.run()
    assert "Traceback" not in str(failed.value)
    assert failed.value.hint is not None
    good = TopicPartition(f"{unique}.words", 1)
    committed = broker.connected(each.app).committed()
    assert {tp: found.offset for tp, found in committed.items() if tp.topic == good.topic} == {good: 3}
    (recorded,) = RunLog(broker.admin()).runs(each.app.config.name)
    assert (recorded.state, recorded.engine, recorded.engine_reason) == ("failed", engine, "as chosen")
    assert "invalid literal for int" in present(recorded.error)


def rival(kafka: dict[str, str], name: str, seen: Path, times: int) -> Callable[[str, str], None]:
    """Takes the task over in the middle of the first attempts, as another attempt of it would."""

    def take_over(_key: str, value: str) -> None:
        count = len(seen.read_text()) if seen.exists() else 0
        if value == "rival" and count < times:
            seen.write_text("x" * (count + 1))
            producer = TransactionalProducer(Kafka(kafka), transactional_id(name, TaskId(0, 0)))
            producer.init()
            producer.close()

    return take_over


def rivalled(name: str, engine: str, take_over: Callable[[str, str], None]) -> Build:
    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{name}.words", STRINGS).peek(take_over)
        counts = words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
        counts.to_stream().to(f"{name}.{engine}", Produced(STRING, LONG))
        return builder.build()

    return build


@pytest.mark.parametrize("engine", ENGINES)
def test_an_attempt_that_loses_its_task_is_followed_by_another(
    broker: Broker, unique: str, tmp_path: Path, engine: str
) -> None:
    broker.create(1, f"{unique}.words")
    broker.write(f"{unique}.words", [(b"k", b"w", 1), (b"k", b"rival", 2), (b"k", b"w", 3)])
    take_over = rival(broker.kafka, f"{unique}-{engine}-v1", tmp_path / "seen", 3)
    each = host(broker, unique, engine, tmp_path, rivalled(unique, engine, take_over))
    summary = each.run()
    assert (tmp_path / "seen").read_text() == "xxx"
    assert (summary.processed, [task.commits for task in summary.tasks]) == (3, [1])
    assert [LONG.deserialize(present(r.value)) for r in broker.read(f"{unique}.{engine}")] == [3]


def test_a_master_without_retries_gives_a_task_one_attempt(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(1, f"{unique}.words")
    broker.write(f"{unique}.words", [(b"k", b"rival", 2)])
    take_over = rival(broker.kafka, f"{unique}-local-v1", tmp_path / "seen", 1)
    each = host(broker, unique, "local", tmp_path, rivalled(unique, "local", take_over))
    connected = broker.connected(each.app)
    with pytest.raises(TaskMigratedError) as lost:
        run(connected, resolve(connected), SessionOnDemand(no_spark, "local[2]", 1), on_executor(each.build))
    assert isinstance(lost.value, StreamsError)
    assert each.run().processed == 1


KILLED = """
import os, pathlib, signal

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, Repartitioned

def die(key, word):
    if word == "w2" and not pathlib.Path("died").exists():
        pathlib.Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)

def build(builder):
    words = builder.stream("{name}.words", Consumed(STRING, STRING)).select_key(lambda k, v: v)
    words = words.repartition(Repartitioned(STRING, STRING)).peek(die)
    counts = words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().to("{name}.out", Produced(STRING, LONG))
    return builder.build()
"""


@pytest.mark.parametrize("then", ENGINES)
def test_a_run_killed_in_the_middle_is_finished_by_either_engine(
    broker: Broker, unique: str, tmp_path: Path, then: str
) -> None:
    broker.create(2, f"{unique}.words", f"{unique}.out")
    broker.write(f"{unique}.words", [(b"k%d" % n, b"w%d" % (n % 3), 1 + n) for n in range(30)])
    (tmp_path / "killed.py").write_text(KILLED.format(name=unique))
    (tmp_path / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n[apps.{unique}]\ntopology = "killed:build"\n'
    )
    command = [sys.executable, "-m", "riverrun.cli", "run", unique, "--engine"]
    killed = subprocess.run([*command, "local"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ended = subprocess.run([*command, then], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert f"engine: {then} (as chosen)" in ended.stdout
    counts: dict[bytes, list[int]] = {}
    for record in broker.read(f"{unique}.out"):
        counts.setdefault(present(record.key), []).append(LONG.deserialize(present(record.value)))
    assert {key: found[-1] for key, found in counts.items()} == {b"w0": 10, b"w1": 10, b"w2": 10}
    states = [recorded.state for recorded in RunLog(broker.admin()).runs(unique)]
    assert states[0] == "done"


WITHOUT_SPARK = """
import sys

from riverrun.project.riverrun import Riverrun

summary = Riverrun("streams.toml").app({name!r}).run()
assert summary.engine.name == "local", summary
unwanted = {{"pyspark", "py4j", "pandas", "pyarrow", "numpy", "cloudpickle"}} & sys.modules.keys()
print(summary.processed, sorted(unwanted))
"""


def test_a_small_run_loads_no_spark_by_itself(broker: Broker, unique: str, tmp_path: Path) -> None:
    broker.create(2, f"{unique}.words", f"{unique}.out")
    broker.write(f"{unique}.words", [(b"k", b"w", 1)])
    (tmp_path / "killed.py").write_text(KILLED.format(name=unique))
    (tmp_path / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n[apps.{unique}]\ntopology = "killed:build"\n'
    )
    command = [sys.executable, "-c", WITHOUT_SPARK.format(name=unique)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "2 []\n"), ended.stderr
