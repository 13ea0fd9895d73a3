"""How a task pauses at a barrier: exactly at the offsets it is given, while what is internal drains."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Produced, PunctuationType, Record, Repartitioned, StreamsBuilder
from riverrun.processor.handlers import ErrorHandlers, LogAndContinue
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.barrier import Limits
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.packs import pack_header, packed
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MemoryTopics, MockClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun import ProcessorContext

ONE, TWO, OWN = TopicPartition("one", 0), TopicPartition("two", 0), TopicPartition("app-own-repartition", 0)
PLAIN = ErrorHandlers(None, LogAndContinue(None), None)
"""With a handler that wants input records, tasks do without generated loops."""


class Ticking:
    """Writes a record every second of the wall clock."""

    def init(self, context: ProcessorContext) -> None:
        def tick(now_ms: int) -> None:
            context.forward(Record(None, f"tick@{now_ms}", now_ms))

        context.schedule(timedelta(seconds=1), PunctuationType.WALL_CLOCK_TIME, tick)
        self._context = context

    def process(self, record: Record[Any, Any]) -> None:
        self._context.forward(record)

    def close(self) -> None:
        """Do nothing."""


class Paused:
    """A task with one, two or three inputs: of others, and a repartition topic of its own."""

    def __init__(
        self,
        *inputs: TopicPartition,
        is_fused: bool = True,
        idle_ms: int = 0,
        ticks: bool = False,
        committed: Mapping[TopicPartition, tuple[int, str]] | None = None,
    ) -> None:
        builder = StreamsBuilder()
        merged = builder.stream("raw", Consumed(STRING, STRING)).repartition(Repartitioned(STRING, STRING, name="own"))
        for tp in {ONE, TWO} & set(inputs):
            merged = merged.merge(builder.stream(tp.topic, Consumed(STRING, STRING)))
        if ticks:
            merged = merged.process(Ticking)
        merged.to("out", Produced(STRING, STRING))
        sub = next(sub for sub in builder.build().sub_topologies() if "raw" not in sub.source_topics)
        self.clock, self.topics = MockClock(), MemoryTopics()
        handlers = ErrorHandlers(None, None, None) if is_fused else PLAIN
        spec = TaskSpec(TaskId(1, 0), sub, "app", inputs, handlers=handlers, max_task_idle_ms=idle_ms)
        self.task = Task(spec, Ports(self.topics, MemoryBackend(), self.clock))
        self.committed = committed or {tp: (0, OffsetMetadata(-1).encode()) for tp in inputs}
        self.task.start(self.committed)

    def add(self, tp: TopicPartition, *offsets: int) -> None:
        self.task.add_records(tp, [RawRecord(None, f"{tp.topic}@{n}".encode(), n, n) for n in offsets])

    def take(self) -> list[str]:
        before = len(self.topics.logs.get("out", []))
        self.task.process(100)
        return [record.value.decode() for record in self.topics.logs.get("out", [])[before:] if record.value]

    def pause(self, phase: int, limits: Mapping[TopicPartition, int] | None = None, barrier: str = "m") -> None:
        self.task.pause_at(Limits(barrier, phase, limits or {}))

    def commit(self) -> dict[TopicPartition, tuple[int, tuple[str, int] | None]]:
        """Offset and acknowledged barrier per input."""
        self.committed = offsets = self.task.prepare_commit().offsets
        self.task.post_commit({})
        return {tp: (offset, OffsetMetadata.decode(text).barrier) for tp, (offset, text) in offsets.items()}


@pytest.fixture(params=[True, False], ids=["fused", "plain"])
def is_fused(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_an_input_pauses_where_it_is_then_at_its_limit_and_then_goes_on(is_fused: bool) -> None:
    paused = Paused(ONE, is_fused=is_fused)
    paused.add(ONE, 0, 1, 2)
    paused.task.process(1)
    paused.pause(0)
    assert paused.task.has_reached_barrier()
    assert paused.take() == []
    assert paused.commit() == {ONE: (1, ("m", 0))}
    assert not paused.task.has_reached_barrier(), "it is said once"
    paused.add(ONE, 3, 5, 6)
    paused.pause(1, {ONE: 5})
    assert not paused.task.has_reached_barrier(), "it is not there yet"
    assert paused.take() == ["one@1", "one@2", "one@3"]
    assert paused.commit() == {ONE: (5, ("m", 1))}, "where it is to pause, whatever gap there is"
    paused.add(ONE, 7)
    assert paused.take() == []
    paused.task.pause_at(None)
    assert paused.take() == ["one@5", "one@6", "one@7"]
    assert paused.commit() == {ONE: (8, None)}


def test_a_record_that_was_decoded_before_the_barrier_came_waits_as_well(is_fused: bool) -> None:
    paused = Paused(ONE, TWO, is_fused=is_fused)
    paused.add(ONE, 10)
    paused.add(TWO, 11)
    paused.task.is_ready()  # decodes the heads
    paused.pause(1, {ONE: 10, TWO: 12})
    assert paused.take() == ["two@11"], "an input that pauses is not waited for"
    assert paused.commit() == {ONE: (10, ("m", 1)), TWO: (12, ("m", 1))}
    paused.task.pause_at(None)
    paused.add(TWO, 12)
    paused.task.reached_end(ONE, 11)
    assert paused.take() == ["one@10", "two@12"], "in order again"


def test_an_idle_input_says_that_it_pauses_once_its_end_is_known() -> None:
    paused = Paused(ONE)
    paused.pause(1, {ONE: 4})
    paused.task.reached_end(ONE, 3)
    assert not paused.task.has_reached_barrier()
    paused.task.reached_end(ONE, 4)  # the marker of a transaction that was aborted, or a gap
    assert paused.commit() == {ONE: (4, ("m", 1))}


def test_what_is_internal_drains_while_inputs_of_others_pause(is_fused: bool) -> None:
    paused = Paused(ONE, OWN, is_fused=is_fused, idle_ms=60_000)
    paused.add(ONE, 3)
    paused.add(OWN, 1)
    paused.pause(0)
    assert paused.take() == ["app-own-repartition@1"], "nobody waits for an input that pauses"
    paused.pause(1, {ONE: 4})
    paused.task.reached_end(OWN, 2)
    paused.take()
    paused.clock.time_ms += 60_001
    assert paused.take() == ["one@3"], "below its limit it goes by the rules: the other input may still get records"
    assert paused.commit()[ONE] == (4, ("m", 1))
    paused.pause(2, {OWN: 6})
    paused.add(OWN, 2, 4, 7)
    paused.take()
    assert paused.commit() == {ONE: (4, ("m", 2)), OWN: (6, ("m", 2))}
    assert paused.take() == [], (
        "what comes after its end was written by tasks that have heard before that the pause is over"
    )
    paused.task.pause_at(None)
    paused.add(ONE, 8)
    assert paused.take() == ["app-own-repartition@7"]


def test_a_task_without_inputs_of_others_only_says_that_it_has_drained() -> None:
    paused = Paused(OWN)
    paused.pause(0)
    paused.add(OWN, 0, 1)
    assert paused.take() == ["app-own-repartition@0", "app-own-repartition@1"]
    assert paused.commit() == {OWN: (2, None)}
    paused.pause(2, {OWN: 4})
    assert not paused.task.has_reached_barrier(), "a marker is still to come"
    paused.task.reached_end(OWN, 4)
    assert paused.commit() == {OWN: (4, ("m", 2))}
    paused.pause(3, {})
    paused.add(OWN, 4)
    assert paused.take() == [], "once its end was named, it pauses"


def test_the_wall_clock_writes_nothing_while_a_task_pauses() -> None:
    paused = Paused(ONE, ticks=True)
    paused.add(ONE, 0)
    paused.take()
    paused.pause(0)
    paused.clock.time_ms += 10_000
    assert paused.task.punctuate_wall_clock() == 0
    paused.task.pause_at(None)
    assert paused.task.punctuate_wall_clock() == 1


def test_a_task_that_pauses_within_a_pack_commits_how_much_it_has_taken() -> None:
    paused = Paused(OWN)
    value = packed([b"k"] * 3, [b"a", b"b", b"c"], [0] * 3, [()] * 3)
    pack = RawRecord(None, value, 0, 0, pack_header(TaskId(0, 0)))
    paused.task.add_records(OWN, [pack])
    paused.task.process(1)
    paused.pause(2)
    paused.commit()
    offset, metadata = paused.committed[OWN]
    again = Paused(OWN, committed={OWN: (offset, metadata)})
    again.task.add_records(OWN, [pack])
    assert again.take() == ["b", "c"]


def test_another_barrier_has_to_be_acknowledged_again() -> None:
    paused = Paused(ONE)
    paused.pause(0)
    paused.commit()
    paused.pause(0, barrier="another")
    assert paused.task.has_reached_barrier()
    assert paused.commit() == {ONE: (0, ("another", 0))}
