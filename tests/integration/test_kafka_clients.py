"""The Kafka clients against a real broker: transactions, bounded reads, offsets, and what happens when brokers are gone."""

from __future__ import annotations

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from riverrun.errors import BrokerError, ConfigError, MissingOffsetError, RangeError, TaskMigratedError, TopicError
from riverrun.kafka import admin as admin_module
from riverrun.kafka import groups as groups_module
from riverrun.kafka import requests as requests_module
from riverrun.kafka.admin import Admin, CommittedOffset, TopicSpec
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.door import Kafka
from riverrun.kafka.groups import GroupClients, GroupState
from riverrun.kafka.producer import IdempotentProducer, TransactionalProducer, group_metadata
from riverrun.kafka.ranges import offsets_at_time, read_range
from riverrun.kafka.requests import Requests
from riverrun.partitioning import partition_for
from riverrun.records import RAW_OFFSET, RAW_VALUE, OffsetRange, RawRecord, TopicPartition
from tests.integration.late_leader import late_leader
from tests.repeating import Repeating
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tests.brokers import Broker

pytestmark = pytest.mark.broker

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
POLLS = 300


def owner(broker: Broker, unique: str) -> TransactionalProducer:
    producer = TransactionalProducer(Kafka(broker.kafka), f"{unique}-0_0")
    producer.init()
    return producer


def send(producer: TransactionalProducer, tp: TopicPartition, *values: str) -> None:
    for number, value in enumerate(values, 1):
        producer.send(tp.topic, b"k", value.encode(), number, (), tp.partition)


def new_topic(broker: Broker, unique: str, **config: str) -> TopicPartition:
    broker.create(1, unique, config={name.replace("_", "."): value for name, value in config.items()})
    return TopicPartition(unique, 0)


def read(broker: Broker, tp: TopicPartition, start: int, end: int) -> list[str]:
    admin = broker.admin()
    batches = read_range(admin, {tp: OffsetRange(start, end)})
    return [(r.value or b"").decode() for _, records in batches for r in records]


def until_end(consumer: RecordConsumer, tp: TopicPartition, max_records: int = 100) -> list[RawRecord]:
    """Everything up to the end of the log."""
    found: list[RawRecord] = []
    for _ in range(POLLS):
        polled = consumer.poll(max_records, 0.2)
        found += map(RawRecord._make, polled.records.get(tp, []))
        if tp in polled.ends:
            return found
    pytest.fail(f"no end of {tp} was reported")


# Transactions


def test_records_and_offsets_are_committed_together(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    producer = owner(broker, unique)
    send(producer, tp, "a", "b")
    assert producer.in_transaction
    producer.commit({tp: (7, "seven")}, unique)
    assert not producer.in_transaction
    assert broker.admin().committed(unique, [tp]) == {tp: CommittedOffset(7, "seven")}
    assert [r.value for r in broker.read(unique)] == [b"a", b"b"]


def test_a_transaction_without_records_commits_offsets_all_the_same(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    producer = owner(broker, unique)
    producer.commit({tp: (3, "")}, unique)
    producer.commit({tp: (4, "")}, unique)
    assert broker.admin().committed(unique, [tp])[tp].offset == 4


def test_an_aborted_transaction_shows_nothing_and_the_producer_goes_on(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    producer = owner(broker, unique)
    send(producer, tp, "lost")
    producer.abort()
    producer.abort()
    send(producer, tp, "kept")
    producer.commit({}, unique)
    assert [r.value for r in broker.read(unique)] == [b"kept"]


def test_an_open_transaction_holds_the_last_stable_offset(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    broker.write(unique, [(b"k", b"plain", 1)])
    producer = owner(broker, unique)
    send(producer, tp, "open", "open")
    producer._client.producer.flush(10)
    admin = broker.admin()
    assert admin.end_offsets([tp]) == {tp: 1}
    assert read(broker, tp, 0, 1) == ["plain"]
    producer.abort()
    assert admin.settled_end_offsets([tp]) == {tp: 4}
    assert read(broker, tp, 0, 4) == ["plain"]


def test_new_producers_do_not_wait_for_a_timer_of_the_library(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)

    def seconds(write: Callable[[int], None]) -> float:
        began = time.monotonic()
        for number in range(10):
            write(number)
        return time.monotonic() - began

    def by_the_library(_number: int) -> None:
        producer = Producer({**broker.kafka, "enable.idempotence": True})
        producer.produce(tp.topic, b"v", partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def in_a_transaction(number: int) -> None:
        producer = TransactionalProducer(Kafka(broker.kafka), f"{unique}-0_{number}")
        producer.init()
        send(producer, tp, "v")
        producer.commit({}, "")

    def without_transactions(_number: int) -> None:
        producer = IdempotentProducer(Kafka(broker.kafka))
        producer.send(tp.topic, b"k", b"v", 1, (), 0)
        producer.flush()

    in_a_transaction(10)  # the first one waits for the broker's topic of transactions
    assert seconds(in_a_transaction) < seconds(by_the_library) / 2
    assert seconds(without_transactions) < seconds(by_the_library) / 2


def test_a_take_over_fences_the_predecessor_for_good(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    zombie = owner(broker, unique)
    send(zombie, tp, "zombie")
    zombie._client.producer.flush(10)
    successor = owner(broker, unique)
    send(successor, tp, "successor")
    successor.commit({tp: (1, "")}, unique)
    with pytest.raises(TaskMigratedError, match=f"{unique}-0_0"):
        zombie.commit({tp: (9, "")}, unique)
    for _ in range(2):
        with pytest.raises(TaskMigratedError):
            send(zombie, tp, "again")
    assert [r.value for r in broker.read(unique)] == [b"successor"]
    assert broker.admin().committed(unique, [tp])[tp].offset == 1


def test_committed_offsets_are_not_read_from_below_an_open_transaction(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    producer = owner(broker, unique)
    producer.commit({tp: (100, "")}, unique)
    send(producer, tp, "x")
    client, group = producer._client.producer, ClientTopicPartition(unique, 0, 200)
    client.send_offsets_to_transaction([group], group_metadata(unique), 10)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(broker.admin().committed, unique, [tp])
        client.commit_transaction(10)
        assert answer.result(DEADLINE_S)[tp].offset == 200


def test_a_client_of_committed_offsets_is_closed_when_nobody_asks_any_more(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    owner(broker, unique).commit({tp: (3, "")}, unique)
    wanted = [ClientTopicPartition(unique, 0)]

    def is_closed(client: Consumer) -> bool:
        try:
            client.assignment()
        except RuntimeError:  # the library's, for one that is closed
            return True
        return False

    for idle_s in (0.0, 0.2):  # closed while another one is asked for, and afterwards
        clients, seen = GroupClients(Requests(Kafka(broker.kafka)), idle_s), []
        for isolation in ("read_committed", "read_uncommitted"):
            with clients.client(unique, isolation) as client:
                assert client.committed(wanted, DEADLINE_S)[0].offset == 3
            seen.append(client)
        until(lambda: all(map(is_closed, seen)), "closed what is idle")  # noqa: B023 - called at once
        with clients.client(unique, "read_committed") as again:
            assert again.committed(wanted, DEADLINE_S)[0].offset == 3
        assert again not in seen
    patient = GroupClients(Requests(Kafka(broker.kafka)))
    with patient.client(unique, "read_committed") as first:
        pass
    with patient.client(unique, "read_committed") as second:
        assert second is first


def test_a_record_the_broker_refuses_is_named_and_aborts_its_transaction(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique, max_message_bytes="1000")
    producer = owner(broker, unique)
    send(producer, tp, "fits", "".join(map(str, range(5000))))
    with pytest.raises(BrokerError, match=f"ProduceRequest for {unique} .*Message size too large") as raised:
        producer.commit({tp: (2, "")}, unique)
    assert not raised.value.retriable
    assert broker.admin().committed(unique, [tp]) == {}
    producer.close()
    successor = owner(broker, unique)
    send(successor, tp, "next")
    successor.commit({tp: (1, "")}, unique)
    assert [r.value for r in broker.read(unique)] == [b"next"]


def test_a_closed_producer_writes_nothing_that_was_waiting(broker: Broker, unique: str) -> None:
    new_topic(broker, unique)
    plain = IdempotentProducer(Kafka(broker.kafka), {"linger.ms": "60000"})
    plain.send(unique, b"k", b"waiting", 1, (), 0)
    for _ in range(2):
        plain.close()
    broker.write(unique, [(b"k", b"later", 1)])
    assert [r.value for r in broker.read(unique)] == [b"later"]


def test_the_transaction_of_a_closed_producer_ends_with_its_successor(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    producer = owner(broker, unique)
    send(producer, tp, "open")
    producer._client.producer.flush(10)
    producer.close()
    owner(broker, unique)
    assert broker.read(unique) == []


# Records


def test_records_come_back_as_they_were_sent(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    headers = (("h", b"1"), ("h", None), ("i", b""))
    producer = IdempotentProducer(Kafka(broker.kafka))
    producer.send(unique, b"key", b"value", 1_357_000_000_000, headers, 0)
    producer.send(unique, None, b"", 5, (), 0)
    producer.send(unique, b"", None, 6, (), 0)
    producer.flush()
    producer.close()
    consumer = RecordConsumer(Kafka(broker.kafka))
    consumer.assign({tp: 0})
    assert until_end(consumer, tp) == [
        RawRecord(b"key", b"value", 1_357_000_000_000, 0, headers),
        RawRecord(None, b"", 5, 1),
        RawRecord(b"", None, 6, 2),
    ]
    consumer.close()


def test_keys_without_a_partition_go_where_kafkas_hash_says(broker: Broker, unique: str) -> None:
    broker.create(5, unique)
    keys = [f"key-{n}".encode() for n in range(50)]
    broker.write(unique, [(key, b"v", 1) for key in keys])
    admin = broker.admin()
    ends = admin.end_offsets([TopicPartition(unique, n) for n in range(5)])
    batches = read_range(admin, {tp: OffsetRange(0, end) for tp, end in ends.items()})
    found = {(r.key, tp.partition) for tp, records in batches for r in records}
    assert found == {(key, partition_for(key, 5)) for key in keys}


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
def test_a_batch_refused_by_a_broker_that_begins_to_lead_is_written_first(
    broker: Broker, unique: str, *, is_transactional: bool
) -> None:
    tp = new_topic(broker, unique)
    with late_leader(int(broker.bootstrap_servers.rpartition(":")[2])) as leader:
        producer: Any = IdempotentProducer(Kafka(leader.kafka))
        if is_transactional:
            producer = TransactionalProducer(Kafka(leader.kafka), unique)
            producer.init()
        send(producer, tp, "first")
        assert leader.has_first.wait(DEADLINE_S)
        send(producer, tp, "second")
        producer.flush()
        if is_transactional:
            producer.commit({}, unique)
    assert [r.value for r in broker.read(unique)] == [b"first", b"second"]


def test_without_transactions_a_refused_record_is_reported_by_the_flush(broker: Broker, unique: str) -> None:
    new_topic(broker, unique, max_message_bytes="1000")
    producer = IdempotentProducer(Kafka(broker.kafka))
    producer.send(unique, b"k", "".join(map(str, range(5000))).encode(), 1, (), 0)
    with pytest.raises(BrokerError, match=f"write to {unique}: .*Message size too large"):
        producer.flush()
    producer.close()


def test_a_pause_loses_and_repeats_nothing(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    broker.write(unique, [(b"k", str(n).encode(), 1) for n in range(500)])
    consumer = RecordConsumer(Kafka(broker.kafka))
    consumer.assign({tp: 0})
    found: list[RawRecord] = []
    while len(found) < 100:
        polled = consumer.poll(10, 1.0)
        assert sum(map(len, polled.records.values())) <= 10
        found += map(RawRecord._make, polled.records.get(tp, []))
    consumer.pause([tp])
    assert consumer.poll(100, 0.1).records == {}
    consumer.resume([tp])
    found += until_end(consumer, tp)
    assert [r.offset for r in found] == list(range(500))
    consumer.close()


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
def test_pauses_at_the_ends_of_partitions_lose_and_repeat_nothing(
    broker: Broker, unique: str, *, is_transactional: bool
) -> None:
    """librdkafka before 2.13.2 resumed one record too late, about once in a hundred of these pauses (its issue 4844)."""
    broker.create(3, unique)
    tps, random = [TopicPartition(unique, n) for n in range(3)], Random(0)
    producer: Any = owner(broker, unique) if is_transactional else IdempotentProducer(Kafka(broker.kafka))
    consumer, written = RecordConsumer(Kafka(broker.kafka)), dict.fromkeys(tps, 0)
    found: dict[TopicPartition, list[int]] = {tp: [] for tp in tps}

    def write() -> None:
        for tp in random.choices(tps, k=3):
            producer.send(unique, b"k", b"%d" % written[tp], 1, (), tp.partition)
            written[tp] += 1
        producer.commit({}, unique) if is_transactional else producer.flush()

    def poll(paused: Collection[TopicPartition] = ()) -> None:
        polled = consumer.poll(50, random.choice([0.001, 0.01, 0.06])).records
        assert not polled.keys() & paused
        for tp, records in polled.items():
            found[tp] += [int(record[RAW_VALUE] or b"") for record in records]

    consumer.assign(dict.fromkeys(tps, 0))
    with Repeating(write, 0.005):
        for _ in range(150):
            paused = {tp for tp in tps if random.random() < 0.6}
            consumer.pause(paused)
            poll(paused)
            consumer.resume(paused)
            poll()
    until(lambda: sum(map(len, found.values())) >= sum(written.values()), "read everything", turn=poll)
    assert found == {tp: list(range(count)) for tp, count in written.items()}
    consumer.close()


def test_a_partition_that_was_paused_is_read_when_it_is_assigned_again(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    broker.write(unique, [(b"k", b"v", n) for n in range(1, 101)])
    consumer = RecordConsumer(Kafka(broker.kafka))
    consumer.assign({tp: 0})
    consumer.poll(10, DEADLINE_S)
    consumer.pause([tp])
    consumer.unassign([tp])
    consumer.assign({tp: 50})
    assert [r.offset for r in until_end(consumer, tp)] == list(range(50, 100))
    for _ in range(2):  # its end is reported again
        consumer.pause([tp])
        consumer.resume([tp])
        assert until_end(consumer, tp) == []
    consumer.close()


def test_an_offset_that_is_gone_is_refused_and_not_jumped_over(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    broker.write(unique, [(b"k", b"v", n) for n in range(1, 11)])
    broker.admin().delete_records({tp: 4})
    for offset in (2, 99):
        consumer = RecordConsumer(Kafka(broker.kafka))
        consumer.assign({tp: offset})
        with pytest.raises(RangeError, match=f"{unique}-0 has offsets 4 to 10; offset {offset} "):
            until_end(consumer, tp)
        consumer.close()


def test_a_partition_whose_records_are_gone_costs_no_record_of_another(broker: Broker, unique: str) -> None:
    broker.create(2, unique)
    gone, there = TopicPartition(unique, 0), TopicPartition(unique, 1)
    for partition in (0, 1):
        broker.write(unique, [(b"k", b"v", n) for n in range(1, 101)], partition=partition)
    broker.admin().delete_records({gone: 40})
    consumer = RecordConsumer(Kafka(broker.kafka))
    consumer.assign({gone: 2, there: 0})
    found: list[int] = []
    missing: list[tuple[str, int]] = []
    ended = False
    for _ in range(POLLS):
        try:
            polled = consumer.poll(7, 0.1)
        except MissingOffsetError as error:
            missing.append((error.topic, error.partition))
            continue
        found += [record[RAW_OFFSET] for record in polled.records.get(there, ())]
        ended = ended or there in polled.ends
        if ended and missing:
            break
    assert missing == [(unique, 0)]
    assert found == list(range(100))
    consumer.assign({gone: 40})
    assert [r.offset for r in until_end(consumer, gone)] == list(range(40, 100))
    consumer.close()


def test_the_client_library_gives_back_no_reference_of_ours(
    broker: Broker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did: lists were freed while they were in use, and stream threads crashed, now and then, at other places."""
    tp = new_topic(broker, unique)
    broker.write(unique, [(b"k", b"v", 1)])
    admin, lists = broker.admin(), []
    delete_records = AdminClient.delete_records

    def noted(client: AdminClient, request: list[Any], **options: Any) -> Any:
        lists.append(request)
        return delete_records(client, request, **options)

    monkeypatch.setattr(AdminClient, "delete_records", noted)
    admin.delete_records({tp: 1})
    ours = [[tp]]
    assert sys.getrefcount(lists[0]) == sys.getrefcount(ours[0])


# Bounded reads


@pytest.fixture
def history(broker: Broker, unique: str) -> TopicPartition:
    """Offsets: 0 a, 1 b, 2 commit, 3-4 aborted, 5 abort, 6 c, 7 commit, 8 aborted, 9 abort."""
    tp = new_topic(broker, unique)
    producer = owner(broker, unique)
    for values, ends in ((("a", "b"), True), (("x", "x"), False), (("c",), True), (("y",), False)):
        send(producer, tp, *values)
        producer._client.producer.flush(10)
        if ends:
            producer.commit({}, unique)
        else:
            producer.abort()
    assert broker.admin().settled_end_offsets([tp]) == {tp: 10}
    return tp


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 10, "abc"),
        (0, 1, "a"),
        (0, 2, "ab"),
        (0, 3, "ab"),
        (2, 3, ""),
        (0, 4, "ab"),
        (3, 6, ""),
        (1, 7, "bc"),
        (0, 8, "abc"),
        (8, 9, ""),
        (9, 10, ""),
        (5, 5, ""),
    ],
)
def test_a_range_ends_wherever_it_is_cut(
    broker: Broker, history: TopicPartition, start: int, end: int, expected: str
) -> None:
    assert "".join(read(broker, history, start, end)) == expected


def test_several_partitions_are_read_each_to_its_own_end(broker: Broker, unique: str) -> None:
    broker.create(3, unique)
    for partition in range(3):
        broker.write(unique, [(b"k", b"v", 1)] * 1000, partition)
    wanted = {TopicPartition(unique, n): OffsetRange(n * 10, 500 + n) for n in range(3)}
    offsets: dict[TopicPartition, list[int]] = {tp: [] for tp in wanted}
    for tp, records in read_range(broker.admin(), wanted):
        offsets[tp] += [r.offset for r in records]
    assert offsets == {tp: list(range(r.start, r.end)) for tp, r in wanted.items()}


def test_empty_ranges_need_no_broker() -> None:
    tp = TopicPartition("nowhere", 0)
    assert list(read_range(Admin(Kafka(NOWHERE)), {tp: OffsetRange(5, 5)})) == []


def test_a_range_beyond_the_last_stable_offset_is_refused(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    producer = owner(broker, unique)
    send(producer, tp, "open")
    producer._client.producer.flush(10)
    with pytest.raises(RangeError, match=f"{unique}-0 ends at offset 0"):
        read(broker, tp, 0, 1)
    producer.abort()


def test_a_range_whose_start_is_gone_is_refused_with_what_is_left(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    broker.write(unique, [(b"k", b"v", 1)] * 10)
    broker.admin().delete_records({tp: 4})
    with pytest.raises(RangeError, match=r"offsets 1 to 4 .* are gone") as raised:
        read(broker, tp, 1, 10)
    assert f"Start at {tp}@4" in str(raised.value)


# Offsets, topics and groups


@pytest.mark.parametrize(
    ("time_ms", "expected"),
    [(-1, 0), (0, 0), (100, 0), (101, 1), (200, 1), (201, 3), (300, 3), (301, 4), (4_000_000_000_000, 4)],
)
def test_a_time_gives_the_first_offset_at_or_after_it(broker: Broker, unique: str, time_ms: int, expected: int) -> None:
    tp = new_topic(broker, unique)
    broker.write(unique, [(b"k", b"v", t) for t in (100, 200, 200, 300)])
    assert broker.admin().offsets_for_time([tp], time_ms) == {tp: expected}


@pytest.mark.parametrize(("time_ms", "expected"), [(2, 1), (3, 2), (4, 5), (5, 6), (9, 8), (4_000_000_000_000, 8)])
def test_a_time_passes_over_the_ends_of_transactions(broker: Broker, unique: str, time_ms: int, expected: int) -> None:
    """Their time is the broker's, long after what is imported has happened."""
    tp = new_topic(broker, unique)
    producer = owner(broker, unique)
    for times in [(1, 2, 3), (2, 4, 5)]:
        for at in times:
            producer.send(tp.topic, b"k", b"v", at, (), 0)
        producer.commit({tp: (1, "")}, unique)
    admin = broker.admin()
    until(lambda: admin.end_offsets([tp]) == {tp: 8}, "wrote the second one's end")
    assert offsets_at_time(admin, {tp: OffsetRange(0, 8)}, time_ms) == {tp: expected}


def test_a_time_never_leads_beyond_the_last_stable_offset(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    broker.write(unique, [(b"k", b"v", 100)])
    producer = owner(broker, unique)
    producer.send(unique, b"k", b"open", 5000, (), 0)
    producer._client.producer.flush(10)
    assert broker.admin().offsets_for_time([tp], 3000) == {tp: 1}
    producer.abort()


def test_an_empty_partition_begins_and_ends_at_0_at_any_time(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    admin = broker.admin()
    assert admin.beginning_offsets([tp]) == admin.end_offsets([tp]) == admin.offsets_for_time([tp], 5) == {tp: 0}
    assert admin.committed(unique, [tp]) == {}


def test_asking_for_a_missing_topic_does_not_create_it(broker: Broker, unique: str) -> None:
    admin = broker.admin()
    assert admin.partitions([unique]) == {}
    with pytest.raises(TopicError, match=unique):
        admin.end_offsets([TopicPartition(unique, 0)])
    with pytest.raises(TopicError, match=unique):
        admin.topic_config(unique)
    assert admin.list_topics(unique) == []


def test_a_partition_that_does_not_exist_is_a_missing_topic(broker: Broker, unique: str) -> None:
    new_topic(broker, unique)
    with pytest.raises(TopicError):
        broker.admin().end_offsets([TopicPartition(unique, 7)])


def test_topics_are_created_and_deleted_as_often_as_asked(broker: Broker, unique: str) -> None:
    admin = broker.admin()
    spec = TopicSpec(unique, 2, {"cleanup.policy": "compact"})
    admin.create_topics([spec])
    admin.create_topics([spec])
    assert admin.partitions([unique]) == {unique: 2}
    assert admin.topic_config(unique)["cleanup.policy"] == "compact"
    with pytest.raises(TopicError, match="has 2 partitions, not 3"):
        admin.create_topics([TopicSpec(unique, 3)])
    admin.delete_topics([unique])
    admin.delete_topics([unique])
    assert admin.list_topics(unique) == []


def test_a_topic_with_a_setting_that_does_not_exist_is_refused_by_name(broker: Broker, unique: str) -> None:
    with pytest.raises(BrokerError, match=unique):
        broker.admin().create_topics([TopicSpec(unique, 1, {"no.such.setting": "1"})])


def test_a_groups_offsets_are_set_and_deleted(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    admin = broker.admin()
    admin.alter_offsets(unique, {tp: 5})
    assert admin.committed(unique, [tp])[tp].offset == 5
    admin.delete_group(unique)
    admin.delete_group(unique)
    assert admin.committed(unique, [tp]) == {}
    admin.alter_offsets(unique, {tp: 7})
    admin.alter_offsets(unique, {})
    assert admin.committed(unique, [tp])[tp].offset == 7
    with pytest.raises(TopicError, match="set offsets"):
        admin.alter_offsets(unique, {TopicPartition(unique, 7): 1})


def test_a_group_is_as_its_members_make_it(broker: Broker, unique: str) -> None:
    new_topic(broker, unique)
    admin = broker.admin()
    assert admin.group(unique) == GroupState("dead", ())
    member = Consumer({**broker.kafka, "group.id": unique, "client.id": "somebody"})
    member.subscribe([unique])
    while not member.assignment():
        member.poll(0.1)
    assert admin.group(unique) == GroupState("stable", ("somebody@127.0.0.1",))
    member.close()
    assert admin.group(unique).members == ()


def test_a_group_with_members_is_neither_set_nor_deleted(broker: Broker, unique: str) -> None:
    tp = new_topic(broker, unique)
    admin = broker.admin()
    member = Consumer({**broker.kafka, "group.id": unique})
    member.subscribe([unique])
    while not member.assignment():
        member.poll(0.1)
    calls: list[Callable[[], object]] = [
        lambda: admin.alter_offsets(unique, {tp: 5}),
        lambda: admin.delete_group(unique),
    ]
    for call in calls:
        with pytest.raises(
            BrokerError, match=f"{unique} at {broker.bootstrap_servers}: .*group is not empty"
        ) as refused:
            call()
        assert not refused.value.retriable
    member.close()
    assert admin.committed(unique, [tp]) == {}
    admin.alter_offsets(unique, {tp: 5})
    assert admin.committed(unique, [tp])[tp].offset == 5


# Brokers that are not there


def unreachable_calls() -> Iterable[Any]:
    tp = TopicPartition("t", 0)
    admin = Admin(Kafka(NOWHERE))
    yield lambda: admin.partitions(["t"])
    yield admin.list_topics
    yield lambda: admin.create_topics([TopicSpec("t", 1)])
    yield lambda: admin.delete_topics(["t"])
    yield lambda: admin.end_offsets([tp])
    yield lambda: admin.offsets_for_time([tp], 0)
    yield lambda: admin.committed("g", [tp])
    yield lambda: admin.group("g")
    yield lambda: admin.alter_offsets("g", {tp: 1})
    yield lambda: admin.delete_group("g")
    yield lambda: admin.delete_records({tp: 1})
    yield lambda: admin.topic_config("t")


def test_brokers_that_cannot_be_reached_are_named_by_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (admin_module, groups_module, requests_module):
        monkeypatch.setattr(module, "REQUEST_SECONDS", 2.0)
    calls = list(unreachable_calls())
    with ThreadPoolExecutor(len(calls)) as threads:
        for answer in [threads.submit(call) for call in calls]:
            error = answer.exception(60)
            assert isinstance(error, BrokerError), repr(error)
            assert error.retriable
            assert "127.0.0.1:1" in error.message


@pytest.mark.parametrize("protocol", ["plaintext", "ssl"])
def test_who_listens_and_never_answers_is_given_up_when_asked_about_groups(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "REQUEST_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        admin = Admin(Kafka({"bootstrap.servers": server, "security.protocol": protocol}))
        calls: list[Callable[[], object]] = [
            lambda: admin.group("g"),
            lambda: admin.delete_group("g"),
            lambda: admin.alter_offsets("g", {TopicPartition("t", 0): 1}),
        ]
        for call in calls:
            with pytest.raises(BrokerError, match=server) as error:
                call()
            assert error.value.retriable


def test_a_property_that_does_not_exist_is_refused_before_anything_is_asked() -> None:
    wrong = {**NOWHERE, "bootstrap.serverz": "x"}
    for make in (Admin, RecordConsumer, IdempotentProducer, lambda kafka: TransactionalProducer(kafka, "t")):
        with pytest.raises(ConfigError, match=r"bootstrap\.serverz"):
            make(Kafka(wrong))
