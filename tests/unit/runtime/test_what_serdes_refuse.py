"""Keys and values that a serde refuses are errors that say where, and the processing handler's to decide."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    JSON,
    LONG,
    STRING,
    BufferConfig,
    Consumed,
    DeserializationError,
    Grouped,
    Joined,
    Materialized,
    Processor,
    Produced,
    SerializationError,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Window,
    Windowed,
    windowed,
)
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from riverrun.testing import TopologyTestDriver
from tests import handlers
from tests.stores import Context, commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream, ProcessorContext, Record, Serde
    from riverrun.state.api import StoreBuilder

HOUR = timedelta(hours=1)
STORES: dict[str, Callable[..., StoreBuilder]] = {
    "key-value": lambda keys, values, caching: Stores.key_value_store("kept", keys, values, caching=caching),
    "window": lambda keys, values, caching: Stores.window_store(
        "kept", keys, values, retention=HOUR, window_size=HOUR, caching=caching
    ),
    "session": lambda keys, values, caching: Stores.session_store(
        "kept", keys, values, retention=HOUR, caching=caching
    ),
    "versioned": lambda keys, values, _caching: Stores.versioned_key_value_store(
        "kept", keys, values, history_retention=HOUR
    ),
}
CALLS: dict[str, list[Callable[[Any, Any], Any]]] = {
    "key-value": [
        lambda store, key: store.put(key, 1),
        lambda store, key: store.get(key),
        lambda store, key: store.delete(key),
        lambda store, key: list(store.range(key, None)),
        lambda store, key: list(store.range(None, key)),
    ],
    "window": [
        lambda store, key: store.put(key, 1, 0),
        lambda store, key: store.fetch(key, 0),
        lambda store, key: list(store.fetch_range(key, 0, 9)),
        lambda store, key: list(store.fetch_keys(key, None, 0, 9)),
        lambda store, key: list(store.fetch_keys(None, key, 0, 9)),
    ],
    "session": [
        lambda store, key: store.put(Windowed(key, Window(0, 1)), 1),
        lambda store, key: store.fetch_session(key, 0, 1),
        lambda store, key: list(store.fetch(key)),
        lambda store, key: list(store.fetch_keys(key, None)),
        lambda store, key: list(store.fetch_keys(None, key)),
    ],
    "versioned": [lambda store, key: store.put(key, 1, 0), lambda store, key: store.get(key)],
}
ALL: dict[str, Callable[[Any], Any]] = {
    "key-value": lambda store: list(store.all()),
    "window": lambda store: list(store.all()),
    "session": lambda store: list(store.all()),
    "versioned": lambda store: list(store.all_versions()),
}


def opened(kind: str, backend: MemoryBackend, keys: Serde[Any], values: Serde[Any], *, caching: bool = False) -> Any:
    return open_store(STORES[kind](keys, values, caching), backend, Context())


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind, calls in CALLS.items() for call in calls])
def test_a_key_of_another_type_is_an_error_that_names_store_and_key(
    kind: str, call: Callable[[Any, Any], Any], *, caching: bool
) -> None:
    store = opened(kind, MemoryBackend(), STRING, LONG, caching=caching)
    with pytest.raises(
        SerializationError, match=r"Store kept cannot take the int key 5: serde string refuses it \(Type"
    ):
        call(store, 5)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("kind", CALLS)
def test_bytes_that_another_serde_has_written_are_an_error_that_names_the_store(kind: str, *, caching: bool) -> None:
    backend = MemoryBackend()
    commit_of_text = opened(kind, backend, STRING, STRING)
    CALLS[kind][0](_Putting(commit_of_text), "a key")
    commit(commit_of_text, backend)
    store = opened(kind, backend, STRING, LONG, caching=caching)
    with pytest.raises(DeserializationError, match=r"Store kept cannot read the 4 bytes of key .*a key"):
        ALL[kind](store)
    with pytest.raises(DeserializationError, match=r"Store kept cannot read the 4 bytes of key .*a key.*: serde long"):
        CALLS[kind][1](store, "a key")
    store = opened(kind, backend, LONG, STRING, caching=caching)
    with pytest.raises(DeserializationError, match="Store kept cannot read the key b'a key': serde long"):
        ALL[kind](store)


class _Putting:
    """Puts a text, whatever it is told to."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def put(self, key: Any, _value: Any, *time: int) -> None:
        self.store.put(key, "text", *time)


class Keeping(Processor[str, Any]):
    """Calls a function of the store and of a record's value."""

    def __init__(self, call: Callable[[Any, Any], object]) -> None:
        self.call = call

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store("kept")

    def process(self, record: Record[str, Any]) -> None:
        self.call(self.store, record.value)
        self.context.forward(record)


def processed(call: Callable[[Any, Any], object], store: StoreBuilder | None = None) -> Callable[[Any, Any], Any]:
    def build(builder: StreamsBuilder, stream: KStream[str, Any]) -> Any:
        builder.add_state_store(store or Stores.key_value_store("kept", STRING, LONG, caching=True))
        return stream.process(lambda: Keeping(call), "kept", named=None)

    return build


def summed(_builder: StreamsBuilder, stream: KStream[str, Any]) -> Any:
    return stream.group_by_key(Grouped(STRING, JSON)).reduce(lambda one, two: one + two, numbers()).to_stream()


def summed_in_windows(_builder: StreamsBuilder, stream: KStream[str, Any]) -> Any:
    grouped = stream.group_by_key(Grouped(STRING, JSON)).windowed_by(TimeWindows.of(HOUR))
    return grouped.reduce(lambda one, two: one + two, numbers()).to_stream()


def numbers() -> Materialized[str, int]:
    return Materialized(STRING, LONG, name="kept")


def joined_by_a_wrong_key(builder: StreamsBuilder, stream: KStream[str, Any]) -> Any:
    table = builder.global_table("all", Consumed(STRING, JSON), Materialized(name="kept"))
    return stream.join(table, lambda one, _other: one, key_selector=lambda _key, value: value)


def joined_later(builder: StreamsBuilder, stream: KStream[str, Any]) -> Any:
    table = builder.table("all", Consumed(STRING, JSON), Materialized(name="versions", history_retention=HOUR))
    return stream.join(table, lambda one, _other: one, joined=Joined(STRING, STRING, grace_period=HOUR))


def joined_by_a_wrong_foreign_key(builder: StreamsBuilder, stream: KStream[str, Any]) -> Any:
    foreign = builder.table("all", Consumed(STRING, JSON))
    rows = stream.to_table(Materialized(STRING, JSON, name="rows"))
    joined = rows.join(foreign, lambda one, _other: one, foreign_key_extractor=lambda value: value)
    return joined.to_stream()


def held_back(_builder: StreamsBuilder, stream: KStream[str, Any]) -> Any:
    table = stream.to_table(Materialized(STRING, JSON, name="rows"))
    renamed = table.filter(lambda _key, _value: True, materialized=Materialized(STRING, LONG, name="kept"))
    return renamed.suppress(Suppressed.until_time_limit(HOUR, BufferConfig.unbounded())).to_stream()


def windows_of_wrong_keys(_builder: StreamsBuilder, stream: KStream[str, Any]) -> Any:
    renamed = stream.map(lambda _key, value: (Windowed(value, Window(0, 1)), value))
    renamed.to("out-of-windows", Produced(windowed(STRING, HOUR), JSON))
    return renamed


LONG_REFUSES = "Store kept cannot keep the int of key .*'a'.*: serde long refuses it"
REFUSED = [
    (processed(lambda store, value: store.put(value, 1)), "Store kept cannot take the int key"),
    (processed(lambda store, value: store.get(value)), "Store kept cannot take the int key"),
    (processed(lambda store, value: store.put("a", value)), LONG_REFUSES),
    (
        processed(lambda store, value: store.put("a", value), Stores.timestamped_key_value_store("kept", STRING, LONG)),
        "Store kept keeps values with their times, not the int of key 'a'",
    ),
    (
        processed(
            lambda store, value: store.put("a", value),
            Stores.timestamped_key_value_store("kept", STRING, LONG, caching=True),
        ),
        "Store kept keeps values with their times, not the int of key 'a'",
    ),
    (summed, LONG_REFUSES),
    (summed_in_windows, LONG_REFUSES),
    (joined_by_a_wrong_key, "Store kept cannot take the int key"),
    (joined_later, "cannot keep the int of key 'a': serde string refuses it"),
    (joined_by_a_wrong_foreign_key, "(Sink .*|A join by a foreign key) cannot write the int (foreign )?key"),
    (held_back, LONG_REFUSES),
    (windows_of_wrong_keys, "Sink .* cannot write the Windowed key .* to out-of-windows: serde windowed"),
]
"""Topologies that refuse a number of 63 bits, and what they say."""


def piped(build: Callable[[Any, Any], Any], config: dict[str, Any], size: int) -> TopologyTestDriver:
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, JSON))
    build(builder, stream).map(lambda _key, _value: ("done", 1)).to("out", Produced(STRING, LONG))
    driver = TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": size, **config})
    if "all" in str(builder.build().describe()):
        driver.input_topic("all", STRING, JSON).pipe_input("a", {})
    topic = driver.input_topic("in", STRING, JSON)
    for number in (2**63, 2**63):
        topic.pipe_input("a", number)
    return driver


@pytest.mark.parametrize("size", [0, 10_000_000])
@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_without_a_handler_the_error_names_the_record(build: Any, message: str, size: int) -> None:
    with pytest.raises(SerializationError, match=message) as caught:
        piped(build, {}, size)
    assert "task" in caught.value.coordinates


def test_the_production_handler_decides_about_windows_of_wrong_keys() -> None:
    with piped(windows_of_wrong_keys, {"production.exception.handler": "tests.handlers:skip"}, 0) as driver:
        assert driver.dropped()["production-failed"] == 2


@pytest.mark.parametrize("size", [0, 10_000_000])
@pytest.mark.parametrize(("build", "message"), [each for each in REFUSED if each[0] is not windows_of_wrong_keys])
def test_the_processing_handler_decides_about_the_record(build: Any, message: str, size: int) -> None:
    handlers.asked.clear()
    with piped(build, {"processing.exception.handler": "tests.handlers:skip"}, size) as driver:
        assert driver.dropped()["processing-failed"] == 2
    for context, _, error in handlers.asked:
        assert isinstance(error, SerializationError)
        assert re.search(message, error.message)
        assert context.topic == "in"
