"""Records without an event time: the deserialization handler decides about them, in loops as record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Produced, StreamsBuilder
from riverrun.errors import DeserializationError
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.topology.topology import Topology

BAD = -1


def failing(record: Any, _partition_time: int) -> int:
    return record.timestamp if record.value != "bad" else int("no time")


def timeless(record: Any, _partition_time: int) -> Any:
    return record.timestamp if record.value != "bad" else None


def topology(extractor: Callable[[Any, int], int] | None) -> Topology:
    builder = StreamsBuilder()
    consumed = Consumed(STRING, STRING, timestamp_extractor=extractor)
    builder.stream("in", consumed).map_values(str.upper).to("out", Produced(STRING, STRING))
    return builder.build()


def pipe(driver: TopologyTestDriver, bad_time: int) -> None:
    given = driver.input_topic("in", STRING, STRING)
    given.pipe_input("a", "first", timestamp=5)
    given.pipe_input("a", "bad", timestamp=bad_time)
    given.pipe_input("a", "last", timestamp=7)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(("extractor", "bad_time"), [(failing, 6), (timeless, 6), (None, BAD)])
def test_a_record_without_an_event_time_is_the_deserialization_handlers(
    extractor: Any, bad_time: int, *, one_by_one: bool
) -> None:
    settings = {
        "deserialization.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": "letters",
    }
    if one_by_one:
        settings["processing.exception.handler"] = "continue"
    with TopologyTestDriver(topology(extractor), settings) as driver:
        pipe(driver, bad_time)
        assert driver.output_topic("out", STRING, STRING).read_values_to_list() == ["FIRST", "LAST"]
        assert driver.dropped() == {"undecodable": 1}
        (letter,) = driver.output_topic("letters", STRING, STRING).read_values_to_list()
        assert letter == "bad"


@pytest.mark.parametrize("extractor", [failing, timeless])
def test_without_a_handler_it_stops_the_task_and_names_record_and_remedy(extractor: Any) -> None:
    with (
        TopologyTestDriver(topology(extractor)) as driver,
        pytest.raises(DeserializationError, match=r"Timestamp extractor of KSTREAM-SOURCE-0000000000") as raised,
    ):
        pipe(driver, 6)
    place = {"task": "0_0", "topic": "in", "partition": 0, "offset": 1, "node": "KSTREAM-SOURCE-0000000000"}
    assert raised.value.coordinates == place
    assert raised.value.hint is not None
    assert "riverrun skip APP in-0@1" in raised.value.hint


def test_an_extractor_that_fails_at_a_deletion_is_told_that_there_is_no_value() -> None:
    with (
        TopologyTestDriver(topology(lambda record, _: len(record.value))) as driver,
        pytest.raises(DeserializationError, match=r"A deletion has no value: .* return record\.timestamp for it"),
    ):
        driver.input_topic("in", STRING, STRING).pipe_input("a", None, timestamp=5)
