"""A task that goes on with what a bounded run has packed: it may commit, and be taken over, in the middle of a pack."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun import (
    JSON,
    LONG,
    STRING,
    Consumed,
    Grouped,
    Joined,
    Materialized,
    Produced,
    Repartitioned,
    StreamsBuilder,
)
from riverrun.config import StreamsConfig
from riverrun.errors import DeserializationError
from riverrun.processor.handlers import error_handlers
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.layout import TaskSpec
from riverrun.runtime.packs import PackedInput, pack_header, packed
from riverrun.runtime.ports import Ports
from riverrun.runtime.task import Task
from riverrun.runtime.times import OffsetMetadata
from riverrun.state.memory import MemoryBackend
from riverrun.testing.driver import MockClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from riverrun import KStream
    from riverrun.records import Headers

OWN = TopicPartition("app-own-repartition", 0)
ORDER = (("order", b"1"),)


@dataclass
class Outputs:
    """A collector of keys and headers, and of all that was sent: topic, key, value."""

    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    sent: list[tuple[str, bytes | None, bytes | None]] = field(default_factory=list)
    committed: int = 0

    def send(self, topic: str, key: bytes | None, *record: Any) -> None:
        self.keys.append(key)
        self.headers.append(record[2])
        self.sent.append((topic, key, record[0]))

    def partitions(self, _topic: str) -> int:
        return 1


def log(counts: tuple[int, ...]) -> list[RawRecord]:
    """A repartition topic: packs of so many records, and single ones (0)."""
    records, number = [], 0
    for offset, count in enumerate(counts):
        keys = [b"%d" % n for n in range(number, number + max(count, 1))]
        number += len(keys)
        if count:
            value = packed(keys, [b"v"] * count, [0] * count, [ORDER] * count)
            records.append(RawRecord(None, value, 0, offset, pack_header(TaskId(0, 0))))
        else:
            records.append(RawRecord(keys[0], b"v", 0, offset, ORDER))
    return records


def owner(outputs: Outputs, committed: Mapping[TopicPartition, tuple[int, str]]) -> Task:
    """The task below the repartition topic, from what is committed on."""
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(STRING, STRING)).repartition(Repartitioned(STRING, STRING, name="own"))
    stream.to("out", Produced(STRING, STRING))
    sub = builder.build().sub_topologies()[1]
    task = Task(TaskSpec(TaskId(1, 0), sub, "app", (OWN,)), Ports(outputs, MemoryBackend(), MockClock()))
    task.start(committed)
    return task


COUNTS = (3, 0, 1, 4, 0, 0, 2)


def commits(records: list[RawRecord], every: int, batch: int) -> Iterator[tuple[Outputs, tuple[int, str]]]:
    """The records and commits of owners that process so many records, commit and die."""
    committed: dict[TopicPartition, tuple[int, str]] = {}
    done = -1
    while done:
        outputs = Outputs()
        task = owner(outputs, committed)
        unread = records[committed.get(OWN, (0, ""))[0] :]
        done = 0
        while done < every and unread:
            task.add_records(OWN, unread[:batch])
            del unread[:batch]
            done += task.process(every - done)
        committed |= task.prepare_commit().offsets
        yield outputs, committed[OWN]


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("every", [1, 2, 3, 5, 8, 13])
def test_each_record_comes_once_and_in_order_wherever_owners_commit_and_die(every: int, batch: int) -> None:
    found = list(commits(log(COUNTS), every, batch))
    assert [key for outputs, _ in found for key in outputs.keys] == [b"%d" % n for n in range(13)]
    assert {header for outputs, _ in found for header in outputs.headers} == {ORDER}
    assert found[-1][1] == (7, OffsetMetadata(0).encode())


def test_a_commit_within_a_pack_has_its_offset_and_how_much_is_done() -> None:
    (_, first), (_, second), *_ = commits(log((3, 4)), every=2, batch=100)
    assert first == (0, OffsetMetadata(0, taken=2).encode())
    assert second == (1, OffsetMetadata(0, taken=1).encode())


def test_a_commit_before_anything_was_read_forgets_nothing_of_the_pack() -> None:
    committed = {OWN: (3, OffsetMetadata(7, {"other": 5}, taken=2).encode())}
    task = owner(Outputs(), committed)
    assert task.taken(OWN) == 2
    assert task.prepare_commit().offsets == committed


def test_how_much_of_a_pack_is_done_stands_among_the_times_that_processors_keep() -> None:
    metadata = OffsetMetadata(100, {"other": 5}, taken=3)
    assert OffsetMetadata.decode(metadata.encode()) == metadata
    assert OffsetMetadata(100, {"other": 5, "__riverrun.taken": 3}).encode() == metadata.encode()


def test_a_pack_that_is_damaged_is_named() -> None:
    task = owner(Outputs(), {})
    task.add_records(OWN, [RawRecord(None, b"no pack", 0, 4, pack_header(TaskId(0, 0)))])
    with pytest.raises(
        DeserializationError, match=r"packed cannot be read: .*app-own-repartition, partition 0, offset 4"
    ):
        task.process(1)


OTHER = TopicPartition("other", 0)


def merging(outputs: Outputs, committed: Mapping[TopicPartition, tuple[int, str]]) -> Task:
    """A task with an input besides that in which packs are; it keeps what it cannot read, and goes on."""
    builder = StreamsBuilder()
    own = builder.stream("in", Consumed(STRING, STRING)).repartition(Repartitioned(STRING, JSON, name="own"))
    own.merge(builder.stream("other", Consumed(STRING, JSON))).to("out", Produced(STRING, JSON))
    config = StreamsConfig(deserialization_exception_handler="continue", errors_dead_letter_queue_topic_name="letters")
    sub = next(sub for sub in builder.build().sub_topologies() if "other" in sub.source_topics)
    spec = TaskSpec(TaskId(sub.id, 0), sub, "app", (OWN, OTHER), error_handlers(config), max_task_idle_ms=-1)
    task = Task(spec, Ports(outputs, MemoryBackend(), MockClock()))
    task.start(committed)
    return task


@st.composite
def two_logs(draw: st.DrawFn) -> dict[TopicPartition, list[RawRecord]]:
    """Packs and single records in one input, single ones in the other; times come as they like, and some values are broken."""
    logs: dict[TopicPartition, list[RawRecord]] = {OWN: [], OTHER: []}
    number = 0
    for tp, counts in ((OWN, st.integers(0, 4)), (OTHER, st.just(0))):
        offset = 0
        for count in draw(st.lists(counts, max_size=6)):
            offset += draw(st.integers(0, 2))  # between two records may lie ends of transactions
            keys = [b"%d" % n for n in range(number, number + max(count, 1))]
            number += len(keys)
            values = [draw(st.sampled_from([b"1", b"1", None, b"{"])) for _ in keys]
            times = [draw(st.integers(0, 5)) for _ in keys]
            if count:
                value = packed(keys, values, times, [()] * count)
                logs[tp].append(RawRecord(None, value, max(times), offset, pack_header(TaskId(0, 0))))
            else:
                logs[tp].append(RawRecord(keys[0], values[0], times[0], offset, ()))
            offset += 1
    return logs


def members(log: list[RawRecord]) -> list[bytes | None]:
    """The keys of what is in a log."""
    return [key for key, *_ in PackedInput().open(log)]


@settings(max_examples=150)
@given(st.data())
def test_records_of_several_inputs_come_once_and_in_order_despite_crashes(
    data: st.DataObject,
) -> None:
    logs = data.draw(two_logs())
    found: list[bytes | None] = []
    committed: dict[TopicPartition, tuple[int, str]] = {}
    for _ in range(data.draw(st.integers(0, 6))):
        found += life(logs, committed, data)
    found += life(logs, committed, None)
    for log in logs.values():
        keys = members(log)
        assert [key for key in found if key in keys] == keys
    assert len(found) == sum(len(members(log)) for log in logs.values())


def life(
    logs: Mapping[TopicPartition, list[RawRecord]],
    committed: dict[TopicPartition, tuple[int, str]],
    data: st.DataObject | None,
) -> list[bytes | None]:
    """The keys of what an owner sends and commits, in the order of its inputs' records; all there is, if it need not choose."""
    outputs = Outputs()
    task = merging(outputs, committed)
    unread = {
        tp: [record for record in log if record.offset >= committed.get(tp, (0, ""))[0]] for tp, log in logs.items()
    }
    for _ in range(100 if data is None else data.draw(st.integers(0, 8))):
        for tp, records in unread.items():
            batch = len(records) if data is None else data.draw(st.integers(0, 2))
            task.add_records(tp, records[:batch])
            del records[:batch]
            if not records:
                task.reached_end(tp, logs[tp][-1].offset + 2 if logs[tp] else 0)
        task.process(100 if data is None else data.draw(st.integers(1, 5)))
        if data is not None and data.draw(st.booleans()):
            committed |= task.prepare_commit().offsets
            task.post_commit({})
            outputs.committed = len(outputs.keys)
    if data is None:
        return outputs.keys
    return outputs.keys[: outputs.committed]


def counting(words: KStream[str, str], _builder: StreamsBuilder) -> KStream[str, int]:
    """Keeps counts in a cache until the commit; one of two cannot be processed."""
    counts = words.group_by_key(Grouped(STRING, STRING)).count(Materialized(name="counts"))
    return counts.to_stream().map_values(lambda n: 6 // (n - 2))


def waiting(words: KStream[str, str], builder: StreamsBuilder) -> KStream[str, int]:
    """Keeps records until updates of a table have come; a second one cannot be processed."""
    versions: Materialized[str, str] = Materialized(name="versions", history_retention=timedelta(seconds=1))
    table = builder.table("other", Consumed(STRING, STRING), versions)
    wait: Joined[str, str, str] = Joined(STRING, STRING, timedelta(milliseconds=10), name="wait")
    return words.left_join(table, lambda word, _: word, joined=wait).map_values({"first": 1, "only": 2}.__getitem__)


@pytest.mark.parametrize("is_pack", [False, True])
@pytest.mark.parametrize("holding", [counting, waiting])
def test_a_held_back_record_that_cannot_be_processed_is_kept_as_it_came(
    holding: Callable[[KStream[str, str], StreamsBuilder], KStream[str, int]], is_pack: bool
) -> None:
    builder = StreamsBuilder()
    words = builder.stream("in", Consumed(STRING, STRING)).repartition(Repartitioned(STRING, STRING, name="own"))
    holding(words, builder).to("out", Produced(STRING, LONG))
    config = StreamsConfig(processing_exception_handler="continue", errors_dead_letter_queue_topic_name="letters")
    sub = next(sub for sub in builder.build().sub_topologies() if "out" in sub.sink_topics)
    outputs = Outputs()
    spec = TaskSpec(TaskId(sub.id, 0), sub, "app", (OWN,), error_handlers(config))
    task = Task(spec, Ports(outputs, MemoryBackend(), MockClock()))
    task.start({})

    keys, values, times = [b"a", b"a", b"b", b"c"], [b"first", b"second", b"only", b"only"], [0, 0, 0, 100]
    pack = RawRecord(None, packed(keys, values, times, [()] * 4), 0, 0, pack_header(TaskId(0, 0)))
    singles = [RawRecord(*fields, ()) for fields in zip(keys, values, times, range(4), strict=True)]
    task.add_records(OWN, [pack] if is_pack else singles)
    task.process(4)
    task.prepare_commit()
    assert [sent[1:] for sent in outputs.sent if sent[0] == "letters"] == [(b"a", b"second")]
