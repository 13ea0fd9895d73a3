"""Members of a group hear of each other, against a real broker."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pytest
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient

from riverrun import LONG, STRING, Consumed, Materialized, Riverrun, StreamsBuilder, Topology
from riverrun.kafka.door import Kafka
from riverrun.kafka.membership import GroupMember, MemberConfig
from riverrun.records import TopicPartition
from riverrun.worker.group.protocol import SubscriptionInfo, servers_of
from riverrun.worker.states import WorkerState
from tests.brokers import Broker, embedded_broker
from tests.integration.faulty_line import Fault, apis, faulty_line
from tests.waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from riverrun.project.worker import AppWorker

pytestmark = pytest.mark.broker

SESSION_MS = 1000
"""Shortest session that the embedded broker allows."""


@dataclass
class Member:
    """A member that takes part in a thread of its own: what it announces, and its assignments."""

    says: bytes
    commits: tuple[str, ...] = ()
    plans: list[bytes] = field(default_factory=list)
    asked: int = 0
    joins: threading.Event = field(default_factory=threading.Event)
    """Set while it joins rebalances; else the others wait."""

    def __post_init__(self) -> None:
        """Join at once."""
        self.joins.set()

    def take_place(self, broker: Broker, group: str, instance: str | None = None) -> None:
        self.place = GroupMember(
            Kafka(broker.kafka),
            group,
            lambda: self.commits,
            client_id="test",
            describe=self.describe,
            assign=everything_to_everybody,
            on_plan=self.plans.append,
            config=MemberConfig(heartbeat_interval_ms=300, group_instance_id=instance),
        )
        self.place.poll(0)

    def describe(self) -> bytes:
        self.asked += 1
        self.joins.wait()
        return self.says

    def says_anew(self, said: bytes) -> None:
        self.says = said
        self.place.rejoin()

    @property
    def known(self) -> set[bytes]:
        return set(self.plans[-1].split()) if self.plans else set()


def everything_to_everybody(said: Mapping[str, bytes]) -> dict[str, bytes]:
    return dict.fromkeys(said, b" ".join(said.values()))


@pytest.fixture
def join(broker: Broker, unique: str) -> Iterator[Callable[[bytes], Member]]:
    members: list[Member] = []

    def joined(says: bytes, *commits: str) -> Member:
        member = Member(says, commits)
        member.take_place(broker, unique)
        members.append(member)
        return member

    yield joined
    for member in members:
        member.joins.set()
        member.place.close()


def test_what_changes_while_a_member_waits_for_the_others_is_said_as_well(join: Callable[[bytes], Member]) -> None:
    first, second = join(b"one"), join(b"two")
    until(lambda: first.known == second.known == {b"one", b"two"}, "knew each other")
    second.joins.clear()
    asked = first.asked
    first.says_anew(b"changed")
    until(lambda: first.asked > asked, "said so")  # and waits for the second
    first.says_anew(b"changed-again")
    second.joins.set()
    until(lambda: first.known == second.known == {b"changed-again", b"two"}, "knew the change")


def test_the_addresses_of_instances_are_known_again_after_a_rebalance(
    broker: Broker, unique: str, join: Callable[[bytes], Member]
) -> None:
    said = {name: subscription_info(f"{name}:1") for name in ("one", "two")}
    first, second = (join(each) for each in said.values())
    until(lambda: first.known == second.known == set(said.values()), "knew each other")
    second.joins.clear()
    first.says_anew(subscription_info("three:1"))
    admin = broker.admin()
    until(lambda: admin.member_messages(unique) is None, "waited for the second")
    assert servers_of(admin, unique) == []
    with ThreadPoolExecutor() as threads:
        found = threads.submit(servers_of, broker.admin(), unique, within_s=DEADLINE_S)
        second.joins.set()
    assert found.result(), "waited for the end of the rebalance"
    assert servers_of(admin, unique) == ["three:1", "two:1"]


def subscription_info(server: str) -> bytes:
    return msgspec.json.encode(SubscriptionInfo(instance=server, fingerprint="", capacity=1, server=server))


def static(broker: Broker, group: str, member: Member) -> None:
    """Join as the only static member of a group."""
    member.take_place(broker, group, "first")
    until(lambda: bool(member.plans), "took part")


def test_a_static_member_hears_that_it_was_replaced(broker: Broker, unique: str) -> None:
    member, other = Member(b"one"), Member(b"other")
    static(broker, unique, member)
    assert not member.place.is_fenced
    static(broker, unique, other)
    until(lambda: member.place.is_fenced, "heard of it")
    assert not other.place.is_fenced
    member.place.close()
    other.place.close()


@dataclass
class SlowLeader(Member):
    """A member that needs long for an assignment."""

    plans_s: float = 0.0
    planned: int = 0
    is_wrong: bool = False

    def assign(self, said: Mapping[str, bytes]) -> dict[str, bytes]:
        self.planned += 1
        time.sleep(self.plans_s)
        if self.is_wrong:
            message = "cannot assign"
            raise ValueError(message)
        return everything_to_everybody(said)

    def take_place(self, broker: Broker, group: str, instance: str | None = None) -> None:
        self.place = GroupMember(
            Kafka(broker.kafka),
            group,
            lambda: [group],
            client_id="slow",
            describe=self.describe,
            assign=self.assign,
            on_plan=self.plans.append,
            config=MemberConfig(SESSION_MS, 200, group_instance_id=instance),
        )
        self.place.poll(0)


@pytest.mark.parametrize("plans_s", [0.1, 0.5, 2.5 * SESSION_MS / 1000])
def test_a_leader_that_plans_for_long_is_in_its_group(
    broker: Broker, unique: str, join: Callable[[bytes], Member], plans_s: float
) -> None:
    """Without heartbeats meanwhile, brokers would drop it before it can send the assignment, again and again."""
    broker.create(4, unique)
    leader, admin = SlowLeader(b"one", plans_s=plans_s), broker.admin()
    leader.take_place(broker, unique)
    try:
        until(lambda: leader.known == {b"one"}, "led")
        follower = join(b"two")
        until(lambda: leader.known == follower.known == {b"one", b"two"}, "knew each other")
        planned = leader.planned
        until(lambda: admin.group(unique).state == "stable", "was stable")
        assert len(admin.group(unique).members) == 2
        until(lambda: leader.place.uncounted_s < 0.2, "sent a heartbeat")
        assert leader.planned == planned, "it joined again without a reason"
    finally:
        leader.place.close()


def test_an_assignment_that_fails_is_an_error_of_the_poll(broker: Broker, unique: str) -> None:
    leader = SlowLeader(b"one", is_wrong=True)
    with pytest.raises(ValueError, match="cannot assign"):  # noqa: PT012 - of the first poll, if this thread is slow
        leader.take_place(broker, unique)
        leader.place.poll(DEADLINE_S)
    leader.place.close()


@pytest.mark.parametrize(
    "fault",
    [Fault("lose", apis.JOIN), Fault("lose", apis.SYNC), Fault("lose", apis.HEARTBEAT), Fault("delay", None)],
    ids=str,
)
def test_members_behind_a_faulty_line_are_in_their_group(broker: Broker, unique: str, fault: Fault) -> None:
    with faulty_line(int(broker.bootstrap_servers.rpartition(":")[2]), fault) as line:
        behind = Broker(line.bootstrap_servers)
        first, second = SlowLeader(b"one", plans_s=0.3), SlowLeader(b"two", plans_s=0.3)
        try:
            first.take_place(behind, unique)
            second.take_place(behind, unique)
            until(lambda: line.met >= 3, "met the fault")
            line.mend()
            until(lambda: first.known == second.known == {b"one", b"two"}, "knew each other")
            until(lambda: broker.admin().group(unique).state == "stable", "was stable")
            assert len(broker.admin().group(unique).members) == 2
        finally:
            first.place.close()
            second.place.close()
    assert broker.admin().group(unique).members == ()


@pytest.fixture
def own_broker(tmp_path: Path, new_port: Callable[[], int]) -> Iterator[Broker]:
    """A broker of one test alone, which changes its settings."""
    embedded = embedded_broker(tmp_path / "broker", new_port())
    yield Broker(embedded.start().bootstrap_servers)
    embedded.kill()


def test_instances_go_on_when_brokers_refuse_the_messages_of_their_group(
    own_broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They try again, without addresses in the assignments, and learn the addresses from each other's messages."""
    own_broker.create(8, "words.in")
    own_broker.admin().committed("words-v1", [TopicPartition("words.in", 0)])  # so that there is a topic of offsets
    own_broker.configure("__consumer_offsets", {"max.message.bytes": "400"})
    project = Riverrun(kafka=own_broker.kafka, directory=tmp_path)
    app = project.app("words", counting)
    workers = [app.worker(server="127.0.0.1:0", state_dir=tmp_path / name) for name in ("one", "two")]
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker)
        until(lambda: "message.max.bytes may be too small" in caplog.text, "were refused")
        own_broker.configure("__consumer_offsets", {"max.message.bytes": "1048588"})
        for worker in workers:
            worker.wait_for(timeout_s=DEADLINE_S)
        until(lambda: all(knows_both(worker) for worker in workers), "knew each other's addresses")
    assert "brokers may need a larger message.max.bytes" in caplog.text


def knows_both(worker: AppWorker) -> bool:
    tasks = worker.metadata()
    return len(tasks) == 2 and sum(map(len, tasks.values())) == 8


def test_a_worker_that_its_group_does_not_count_is_not_running(
    broker: Broker, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = f"{unique}.in", f"{unique}-v1"
    broker.create(2, topic)
    fault = Fault("lose", apis.HEARTBEAT)
    with faulty_line(int(broker.bootstrap_servers.rpartition(":")[2]), fault) as line:
        config = {"consumer.heartbeat.interval.ms": 200, "consumer.session.timeout.ms": SESSION_MS}
        project = Riverrun(kafka={"bootstrap.servers": line.bootstrap_servers}, directory=tmp_path)
        with project.app(unique, lambda builder: counting(builder, topic), config=config).worker() as worker:
            until(lambda: "have not counted this instance as a member" in caplog.text, "noticed")
            until(lambda: worker.state is WorkerState.REBALANCING, "was rebalancing")
            assert not worker.status().is_member
            line.mend()
            worker.wait_for(timeout_s=DEADLINE_S)
            assert worker.status().is_member
            assert len(broker.admin().group(group).members) == 1
    assert "as a member of group" in caplog.text.rpartition("again")[0]


def counting(builder: StreamsBuilder, topic: str = "words.in") -> Topology:
    builder.stream(topic, Consumed(STRING, STRING)).group_by_key().count(Materialized(STRING, LONG, name="counts"))
    return builder.build()


def test_brokers_keep_offsets_of_the_topics_that_a_member_commits(
    broker: Broker, unique: str, join: Callable[..., Member]
) -> None:
    """A topic that no member subscribes to would lose them, with the brokers' next look, after a week without a commit."""
    own, other = (TopicPartition(f"{unique}.{name}", 0) for name in ("repartition", "other"))
    broker.create(1, own.topic, other.topic)
    broker.admin().alter_offsets(unique, {own: 5, other: 5})
    member = join(b"one", own.topic)
    until(lambda: member.known == {b"one"}, "joined")
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as client:
        client.delete_group_offsets(unique, [KafkaTopicPartition(*own), KafkaTopicPartition(*other)])
    assert broker.admin().committed(unique, [own, other]).keys() == {own}
