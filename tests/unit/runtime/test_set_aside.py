"""Records that a handler sets aside leave no trace, and can be replayed as if they came late."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    LONG,
    STRING,
    BufferConfig,
    ConfigError,
    Consumed,
    EmitStrategy,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    ProcessingError,
    Processor,
    Produced,
    PunctuationType,
    Record,
    Repartitioned,
    Serde,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopicPartition,
)
from riverrun.processor.handlers import SET_ASIDE, Response, dead_letter_queue_record
from riverrun.records import RawRecord
from riverrun.runtime.packs import pack_header, packed
from riverrun.testing import TopologyTestDriver
from riverrun.topics.letters import letter_of
from tests.depth import depth

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import ErrorHandlerContext, KStream, ProcessorContext, Topology
    from riverrun.topics.letters import DeadLetter

STRINGS = Consumed(STRING, STRING)
TO_STRINGS = Produced(STRING, STRING)
ASIDE = {"processing.exception.handler": "set-aside", "errors.dead.letter.queue.topic.name": "letters"}
Given = tuple[str, str, str]
"""Topic, key and value of a record."""


class Refusing:
    """A function that fails on some values until it is mended."""

    def __init__(self) -> None:
        self.is_mended = False

    def __call__(self, value: str) -> str:
        if not self.is_mended and "bad" in value:
            raise ValueError(value)
        return value


def _counted(stream: KStream[str, str], number: int, _table: Any, refuse: Refusing) -> KStream[str, str]:
    counts = stream.group_by_key(Grouped(STRING, STRING)).count(Materialized(name=f"counts{number}"))
    # Fails because of what earlier records have left.
    return counts.to_stream().map_values(lambda n: refuse(f"bad {n}" if n % 3 == 0 else f"{n}"))


def _reduced(stream: KStream[str, str], number: int, _table: Any, _refuse: Refusing) -> KStream[str, str]:
    reduced = stream.group_by_key(Grouped(STRING, STRING)).reduce(
        lambda old, new: f"{old}{new}"[-9:], Materialized(name=f"reduced{number}")
    )
    return reduced.to_stream()


def _deduplicated(stream: KStream[str, str], number: int, _table: Any, _refuse: Refusing) -> KStream[str, str]:
    return stream.deduplicate(
        timedelta(milliseconds=3), by=lambda _k, v: v, materialized=Materialized(name=f"seen{number}", key_serde=STRING)
    )


def _joined(stream: KStream[str, str], _number: int, table: Any, _refuse: Refusing) -> KStream[str, str]:
    return stream.left_join(table, lambda left, right: f"{left}{right}", joined=Joined(STRING, STRING))


def _mapped(stream: KStream[str, str], _number: int, _table: Any, refuse: Refusing) -> KStream[str, str]:
    return stream.map_values(refuse)


def _written(stream: KStream[str, str], number: int, _table: Any, _refuse: Refusing) -> KStream[str, str]:
    stream.to(f"out{number}", TO_STRINGS)
    return stream


STEPS = [_counted, _reduced, _deduplicated, _joined, _mapped, _written]


def built(steps: list[tuple[int, Any]], refuse: Refusing) -> Topology:
    builder = StreamsBuilder()
    table = builder.table("table", STRINGS, Materialized(name="table"))
    streams = [builder.stream("in", STRINGS)]
    for number, (parent, step) in enumerate(steps):
        streams.append(step(streams[parent % len(streams)], number, table, refuse))
    for number, stream in enumerate(streams):
        stream.map_values(refuse).to(f"end{number}", TO_STRINGS)
    return builder.build()


def piped(driver: TopologyTestDriver, records: list[tuple[int, Given]]) -> None:
    for at, (topic, key, value) in records:
        driver.input_topic(topic, STRING, STRING).pipe_input(key, value, timestamp=at)
    # Records may wait for another input, and another attempt begins to wait anew.
    for _ in records:
        driver.advance_wall_clock_time(timedelta(milliseconds=5))


def seen(driver: TopologyTestDriver) -> dict[str, Any]:
    """All that records have left: outputs, rows of changelogs (how many depends on commits), and stores."""
    topics = sorted(driver.produced_topic_names() - {"letters"})
    logs: dict[str, Any] = {topic: [record[:4] for record in driver.read_raw(topic)] for topic in topics}
    rows = {topic: {key: rest[:2] for key, *rest in log} for topic, log in logs.items() if topic.endswith("-changelog")}
    stores = {name: list(store.all()) for name, store in driver.get_all_state_stores().items()}
    return {topic: log for topic, log in (logs | rows).items() if log} | stores


def letters_of(driver: TopologyTestDriver) -> list[DeadLetter]:
    found = [letter_of(TopicPartition("letters", 0), record, {}) for record in driver.read_raw("letters")]
    return [letter for letter in found if letter is not None]


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["in", "in", "table"]), st.sampled_from("ab"), st.sampled_from(["x", "y", "bad", "xbad"])
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=depth(60, 2000))
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(STEPS)), max_size=5), RECORDS, st.booleans())
def test_what_is_set_aside_leaves_no_trace_and_comes_late_when_replayed(
    steps: list[tuple[int, Any]], records: list[Given], waits: bool
) -> None:
    # Without caches, as what these forward depends on commits.
    config = ASIDE | ({"max.task.idle.ms": 1, "statestore.cache.max.bytes": 0} if waits else {})
    timed, offsets = list(enumerate(records)), {"in": -1, "table": -1}
    places = {}
    for at, (topic, _, _) in timed:
        offsets[topic] += 1
        places[topic, offsets[topic]] = at
    refuse = Refusing()
    with TopologyTestDriver(built(steps, refuse), config) as driver:
        piped(driver, timed)
        letters = letters_of(driver)
        aside = {places[letter.origin.topic, letter.origin_offset] for letter in letters}
        assert driver.dropped().get("set-aside", 0) == len(letters) == len(aside)
        assert all(letter.left_no_trace for letter in letters)
        kept = [each for each in timed if each[0] not in aside]
        with TopologyTestDriver(built(steps, Refusing()), config) as other:
            piped(other, kept)
            assert seen(driver) == seen(other)
            assert not other.dropped().get("set-aside")
        refuse.is_mended = True
        late = [timed[places[letter.origin.topic, letter.origin_offset]] for letter in letters]
        piped(driver, late)
        mended = Refusing()
        with TopologyTestDriver(built(steps, mended), config) as other:
            piped(other, kept)
            seen(other)
            mended.is_mended = True
            piped(other, late)
            assert seen(driver) == seen(other)


def run(topology: Topology, *records: Given, **config: str) -> TopologyTestDriver:
    driver = TopologyTestDriver(topology, ASIDE | {name.replace("_", "."): value for name, value in config.items()})
    piped(driver, list(enumerate(records)))
    return driver


def values(driver: TopologyTestDriver, topic: str) -> list[bytes | None]:
    return [record.value for record in driver.read_raw(topic)]


def refuse(value: str) -> str:
    return Refusing()(value)


def through_a_repartition() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS)
    stream.to("early", TO_STRINGS)
    moved = stream.repartition(Repartitioned(STRING, STRING, name="moved"))
    counts = moved.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().to("counts", Produced(STRING, LONG))
    moved.map_values(refuse).to("out", TO_STRINGS)
    return builder.build()


def test_of_a_repartition_topic_its_own_record_is_set_aside() -> None:
    driver = run(through_a_repartition(), ("in", "a", "x"), ("in", "a", "bad"), ("in", "a", "y"))
    assert values(driver, "early") == [b"x", b"bad", b"y"], "another task has committed it"
    assert values(driver, "out") == [b"x", b"y"]
    assert driver.get_key_value_store("counts").get("a") == 2
    (letter,) = letters_of(driver)
    assert (str(letter.origin), letter.origin_offset, letter.left_no_trace) == ("test-moved-repartition-0", 1, True)


def test_of_a_pack_only_the_record_that_failed_is_set_aside() -> None:
    topology = through_a_repartition()
    driver = TopologyTestDriver(topology, ASIDE)
    task = next(task for task in driver._tasks.values() if "counts" in task.stores())
    held = [b"x", b"bad", b"y", b"bad", b"z"]
    pack = packed([b"a"] * 5, held, [1, 2, 3, 2, 5], [(("h", b"1"),), *[()] * 4])
    driver._pipe(task.spec.inputs[0].topic, None, pack, 5, pack_header(task.spec.id))
    assert values(driver, "out") == [b"x", b"y", b"z"]
    assert driver.get_key_value_store("counts").get("a") == 3
    assert [(letter.value, letter.origin_offset) for letter in letters_of(driver)] == [(b"bad", 0)] * 2
    driver._pipe(task.spec.inputs[0].topic, b"a", b"bad", 2, ())
    assert [letter.origin_offset for letter in letters_of(driver)] == [1]


def final_counts(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    grouped = stream.group_by_key(Grouped(STRING, STRING))
    counts = grouped.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(milliseconds=2)))
    counts = counts.emit_strategy(EmitStrategy.on_window_close())
    counts.count(Materialized(name="final")).to_stream().map(_fail).to("out", TO_STRINGS)


def suppressed_counts(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    counts = stream.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    late = counts.suppress(Suppressed.until_time_limit(timedelta(milliseconds=5), BufferConfig.unbounded()))
    late.to_stream().map(_fail).to("out", TO_STRINGS)


def without_partner(builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    windows = JoinWindows.of_time_difference_with_no_grace(timedelta(milliseconds=1))
    other = builder.stream("other", STRINGS)
    joined = stream.left_join(other, _both, windows, joined=StreamJoined(STRING, STRING, STRING))
    joined.to("out", TO_STRINGS)


def expiring_rows(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    table = stream.to_table(Materialized(name="rows", ttl=timedelta(milliseconds=2)))
    table.to_stream().map_values(lambda v: v + "").to("out", TO_STRINGS)


def _both(left: str, right: str | None) -> str:
    assert right is not None, left
    return left + right


class Punctual(Processor[str, str]):
    def init(self, context: ProcessorContext) -> None:
        context.schedule(timedelta(milliseconds=3), PunctuationType.STREAM_TIME, self._punctuate)

    def process(self, record: Record[str, str]) -> None:
        pass

    def _punctuate(self, time_ms: int) -> None:
        if time_ms:
            message = "punctuated"
            raise ValueError(message)


def punctuated(_builder: StreamsBuilder, stream: KStream[str, str]) -> None:
    stream.process(Punctual)


def _fail(_key: Any, _value: Any) -> tuple[str, str]:
    message = "no results"
    raise ValueError(message)


@pytest.mark.parametrize("add", [final_counts, suppressed_counts, without_partner, expiring_rows, punctuated])
def test_for_what_time_has_brought_out_no_record_is_set_aside(add: Callable[..., None]) -> None:
    """The next record would bring it out again, until all are set aside."""
    asked: list[ErrorHandlerContext] = []

    def continues(context: ErrorHandlerContext, _record: Any, exception: Exception) -> Response:
        asked.append(context)
        letter = dead_letter_queue_record("letters", context, exception)
        made = Response.set_aside if context.may_be_set_aside else Response.resume
        return made(dead_letter_queue_records=[letter])

    global handler  # noqa: PLW0603 - settings name handlers by their module
    handler = continues
    for config in ({}, {"processing_exception_handler": f"{__name__}:handler"}):
        builder = StreamsBuilder()
        add(builder, builder.stream("in", STRINGS))
        records = [("in", "a", "x"), *[("in", "b", "y")] * 5]
        if config:
            driver = run(builder.build(), *records, **config)
            assert not driver.dropped().get("set-aside")
            assert driver.dropped()["processing-failed"] == len(asked) > 0
            assert not any(context.may_be_set_aside for context in asked)
            assert not any(letter.left_no_trace for letter in letters_of(driver))
        else:
            with pytest.raises(ProcessingError, match="sets a record aside, but there is none") as raised:
                run(builder.build(), *records)
            assert "may_be_set_aside" in (raised.value.hint or "")


handler: Any = None


def test_a_processor_that_catches_the_error_does_not_keep_what_the_record_did() -> None:
    class Catching(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext) -> None:
            self.context = context

        def process(self, record: Record[str, str]) -> None:
            try:
                self.context.forward(record)
            except Exception:  # noqa: BLE001 - as users do
                self.context.forward(record.with_value("caught"))

    builder = StreamsBuilder()
    builder.stream("in", STRINGS).process(Catching).map_values(refuse).to("out", TO_STRINGS)
    driver = run(builder.build(), ("in", "a", "x"), ("in", "a", "bad"), ("in", "a", "y"))
    assert values(driver, "out") == [b"x", b"y"]
    assert values(driver, "letters") == [b"bad"]


def test_a_value_that_a_sink_refuses_sets_the_input_record_aside() -> None:
    refusing = Serde("refusing", lambda v: refuse(v).encode(), bytes.decode)
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS)
    stream.to("early", TO_STRINGS)
    stream.to("out", Produced(STRING, refusing))
    topology = builder.build()
    given = ("in", "a", "x"), ("in", "a", "bad"), ("in", "a", "y")
    driver = run(topology, *given, processing_exception_handler="fail", production_exception_handler="set-aside")
    assert (values(driver, "early"), values(driver, "out")) == ([b"x", b"y"], [b"x", b"y"])
    assert [letter.left_no_trace for letter in letters_of(driver)] == [True]


def test_a_record_that_cannot_be_read_has_left_no_trace_whatever_skips_it() -> None:
    for answer in ("continue", "set-aside"):
        builder = StreamsBuilder()
        builder.stream("in", Consumed(STRING, LONG)).to("out", Produced(STRING, LONG))
        driver = run(builder.build(), ("in", "a", "x"), deserialization_exception_handler=answer)
        assert driver.dropped() == {"undecodable": 1}
        assert [letter.left_no_trace for letter in letters_of(driver)] == [True]


def test_at_least_once_has_nothing_to_undo_a_record_with() -> None:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).map_values(refuse).to("out", TO_STRINGS)
    topology = builder.build()
    with pytest.raises(ConfigError, match="cannot be set aside under at_least_once"):
        run(topology, processing_guarantee="at_least_once")
    own = {"processing_exception_handler": f"{__name__}:always", "processing_guarantee": "at_least_once"}
    with pytest.raises(ProcessingError, match="sets a record aside, but there is none"):
        run(topology, ("in", "a", "bad"), **own)


def always(_context: ErrorHandlerContext, _record: Any, _exception: Exception) -> Response:
    return Response.set_aside()


def test_only_the_last_header_of_a_letter_says_that_its_record_left_no_trace() -> None:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).map_values(refuse).to("out", TO_STRINGS)
    for answer, whole in (("set-aside", True), ("continue", False)):
        driver = TopologyTestDriver(builder.build(), ASIDE | {"processing.exception.handler": answer})
        driver._pipe("in", b"a", b"bad", 1, ((SET_ASIDE, None), ("h", b"1"), (SET_ASIDE, None)))
        (letter,) = letters_of(driver)
        assert letter.left_no_trace is whole
        assert letter.headers == ((SET_ASIDE, None), ("h", b"1"), (SET_ASIDE, None))


def table_and_stream(optimization: str) -> Topology:
    builder = StreamsBuilder()
    table = builder.table("table", STRINGS, Materialized(name="table"))
    table.to_stream().map_values(refuse).to("rows", TO_STRINGS)
    builder.stream("in", STRINGS).left_join(table, lambda left, _: refuse(left)).to("out", TO_STRINGS)
    return builder.build(optimization=optimization)


def test_a_record_from_which_a_table_is_restored_is_not_set_aside() -> None:
    """It would come back into the store with the next restore."""
    driver = run(table_and_stream("none"), ("table", "a", "bad"))
    assert driver.get_key_value_store("table").get("a") is None
    reused = table_and_stream("reuse.ktable.source.topics")
    driver = run(reused, ("table", "a", "x"), ("in", "a", "bad"))
    assert driver.dropped() == {"set-aside": 1}, "nothing is restored from the other input"
    with pytest.raises(ProcessingError, match="sets a record aside, but there is none") as raised:
        run(reused, ("table", "a", "bad"))
    assert "reuse.ktable.source.topics" in (raised.value.hint or "")


def test_of_a_pack_that_a_commit_has_split_no_later_record_is_set_aside() -> None:
    """Its records share a place, and the first one still waits for its partner."""
    builder = StreamsBuilder()
    table = builder.table("table", STRINGS, Materialized(name="table", history_retention=timedelta(seconds=1)))
    moved = builder.stream("in", STRINGS).repartition(Repartitioned(STRING, STRING, name="moved"))
    waiting: Joined[Any, Any, Any] = Joined(STRING, STRING, grace_period=timedelta(milliseconds=5))
    joined = moved.left_join(table, lambda left, _: left, joined=waiting)
    joined.map_values(refuse).to("out", TO_STRINGS)
    driver = TopologyTestDriver(builder.build(), ASIDE)
    task = next(task for task in driver._tasks.values() if "table" in task.stores())
    tp = next(tp for tp in task.spec.inputs if tp.topic != "table")
    pack = packed([b"a"] * 3, [b"bad", b"x", b"y"], [1, 2, 30], [()] * 3)
    task.add_records(tp, [RawRecord(None, pack, 30, 0, pack_header(task.spec.id))])
    task.process(2)
    driver._commit(task)
    with pytest.raises(ProcessingError, match="sets a record aside, but there is none"):
        task.process(1)


def test_a_punctuation_stays_if_a_record_that_is_processed_after_it_is_set_aside() -> None:
    class Ticking(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext) -> None:
            self.context = context
            context.schedule(timedelta(milliseconds=3), PunctuationType.WALL_CLOCK_TIME, self._tick)

        def process(self, record: Record[str, str]) -> None:
            self.context.forward(record.with_value(refuse(record.value)))

        def _tick(self, time_ms: int) -> None:
            self.context.forward(Record("a", "tick", time_ms))

    builder = StreamsBuilder()
    table = builder.table("table", STRINGS, Materialized(name="table"))
    joined = builder.stream("in", STRINGS).left_join(table, lambda left, _: left, joined=Joined(STRING, STRING))
    joined.process(Ticking).to("out", TO_STRINGS)
    driver = TopologyTestDriver(builder.build(), ASIDE | {"max.task.idle.ms": 1})
    driver.input_topic("in", STRING, STRING).pipe_input("a", "bad", timestamp=1)
    assert not letters_of(driver), "it waits for the table"
    driver.advance_wall_clock_time(timedelta(milliseconds=5))
    assert len(letters_of(driver)) == 1
    assert values(driver, "out") == [b"tick"]
