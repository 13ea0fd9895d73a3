"""Members of a group may be anything: the leader and its followers go on with those that they understand."""

from __future__ import annotations

import json
import logging
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from riverrun.decoders import UnreadableError
from riverrun.hosting.alone import RUN, MembershipState, SoleHost, chosen_in, decided, hosts_in, said
from riverrun.kafka.kafka_python import planned_in, said_by
from riverrun.records import TaskId
from riverrun.worker.group.leadership import finds_more, give_assignments, subscriptions_of
from riverrun.worker.group.protocol import (
    AssignmentConfig,
    AssignmentInfo,
    SubscriptionInfo,
    assignment_info_of,
    is_address,
    ranges,
    subscription_info_of,
    task_ids,
)
from tests.malformed import malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOM = 1_000_000
TOPICS = {"clicks": 4}
TASKS = {TaskId(0, number): True for number in range(4)}
GOOD = SubscriptionInfo(
    instance="good", fingerprint="f00", capacity=1, process="p1", server="10.0.0.1:80", topics=TOPICS
)
ROGUE: dict[str, Any] = {
    "instance": "rogue",
    "fingerprint": "f00",
    "capacity": 1,
    "tags": {"rack": "a"},
    "active": "0:0",
    "known": "0:0",
    "positions": [7],
    "server": "10.0.0.2:80",
    "shuts_down": False,
    "topics": {"clicks": 4},
    "format": 2,
    "restoring": "0:0",
    "standby": "0:1",
    "process": "p2",
}
ASSIGNMENT_INFO: dict[str, Any] = {
    "active": "0:0",
    "standby": "0:1",
    "warm_up": "",
    "addresses": [["10.0.0.2:80", "10.0.0.3:80"], "0:0-2", [1, 0, 2], [[], [1, 2], []]],
    "refusal": None,
    "shuts_down": False,
    "topics": {"clicks": 4},
    "format": 2,
    "process": "p1",
    "fingerprint": "f00",
}


def encoded(change: Mapping[str, Any]) -> bytes:
    return json.dumps({**ROGUE, **change}).encode()


def assignments_with(rogue: bytes, *, rogue_is: str) -> dict[str, AssignmentInfo]:
    """Returns what the leader tells a good member and another one."""
    members = subscriptions_of({"m-good": msgspec.json.encode(GOOD), rogue_is: rogue})
    finds_more(members.values(), TOPICS)
    encoded_infos = give_assignments(
        members, TOPICS, TASKS, AssignmentConfig(num_standby_replicas=1), "clicks-v1", room=ROOM
    )
    return {name: assignment_info_of(data) for name, data in encoded_infos.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"positions": {"0:0": 1}},
        {"positions": [-1]},
        {"positions": [2**63]},
        {"positions": [1.5]},
        {"positions": []},
        {"positions": [7, 7]},
        {"known": "0:0:0"},
        {"known": "٣:1"},
        {"known": "0:" + "9" * 5000},
        {"known": "0:0-1"},
        {"known": "0:0-999999999"},
        {"active": "zz"},
        {"active": "0:-1"},
        {"active": "1:0:1"},
        {"active": "0:0,"},
        {"active": "0:0  1:1"},
        {"active": "0:0\n"},
        {"active": "0:0-999999999"},
        {"active": ["0_0"]},
        {"active": None},
        {"active": {"0_0": 1}},
        {"standby": "0"},
        {"restoring": " "},
        {"capacity": 0},
        {"capacity": -3},
        {"capacity": 10**9},
        {"capacity": "1"},
        {"capacity": None},
        {"instance": "a b"},
        {"instance": "\x1b[2J"},
        {"instance": "x" * 301},
        {"instance": 7},
        {"fingerprint": "\n"},
        {"tags": {"rack": ["a"]}},
        {"topics": {"../../x": 1}},
        {"topics": {"clicks": 0}},
        {"topics": {"clicks": 10**12}},
        {"topics": {"..": 1}},
        {"server": "http://evil/x"},
        {"server": "evil"},
        {"server": "user@evil:80"},
        {"server": "evil:80/path"},
        {"process": ["p"]},
        {"format": 1},
        {"format": 3},
        {"format": "2"},
        {"shuts_down": "yes"},
    ],
    ids=lambda change: str(change)[:50],
)
def test_a_member_that_cannot_be_understood_gets_nothing_and_the_group_goes_on(
    change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assignments = assignments_with(encoded(change), rogue_is="m-a-rogue")
    assert assignments["m-a-rogue"].active == assignments["m-a-rogue"].standby == ""
    assert "cannot be read" in (assignments["m-a-rogue"].refusal or "")
    assert assignments["m-good"].active == "0:0-3"
    assert assignments["m-good"].topics == TOPICS
    assert [record.message for record in caplog.records if "m-a-rogue" in record.message]


def test_fields_of_a_newer_release_are_passed_over() -> None:
    newer = {"zones": [{"deep": [[[1]]]}], "capacity_by_zone": {"a": 1}}
    assert subscription_info_of(encoded(newer)).instance == "rogue"
    assert assignment_info_of(json.dumps({**ASSIGNMENT_INFO, **newer}).encode()).active == "0:0"


def test_claims_of_members_do_not_decide_which_tasks_there_are() -> None:
    claims = encoded({"topics": {"clicks": 1000, "other": 3}})
    assignments = assignments_with(claims, rogue_is="m-z")
    assert {task for each in assignments.values() for task in task_ids(each.active)} <= TASKS.keys()
    assert assignments["m-good"].topics == assignments["m-z"].topics == TOPICS
    assert finds_more(subscriptions_of({"m": claims}).values(), TOPICS), "so the leader looks for them itself"
    assert not finds_more([GOOD, None], TOPICS)


@given(malformed(ROGUE).flatmap(lambda data: st.sampled_from([data, zlib.compress(data)])))
@example(zlib.compress(b" " * 9_000_000))
@example(zlib.compress(encoded({}))[:-5])
@example(b"x")
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(encoded({"new": 0}).replace(b'"new": 0', b'"new": ' + b"9" * 5000))
@example(b"\xff")
@example(b"")
def test_no_subscription_info_ends_the_leader(said_by_rogue: bytes) -> None:
    assignments = assignments_with(said_by_rogue, rogue_is="m-rogue")
    assert assignments.keys() == {"m-good", "m-rogue"}
    if assignments["m-rogue"].refusal is not None:
        assert task_ids(assignments["m-good"].active) == TASKS.keys() or assignments["m-good"].refusal is not None
    for assignment in assignments.values():
        assert task_ids(assignment.active) <= TASKS.keys()


@given(malformed(ASSIGNMENT_INFO).flatmap(lambda data: st.sampled_from([data, zlib.compress(data)])))
@example(zlib.compress(b"[" * 100_000))
@example(b"[" * 100_000)
@example(b"")
def test_no_orders_raise_anything_but_that_they_are_unreadable(data: bytes) -> None:
    try:
        assignment = assignment_info_of(data)
    except UnreadableError as error:
        why = str(error)
        if why.isprintable() and len(why) < 300:
            return
        raise
    for tasks in (assignment.active, assignment.standby, assignment.warm_up):
        assert task_ids(ranges(task_ids(tasks))) == task_ids(tasks)
    servers = [*assignment.servers.values(), *(each for named in assignment.standby_servers.values() for each in named)]
    assert all(map(is_address, servers))


def with_addresses(*addresses: Any) -> AssignmentInfo:
    return assignment_info_of(json.dumps({**ASSIGNMENT_INFO, "addresses": addresses}).encode())


def test_addresses_that_are_none_are_left_out() -> None:
    assignment = with_addresses(["10.0.0.2:80", "host", "10.0.0.3:80"], "0:0-2", [2, 9, 3], [[1, 2, 3], [], [9]])
    assert assignment.servers == {"0_2": "10.0.0.3:80"}
    assert assignment.standby_servers == {"0_0": ["10.0.0.2:80", "10.0.0.3:80"], "0_2": []}
    wrong: tuple[tuple[Any, ...], ...] = (
        *(([], "0:0", [], []), ([], "", [1], [[]])),
        *(([], "0:0", [1], [[], []]), ([], "0:0-999999999", [], [])),
    )
    for each in wrong:
        with pytest.raises(UnreadableError):
            with_addresses(*each)


SUBSCRIPTION = ConsumerProtocolSubscription(3, ["clicks"], b"x" * 20, []).encode()
ASSIGNMENT = ConsumerProtocolAssignment(0, [], b"x" * 20).encode()


@st.composite
def broken(draw: st.DrawFn, message: bytes) -> bytes:
    """A message of the group's protocol with bytes changed, left out and added."""
    data = bytearray(message)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 2)):
            case 0:
                del data[at:]
            case 1:
                data[at : at + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x00" * 4]))
            case _:
                data[at:at] = draw(st.binary(max_size=8))
    return bytes(data)


@given(st.one_of(broken(SUBSCRIPTION), st.binary(max_size=60)), st.one_of(broken(ASSIGNMENT), st.binary(max_size=60)))
def test_bytes_that_are_no_message_of_the_group_say_nothing(subscription: bytes, assignment: bytes) -> None:
    assert isinstance(said_by(subscription), bytes)
    assert isinstance(planned_in(assignment), bytes)


def test_messages_of_the_group_are_read() -> None:
    assert said_by(SUBSCRIPTION) == planned_in(ASSIGNMENT) == b"x" * 20
    assert said_by(ConsumerProtocolSubscription(0, [], None).encode()) == b""


HOST = SoleHost(RUN, "ann@desk", 1767225600000, "1767225600000-c0ffee")


@given(
    st.dictionaries(
        st.text(max_size=5), st.one_of(malformed([HOST.name, "at work"]), malformed(["x/y/z", "new"])), max_size=4
    )
)
def test_hosts_that_cannot_be_understood_do_not_decide_who_processes_alone(others: dict[str, bytes]) -> None:
    chosen = chosen_in(decided({**others, "own": said(HOST, MembershipState.AT_WORK)}))
    assert SoleHost.parse(chosen).name == chosen


@given(malformed(HOST.name))
@example(b'"run/ann/x"')
@example(b'"run/ann/9999999999999999999-0"')
@example(b"[]")
def test_no_decision_raises_anything_but_that_it_is_unreadable(plan: bytes) -> None:
    try:
        chosen = chosen_in(plan)
    except UnreadableError:
        return
    assert not chosen or SoleHost.parse(chosen).name == chosen


@given(
    st.lists(st.one_of(st.text(max_size=40), st.from_regex(r"(run|worker)/.{0,5}/[0-9]{0,20}-?.{0,3}@h")), max_size=5)
)
def test_members_with_other_names_are_no_hosts(members: list[str]) -> None:
    found = hosts_in((*members, f"{HOST.name}@/10.0.0.1"))
    assert HOST in found
    assert all(str(host) for host in found)


@given(st.text(max_size=400))
def test_any_user_can_process_alone(user: str) -> None:
    host = SoleHost.new(RUN, user)
    assert hosts_in((f"{host.name}@/10.0.0.1",)) == (host,)
    assert chosen_in(decided({"m": said(host, MembershipState.NEW)})) == host.name


@pytest.mark.parametrize("successor", ["a", "z"])
def test_a_successor_waits_for_its_predecessor_whatever_their_ids_are(successor: str) -> None:
    """It may have another topology: as long as its predecessor counts, that one's prevails."""
    changed = msgspec.structs.replace(GOOD, fingerprint="new", active="")
    running = msgspec.structs.replace(GOOD, active="0:0")
    members = subscriptions_of({"m": msgspec.json.encode(running), successor: msgspec.json.encode(changed)})
    config = AssignmentConfig()
    made = give_assignments(members, TOPICS, TASKS, config, "clicks-v1", room=ROOM)
    refused = assignment_info_of(made[successor])
    assert "another topology" in str(refused.refusal)
    assert refused.may_pass
