"""Control topics are read on from where they were read, and from their beginning once deleted names may be forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.hosting import control_topic
from riverrun.hosting.control_topic import ControlTopic
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.records import OffsetRange

TP = TopicPartition("control", 0)


class Brokers:
    """Brokers with a compacted topic, from which the cleaner takes records."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[bytes, bytes | None]] = {}
        self.now_s = 0.0
        self.topic_id = "first"
        self.waits = 0

    def write(self, name: bytes, value: bytes | None) -> None:
        self.records[len(self.records)] = (name, value)

    def topic_ids(self, _topics: Any) -> dict[str, str]:
        return {TP.topic: self.topic_id}

    def written_offsets(self, _tps: Any) -> dict[TopicPartition, int]:
        return {TP: max(self.records, default=-1) + 1}

    def stable_end_offsets(self, _tps: Any, written: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.waits += 1
        return written

    def beginning_offsets(self, _tps: Any) -> dict[TopicPartition, int]:
        return {TP: 0}

    def read(self, _admin: Any, ranges: Mapping[TopicPartition, OffsetRange]) -> Iterator[Any]:
        wanted = ranges[TP]
        found = ((offset, record) for offset, record in self.records.items() if wanted.start <= offset < wanted.end)
        yield TP, [SimpleNamespace(key=key, value=value) for _, (key, value) in found]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr(control_topic, "read_range", found.read)
    monkeypatch.setattr(control_topic, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def test_a_name_is_gone_though_brokers_have_forgotten_that_it_was_deleted(brokers: Brokers) -> None:
    admin: Any = brokers
    topic = ControlTopic(admin, TP.topic)
    brokers.write(b"a", b"1")
    assert topic.read() == {"a": b"1"}
    brokers.write(b"a", None)
    brokers.write(b"b", b"2")
    del brokers.records[0], brokers.records[1]  # the row, and its tombstone after delete.retention.ms
    brokers.now_s += 24 * 3600
    assert topic.read() == {"b": b"2"}


def test_a_topic_that_was_created_again_is_read_from_its_beginning(brokers: Brokers) -> None:
    admin: Any = brokers
    topic = ControlTopic(admin, TP.topic)
    brokers.write(b"a", b"1")
    assert topic.read() == {"a": b"1"}
    brokers.topic_id = "second"
    brokers.records = {0: (b"b", b"2")}
    assert topic.read() == {"b": b"2"}


def test_the_end_is_only_awaited_after_something_was_written(brokers: Brokers) -> None:
    admin: Any = brokers
    topic = ControlTopic(admin, TP.topic)
    assert [topic.read(), topic.read(), brokers.waits] == [{}, {}, 1]
    brokers.write(b"a", b"1")
    assert [topic.read(), topic.read(), brokers.waits] == [{"a": b"1"}, {"a": b"1"}, 2]
