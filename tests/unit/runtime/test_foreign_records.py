"""Headers of users and bytes of other programs in internal topics: kept, or handed to the handler, never taken for our own."""

from __future__ import annotations

import struct
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from riverrun import (
    BYTES,
    STRING,
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Produced,
    Repartitioned,
    SessionWindows,
    StreamJoined,
    StreamsBuilder,
    StreamsError,
    Suppressed,
    TimeWindows,
)
from riverrun.config import StreamsConfig
from riverrun.processor.handlers import error_handlers
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.packs import PACK_HEADER, pack_header, packed
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.spark.bounded_runs.packing import Packing
from riverrun.spark.tasks.spilling import WriterMerge
from riverrun.state.memory import MemoryBackend
from riverrun.testing import TopologyTestDriver
from riverrun.testing.driver import MockClock
from tests.changelogs import Batch

if TYPE_CHECKING:
    from pathlib import Path

    from riverrun import Topology
    from riverrun.records import Headers

ANY: Consumed[bytes, bytes] = Consumed(BYTES, BYTES)
INPUT, OWN = TopicPartition("in", 0), TopicPartition("app-own-repartition", 0)
WRITER = struct.pack(">ii", 0, 0)
GOOD_PACK = packed([b"forged"], [b"forged"], [7], [()])
CONTINUE = StreamsConfig(
    deserialization_exception_handler="continue",
    processing_exception_handler="continue",
    production_exception_handler="continue",
)

names = st.sampled_from([PACK_HEADER, "__riverrun.plain", "__riverrun.taken", "v", "a", ""]) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8
)
data = st.sampled_from([WRITER, b"\0" * 8, b"\xff" * 8, b""]) | st.none() | st.binary(max_size=12)
headers = st.lists(st.tuples(names, data), max_size=4).map(tuple)
column = st.lists(st.none() | st.binary(max_size=3), max_size=3)
forged = st.one_of(
    st.binary(max_size=20),
    st.just(GOOD_PACK),
    st.builds(
        lambda *columns: msgspec.msgpack.encode(columns),
        column,
        column,
        st.lists(st.integers(-2, 2**64 - 1), max_size=3),
        st.none() | st.lists(st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)),
    ),
)


class Topics:
    """A collector that keeps all records by topic."""

    def __init__(self) -> None:
        self.sent: dict[str, list[RawRecord]] = {}

    def send(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers, _partition: Any
    ) -> None:
        log = self.sent.setdefault(topic, [])
        log.append(RawRecord(key, value, timestamp, len(log), headers))

    def partitions(self, topic: str) -> int:  # noqa: ARG002 - all have one
        return 1

    def flush(self) -> None: ...


def repartitioning() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", ANY).repartition(Repartitioned(BYTES, BYTES, name="own"))
    stream.to("out", Produced(BYTES, BYTES))
    return builder.build()


def task_of(topology: Topology, number: int, collector: Any, tp: TopicPartition, config: StreamsConfig) -> Task:
    sub = topology.sub_topologies()[number]
    spec = TaskSpec(TaskId(number, 0), sub, "app", (tp,), error_handlers(config))
    task = Task(spec, Ports(collector, MemoryBackend(), MockClock()))
    task.start({})
    return task


def through(rows: list[tuple[bytes, bytes, Headers]], host: str, directory: Path, config: StreamsConfig) -> list[Any]:
    """The records of two tasks with a repartition topic between them, as in workers, bounded runs and dry runs."""
    topology, between, outputs = repartitioning(), Topics(), Topics()
    collector: Any = Packing(between, TaskId(0, 0), {OWN.topic: 1}) if host == "bounded" else between
    above = task_of(topology, 0, collector, INPUT, config)
    above.add_records(INPUT, [RawRecord(key, value, n, n, held) for n, (key, value, held) in enumerate(rows)])
    above.process_all()
    above.prepare_commit()
    if host == "bounded":
        collector.flush()
    handed = between.sent.get(OWN.topic, [])
    below = task_of(topology, 1, outputs, OWN, config)
    if host == "live":
        below.add_records(OWN, handed)
    else:
        with WriterMerge(directory, limit_bytes=0) as merge:
            merge.add(OWN, handed, may_be_packs=host == "bounded")
            for tp, batches in merge.merged():
                below.add_batches(tp, batches)
            below.process_all()
    below.process_all()
    below.prepare_commit()
    return [(r.key, r.value, r.timestamp, r.headers) for r in outputs.sent.get("out", [])]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merge")


@pytest.mark.parametrize("handlers", ["fail", "continue"])
@pytest.mark.parametrize("host", ["live", "bounded", "dry"])
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.binary(max_size=3), forged, headers), max_size=6))
@example(rows=[(b"k", GOOD_PACK, ((PACK_HEADER, WRITER),))])
@example(rows=[(b"k", GOOD_PACK, ((PACK_HEADER, WRITER), ("__riverrun.plain", None)))])
def test_users_headers_survive_a_repartition_topic(host: str, handlers: str, rows: Any, directory: Path) -> None:
    config = CONTINUE if handlers == "continue" else StreamsConfig()
    expected = [(key, value, n, held) for n, (key, value, held) in enumerate(rows)]
    assert through(rows, host, directory, config) == expected


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.binary(max_size=3), forged, headers), max_size=6))
@example(rows=[(b"k", GOOD_PACK, ((PACK_HEADER, WRITER),))])
def test_users_headers_survive_in_the_driver(rows: Any) -> None:
    with TopologyTestDriver(repartitioning()) as driver:
        for n, (key, value, held) in enumerate(rows):
            driver.input_topic("in", BYTES, BYTES).pipe_input(key, value, timestamp=n, headers=held)
        found = [(r.key, r.value, r.headers) for r in driver.read_raw("out")]
    assert found == rows


@pytest.mark.parametrize("host", ["live", "bounded"])
@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(st.none() | st.binary(max_size=3), st.none() | forged, headers), max_size=6))
@example(rows=[(None, msgspec.msgpack.encode(([b"a"], [], [0], None)), ((PACK_HEADER, WRITER),)), (b"k", b"v", ())])
def test_what_others_write_to_a_repartition_topic_goes_to_the_handler(host: str, rows: Any, directory: Path) -> None:
    """Each record is processed, opened if it is a complete pack, or dropped as one that cannot be decoded."""
    log = [RawRecord(key, value, n, n, held) for n, (key, value, held) in enumerate(rows)]
    outputs = Topics()
    task = task_of(repartitioning(), 1, outputs, OWN, CONTINUE)
    if host == "live":
        task.add_records(OWN, log)
        task.process_all()
    else:
        with WriterMerge(directory, limit_bytes=0) as merge:
            merge.add(OWN, log)
            for tp, batches in merge.merged():
                task.add_batches(tp, batches)
            task.process_all()
    task.prepare_commit()
    plain = [
        (r.key, r.value)
        for r in log
        if not (r.headers and r.headers[-1][0] == PACK_HEADER and r.headers[-1][1] and len(r.headers[-1][1]) == 8)
    ]
    found = [(r.key, r.value) for r in outputs.sent.get("out", [])]
    assert Counter(plain) <= Counter(found)
    assert all(r.timestamp >= 0 for r in outputs.sent.get("out", []))
    if host == "live":
        assert task.position(OWN) == (len(log) if log else -1)


def test_a_damaged_pack_without_a_handler_stops_the_task_when_it_is_due() -> None:
    outputs = Topics()
    task = task_of(repartitioning(), 1, outputs, OWN, StreamsConfig())
    damaged = RawRecord(None, b"no pack", 1, 1, pack_header(TaskId(0, 0)))
    task.add_records(OWN, [RawRecord(b"k", b"v", 0, 0), damaged])
    with pytest.raises(StreamsError, match=r"packed cannot be read.*offset 1"):
        task.process_all()
    assert [r.key for r in outputs.sent["out"]] == [b"k"]


def many() -> Topology:
    """A topology with every kind of internal topic: for streams, tables, subscriptions and answers, and all changelogs."""
    builder = StreamsBuilder()
    texts: Consumed[str, str] = Consumed(STRING, STRING)
    left, right = builder.table("left", texts), builder.table("right", texts)
    left.join(right, lambda a, b: a + b, foreign_key_extractor=lambda v: v).to_stream().to(
        "joined", Produced(STRING, STRING)
    )
    by_value = left.group_by(lambda k, v: (v, k), Grouped(STRING, STRING))
    by_value.reduce(lambda a, b: a + b, lambda a, _b: a, Materialized(STRING, STRING, name="reduced"))
    stream = builder.stream("in", texts).select_key(lambda _k, v: v)
    grouped = stream.group_by_key(Grouped(STRING, STRING, name="grouped"))
    second = timedelta(seconds=1)
    counts = grouped.windowed_by(TimeWindows.of(second)).count(Materialized(STRING, name="windows"))
    counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("final"))
    grouped.windowed_by(SessionWindows.of(second)).count(Materialized(STRING, name="sessions"))
    joined = StreamJoined(STRING, STRING, STRING, name="pairs")
    stream.outer_join(builder.stream("others", texts), lambda a, b: f"{a}{b}", JoinWindows.of(second), joined=joined)
    return builder.build()


MANY = many()
INTERNAL = sorted(f"app-{topic}" for topic in MANY.repartition_topics)
STORES = sorted(name for name, store in MANY.stores.items() if store.logging)


@pytest.mark.parametrize("topic", INTERNAL)
@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40), headers), max_size=5
    )
)
@example(rows=[(b"k", b"\x01\x03" + b"h" * 16 + b"pk" + struct.pack(">i", -5), ())])
@example(rows=[(b"k", b"\x01\x03" + b"h" * 16 + b"pk" + struct.pack(">i", 2**30), ())])
@example(rows=[(b"k", b"\x01\x03" + b"h" * 3, ())])
@example(rows=[(b"k", b"\x81\x02\0", ())])
def test_any_bytes_in_an_internal_topic_are_processed_or_dropped(topic: str, rows: Any) -> None:
    sub = next(sub for sub in MANY.sub_topologies() if topic.removeprefix("app-") in sub.source_topics)
    number = MANY.sub_topologies().index(sub)
    tp = TopicPartition(topic, 0)
    task = task_of(MANY, number, Topics(), tp, CONTINUE)
    log = [RawRecord(key, value, n, n, held) for n, (key, value, held) in enumerate(rows)]
    task.add_records(tp, log)
    task.process_all()
    task.prepare_commit()


@pytest.mark.parametrize("store", STORES)
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=60), headers), max_size=4))
def test_any_bytes_in_a_changelog_are_restored_or_refused_with_an_error(store: str, rows: Any) -> None:
    number, sub = next(
        (n, sub) for n, sub in enumerate(MANY.sub_topologies()) if store in {known.name for known in sub.stores}
    )
    backend = MemoryBackend()
    names_of = (f"app-{t}" if t in sub.repartition_topics else t for t in sub.source_topics)
    spec = TaskSpec(TaskId(number, 0), sub, "app", tuple(TopicPartition(t, 0) for t in names_of))
    task = Task(spec, Ports(Topics(), backend, MockClock()))
    starts = task.restore_starts()
    tp = next(tp for tp in starts if tp.topic.endswith(f"{store}-changelog"))
    log = [RawRecord(key, value, n, n, held) for n, (key, value, held) in enumerate(rows)]
    try:
        task.restore(tp, Batch(log), len(log))
        task.start({})
    except StreamsError:
        pass
