"""Generated loops of operators without state have the results of record-by-record processing."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    JSON,
    LONG,
    STRING,
    Branched,
    CalendarWindows,
    Consumed,
    EmitStrategy,
    Grouped,
    Materialized,
    Processor,
    Produced,
    PunctuationType,
    Record,
    Serde,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    TopicPartition,
    Windowed,
    windowed,
)
from riverrun.processor.handlers import ErrorHandlers, Response
from riverrun.records import RawRecord, TaskId
from riverrun.runtime.layout import TaskSpec, full_name
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MockClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun import ConsumerRecord, KStream, ProcessorContext

STRINGS = Produced(STRING, STRING)
SOME_STRINGS: Produced[str, str | None] = Produced(STRING, cast("Serde[str | None]", STRING))


_SWAP = {"a": "b", "b": "a"}
SWAPPED = Serde(
    "swapped", lambda key: _SWAP.get(key, key).encode(), lambda data: _SWAP.get(data.decode(), data.decode())
)
"""Keys whose bytes are those of another one."""
CHOOSY = Serde("choosy", lambda key: {"a": b"a", "b": b"b"}[key], bytes.decode)
"""Cannot write most keys."""
LOWER = Serde("lower", str.encode, lambda data: data.decode().lower())
"""Keys that may be written in several ways."""


class Tick(Processor[str, str]):
    """Forwards what it gets, and now and then how far stream time is."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        context.schedule(timedelta(milliseconds=40), PunctuationType.STREAM_TIME, self._tick)

    def process(self, record: Record[str, str]) -> None:
        place = self.context.record_metadata
        self.context.forward(record.with_value(f"{record.value} at {place}"))

    def _tick(self, now_ms: int) -> None:
        self.context.forward(Record("tick", f"{now_ms} {self.context.record_metadata}", now_ms))


def every_operator(stream: KStream[str, str]) -> None:
    seen: list[str] = []
    mapped = (
        stream.filter(lambda key, _value: key != "no")
        .filter_not(lambda _key, value: value == "never")
        .map(lambda key, value: (key, value + "!"))
        .map_values(lambda value: value and value.upper())
        .map_values(lambda key, value: f"{key}={value}")
        .peek(lambda key, _value: seen.append(key))
        .flat_map(lambda key, value: [(key, value), (value, key)])
        .flat_map_values(lambda value: [value] * (len(value or "") % 3))
        .select_key(lambda key, _value: key)
    )
    mapped.to("out", STRINGS)
    mapped.merge(stream.map_values(lambda _value: f"{len(seen)} seen")).to("out", STRINGS)


def branches(stream: KStream[str, str]) -> None:
    ways = (
        stream.split()
        .branch(lambda key, _value: key == "a", Branched("a"))
        .branch(lambda _key, value: value is not None and len(value) > 2, Branched("long"))
        .default_branch(Branched("rest"))
    )
    for name, way in ways.items():
        way.to(f"out-{name[-1]}", STRINGS)
    stream.split().branch(lambda key, _value: key == "b", Branched(consumer=lambda s: s.to("out", STRINGS)))


def choosing_sinks(stream: KStream[str, str]) -> None:
    stream.to(lambda key, _value, _context: f"to-{key}", STRINGS)
    stream.to("out", Produced(STRING, STRING, lambda _topic, _key, value, n: len(value or "") % n))


def deep(stream: KStream[str, str]) -> None:
    for _ in range(25):
        stream = stream.flat_map_values(lambda value: [value]).filter(lambda _key, _value: True)
    stream.to("out", STRINGS)


def stateful(stream: KStream[str, str]) -> None:
    stream.map_values(lambda value: value and value[:1]).process(Tick).to("out", STRINGS)
    counts = stream.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().map_values(str).to("out", STRINGS)
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=20), timedelta(milliseconds=30))
    longest = (
        stream.group_by_key(Grouped(STRING, STRING)).windowed_by(windows).reduce(max, Materialized(name="longest"))
    )
    longest.to_stream(lambda windowed, _value: f"{windowed.key}@{windowed.window.start}").to("out", STRINGS)


def with_caches(stream: KStream[str, str]) -> None:
    """Aggregates that are changed in place and deleted; windows that overlap, expire, and are searched by a processor."""
    stream.filter(lambda _key, value: value == "b").to("swapped", Produced(SWAPPED, STRING))
    grouped = stream.group_by_key(Grouped(STRING, STRING))
    lists = grouped.aggregate(list, appended, Materialized(STRING, JSON(list[str]), name="lists"))
    lists.to_stream().to("lists", Produced(STRING, JSON(list[str])))
    size, grace = timedelta(milliseconds=20), timedelta(milliseconds=30)
    hopping = grouped.windowed_by(TimeWindows.of_size_and_grace(size, grace).advance_by(timedelta(milliseconds=7)))
    kept = Materialized(STRING, JSON(list[str]), name="windows", retention=timedelta(milliseconds=50))
    hopping.aggregate(list, appended, kept).to_stream().to("out", Produced(windowed(STRING), JSON(list[str])))
    days = CalendarWindows.days("UTC", offset=size, grace=timedelta(milliseconds=15))
    grouped.windowed_by(days).count(Materialized(name="days")).to_stream().to("days", Produced(windowed(STRING), LONG))
    tumbling = grouped.windowed_by(TimeWindows.of_size_with_no_grace(size))
    tumbling.count(Materialized(name="counts")).to_stream().to("counts", Produced(windowed(STRING), LONG))
    stream.process(Search, "counts", "windows").to("found", STRINGS)


class Search(Processor[str, str]):
    """Forwards all windows of a key after some of its records."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.stores = [context.get_state_store(name) for name in ("counts", "windows")]

    def process(self, record: Record[str, str]) -> None:
        if record.value == "b" and record.key is not None:
            found = [list(store.fetch_range(record.key, 0, 400)) for store in self.stores]
            self.context.forward(record.with_value(str(found)))


def look_ups(stream: KStream[str, str]) -> None:
    """Joins with a table, below each other, with keys and without, of records with and without values."""
    words = stream.filter(lambda _key, value: value != "b").to_table(Materialized(STRING, STRING, name="words"))
    both = stream.join(words, lambda value, word: f"{value} {word}")
    both.to("out", STRINGS)
    left = both.left_join(words, lambda key, value, word: f"{key} {value} {word}").filter(
        lambda key, _value: key != "a"
    )
    joined = left.join(words, lambda key, value, word: None if word == "never" else f"{key} {value} {word}")
    joined.to("left", SOME_STRINGS)
    stream.left_join(words, lambda _value, word: word).to("words", SOME_STRINGS)


def without_caches(stream: KStream[str, str]) -> None:
    grouped = stream.group_by_key(Grouped(STRING, STRING))
    counts = grouped.count(Materialized(name="counts", caching=False))
    counts.to_stream().to("counts", Produced(STRING, LONG))
    lists = Materialized(STRING, JSON(list[str]), name="lists", caching=False, logging=False)
    seen = grouped.aggregate(list, appended, lists)
    seen.to_stream().to("lists", Produced(STRING, JSON(list[str])))
    counts.join(seen, lambda count, words: f"{count} {words}").to_stream().to("out", STRINGS)
    grouped.reduce(higher, Materialized(name="longest", caching=False)).to_stream().to("out", STRINGS)


def old_values(stream: KStream[str, str]) -> None:
    """Two tables without caches that tell what an update replaced, to those who take it out of its group."""
    grouped = stream.group_by_key(Grouped(STRING, STRING))
    lists = Materialized(STRING, JSON(list[str]), name="lists", caching=False)
    by_words = Grouped(STRING, STRING, name="by-words")
    grouped.aggregate(list, appended, lists).group_by(lambda key, words: (str(words), key), by_words).count()
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=20), timedelta(milliseconds=30))
    counts = grouped.windowed_by(windows).count(Materialized(name="counts", caching=False))
    counts.group_by(lambda key, count: (str(count), str(key)), Grouped(STRING, STRING, name="by-count")).count()


def windows_without_caches(stream: KStream[str, str]) -> None:
    size, grace = timedelta(milliseconds=20), timedelta(milliseconds=30)
    grouped = stream.group_by_key(Grouped(STRING, STRING))
    tumbling = grouped.windowed_by(TimeWindows.of_size_and_grace(size, grace))
    counts = tumbling.count(Materialized(name="counts", caching=False))
    counts.to_stream().to("counts", Produced(windowed(STRING), LONG))
    hopping = grouped.windowed_by(TimeWindows.of_size_with_no_grace(size).advance_by(timedelta(milliseconds=7)))
    lists = Materialized(STRING, JSON(list[str]), name="lists", caching=False, logging=False)
    hopping.aggregate(list, appended, lists).to_stream().to("lists", Produced(windowed(STRING), JSON(list[str])))
    final = tumbling.emit_strategy(EmitStrategy.on_window_close())
    last = final.aggregate(list, appended, Materialized(STRING, JSON(list[str]), name="last", caching=False))
    last.to_stream().to("last", Produced(windowed(STRING), JSON(list[str])))
    days = CalendarWindows.days("UTC", offset=timedelta(milliseconds=20), grace=grace)
    daily = grouped.windowed_by(days).count(Materialized(name="daily", caching=False))
    daily.to_stream().to("daily", Produced(windowed(STRING), LONG))
    longest = tumbling.reduce(higher, Materialized(name="longest", caching=False))
    longest.join(counts, lambda word, count: f"{word} {count}").to_stream().to(
        "out", Produced(windowed(STRING), STRING)
    )


def higher(one: str, other: str | None) -> str | None:
    """The higher one; none for some."""
    return None if other == "never" else max(one, other or "")


def appended(_key: str, value: str | None, words: list[str]) -> list[str] | None:
    """The list itself, changed in place; none after too many, or without a value."""
    words.append(value or "")
    return words if value and len(words) < 4 else None


def cogrouped(stream: KStream[str, str]) -> None:
    """Two aggregations into one store, with and without windows."""
    words, others = stream.group_by_key(), stream.filter(lambda _key, value: len(value) < 3).group_by_key()
    both = words.cogroup(lambda _key, value, text: text + value).cogroup(others, lambda _key, _value, text: text + "-")
    both.aggregate(str, Materialized(STRING, STRING, name="texts")).to_stream().to("out", Produced(STRING, STRING))
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=20), timedelta(milliseconds=30))
    texts = both.windowed_by(windows).aggregate(str, Materialized(STRING, STRING, name="windows"))
    texts.to_stream().to("out", Produced(windowed(STRING), STRING))


def unwritable(stream: KStream[str, str]) -> None:
    stream.map_values(lambda value: cast("str", 5) if value == "five" else value).to("out", STRINGS)


def unwritable_keys(stream: KStream[str, str]) -> None:
    """Windowed keys of which some cannot be written, out of a cache."""
    windows = TimeWindows.of_size_with_no_grace(timedelta(milliseconds=20))
    counts = stream.group_by_key(Grouped(STRING, STRING)).windowed_by(windows).count(Materialized(name="counts"))
    counts.to_stream().to("counts", Produced(windowed(CHOOSY), LONG))


def unwritable_windows(stream: KStream[str, str]) -> None:
    windows = TimeWindows.of_size_with_no_grace(timedelta(milliseconds=20))
    longest: Materialized[str, str] = Materialized(name="longest", caching=False)
    reduced = stream.group_by_key(Grouped(STRING, STRING)).windowed_by(windows).reduce(higher, longest)
    named = reduced.to_stream().map(
        lambda key, value: (Windowed(cast("str", 0), key.window) if value == "five" else key, value)
    )
    named.to("out", Produced(windowed(STRING), STRING))


def failing(stream: KStream[str, str]) -> None:
    stream.map_values(lambda value: value.upper()).to("out", STRINGS)


def exiting(stream: KStream[str, str]) -> None:
    """Ends the process, as it means to: at some values, and where some are written."""

    def leaving(value: str) -> str:
        return sys.exit(3) if value == "never" else value

    written = Serde("leaving", lambda value: leaving(value).encode(), bytes.decode)
    reduced = stream.filter(lambda _key, value: leaving(value or "") != "a").group_by_key(Grouped(STRING, STRING))
    reduced.reduce(higher, Materialized(STRING, written, name="longest")).to_stream().to(
        "out", Produced(STRING, written)
    )
    stream.to("as-they-are", Produced(STRING, written))


TOPOLOGIES = [
    every_operator,
    branches,
    choosing_sinks,
    deep,
    stateful,
    with_caches,
    look_ups,
    without_caches,
    old_values,
    windows_without_caches,
    cogrouped,
    unwritable,
    unwritable_keys,
    unwritable_windows,
    failing,
    exiting,
]


def time_in_value(record: ConsumerRecord[str, str], partition_time: int) -> int:
    """The length of the value; unknown for some."""
    return len(record.value) if record.value else partition_time


def skipping(*_failure: Any) -> Response:
    """A handler that goes on."""
    return Response.resume()


def failing_too(*_failure: Any) -> Response:
    """A handler that does not."""
    return Response.fail()


@dataclass
class Sent:
    """Keeps what a task sends, in order."""

    records: list[tuple[Any, ...]] = field(default_factory=list)

    def send(self, *record: Any) -> None:
        self.records.append(record)

    def partitions(self, _topic: str) -> int:
        return 3


@dataclass(frozen=True)
class Given:
    """One run: the records of both inputs, and how they are cut."""

    inputs: Mapping[str, list[RawRecord]]
    limit: int
    batch: int
    restarts: bool
    extractor: bool
    skips: bool


def outcome(build: Callable[[KStream[str, str]], None], given: Given, *, fused: bool, below: bool = False) -> list[Any]:
    """A task's records, commits, drops and errors; of the first sub-topology, or of the one below its repartition topic."""
    builder = StreamsBuilder()
    consumed = Consumed(STRING, STRING, time_in_value if given.extractor else None)
    build(builder.stream(sorted(given.inputs), consumed))
    sub = builder.build().sub_topologies()[1 if below else 0]
    topics = [full_name(sub, "app", topic) for topic in sub.source_topics]
    skip = skipping if given.skips else None
    plain = None if fused else failing_too  # to ask a handler, a task takes record by record
    sent = Sent()
    tps = tuple(TopicPartition(topic, 0) for topic in topics)
    parts = dict(zip(tps, given.inputs.values(), strict=True))
    spec = TaskSpec(TaskId(0, 0), sub, "app", tps, ErrorHandlers(deserialization=skip, processing=plain))
    backend = MemoryBackend()
    task = started(spec, sent, backend)
    found: list[Any] = [sent.records]
    try:
        for begin in range(0, 40, given.batch):
            for tp in tps:
                task.add_records(tp, parts[tp][begin : begin + given.batch])
            while task.process(given.limit):
                pass
            found.append(dict(task.prepare_commit().offsets))
            task.post_commit({})
            if given.restarts:
                found += [task.dropped, task.stream_time, task.lateness]
                task = started(spec, sent, backend)
    except StreamsError as error:
        found.append((type(error), str(error)))
    return [*found, task.dropped, task.stream_time, task.lateness]


def started(spec: TaskSpec, sent: Sent, backend: MemoryBackend) -> Task:
    """A task above what the backend holds."""
    task = Task(spec, Ports(sent, backend, MockClock()))
    task.start({})
    return task


texts = st.sampled_from([None, b"a", b"b", b"no", b"never", b"five", b"long enough", b"\xff"])
any_records = st.lists(st.tuples(texts, texts, st.integers(-1, 300) | st.integers(0, 50)), max_size=40)
keys, values = st.sampled_from([b"a", b"b"]), st.sampled_from([None, b"b", b"never", b"long enough"])
updates = st.lists(st.tuples(keys, values, st.integers(0, 300) | st.integers(0, 50)), min_size=10, max_size=40)
records = any_records | updates


@pytest.mark.parametrize("build", TOPOLOGIES)
@settings(max_examples=50)
@given(
    inputs=st.lists(records, min_size=1, max_size=2),
    limit=st.integers(1, 30),
    batch=st.integers(1, 40),
    extractor=st.booleans(),
    restarts=st.booleans(),
    skips=st.booleans(),
)
def test_a_fused_task_does_what_record_by_record_does(
    build: Callable[[KStream[str, str]], None],
    inputs: list[list[tuple[bytes | None, bytes | None, int]]],
    limit: int,
    batch: int,
    extractor: bool,
    restarts: bool,
    skips: bool,
) -> None:
    named = {
        f"in-{number}": [RawRecord(key, value, time, 2 * at) for at, (key, value, time) in enumerate(part)]
        for number, part in enumerate(inputs)
    }
    run = Given(named, limit, batch, restarts, extractor, skips)
    assert outcome(build, run, fused=True) == outcome(build, run, fused=False)


def counted(stream: KStream[str, str]) -> None:
    stream.group_by(lambda _key, value: value, Grouped(STRING, STRING, name="by-word")).count(
        Materialized(name="counts")
    )


def counted_in_windows(stream: KStream[str, str]) -> None:
    grouped = stream.group_by(lambda _key, value: value, Grouped(STRING, STRING, name="by-word"))
    windows = TimeWindows.of_size_and_grace(timedelta(milliseconds=20), timedelta(milliseconds=30))
    counts = grouped.windowed_by(windows).count(Materialized(name="counts", retention=timedelta(milliseconds=60)))
    counts.to_stream().to("out", Produced(windowed(STRING), LONG))


written = st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([None, b"x"]), st.integers(0, 300))


@pytest.mark.parametrize("build", [counted, counted_in_windows])
@settings(max_examples=50)
@given(
    records=st.lists(written, max_size=40), limit=st.integers(1, 30), batch=st.integers(1, 40), restarts=st.booleans()
)
def test_counting_below_a_repartition_topic_equals_counting_one_by_one(
    build: Callable[[KStream[str, str]], None],
    records: list[tuple[bytes | None, bytes | None, int]],
    limit: int,
    batch: int,
    restarts: bool,
) -> None:
    raw = [RawRecord(key, value, time, at) for at, (key, value, time) in enumerate(records)]
    run = Given({"in": raw}, limit, batch, restarts, extractor=False, skips=False)
    assert outcome(build, run, fused=True, below=True) == outcome(build, run, fused=False, below=True)


def test_counting_below_a_repartition_topic_reads_no_value_and_each_key_once() -> None:
    read: list[bytes] = []

    def reading(data: bytes) -> str:
        read.append(data)
        return data.decode()

    noticed = Serde("noticed", str.encode, reading, immutable_types=frozenset({str}))
    builder = StreamsBuilder()
    words = builder.stream("in", Consumed(STRING, STRING))
    words.group_by(lambda _key, value: value, Grouped(noticed, noticed, name="by-word")).count(
        Materialized(name="counts")
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        for value in ("a", "b", "a", "a"):
            topic.pipe_input("k", value)
        assert read == [b"a", b"b"]
        assert dict(driver.get_key_value_store("counts").all()) == {"a": 3, "b": 1}


@pytest.mark.filterwarnings("ignore::riverrun.testing.KeyBytesWarning")
def test_what_counts_as_one_key_is_what_the_serdes_read_not_the_bytes_of_the_input() -> None:
    builder = StreamsBuilder()
    lower, swapped = (
        builder.stream(topic, Consumed(serde, STRING)) for topic, serde in (("lower", LOWER), ("swapped", SWAPPED))
    )
    counts = lower.merge(swapped).group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    counts.to_stream().to("counts", Produced(STRING, LONG))
    with TopologyTestDriver(builder.build()) as driver:
        for topic, key in (("lower", b"a"), ("lower", b"A"), ("swapped", b"a"), ("swapped", b"a"), ("lower", b"b")):
            driver.input_topic(topic, BYTES, BYTES).pipe_input(key, b"x")
        assert dict(driver.get_key_value_store("counts").all()) == {"a": 2, "b": 3}


def test_a_loop_and_readers_of_its_store_agree_after_clean_values_were_forgotten() -> None:
    builder = StreamsBuilder()
    size = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    grouped = builder.stream("in", Consumed(STRING, STRING)).group_by_key(Grouped(STRING, STRING))
    grouped.count(Materialized(name="counts"))
    grouped.windowed_by(size).count(Materialized(name="windows"))
    sub, *_ = builder.build().sub_topologies()
    tp = TopicPartition("in", 0)
    task = started(TaskSpec(TaskId(0, 0), sub, "app", (tp,)), Sent(), MemoryBackend())
    counts, windows = (task.stores()[name] for name in ("counts", "windows"))
    for number in range(1, 5):
        task.add_records(tp, [RawRecord(b"a", b"x", 7, number)])
        task.process(1)
        assert (counts.get("a").value, windows.fetch("a", 0).value) == (number, number)
        task.prepare_commit()
        task.post_commit({})
        counts.forget_reads(0)
        windows.forget_reads(0)
        assert (counts.get("a").value, windows.fetch("a", 0).value) == (number, number)


@pytest.mark.parametrize("fused", [True, False])
def test_a_cache_forwards_in_the_order_of_last_updates(fused: bool) -> None:
    """As Kafka Streams does: else windows below a table, without grace, would drop the later of two updates as late."""
    raw = [RawRecord(key, b"x", time, time) for key, time in ((b"a", 0), (b"b", 50), (b"a", 100))]

    def in_windows(stream: KStream[str, str]) -> None:
        counts = stream.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
        windows = TimeWindows.of_size_with_no_grace(timedelta(milliseconds=10))
        below = counts.to_stream().group_by_key(Grouped(STRING, LONG)).windowed_by(windows)
        below.reduce(max, Materialized(STRING, LONG, name="last")).to_stream().to(
            "out", Produced(windowed(STRING), LONG)
        )

    run = Given({"in": raw}, limit=30, batch=40, restarts=False, extractor=False, skips=False)
    sent, *_, dropped, _, _ = outcome(in_windows, run, fused=fused)
    results = [(record[1][:1], record[1][-1], record[2][-1]) for record in sent if record[0] == "out"]
    assert (results, dict(dropped)) == ([(b"b", 50, 1), (b"a", 100, 2)], {})


class Joining:
    """A task that joins several inputs, and passes its records to its output."""

    def __init__(self, builder: StreamsBuilder, *topics: str) -> None:
        sub, *_ = builder.build().sub_topologies()
        self._sent, self._at = Sent(), 0
        inputs = tuple(TopicPartition(topic, 0) for topic in topics)
        self._task = started(TaskSpec(TaskId(0, 0), sub, "app", inputs), self._sent, MemoryBackend())

    def take(self, topic: str, key: bytes, value: bytes) -> None:
        """Process a record twice in a loop: the first of several inputs is not taken by one, and therefore another."""
        self._at += 3
        keys = (b"first", key, key)
        records = [RawRecord(each, value, self._at, self._at + n) for n, each in enumerate(keys)]
        self._task.add_records(TopicPartition(topic, 0), records)
        assert self._task.process_all() == 3

    def forget(self) -> None:
        """Commit, and forget what was read."""
        self._task.prepare_commit()
        self._task.post_commit({})
        for store in self._task.stores().values():
            store.forget_reads(0)

    def joined(self) -> list[bytes]:
        """The values that were sent since the last call, each once."""
        values = [value for topic, key, value, *_ in self._sent.records if topic == "out" and key != b"first"]
        self._sent.records.clear()
        return [value for value, _ in groupby(values)]


def test_a_row_is_looked_up_by_the_key_as_read_not_by_the_inputs_bytes() -> None:
    builder = StreamsBuilder()
    rows = builder.table("rows", Consumed(STRING, STRING), Materialized(name="table"))
    for topic, serde in (("exact", STRING), ("lower", LOWER), ("swapped", SWAPPED)):
        stream = builder.stream(topic, Consumed(serde, STRING))
        stream.join(rows, lambda value, row: f"{value} {row}").to("out", STRINGS)
    task = Joining(builder, "rows", "exact", "lower", "swapped")
    for state in (b"old", b"new"):
        for key in (b"a", b"b"):
            task.take("rows", key, state + b" " + key)
        if state == b"old":
            task.forget()
        for key in (b"a", b"A", b"b"):
            for topic in ("exact", "lower", "swapped"):
                task.take(topic, key, topic.encode())
        found = [
            b"exact %s a",
            b"lower %s a",
            b"swapped %s b",
            b"lower %s a",
            b"exact %s b",
            b"lower %s b",
            b"swapped %s a",
        ]
        assert task.joined() == [text % state for text in found]


@pytest.mark.parametrize("is_aggregated", [True, False], ids=["aggregated", "as read"])
def test_a_join_sees_each_update_of_a_row_that_it_has_read_before(*, is_aggregated: bool) -> None:
    builder = StreamsBuilder()
    consumed = Consumed(STRING, STRING)
    if is_aggregated:
        table = builder.stream("rows", consumed).group_by_key(Grouped(STRING, STRING)).reduce(lambda _old, new: new)
    else:
        table = builder.table("rows", consumed, Materialized(name="table"))
    stream = builder.stream("in", consumed)
    stream.join(table, lambda _value, row: f"inner {row}").to("out", STRINGS)
    left = builder.stream("other", consumed)
    left.left_join(table, lambda _value, row: f"left {row}").to("out", STRINGS)
    task = Joining(builder, "rows", "in", "other")
    for before, row in ((None, b"1"), (b"1", b"2"), (b"2", b"3")):
        for _ in range(2):
            task.take("in", b"a", b"x")
            task.take("other", b"a", b"x")
            assert task.joined() == ([b"left None"] if before is None else [b"inner " + before, b"left " + before])
            task.forget()
        task.take("in", b"a", b"x")
        task.take("other", b"a", b"x")
        task.joined()
        task.take("rows", b"a", row)
        task.take("in", b"a", b"x")
        task.take("other", b"a", b"x")
        assert task.joined() == [b"inner " + row, b"left " + row]
