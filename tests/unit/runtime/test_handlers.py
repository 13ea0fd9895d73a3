"""Handlers of records that cannot be read, processed or written (`ProcessingExceptionHandlerIntegrationTest`)."""

from __future__ import annotations

from bdb import BdbQuit
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    LONG,
    STRING,
    BrokerError,
    ConfigError,
    Consumed,
    DeserializationError,
    Grouped,
    Joined,
    Materialized,
    ProcessingError,
    Processor,
    Produced,
    PunctuationType,
    Record,
    Serde,
    SerializationError,
    Stores,
    StreamsBuilder,
    TopicPartition,
    Window,
    Windowed,
    windowed,
)
from riverrun.errors import DebuggerError, MemoryExhaustedError, RefusedRecordError, TaskMigratedError
from riverrun.processor.handlers import (
    ERRORS_EXCEPTION,
    ERRORS_MESSAGE,
    ERRORS_OFFSET,
    ERRORS_STACKTRACE,
    ERRORS_TOPIC,
    SET_ASIDE,
    ErrorHandlers,
    LogAndContinue,
    ProducerRecord,
    Response,
    SerializationExceptionOrigin,
    context_of,
    dead_letter_queue_record,
)
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.context import MOST_FAILED
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MemoryTopics, MockClock
from riverrun.topics.letters import letter_of
from tests import handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import ErrorHandlerContext, KStream, ProcessorContext, Topology

STRINGS = Consumed(STRING, STRING)
TO_STRINGS = Produced(STRING, STRING)
PROCESSING = "processing.exception.handler"
READING = "deserialization.exception.handler"
WRITING = "production.exception.handler"
LETTERS = "errors.dead.letter.queue.topic.name"


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    handlers.asked.clear()


def fail_on_bad(value: str) -> str:
    if value == "bad":
        message = f"cannot take {value}"
        raise ValueError(message)
    return value


def mapped() -> Topology:
    """`in`, mapped by code that fails on "bad", to `out`."""
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).map_values(lambda v: v + "").map_values(fail_on_bad).to("out", TO_STRINGS)
    return builder.build()


def run(topology: Topology, *values: bytes | None, **settings: str) -> TopologyTestDriver:
    config = {name.replace("_", "."): value for name, value in settings.items()}
    driver = TopologyTestDriver(topology, config)
    for number, value in enumerate(values):
        driver._pipe("in", b"k", value, number + 10, (("h", b"1"),))
    return driver


def values_of(driver: TopologyTestDriver, topic: str = "out") -> list[bytes | None]:
    return [record.value for record in driver.read_raw(topic)]


def test_without_a_handler_a_failure_stops_the_task_with_its_coordinates() -> None:
    with pytest.raises(
        ProcessingError, match=r"ValueError: cannot take bad .*task 0_0, topic in, partition 0, offset 1"
    ):
        run(mapped(), b"good", b"bad")


def test_continue_drops_the_record_and_counts_it() -> None:
    driver = run(mapped(), b"1", b"bad", b"2", processing_exception_handler="continue")
    assert values_of(driver) == [b"1", b"2"]
    assert driver.dropped() == {"processing-failed": 1}


def test_skipped_records_are_kept_for_those_that_look_on_but_only_so_many() -> None:
    values = [b"1", *[b"bad"] * (MOST_FAILED + 5)]
    driver = run(mapped(), *values, processing_exception_handler="continue")
    (task,) = driver._tasks.values()
    kept = task.take_failed()
    first = kept[0]
    assert (first.task, first.topic, first.partition, first.offset, first.key) == ("0_0", "in", 0, 1, "k")
    assert (first.node, first.error, first.message) == ("KSTREAM-MAPVALUES-0000000002", "ValueError", "cannot take bad")
    assert (first.outcome, len(kept), task.take_failed()) == ("skipped", MOST_FAILED, [])
    driver._pipe("in", "ü".encode() * 1000, b"bad", 99, ())
    (last,) = task.take_failed()
    assert last.key == "ü" * 50


def test_a_skipped_record_is_shown_once_although_another_is_set_aside() -> None:
    shown: list[int] = []

    def refuse(value: str) -> str:
        (task,) = driver._tasks.values()
        shown.extend(failed.offset for failed in task.take_failed())
        raise ValueError(value)

    builder = StreamsBuilder()
    inputs = [builder.stream(topic, STRINGS) for topic in ("in", "other")]
    inputs[0].merge(inputs[1]).map_values(refuse).to("out", TO_STRINGS)
    config = {"processing.exception.handler": f"{__name__}:set_the_second_aside", "max.task.idle.ms": 1_000}
    driver = TopologyTestDriver(builder.build(), config)
    for number in range(3):
        driver._pipe("in", b"k", b"v", number, ())
    # Another attempt waits for the other input again.
    for _ in range(2):
        driver.advance_wall_clock_time(timedelta(seconds=2))
    (task,) = driver._tasks.values()
    assert [*shown, *(failed.offset for failed in task.take_failed())] == [0, 1, 2]


def set_the_second_aside(context: ErrorHandlerContext, _record: Any, _error: Exception) -> Response:
    return Response.set_aside() if context.offset == 1 else Response.resume()


class Places(Processor[str, Any]):
    """Keeps the offset that each record has for its processor."""

    def __init__(self, found: list[int]) -> None:
        self._found = found

    def init(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, _record: Record[str, Any]) -> None:
        metadata = self._context.record_metadata
        assert metadata is not None
        self._found.append(metadata.offset)


def test_after_a_failure_that_is_skipped_the_next_node_sees_the_right_record() -> None:
    found: list[int] = []
    builder = StreamsBuilder()
    rows = builder.table("rows", STRINGS, Materialized(name="rows", history_retention=timedelta(hours=1)))
    stream = builder.stream("in", STRINGS)
    waits: Joined[str, str, str] = Joined(STRING, STRING, grace_period=timedelta(milliseconds=1))
    joined = stream.left_join(rows, lambda value, _row: value, joined=waits)
    joined.map_values(fail_on_bad).to("out", TO_STRINGS)
    stream.process(lambda: Places(found))
    driver = run(builder.build(), b"bad", b"1", b"2", b"3", processing_exception_handler="tests.handlers:skip")
    assert found == [0, 1, 2, 3]
    assert values_of(driver) == [b"1", b"2"]
    ((context, _record, _exception),) = handlers.asked
    assert context.offset == 0, "it is asked about the record that has failed"
    assert driver.dropped() == {"processing-failed": 1}


class UnshownError(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError


def test_a_record_is_skipped_even_if_its_exception_cannot_be_shown() -> None:
    builder = StreamsBuilder()
    builder.stream("in", STRINGS).map_values(_raise_unshown).to("out", TO_STRINGS)
    driver = run(builder.build(), b"1", processing_exception_handler="tests.handlers:skip")
    assert driver.dropped() == {"processing-failed": 1}


def _raise_unshown(_value: str) -> str:
    raise UnshownError


def test_a_handler_is_told_where_what_and_why() -> None:
    driver = run(mapped(), b"1", b"bad", processing_exception_handler="tests.handlers:skip")
    ((context, record, exception),) = handlers.asked
    assert (context.topic, context.partition, context.offset, context.timestamp) == ("in", 0, 1, 11)
    assert (context.processor_node_id, context.task_id) == ("KSTREAM-MAPVALUES-0000000002", TaskId(0, 0))
    assert (context.headers, context.source_raw_key, context.source_raw_value) == ((("h", b"1"),), b"k", b"bad")
    assert record == Record("k", "bad", 11, (("h", b"1"),))
    assert isinstance(exception, ValueError)
    assert driver.dropped() == {"processing-failed": 1}


def test_a_handler_that_fails_is_asked_once_and_in_the_innermost_node() -> None:
    with pytest.raises(ProcessingError, match="ValueError: cannot take bad"):
        run(mapped(), b"bad", processing_exception_handler="tests.handlers:stop")
    assert [context.processor_node_id for context, *_ in handlers.asked] == ["KSTREAM-MAPVALUES-0000000002"]


def test_siblings_of_a_node_that_fails_still_get_the_record() -> None:
    builder = StreamsBuilder()
    source = builder.stream("in", STRINGS)
    source.map_values(fail_on_bad).to("out", TO_STRINGS)
    source.map_values(str.upper).to("out", TO_STRINGS)
    driver = run(builder.build(), b"bad", processing_exception_handler="continue")
    assert values_of(driver) == [b"BAD"]


@pytest.mark.parametrize(("handler", "complaint"), [("broken", "Fatal user code error"), ("silent", "not a Response")])
def test_a_handler_that_fails_itself_stops_the_task(handler: str, complaint: str) -> None:
    with pytest.raises(ProcessingError, match=complaint):
        run(mapped(), b"bad", processing_exception_handler=f"tests.handlers:{handler}")
    assert len(handlers.asked) <= 1


def test_retry_of_user_code_is_fail() -> None:
    with pytest.raises(ProcessingError, match="cannot take bad"):
        run(mapped(), b"bad", processing_exception_handler="tests.handlers:retry")


@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        ("Ignore", "or module:attribute"),
        ("tests.handlers:missing", "no attribute 'missing'"),
        ("no.such.module:x", "cannot be imported"),
        ("tests.handlers:not_a_handler", "cannot be called as an exception handler"),
        (
            "tests.handlers:of_two",
            r"must be a function of \(context, record, exception\), but of_two takes \(_context, _record\)",
        ),
        ("tests.handlers:NeedsATopic", r"NeedsATopic raised TypeError: .* missing 1 required .*'topic'"),
        ("riverrun:JSON", "cannot be called as an exception handler"),
    ],
)
def test_a_handler_that_is_none_is_refused_at_the_start(handler: str, complaint: str) -> None:
    for asked in ("deserialization", "processing", "production"):
        with pytest.raises(ConfigError, match=complaint):
            run(mapped(), **{f"{asked}_exception_handler": handler})


class Punctuating:
    """Fails in its punctuation, or forwards what fails further down."""

    def __init__(self, *, forwards: bool) -> None:
        self._forwards = forwards

    def init(self, context: ProcessorContext) -> None:
        self._context = context
        context.schedule(timedelta(seconds=1), PunctuationType.WALL_CLOCK_TIME, self._punctuate)

    def process(self, record: Record[str, str]) -> None:
        self._context.forward(record)

    def _punctuate(self, now_ms: int) -> None:
        if self._forwards:
            self._context.forward(Record("k", "bad", now_ms))
        else:
            fail_on_bad("bad")

    def close(self) -> None:
        """Do nothing."""


def punctuating(*, forwards: bool) -> Topology:
    builder = StreamsBuilder()
    punctuated = builder.stream("in", STRINGS).process(lambda: Punctuating(forwards=forwards))
    punctuated.map_values(fail_on_bad).to("out", TO_STRINGS)
    return builder.build()


def test_a_punctuation_that_fails_is_the_handlers_as_well_and_has_no_record() -> None:
    driver = run(punctuating(forwards=False), b"1", processing_exception_handler="tests.handlers:skip")
    driver.advance_wall_clock_time(timedelta(seconds=1))
    driver.advance_wall_clock_time(timedelta(seconds=1))
    (context, record, _), _again = handlers.asked
    assert record is None
    assert (context.topic, context.partition, context.offset, context.timestamp) == (None, -1, -1, 1000)
    assert (context.processor_node_id, context.source_raw_value) == ("KSTREAM-PROCESSOR-0000000001", None)
    assert driver.dropped() == {"processing-failed": 2}


def test_what_fails_below_a_punctuation_is_asked_about_there() -> None:
    driver = run(punctuating(forwards=True), processing_exception_handler="tests.handlers:stop")
    with pytest.raises(ProcessingError, match=r"cannot take bad.*task 0_0"):
        driver.advance_wall_clock_time(timedelta(seconds=1))
    ((context, record, _),) = handlers.asked
    assert (context.processor_node_id, record) == ("KSTREAM-MAPVALUES-0000000002", Record("k", "bad", 1000))


def test_a_punctuation_that_fails_without_a_handler_names_its_node() -> None:
    driver = run(punctuating(forwards=False))
    with pytest.raises(ProcessingError, match=r"Punctuation of KSTREAM-PROCESSOR-0000000001 failed.*task 0_0"):
        driver.advance_wall_clock_time(timedelta(seconds=1))


def counting() -> Topology:
    """Counts per key, cached; the code behind the count fails on 2."""

    def no_two(count: int) -> int:
        return 1 // (count - 2)

    builder = StreamsBuilder()
    grouped = builder.stream("in", STRINGS).group_by_key(Grouped(STRING, STRING))
    grouped.count(Materialized(name="counts")).to_stream().map_values(no_two).to("out", Produced(STRING, LONG))
    return builder.build()


def test_what_a_cache_forwards_is_handled_with_the_record_it_came_from() -> None:
    driver = run(counting(), b"a", b"b", b"c", processing_exception_handler="tests.handlers:skip")
    ((context, record, _),) = handlers.asked
    assert (context.topic, context.offset, context.source_raw_value) == ("in", 1, b"b")
    assert record == Record("k", 2, 11, (("h", b"1"),))
    assert driver.get_key_value_store("counts").get("k") == 3


def test_what_a_cache_forwards_stops_the_task_without_a_handler() -> None:
    with pytest.raises(ProcessingError, match=r"ZeroDivisionError.*task 0_0"):
        run(counting(), b"a", b"b")


def decoding() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", Consumed(STRING, JSON)).to("out", Produced(STRING, JSON))
    return builder.build()


def test_an_undecodable_record_is_the_handlers() -> None:
    driver = run(decoding(), b"1", b"{", b"2", deserialization_exception_handler="tests.handlers:skip")
    ((context, record, _),) = handlers.asked
    assert (context.processor_node_id, context.offset, context.timestamp) == ("KSTREAM-SOURCE-0000000000", 1, 11)
    assert (record.topic, record.offset, record.key, record.value) == ("in", 1, b"k", b"{")
    assert values_of(driver) == [b"1", b"2"]
    assert driver.dropped() == {"undecodable": 1}


def test_an_undecodable_record_stops_the_task_if_the_handler_says_so() -> None:
    with pytest.raises(DeserializationError, match=r"cannot be decoded.*topic in, partition 0, offset 0"):
        run(decoding(), b"{", deserialization_exception_handler="tests.handlers:stop")


def test_an_undecodable_record_of_a_global_table_sends_no_letter() -> None:
    builder = StreamsBuilder()
    builder.global_table("in", Consumed(STRING, JSON), Materialized(name="rows"))
    settings = {"deserialization_exception_handler": "continue", "errors_dead_letter_queue_topic_name": "letters"}
    driver = run(builder.build(), b"{", b"1", **settings)
    assert driver.dropped() == {"undecodable": 1}
    assert driver.get_key_value_store("rows").get("k") == 1
    assert driver.produced_topic_names() == set()


class Failing(Processor[str, str]):
    """Fills a store, and fails on "bad"."""

    def init(self, context: ProcessorContext) -> None:
        self.rows = context.get_state_store("rows")

    def process(self, record: Record[str, str]) -> None:
        self.rows.put(record.key, fail_on_bad(record.value))


def filling_a_global_store() -> Topology:
    builder = StreamsBuilder()
    builder.add_global_store(Stores.key_value_store("rows", STRING, STRING), "in", STRINGS, Failing)
    return builder.build()


def test_a_failure_in_a_global_processor_is_the_handlers_if_it_is_enabled_there() -> None:
    settings: dict[str, Any] = {
        "processing.exception.handler": "tests.handlers:SkipAndKeep",
        "processing.exception.handler.global.enabled": True,
    }
    with TopologyTestDriver(filling_a_global_store(), settings) as driver:
        driver.input_topic("in", STRING, STRING).pipe_key_value_list([("k", "good"), ("k", "bad")])
        assert driver.get_key_value_store("rows").get("k") == "good"
        assert driver.dropped() == {"processing-failed": 1}
        assert driver.produced_topic_names() == set()
    ((context, record, _error),) = handlers.asked
    assert (context.topic, context.offset, context.source_raw_value) == ("in", 1, b"bad")
    assert (context.processor_node_id, str(context.task_id)) == ("KTABLE-SOURCE-0000000001", "-1_-1")
    assert record.value == "bad"


def test_a_failure_in_a_global_processor_stops_the_instance_unless_that_is_enabled() -> None:
    driver = run(filling_a_global_store(), processing_exception_handler="continue")
    with pytest.raises(
        ProcessingError, match=r"global store rows failed: ValueError: .* topic in, partition 0, offset 0"
    ):
        driver.input_topic("in", STRING, STRING).pipe_input("k", "bad")


def writing() -> Topology:
    builder = StreamsBuilder()
    as_json = builder.stream("in", STRINGS).map_values(lambda v: 1j if v == "bad" else v)
    as_json.to("out", Produced(STRING, JSON))
    return builder.build()


def test_what_a_sink_cannot_serialise_is_the_production_handlers() -> None:
    driver = run(writing(), b"1", b"bad", b"2", production_exception_handler="tests.handlers:skip")
    ((context, record, _),) = handlers.asked
    assert (context.processor_node_id, context.offset, context.source_raw_value) == (
        "KSTREAM-SINK-0000000002",
        1,
        b"bad",
    )
    assert context.serialization_origin is SerializationExceptionOrigin.VALUE
    assert record == ProducerRecord("out", "k", 1j, 11, (("h", b"1"),))
    assert values_of(driver) == [b'"1"', b'"2"']
    assert driver.dropped() == {"production-failed": 1}


def test_without_handlers_the_sink_is_named() -> None:
    with pytest.raises(SerializationError, match="Sink KSTREAM-SINK-0000000002 cannot write"):
        run(writing(), b"bad")


class Refusing(MemoryTopics):
    """A collector that refuses records of one topic."""

    error: Exception = RefusedRecordError("too large")
    refused = "out"

    def send(self, topic: str, *rest: Any) -> None:
        if topic == self.refused:
            raise self.error
        super().send(topic, *rest)


def task_that_cannot_write(error: Exception, **chosen: Any) -> tuple[Task, Refusing]:
    topics = Refusing()
    topics.error = error
    (sub,) = mapped().sub_topologies()
    spec = TaskSpec(TaskId(0, 0), sub, "app", (TopicPartition("in", 0),), handlers=ErrorHandlers(**chosen))
    task = Task(spec, Ports(topics, MemoryBackend(), MockClock()))
    task.start({})
    task.add_records(TopicPartition("in", 0), [RawRecord(b"k", b"v", 1, 0)])
    return task, topics


def test_a_record_the_client_refuses_is_the_production_handlers() -> None:
    task, topics = task_that_cannot_write(RefusedRecordError("too large"), production=LogAndContinue("letters"))
    task.process_all()
    (letter,) = topics.logs["letters"]
    assert (letter.key, letter.value, dict(letter.headers)["__streams.errors.message"]) == (b"k", b"v", b"too large")
    assert task.dropped == {"production-failed": 1}


IN_0 = TopicPartition("in", 0)


def test_a_change_that_the_client_refuses_to_log_says_which_records_it_may_be_of() -> None:
    topics, builder = Refusing(), StreamsBuilder()
    topics.refused = "app-kept-changelog"
    builder.stream("in", Consumed(STRING, STRING)).group_by_key().count(Materialized(name="kept"))
    (sub,) = builder.build().sub_topologies()
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (IN_0,)), Ports(topics, MemoryBackend(), MockClock()))
    task.start({IN_0: (5, "")})
    task.add_records(IN_0, [RawRecord(b"k", b"v", 1, 5), RawRecord(b"k", b"v", 2, 6)])
    task.process_all()
    with pytest.raises(RefusedRecordError, match=r"task 0_0, store kept, from one of in-0@5 to 6"):
        task.prepare_commit()


@pytest.mark.parametrize("error", [BrokerError("gone"), TaskMigratedError("fenced"), RefusedRecordError("too large")])
def test_what_the_host_must_deal_with_is_never_given_to_the_processing_handler(error: Exception) -> None:
    task, _ = task_that_cannot_write(error, processing=handlers.skip)
    with pytest.raises(type(error)):
        task.process_all()
    assert handlers.asked == []


HEADERS = [
    "h",
    "__streams.errors.exception",
    "__streams.errors.message",
    "__streams.errors.stacktrace",
    "__streams.errors.topic",
    "__streams.errors.partition",
    "__streams.errors.offset",
]


@pytest.mark.parametrize(
    ("topology", "handler", "bad"),
    [(mapped, PROCESSING, b"bad"), (decoding, READING, b"{"), (writing, WRITING, b"bad")],
)
def test_a_dead_letter_is_the_input_record_with_kafka_streams_headers(
    topology: Callable[[], Topology], handler: str, bad: bytes
) -> None:
    driver = run(topology(), b"1", bad, **{handler.replace(".", "_"): "continue", LETTERS.replace(".", "_"): "letters"})
    (letter,) = driver.read_raw("letters")
    assert (letter.key, letter.value, letter.timestamp) == (b"k", bad, 11)
    assert [name for name, _ in letter.headers] == HEADERS + [SET_ASIDE] * (topology is decoding)
    texts = dict(letter.headers)
    assert texts["__streams.errors.topic"] == b"in"
    assert texts["__streams.errors.partition"] == b"0"
    assert texts["__streams.errors.offset"] == b"1"
    assert b"Traceback (most recent call last)" in (texts["__streams.errors.stacktrace"] or b"")


def test_a_dead_letter_says_what_failed() -> None:
    settings = {"processing_exception_handler": "continue", "errors_dead_letter_queue_topic_name": "letters"}
    (letter,) = run(mapped(), b"bad", **settings).read_raw("letters")
    assert dict(letter.headers)["__streams.errors.exception"] == b"ValueError"
    assert dict(letter.headers)["__streams.errors.message"] == b"cannot take bad"


def test_a_punctuations_dead_letter_has_no_record_and_no_topic() -> None:
    settings = {"processing_exception_handler": "continue", "errors_dead_letter_queue_topic_name": "letters"}
    driver = run(punctuating(forwards=False), **settings)
    driver.advance_wall_clock_time(timedelta(seconds=1))
    (letter,) = driver.read_raw("letters")
    assert (letter.key, letter.value, letter.timestamp) == (None, None, 1000)
    assert dict(letter.headers)["__streams.errors.topic"] is None
    assert dict(letter.headers)["__streams.errors.offset"] == b"-1"


def test_with_a_dead_letter_topic_fail_keeps_the_record_before_it_stops() -> None:
    driver = TopologyTestDriver(mapped(), {LETTERS: "letters"})
    with pytest.raises(ProcessingError, match="cannot take bad"):
        driver.input_topic("in", STRING, STRING).pipe_input("k", "bad")
    assert values_of(driver, "letters") == [b"bad"]


def test_a_users_handler_sends_what_letters_it_likes() -> None:
    driver = run(mapped(), b"bad", processing_exception_handler="tests.handlers:SkipAndKeep")
    assert values_of(driver, "kept") == [b"bad"]


def test_letters_of_a_version_that_is_not_live_go_where_the_host_says() -> None:
    topics = MemoryTopics()
    (sub,) = mapped().sub_topologies()
    chosen = ErrorHandlers(processing=handlers.SkipAndKeep())
    tp = TopicPartition("in", 0)
    task = Task(
        TaskSpec(TaskId(0, 0), sub, "app", (tp,), handlers=chosen, dead_letters="staging"),
        Ports(topics, MemoryBackend(), MockClock()),
    )
    task.start({})
    task.add_records(tp, [RawRecord(b"k", b"good", 1, 0), RawRecord(b"k", b"bad", 2, 1)])
    task.process_all()
    assert {topic: [record.value for record in log] for topic, log in topics.logs.items()} == {
        "out": [b"good"],
        "staging": [b"bad"],
    }


def test_an_input_of_nothing_but_undecodable_records_is_committed() -> None:
    (sub,) = decoding().sub_topologies()
    tp = TopicPartition("in", 0)
    topics = MemoryTopics()
    chosen = ErrorHandlers(deserialization=LogAndContinue("letters"))
    task = Task(TaskSpec(TaskId(0, 0), sub, "app", (tp,), handlers=chosen), Ports(topics, MemoryBackend(), MockClock()))
    task.start({})
    task.add_records(tp, [RawRecord(b"k", b"{", 1, 0), RawRecord(b"k", b"{", 2, 1)])
    assert task.process(10) == 0
    assert task.needs_commit
    assert task.prepare_commit().offsets[tp][0] == 2
    task.post_commit({})
    assert not task.needs_commit


def test_a_dead_letter_has_key_and_value_though_another_sink_has_written() -> None:
    """Kafka Streams has forgotten them by then (DIFFERENCES.md)."""
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS)
    stream.to("out", TO_STRINGS)
    stream.map_values(fail_on_bad).to("second", TO_STRINGS)
    settings = {"processing_exception_handler": "continue", "errors_dead_letter_queue_topic_name": "letters"}
    (letter,) = run(builder.build(), b"bad", **settings).read_raw("letters")
    assert (letter.key, letter.value) == (b"k", b"bad")


class Remembering:
    """Puts every record into a window store, at its own time."""

    def init(self, context: ProcessorContext) -> None:
        self._store = context.get_state_store("windows")

    def process(self, record: Record[str, str]) -> None:
        self._store.put(record.key, record.value, record.timestamp)

    def close(self) -> None:
        """Do nothing."""


def test_what_a_store_has_let_go_of_already_counts_as_dropped() -> None:
    hour = timedelta(hours=1)
    builder = StreamsBuilder()
    builder.add_state_store(Stores.window_store("windows", STRING, STRING, retention=hour, window_size=hour))
    builder.stream("in", STRINGS).process(Remembering, "windows")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input_topic("in", STRING, STRING)
        source.pipe_key_value_list([("k", "old"), ("k", "new")], start_ms=0, advance=2 * hour)
        source.pipe_input("k", "expired", timestamp=1)
        assert driver.dropped() == {"expired-window": 1}


_ends: list[BaseException] = []


def _quit(*_given: Any) -> Any:
    raise _ends[0]


class _Quitting(Processor[Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        _quit(record)


class _QuittingLater(Processor[Any, Any]):
    def init(self, context: ProcessorContext) -> None:
        context.schedule(timedelta(milliseconds=1), PunctuationType.STREAM_TIME, _quit)

    def process(self, record: Record[Any, Any]) -> None: ...


@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.stream("in", STRINGS).map_values(_quit),
        lambda b: b.stream("in", STRINGS).filter(_quit),
        lambda b: b.stream("in", STRINGS).foreach(_quit),
        lambda b: b.stream("in", STRINGS).select_key(_quit).to("out", TO_STRINGS),
        lambda b: b.stream("in", STRINGS).group_by_key().aggregate(_quit, _quit, Materialized(STRING, STRING, name="s")),
        lambda b: b.stream("in", STRINGS).group_by_key().reduce(_quit, Materialized(name="s")),
        lambda b: b.stream("in", STRINGS).process(_Quitting),
        lambda b: b.stream("in", STRINGS).process(_QuittingLater),
        lambda b: b.stream("in", Consumed(STRING, Serde("own", str.encode, _quit))),
        lambda b: b.stream("in", Consumed(STRING, STRING, timestamp_extractor=_quit)),
        lambda b: b.stream("in", STRINGS).to("out", Produced(STRING, Serde("own", _quit, bytes.decode))),
        lambda b: b.stream("in", STRINGS).to("out", Produced(STRING, STRING, partitioner=_quit)),
        lambda b: b.stream("in", STRINGS).to(_quit, TO_STRINGS),
        lambda b: b.table("in", STRINGS).map_values(_quit, Materialized(STRING, STRING, name="s")),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        # What `breakpoint()` raises in a process without a terminal.
        (BdbQuit(), DebuggerError, "ended in a debugger"),
        (MemoryError("no room"), (MemoryExhaustedError, ProcessingError), r"no room(.|\n)*more memory, or fewer tasks"),
    ],
    ids=["debugger", "memory"],
)
def test_a_record_that_is_not_to_blame_is_not_skipped(
    build: Callable[[StreamsBuilder], object], end: BaseException, error: Any, message: str
) -> None:
    _ends[:] = [end]
    builder = StreamsBuilder()
    build(builder)
    config = dict.fromkeys((PROCESSING, READING, WRITING), "continue")
    with pytest.raises(error, match=message):
        pipe(builder.build(), config)


def _refuse(*_given: Any) -> Any:
    message = "the record is too large"
    raise ValueError(message) from MemoryError()


@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.stream("in", STRINGS).map_values(_refuse),
        lambda b: b.stream("in", Consumed(STRING, Serde("own", str.encode, _refuse))),
        lambda b: b.stream("in", STRINGS).to("out", Produced(STRING, Serde("own", _refuse, bytes.decode))),
    ],
)
def test_a_record_that_code_refuses_as_too_large_is_skipped(build: Callable[[StreamsBuilder], object]) -> None:
    builder = StreamsBuilder()
    build(builder)
    pipe(builder.build(), dict.fromkeys((PROCESSING, READING, WRITING), "continue"))


def pipe(topology: Topology, config: dict[str, str]) -> None:
    with TopologyTestDriver(topology, config=config) as driver:
        source = driver.input_topic("in", STRING, STRING)
        for timestamp in (1, 5, 5):
            source.pipe_input("a", "b", timestamp=timestamp)


@pytest.mark.parametrize("processing", ["continue", "tests.handlers:skip", "tests.handlers:SkipAndKeep"])
@pytest.mark.parametrize("writing", ["fail", "tests.handlers:stop", "tests.handlers:retry"])
@pytest.mark.parametrize("bad", ["keys", "values", "windowed keys"])
@pytest.mark.parametrize("keeps_letters", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_nobody_overrules_the_handler_of_a_value_that_a_sink_refuses(
    processing: str, writing: str, bad: str, depth: int, keeps_letters: bool
) -> None:
    refusing: Serde[str] = Serde("refusing", lambda value: fail_on_bad(value).encode(), bytes.decode)
    builder = StreamsBuilder()
    stream: KStream[Any, str] = builder.stream("in", STRINGS).map(lambda _, v: (v, v))
    for _ in range(depth):
        stream = stream.filter(lambda _k, _v: True).map_values(lambda v: v)
    keys: Serde[Any] = STRING if bad == "values" else refusing
    values = refusing if bad == "values" else STRING
    if bad == "windowed keys":
        stream = stream.map(lambda k, v: (Windowed(k, Window(0, 5)), v))
        keys = windowed(refusing)
    stream.to("out", Produced(keys, values))
    chosen = {PROCESSING: processing, WRITING: writing} | ({LETTERS: "letters"} if keeps_letters else {})
    driver = TopologyTestDriver(builder.build(), chosen)
    driver._pipe("in", b"k", b"good", 1, ())
    with pytest.raises(SerializationError, match="cannot take bad"):
        driver._pipe("in", b"k", b"bad", 2, ())
    assert len(handlers.asked) == (writing != "fail"), "the processing handler is not asked"
    assert driver.dropped() == {}
    assert [record.value for record in driver.read_raw("letters")] == [b"bad"] * (writing == "fail" and keeps_letters)


OWN_HEADERS = st.sampled_from([ERRORS_EXCEPTION, ERRORS_MESSAGE, ERRORS_STACKTRACE, ERRORS_TOPIC, ERRORS_OFFSET, "h"])


@settings(deadline=None)
@given(st.lists(st.tuples(OWN_HEADERS, st.binary() | st.none()), max_size=8), st.integers(1, 3))
def test_a_letter_keeps_all_headers_that_its_record_had(headers: list[Any], times: int) -> None:
    """Also those of a record that was a letter before, however often."""
    for number in range(times):
        tp = TopicPartition("in", 2)
        where = context_of(tp, RawRecord(b"k", b"v", 5, number, tuple(headers)), "node", TaskId(0, 2))
        written = dead_letter_queue_record("letters", where, ValueError(f"failed {number}"))
        fields = (written.key, written.value, written.timestamp, 9, written.headers)
        letter = letter_of(TopicPartition("letters", 0), fields, {})
        assert letter is not None
        assert (letter.headers, letter.origin, letter.origin_offset) == (tuple(headers), tp, number)
        assert (letter.error, letter.message) == ("ValueError", f"failed {number}")
        headers = list(written.headers)
