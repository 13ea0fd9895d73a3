"""Members of a group whose coordinator is slow, moves, forgets them or loses messages: in the end all of them are in it."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from riverrun.errors import BrokerError
from riverrun.kafka import librdkafka, membership
from riverrun.kafka.membership import GroupMember, MemberConfig
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SESSION_MS = 400
HEARTBEAT_MS = 10


class Fault(Enum):
    """Names what happens to a request."""

    LOST_REQUEST = "the coordinator never has it"
    LOST_ANSWER = "the coordinator has it, and its answer is lost"
    MOVED = "the coordinator is another one"
    LOADING = "the coordinator reads its log"
    UNKNOWN = "the coordinator has forgotten the member"
    STALE = "the generation is over"
    REBALANCE = "a rebalance has begun"
    SLOW = "the answer takes long"


FAULTS = st.lists(st.none() | st.sampled_from(Fault), max_size=12)
_CODES = {
    Fault.MOVED: KafkaError.NOT_COORDINATOR,
    Fault.LOADING: KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    Fault.STALE: KafkaError.ILLEGAL_GENERATION,
}


@dataclass
class Place:
    """A member as the coordinator sees it."""

    said: bytes = b""
    generation: int = 0
    """That of the last `JoinGroup` that counts; 0 while it has not joined this rebalance."""
    plan: bytes | None = None


@dataclass
class Group:
    """The coordinator of one group, as brokers do it: a member that joins with other metadata starts a rebalance."""

    faults: list[Fault | None] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    """Members to be that have an id, but have not joined with it."""
    places: dict[str, Place] = field(default_factory=dict)
    generation: int = 1
    is_open: bool = True
    """True while members join: the rebalance has not been completed."""
    leader: str = ""
    rebalances: int = 0
    asked: int = 0
    owed: set[str] = field(default_factory=set)
    """Connections with a request that is not answered."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def rebalance(self) -> None:
        self.is_open = True
        self.rebalances += 1
        for place in self.places.values():
            place.generation, place.plan = 0, None

    def answer(self, request: Any, is_over: Callable[[], bool]) -> Any:
        match request:
            case JoinGroupRequest():
                return self.join(request, is_over)
            case SyncGroupRequest():
                return self.sync(request, is_over)
            case HeartbeatRequest():
                return SimpleNamespace(error_code=self.code(request))
            case LeaveGroupRequest():
                self.leave(request.members[0].member_id)
                return SimpleNamespace(error_code=0)
        raise AssertionError(request)

    def code(self, request: Any) -> int:
        place = self.places.get(request.member_id)
        if place is None:
            return int(KafkaError.UNKNOWN_MEMBER_ID)
        if self.is_open:
            return int(KafkaError.REBALANCE_IN_PROGRESS)
        return 0 if request.generation_id == self.generation == place.generation else int(KafkaError.ILLEGAL_GENERATION)

    def leave(self, member: str) -> None:
        if self.places.pop(member, None) is not None:
            self.rebalance()
        self.changed.notify_all()

    def join(self, request: Any, is_over: Callable[[], bool]) -> Any:
        member, said = request.member_id, bytes(request.protocols[0].metadata)
        if not member:
            self.named.add(f"member-{self.asked}")
            return SimpleNamespace(error_code=KafkaError.MEMBER_ID_REQUIRED, member_id=f"member-{self.asked}")
        place = self.places.get(member)
        if place is None and member not in self.named:
            return SimpleNamespace(error_code=KafkaError.UNKNOWN_MEMBER_ID)
        self.named.discard(member)
        if (
            place is None
            or place.said != said
            or (member == self.leader and not self.is_open and place.plan is not None)
        ):
            place = self.places.setdefault(member, Place())
            place.said = said
            if not self.is_open:
                self.rebalance()
        if self.is_open:
            place.generation = -1  # it has joined this rebalance
        if self.is_open and all(each.generation for each in self.places.values()):
            self.is_open, self.generation, self.leader = False, self.generation + 1, min(self.places)
            for each in self.places.values():
                each.generation = self.generation
        self.changed.notify_all()
        self.changed.wait_for(lambda: not self.is_open or is_over(), 0.2)
        if self.is_open:
            return None
        members = [SimpleNamespace(member_id=each, metadata=found.said) for each, found in self.places.items()]
        is_leader = self.leader == member
        return SimpleNamespace(
            error_code=0,
            generation_id=self.generation,
            member_id=member,
            leader=self.leader,
            members=members if is_leader else [],
        )

    def sync(self, request: Any, is_over: Callable[[], bool]) -> Any:
        if code := self.code(request):
            return SimpleNamespace(error_code=code)
        for each in request.assignments:
            self.places[each.member_id].plan = bytes(each.assignment)
        self.changed.notify_all()
        generation, place = self.generation, self.places[request.member_id]
        self.changed.wait_for(lambda: place.plan is not None or self.generation != generation or is_over(), 0.2)
        if self.generation != generation or self.is_open:
            return SimpleNamespace(error_code=KafkaError.REBALANCE_IN_PROGRESS)
        return None if place.plan is None else SimpleNamespace(error_code=0, assignment=place.plan)


@dataclass
class Wire:
    """The connection of one member to the coordinator."""

    group: Group
    name: str

    def find(self, _within_s: float, _gives_up: Callable[[], bool]) -> None:
        """Know the coordinator."""

    def close(self) -> None:
        """Have nothing to close."""

    def ask(self, request: Any, within_s: float, gives_up: Callable[[], bool]) -> Any:
        deadline = time.monotonic() + within_s
        with self.group.changed:
            assert self.name not in self.group.owed, "another request is under way"
            self.group.owed.add(self.name)
            self.group.asked += 1
            try:
                return self._ask(request, lambda: gives_up() or time.monotonic() > deadline)
            finally:
                self.group.owed.discard(self.name)

    def _ask(self, request: Any, is_over: Callable[[], bool]) -> Any:
        group = self.group
        fault = group.faults.pop(0) if group.faults and not isinstance(request, LeaveGroupRequest) else None
        if fault in _CODES and not (fault is Fault.STALE and isinstance(request, JoinGroupRequest)):
            return SimpleNamespace(error_code=_CODES[fault])
        if fault is Fault.UNKNOWN:
            group.leave(request.member_id)
        if fault is Fault.REBALANCE:
            group.rebalance()
        if fault is Fault.LOST_REQUEST:
            raise KafkaException(KafkaError(librdkafka.TRANSPORT))
        if fault is Fault.SLOW:
            group.changed.wait(0.05)
        answer = group.answer(request, is_over)
        if fault is Fault.LOST_ANSWER or answer is None:
            raise KafkaException(KafkaError(librdkafka.TIMED_OUT))
        return answer


def has_no_error(member: GroupMember) -> bool:
    try:
        member.poll(0)
    except BrokerError as error:
        if not error.retriable:
            raise
        return False
    return True


@dataclass
class Party:
    """Members of a group with one coordinator."""

    group: Group
    plan_s: float = 0.0
    heartbeat_ms: int = HEARTBEAT_MS
    plans: dict[str, bytes] = field(default_factory=dict)
    members: list[GroupMember] = field(default_factory=list)
    planning: set[str] = field(default_factory=set)
    """Members that make a plan. A leader that the coordinator has forgotten still makes its own while the next one does."""
    has_planned: bool = False

    def assign(self, leader: str, said: Mapping[str, bytes]) -> dict[str, bytes]:
        assert leader not in self.planning, "it makes two plans at once"
        self.planning.add(leader)
        self.has_planned = True
        time.sleep(self.plan_s)
        self.planning.remove(leader)
        return {member: b"%s of %d" % (each, len(said)) for member, each in said.items()}

    def join(self, name: str) -> GroupMember:
        def hear(plan: bytes) -> None:
            self.plans[name] = plan

        kafka: Any = SimpleNamespace(properties={}, coordinator=lambda client_id, _group: Wire(self.group, client_id))
        member = GroupMember(
            kafka,
            "group",
            client_id=name,
            describe=name.encode,
            assign=partial(self.assign, name),
            on_plan=hear,
            config=MemberConfig(SESSION_MS, self.heartbeat_ms),
        )
        # It starts here. Brokers that refuse it at once do so again.
        has_no_error(member)
        self.members.append(member)
        return member

    @property
    def is_settled(self) -> bool:
        """Return whether all members, and no others, are in the group with the plans for so many."""
        wanted = {name: b"%s of %d" % (name.encode(), len(self.members)) for name in self.plans}
        with self.group.changed:
            places = self.group.places.values()
            are_in = len(places) == len(self.members) == len(self.plans) and not self.group.is_open
            return are_in and not self.group.faults and all(place.plan for place in places) and self.plans == wanted

    def stays_settled(self) -> bool:
        """Return whether nothing but heartbeats is sent any more."""
        with self.group.changed:
            rebalances, asked = self.group.rebalances, self.group.asked
        until(lambda: self.group.asked > asked + 3 * len(self.members), "sent heartbeats", turn=self.look)
        return self.group.rebalances == rebalances and self.is_settled

    def look(self) -> None:
        """Wait until the coordinator has something to do, or for a moment."""
        with self.group.changed:
            self.group.changed.wait(0.01)

    def drop_the_dead(self) -> None:
        """Forget the places that members have left behind, as brokers do after a session."""
        with self.group.changed:
            living = {member._member_id for member in self.members}
            for gone in self.group.places.keys() - living:
                self.group.leave(gone)


@contextmanager
def party(
    faults: list[Fault | None], plan_s: float = 0.0, members: int = 2, heartbeat_ms: int = HEARTBEAT_MS
) -> Iterator[Party]:
    found = Party(Group(faults), plan_s, heartbeat_ms)
    try:
        for number in range(members):
            found.join(f"m{number}")
        yield found
    finally:
        for member in found.members:
            member.close()


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(membership, "_SHORTEST_PAUSE", 0.002)
        patched.setattr(membership, "_LONGEST_PAUSE", 0.01)
        yield


def settle(some: Party) -> None:
    """Wait until all members are in the group."""

    def is_settled() -> bool:
        some.drop_the_dead()
        return some.is_settled

    until(is_settled, "settled", turn=some.look)


def settle_for_good(some: Party) -> None:
    """Wait until all members are counted, and nothing but heartbeats is sent any more."""

    def is_settled() -> bool:
        settle(some)
        # On a busy machine, a heartbeat may come later than a session of so few milliseconds allows.
        return some.stays_settled() and all(member.uncounted_s < SESSION_MS / 1000 for member in some.members)

    until(is_settled, "stayed in the group", turn=some.look)


@settings(max_examples=40, deadline=None)
@given(faults=FAULTS, members=st.integers(1, 3))
def test_whatever_gets_lost_all_members_are_in_the_group_in_the_end(faults: list[Fault | None], members: int) -> None:
    with party(faults, members=members) as some:
        settle_for_good(some)
        for member in some.members:
            member.poll(0)  # none has failed
    assert not some.group.places, "all have left"


@settings(max_examples=8, deadline=None)
@given(faults=FAULTS, plan_s=st.sampled_from([0.01, 0.1, 1.5 * SESSION_MS / 1000]))
def test_a_leader_that_plans_for_long_stays_a_member(faults: list[Fault | None], plan_s: float) -> None:
    with party(faults, plan_s) as some:
        settle_for_good(some)


def test_heartbeats_are_sent_within_a_session_whatever_their_interval_is() -> None:
    with party([], heartbeat_ms=1_000 * SESSION_MS) as some:
        settle_for_good(some)


@settings(max_examples=10, deadline=None)
@given(faults=FAULTS)
def test_a_request_to_rejoin_during_a_join_is_not_forgotten(faults: list[Fault | None]) -> None:
    with party(faults, plan_s=0.05) as some:
        said = [b"m0"]
        some.members[0]._describe = lambda: said[0]
        until(lambda: some.has_planned, "planned", turn=some.look)
        said[0] = b"changed"
        some.members[0].rejoin()

        def turn() -> None:
            some.drop_the_dead()
            some.look()

        until(lambda: some.plans.get("m0") == b"changed of 2", "said so", turn=turn)


def test_a_member_that_waits_for_an_answer_leaves_at_once() -> None:
    with party([], members=1) as some:
        settle(some)
        with some.group.changed:
            some.group.places["never joins"] = Place()
            some.group.rebalance()
            some.group.changed.notify_all()
        until(lambda: "m0" in some.group.owed, "waits for the other")
        began = time.monotonic()
        some.members[0].close()
        assert time.monotonic() - began < 10
        assert set(some.group.places) == {"never joins"}


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    ],
)
def test_what_no_attempt_can_mend_ends_the_membership(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = SimpleNamespace(error_code=code)
    monkeypatch.setattr(Group, "answer", lambda *_: refused)
    with pytest.raises(BrokerError) as found, party([], members=1) as some:
        some.members[0].poll(20)
    assert not found.value.retriable


def test_a_place_taken_by_another_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with party([], members=1) as some:
        settle(some)
        fenced = SimpleNamespace(error_code=KafkaError.FENCED_INSTANCE_ID)
        monkeypatch.setattr(Group, "answer", lambda *_: fenced)
        until(lambda: some.members[0].is_fenced, "heard of it")


def test_messages_too_large_for_brokers_are_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    too_large, answer = SimpleNamespace(error_code=KafkaError.UNKNOWN), Group.answer

    def refuses(group: Group, request: Any, is_over: Callable[[], bool]) -> Any:
        return too_large if isinstance(request, SyncGroupRequest) else answer(group, request, is_over)

    monkeypatch.setattr(Group, "answer", refuses)
    with party([], members=1) as some:
        with pytest.raises(BrokerError, match=r"message\.max\.bytes") as found:
            some.members[0].poll(20)
        assert found.value.retriable
        assert some.members[0].is_refused
        monkeypatch.setattr(Group, "answer", answer)
        # It may have been refused again before that.
        until(lambda: not some.members[0].is_refused and has_no_error(some.members[0]), "is a member")
        settle(some)
