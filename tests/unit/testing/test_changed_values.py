"""The driver warns when user code changes in place a value that is not its own."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    JSON,
    STRING,
    Consumed,
    Grouped,
    Materialized,
    Processor,
    Produced,
    PunctuationType,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
)
from riverrun.testing import ChangedValueWarning, TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import KStream, ProcessorContext, Record, Topology

    Build = Callable[[StreamsBuilder], object]

SECOND = timedelta(seconds=1)
SLIDING = SlidingWindows.of_time_difference_with_no_grace(SECOND)
SESSIONS = SessionWindows.of_inactivity_gap_with_no_grace(SECOND)


def warnings_of(build: Build, config: dict[str, Any] | None = None) -> list[str]:
    """The driver's warnings when a key gets three lists of one text each."""
    builder = StreamsBuilder()
    build(builder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with TopologyTestDriver(builder.build(), config) as driver:
            topic = driver.input_topic("in", STRING, JSON)
            for time, text in enumerate(("x", "y", "z")):
                topic.pipe_input("a", [text], timestamp=time)
            driver.advance_wall_clock_time(SECOND)
    return [str(one.message) for one in caught]


def stream(builder: StreamsBuilder) -> KStream[str, Any]:
    return builder.stream("in", Consumed(STRING, JSON))


def kept(name: str = "kept") -> Materialized[str, Any]:
    return Materialized(STRING, JSON, name=name)


def append(_key: Any, value: Any, aggregate: Any) -> Any:
    aggregate.extend(value)
    return aggregate


def append_and_copy(_key: Any, value: Any, aggregate: Any) -> Any:
    aggregate.extend(value)
    return list(aggregate)


def changed(value: Any) -> Any:
    value.append("changed")
    return value


class Own(Processor[str, Any]):
    """Runs a test's function with the store."""

    def __init__(self, work: Callable[[Any, Record[str, Any]], object], later: Callable[[Any], None] | None) -> None:
        self.work, self.later = work, later

    def init(self, context: ProcessorContext) -> None:
        self.context, self.store = context, context.get_state_store("kept")
        if self.later is not None:
            later = self.later
            context.schedule(SECOND, PunctuationType.WALL_CLOCK_TIME, lambda _now: later(self.store))

    def process(self, record: Record[str, Any]) -> None:
        self.work(self.store, record)
        self.context.forward(record)


def processed(work: Callable[[Any, Record[str, Any]], object], later: Callable[[Any], None] | None = None) -> Build:
    def build(builder: StreamsBuilder) -> None:
        builder.add_state_store(Stores.key_value_store("kept", STRING, JSON))
        stream(builder).process(lambda: Own(work, later), "kept")

    return build


def put_again(store: Any, record: Record[str, Any]) -> None:
    known = store.get(record.key) or []
    known.extend(record.value)
    store.put(record.key, known)


def put_then_change(store: Any, record: Record[str, Any]) -> None:
    put_again(store, record)
    store.get(record.key).append("lost")


def change_all(store: Any) -> None:
    for _, value in store.all():
        value.append("lost")


def aggregated(builder: StreamsBuilder, add: Callable[[Any, Any, Any], Any] = append) -> Any:
    return stream(builder).group_by_key(Grouped(STRING, JSON)).aggregate(list, add, kept())


def grouped(builder: StreamsBuilder) -> Any:
    return stream(builder).group_by_key(Grouped(STRING, JSON))


def two_branches(builder: StreamsBuilder) -> None:
    source = stream(builder)
    source.map_values(changed)
    source.to("out", Produced(STRING, JSON))


def join_table(builder: StreamsBuilder) -> None:
    table = grouped(builder).reduce(lambda old, new: old + new, kept())
    stream(builder).join(table, lambda _mine, row: changed(row))


def join_global(builder: StreamsBuilder) -> None:
    table = builder.global_table("in-all", Consumed(STRING, JSON), kept())
    stream(builder).left_join(table, lambda mine, _row: changed(mine), key_selector=lambda key, _value: key)


def subtract_of_old(builder: StreamsBuilder) -> None:
    table = grouped(builder).reduce(lambda _old, new: new, kept())
    again = table.group_by(lambda key, row: (key, row), Grouped(STRING, JSON))
    again.aggregate(list, append, lambda _key, row, total: changed(row) and total, kept("totals"))


GIVEN = "the value of key 'a' of its input (topic in)"
STORED = "the value of key 'a' from store kept"


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            two_branches,
            f"""MAPVALUES-0000000001 changed in place: {GIVEN}: b'["x"]' has become b'["x","changed"]'""",
        ),
        (lambda b: stream(b).peek(lambda _key, value: changed(value)), f"PEEK-0000000001 changed in place: {GIVEN}"),
        (
            lambda b: stream(b).filter(lambda _key, value: changed(value)),
            f"FILTER-0000000001 changed in place: {GIVEN}",
        ),
        (lambda b: stream(b).flat_map_values(lambda value: [changed(value)]), GIVEN),
        (lambda b: aggregated(b, append_and_copy), f"""{STORED}: b'["x"]' has become b'["x","y"]'"""),
        (lambda b: aggregated(b).to_stream().map_values(changed), "MAPVALUES-0000000003 changed in place:"),
        (join_table, f"JOIN-0000000003 changed in place: {STORED}"),
        (join_global, GIVEN),
        (subtract_of_old, "changed in place: the old value of key 'a'"),
        (processed(put_then_change), f"""{STORED}: b'["x"]' has become b'["x","lost"]'"""),
        (processed(put_again, change_all), f"PROCESSOR-0000000001 changed in place: {STORED}"),
        (processed(lambda _store, record: changed(record.value)), GIVEN),
    ],
)
@pytest.mark.parametrize(
    "config", [{}, {"statestore.cache.max.bytes": 0}, {"processing.exception.handler": "continue"}], ids=str
)
def test_the_driver_says_which_node_changes_what(build: Build, said: str, config: dict[str, Any]) -> None:
    found = warnings_of(build, config)
    assert len(found) == 1, found
    assert said in found[0]
    assert "\nHint: " in found[0]


@pytest.mark.parametrize(
    "build",
    [
        aggregated,
        lambda b: grouped(b).reduce(lambda total, value: append(None, value, total), kept()),
        lambda b: grouped(b).windowed_by(TimeWindows.of(SECOND)).aggregate(list, append, kept()),
        lambda b: grouped(b).windowed_by(SLIDING).aggregate(list, append, kept()),
        lambda b: grouped(b).windowed_by(SESSIONS).aggregate(
            list, append, lambda key, one, other: append(key, other, one), materialized=kept()
        ),
        lambda b: grouped(b).cogroup(append).aggregate(list, kept()),
        processed(put_again),
        processed(lambda store, record: store.put_if_absent(record.key, record.value)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [0, 10_000_000])
def test_what_is_changed_and_put_again_is_no_mistake(build: Build, size: int) -> None:
    assert warnings_of(build, {"statestore.cache.max.bytes": size}) == []


def change_keys(store: Any) -> None:
    for key, _value in store.all():
        changed(key)


class Keyed(Own):
    """Puts each record, then runs a test's function."""

    def process(self, record: Record[Any, Any]) -> None:
        self.store.put(record.key, record.value)
        self.work(self.store, record)


def keyed(work: Callable[[Any, Record[Any, Any]], object]) -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("kept", JSON, JSON))
    builder.stream("in", Consumed(JSON, JSON)).process(lambda: Keyed(work, None), "kept")
    return builder.build()


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (keyed(lambda _store, record: changed(record.key)), "the key ['a'] of its input (topic in)"),
        (keyed(lambda store, _record: change_keys(store)), "the key ['a'] from store kept"),
    ],
)
def test_the_driver_names_the_node_that_changes_a_key(topology: Topology, said: str) -> None:
    with TopologyTestDriver(topology) as driver, pytest.warns(ChangedValueWarning) as caught:
        driver.input_topic("in", JSON, JSON).pipe_input(["a"], 1)
    (message,) = [str(warning.message) for warning in caught]
    assert f"""PROCESSOR-0000000001 changed in place: {said}: b'["a"]' has become b'["a","changed"]'""" in message


def test_a_warning_is_at_the_line_of_the_test_and_may_be_an_error() -> None:
    builder = StreamsBuilder()
    stream(builder).map_values(changed)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, JSON)
        with pytest.warns(ChangedValueWarning) as caught:
            topic.pipe_input("a", [])
        assert caught[0].filename == __file__
    with warnings.catch_warnings(), TopologyTestDriver(builder.build()) as driver:
        warnings.simplefilter("error", ChangedValueWarning)
        with pytest.raises(ChangedValueWarning):
            driver.input_topic("in", STRING, JSON).pipe_input("a", [])


def test_a_call_that_failed_is_not_looked_into_later() -> None:
    def fail_after(value: Any) -> Any:
        changed(value)
        message = "no"
        raise ValueError(message)

    def build(builder: StreamsBuilder) -> None:
        source = stream(builder)
        source.map_values(fail_after)
        source.peek(lambda _key, _value: None)

    assert warnings_of(build, {"processing.exception.handler": "continue"}) == []
