"""Logs and topics: what is written, read, refused, looked up and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import BrokerError, MissingOffsetError, TopicError
from riverrun.kafka import librdkafka, requests
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.producer import IdempotentProducer
from riverrun.records import RawRecord, TopicPartition
from riverrun.simulation.faults import Fault
from riverrun.simulation.settings import TOPIC_DEFAULTS
from tests.clusters import delivery_codes, memory_cluster, new_partition, owner, raised_code, send, until_end
from tests.waiting import until

if TYPE_CHECKING:
    from tests.clusters import Cluster

DAY_MS = 86_400_000


def test_records_are_read_as_they_were_written(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    producer = IdempotentProducer(cluster.kafka)
    producer.send(unique, b"k", b"v", now, (("h", b"1"), ("h", None)), 0)
    producer.send(unique, None, None, now - DAY_MS, (), 0)
    producer.send(unique, b"", b"", 5, (), 0)
    producer.flush()
    assert log.read() == [
        RawRecord(b"k", b"v", now, 0, (("h", b"1"), ("h", None))),
        RawRecord(None, None, now - DAY_MS, 1, ()),
        RawRecord(b"", b"", 5, 2, ()),
    ]
    assert producer.sent() == {unique: 3}


def test_a_reader_hears_of_the_end_once_and_again_after_more(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    consumer = RecordConsumer(cluster.kafka)
    consumer.assign({log.tp: 0})
    assert until_end(consumer, log.tp) == ([], 0)
    log.write((b"k", b"one", now))
    found, end = until_end(consumer, log.tp)
    assert ([record.value for record in found], end) == ([b"one"], 1)
    assert consumer.known_ends([log.tp]) == {log.tp: 1}
    assert not consumer.poll(10, 0.3).ends
    consumer.pause([log.tp])
    log.write((b"k", b"two", now))
    assert not consumer.poll(10, 0.3).records
    consumer.resume([log.tp])
    assert [record.value for record in until_end(consumer, log.tp)[0]] == [b"two"]
    consumer.pause([log.tp])
    consumer.resume([log.tp])
    assert until_end(consumer, log.tp) == ([], 2)


def test_a_reader_takes_turns_with_its_partitions(cluster: Cluster, unique: str) -> None:
    Admin(cluster.kafka).create_topics([TopicSpec(unique, 2)])
    producer = IdempotentProducer(cluster.kafka)
    for partition in (0, 1):
        for _ in range(5):
            producer.send(unique, b"k", b"v", cluster.now_ms(), (), partition)
    producer.flush()
    consumer, found = RecordConsumer(cluster.kafka), {0: 0, 1: 0}
    consumer.assign({TopicPartition(unique, 0): 0, TopicPartition(unique, 1): 3})
    for _ in range(100):
        for tp, records in consumer.poll(1, 0.2).records.items():
            found[tp.partition] += len(records)
        if found == {0: 5, 1: 2}:
            break
    assert found == {0: 5, 1: 2}


def test_records_of_one_key_go_to_one_partition(cluster: Cluster, unique: str) -> None:
    admin, tps = Admin(cluster.kafka), [TopicPartition(unique, n) for n in range(4)]
    admin.create_topics([TopicSpec(unique, 4)])
    producer = IdempotentProducer(cluster.kafka)
    for key in (b"a", b"b", b"c", b"d", b"e", b""):
        producer.send(unique, key, b"v", cluster.now_ms(), (), None)
    producer.flush()
    assert list(admin.end_offsets(tps).values()) == [2, 2, 2, 0]


def test_a_missing_partition_and_a_long_record_are_refused_before_sending(cluster: Cluster, unique: str) -> None:
    new_partition(cluster, unique)
    producer = cluster.raw_producer()
    producer.list_topics(unique, 10)
    assert raised_code(lambda: producer.produce(unique, b"v", partition=7)) == librdkafka.UNKNOWN_PARTITION
    assert raised_code(lambda: producer.produce(unique, b"v" * 1_000_001)) == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_record_longer_than_the_topic_allows_is_refused(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique, max_message_bytes="1000")
    producer = cluster.raw_producer(enable_idempotence=True)
    long = [{"value": b"v" * 2000, "partition": 0}]
    assert delivery_codes(producer, unique, long) == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert delivery_codes(producer, unique, [{"value": b"short", "partition": 0}]) == [0]
    assert log.values() == [b"short"]


def test_times_too_far_from_the_brokers_clock_are_refused(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique, message_timestamp_before_max_ms=f"{DAY_MS}"), cluster.now_ms()
    producer = cluster.raw_producer()
    for time_ms, code in (
        (now - DAY_MS - 60_000, KafkaError.INVALID_TIMESTAMP),
        (now + 2 * 3_600_000, KafkaError.INVALID_TIMESTAMP),
        (now + 1_800_000, 0),
    ):
        assert delivery_codes(producer, unique, [{"value": b"v", "partition": 0, "timestamp": time_ms}]) == [code]
    assert log.end() == 1


def test_brokers_give_records_their_own_time_where_a_topic_says_so(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique, message_timestamp_type="LogAppendTime")
    told: list[tuple[int, int]] = []

    def delivered(_error: object, message: Message) -> None:
        told.append(message.timestamp())

    producer = cluster.raw_producer()
    producer.produce(unique, b"v", partition=0, timestamp=5, on_delivery=delivered)
    producer.flush(30)
    ((kind, time_ms),) = told
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert abs(time_ms - cluster.now_ms()) < 60_000
    assert [record.timestamp for record in log.read()] == [time_ms]


def test_compacted_topics_refuse_records_without_a_key(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique, cleanup_policy="compact")
    producer = cluster.raw_producer(enable_idempotence=True)
    assert delivery_codes(producer, unique, [{"value": b"v", "partition": 0}]) == [KafkaError.INVALID_RECORD]
    assert delivery_codes(producer, unique, [{"key": b"k", "value": b"v", "partition": 0}]) == [0]
    assert log.values() == [b"v"]


def test_offsets_are_looked_up_by_time_and_markers_have_one(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    log.write((b"k", b"a", now - 3000), (b"k", b"b", now - 1000), (b"k", b"c", now - 2000))

    def offset_at(time_ms: int) -> int:
        return log.admin.offsets_for_time([log.tp], time_ms)[log.tp]

    assert [offset_at(now - ago) for ago in (5000, 3000, 2500, 1500, 1000)] == [0, 0, 1, 1, 1]
    assert offset_at(now + 60_000) == offset_at(now + DAY_MS) == 3
    producer = owner(cluster, unique)
    producer.send(unique, b"k", b"old", 1, (), 0)
    producer.commit({}, unique)
    assert log.admin.settled_end_offsets([log.tp]) == {log.tp: 5}
    assert offset_at(now - 900) == 4
    raw = cluster.raw_consumer()
    assert raw.offsets_for_times([ClientTopicPartition(unique, 0, now + DAY_MS)], 10)[0].offset == -1
    raw.close()


def test_an_open_transaction_hides_later_offsets_from_look_ups(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    producer = owner(cluster, unique)
    send(producer, log, b"open")
    log.write((b"k", b"plain", now + 60_000))
    assert log.admin.offsets_for_time([log.tp], now + 30_000) == {log.tp: 0}
    producer.abort()
    assert log.admin.settled_end_offsets([log.tp]) == {log.tp: 3}
    assert log.admin.offsets_for_time([log.tp], now + 30_000) == {log.tp: 1}


def test_deleted_records_are_gone_and_reading_them_is_an_error(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    log.write(*((b"k", b"%d" % n, now) for n in range(5)))
    log.admin.delete_records({log.tp: 3})
    assert (log.start(), log.end()) == (3, 5)
    assert log.values(3) == [b"3", b"4"]
    with pytest.raises(MissingOffsetError, match=r"has offsets 3 to 5; offset 1 does not exist"):
        log.values(1)
    with pytest.raises(MissingOffsetError, match=r"has offsets 3 to 5; offset 9 does not exist"):
        log.values(9)
    with pytest.raises(BrokerError):
        log.admin.delete_records({log.tp: 9})
    log.admin.delete_records({log.tp: -1})
    assert (log.start(), log.end(), log.values(5)) == (5, 5, [])


@pytest.mark.parametrize("position", [3, 4, 5])
def test_a_missing_offset_of_an_earlier_assignment_says_nothing_of_a_later_one(
    cluster: Cluster, unique: str, position: int
) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    log.write(*((b"k", b"%d" % n, now) for n in range(5)))
    log.admin.delete_records({log.tp: 3})
    consumer = RecordConsumer(cluster.kafka)
    # Several times: the library may or may not have heard of it before it is told to stop.
    for missing in (1, 0, 2, 1):
        consumer.assign({log.tp: missing})
        consumer.unassign([log.tp])
    consumer.assign({log.tp: position})
    consumer.pause([log.tp])
    assert not consumer.poll(10, 0.3).records
    consumer.resume([log.tp])
    found, end = until_end(consumer, log.tp)
    assert ([record.offset for record in found], end) == ([*range(position, 5)], 5)
    consumer.close()


def test_an_offset_behind_the_end_is_missed_even_if_the_log_has_grown_over_it(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    log.write(*((b"k", b"%d" % n, now) for n in range(5)))
    consumer = RecordConsumer(cluster.kafka)
    consumer.assign({log.tp: 7})
    # For the real broker: the library must have asked for it before the log grows.
    raw = cluster.raw_consumer(group_id="other", auto_offset_reset="error")
    raw.assign([ClientTopicPartition(*log.tp, 7)])
    until(lambda: raw.poll(0.2) is not None, "missed the offset")
    raw.close()
    log.write(*((b"k", b"%d" % n, now) for n in range(5)))
    with pytest.raises(MissingOffsetError, match=r"was shorter than what had been read or committed, up to offset 7"):
        until_end(consumer, log.tp)
    consumer.close()


class Refusing:
    """Refuses requests with a name."""

    refused = ""

    def fault(self, _client_id: str, request: str) -> Fault | None:
        return Fault(refusal=KafkaError.TOPIC_AUTHORIZATION_FAILED) if request == self.refused else None


def test_a_missing_offset_is_told_though_brokers_do_not_say_which_exist() -> None:
    faults = Refusing()
    brokers = memory_cluster(faults)
    log = new_partition(brokers, "in")
    log.write(*((b"k", b"v", 1) for _ in range(5)))
    consumer = RecordConsumer(brokers.kafka)
    consumer.assign({log.tp: 7})
    log.write(*((b"k", b"v", 1) for _ in range(5)))
    faults.refused = "ListOffsets"
    with pytest.raises(
        MissingOffsetError, match="in-0 was shorter than what had been read or committed, up to offset 7"
    ):
        until_end(consumer, log.tp)
    consumer.close()


def test_records_of_compacted_topics_cannot_be_deleted(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique, cleanup_policy="compact")
    log.write((b"k", b"v", cluster.now_ms()))
    with pytest.raises(BrokerError, match=r"(?i)policy"):
        log.admin.delete_records({log.tp: 1})


def test_readers_without_an_offset_begin_where_their_policy_says(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    log.write((b"k", b"a", now), (b"k", b"b", now))

    def first(policy: str) -> int:
        consumer = cluster.raw_consumer(
            group_id=f"{unique}.{policy}", auto_offset_reset=policy, enable_partition_eof=True
        )
        consumer.assign([ClientTopicPartition(unique, 0)])
        message = consumer.poll(30)
        consumer.close()
        return int(message.offset()) if message.error() is None else -int(message.error().code())

    assert (first("earliest"), first("latest")) == (0, -librdkafka.PARTITION_EOF)
    assert first("error") == -librdkafka.AUTO_OFFSET_RESET
    # A client that ends commits what it has returned, unless its settings forbid it.
    assert (first("earliest"), first("earliest")) == (1, -librdkafka.PARTITION_EOF)


def test_a_topic_that_is_created_again_has_another_id_and_no_records(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    log.write((b"k", b"v", cluster.now_ms()))
    before = log.admin.topic_ids([unique, f"{unique}.not"])
    assert list(before) == [unique]
    log.admin.delete_topics([unique, f"{unique}.not"])
    assert log.admin.topics([unique]) == {}
    assert unique not in log.admin.list_topics()
    again = new_partition(cluster, unique)
    assert again.admin.topic_ids([unique]) != before
    assert again.end() == 0
    log.write((b"k", b"new", cluster.now_ms()))
    assert log.values() == [b"new"]


def test_missing_topics_and_partitions_are_named(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_MISSING_SECONDS", 0.1)
    log = new_partition(cluster, unique)
    with pytest.raises(TopicError, match=r"has 1 partition, but no partition 3"):
        log.admin.end_offsets([TopicPartition(unique, 3)])
    with pytest.raises(TopicError, match="does not exist"):
        log.admin.end_offsets([TopicPartition(f"{unique}.not", 0)])
    with pytest.raises(TopicError, match="do not exist"):
        log.admin.require([f"{unique}.not"], "are read")


def test_partitions_are_added_and_never_taken_away(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    log.admin.add_partitions({unique: 3})
    assert log.admin.partitions([unique]) == {unique: 3}
    with pytest.raises(BrokerError):
        log.admin.add_partitions({unique: 2})
    with pytest.raises(TopicError, match="3 partitions, not 1"):
        log.admin.create_topics([TopicSpec(unique, 1)])
    log.admin.create_topics([TopicSpec(unique, 3)])
    assert log.admin.end_offsets([TopicPartition(unique, 2)]) == {TopicPartition(unique, 2): 0}


def test_topics_have_the_brokers_settings_but_for_their_own(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique, retention_ms="5000", cleanup_policy="compact,delete")
    own = {"retention.ms": "5000", "cleanup.policy": "compact,delete"}
    assert log.admin.topic_config(unique) == {**TOPIC_DEFAULTS, **own}
    log.admin.alter_topic_configs({unique: {"retention.ms": None, "segment.ms": "100"}})
    own = {"segment.ms": "100", "cleanup.policy": "compact,delete"}
    assert log.admin.topic_configs([unique, f"{unique}.not"]) == {unique: {**TOPIC_DEFAULTS, **own}}


@pytest.mark.parametrize(
    "config", [{"retention.ms": "soon"}, {"segment.bytes": "5"}, {"cleanup.policy": "burn"}, {"no.such": "1"}]
)
def test_settings_that_brokers_do_not_know_are_refused(cluster: Cluster, unique: str, config: dict[str, str]) -> None:
    log = new_partition(cluster, unique)
    with pytest.raises(BrokerError):
        log.admin.create_topics([TopicSpec(f"{unique}.not", 1, config)])
    with pytest.raises(BrokerError):
        log.admin.alter_topic_configs({unique: config})
    assert log.admin.topic_config(unique) == TOPIC_DEFAULTS
    assert log.admin.topics([f"{unique}.not"]) == {}


def test_replicas_that_brokers_cannot_make_are_refused(cluster: Cluster, unique: str) -> None:
    with pytest.raises(BrokerError, match=r"(?i)replication factor"):
        Admin(cluster.kafka).create_topics([TopicSpec(unique, 1, {}, 3)])


def test_brokers_say_their_time_and_their_settings(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    assert abs(log.admin.clock.now_ms() - cluster.now_ms()) < 60_000
    assert log.admin.broker_config("offsets.retention.minutes") == "10080"
    log.admin.require_answer()
    assert log.admin.is_answered(10)


def test_the_size_of_partitions_grows_with_their_records(cluster: Cluster, unique: str) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    log.write((b"k", bytes(range(256)) * 10, now))
    first = log.admin.log_sizes([unique])[log.tp]
    log.write((b"k", b"more", now))
    assert log.admin.log_sizes([unique])[log.tp] > first > 0


@pytest.mark.slow  # brokers look for something to clean every 15 s
def test_compacted_logs_keep_the_latest_record_of_each_key(cluster: Cluster, unique: str) -> None:
    soon = {"cleanup_policy": "compact", "segment_ms": "500", "min_cleanable_dirty_ratio": "0.01"}
    log = new_partition(cluster, unique, **soon, delete_retention_ms="0")

    def write(key: bytes, value: bytes | None) -> None:
        producer = cluster.raw_producer()
        producer.produce(unique, value, key, 0)
        producer.flush(30)

    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", None), (b"c", b"3"), (b"b", b"4")):
        write(key, value)
    cluster.pass_time(1000)
    producer = cluster.raw_producer(transactional_id=unique)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(unique, b"aborted", b"c", 0)
    producer.flush(30)
    producer.abort_transaction(30)
    cluster.pass_time(1000)
    write(b"last", b"5")

    def found() -> list[tuple[int, bytes | None]]:
        return [(record.offset, record.value) for record in log.read()]

    cleaned = [(3, b"3"), (4, b"4"), (7, b"5")]
    # A tombstone goes with the cleaning after that which first meets it.
    until(
        lambda: found() in (cleaned, [(2, None), *cleaned]),
        "was cleaned",
        lambda: repr(found()),
        turn=lambda: cluster.pass_time(1000),
    )
    cluster.pass_time(1000)
    write(b"last", b"6")
    until(
        lambda: found() == [*cleaned, (8, b"6")],
        "lost the tombstone",
        lambda: repr(found()),
        turn=lambda: cluster.pass_time(1000),
    )
    assert (log.start(), log.end()) == (0, 9)
