"""What a bounded run tells of itself, moves event time to, and does about the wall clock."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pipeline import (
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    EmitStrategy,
    Grouped,
    JoinWindows,
    Materialized,
    Processor,
    Produced,
    PunctuationType,
    Record,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from pipeline.config import AppConfig, StreamsConfig
from pipeline.errors import DeserializationError, UnsupportedByHostError
from pipeline.hosting.application import Application
from pipeline.spark.job import run
from pipeline.spark.ranges import resolve
from pipeline.spark.runs import RunLog
from pipeline.spark.session import spark_session
from tests.conformance.conftest import on_executor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline import Topology
    from pipeline.spark.job import RunSummary

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MINUTE = timedelta(minutes=1)
STRINGS: Consumed[str, str] = Consumed(STRING, STRING)


class Ticking(Processor[str, str]):
    """Says after every slice how many records it has seen."""

    def init(self, context: Any) -> None:
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
        suppressed = by_word.windowed_by(windows).count(Materialized("counts"))
        suppressed = suppressed.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        suppressed.to_stream().select_key(lambda k, _v: f"suppressed {k.key}").to(f"{name}.out", Produced(STRING, LONG))
        again = words.group_by(lambda _k, v: v, Grouped(STRING, STRING))
        final = again.windowed_by(windows).emit_strategy(EmitStrategy.on_window_close()).count(Materialized("final"))
        final.to_stream().select_key(lambda k, _v: f"final {k.key}").to(f"{name}.out", Produced(STRING, LONG))
        other = builder.stream(f"{name}.other", STRINGS)
        joined = words.left_join(
            other, lambda left, right: len(left) if right is None else -1, JoinWindows.of(MINUTE, grace=MINUTE)
        )
        joined.select_key(lambda k, _v: f"alone {k}").to(f"{name}.out", Produced(STRING, LONG))
        return builder.build()

    return build


class Case:
    def __init__(self, broker: Any, name: str, state: Path) -> None:
        self.broker, self.name, self.state = broker, name, state
        broker.create(2, f"{name}.in", f"{name}.other", f"{name}.out")

    def app(self, build: Callable[[StreamsBuilder], Topology], **streams: Any) -> Application:
        config = AppConfig(self.name, "none:none", streams=StreamsConfig(**streams))
        return Application(config, "v1", build(StreamsBuilder()), self.broker.kafka, self.state)

    def run(self, build: Callable[[StreamsBuilder], Topology], streams: Any = None, **options: Any) -> RunSummary:
        app = self.app(build, **(streams or {}))
        return run(app, resolve(app, self.broker.admin()), spark_session(), on_executor(build), **options)

    def written(self) -> list[tuple[bytes, bytes]]:
        return sorted((r.key, r.value) for r in self.broker.read(f"{self.name}.out"))


@pytest.fixture
def case(broker: Any, unique: str, tmp_path: Path) -> Case:
    return Case(broker, unique, tmp_path)


def test_windows_stay_open_at_the_end_of_a_run_until_event_time_is_moved_on(case: Case) -> None:
    case.broker.write(f"{case.name}.in", [(b"k%d" % n, b"w", 1000 * n + 1) for n in range(10)])
    case.run(waiting(case.name))
    assert case.written() == []
    summary = case.run(waiting(case.name), advance_to_ms=3 * 60_000)
    ten, one = LONG.serialize(10), LONG.serialize(1)
    alone = [(b"alone k%d" % n, one) for n in range(10)]
    assert case.written() == [*alone, (b"final w", ten), (b"suppressed w", ten)]
    assert summary.processed == 0
    case.run(waiting(case.name), advance_to_ms=3 * 60_000)
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
        waiting(case.name), by="somebody", on_plan=plans.append, max_records_per_slice=25, advance_to_ms=3 * 60_000
    )
    (plan,) = plans
    assert len(plan.slices) == summary.slices == 2
    assert [len(level) for level in plan.levels] == [2, 4]
    tasks = {task.task_id: task for task in summary.tasks}
    assert tasks["0_0"].read + tasks["0_1"].read == 40
    assert sum(task.commits for task in summary.tasks) >= 4
    assert sum(task.published for task in summary.tasks) == len(case.written())
    (recorded,) = RunLog(case.broker.kafka).runs(case.name)
    assert (recorded.by, recorded.state, recorded.version) == ("somebody", "done", "v1")
    assert (recorded.records_in, recorded.records_out) == (40, len(case.written()))
    assert recorded.range == str(plan.range)
    assert recorded.ended_ms is not None
    assert recorded.ended_ms >= recorded.started_ms


def test_a_run_that_fails_is_recorded_with_its_reason(case: Case) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        builder.stream(f"{case.name}.in", Consumed(STRING, LONG)).to(f"{case.name}.out", Produced(STRING, LONG))
        return builder.build()

    case.broker.write(f"{case.name}.in", [(b"k", b"no number", 1)])
    with pytest.raises(DeserializationError):
        case.run(build)
    (recorded,) = RunLog(case.broker.kafka).runs(case.name)
    assert recorded.state == "failed"
    assert "cannot be decoded" in str(recorded.error)
