"""A failure names the record that has failed, not the one behind which it has waited, and says whether it can be skipped."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    BufferConfig,
    Consumed,
    EmitStrategy,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Pattern,
    Processor,
    Produced,
    PunctuationType,
    SessionWindows,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopicPartition,
)
from riverrun.errors import RecordError
from riverrun.processor.handlers import Response
from riverrun.records import RawRecord
from riverrun.runtime.stuck_records import stuck_at
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import ErrorHandlerContext, KStream, KTable, ProcessorContext, Record
    from riverrun.runtime.stuck_records import StuckRecord
    from riverrun.runtime.task import Task

    Shape = Callable[[StreamsBuilder, KStream[str, str]], None]

STRINGS = Consumed(STRING, STRING)
TO_STRINGS = Produced(STRING, STRING)
IN = TopicPartition("in", 0)
ALONE = "To skip this one alone: riverrun skip APP in-0@0."
WAYS: dict[str, dict[str, str]] = {
    "in loops": {},
    "record by record": {"processing.exception.handler": "fail", "errors.dead.letter.queue.topic.name": "letters"},
}


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def fail(*_given: Any) -> Any:
    message = "no results"
    raise ValueError(message)


def failing(stream: KStream[Any, Any]) -> None:
    stream.map(fail).to("out", TO_STRINGS)


def counted(stream: KStream[str, str], *, caching: bool) -> KTable[str, int]:
    return stream.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts", caching=caching))


def suppressed(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    late = counted(stream, caching=False).suppress(Suppressed.until_time_limit(ms(5), BufferConfig.unbounded()))
    failing(late.to_stream())


def buffered(builder: StreamsBuilder, stream: KStream[str, str], joiner: Any) -> KStream[str, str]:
    table = builder.table("table", STRINGS, Materialized(name="table", history_retention=timedelta(seconds=1)))
    return stream.left_join(table, joiner, joined=Joined(STRING, STRING, grace_period=ms(5)))


def joiner_of_a_buffered_join(builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    buffered(builder, stream, fail).to("out", TO_STRINGS)


def below_a_buffered_join(builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    failing(buffered(builder, stream, lambda left, _: left))


def completed_pattern(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    pattern = Pattern.begin("first", lambda value: value == "x")
    failing(stream.match(pattern, within=ms(2), grace=ms(5), materialized=Materialized(name="seen")))


HOLDING = [below_a_buffered_join, completed_pattern, joiner_of_a_buffered_join, suppressed]


def final_counts(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    windows = stream.group_by_key(Grouped(STRING, STRING)).windowed_by(TimeWindows.of_size_with_no_grace(ms(2)))
    counts = windows.emit_strategy(EmitStrategy.on_window_close()).count(Materialized(name="final"))
    failing(counts.to_stream())


def final_sessions(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    windows = SessionWindows.of_inactivity_gap_with_no_grace(ms(2))
    sessions = stream.group_by_key(Grouped(STRING, STRING)).windowed_by(windows)
    counts = sessions.emit_strategy(EmitStrategy.on_window_close()).count(Materialized(name="final"))
    failing(counts.to_stream())


def without_partner(builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    windows = JoinWindows.of_time_difference_with_no_grace(ms(1))
    other = builder.stream("other", STRINGS)
    stream.left_join(other, fail, windows, joined=StreamJoined(STRING, STRING, STRING)).to("out", TO_STRINGS)


def expired_row(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    table = stream.to_table(Materialized(name="rows", ttl=ms(2), caching=False))
    table.to_stream().map_values(lambda value: value + "").to("out", TO_STRINGS)


def ended_pattern(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    pattern = Pattern.begin("first", lambda value: value == "x").not_followed_by(lambda value: value == "z")
    failing(stream.match(pattern, within=ms(2), grace=ms(0), materialized=Materialized(name="seen")))


class Punctual(Processor[str, str]):
    def init(self, context: ProcessorContext) -> None:
        context.schedule(ms(3), PunctuationType.STREAM_TIME, lambda time_ms: fail() if time_ms > 50 else None)

    def process(self, record: Record[str, str]) -> None:
        pass


def punctuation(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    stream.process(Punctual)


BY_TIME = [ended_pattern, expired_row, final_counts, final_sessions, punctuation, without_partner]


def started(shape: Shape, settings: dict[str, Any]) -> tuple[TopologyTestDriver, Task]:
    builder = StreamsBuilder()
    shape(builder, builder.stream("in", STRINGS))
    driver = TopologyTestDriver(builder.build(), settings | {"max.task.idle.ms": -1})
    return driver, next(task for task in driver._tasks.values() if IN in task.spec.inputs)


def given(task: Task, *records: tuple[bytes, bytes, int]) -> None:
    """Records of the input, by key, value and time, which are processed without a commit."""
    first = max(task.position(IN), 0)
    task.add_records(IN, [RawRecord(*record, first + number, ()) for number, record in enumerate(records)])
    task.process(len(records))


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("shape", HOLDING)
def test_a_record_that_has_waited_can_be_skipped_alone_until_a_commit(shape: Shape, settings: dict[str, str]) -> None:
    _driver, task = started(shape, settings)
    with pytest.raises(RecordError, match=r"topic in, partition 0, offset 0[,)]") as raised:
        given(task, (b"a", b"x", 10), (b"b", b"y", 11), (b"c", b"y", 90))
    assert ALONE in str(raised.value.hint)


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("shape", HOLDING)
def test_a_record_that_has_waited_over_a_commit_is_not_offered_for_skips(
    shape: Shape, settings: dict[str, str]
) -> None:
    driver, task = started(shape, settings)
    given(task, (b"a", b"x", 10))
    driver._commit(task)
    with pytest.raises(RecordError, match=r"topic in, partition 0, offset 0[,)]") as raised:
        given(task, (b"b", b"y", 11), (b"c", b"y", 90))
    assert "riverrun skip" not in str(raised.value.hint)
    assert "has waited since before the last commit (key 'a')" in str(raised.value.hint)


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("shape", BY_TIME)
def test_no_skip_is_offered_for_what_time_has_brought_out(shape: Shape, settings: dict[str, str]) -> None:
    _driver, task = started(shape, settings)
    with pytest.raises(RecordError, match=r"topic in, partition 0, offset 1[,)]") as raised:
        given(task, (b"a", b"x", 10), (b"b", b"y", 90))
    assert "riverrun skip" not in str(raised.value.hint)
    key = "" if shape is punctuation else " (key "
    assert f"Time has brought this out{key}" in str(raised.value.hint)


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_an_update_that_a_cache_holds_back_names_its_own_record(settings: dict[str, str]) -> None:
    def cached(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
        failing(counted(stream, caching=True).to_stream())

    _driver, task = started(cached, settings)
    given(task, (b"a", b"x", 10), (b"b", b"y", 11))
    with pytest.raises(RecordError, match=r"topic in, partition 0, offset 0[,)]") as raised:
        task.prepare_commit()
    assert ALONE in str(raised.value.hint)


asked: list[tuple[ErrorHandlerContext, Record[Any, Any]]] = []


def handler(context: ErrorHandlerContext, record: Record[Any, Any], _exception: Exception) -> Response:
    asked.append((context, record))
    return Response.set_aside() if context.may_be_set_aside else Response.resume()


def test_handlers_are_asked_about_the_record_that_a_join_has_kept_back() -> None:
    asked.clear()
    driver, task = started(joiner_of_a_buffered_join, {"processing.exception.handler": f"{__name__}:handler"})
    given(task, (b"a", b"x", 10))
    driver._commit(task)
    given(task, (b"b", b"y", 90))
    ((context, record),) = asked
    assert (context.offset, record.key, record.value, record.timestamp) == (0, "a", "x", 10)
    assert not context.may_be_set_aside
    assert task.position(IN) == 2


def test_a_function_that_does_not_return_is_named_with_the_record_that_has_waited() -> None:
    found: list[StuckRecord | None] = []

    def joiner(left: str, _right: str | None) -> str:
        found.append(stuck_at(sys._getframe(), lambda _thing: ""))
        return left

    _driver, task = started(lambda builder, stream: buffered(builder, stream, joiner).to("out", TO_STRINGS), {})
    given(task, (b"a", b"x", 10), (b"b", b"y", 90))
    assert [str(each) for each in found] == ["task 0_0, record in-0@0, node KSTREAM-LEFTJOIN-0000000003"]
