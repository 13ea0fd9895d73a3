"""The topologies of Kafka Streams' tests of repartition topics and their optimisation, by the same calls in the same order."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from riverrun import (
    INTEGER,
    LONG,
    STRING,
    Branched,
    BufferConfig,
    Consumed,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Named,
    Produced,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from tests.oracle.described_streams import Forget, ForgetValues
from tests.oracle.topologies import BY_TEXT, TEXTS, TO_COUNTS, TO_TEXTS, both, ms

if TYPE_CHECKING:
    from riverrun import KStream
    from tests.oracle.described_streams import Build

FIVE_SECONDS = ms(5_000)
TEXT_STORE: Materialized[str, str] = Materialized(STRING, STRING)


def add_length(_key: str, value: str, total: int) -> int:
    return total + len(value)


def grouped(name: str) -> Grouped[str, str]:
    return Grouped(STRING, STRING, name=name)


def all_named(builder: StreamsBuilder) -> None:
    stream = builder.stream("input", Consumed(STRING, STRING, name="sourceStream"))
    mapped = stream.map(lambda k, v: (k.upper(), v), named=Named("source-map"))
    wanted = mapped.filter(lambda k, _v: k == "B", named=Named("process-filter"))
    wanted.map_values(str.upper, named=Named("process-mapValues")).process(Forget, named=Named("process"))
    counts = (
        mapped.group_by_key(grouped("count-groupByKey"))
        .count(Materialized(STRING, LONG, name="count-store", persistent=False), named=Named("count"))
        .to_stream(named=Named("count-toStream"))
    )
    counts.to("outputTopic_0", Produced(STRING, LONG, name="count-to"))
    lengths = mapped.group_by_key(grouped("aggregate-groupByKey")).aggregate(
        int,
        add_length,
        Materialized(STRING, INTEGER, name="aggregate-store", persistent=False),
        named=Named("aggregate"),
    )
    to_lengths: Produced[str, int] = Produced(STRING, INTEGER, name="reduce-to")
    lengths.to_stream(named=Named("aggregate-toStream")).to("outputTopic_1", to_lengths)
    peeked = mapped.filter(lambda _k, _v: True, named=Named("reduce-filter")).peek(print, named=Named("reduce-peek"))
    reduced = peeked.group_by_key(grouped("reduce-groupByKey")).reduce(
        both, Materialized(STRING, STRING, name="reduce-store", persistent=False), named=Named("reducer")
    )
    reduced.to_stream(named=Named("reduce-toStream")).to("outputTopic_2", TO_TEXTS)
    day, size = timedelta(days=1), ms(10_000)
    joined: StreamJoined[str, str, int] = StreamJoined(
        STRING,
        STRING,
        LONG,
        name="join",
        this_store_supplier=Stores.in_memory_window_store("join-store", day, size, retain_duplicates=True),
        other_store_supplier=Stores.in_memory_window_store("other-join-store", day, size, retain_duplicates=True),
    )
    with_grace = JoinWindows.of(FIVE_SECONDS, grace=day - size)
    left = mapped.filter(lambda k, _v: k == "A", named=Named("join-filter"))
    left.join(counts, both, with_grace, joined=joined).to("joinedOutputTopic", Produced(STRING, STRING, name="join-to"))


def named_topics(builder: StreamsBuilder) -> None:
    mapped = builder.stream("input", TEXTS).map(lambda k, v: (k.upper(), v))
    mapped.filter(lambda k, _v: k == "B").map_values(str.upper).process(Forget)
    counts = mapped.group_by_key(grouped("count-stream")).count(Materialized(STRING, LONG)).to_stream()
    counts.to("outputTopic_0", TO_COUNTS)
    lengths = mapped.group_by_key(grouped("aggregate-stream")).aggregate(int, add_length, Materialized(STRING, INTEGER))
    lengths.to_stream().to("outputTopic_1", Produced(STRING, INTEGER))
    peeked = mapped.filter(lambda _k, _v: True).peek(print).group_by_key(grouped("reduced-stream"))
    peeked.reduce(both, TEXT_STORE).to_stream().to("outputTopic_2", TO_TEXTS)
    joined: StreamJoined[str, str, int] = StreamJoined(
        STRING, STRING, LONG, store_name="joined-stream", name="joined-stream"
    )
    left = mapped.filter(lambda k, _v: k == "A")
    left.join(counts, both, JoinWindows.of(FIVE_SECONDS), joined=joined).to("outputTopicForJoin", TO_TEXTS)


def two_streams_merged(builder: StreamsBuilder) -> None:
    sources = [builder.stream(f"input{n}", Consumed(STRING, STRING, name=f"source{n}Stream")) for n in "AB"]
    one, two = (
        source.map(lambda _k, v: (v.split(":")[0], v), named=Named(f"mapped{n}Stream"))
        for source, n in zip(sources, "AB", strict=True)
    )
    merged = one.merge(two, named=Named("mergedStream"))
    counted = merged.group_by_key(grouped("long-groupByKey")).count(
        Materialized(STRING, name="long-store", persistent=False), named=Named("long-count")
    )
    to_longs: Produced[str, int] = Produced(STRING, LONG, name="long-to")
    counted.to_stream(named=Named("long-toStream")).to("outputTopic_0", to_longs)
    again = merged.group_by_key(grouped("string-groupByKey")).count(
        Materialized(STRING, name="string-store", persistent=False), named=Named("string-count")
    )
    texts = again.to_stream(named=Named("string-toStream")).map_values(str, named=Named("string-mapValues"))
    texts.to("outputTopic_1", Produced(STRING, STRING, name="string-to"))


def values_changed_after_keys(builder: StreamsBuilder) -> None:
    rekeyed = builder.stream("input", TEXTS).select_key(both)
    rekeyed.map_values(str.upper).group_by_key(BY_TEXT).count().to_stream().to("output", TO_COUNTS)
    windowed = rekeyed.flat_map_values(str.split).group_by_key(BY_TEXT).windowed_by(TimeWindows.of(FIVE_SECONDS))
    windowed.count().to_stream().to("windowed-output")
    rekeyed.process_values(ForgetValues).group_by_key(BY_TEXT).count().to_stream().to("output", TO_COUNTS)


def joined_streams(builder: StreamsBuilder) -> KStream[str, str]:
    stream, other = builder.stream("topic", TEXTS), builder.stream("other-topic", TEXTS)
    return stream.join(other, both, JoinWindows.of(FIVE_SECONDS))


def joined_and_filtered(builder: StreamsBuilder) -> KStream[str, str]:
    return joined_streams(builder).filter(lambda _k, v: v == "foo")


def joined_filtered_and_written(builder: StreamsBuilder) -> None:
    joined_and_filtered(builder).map_values(str.upper).to("output-topic", TO_TEXTS)


def merges_below_one_change_of_keys(builder: StreamsBuilder) -> None:
    parent = builder.stream("input_topic", Consumed(INTEGER, INTEGER)).select_key(lambda k, v: k + v)
    one, two, three = (parent.map_values(lambda v: v) for _ in range(3))
    one.merge(two).merge(three).to("output_topic", Produced(INTEGER, INTEGER))


def merge_joined_with_a_table(builder: StreamsBuilder) -> None:
    retried: KStream[str, str] = (
        builder.stream("retryTopic", TEXTS)
        .process(Forget)
        .group_by_key(BY_TEXT)
        .aggregate(str, lambda _k, v, a: a + v, TEXT_STORE)
        .suppress(Suppressed.until_time_limit(timedelta(seconds=500), BufferConfig.max_bytes(64_000_000)))
        .to_stream()
        .flat_map(lambda _k, _v: [])
    )
    ids: KStream[str, str] = builder.stream("id-table-topic", TEXTS).flat_map(lambda _k, _v: []).peek(print)
    table = ids.group_by_key(BY_TEXT).aggregate(str, lambda _k, v, a: a + v, TEXT_STORE)
    commands = builder.stream("internal-topic-command", TEXTS).peek(print).map_values(lambda _k, v: v).merge(retried)
    joined = commands.left_join(table, both, joined=Joined(STRING, STRING))

    def printed(stream: KStream[str, str]) -> None:
        stream.map(lambda k, v: (k, v)).peek(print).to("external-command", TO_TEXTS)

    def retry(stream: KStream[str, str]) -> None:
        kept = stream.filter(lambda _k, v: v is not None).peek(print).map_values(lambda _k, v: v)
        kept.to("dlq-topic", TO_TEXTS)
        stream.map(lambda k, v: (k, v)).to("retryTopic", TO_TEXTS)

    branches = joined.split().branch(lambda _k, v: v == "some-value", Branched(consumer=printed))
    branches.default_branch(Branched(consumer=retry))


def joined_with_tables(names: tuple[str | None, str | None], builder: StreamsBuilder) -> None:
    stream = builder.stream("topic", TEXTS)
    tables = [builder.table(topic, TEXTS) for topic in ("topic2", "topic3")]
    rekeyed = stream.map(lambda k, v: (v, k))
    for table, output, name in zip(tables, ("out-one", "out-two"), names, strict=True):
        rekeyed.join(table, both, joined=Joined(STRING, STRING, name=name)).to(output, TO_TEXTS)


def joined_with_streams(names: tuple[str | None, str | None], builder: StreamsBuilder) -> None:
    stream, *others = (builder.stream(topic, TEXTS) for topic in ("topic", "topic2", "topic3"))
    rekeyed = stream.map(lambda k, v: (v, k))
    for other, output, name in zip(others, ("out-one", "out-two"), names, strict=True):
        joined: StreamJoined[Any, Any, Any] = StreamJoined(STRING, STRING, STRING, name=name)
        rekeyed.join(other, both, JoinWindows.of(ms(100)), joined=joined).to(output, TO_TEXTS)


def rekeyed(builder: StreamsBuilder, topic: str) -> KStream[str, str]:
    return builder.stream(topic, TEXTS).select_key(lambda _k, v: v)


def cogroup_with_one_name(builder: StreamsBuilder) -> None:
    streams = [builder.stream(topic, TEXTS) for topic in ("one", "two")]
    named, unnamed = (stream.map(lambda k, v: (v, k)) for stream in streams)
    cogrouped = named.group_by_key(grouped("x")).cogroup(lambda _k, v, a: a + v)
    table = cogrouped.cogroup(unnamed.group_by_key(BY_TEXT), lambda _k, v, a: a + v).aggregate(str, TEXT_STORE)
    table.to_stream().to("out", TO_TEXTS)


def merge_grouped_twice(builder: StreamsBuilder) -> None:
    merged = rekeyed(builder, "one").merge(rekeyed(builder, "two")).group_by_key(BY_TEXT)
    merged.count()
    merged.count()


def self_join(builder: StreamsBuilder) -> None:
    stream = rekeyed(builder, "one")
    joined: StreamJoined[str, str, str] = StreamJoined(STRING, STRING, STRING)
    stream.join(stream, both, JoinWindows.of(FIVE_SECONDS), joined=joined).to("out", TO_TEXTS)


UNNAMED, NAMED = (None, None), ("first-join", "second-join")
GENERATED = "expectedTopologyWithGeneratedRepartitionTopicNames"
PROVIDED = "expectedTopologyWithUserProvidedRepartitionTopicNames"
BUILD: dict[str, Build] = {
    "RepartitionOptimizing.topology": all_named,
    "RepartitionTopicNaming.topology": named_topics,
    "RepartitionWithMergeOptimizing.topology": two_streams_merged,
    "StreamsGraph.valuesChangedAfterKeys": values_changed_after_keys,
    "StreamsGraph.expectedJoinedTopology": joined_streams,
    "StreamsGraph.expectedJoinedFilteredTopology": joined_and_filtered,
    "StreamsGraph.expectedFullTopology": joined_filtered_and_written,
    "StreamsGraph.expectedMergeOptimizedTopology": merges_below_one_change_of_keys,
    "StreamsGraph.expectedComplexMergeTopology": merge_joined_with_a_table,
    "SeveralRepartitions.cogroupWithOneName": cogroup_with_one_name,
    "SeveralRepartitions.mergeGroupedTwice": merge_grouped_twice,
    "SeveralRepartitions.selfJoin": self_join,
    f"KStreamKTableJoin.{GENERATED}": partial(joined_with_tables, UNNAMED),
    f"KStreamKTableJoin.{PROVIDED}": partial(joined_with_tables, NAMED),
    f"KStreamKStreamJoin.{GENERATED}": partial(joined_with_streams, UNNAMED),
    f"KStreamKStreamJoin.{PROVIDED}": partial(joined_with_streams, NAMED),
}
