"""Requests that are lost, refused or late on their way to brokers in memory: what clients make of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import BrokerError, OpenTransactionError, TaskMigratedError, UnknownOutcomeError
from riverrun.kafka import librdkafka
from riverrun.kafka import producer as producer_module
from riverrun.kafka.producer import group_metadata
from riverrun.simulation.faults import NO_FAULT, Fault
from tests.clusters import Member, memory_cluster, new_partition, owner, raised_code, send
from tests.waiting import until

if TYPE_CHECKING:
    from tests.clusters import MemoryCluster


@dataclass
class Planned:
    """Faults by the name of the request, first come, first served."""

    faults: dict[str, list[Fault]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def fault(self, client_id: str, request: str) -> Fault:
        del client_id
        self.asked[request] += 1
        waiting = self.faults.get(request)
        return waiting.pop(0) if waiting else NO_FAULT


LOST_BEFORE, LOST_AFTER = Fault(is_lost_before=True), Fault(is_lost_after=True)


@pytest.fixture
def planned() -> Planned:
    return Planned()


@pytest.fixture
def cluster(planned: Planned) -> MemoryCluster:
    return memory_cluster(planned)


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER, Fault(refusal=KafkaError.NOT_LEADER_FOR_PARTITION)])
def test_a_batch_that_is_sent_again_is_appended_once(
    cluster: MemoryCluster, planned: Planned, unique: str, fault: Fault
) -> None:
    log, now = new_partition(cluster, unique), cluster.now_ms()
    planned.faults["Produce"] = [fault, fault]
    log.write((b"k", b"a", now), (b"k", b"b", now))
    assert planned.asked["Produce"] == 3
    assert log.values() == [b"a", b"b"]


def test_without_idempotence_a_batch_is_appended_twice(cluster: MemoryCluster, planned: Planned, unique: str) -> None:
    log = new_partition(cluster, unique)
    planned.faults["Produce"] = [LOST_AFTER]
    producer = cluster.raw_producer()
    producer.produce(unique, b"v", partition=0)
    assert producer.flush(5) == 0
    assert log.values() == [b"v", b"v"]


@pytest.mark.parametrize(
    "request_name", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
)
@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER])
def test_lost_requests_of_a_transaction_are_repeated(
    cluster: MemoryCluster, planned: Planned, unique: str, request_name: str, fault: Fault
) -> None:
    log = new_partition(cluster, unique)
    planned.faults[request_name] = [fault]
    producer = owner(cluster, unique)
    send(producer, log, b"v")
    producer.commit({log.tp: (1, "")}, unique)
    assert planned.asked[request_name] == 2
    assert (log.values(), log.end()) == ([b"v"], 2)
    assert log.admin.committed(unique, [log.tp])[log.tp].offset == 1


@pytest.mark.parametrize(("fault", "values"), [(LOST_BEFORE, []), (LOST_AFTER, [b"v"])])
def test_the_outcome_of_a_commit_without_an_answer_is_unknown(
    cluster: MemoryCluster,
    planned: Planned,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    values: list[bytes],
) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    send(producer, log, b"v")
    monkeypatch.setattr(producer_module, "_COMMIT_SECONDS", 0.2)
    planned.faults["EndTxn"] = [fault] * 20
    with pytest.raises(UnknownOutcomeError):
        producer.commit({}, unique)
    planned.faults.clear()
    owner(cluster, unique)
    assert log.values() == values


def test_a_commit_that_timed_out_is_continued_by_the_next_call(
    cluster: MemoryCluster, planned: Planned, unique: str
) -> None:
    log = new_partition(cluster, unique)
    producer = cluster.raw_producer(transactional_id=unique)
    producer.init_transactions(5)
    producer.begin_transaction()
    producer.produce(unique, b"v", partition=0)
    planned.faults["EndTxn"] = [LOST_AFTER]
    assert raised_code(lambda: producer.commit_transaction(0)) == librdkafka.TIMED_OUT
    producer.commit_transaction(5)
    assert log.values() == [b"v"]


def test_a_fenced_owner_cannot_commit_what_it_began(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = cluster.raw_producer(transactional_id=unique)
    producer.init_transactions(5)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([ClientTopicPartition(unique, 0, 2)], group_metadata(unique), 5)
    owner(cluster, unique)
    assert raised_code(lambda: producer.commit_transaction(5)) == librdkafka.FENCED_PRODUCER
    assert raised_code(producer.begin_transaction) == librdkafka.FENCED_PRODUCER
    assert log.admin.committed(unique, [log.tp]) == {}


def test_a_commit_may_be_answered_before_its_markers_are_written(
    cluster: MemoryCluster, planned: Planned, unique: str
) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    send(producer, log, b"v")
    planned.faults["WriteTxnMarkers"] = [LOST_BEFORE, LOST_BEFORE]
    producer.commit({log.tp: (1, "")}, unique)
    cluster.pass_time(1)
    assert (log.stable_end(), log.end(), log.values()) == (0, 1, [])
    with pytest.raises(OpenTransactionError):
        log.admin.committed(unique, [log.tp], 0.2)
    successor = cluster.raw_producer(transactional_id=unique)
    assert raised_code(lambda: successor.init_transactions(0.2)) == librdkafka.TIMED_OUT
    cluster.pass_time(1)
    successor.init_transactions(5)
    assert (log.stable_end(), log.values()) == (2, [b"v"])
    assert log.admin.committed(unique, [log.tp])[log.tp].offset == 1


def test_an_id_that_nobody_used_for_long_is_forgotten(cluster: MemoryCluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    producer = owner(cluster, unique)
    send(producer, log, b"a")
    producer.commit({}, unique)
    cluster.pass_time(8 * 86_400_000)
    producer.send(unique, b"k", b"b", 1, (), 0)
    with pytest.raises(TaskMigratedError, match="forgotten"):
        producer.commit({}, unique)
    assert log.values() == [b"a"]


def test_a_reader_reads_on_after_lost_requests(cluster: MemoryCluster, planned: Planned, unique: str) -> None:
    log = new_partition(cluster, unique)
    log.write((b"k", b"v", cluster.now_ms()))
    planned.faults["Fetch"] = [LOST_BEFORE, LOST_AFTER]
    planned.faults["Metadata"] = [LOST_BEFORE]
    planned.faults["ListOffsets"] = [LOST_AFTER]
    assert log.values() == [b"v"]
    assert log.stable_end() == 1


def test_a_refused_request_says_why(cluster: MemoryCluster, planned: Planned, unique: str) -> None:
    log = new_partition(cluster, unique)
    planned.faults["DescribeConfigs"] = [Fault(refusal=KafkaError.CLUSTER_AUTHORIZATION_FAILED)]
    with pytest.raises(BrokerError, match=r"(?i)authorization"):
        log.admin.topic_config(unique)


def test_late_requests_arrive(cluster: MemoryCluster, planned: Planned, unique: str) -> None:
    log = new_partition(cluster, unique)
    planned.faults["Produce"] = [Fault(delay_s=0.05)]
    log.write((b"k", b"v", cluster.now_ms()))
    assert log.values() == [b"v"]


@pytest.mark.parametrize("request_name", ["FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"])
def test_members_find_each_other_whatever_is_lost(
    cluster: MemoryCluster, planned: Planned, unique: str, request_name: str
) -> None:
    planned.faults[request_name] = [
        Fault(refusal=KafkaError.NOT_COORDINATOR),
        Fault(refusal=KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
    ]
    first, second = (Member(cluster, unique, says, session_ms=1000) for says in (b"one", b"two"))
    for member in (first, second):
        member.until_knows(b"one", b"two")
    first.place.close()
    until(lambda: second.knows(b"two"), "was alone", turn=lambda: cluster.pass_time(300))
    second.place.close()


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER, Fault(refusal=KafkaError.CLUSTER_AUTHORIZATION_FAILED)])
def test_sizes_that_brokers_do_not_tell_are_left_out(
    cluster: MemoryCluster, planned: Planned, unique: str, fault: Fault
) -> None:
    log = new_partition(cluster, unique)
    planned.faults["DescribeLogDirs"] = [fault]
    assert log.admin.log_sizes([unique]) == {}
    assert log.admin.log_sizes([unique]) == {log.tp: 0}
