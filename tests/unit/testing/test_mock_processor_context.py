"""A processor alone: the facts of Kafka Streams' MockProcessorContextTest, and what is different in Python."""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    JSON,
    LONG,
    STRING,
    ConfigError,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    RecordingLevel,
    StoreBuilder,
    Stores,
    StreamsError,
)
from riverrun.errors import InvalidStateStoreError
from riverrun.records import RecordMetadata, TaskId
from riverrun.testing import CapturedForward, MockProcessorContext

if TYPE_CHECKING:
    from collections.abc import Callable

SECOND = timedelta(seconds=1)


class Holding(Processor[str, int]):
    """Holds its context."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[str, int]) -> None:
        """Nothing."""


def run(processor: Processor[str, int], context: MockProcessorContext, *records: Record[str, int]) -> None:
    processor.init(context)
    for record in records:
        processor.process(record)


def test_output_records_are_captured_and_can_be_forgotten() -> None:
    class Appending(Holding):
        def process(self, record: Record[str, int]) -> None:
            self.context.forward(Record(f"{record.key}{record.value}", len(record.key) + record.value, 0))

    context = MockProcessorContext()
    run(Appending(), context, Record("foo", 5, 0), Record("barbaz", 50, 0))
    assert context.forwarded() == [CapturedForward(Record("foo5", 8, 0)), CapturedForward(Record("barbaz50", 56, 0))]
    before = context.forwarded()
    context.reset_forwards()
    assert context.forwarded() == []
    assert len(before) == 2, "what was given does not change"


def test_records_are_captured_by_the_child_they_were_sent_to() -> None:
    class Alternating(Holding):
        count = 0

        def process(self, record: Record[str, int]) -> None:
            if self.count == 0:
                self.context.forward(Record("start", -1, 0))
            child = "george" if self.count % 2 == 0 else "pete"
            self.context.forward(Record(f"{record.key}{record.value}", len(record.key) + record.value, 0), child)
            self.count += 1

    context = MockProcessorContext()
    run(Alternating(), context, Record("foo", 5, 0), Record("barbaz", 50, 0))
    start = CapturedForward(Record("start", -1, 0))
    george = CapturedForward(Record("foo5", 8, 0), "george")
    pete = CapturedForward(Record("barbaz50", 56, 0), "pete")
    assert context.forwarded() == [start, george, pete]
    assert context.forwarded("george") == [start, george]
    assert context.forwarded("pete") == [start, pete]
    assert context.forwarded("steve") == [start]


def test_commits_are_captured_and_can_be_reset() -> None:
    class Committing(Holding):
        count = 0

        def process(self, _record: Record[str, int]) -> None:
            self.count += 1
            if self.count > 2:
                self.context.commit()

    context, processor = MockProcessorContext(), Committing()
    run(processor, context, Record("foo", 5, 0), Record("barbaz", 50, 0))
    assert not context.committed()
    processor.process(Record("foobar", 500, 0))
    assert context.committed()
    context.reset_commit()
    assert not context.committed()


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("logging", [True, False])
def test_stores_are_kept_whatever_their_builders_say(persistent: bool, caching: bool, logging: bool) -> None:
    class Adding(Holding):
        def process(self, record: Record[str, int]) -> None:
            store = self.context.get_state_store("my-state")
            for key in (record.key, "all"):
                store.put(key, (store.get(key) or 0) + record.value)

    context = MockProcessorContext()
    builder = Stores.key_value_store("my-state", STRING, LONG, persistent=persistent, caching=caching, logging=logging)
    store = context.add_state_store(builder)
    run(Adding(), context, Record("foo", 5, 0), Record("bar", 50, 0))
    assert (store.get("foo"), store.get("bar"), store.get("all")) == (5, 50, 55)
    assert dict(store.all()) == {"foo": 5, "bar": 50, "all": 55}
    assert context.get_state_store("my-state") is store
    assert context.get_state_store(builder) is store


@pytest.mark.parametrize(
    "builder",
    [
        Stores.timestamped_key_value_store("s", STRING, LONG),
        Stores.window_store("s", STRING, LONG, retention=SECOND, window_size=SECOND),
        Stores.timestamped_window_store("s", STRING, LONG, retention=SECOND, window_size=SECOND),
        Stores.session_store("s", STRING, LONG, retention=SECOND),
        Stores.versioned_key_value_store("s", STRING, LONG, history_retention=SECOND),
    ],
    ids=lambda builder: builder.kind.value,
)
def test_stores_of_every_kind_can_be_added(builder: StoreBuilder) -> None:
    context = MockProcessorContext()
    assert context.add_state_store(builder).name == "s"


def test_a_store_of_the_tests_own_can_be_added_and_one_that_was_not_is_an_error() -> None:
    class Fake:
        name = "fake"

    context, fake = MockProcessorContext(), Fake()
    assert context.add_state_store(fake) is fake
    assert context.get_state_store("fake") is fake
    with pytest.raises(InvalidStateStoreError, match="no StateStore other"):
        context.get_state_store("other")


def test_application_and_record_metadata_are_what_the_test_has_set() -> None:
    context = MockProcessorContext(application_id="testMetadata")
    assert (context.application_id, context.task_id, context.record_metadata) == ("testMetadata", TaskId(0, 0), None)
    context.set_record_metadata("t1", 0, offset=7)
    assert context.record_metadata == RecordMetadata("t1", 0, 7)


@pytest.mark.parametrize("start_ms", [None, 5_000])
def test_a_punctuator_is_captured_called_by_the_test_and_cancelled_by_the_processor(start_ms: int | None) -> None:
    class Scheduling(Holding):
        def init(self, context: ProcessorContext) -> None:
            self.scheduled = context.schedule(
                SECOND, PunctuationType.WALL_CLOCK_TIME, lambda _now_ms: context.commit(), start_ms=start_ms
            )

    context, processor = MockProcessorContext(), Scheduling()
    processor.init(context)
    [captured] = context.scheduled_punctuators()
    assert (captured.interval, captured.punctuation_type) == (SECOND, PunctuationType.WALL_CLOCK_TIME)
    assert (captured.start_ms, captured.cancelled, context.committed()) == (start_ms, False, False)
    captured.punctuator(1234)
    assert context.committed()
    processor.scheduled.cancel()
    assert captured.cancelled


def test_everything_can_be_given_when_it_is_made() -> None:
    config = {"user.limit": 3, "max.task.idle.ms": 7}
    context = MockProcessorContext(config, application_id="app", task_id=TaskId(1, 1), state_dir=Path("here"))
    assert (context.application_id, context.task_id, context.state_dir) == ("app", TaskId(1, 1), Path("here"))
    assert context.app_configs()["application.id"] == "app"
    assert context.app_configs_with_prefix("application.") == {"id": "app", "server": ""}
    assert context.app_configs_with_prefix("user.") == {"limit": 3}
    assert context.app_configs()["max.task.idle.ms"] == 7
    with pytest.raises(ConfigError, match=r"MockProcessorContext: unknown setting config\.user_limit"):
        MockProcessorContext({"user_limit": 3})


def test_times_and_the_directory_must_be_set_before_they_are_asked_for() -> None:
    context = MockProcessorContext()
    with pytest.raises(StreamsError, match=r"System time must be set before use via set_current_system_time_ms\(\)"):
        context.current_system_time_ms()
    with pytest.raises(StreamsError, match=r"Stream time must be set before use via set_current_stream_time_ms\(\)"):
        context.current_stream_time_ms()
    with pytest.raises(StreamsError, match="without a state_dir"):
        _ = context.state_dir
    context.set_current_system_time_ms(0)
    context.set_current_stream_time_ms(9)
    assert (context.current_system_time_ms(), context.current_stream_time_ms()) == (0, 9)


def test_sensors_measure_by_the_clock_of_the_test_also_those_of_level_debug() -> None:
    context = MockProcessorContext()
    context.set_current_system_time_ms(10_000)
    sensor = context.metrics.add_rate_total_sensor(
        "cache", "eu", operation_name="lookup", recording_level=RecordingLevel.DEBUG
    )
    sensor.record()
    context.set_current_system_time_ms(70_000)
    sensor.record()
    found = {metric.name: value for metric, value in context.metrics.metrics().items()}
    assert found == {"lookup-total": 2, "lookup-rate": 1 / 30}


def test_a_processor_with_fixed_keys_is_served_as_well() -> None:
    class Shouting(FixedKeyProcessor[str, str]):
        def init(self, context: FixedKeyProcessorContext) -> None:
            self.context = context

        def process(self, record: FixedKeyRecord[str, str]) -> None:
            self.context.forward(record.with_value(record.value.upper()))

    context, processor = MockProcessorContext(), Shouting()
    processor.init(context)
    processor.process(FixedKeyRecord("k", "v", 3))
    assert context.forwarded() == [CapturedForward(FixedKeyRecord("k", "V", 3))]


def test_stores_behave_as_in_a_topology() -> None:
    store = MockProcessorContext().add_state_store(
        Stores.window_store("s", STRING, LONG, retention=SECOND, window_size=SECOND)
    )
    store.put("k", 1, 0)
    store.put("k", 2, 5_000)
    assert (store.fetch("k", 0), store.fetch("k", 5_000)) == (None, 2), "the first window has expired"


class Changing(Processor[str, Any]):
    """Changes in place what it has forwarded, or what its store has."""

    def __init__(self, change: Callable[[Any, Any], object]) -> None:
        self.change = change

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store("kept")

    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)
        self.change(self.store, record)


def put_again(store: Any, _record: Any) -> None:
    known = store.get("k")
    known.append("more")
    store.put("k", known)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _store, record: record.value.append("late"), "the value ['v'] after it was forwarded"),
        (lambda _store, record: record.key.append("late"), "the key ['k'] after it was forwarded"),
        (lambda store, _record: store.get("k").append("lost"), "the value of key 'k' from store kept"),
        (put_again, None),
        (lambda _store, _record: None, None),
    ],
)
@pytest.mark.parametrize("look", ["forwarded", "reset_forwards", "committed"])
def test_a_test_hears_of_what_the_processor_changes_in_place(
    change: Callable[[Any, Any], object], said: str | None, look: str
) -> None:
    context, processor = MockProcessorContext(), Changing(change)
    context.add_state_store(Stores.key_value_store("kept", STRING, JSON)).put("k", ["v"])
    processor.init(context)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        processor.process(Record(["k"], ["v"], 1))
        assert not caught
        getattr(context, look)()
        getattr(context, look)()
    found = [str(warning.message) for warning in caught]
    assert len(found) == (said is not None), found
    if said is not None:
        assert f"The processor changed in place: {said}: b'" in found[0]
        assert caught[0].filename == __file__
