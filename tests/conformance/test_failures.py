"""Records that cannot be processed, on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    JSON,
    LONG,
    STRING,
    ConfigError,
    Consumed,
    Grouped,
    LogAndSkipOnInvalidTimestamp,
    Materialized,
    Produced,
    Repartitioned,
    StreamsBuilder,
    TopicPartition,
    Topology,
)
from riverrun.config import EXACTLY_ONCE_V2
from riverrun.topics.letters import letter_of

if TYPE_CHECKING:
    from riverrun import ConsumerRecord
    from riverrun.records import RawRecord
    from tests.conformance.hosts import Host


def headers_of(letter: RawRecord) -> dict[str, str | None]:
    return {
        name.removeprefix("__streams.errors."): None if text is None else text.decode() for name, text in letter.headers
    }


def test_failing_records_go_to_the_dead_letter_topic_and_the_rest_goes_on(
    host: Host,
) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(host.topic("in"), Consumed(STRING, JSON))
        halves = stream.map_values(lambda v: 12 // v if v != 3 else 1j)
        halves.to(host.topic("out"), Produced(STRING, JSON))
        return builder.build()

    given = {"in": [(b"a", b"1", 1), (b"b", b"{", 2), (b"c", b"0", 3), (b"d", b"3", 4), (b"e", b"2", 5)]}
    found = host.run(
        build,
        given,
        "out",
        "letters",
        deserialization_exception_handler="continue",
        processing_exception_handler="continue",
        production_exception_handler="continue",
        errors_dead_letter_queue_topic_name=host.topic("letters"),
    )
    assert [(r.key, r.value, r.timestamp) for r in found["out"]] == [(b"a", b"12", 1), (b"e", b"6", 5)]
    letters = found["letters"]
    assert [(r.key, r.value, r.timestamp) for r in letters] == [(b"b", b"{", 2), (b"c", b"0", 3), (b"d", b"3", 4)]
    said = [headers_of(letter) for letter in letters]
    assert [name["exception"] for name in said] == ["msgspec.DecodeError", "ZeroDivisionError", "TypeError"]
    assert [(name["topic"], name["partition"], name["offset"]) for name in said] == [
        (host.topic("in"), "0", "1"),
        (host.topic("in"), "0", "2"),
        (host.topic("in"), "0", "3"),
    ]


def test_what_is_set_aside_leaves_no_trace(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(host.topic("in"), Consumed(STRING, JSON))
        stream.to(host.topic("early"), Produced(STRING, JSON))
        counts = stream.group_by_key(Grouped(STRING, JSON)).count(Materialized(name="counts"))
        counts.to_stream().to(host.topic("counts"), Produced(STRING, LONG))
        moved = stream.repartition(Repartitioned(STRING, JSON, name="moved"))
        moved.map_values(lambda v: 12 // (v - 7)).to(host.topic("moved"), Produced(STRING, JSON))
        stream.map_values(lambda v: 12 // v).to(host.topic("out"), Produced(STRING, JSON))
        return builder.build()

    numbers = [b"1", b"0", b"2", b"7", b"0", b"7", b"{", b"3"]
    given = {"in": [(b"a", number, at) for at, number in enumerate(numbers)]}
    names = ("early", "counts", "moved", "out", "letters")
    settings: dict[str, Any] = {
        "processing_exception_handler": "set-aside",
        "deserialization_exception_handler": "continue",
        "errors_dead_letter_queue_topic_name": host.topic("letters"),
    }
    if getattr(host, "guarantee", EXACTLY_ONCE_V2) != EXACTLY_ONCE_V2:
        with pytest.raises(ConfigError, match="cannot be set aside under at_least_once"):
            host.run(build, given, *names, **settings)
        return
    found = host.run(build, given, *names, **settings)
    values = {topic: [record.value for record in found[topic]] for topic in names}
    assert values["early"] == [b"1", b"2", b"7", b"7", b"3"]
    assert values["counts"][-1] == LONG.serialize(5)
    assert values["out"] == [b"12", b"6", b"1", b"1", b"4"]
    assert values["moved"] == [b"-2", b"-3", b"-3"], values
    letters = [letter_of(TopicPartition("letters", 0), record, {}) for record in found["letters"]]
    assert sorted(letter.value or b"" for letter in letters if letter and letter.left_no_trace) == sorted(
        [b"0", b"0", b"7", b"7", b"{"]
    )
    assert len(letters) == 5


def test_an_update_that_a_cache_held_back_is_kept_as_the_record_it_came_from(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        stream = builder.stream(host.topic("in"), Consumed(STRING, STRING))
        counts = stream.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
        inverse = counts.to_stream().map_values(lambda n: 6 // (n - 2))
        inverse.to(host.topic("out"), Produced(STRING, LONG))
        return builder.build()

    given = {"in": [(b"a", b"first", 1), (b"a", b"second", 2), (b"b", b"only", 3)]}
    found = host.run(
        build,
        given,
        "out",
        "letters",
        processing_exception_handler="continue",
        errors_dead_letter_queue_topic_name=host.topic("letters"),
    )
    assert [(r.key, r.value, r.timestamp) for r in found["letters"]] == [(b"a", b"second", 2)], found
    assert headers_of(found["letters"][0])["offset"] == "1"


def test_records_without_a_valid_time_are_skipped_where_the_source_says_so(host: Host) -> None:
    def build(builder: StreamsBuilder) -> Topology:
        def from_value(record: ConsumerRecord[str, int], _partition_time: int) -> int:
            return record.value

        consumed = Consumed(STRING, JSON, timestamp_extractor=from_value)
        builder.stream(host.topic("in"), consumed).to(host.topic("out"), Produced(STRING, JSON))
        skipping = Consumed(STRING, JSON, timestamp_extractor=LogAndSkipOnInvalidTimestamp())
        builder.stream(host.topic("plain"), skipping).to(host.topic("plain-out"), Produced(STRING, JSON))
        return builder.build()

    given = {"in": [(b"a", b"7", 1), (b"b", b"-1", 2), (b"c", b"5", 3)], "plain": [(b"d", b"1", 4)]}
    found = host.run(build, given, "out", "plain-out")
    assert [(r.key, r.timestamp) for r in found["out"]] == [(b"a", 7), (b"c", 5)]
    assert [(r.key, r.timestamp) for r in found["plain-out"]] == [(b"d", 4)]
