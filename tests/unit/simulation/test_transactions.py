"""Transactions: what readers see of them, their owners, and how they end."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import BrokerError, OpenTransactionError, StreamsError, TaskMigratedError
from riverrun.kafka import librdkafka
from riverrun.kafka.admin import Admin, CommittedOffset
from riverrun.kafka.producer import group_metadata
from riverrun.records import TopicPartition
from tests.clusters import code_of, new_partition, owner, raised_code, send
from tests.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from tests.clusters import Cluster, Partition


def test_records_and_offsets_are_committed_together(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    send(producer, log, b"a", b"b")
    assert log.admin.committed(unique, [log.tp]) == {}
    assert log.values() == []
    producer.commit({log.tp: (7, "seven")}, unique)
    assert log.admin.committed(unique, [log.tp]) == {log.tp: CommittedOffset(7, "seven")}
    assert log.admin.settled_end_offsets([log.tp]) == {log.tp: 3}
    assert log.values() == [b"a", b"b"]


def test_offsets_alone_make_a_transaction(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    producer.commit({log.tp: (3, "")}, unique)
    producer.commit({log.tp: (4, "four")}, unique)
    producer.commit({}, unique)
    assert log.admin.committed(unique, [log.tp]) == {log.tp: CommittedOffset(4, "four")}
    assert log.end() == 0


def test_aborted_records_are_never_read_but_keep_their_offsets(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    send(producer, log, b"lost", b"lost")
    producer.abort()
    producer.abort()
    send(producer, log, b"kept")
    producer.commit({log.tp: (1, "")}, unique)
    assert log.admin.settled_end_offsets([log.tp]) == {log.tp: 5}
    assert [(record.offset, record.value) for record in log.read()] == [(3, b"kept")]
    assert log.values(1) == [b"kept"]


def test_readers_stop_before_an_open_transaction(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    log.write((b"k", b"before", now))
    first, second = owner(cluster, f"{unique}-1"), owner(cluster, f"{unique}-2")
    send(first, log, b"first")
    send(second, log, b"second")
    log.write((b"k", b"after", now))
    second.commit({}, unique)
    until(lambda: log.end() == 5, "wrote the marker")
    assert (log.stable_end(), log.values()) == (1, [b"before"])
    assert log.admin.has_open_transactions([log.tp])
    first.abort()
    assert log.admin.settled_end_offsets([log.tp]) == {log.tp: 6}
    assert log.values() == [b"before", b"second", b"after"]


def test_uncommitted_records_can_be_read_by_those_who_want_to(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    send(producer, log, b"aborted")
    producer.abort()
    send(producer, log, b"open")
    consumer = cluster.raw_consumer(isolation_level="read_uncommitted", group_id=unique)
    consumer.assign([ClientTopicPartition(unique, 0, 0)])
    assert [message.value() for message in consumer.consume(2, 30)] == [b"aborted", b"open"]
    consumer.close()
    producer.abort()


def test_a_new_owner_aborts_what_is_open_and_fences_the_earlier_one(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    earlier = owner(cluster, unique)
    send(earlier, log, b"open")
    later = owner(cluster, unique)
    assert log.admin.settled_end_offsets([log.tp]) == {log.tp: 2}
    send(later, log, b"later")
    with pytest.raises(TaskMigratedError):
        earlier.commit({log.tp: (9, "")}, unique)
    later.commit({log.tp: (1, "")}, unique)
    assert log.values() == [b"later"]
    assert log.admin.committed(unique, [log.tp])[log.tp].offset == 1


def test_an_earlier_owner_is_fenced_with_its_first_record(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    earlier = owner(cluster, unique)
    owner(cluster, unique)
    send(earlier, log, b"late")
    with pytest.raises(TaskMigratedError):
        earlier.commit({}, unique)
    with pytest.raises(StreamsError):
        send(earlier, log, b"later")
    assert log.end() == 0


def test_an_earlier_owner_is_fenced_with_its_offsets(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    earlier = owner(cluster, unique)
    owner(cluster, unique)
    with pytest.raises(TaskMigratedError):
        earlier.commit({log.tp: (5, "")}, unique)
    assert log.admin.committed(unique, [log.tp]) == {}


def test_a_transaction_with_a_refused_record_is_aborted(cluster: Cluster, unique: str) -> None:
    log, other = (new_partition(cluster, name, max_message_bytes="1000") for name in (unique, f"{unique}.2"))
    producer = owner(cluster, unique)
    send(producer, other, b"fine")
    producer.send(unique, b"k", Random(1).randbytes(5000), cluster.now_ms(), (), 0)
    with pytest.raises(StreamsError, match=r"(?i)size|large"):
        producer.commit({log.tp: (5, "")}, unique)
    assert log.admin.committed(unique, [log.tp]) == {}
    assert other.admin.settled_end_offsets([other.tp]) == {other.tp: 2}
    assert (log.values(), other.values()) == ([], [])


def test_metadata_that_is_too_long_aborts_the_transaction(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    send(producer, log, b"v")
    with pytest.raises(BrokerError, match=r"(?i)metadata"):
        producer.commit({log.tp: (5, "m" * 4097)}, unique)
    assert log.admin.committed(unique, [log.tp]) == {}
    assert log.admin.settled_end_offsets([log.tp]) == {log.tp: 2}
    assert log.values() == []


@pytest.mark.slow  # the library asks again for half a minute
def test_offsets_of_missing_partitions_abort_the_transaction(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    with pytest.raises(StreamsError):
        producer.commit({log.tp: (1, ""), TopicPartition(unique, 5): (1, "")}, unique)
    assert log.admin.committed(unique, [log.tp]) == {}


def test_a_transaction_may_not_be_open_for_longer_than_brokers_allow(cluster: Cluster, unique: str) -> None:
    with pytest.raises(StreamsError, match=r"(?i)timeout"):
        owner(cluster, unique, 900_001)


def transactional(cluster: Cluster, unique: str) -> Any:
    producer = cluster.raw_producer(transactional_id=unique)
    producer.init_transactions(30)
    return producer


def test_offsets_of_an_open_transaction_make_readers_wait(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    log.admin.alter_offsets(unique, {log.tp: 1})
    producer = transactional(cluster, unique)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([ClientTopicPartition(unique, 0, 2, "two")], group_metadata(unique), 30)
    with pytest.raises(OpenTransactionError):
        log.admin.committed(unique, [log.tp], 0.5)
    assert log.admin.committed(unique, [log.tp], isolation="read_uncommitted")[log.tp].offset == 1
    producer.abort_transaction(30)
    assert log.admin.committed(unique, [log.tp])[log.tp].offset == 1
    producer.begin_transaction()
    producer.send_offsets_to_transaction([ClientTopicPartition(unique, 0, 2, "two")], group_metadata(unique), 30)
    producer.commit_transaction(30)
    assert log.admin.committed(unique, [log.tp]) == {log.tp: CommittedOffset(2, "two")}


def test_calls_in_the_wrong_state_are_refused(cluster: Cluster, unique: str) -> None:
    new_partition(cluster, unique)
    producer = transactional(cluster, unique)
    assert raised_code(lambda: producer.produce(unique, b"v")) == librdkafka.STATE
    assert raised_code(lambda: producer.commit_transaction(30)) == librdkafka.STATE
    producer.begin_transaction()
    assert raised_code(producer.begin_transaction) == librdkafka.STATE
    producer.abort_transaction(30)
    assert raised_code(cluster.raw_producer().begin_transaction) != 0


def test_a_failed_transaction_says_why_and_leaves_a_gap_for_the_next_one(cluster: Cluster, unique: str) -> None:
    log: Partition = new_partition(cluster, unique, message_timestamp_before_max_ms="1000000")
    producer = transactional(cluster, unique)
    producer.begin_transaction()
    producer.produce(unique, b"old", partition=0, timestamp=1)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(30)
    assert code_of(refused.value) == KafkaError.INVALID_TIMESTAMP
    assert refused.value.args[0].txn_requires_abort()
    assert raised_code(lambda: producer.produce(unique, b"more", partition=0)) == librdkafka.STATE
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(unique, b"lost", partition=0)
    assert raised_code(lambda: producer.commit_transaction(30)) == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(unique, b"new", partition=0)
    producer.commit_transaction(30)
    assert log.values() == [b"new"]


def test_discarded_records_are_reported_to_their_callbacks(cluster: Cluster, unique: str) -> None:
    log, codes = new_partition(cluster, unique), list[int]()
    producer = transactional(cluster, unique)
    producer.begin_transaction()
    producer.produce(unique, b"v", partition=0, on_delivery=lambda error, _message: codes.append(error.code()))
    producer.purge()
    producer.flush(30)
    assert codes in ([librdkafka.PURGE_QUEUE], [librdkafka.PURGE_INFLIGHT])
    producer.abort_transaction(30)
    assert log.values() == []


@pytest.mark.slow
def test_brokers_abort_what_is_open_for_too_long_and_fence_its_owner(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique, 1000)
    send(producer, log, b"slow")
    cluster.pass_time(1100)
    cluster.pass_time(10_000)
    assert Admin(cluster.kafka).settled_end_offsets([log.tp]) == {log.tp: 2}
    with pytest.raises(StreamsError):
        producer.commit({log.tp: (1, "")}, unique)
    assert log.values() == []
    assert log.admin.committed(unique, [log.tp]) == {}
    later = owner(cluster, unique)
    send(later, log, b"later")
    later.commit({}, unique)
    assert log.values() == [b"later"]
