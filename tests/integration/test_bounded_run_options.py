"""A bounded run's record, its moves of event time, and its wall-clock punctuation."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    EmitStrategy,
    Grouped,
    JoinWindows,
    Materialized,
    Processor,
    ProcessorContext,
    Produced,
    PunctuationType,
    Record,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopicPartition,
)
from riverrun.cli.project import INTERRUPTED
from riverrun.errors import DeserializationError, RangeError, TopicError, UnsupportedByHostError
from riverrun.hosting.progress import Progress, reporting_progress
from riverrun.spark.bounded_runs.job import run
from riverrun.spark.options import RunOptions
from riverrun.spark.ranges import resolve
from riverrun.spark.runs import RunLog
from riverrun.transfers.exports import ExportSpec, run_export
from riverrun.transfers.imports import ImportSpec, run_import
from tests.conformance.hosts import SPARK_ON_DEMAND, on_executor
from tests.presence import present
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun import Topology
    from riverrun.hosting.application import Application
    from riverrun.spark.bounded_runs.job import RunSummary
    from tests.brokers import Broker

MINUTE = timedelta(minutes=1)
STRINGS: Consumed[str, str] = Consumed(STRING, STRING)


class Ticking(Processor[str, str]):
    """Says after every slice how many records it has seen."""

    def init(self, context: ProcessorContext) -> None:
        self.context, self.seen = context, 0
        context.schedule(timedelta(hours=1), PunctuationType.WALL_CLOCK_TIME, self.tick)

    def process(self, _record: Record[str, str]) -> None:
        self.seen += 1

    def tick(self, _time_ms: int) -> None:
        self.context.forward(Record("seen", str(self.seen), 1))


def ticking(name: str) -> Callable[[StreamsBuilder], Topology]:
    def build(builder: StreamsBuilder) -> Topology:
        builder.stream(f"{name}.in", STRINGS).process(Ticking).to(f"{name}.out", Produced(STRING, STRING))
        return builder.build()

    return build


def waiting(name: str) -> Callable[[StreamsBuilder], Topology]:
    """Counts below a repartition, forwarded in three ways when time allows; and a join that waits for partners."""

    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{name}.in", STRINGS)
        windows = TimeWindows.of(MINUTE, grace=MINUTE)
        by_word = words.group_by(lambda _k, v: v, Grouped(STRING, STRING))
        suppressed = by_word.windowed_by(windows).count(Materialized(name="counts"))
        suppressed = suppressed.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        suppressed.to_stream().select_key(lambda k, _v: f"suppressed {k.key}").to(f"{name}.out", Produced(STRING, LONG))
        again = words.group_by(lambda _k, v: v, Grouped(STRING, STRING))
        final = (
            again.windowed_by(windows).emit_strategy(EmitStrategy.on_window_close()).count(Materialized(name="final"))
        )
        final.to_stream().select_key(lambda k, _v: f"final {k.key}").to(f"{name}.out", Produced(STRING, LONG))
        other = builder.stream(f"{name}.other", STRINGS)
        joined = words.left_join(
            other, lambda left, right: len(left) if right is None else -1, JoinWindows.of(MINUTE, grace=MINUTE)
        )
        joined.select_key(lambda k, _v: f"alone {k}").to(f"{name}.out", Produced(STRING, LONG))
        return builder.build()

    return build


def held_back(name: str, seen: Path) -> Callable[[StreamsBuilder], Topology]:
    """Ends only when a file is there."""

    def hold(value: str) -> str:
        deadline = time.monotonic() + 120
        while value == "last" and not seen.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return value

    def build(builder: StreamsBuilder) -> Topology:
        builder.stream(f"{name}.in", STRINGS).map_values(hold).to(f"{name}.out", Produced(STRING, STRING))
        return builder.build()

    return build


class Case:
    def __init__(self, broker: Broker, name: str, state: Path) -> None:
        self.broker, self.name, self.state = broker, name, state
        broker.create(2, f"{name}.in", f"{name}.other", f"{name}.out")

    def app(self, build: Callable[[StreamsBuilder], Topology], **streams: Any) -> Application:
        return self.broker.application(self.name, build(StreamsBuilder()), self.state, **streams)

    def run(self, build: Callable[[StreamsBuilder], Topology], streams: Any = None, **options: Any) -> RunSummary:
        app = self.app(build, **(streams or {}))
        return run(
            self.broker.connected(app),
            resolve(self.broker.connected(app)),
            SPARK_ON_DEMAND,
            on_executor(build),
            **options,
        )

    def written(self) -> list[tuple[bytes, bytes]]:
        return sorted((present(r.key), present(r.value)) for r in self.broker.read(f"{self.name}.out"))


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """In memory, but for tests that are marked `broker`."""
    return any_broker


@pytest.fixture
def case(broker: Broker, unique: str, tmp_path: Path) -> Case:
    return Case(broker, unique, tmp_path)


def test_windows_stay_open_at_the_end_of_a_run_until_event_time_is_moved_on(case: Case) -> None:
    case.broker.write(f"{case.name}.in", [(b"k%d" % n, b"w", 1000 * n + 1) for n in range(10)])
    case.run(waiting(case.name))
    assert case.written() == []
    summary = case.run(waiting(case.name), options=RunOptions("1970-01-01T00:03:00Z"))
    ten, one = LONG.serialize(10), LONG.serialize(1)
    alone = [(b"alone k%d" % n, one) for n in range(10)]
    assert case.written() == [*alone, (b"final w", ten), (b"suppressed w", ten)]
    assert summary.processed == 0
    case.run(waiting(case.name), options=RunOptions("1970-01-01T00:03:00Z"))
    assert len(case.written()) == 12


def test_what_follows_the_wall_clock_is_refused_unless_somebody_says_what_to_do(case: Case) -> None:
    case.broker.write(f"{case.name}.in", [(b"a", b"x", 1), (b"b", b"x", 2), (b"c", b"x", 3)], 0)
    with pytest.raises(UnsupportedByHostError, match="schedules punctuations by the wall clock") as refused:
        case.run(ticking(case.name))
    assert "--wall-clock-punctuation=once" in str(refused.value.hint)
    case.run(ticking(case.name), {"bounded_wall_clock_punctuation": "once"})
    assert case.written() == [(b"seen", b"3")]
    case.broker.write(f"{case.name}.in", [(b"d", b"x", 4)], 0)
    case.run(ticking(case.name), {"bounded_wall_clock_punctuation": "never"})
    assert case.written() == [(b"seen", b"3")]


def test_a_run_says_what_it_will_do_and_what_each_task_did_and_is_recorded(case: Case) -> None:
    case.broker.write(f"{case.name}.in", [(b"k%d" % n, b"w%d" % (n % 2), 1000 * n + 1) for n in range(40)])
    plans: list[Any] = []
    summary = case.run(
        waiting(case.name),
        by="somebody",
        on_plan=plans.append,
        options=RunOptions("1970-01-01T00:03:00Z", max_records_per_slice=25),
    )
    (plan,) = plans
    assert len(plan.slices) == summary.slices == 2
    assert [len(level) for level in plan.levels] == [2, 4]
    tasks = {task.task_id: task for task in summary.tasks}
    assert tasks["0_0"].read + tasks["0_1"].read == 40
    assert sum(task.commits for task in summary.tasks) >= 4
    assert sum(sum(task.published.values()) for task in summary.tasks) == len(case.written())
    (recorded,) = RunLog(case.broker.admin()).runs(case.name)
    assert (recorded.by, recorded.state, recorded.version) == ("somebody", "done", "v1")
    assert (recorded.records_in, recorded.records_out) == (40, len(case.written()))
    assert sum(recorded.records_out_by_topic.values()) == recorded.records_out
    assert recorded.range == str(plan.range)
    assert recorded.ended_ms is not None
    assert recorded.ended_ms >= recorded.started_ms


def test_where_nothing_is_to_be_done_no_spark_is_started(case: Case) -> None:
    def no_spark() -> Any:
        pytest.fail("Spark was started")

    app = case.app(waiting(case.name))
    empty = run(
        case.broker.connected(app), resolve(case.broker.connected(app)), no_spark, on_executor(waiting(case.name))
    )
    assert (empty.processed, empty.tasks) == (0, ())
    assert run_export(ExportSpec(f"{case.name}.in", "out", "parquet"), case.broker.admin(), no_spark).batch is None
    with pytest.raises(TopicError, match="writes to do not exist: nowhere"):
        run_import(ImportSpec("nowhere", "in", "parquet"), case.broker.admin(), no_spark)
    case.broker.write(f"{case.name}.in", [(b"a", b"x", 1)])
    case.run(waiting(case.name))
    again = run(
        case.broker.connected(app), resolve(case.broker.connected(app)), no_spark, on_executor(waiting(case.name))
    )
    assert (again.processed, again.tasks) == (0, ())


def test_a_run_that_fails_is_recorded_with_its_reason(case: Case) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        builder.stream(f"{case.name}.in", Consumed(STRING, LONG)).to(f"{case.name}.out", Produced(STRING, LONG))
        return builder.build()

    case.broker.write(f"{case.name}.in", [(b"k", b"no number", 1)])
    with pytest.raises(DeserializationError):
        case.run(build)
    (recorded,) = RunLog(case.broker.admin()).runs(case.name)
    assert recorded.state == "failed"
    assert "cannot be decoded" in str(recorded.error)


def test_lost_input_records_are_passed_over_only_if_the_start_is_named(
    case: Case,
) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        words = builder.stream(f"{case.name}.in", STRINGS).group_by_key(Grouped(STRING, STRING))
        words.count(Materialized(name="counts")).to_stream().to(f"{case.name}.out", Produced(STRING, LONG))
        return builder.build()

    def write(time: int) -> None:
        for number in range(2):
            case.broker.write(f"{case.name}.in", [(b"k%d" % number, b"w", time + n) for n in range(5)], number)

    app, admin = case.app(build), case.broker.admin()
    write(1)
    case.run(build)
    write(60_000)
    first, second = (TopicPartition(f"{case.name}.in", number) for number in range(2))
    admin.delete_records({first: 8, second: 9})
    gone = f"{first}: offsets 5 to 8 .* are gone .*00:01:00.*; {second}: offsets 5 to 9 .* are gone"
    with pytest.raises(RangeError, match=gone) as refused:
        case.run(build)
    assert f"Start at {first}@8,{second}@9." in str(refused.value.hint)
    with pytest.raises(RangeError, match=rf"is at offset 5 of {first}, but this run would process 9\.\.10"):
        run(
            case.broker.connected(app),
            resolve(case.broker.connected(app), f"{first}@9,{second}@9"),
            SPARK_ON_DEMAND,
            on_executor(build),
        )
    run(
        case.broker.connected(app),
        resolve(case.broker.connected(app), f"{first}@8,{second}@9"),
        SPARK_ON_DEMAND,
        on_executor(build),
    )
    counts = {r.key: LONG.deserialize(r.value or b"") for r in case.broker.read(f"{case.name}.out")}
    assert counts == {b"k0": 7, b"k1": 6}


def test_only_what_windows_have_forgotten_is_deleted_from_their_changelog(
    case: Case,
) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        windows = (
            builder.stream(f"{case.name}.in", STRINGS)
            .group_by_key(Grouped(STRING, STRING))
            .windowed_by(TimeWindows.of_size_with_no_grace(MINUTE))
        )
        counts = windows.count(Materialized(name="counts")).to_stream()
        counts.select_key(lambda k, _v: k.key).to(f"{case.name}.out", Produced(STRING, LONG))
        return builder.build()

    def run(*records: tuple[bytes, int]) -> int:
        case.broker.write(f"{case.name}.in", [(key, b"w", time) for key, time in records], partition=0)
        case.run(build)
        return admin.beginning_offsets([changelog])[changelog]

    admin, days = case.broker.admin(), 24 * 3_600_000
    changelog = TopicPartition(f"{case.name}-v1-counts-changelog", 0)
    assert run((b"a", 1), (b"b", 2)) == 0
    assert admin.topic_config(changelog.topic)["retention.ms"] == "-1", (
        "brokers compare event times with their own clock"
    )
    assert run((b"a", 1 * days)) == 0, "it is kept for a day longer"
    assert run((b"a", 3 * days)) == 2, "up to the end of the first transaction"
    shutil.rmtree(case.state)
    run((b"a", 3 * days + 1))
    assert case.written()[-1] == (b"b", LONG.serialize(1))
    assert max(value for key, value in case.written() if key == b"a") == LONG.serialize(2), (
        "its open window was restored"
    )


SLOW = """
import pathlib, time

from riverrun import STRING, Consumed, Produced

def build(builder):
    builder.stream("{name}.in", Consumed(STRING, STRING)).peek(wait).to("{name}.out", Produced(STRING, STRING))
    return builder.build()

def wait(key, value):
    pathlib.Path("begun").touch()
    time.sleep(120)
"""


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_ctrl_c_ends_a_run_at_once_and_without_a_trace(case: Case, tmp_path: Path, engine: str) -> None:
    case.broker.write(f"{case.name}.in", [(b"k", b"v", 1)])
    (tmp_path / "slow.py").write_text(SLOW.format(name=case.name))
    (tmp_path / "streams.toml").write_text(
        f'[kafka]\n"bootstrap.servers" = "{case.broker.bootstrap_servers}"\n'
        f'[apps.{case.name}]\ntopology = "slow:build"\n'
    )
    command = [sys.executable, "-m", "riverrun.cli", "run", case.name, "--engine", engine]
    with (tmp_path / "log").open("w") as log:
        started = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    until(
        lambda: (tmp_path / "begun").exists() or started.poll() is not None,
        "began",
        explain=(tmp_path / "log").read_text,
    )
    assert started.poll() is None, (tmp_path / "log").read_text()
    os.killpg(started.pid, signal.SIGINT)
    assert started.wait(240) == INTERRUPTED, (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[pytest.mark.broker, pytest.mark.spark])])
def test_progress_in_records_is_seen_before_anything_is_committed(case: Case, tmp_path: Path, engine: str) -> None:
    topic, seen, open_counts = f"{case.name}.in", tmp_path / "seen", []
    case.broker.write(topic, [(b"k", b"word", n + 1) for n in range(2_999)] + [(b"k", b"last", 3_000)], partition=0)
    admin, tp = case.broker.admin(), TopicPartition(topic, 0)

    def hear(progress: Progress) -> None:
        if progress.done and not seen.exists():
            open_counts.append((progress, admin.committed(f"{case.name}-v1", [tp])))
            seen.touch()

    with reporting_progress(hear, every_s=0.1):
        assert case.run(held_back(case.name, seen), {"bounded_engine": engine}).processed == 3_000
    ((progress, committed),) = open_counts
    assert (progress.doing, progress.everything, committed) == (f"{case.name}-v1", 3_000, {})
    assert progress.done % 1_000 == 0
    assert not [name for name in groups_of(case.broker) if name.startswith(f"{case.name}-v1:progress")]


def groups_of(broker: Broker) -> list[str]:
    client = broker.door.admin({})  # requests end with their client
    listed = client.list_consumer_groups(request_timeout=30).result(30)
    return [each.group_id for each in listed.valid]
