"""Splitting, fixed-key processors, printing, and streams read as tables."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    LONG,
    STRING,
    Branched,
    Consumed,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Grouped,
    KStream,
    Materialized,
    Named,
    Printed,
    ProcessingError,
    Produced,
    PunctuationType,
    Stores,
    StreamsBuilder,
    TopologyError,
)
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from pathlib import Path

STRINGS: Consumed[str, str] = Consumed(STRING, STRING)
TEXT: Produced[str, str] = Produced(STRING, STRING)


def run(builder: StreamsBuilder, *records: tuple[str | None, str | None, int]) -> TopologyTestDriver:
    driver = TopologyTestDriver(builder.build())
    source = driver.input_topic("in", STRING, STRING)
    for key, value, timestamp in records:
        source.pipe_input(key, value, timestamp=timestamp)
    return driver


def read(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, Any, int]]:
    records = driver.output_topic(topic, STRING, STRING).read_records_to_list()
    return [(r.key, r.value, r.timestamp) for r in records]


def is_longer_than(length: int) -> Any:
    return lambda _key, value: len(value) > length


def test_a_record_goes_to_the_first_branch_whose_predicate_holds_only() -> None:
    builder = StreamsBuilder()
    branches = (
        builder.stream("in", STRINGS)
        .split(named=Named("by-"))
        .branch(is_longer_than(2), Branched("long"))
        .branch(is_longer_than(1))
        .default_branch()
    )
    assert list(branches) == ["by-long", "by-2", "by-0"]
    for name, stream in branches.items():
        stream.to(name, TEXT)
    with run(builder, ("k", "abc", 1), ("k", "ab", 2), ("k", "a", 3), (None, "abcd", 4)) as driver:
        assert read(driver, "by-long") == [("k", "abc", 1), (None, "abcd", 4)]
        assert read(driver, "by-2") == [("k", "ab", 2)]
        assert read(driver, "by-0") == [("k", "a", 3)]


def test_without_a_default_branch_what_no_predicate_wants_is_gone() -> None:
    builder = StreamsBuilder()
    branches = builder.stream("in", STRINGS).split().branch(is_longer_than(1)).no_default_branch()
    assert list(branches) == ["KSTREAM-BRANCH-00000000011"]
    branches["KSTREAM-BRANCH-00000000011"].to("out", TEXT)
    topology = builder.build()
    assert list(topology.nodes) == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-BRANCH-0000000001",
        "KSTREAM-BRANCH-00000000011",
        "KSTREAM-SINK-0000000003",
    ]
    with run(builder, ("k", "abc", 1), ("k", "a", 2)) as driver:
        assert read(driver, "out") == [("k", "abc", 1)]


def test_a_branch_may_be_used_at_once_by_a_function_or_a_consumer() -> None:
    builder = StreamsBuilder()

    def upper(stream: KStream[str, str]) -> KStream[str, str]:
        return stream.map_values(str.upper)

    branches = (
        builder.stream("in", STRINGS)
        .split(named=Named("s-"))
        .branch(is_longer_than(2), Branched("up", function=upper))
        .branch(is_longer_than(1), Branched(consumer=lambda stream: stream.to("two", TEXT)))
        .default_branch(Branched("rest", function=lambda _stream: None))
    )
    assert list(branches) == ["s-up"]
    branches["s-up"].to("three", TEXT)
    with run(builder, ("k", "abc", 1), ("k", "ab", 2), ("k", "a", 3)) as driver:
        assert read(driver, "three") == [("k", "ABC", 1)]
        assert read(driver, "two") == [("k", "ab", 2)]


def test_the_default_branch_is_the_last_one_and_branches_have_one_use() -> None:
    split = StreamsBuilder().stream("in", STRINGS).split()
    split.default_branch()
    with pytest.raises(TopologyError, match="last one"):
        split.branch(is_longer_than(1))
    with pytest.raises(TopologyError, match="already"):
        split.default_branch()
    with pytest.raises(TopologyError, match="not both"):
        Branched(function=lambda stream: stream, consumer=print)


def test_a_split_of_rekeyed_records_is_repartitioned_per_branch() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS).select_key(lambda _k, v: v[0])
    for branch in stream.split().branch(is_longer_than(1)).default_branch().values():
        branch.group_by_key(Grouped(STRING, STRING)).count()
    assert len(builder.build().repartition_topics) == 2


class AnHourLater(FixedKeyProcessor[str, str]):
    def init(self, context: FixedKeyProcessorContext) -> None:
        self.context = context

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        self.context.forward(record.with_timestamp(record.timestamp + 3_600_000))

    def close(self) -> None:
        pass


def test_a_store_below_a_processor_that_moves_records_in_time_sees_their_new_time() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("counts", STRING, LONG))
    moved = builder.stream("in", STRINGS).process_values(AnHourLater)
    moved.process_values(Numbered, "counts")
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("a", "x", timestamp=7)
        assert [record.timestamp for record in driver.read_raw("app-counts-changelog")] == [3_600_007]


class Numbered(FixedKeyProcessor[str, str]):
    """Puts the number of records per key before each value."""

    def init(self, context: FixedKeyProcessorContext) -> None:
        self.context = context
        self.counts = context.get_state_store("counts")
        context.schedule(timedelta(seconds=10), PunctuationType.STREAM_TIME, lambda _time: None)

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        later = record.with_value(f"{count}{record.value}").with_timestamp(record.timestamp + 1)
        self.context.forward(later.with_headers((("n", b"1"),)))


def test_a_fixed_key_processor_uses_its_store_and_needs_no_repartition() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value_store("counts", STRING, LONG))
    numbered = builder.stream("in", STRINGS).process_values(Numbered, "counts", named=Named("numbered"))
    numbered.group_by_key().count(Materialized(name="n"))
    numbered.to("out", Produced(value_serde=STRING))
    topology = builder.build()
    assert not topology.repartition_topics
    assert list(topology.nodes)[:2] == ["KSTREAM-SOURCE-0000000000", "numbered"]
    with run(builder, ("a", "x", 1), ("b", "x", 2), ("a", "y", 3)) as driver:
        records = driver.output_topic("out", STRING, STRING).read_records_to_list()
    assert [(r.key, r.value, r.timestamp) for r in records] == [("a", "1x", 2), ("b", "1x", 3), ("a", "2y", 4)]
    assert records[0].headers == (("n", b"1"),)
    with pytest.raises(ProcessingError, match="negative"):
        FixedKeyRecord("a", "x", 1).with_timestamp(-1)


def test_records_are_printed_with_the_name_of_the_stream_or_a_label(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS)
    stream.print()
    stream.print(Printed(label="L", mapper=lambda k, v: f"{k}={v}", name="printer"))
    stream.print(Printed(tmp_path / "out.txt"))
    with run(builder, ("a", "x", 1), ("b", None, 2)):
        pass
    assert capsys.readouterr().out.splitlines() == [
        "[KSTREAM-SOURCE-0000000000]: a, x",
        "[L]: a=x",
        "[KSTREAM-SOURCE-0000000000]: b, null",
        "[L]: b=None",
    ]
    written = (tmp_path / "out.txt").read_text().splitlines()
    assert written == ["[KSTREAM-SOURCE-0000000000]: a, x", "[KSTREAM-SOURCE-0000000000]: b, null"]
    other = StreamsBuilder()
    other.stream("in", STRINGS).print(Printed(tmp_path / "missing" / "out.txt"))
    with pytest.raises(TopologyError, match="Unable to write"):
        TopologyTestDriver(other.build())


def test_a_stream_read_as_a_table_keeps_the_last_value_per_key() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in", STRINGS).to_table(Materialized(STRING, STRING, name="last"))
    table.to_stream().to("out", TEXT)
    with run(builder, ("a", "x", 1), ("a", "y", 2), (None, "z", 3), ("b", "x", 4), ("a", None, 5)) as driver:
        assert read(driver, "out") == [("a", "x", 1), ("a", "y", 2), ("b", "x", 4), ("a", None, 5)]
        assert [key for key, _ in driver.get_state_store("last").all()] == ["b"]


def test_a_rekeyed_stream_is_repartitioned_before_it_becomes_a_table() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", STRINGS).select_key(lambda _k, v: v)
    table = stream.to_table(Materialized(key_serde=STRING, value_serde=STRING))
    builder.stream("other", STRINGS).join(table, lambda v, t: f"{v}{t}").to("out", TEXT)
    topology = builder.build()
    assert list(topology.nodes)[:6] == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-KEY-SELECT-0000000001",
        "KSTREAM-FILTER-0000000005",
        "KSTREAM-SINK-0000000004",
        "KSTREAM-SOURCE-0000000006",
        "KSTREAM-TOTABLE-0000000002",
    ]
    assert list(topology.repartition_topics) == ["KSTREAM-TOTABLE-0000000002-repartition"]
    assert list(topology.stores) == ["KSTREAM-TOTABLE-STATE-STORE-0000000003"]


@pytest.mark.parametrize("given", ["xy", {"a": 1, "b": 2}, ["k", "v"], None, 5])
@pytest.mark.parametrize("operator", ["map", "flat_map", "group_by"])
def test_what_is_no_pair_is_not_taken_apart_into_key_and_value(operator: str, given: Any) -> None:
    builder: Any = StreamsBuilder()
    if operator == "group_by":
        if given is None:
            pytest.skip("None leaves a row of a table out")
        builder.table("in", Consumed(STRING, STRING)).group_by(lambda _k, _v: given, Grouped(STRING, STRING)).count()
    else:
        result = given if operator == "map" else [given]
        stream = getattr(builder.stream("in", Consumed(STRING, STRING)), operator)(lambda _k, _v: result)
        stream.to("out", Produced(STRING, STRING))
    with TopologyTestDriver(builder.build()) as driver:
        message = r"a mapper of keys and values must return pairs \(key, value\), not .*task 0_0"
        with pytest.raises(ProcessingError, match=message):
            driver.input_topic("in", STRING, STRING).pipe_input("k", "v")
