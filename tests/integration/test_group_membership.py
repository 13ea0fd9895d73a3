"""Members of a group hear of each other, against a real broker."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient
from kafka.coordinator.base import BaseCoordinator

from riverrun import LONG, STRING, Consumed, Materialized, Riverrun, StreamsBuilder, Topology
from riverrun.kafka.membership import GroupMember
from riverrun.records import TopicPartition
from riverrun.worker.group.protocol import SubscriptionInfo, servers_of
from tests.brokers import Broker, embedded_broker
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
    attends: threading.Event = field(default_factory=threading.Event)
    ends: threading.Event = field(default_factory=threading.Event)
    polls: threading.Lock = field(default_factory=threading.Lock)

    def take_place(self, broker: Broker, group: str, instance: str | None = None) -> None:
        self.place = GroupMember(
            broker.kafka,
            group,
            [],
            client_id="test",
            describe=self.describe,
            assign=everything_to_everybody,
            on_plan=self.plans.append,
            heartbeat_interval_ms=300,
            group_instance_id=instance,
            committed=lambda: self.commits,
        )

    def take_part(self, broker: Broker, group: str) -> None:
        self.take_place(broker, group)
        self.go_on()

    def go_on(self) -> None:
        self.attends.set()
        while not self.ends.is_set():
            self.attends.wait(0.1)
            with self.polls:
                if self.attends.is_set():
                    self.place.poll(0.5)
        self.place.close()

    def pauses(self) -> bool:
        """Take no part until `attends` is set again, unless it is joining: the library would complete that without a poll."""
        self.attends.clear()
        with self.polls:
            if self.place.is_joining:
                self.attends.set()
        return not self.attends.is_set()

    def describe(self) -> bytes:
        self.asked += 1
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
    members: list[tuple[Member, threading.Thread]] = []

    def joined(says: bytes) -> Member:
        member = Member(says)
        thread = threading.Thread(target=member.take_part, args=(broker, unique))
        thread.start()
        members.append((member, thread))
        return member

    yield joined
    for member, _ in members:
        member.ends.set()
    for _, thread in members:
        thread.join()


def test_what_changes_while_a_member_waits_for_the_others_is_said_as_well(join: Callable[[bytes], Member]) -> None:
    first, second = join(b"one"), join(b"two")
    until(lambda: first.known == second.known == {b"one", b"two"}, "knew each other")
    until(second.pauses, "paused")
    asked = first.asked
    first.says_anew(b"changed")
    until(lambda: first.asked > asked, "said so")  # and waits for the second
    first.says_anew(b"changed-again")
    second.attends.set()
    until(lambda: first.known == second.known == {b"changed-again", b"two"}, "knew the change")


def test_the_addresses_of_instances_are_known_again_after_a_rebalance(
    broker: Broker, unique: str, join: Callable[[bytes], Member]
) -> None:
    said = {name: subscription_info(f"{name}:1") for name in ("one", "two")}
    first, second = (join(each) for each in said.values())
    until(lambda: first.known == second.known == set(said.values()), "knew each other")
    until(second.pauses, "paused")
    first.says_anew(subscription_info("three:1"))
    admin = broker.admin()
    until(lambda: admin.member_messages(unique) is None, "waited for the second")
    assert servers_of(admin, unique) == []
    with ThreadPoolExecutor() as threads:
        found = threads.submit(servers_of, broker.admin(), unique, within_s=DEADLINE_S)
        second.attends.set()
    assert found.result(), "waited for the end of the rebalance"
    # The library may have joined again before, as it knew more topics: then this was its rebalance, with the former words.
    until(lambda: servers_of(admin, unique) == ["three:1", "two:1"], "knew the new address")


def subscription_info(server: str) -> bytes:
    return msgspec.json.encode(SubscriptionInfo(instance=server, fingerprint="", capacity=1, server=server))


def static(broker: Broker, group: str, member: Member) -> None:
    """Join as the only static member of a group."""
    member.take_place(broker, group, "first")

    def takes_part() -> bool:
        member.place.poll(0.5)
        return bool(member.plans)

    until(takes_part, "took part")


def test_a_static_member_hears_that_it_was_replaced(broker: Broker, unique: str) -> None:
    member, other = Member(b"one"), Member(b"other")
    static(broker, unique, member)
    assert not member.place.is_fenced
    static(broker, unique, other)

    def is_fenced() -> bool:
        member.place.poll(0.5)
        return member.place.is_fenced

    until(is_fenced, "heard of it")
    assert not other.place.is_fenced
    member.place.close()
    other.place.close()


def test_a_member_slow_to_join_again_is_not_taken_for_a_replaced_one(
    broker: Broker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(b"one")
    static(broker, unique, member)
    join = BaseCoordinator._do_join_and_sync_async

    async def late(coordinator: Any) -> Any:
        await coordinator._manager._net.sleep(2)
        return await join(coordinator)

    monkeypatch.setattr(BaseCoordinator, "_do_join_and_sync_async", late)
    asked = member.asked
    member.place.rejoin()
    member.place.poll(0.5)
    assert member.asked == asked, "it has not joined again"
    assert not member.place.is_fenced
    member.place.close()


@dataclass
class SlowLeader(Member):
    """A member that needs longer for an assignment than a session lasts."""

    is_wrong: bool = False

    def assign(self, said: Mapping[str, bytes]) -> dict[str, bytes]:
        time.sleep(3 * SESSION_MS / 1000)
        if self.is_wrong:
            message = "cannot assign"
            raise ValueError(message)
        return everything_to_everybody(said)

    def take_place(self, broker: Broker, group: str, instance: str | None = None) -> None:
        self.place = GroupMember(
            broker.kafka,
            group,
            [],
            client_id="slow",
            describe=self.describe,
            assign=self.assign,
            on_plan=self.plans.append,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
            group_instance_id=instance,
        )


def test_a_leader_stays_in_the_group_during_a_long_assignment(
    broker: Broker, unique: str, join: Callable[[bytes], Member]
) -> None:
    """Without heartbeats meanwhile, brokers would drop it before it can send the assignment, again and again."""
    leader = SlowLeader(b"one")
    with ThreadPoolExecutor() as threads:
        threads.submit(leader.take_part, broker, unique)
        try:
            until(lambda: leader.known == {b"one"}, "led")
            follower = join(b"two")
            until(lambda: leader.known == follower.known == {b"one", b"two"}, "knew each other")
        finally:
            leader.ends.set()


def test_an_assignment_that_fails_is_an_error_of_the_poll(broker: Broker, unique: str) -> None:
    leader = SlowLeader(b"one", is_wrong=True)
    leader.take_place(broker, unique)
    with pytest.raises(ValueError, match="cannot assign"):
        leader.go_on()
    leader.place.close()


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


def counting(builder: StreamsBuilder) -> Topology:
    builder.stream("words.in", Consumed(STRING, STRING)).group_by_key().count(Materialized(STRING, LONG, name="counts"))
    return builder.build()


def test_brokers_keep_offsets_of_the_topics_that_a_member_commits(broker: Broker, unique: str) -> None:
    """A topic that no member subscribes to would lose them, with the brokers' next look, after a week without a commit."""
    own, other = (TopicPartition(f"{unique}.{name}", 0) for name in ("repartition", "other"))
    broker.create(1, own.topic, other.topic)
    broker.admin().alter_offsets(unique, {own: 5, other: 5})
    member = Member(b"one", commits=(own.topic,))
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    with ThreadPoolExecutor() as threads:
        threads.submit(member.take_part, broker, unique)
        try:
            until(lambda: member.known == {b"one"}, "joined")
            client.delete_group_offsets(unique, [KafkaTopicPartition(*own), KafkaTopicPartition(*other)])
            assert broker.admin().committed(unique, [own, other]).keys() == {own}
        finally:
            member.ends.set()
            client.close()
