"""A task of a bounded run hands records to the next level: in packs, to the partitions and in the order of single records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import RefusedRecordError, TopicError
from riverrun.partitioning import partition_for
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.packs import PackedInput, unpacked, writer_of
from riverrun.spark.bounded_runs.packing import Packing

if TYPE_CHECKING:
    from riverrun.records import Headers, RawFields

OWN, OTHER = "counts-repartition", "out"
WRITER = TaskId(0, 3)


@dataclass
class Topics:
    """A collector that keeps what is sent, and refuses what is too large, or for a partition that there is not."""

    counts: dict[str, int]
    largest: int = 1_000_000
    logs: dict[TopicPartition, list[RawRecord]] = field(default_factory=dict)

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        if len(value or b"") > self.largest:
            raise RefusedRecordError(topic)
        if partition is None:
            partition = partition_for(key or b"", self.counts[topic])
        if partition >= self.counts[topic]:
            raise TopicError(topic)
        log = self.logs.setdefault(TopicPartition(topic, partition), [])
        log.append(RawRecord(key, value, timestamp, len(log), headers))

    def partitions(self, topic: str) -> int:
        return self.counts[topic]

    def read(self, partition: int) -> list[RawFields]:
        """The records that a reader of packs finds in a partition of an internal topic."""
        tp = TopicPartition(OWN, partition)
        return list(PackedInput().open(self.logs.get(tp, [])))


def packing(topics: Topics, **settings: int) -> Packing:
    return Packing(topics, WRITER, {OWN: topics.counts[OWN]}, **settings)


def test_records_of_the_applications_own_topics_come_in_few_packs_with_their_writer() -> None:
    topics = Topics({OWN: 4, OTHER: 4})
    collector = packing(topics)
    for n in range(10_000):
        collector.send(OWN, b"key %d" % (n % 100), b"value %d" % n, n, (), None)
    collector.flush()
    packs = [pack for log in topics.logs.values() for pack in log]
    assert len(packs) < 100
    assert {writer_of(pack.headers) for pack in packs} == {WRITER}
    assert collector.sent == {OWN: 10_000}


def test_each_partition_has_its_records_in_the_order_in_which_they_were_sent() -> None:
    topics = Topics({OWN: 4})
    collector = packing(topics)
    sent: dict[int, list[tuple[object, ...]]] = {number: [] for number in range(4)}
    for n in range(5_000):
        chosen = n % 4 if n % 10 == 0 else None
        key, headers = b"key %d" % (n % 100), (("n", b"%d" % n), ("empty", None)) if n % 7 == 0 else ()
        value = None if n % 3 == 0 else b"v" * (n % 500)
        collector.send(OWN, key, value, 1_000 - n, headers, chosen)
        sent[partition_for(key, 4) if chosen is None else chosen].append((key, value, 1_000 - n, headers))
    collector.flush()
    for number, records in sent.items():
        assert [(key, value, time, headers) for key, value, time, _, headers in topics.read(number)] == records


def test_records_of_other_topics_go_on_as_they_are() -> None:
    topics = Topics({OWN: 4, OTHER: 1})
    collector = packing(topics)
    collector.send(OTHER, b"key", b"value", 7, (("name", b"x"),), None)
    assert topics.logs == {TopicPartition(OTHER, 0): [RawRecord(b"key", b"value", 7, 0, (("name", b"x"),))]}
    assert collector.sent == {OWN: 0}


@pytest.mark.parametrize("value_bytes", [5, 20_000])
def test_records_without_a_key_go_to_all_partitions_alike(value_bytes: int) -> None:
    topics = Topics({OWN: 4})
    collector = packing(topics)
    for n in range(4_000):
        collector.send(OWN, None, b"v" * value_bytes, n, (), None)
    collector.flush()
    assert [len(topics.read(number)) for number in range(4)] == [1_000] * 4


def test_packs_are_no_larger_than_they_may_be() -> None:
    topics = Topics({OWN: 1})
    collector = packing(topics, pack_bytes=10_000)
    for n in range(1_000):
        collector.send(OWN, b"key", b"v" * 900, n, (), None)
    collector.flush()
    assert all(len(pack.value or b"") <= 10_000 for pack in topics.logs[TopicPartition(OWN, 0)])
    assert [time for _, _, time, _, _ in topics.read(0)] == list(range(1_000))


@pytest.mark.parametrize("partition", [None, 0])
def test_a_record_that_is_too_large_is_refused_when_it_is_sent_and_no_other_with_it(partition: int | None) -> None:
    topics = Topics({OWN: 1}, largest=100_000)
    collector = packing(topics)
    collector.send(OWN, b"before", b"value", 1, (), None)
    with pytest.raises(RefusedRecordError):
        collector.send(OWN, b"large", b"v" * 200_000, 2, (), partition)
    collector.send(OWN, b"after", b"value", 3, (), None)
    collector.flush()
    assert [key for key, *_ in topics.read(0)] == [b"before", b"after"]
    assert collector.sent == {OWN: 2}


def test_a_partition_that_there_is_not_is_refused_when_it_is_chosen() -> None:
    topics = Topics({OWN: 2})
    collector = packing(topics)
    collector.send(OWN, b"before", b"value", 1, (), 1)
    with pytest.raises(TopicError):
        collector.send(OWN, b"key", b"value", 2, (), 2)
    collector.flush()
    assert [key for key, *_ in topics.read(1)] == [b"before"]


def test_text_that_a_serde_gave_is_encoded_as_the_client_would() -> None:
    topics = Topics({OWN: 1})
    collector = packing(topics)
    collector.send(OWN, "ä", "ö", 1, (), None)  # type: ignore[arg-type]  # a serde that is not what it says
    collector.flush()
    assert list(topics.read(0)) == [("ä".encode(), "ö".encode(), 1, 0, ())]


@pytest.mark.parametrize("wrong", [{}, {"a": 1}, [1], 0, 7, False, "\ud800"])
def test_neither_bytes_nor_text_is_refused_when_sent_and_alone(wrong: Any) -> None:
    topics = Topics({OWN: 1})
    collector = packing(topics)
    collector.send(OWN, b"before", b"value", 1, (), None)
    for key, value in ((b"key", wrong), (wrong, b"value")):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            collector.send(OWN, key, value, 2, (), None)
    collector.send(OWN, b"after", bytearray(b"value"), 3, (), None)  # type: ignore[arg-type]  # its serde says bytes
    collector.flush()
    assert [(key, value) for key, value, *_ in topics.read(0)] == [(b"before", b"value"), (b"after", b"value")]


def test_a_pack_has_the_latest_time_of_its_records() -> None:
    topics = Topics({OWN: 1})
    collector = packing(topics)
    for time in (5, 9, 7):
        collector.send(OWN, b"key", b"value", time, (), None)
    collector.flush()
    (pack,) = topics.logs[TopicPartition(OWN, 0)]
    assert (pack.timestamp, unpacked(pack.value or b"")[2]) == (9, [5, 9, 7])
