"""The part of an instance that its group sees."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import STRING, Consumed, Produced, Repartitioned, StreamsBuilder
from riverrun.config import AppConfig
from riverrun.errors import TopologyError
from riverrun.hosting.application import Application
from riverrun.hosting.connected import ConnectedApplication
from riverrun.kafka.door import Kafka
from riverrun.records import TaskId
from riverrun.worker.group import membership as membership_module
from riverrun.worker.group.client import GroupClient
from riverrun.worker.group.protocol import AssignmentInfo, SubscriptionInfo, ranges, subscription_info_of
from tests.presence import present

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = {"in": 2}
FIRST, SECOND = TaskId(0, 0), TaskId(0, 1)


class Membership:
    """A membership with assignments at hand."""

    session_s = 10.0

    def __init__(self) -> None:
        self.arrived: list[Any] = []
        self.passed_over: list[str] = []
        self.rejoined = 0
        self.servers: tuple[dict[str, str], dict[str, list[str]]] | None = None

    def found_servers(self) -> tuple[dict[str, str], dict[str, list[str]]] | None:
        found, self.servers = self.servers, None
        return found

    def heard(self, _timeout_s: float = 0) -> Any:
        return self.arrived.pop(0) if self.arrived else None

    def rejoin(self) -> None:
        self.rejoined += 1

    def pass_over(self, why: str) -> None:
        self.passed_over.append(why)


class Tasks:
    """The tasks of an instance."""

    def __init__(self) -> None:
        self.running = {FIRST}

    def active(self) -> frozenset[TaskId]:
        return frozenset(self.running)

    def restoring(self) -> dict[TaskId, int | None]:
        return {}

    positions = lags = restoring


class Member:
    """An instance's client, its membership and its tasks."""

    def __init__(self, directory: Path) -> None:
        builder = StreamsBuilder()
        builder.stream("in", Consumed(STRING, STRING)).to("out", Produced(STRING, STRING))
        application = Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), directory)
        nobody: Any = None
        connected = ConnectedApplication(application, nobody)
        self.tasks, self.membership = Tasks(), Membership()
        tasks: Any = self.tasks
        self.client = GroupClient(connected, tasks, server="here:1", capacity=lambda: 3)
        self.fingerprint = connected.fingerprint
        membership: Any = self.membership
        self.client._membership = membership

    def receive(self, **changes: Any) -> AssignmentInfo | None:
        assigned = AssignmentInfo(**{"topics": TOPICS, "fingerprint": self.fingerprint, **changes})
        self.membership.arrived.append(assigned)
        self.client.receive()
        return self.client.assignment


@pytest.fixture
def member(tmp_path: Path) -> Member:
    return Member(tmp_path)


def test_an_assignment_applies_with_the_topics_that_it_names(member: Member) -> None:
    found = member.receive(active="0:1")
    assert found is not None
    assert (found.active, member.client.is_current) == ("0:1", True)
    assert member.client.layout is not None
    assert member.client.layout.tasks.keys() == {FIRST, SECOND}


def test_an_assignment_of_tasks_that_do_not_exist_is_passed_over(member: Member) -> None:
    assert member.receive(active="0:7") is None
    assert member.membership.passed_over == ["it names tasks that do not exist, such as 0_7"]


def test_a_refusal_of_its_predecessor_is_ignored_and_its_own_is_not(member: Member) -> None:
    assert member.receive(refusal="another topology", process="predecessor") is None
    assert member.membership.rejoined == 1
    with pytest.raises(TopologyError, match="another topology"):
        member.receive(refusal="another topology")


def test_an_instance_waits_for_the_session_of_its_predecessor_that_was_joining(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("riverrun.worker.group.client.time.monotonic", lambda: now_s)
    assert member.receive(refusal="the same directory", may_pass=True) is None
    assert member.membership.passed_over == ["the same directory"]
    now_s += 11
    with pytest.raises(TopologyError, match="the same directory"):
        member.receive(refusal="the same directory", may_pass=True)


def test_an_instance_that_has_had_tasks_does_not_wait_next_to_its_double(member: Member) -> None:
    assert member.receive(active="0:1") is not None
    with pytest.raises(TopologyError, match="the same directory"):
        member.receive(refusal="the same directory", may_pass=True)


def test_the_leader_hears_of_tasks_that_the_instance_no_longer_has(member: Member) -> None:
    info = member.client._subscription_info(TOPICS)
    assert (info.active, info.capacity, info.server, info.topics) == ("0:0", 3, "here:1", TOPICS)
    assignment = member.receive(active="")
    assert assignment is not None
    member.client.request_rebalance_if_needed(assignment)
    assert member.membership.rejoined == 0
    member.tasks.running.clear()
    member.client.request_rebalance_if_needed(assignment)
    assert member.membership.rejoined == 1


def test_losses_make_an_assignment_obsolete_until_the_next(member: Member) -> None:
    member.receive(active="0:0")
    member.client.note_losses()
    assert (member.client.is_current, member.membership.rejoined) == (False, 1)
    member.receive(active="0:0")
    assert member.client.is_current


def test_addresses_that_an_assignment_omits_are_added_when_they_are_found(tmp_path: Path) -> None:
    member = Member(tmp_path)
    assert present(member.receive(active=ranges([FIRST]), omits_servers=True)).servers == {}
    member.membership.servers = {str(FIRST): "there:1"}, {}
    member.client.receive()
    assignment = present(member.client.assignment)
    assert (assignment.active, assignment.servers) == (ranges([FIRST]), {str(FIRST): "there:1"})
    member.membership.servers = {str(FIRST): "gone:1"}, {}  # they were looked up for the assignment before
    named = present(member.receive(active=ranges([FIRST]), servers={str(FIRST): "here:1"}))
    assert named.servers == {str(FIRST): "here:1"}


def test_a_description_too_large_for_brokers_says_what_to_raise(
    member: Member, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    info = SubscriptionInfo(instance="one", fingerprint="f00", capacity=1, known="0:0-1", positions=[7, 8])
    alone = membership_module.Membership(member.client.connected, threading.Event(), lambda _: info, lambda _: {})
    assert subscription_info_of(alone._described()) == info
    assert not caplog.text
    monkeypatch.setattr(membership_module, "_ROOM_BYTES", 10)
    assert subscription_info_of(alone._described()) == info
    assert "brokers may need a larger message.max.bytes" in caplog.text


def test_a_member_subscribes_to_all_topics_whose_offsets_tasks_commit(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    texts = builder.stream(re.compile("in.*"), Consumed(STRING, STRING)).select_key(lambda _key, value: value)
    texts.repartition(Repartitioned(STRING, STRING, name="again")).to("out", Produced(STRING, STRING))
    application = Application(AppConfig("app", "m:f"), "v1", builder.build(), Kafka({}), tmp_path)
    nobody: Any = None
    connected, info = (
        ConnectedApplication(application, nobody),
        SubscriptionInfo(instance="one", fingerprint="f00", capacity=1),
    )
    alone = membership_module.Membership(connected, threading.Event(), lambda _: info, lambda _: {})
    alone._found = {"in": 1, "in-found-later": 2}
    assert set(alone._committed_topics()) == {"in", "in-found-later", "app-v1-again-repartition"}
