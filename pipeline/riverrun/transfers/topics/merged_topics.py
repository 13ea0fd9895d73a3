"""Records of several topics as one sequence: by their times as far as they are there, then as they come."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.ranges import read_fields
from riverrun.records import OffsetRange, TopicPartition
from riverrun.transfers.topics.topic_reading import ReadRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from riverrun.kafka.admin import Admin
    from riverrun.records import RawFields

_BATCH = 1000
_POLL_SECONDS = 0.2
_LOST_POLLS = 25
"""Polls without a record after which brokers are asked whether the topics are there."""


class MergedTopics:
    """Reads topics from their beginnings up to where they end now, and from there on.

    Args:
        admin: Asks the brokers.
        topics: The topics.
        first: Those whose records come before others of the same time: rows of tables are there when streams look for them.

    Raises:
        TopicError: If there is no such topic.
    """

    def __init__(self, admin: Admin, topics: Collection[str], first: Collection[str] = ()) -> None:
        """Look where the topics begin and end."""
        self._topics = sorted(topics)
        self._first = frozenset(first)
        self._admin = admin
        self._admin.require(self._topics, "are to be read")
        tps = [
            TopicPartition(topic, n) for topic, count in self._admin.partitions(topics).items() for n in range(count)
        ]
        self._starts, self._ends = self._admin.beginning_offsets(tps), self._admin.end_offsets(tps)

    def until_now(self, topics: Collection[str]) -> Iterator[ReadRecord]:
        """Return the records of some of the topics so far: those of a partition in their order, else by time."""
        ranges = {tp: OffsetRange(start, self._ends[tp]) for tp, start in self._starts.items() if tp.topic in topics}
        parts = [self._partition(tp, ranges[tp]) for tp in sorted(ranges)]
        return heapq.merge(*parts, key=lambda record: (record.timestamp, record.tp.topic not in self._first))

    def from_now(self) -> Iterator[ReadRecord]:
        """Yield the records that come, without end.

        Raises:
            TopicError: If a topic is deleted.
            BrokerError: If brokers do not answer any more.
        """
        consumer, silent = RecordConsumer(self._admin.kafka), 0
        try:
            consumer.assign(self._ends)
            while True:
                polled = consumer.poll(_BATCH, _POLL_SECONDS)
                silent = 0 if polled.records else silent + 1
                if silent % _LOST_POLLS == _LOST_POLLS - 1:
                    self._admin.require(self._topics, "are followed")
                parts = [_records(tp, batch) for tp, batch in polled.records.items()]
                yield from heapq.merge(*parts, key=lambda record: record.timestamp)
        finally:
            consumer.close()

    def _partition(self, tp: TopicPartition, wanted: OffsetRange) -> Iterator[ReadRecord]:
        for _, batch in read_fields(self._admin, {tp: wanted}):
            yield from _records(tp, batch)


def _records(tp: TopicPartition, batch: Iterable[RawFields]) -> Iterator[ReadRecord]:
    for key, value, timestamp, offset, headers in batch:
        yield ReadRecord(tp, offset, timestamp, key, value, headers)
