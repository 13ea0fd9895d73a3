"""Consumer groups: their members, what these hear of each other, and committed offsets."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import BrokerError, StreamsError
from riverrun.kafka.admin import Admin, CommittedOffset, TopicSpec
from riverrun.kafka.groups import GroupState
from riverrun.kafka.membership import GroupMember
from riverrun.kafka.shares import PartitionShare
from riverrun.records import TopicPartition
from tests.clusters import Member, new_partition, owner, raised_code
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.clusters import Cluster


@pytest.fixture
def join(cluster: Cluster, unique: str) -> Iterator[Callable[..., Member]]:
    with ExitStack() as members:

        def joined(says: bytes, **settings: Any) -> Member:
            member = Member(cluster, unique, says, **settings)
            members.enter_context(closing(member.place))
            return member

        yield joined


def test_members_get_plans_and_hear_of_those_that_come_and_go(join: Callable[..., Member]) -> None:
    first = join(b"one")
    first.until_knows(b"one")
    second, third = join(b"two"), join(b"three")
    for member in (first, second, third):
        member.until_knows(b"one", b"two", b"three")
    first.place.close()
    for member in (second, third):
        member.until_knows(b"two", b"three")


def test_members_say_something_new_at_any_time(join: Callable[..., Member]) -> None:
    first, second = join(b"one"), join(b"two")
    for member in (first, second):
        member.until_knows(b"one", b"two")
    for member, said in ((first, b"uno"), (second, b"dos")):
        member.says = said
        member.place.rejoin()
    for member in (first, second):
        member.until_knows(b"uno", b"dos")


def test_a_group_is_described_with_what_members_say(cluster: Cluster, unique: str, join: Callable[..., Member]) -> None:
    admin = Admin(cluster.kafka)
    assert admin.group(unique) == GroupState("dead", ())
    assert admin.member_messages(unique) == ()
    first, second = join(b"one"), join(b"two")
    for member in (first, second):
        member.until_knows(b"one", b"two")
    until(lambda: admin.group(unique).state == "stable", "was stable")
    assert admin.group(unique) == GroupState("stable", ("says-one@127.0.0.1", "says-two@127.0.0.1"))
    assert sorted(admin.member_messages(unique) or ()) == [(b"one", b"one two"), (b"two", b"one two")]
    for member in (first, second):
        member.place.close()
    assert admin.group(unique) == GroupState("empty", ())


def test_a_member_that_is_silent_is_let_go(cluster: Cluster, join: Callable[..., Member]) -> None:
    first, silent = join(b"one"), join(b"silent", session_ms=1000)
    first.until_knows(b"one", b"silent")
    silent.until_knows(b"one", b"silent")
    silent.place._ends.set()
    silent.place._member_id = ""
    silent.place.close()
    cluster.pass_time(1100)
    first.until_knows(b"one")


def test_a_static_member_comes_back_without_a_rebalance(join: Callable[..., Member]) -> None:
    first, second = join(b"one", instance="first"), join(b"two", instance="second")
    for member in (first, second):
        member.until_knows(b"one", b"two")
    plans = len(first.plans)
    second.place.close()
    back = join(b"two", instance="second")
    back.until_knows(b"one", b"two")
    assert len(first.plans) == plans


def test_a_static_member_that_is_replaced_hears_of_it(join: Callable[..., Member]) -> None:
    first = join(b"one", instance="same")
    first.until_knows(b"one")
    other = join(b"one", instance="same")
    until(lambda: first.place.is_fenced, "heard of it")
    other.until_knows(b"one")
    assert not other.place.is_fenced


def test_a_static_leader_that_was_restarted_makes_plans_again(join: Callable[..., Member]) -> None:
    first = join(b"one", instance="first")
    first.until_knows(b"one")
    first.place.close()
    back = join(b"uno", instance="first")
    back.until_knows(b"one")
    second = join(b"two", instance="second")
    for member in (back, second):
        member.until_knows(b"uno", b"two")


def test_a_static_member_stays_until_its_session_is_over(cluster: Cluster, join: Callable[..., Member]) -> None:
    first, gone = join(b"one"), join(b"gone", instance="gone", session_ms=1500)
    for member in (first, gone):
        member.until_knows(b"gone", b"one")
    gone.place.close()
    assert first.knows(b"gone", b"one")
    cluster.pass_time(1600)
    first.until_knows(b"one")


def test_only_members_commit_while_a_group_has_some(cluster: Cluster, unique: str, join: Callable[..., Member]) -> None:
    log, admin = new_partition(cluster, unique), Admin(cluster.kafka)
    admin.alter_offsets(unique, {log.tp: 1})
    member = join(b"one")
    member.until_knows(b"one")
    with pytest.raises(BrokerError, match=r"(?i)not empty"):
        admin.alter_offsets(unique, {log.tp: 2})
    with pytest.raises(BrokerError, match=r"(?i)not empty"):
        admin.delete_group(unique)
    owner(cluster, unique).commit({log.tp: (3, "in a transaction")}, unique)
    assert admin.committed(unique, [log.tp]) == {log.tp: CommittedOffset(3, "in a transaction")}
    member.place.close()
    admin.alter_offsets(unique, {log.tp: 4})
    assert admin.committed(unique, [log.tp])[log.tp].offset == 4
    admin.delete_group(unique)
    admin.delete_group(unique)
    assert admin.committed(unique, [log.tp]) == {}
    assert admin.group(unique).state == "dead"


def test_plans_that_are_too_long_for_the_brokers_are_refused(cluster: Cluster, unique: str) -> None:
    lengths = iter([2_000_000, 10])
    plans: list[bytes] = []
    member = GroupMember(
        cluster.kafka,
        unique,
        client_id="plans",
        describe=lambda: b"one",
        assign=lambda said: dict.fromkeys(said, b"p" * next(lengths)),
        on_plan=plans.append,
    )
    with pytest.raises(BrokerError) as refused:
        member.poll(60)
    assert (refused.value.retriable, member.is_refused) == (True, True)
    until(lambda: plans == [b"p" * 10], "had a shorter plan")
    member.close()


def test_groups_are_found_by_the_partitions_that_they_have_read(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    log.admin.alter_offsets(f"{unique}.2", {log.tp: 2})
    log.admin.alter_offsets(f"{unique}.1", {log.tp: 1})
    assert log.admin.groups_of([log.tp]) == [f"{unique}.1", f"{unique}.2"]
    progress = log.admin.progress_of(f"{unique}.1")
    assert progress.committed([log.tp, TopicPartition(unique, 0)]) == {log.tp: (1, "")}
    progress.close()


def test_offsets_of_a_deleted_topic_are_gone(cluster: Cluster, unique: str) -> None:
    log = new_partition(cluster, unique)
    log.admin.alter_offsets(unique, {log.tp: 2})
    log.admin.delete_topics([unique])
    until(lambda: log.admin.committed(unique, [log.tp]) == {}, "forgot the offsets")


def test_offsets_of_missing_partitions_and_long_metadata_are_refused(cluster: Cluster, unique: str) -> None:
    new_partition(cluster, unique)
    consumer = cluster.raw_consumer(group_id=unique)

    def commit(partition: int, metadata: str) -> int:
        offsets = [ClientTopicPartition(unique, partition, 1, metadata)]
        return raised_code(lambda: consumer.commit(offsets=offsets, asynchronous=False))

    assert commit(3, "") == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert commit(0, "m" * 4096) == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert commit(0, "m" * 4095) == 0
    assert consumer.committed([ClientTopicPartition(unique, 0)], 30)[0].metadata == "m" * 4095
    consumer.close()


def test_consumers_share_the_partitions_of_a_topic(cluster: Cluster, unique: str) -> None:
    Admin(cluster.kafka).create_topics([TopicSpec(unique, 3)])
    settings = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "300"}
    given: list[set[int]] = [set(), set()]
    gave_up: list[int] = []
    shares = [PartitionShare(cluster.kafka, unique, [unique], settings)]

    def poll(number: int) -> None:
        new = shares[number].poll(lambda: gave_up.append(number))
        if new is not None:
            given[number] = {tp.partition for tp in new}

    def both() -> None:
        poll(0)
        poll(1)

    until(lambda: given[0] == {0, 1, 2}, "had everything", turn=lambda: poll(0))
    shares.append(PartitionShare(cluster.kafka, unique, [unique], settings))
    until(lambda: sorted(map(len, given)) == [1, 2], "shared", turn=both)
    assert given[0] | given[1] == {0, 1, 2}
    assert gave_up[0] == 0
    shares[1].close()
    until(lambda: given[0] == {0, 1, 2}, "had everything again", turn=lambda: poll(0))
    shares[0].note({TopicPartition(unique, 0): 5}, "copy")
    until(
        lambda: Admin(cluster.kafka).committed(unique, [TopicPartition(unique, 0)]) != {}, "noted", turn=lambda: poll(0)
    )
    shares[0].close()
    assert Admin(cluster.kafka).group(unique).state == "empty"


def test_foreign_members_cannot_join_a_group_with_another_protocol(
    cluster: Cluster, unique: str, join: Callable[..., Member]
) -> None:
    new_partition(cluster, unique)
    join(b"one").until_knows(b"one")
    share = PartitionShare(cluster.kafka, unique, [unique], {})
    refused: list[StreamsError] = []

    def poll() -> None:
        try:
            share.poll(lambda: None)
        except StreamsError as error:
            refused.append(error)

    until(lambda: bool(refused), "was refused", turn=poll)
    assert "protocol" in str(refused[0])
    share.close()


def test_a_member_that_was_refused_says_so(cluster: Cluster, unique: str, join: Callable[..., Member]) -> None:
    new_partition(cluster, unique)
    share = PartitionShare(cluster.kafka, unique, [unique], {})
    until(lambda: share.poll(lambda: None) is not None, "joined", turn=lambda: None)
    with pytest.raises(StreamsError, match="protocol"):
        join(b"one").place.poll(60)
    share.close()
