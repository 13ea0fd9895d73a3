"""One consumer group with Kafka's classic protocol: members join, get plans from their leader, and send heartbeats."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from confluent_kafka import KafkaError

from riverrun.simulation.committed_offsets import GroupOffsets
from riverrun.simulation.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

Protocols = tuple[tuple[str, bytes], ...]
"""Names of protocols that a member knows, each with its metadata, best first."""


class State(Enum):
    """The state of a group, by the brokers' names."""

    EMPTY = "Empty"
    JOINING = "PreparingRebalance"
    SYNCING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Pending(Generic[T]):
    """An answer that a group will give."""

    answer: T | None = None
    code: int | None = None

    @property
    def is_done(self) -> bool:
        """Return whether there is an answer, or a refusal."""
        return self.answer is not None or self.code is not None

    def result(self) -> T:
        """Return the answer, or raise the refusal."""
        if self.answer is None:
            raise RefusedError(KafkaError.REQUEST_TIMED_OUT if self.code is None else self.code)
        return self.answer


class JoinRequest(NamedTuple):
    """The request to join. `member_id` is empty the first time; `instance` makes it a static member."""

    member_id: str
    instance: str | None
    client_id: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: Protocols


class JoinAnswer(NamedTuple):
    """A completed rebalance. `members` are listed for the leader only: id, instance and metadata."""

    generation: int
    protocol: str
    leader: str
    member_id: str
    members: tuple[tuple[str, str | None, bytes], ...]


class Synced(NamedTuple):
    """A member's plan."""

    plan: bytes


class Caller(NamedTuple):
    """The identity that a member claims."""

    member_id: str
    generation: int
    instance: str | None = None


@dataclass(slots=True)
class KnownMember:
    """A member of a group, as the brokers know it."""

    id: str
    instance: str | None
    client_id: str
    session_ms: int
    rebalance_ms: int
    protocols: Protocols
    deadline_ms: int
    plan: bytes = b""
    joins: Pending[JoinAnswer] | None = None
    syncs: Pending[Synced] | None = None

    def metadata(self, protocol: str) -> bytes:
        """Return what it says for a protocol."""
        return next((said for name, said in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class ConsumerGroup:
    """A group: its members, its generation, and its committed offsets.

    Args:
        most_bytes: How long the record of its plans may be.
        changed_ms: When its state changed last.
    """

    name: str
    most_bytes: int
    initial_delay_ms: int = 0
    changed_ms: int = 0
    state: State = State.EMPTY
    generation: int = 0
    leader: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    members: dict[str, KnownMember] = field(default_factory=dict)
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    _awaited: dict[str, int] = field(default_factory=dict)
    """Ids that were given to members that have not joined with them, with the times until which they may."""
    _rebalance_until_ms: int = 0
    _delayed_until_ms: int = 0
    _sync_until_ms: int = 0

    def join(self, request: JoinRequest, new_id: str, now_ms: int) -> Pending[JoinAnswer]:
        """Take a member in; `new_id` is for one without an id. The answer comes when all members have joined."""
        self._check_protocols(request)
        if request.member_id:
            return self._join_again(request, now_ms)
        if request.instance is None:
            # A new member gets an id first, and joins with it (KIP-394).
            self._awaited[new_id] = now_ms + request.session_ms
            raise RefusedError(KafkaError.MEMBER_ID_REQUIRED, new_id)
        present = self._static(request.instance)
        if present is None:
            return self._add(request, new_id, now_ms)
        return self._replace(present, request, new_id, now_ms)

    def sync(self, caller: Caller, plans: Mapping[str, bytes], protocol: str | None, now_ms: int) -> Pending[Synced]:
        """Take the leader's plans. The answer is the caller's plan, once there is one."""
        member = self._counted(caller)
        if protocol is not None and self.protocol is not None and protocol != self.protocol:
            raise RefusedError(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is State.JOINING:
            raise RefusedError(KafkaError.REBALANCE_IN_PROGRESS)
        member.deadline_ms = now_ms + member.session_ms
        if self.state is State.STABLE:
            return Pending(Synced(member.plan))
        pending = member.syncs = Pending()
        if member.id == self.leader:
            self._plan(plans, now_ms)
        return pending

    def heartbeat(self, caller: Caller, now_ms: int) -> None:
        """Note that a member lives."""
        member = self._counted(caller)
        member.deadline_ms = now_ms + member.session_ms
        if self.state is State.JOINING:
            raise RefusedError(KafkaError.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, instance: str | None, now_ms: int) -> None:
        """Let a member go. A static one may be named by its instance alone."""
        if instance is not None:
            static = self._static(instance)
            if static is None:
                raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
            if member_id and static.id != member_id:
                raise RefusedError(KafkaError.FENCED_INSTANCE_ID)
            member_id = static.id
        if self._awaited.pop(member_id, None) is not None:
            self._complete_if_joined(now_ms)
        elif member_id in self.members:
            self._remove(self.members[member_id], now_ms)
        else:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)

    def check_commit(self, caller: Caller, *, is_transactional: bool) -> None:
        """Refuse offsets of those that the group does not count as members."""
        if caller.generation < 0 and self.state is State.EMPTY:
            return
        if caller.generation >= 0 or caller.member_id or caller.instance is not None:
            self._counted(caller)
            if self.state is State.SYNCING and not is_transactional:
                raise RefusedError(KafkaError.REBALANCE_IN_PROGRESS)
        elif not is_transactional:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)

    def tick(self, now_ms: int) -> None:
        """Let go of members whose sessions are over, and end a rebalance that takes too long."""
        for awaited in [known for known, until_ms in self._awaited.items() if until_ms <= now_ms]:
            del self._awaited[awaited]
            self._complete_if_joined(now_ms)
        for member in tuple(self.members.values()):
            # One whose request waits here lives.
            waits = (member.joins, member.syncs)
            if member.deadline_ms <= now_ms and all(each is None or each.is_done for each in waits):
                self._remove(member, now_ms)
        if self.state is State.JOINING and self._rebalance_until_ms <= now_ms:
            self._complete(now_ms)
        if self.state is State.SYNCING and self._sync_until_ms <= now_ms:
            for member in [each for each in self.members.values() if each.syncs is None]:
                self._remove(member, now_ms)
        self._complete_if_joined(now_ms)

    def _check_protocols(self, request: JoinRequest) -> None:
        if not request.protocol_type or not request.protocols:
            raise RefusedError(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
        others = [each for each in self.members.values() if each.id != request.member_id]
        if not others:
            return
        names = {name for name, _said in request.protocols}
        common = set.intersection(names, *({name for name, _said in each.protocols} for each in others))
        if request.protocol_type != self.protocol_type or not common:
            raise RefusedError(KafkaError.INCONSISTENT_GROUP_PROTOCOL)

    def _static(self, instance: str) -> KnownMember | None:
        return next((member for member in self.members.values() if member.instance == instance), None)

    def _check_instance(self, member_id: str, instance: str | None) -> None:
        if instance is None:
            return
        static = self._static(instance)
        if static is None:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        if static.id != member_id:
            raise RefusedError(KafkaError.FENCED_INSTANCE_ID)

    def _counted(self, caller: Caller) -> KnownMember:
        self._check_instance(caller.member_id, caller.instance)
        member = self.members.get(caller.member_id)
        if member is None:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        if caller.generation != self.generation:
            raise RefusedError(KafkaError.ILLEGAL_GENERATION)
        return member

    def _join_again(self, request: JoinRequest, now_ms: int) -> Pending[JoinAnswer]:
        self._check_instance(request.member_id, request.instance)
        if request.instance is None and self._awaited.pop(request.member_id, None) is not None:
            return self._add(request, request.member_id, now_ms)
        member = self.members.get(request.member_id)
        if member is None:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        is_same = member.protocols == request.protocols
        member.deadline_ms = now_ms + member.session_ms
        if self.state is State.SYNCING and is_same:
            return Pending(self._joined(member))
        if self.state is State.STABLE and is_same and member.id != self.leader:
            return Pending(self._joined(member))
        return self._update(member, request, now_ms)

    def _update(self, member: KnownMember, request: JoinRequest, now_ms: int) -> Pending[JoinAnswer]:
        member.protocols = request.protocols
        member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
        joins: Pending[JoinAnswer] = Pending()
        member.joins = joins
        self._rebalance(now_ms)
        return joins

    def _add(self, request: JoinRequest, member_id: str, now_ms: int) -> Pending[JoinAnswer]:
        if not self.members:
            self.protocol_type = request.protocol_type
        joins: Pending[JoinAnswer] = Pending()
        self.members[member_id] = KnownMember(
            id=member_id,
            instance=request.instance,
            client_id=request.client_id,
            session_ms=request.session_ms,
            rebalance_ms=request.rebalance_ms,
            protocols=request.protocols,
            deadline_ms=now_ms + request.session_ms,
            joins=joins,
        )
        self._rebalance(now_ms)
        return joins

    def _replace(self, present: KnownMember, request: JoinRequest, new_id: str, now_ms: int) -> Pending[JoinAnswer]:
        """Let a static member's new process take its place; its plan stays, unless a rebalance has begun."""
        for pending in (present.joins, present.syncs):
            if pending is not None and not pending.is_done:
                pending.code = KafkaError.FENCED_INSTANCE_ID
        earlier_leader = self.leader
        self.members = {new_id if known == present.id else known: member for known, member in self.members.items()}
        if present.id == self.leader:
            self.leader = new_id
        present.id, present.joins, present.syncs = new_id, None, None
        present.client_id, present.deadline_ms = request.client_id, now_ms + request.session_ms
        if self.state is State.STABLE:
            present.protocols = request.protocols
            if self._chosen_protocol() == self.protocol:
                joined = self._joined(present)
                # It learns of the earlier leader's id, so that it takes its plan rather than make one.
                return Pending(joined._replace(leader=earlier_leader or "", members=()))
        return self._update(present, request, now_ms)

    def _remove(self, member: KnownMember, now_ms: int) -> None:
        for pending in (member.joins, member.syncs):
            if pending is not None and not pending.is_done:
                pending.code = KafkaError.UNKNOWN_MEMBER_ID
        del self.members[member.id]
        if member.id == self.leader:
            self.leader = next(iter(self.members), None)
        if self.state in {State.STABLE, State.SYNCING}:
            self._rebalance(now_ms)
        else:
            self._complete_if_joined(now_ms)

    def _rebalance(self, now_ms: int) -> None:
        """Begin a rebalance, unless one has begun, and end it if nobody is missing."""
        if self.state is not State.JOINING:
            for member in self.members.values():
                if member.syncs is not None and not member.syncs.is_done:
                    member.syncs.code = KafkaError.REBALANCE_IN_PROGRESS
                member.syncs = None
            is_first = self.state is State.EMPTY
            self._enter(State.JOINING, now_ms)
            longest_ms = max((each.rebalance_ms for each in self.members.values()), default=0)
            self._rebalance_until_ms = now_ms + longest_ms
            self._delayed_until_ms = now_ms + min(self.initial_delay_ms if is_first else 0, longest_ms)
        self._complete_if_joined(now_ms)

    def _complete_if_joined(self, now_ms: int) -> None:
        if self.state is not State.JOINING or self._awaited or now_ms < self._delayed_until_ms:
            return
        if all(member.joins is not None for member in self.members.values()):
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """Begin a generation with the members that have joined, and with static ones."""
        for member in [each for each in self.members.values() if each.joins is None and each.instance is None]:
            del self.members[member.id]
        joined = [member for member in self.members.values() if member.joins is not None]
        if self.members and not joined:
            # Static members only, none of which is back: their sessions decide.
            self._rebalance_until_ms = now_ms + max(each.rebalance_ms for each in self.members.values())
            return
        self.generation += 1
        if not self.members:
            self.leader = self.protocol = None
            self._enter(State.EMPTY, now_ms)
            return
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        self.protocol = self._chosen_protocol()
        self._enter(State.SYNCING, now_ms)
        self._sync_until_ms = now_ms + max(each.rebalance_ms for each in self.members.values())
        for member in joined:
            joins, member.joins = member.joins, None
            member.deadline_ms = now_ms + member.session_ms
            if joins is not None:
                joins.answer = self._joined(member)

    def _joined(self, member: KnownMember) -> JoinAnswer:
        protocol = self.protocol or ""
        listed = (
            tuple((each.id, each.instance, each.metadata(protocol)) for each in self.members.values())
            if member.id == self.leader
            else ()
        )
        return JoinAnswer(self.generation, protocol, self.leader or "", member.id, listed)

    def _chosen_protocol(self) -> str:
        """Return the protocol that all know, and most prefer."""
        common = set.intersection(*({name for name, _said in each.protocols} for each in self.members.values()))
        votes = Counter(
            next(name for name, _said in each.protocols if name in common) for each in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _plan(self, plans: Mapping[str, bytes], now_ms: int) -> None:
        """Give members their plans, unless the record of them would be too long for the brokers' log."""
        said = sum(len(each.metadata(self.protocol or "")) for each in self.members.values())
        if said + sum(map(len, plans.values())) > self.most_bytes:
            waiting = [each.syncs for each in self.members.values() if each.syncs is not None]
            for member in self.members.values():
                member.plan, member.syncs = b"", None
            for pending in waiting:
                pending.code = KafkaError.UNKNOWN
            self._rebalance(now_ms)
            return
        self._enter(State.STABLE, now_ms)
        for member in self.members.values():
            member.plan = plans.get(member.id, b"")
            if member.syncs is not None:
                member.syncs.answer = Synced(member.plan)
                member.syncs = None
                member.deadline_ms = now_ms + member.session_ms

    def _enter(self, state: State, now_ms: int) -> None:
        self.state, self.changed_ms = state, now_ms
