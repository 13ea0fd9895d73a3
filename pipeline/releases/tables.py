"""Table-like topics: what they hold, how two of them differ, and how one is brought to the content of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipeline.hosting.publication import staging_name
from pipeline.kafka.admin import Admin, TopicSpec
from pipeline.kafka.producer import LONGEST_TRANSACTION_MS, TransactionalProducer
from pipeline.kafka.ranges import read_range
from pipeline.records import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.records import Headers


class Row(NamedTuple):
    """The last value of a key, when (ms) it was last changed, and the headers it came with."""

    value: bytes
    timestamp: int
    headers: Headers


Table = dict[tuple[int, bytes], Row]
"""Rows by partition and key."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What has to change in a table for it to become another.

    Args:
        changed: Rows with another value, or that were not there.
        gone: Rows that are not there any more.
        same: Number of rows that stay.
    """

    changed: Table
    gone: Table
    same: int

    @property
    def size(self) -> int:
        """Number of records that make the change."""
        return len(self.changed) + len(self.gone)


def read_table(admin: Admin, kafka: Mapping[str, str], topic: str, *, is_settled: bool = True) -> Table:
    """The last value of each key; records without a key are not part of a table.

    Args:
        admin: Asks the brokers.
        kafka: Client properties.
        topic: Which.
        is_settled: Whether nobody writes to it at present, so that the end of all transactions is waited for. Otherwise it is
            read as its consumers see it now.

    Raises:
        OpenTransactionError: If nobody should write to it, but a transaction stays open.
    """
    tps = [TopicPartition(topic, number) for number in range(admin.partitions([topic])[topic])]
    first, last = admin.beginning_offsets(tps), (admin.settled_end_offsets if is_settled else admin.end_offsets)(tps)
    table: Table = {}
    for tp, records in read_range(admin, kafka, {tp: OffsetRange(first[tp], last[tp]) for tp in tps}):
        for record in records:
            if record.key is None:
                continue
            where = tp.partition, record.key
            if record.value is None:
                table.pop(where, None)
            else:
                table[where] = Row(record.value, record.timestamp, record.headers)
    return table


def difference(old: Table, new: Table) -> Difference:
    """What turns `old` into `new`. Equal values at different times, or with other headers, count as equal."""
    changed = {where: row for where, row in new.items() if where not in old or old[where].value != row.value}
    gone = {where: row for where, row in old.items() if where not in new}
    return Difference(changed, gone, len(new) - len(changed))


def bring(
    admin: Admin,
    kafka: Mapping[str, str],
    topic: str,
    wanted: str,
    transactional_id: str,
    check: Callable[[], None],
) -> int:
    """Bring a topic to the content of another one, all or nothing, and give the number of records that it took.

    Rows that differ are written, and tombstones for those that are gone. Others who do the same are shut out before anything
    is read: what a predecessor has left open is aborted, and one that lives can commit nothing more, so that the difference is
    that to what the topic holds when it is published.

    Args:
        admin: Asks the brokers.
        kafka: Client properties.
        topic: What is changed.
        wanted: The topic whose content it gets.
        transactional_id: Names whoever does this, in whatever process.
        check: Called when others are shut out; what it raises ends the attempt.

    Raises:
        TaskMigratedError: If somebody else does the same just now. Nothing was written.
    """
    producer = TransactionalProducer(kafka, transactional_id, transaction_timeout_ms=LONGEST_TRANSACTION_MS)
    try:
        producer.init()
        check()
        change = difference(read_table(admin, kafka, topic), read_table(admin, kafka, wanted))
        for (partition, key), row in change.changed.items():
            producer.send(topic, key, row.value, row.timestamp, row.headers, partition)
        for (partition, key), row in change.gone.items():
            producer.send(topic, key, None, row.timestamp, (), partition)
        if change.size:
            producer.commit({}, "")
        return change.size
    finally:
        producer.close()


def create_staging(admin: Admin, application_id: str, topics: tuple[str, ...]) -> dict[str, str]:
    """Create the staging topics of a version, each like its public topic; gives public name to staging name.

    Raises:
        TopicError: If a public topic does not exist.
    """
    admin.require(topics, f"{application_id} is to publish to")
    counts = admin.partitions(topics)
    names = {topic: staging_name(application_id, topic) for topic in topics}
    config = {"cleanup.policy": "compact", "retention.ms": "-1"}
    admin.create_topics(TopicSpec(names[topic], counts[topic], config) for topic in topics)
    return names


def create_letters(admin: Admin, application_id: str, topic: str | None) -> str:
    """Create the topic of the dead letters of a version that is not live, and give its name.

    It has as many partitions as the public one, or one if handlers choose topics themselves, and keeps everything: letters
    are no table, and are not published when the version goes live.

    Raises:
        TopicError: If there is a public one, and it does not exist.
    """
    name, partitions = staging_name(application_id, topic or "dead-letters"), 1
    if topic is not None:
        admin.require([topic], f"{application_id} is to keep failures in")
        partitions = admin.partitions([topic])[topic]
    admin.create_topics([TopicSpec(name, partitions, {"cleanup.policy": "delete", "retention.ms": "-1"})])
    return name
