"""Copies of compacted topics: one that takes longer than brokers keep deletions is refused, as it would keep deleted rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from riverrun.errors import RangeError
from riverrun.hosting.kept_offsets import KeptOffsets
from riverrun.kafka.admin import CommittedOffset
from riverrun.kafka.door import Kafka
from riverrun.releases import corrections
from riverrun.releases.corrections import copy_partitions
from tests.compacted_log import TP, Brokers, CompactedLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from riverrun.records import OffsetRange, TopicPartition

RETENTION_MS = 100_000


class Copy:
    """A copy of a log, read record by record with pauses, and committed after each record."""

    def __init__(self, log: CompactedLog, pause_ms: int) -> None:
        self.log, self.pause_ms = log, pause_ms
        self.kept: dict[TopicPartition, tuple[int, str]] = {}
        self.rows: dict[bytes, bytes] = {}
        self.sent: list[tuple[bytes, bytes | None]] = []
        brokers: Any = Brokers(log)
        brokers.kafka = Kafka({})
        self.brokers = brokers

    def run(self) -> None:
        copy_partitions(self.brokers, "app", "copy", {TP: self.log.end}, "target")

    def producer(self, *_arguments: Any, **_named: Any) -> Copy:
        self.sent.clear()
        return self

    def init(self) -> None:
        """Take the name over."""

    close = init

    def send(self, _topic: str, key: bytes, value: bytes | None, *_others: Any) -> None:
        self.sent.append((key, value))

    def keep(self, _producer: Any, _id: str, kept: Mapping[TopicPartition, tuple[int, str]]) -> None:
        self.kept |= kept

    def kept_offsets(self, *_arguments: Any) -> KeptOffsets:
        kept = KeptOffsets(self.brokers, "app")
        kept.read = lambda: {tp: CommittedOffset(*each) for tp, each in self.kept.items()}  # type: ignore[method-assign]
        return kept

    def commit(self, *_nothing: Any) -> None:
        for key, value in self.sent:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self.sent.clear()

    def read(self, _admin: Any, ranges: Mapping[TopicPartition, OffsetRange]) -> Iterator[Any]:
        for tp, wanted in ranges.items():
            for offset in range(wanted.start, wanted.end):
                found = [(r.key, r.value, 0, r.offset, ()) for r in self.log.read(offset, offset + 1)]
                yield tp, found
                self.log.clean_up(self.pause_ms)


@pytest.mark.parametrize("pause_ms", [1, RETENTION_MS // 20, RETENTION_MS // 4, RETENTION_MS])
def test_a_copy_has_no_row_that_was_deleted_or_is_refused(monkeypatch: pytest.MonkeyPatch, pause_ms: int) -> None:
    log = CompactedLog(RETENTION_MS)
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", None), (b"c", b"1"), (b"d", b"1")):
        log.write(key, value)
    copy = Copy(log, pause_ms)
    monkeypatch.setattr(corrections, "TransactionalProducer", copy.producer)
    monkeypatch.setattr(corrections, "KeptOffsets", copy.kept_offsets)
    monkeypatch.setattr(corrections, "keep", copy.keep)
    monkeypatch.setattr(corrections, "read_fields", copy.read)
    monkeypatch.setattr(corrections, "_TRANSACTION_RECORDS", 1)
    if pause_ms * log.end < RETENTION_MS:
        copy.run()
        assert copy.rows == log.table
        assert copy.kept.keys() == {TP}, "the target may be an input, whose commits must stay"
        return
    with pytest.raises(RangeError, match="Reading took longer than brokers keep deletions"):
        copy.run()
    with pytest.raises(RangeError, match=r"The copy to target was interrupted for too long|Reading took longer"):
        copy.run()
