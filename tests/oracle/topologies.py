"""The twins of `java/Streams.java`: the same topologies, built by the same calls in the same order."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from riverrun import (
    LONG,
    STRING,
    Consumed,
    Grouped,
    Joined,
    KStream,
    Materialized,
    Named,
    Printed,
    Produced,
    PunctuationType,
    Record,
    Repartitioned,
    Stores,
    StreamsBuilder,
    TimeWindows,
    ValueAndTimestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun import ConsumerRecord, Processor, ProcessorContext, Windowed

    Say = Callable[[str], None]

TEXTS = Consumed(STRING, STRING)
TO_TEXTS = Produced(STRING, STRING)
TO_COUNTS = Produced(STRING, LONG)
BY_TEXT = Grouped(STRING, STRING)
PRINTED = Path(mkdtemp())
"""The files for printed records, one each."""


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def text(value: object) -> str:
    return "null" if value is None else str(value)


def first(value: str | None) -> str:
    return value[0] if value else "-"


def first_of_value(_key: Any, value: str | None) -> str:
    return first(value)


def size(value: str | None) -> str:
    return "none" if value is None else str(len(value))


def both(left: object, right: object) -> str:
    return f"{text(left)}+{text(right)}"


def all_three(key: object, value: object, other: object) -> str:
    return both(key, both(value, other))


def flat(key: Windowed[str]) -> str:
    return f"{text(key.key)}@{key.window.start}/{key.window.end}"


def concatenate(left: str, right: str) -> str:
    return text(left) + text(right)  # null values reach windowed aggregations


def latest(_left: str, right: str) -> str:
    return right


def nothing() -> str:
    return ""


def append_first(_key: Any, value: str | None, aggregate: str) -> str:
    return aggregate + first(value)


def texts(builder: StreamsBuilder, topic: str = "in") -> KStream[str, str]:
    return builder.stream(topic, TEXTS)


def filter(builder: StreamsBuilder, _say: Say) -> None:  # noqa: A001 - named as the operator
    stream = texts(builder).filter(lambda _k, v: v is not None and len(v) > 2)
    stream.filter_not(lambda k, _v: k == "a").to("out")


def map(builder: StreamsBuilder, _say: Say) -> None:  # noqa: A001 - named as the operator
    texts(builder).map(lambda k, v: (first(v), both(k, v))).to("out", TO_TEXTS)


def map_values(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).map_values(size).map_values(both, named=Named("with-key")).to("out", TO_TEXTS)


def flat_map(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).flat_map(lambda k, v: [(c, k) for c in v or ""]).to("out", TO_TEXTS)


def flat_map_values(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).flat_map_values(lambda v: [] if v is None else [v, size(v)], named=Named("flat"))
    stream.flat_map_values(lambda k, v: [both(k, v)]).to("out", TO_TEXTS)


def select_key_and_peek(builder: StreamsBuilder, say: Say) -> None:
    stream = texts(builder).peek(lambda k, v: say(both(k, v)), named=Named("look")).select_key(first_of_value)
    stream.peek(lambda k, v: say(both(k, v))).to("out", Produced(STRING, STRING, name="write"))


def for_each(builder: StreamsBuilder, say: Say) -> None:
    stream = texts(builder)
    stream.foreach(lambda k, v: say(both(k, v)))
    stream.filter(lambda k, _v: k is not None).foreach(lambda k, v: say(both(v, k)), named=Named("second"))


def merge(builder: StreamsBuilder, _say: Say) -> None:
    left = texts(builder).map_values(lambda v: "l" + text(v))
    right = texts(builder, "other").map_values(lambda v: "r" + text(v))
    left.merge(right).merge(texts(builder, "third"), named=Named("three")).to("out", TO_TEXTS)


def same_topic_twice(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).map_values(lambda v: "first" + text(v)).to("out", TO_TEXTS)
    texts(builder).map_values(lambda v: "second" + text(v)).to("out", TO_TEXTS)


def two_topics_one_source(builder: StreamsBuilder, _say: Say) -> None:
    builder.stream(("in", "other"), Consumed(STRING, STRING, name="both")).to("out")


def diamond(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    upper = stream.map_values(lambda v: None if v is None else v.upper())
    keyed = stream.filter(lambda k, _v: k is not None)
    upper.merge(keyed).to("out", TO_TEXTS)
    keyed.to("second")
    stream.to("third")


def dynamic_topics(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).filter(lambda k, _v: k is not None).to(lambda key, _value, _timestamp: f"out-{key}")


def timestamp_extractor(builder: StreamsBuilder, _say: Say) -> None:
    def extract(record: ConsumerRecord[str, str], partition_time: int) -> int:
        return partition_time + 1 if record.value is None else record.timestamp + 7

    counts = builder.stream("in", Consumed(STRING, STRING, timestamp_extractor=extract)).group_by_key().count()
    counts.to_stream().map_values(text).to("out", TO_TEXTS)


def repartition(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).select_key(first_of_value).repartition(Repartitioned(STRING, STRING)).to("out")


def repartition_named(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).map(lambda k, v: (k, both(k, v)))
    stream = stream.repartition(Repartitioned(STRING, STRING, name="through", number_of_partitions=3)).map_values(size)
    stream.repartition(Repartitioned(STRING, STRING, name="again")).to("out")


def print(builder: StreamsBuilder, _say: Say) -> None:  # noqa: A001 - named as the operator
    stream = texts(builder)
    stream.print(Printed(PRINTED / "plain"))
    stream.print(Printed(PRINTED / "labelled", "seen", lambda k, v: both(v, k), name="printer"))
    counts = stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(ms(100))).count()
    counts.to_stream().print(Printed(PRINTED / "windows"))


def count_by_key(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).group_by_key().count().to_stream().map_values(text).to("out", TO_TEXTS)


def count_named(builder: StreamsBuilder, _say: Say) -> None:
    grouped = builder.stream("in", Consumed(STRING, STRING, name="source")).group_by_key(Grouped(name="grouped"))
    grouped.count(Materialized(name="counts"), named=Named("counter")).to_stream(named=Named("stream")).to("out")


def group_by_count(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).group_by(first_of_value, BY_TEXT).count().to_stream().to("out")


def group_by_named_count(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by(first_of_value, Grouped(STRING, STRING, name="initial"))
    grouped.count(Materialized(name="counts")).to_stream().to("out")


def group_by_named_store(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).group_by(first_of_value, BY_TEXT).count(Materialized(name="counts")).to_stream().to("out")


def select_key_reduce(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).select_key(lambda _k, v: None if v is None else first(v))
    stream.group_by_key(BY_TEXT).reduce(lambda left, right: f"{left},{right}").to_stream().to("out")


def reduce_by_key(builder: StreamsBuilder, _say: Say) -> None:
    texts(builder).group_by_key().reduce(max, Materialized(name="highest")).to_stream().to("out")


def reduce_named_repartition(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).map(lambda _k, v: (first(v), v)).group_by_key(Grouped(STRING, STRING, name="by-first"))
    grouped.reduce(concatenate, Materialized(name="texts"), named=Named("joined")).to_stream().to("out")


def aggregate(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by_key()
    grouped.aggregate(nothing, append_first, Materialized(STRING, STRING)).to_stream().to("out")


def aggregate_that_deletes(builder: StreamsBuilder, _say: Say) -> None:
    def add(_key: str, value: str, known: str) -> str | None:
        return None if len(known) > 8 else known + value

    grouped = texts(builder).group_by_key()
    grouped.aggregate(nothing, add, Materialized(value_serde=STRING)).to_stream().to("out")


def flat_map_count(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).flat_map(lambda _k, v: [] if v is None else [("all", v), (first(v), v), ("all", v)])
    stream.group_by_key(BY_TEXT).count().to_stream().to("out")


def double_values_aggregate(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).flat_map_values(lambda v: [] if v is None else [v, first(v)])
    table = stream.group_by_key(BY_TEXT).aggregate(
        lambda: ".", lambda _k, v, known: known + v, Materialized(name="texts", value_serde=STRING)
    )
    table.to_stream().to("out")


def word_count(builder: StreamsBuilder, _say: Say) -> None:
    letters = texts(builder).flat_map_values(lambda v: [] if v is None else list(v) or [""])
    letters.group_by(lambda _k, v: v, Grouped(STRING, STRING, name="words")).count().to_stream().to("out")


def two_aggregations_of_a_rekeyed_stream(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).select_key(first_of_value)
    stream.group_by_key(BY_TEXT).count().to_stream().to("out")
    stream.group_by_key(Grouped(STRING, STRING, name="again")).reduce(latest).to_stream().to("second")


def two_aggregations_of_a_group(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by(first_of_value, BY_TEXT)
    grouped.count().to_stream().to("out")
    grouped.reduce(latest).to_stream().to("second")


def two_aggregations_of_a_named_group(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by(first_of_value, Grouped(STRING, STRING, name="shared"))
    grouped.count(Materialized(name="counts")).to_stream().to("out")
    grouped.reduce(latest).to_stream().to("second")


def count_of_counts(builder: StreamsBuilder, _say: Say) -> None:
    counts = texts(builder).group_by_key().count().to_stream()
    counts.group_by(lambda _k, v: str(v % 3), Grouped(STRING, LONG)).count().to_stream().to("out")


def aggregate_in_memory_without_changelog(builder: StreamsBuilder, _say: Say) -> None:
    options: Materialized[str, int] = Materialized(name="counts", logging=False, persistent=False)
    texts(builder).group_by_key().count(options).to_stream().to("out")


def aggregate_without_cache(builder: StreamsBuilder, _say: Say) -> None:
    options: Materialized[str, int] = Materialized(name="counts", caching=False, log_config={"retention.ms": "1000"})
    stream = texts(builder).flat_map_values(lambda v: [] if v is None else [v, v])
    stream.group_by_key(BY_TEXT).count(options).to_stream().to("out")


def tumbling_count(builder: StreamsBuilder, _say: Say) -> None:
    counts = texts(builder).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(ms(100))).count()
    counts.to_stream().select_key(lambda k, _v: flat(k)).to("out", TO_COUNTS)


def tumbling_reduce_with_grace(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(100), grace=ms(40)))
    windowed.reduce(concatenate, Materialized(name="texts")).to_stream().to("out")


def hopping_aggregate(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(100), grace=ms(30)).advance_by(ms(40)))
    table = windowed.aggregate(
        nothing, append_first, Materialized(name="hopped", value_serde=STRING), named=Named("hops")
    )
    table.to_stream().map(lambda k, v: (flat(k), v)).to("out", TO_TEXTS)


def windowed_group_named(builder: StreamsBuilder, _say: Say) -> None:
    grouped = texts(builder).group_by(first_of_value, Grouped(STRING, STRING, name="grouped"))
    windowed = grouped.windowed_by(TimeWindows.of(ms(50)))
    windowed.count(named=Named("counter")).to_stream().to("out")


def windowed_reduce_unnamed(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(50)))
    windowed.reduce(latest).to_stream().to("out")


def windowed_aggregate_unnamed(builder: StreamsBuilder, _say: Say) -> None:
    def add(_key: str, value: str, known: str) -> str | None:
        return None if len(known) > 3 else known + first(value)

    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(50)))
    windowed.aggregate(nothing, add, Materialized(value_serde=STRING)).to_stream().to("out")


def windowed_retention(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(100), grace=ms(1000)))
    windowed.count(Materialized(name="kept", retention=timedelta(days=2))).to_stream().to("out")


def windows_counted_by_key(builder: StreamsBuilder, _say: Say) -> None:
    windowed = texts(builder).group_by_key().windowed_by(TimeWindows.of(ms(100), grace=ms(100)))
    counts = windowed.count().to_stream().group_by(lambda k, _v: k.key, Grouped(STRING, LONG))
    counts.reduce(lambda left, right: left + right).to_stream().to("out")


def table_to_stream(builder: StreamsBuilder, _say: Say) -> None:
    builder.table("in", TEXTS).to_stream().to("out")


def table_materialized(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("in", Consumed(STRING, STRING, name="read"), Materialized(name="stored"))
    table.to_stream(named=Named("changes")).to("out")


def stream_table_join(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    stream.join(builder.table("table", TEXTS), both).to("out", TO_TEXTS)


def stream_table_left_join(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("table", TEXTS, Materialized(name="stored"))
    texts(builder).left_join(table, all_three, joined=Joined(name="joined")).to("out", TO_TEXTS)


def stream_table_join_repartition(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).select_key(first_of_value)
    stream.join(builder.table("table", TEXTS), both, joined=Joined(STRING, STRING)).to("out", TO_TEXTS)


def stream_table_left_join_repartition(builder: StreamsBuilder, _say: Say) -> None:
    stream: KStream[Any, str] = texts(builder).map(lambda k, v: (None if k == "a" else first(v), both(k, v)))
    stream.left_join(builder.table("table", TEXTS), both, joined=Joined(STRING, STRING)).to("out", TO_TEXTS)


def stream_table_join_repartition_named(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder).select_key(first_of_value)
    joined: Joined[str, str, str] = Joined(STRING, STRING, name="lookup")
    stream.join(builder.table("table", TEXTS), both, joined=joined).to("out", TO_TEXTS)


def stream_joined_with_counts(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    stream.left_join(stream.group_by_key().count(), both).to("out", TO_TEXTS)


def stream_joined_with_two_tables(builder: StreamsBuilder, _say: Say) -> None:
    one = builder.table("table", TEXTS)
    two = builder.table("other", TEXTS)
    texts(builder).left_join(one, both).join(two, both).to("out", TO_TEXTS)


def global_join(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.global_table("table", TEXTS)
    texts(builder).join(table, both, key_selector=first_of_value).to("out", TO_TEXTS)


def global_left_join(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.global_table("table", Consumed(STRING, STRING, name="everywhere"), Materialized(name="held"))

    def key(_key: str, value: str) -> str | None:
        return None if value is not None and len(value) > 3 else first(value)

    texts(builder).left_join(table, all_three, key_selector=key, named=Named("lookup")).to("out", TO_TEXTS)


def global_join_then_count(builder: StreamsBuilder, _say: Say) -> None:
    stream = texts(builder)
    joined = stream.left_join(builder.global_table("table", TEXTS), both, key_selector=lambda k, _v: k)
    joined.group_by_key(BY_TEXT).count().to_stream().to("out")


def table_source_and_count(builder: StreamsBuilder, _say: Say) -> None:
    table = builder.table("table", TEXTS)
    table.to_stream().group_by(first_of_value, BY_TEXT).count().to_stream().to("out")
    texts(builder).join(table, both).to("second", TO_TEXTS)


class Numbering:
    """Numbers the values of a key; a null value says how many there were and starts again."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("numbers")

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            self.context.forward(record.with_value("no key"))
            return
        known = self.store.get(record.key)
        if record.value is None:
            self.store.delete(record.key)
            self.context.forward(record.with_value("had " + text(known)).with_timestamp(record.timestamp + 1))
            return
        number = "1" if known is None else str(int(known) + 1)
        self.store.put(record.key, number)
        self.context.forward(record.with_value(number + record.value))

    def close(self) -> None:
        pass


class Collecting:
    """Collects values and forwards all that is held, by key, whenever stream time passes a multiple of 100 ms."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("held")
        context.schedule(ms(100), PunctuationType.STREAM_TIME, self.forward_all)

    def forward_all(self, time: int) -> None:
        for key, value in list(self.store.all()):
            self.context.forward(Record(key, value, time))
            self.store.delete(key)

    def process(self, record: Record[str, str]) -> None:
        if record.key is not None and record.value is not None:
            known = self.store.get(record.key)
            self.store.put(record.key, record.value if known is None else known + record.value)

    def close(self) -> None:
        pass


class Latest:
    """Keeps the latest value by time; older ones are forwarded as late."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("latest")

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            return
        known = self.store.get(record.key)
        if known is not None and known.timestamp > record.timestamp:
            self.context.forward(record.with_value(f"late by {known.timestamp - record.timestamp}"), "late")
            return
        value = None if record.value is None else ValueAndTimestamp(record.value, record.timestamp)
        self.store.put(record.key, value)
        self.context.forward(record, "timely")

    def close(self) -> None:
        pass


class LookingBack:
    """Looks back 100 ms in a window store of its own."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.get_state_store("seen")

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            return
        since = max(0, record.timestamp - 100)
        found = self.store.fetch_range(record.key, since, record.timestamp)
        seen = "".join(f"{start}={value} " for start, value in found)
        self.store.put(record.key, record.value, record.timestamp)
        self.context.forward(record.with_value(seen))

    def close(self) -> None:
        pass


def process_with_store(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("numbers", STRING, STRING))
    texts(builder).process(Numbering, "numbers").to("out", TO_TEXTS)


def process_named_shared_store(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("numbers", STRING, STRING, persistent=False))
    supplier: Callable[[], Processor[str, str]] = Numbering
    texts(builder).process(supplier, "numbers", named=Named("one")).to("out", TO_TEXTS)
    texts(builder, "other").process(supplier, "numbers", named=Named("two")).to("out", TO_TEXTS)


def process_then_count(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("numbers", STRING, STRING, logging=False))
    texts(builder).process(Numbering, "numbers").group_by_key(BY_TEXT).count().to_stream().to("out")


def punctuate_stream_time(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.key_value_store("held", STRING, STRING))
    texts(builder).process(Collecting, "held").to("out", TO_TEXTS)


def process_to_named_children(builder: StreamsBuilder, _say: Say) -> None:
    builder.add_state_store(Stores.timestamped_key_value_store("latest", STRING, STRING))
    stream = texts(builder).process(Latest, "latest")
    stream.map_values(lambda v: v, named=Named("timely")).to("out", TO_TEXTS)
    stream.map_values(lambda v: v, named=Named("late")).to("second", TO_TEXTS)


def process_with_window_store(builder: StreamsBuilder, _say: Say) -> None:
    times: dict[str, Any] = {"retention": ms(300), "window_size": ms(100)}
    builder.add_state_store(Stores.window_store("seen", STRING, STRING, **times, logging=False))
    texts(builder).process(LookingBack, "seen").to("out", TO_TEXTS)


def process_with_logged_window_store(builder: StreamsBuilder, _say: Say) -> None:
    times: dict[str, Any] = {"retention": timedelta(minutes=10), "window_size": ms(100)}
    builder.add_state_store(Stores.window_store("seen", STRING, STRING, **times))
    texts(builder).process(LookingBack, "seen").to("out", TO_TEXTS)
