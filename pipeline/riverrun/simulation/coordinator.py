"""A connection to group coordinators of the cluster in memory: it answers the requests of kafka-python."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from riverrun.kafka import librdkafka
from riverrun.simulation.groups import Caller, JoinRequest, State
from riverrun.simulation.refusals import LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.simulation.brokers import Brokers
    from riverrun.simulation.groups import ConsumerGroup, Pending

T = TypeVar("T")


class MemoryConnection:
    """Sends requests to a group's coordinator; see `riverrun.kafka.clients.Connection`."""

    def __init__(self, brokers: Brokers, client_id: str, group: str) -> None:
        self._brokers = brokers
        self._client_id = client_id
        self._group = group
        self._is_found = False

    def find(self, within_s: float, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Look up the coordinator, unless it is known."""
        if not self._is_found:
            try:
                self._once("FindCoordinator", lambda: None, within_s, gives_up)
            except RefusedError as error:
                raise KafkaException(KafkaError(error.code)) from error
            self._is_found = True

    def ask(self, request: Any, within_s: float, gives_up: Callable[[], bool] = lambda: False) -> Any:
        """Return the answer to a request; a refusal is its error code."""
        self.find(within_s, gives_up)
        waiting = self._brokers.waiting
        deadline = waiting.now_s() + within_s
        name, act = self._act(request)
        try:
            answer = self._once(name, act, within_s, gives_up)
            if not isinstance(answer, _Later):
                return answer
            # Only this wait is long: the coordinator answers when other members have asked, too.
            with waiting:
                waiting.wait_until(lambda: answer.pending.is_done or gives_up(), deadline - waiting.now_s())
            if not answer.pending.is_done:
                self.close()
                raise KafkaException(KafkaError(librdkafka.TIMED_OUT))
            return answer.made(answer.pending.result())
        except RefusedError as error:
            member_id = error.text if error.code == KafkaError.MEMBER_ID_REQUIRED else ""
            return SimpleNamespace(error_code=int(error.code), member_id=member_id, leader="", members=[])

    def close(self) -> None:
        """Forget the coordinator."""
        self._is_found = False

    def _once(self, name: str, act: Callable[[], T], within_s: float, gives_up: Callable[[], bool]) -> T:
        try:
            return self._brokers.ask(self._client_id, name, act)
        except LostError:
            # The caller learns of it when its time is over.
            with self._brokers.waiting as waiting:
                waiting.wait_until(gives_up, within_s)
            self.close()
            raise KafkaException(KafkaError(librdkafka.TIMED_OUT)) from None

    def _act(self, request: Any) -> tuple[str, Callable[[], Any]]:
        match request:
            case JoinGroupRequest():
                return "JoinGroup", lambda: _Later(self._brokers.join(request.group_id, self._join(request)), _joined)
            case SyncGroupRequest():
                return "SyncGroup", partial(self._sync, request)
            case HeartbeatRequest():
                return "Heartbeat", partial(self._heartbeat, request)
            case LeaveGroupRequest():
                return "LeaveGroup", partial(self._leave, request)
            case DescribeGroupsRequest():
                return "DescribeGroups", partial(self._describe, request)
            case DeleteGroupsRequest():
                return "DeleteGroups", partial(self._delete, request)
        message = f"The cluster in memory does not know {type(request).__name__}"
        raise NotImplementedError(message)

    def _join(self, request: Any) -> JoinRequest:
        protocols = tuple((each.name, bytes(each.metadata)) for each in request.protocols)
        return JoinRequest(
            member_id=request.member_id,
            instance=request.group_instance_id,
            client_id=self._client_id,
            session_ms=request.session_timeout_ms,
            rebalance_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=protocols,
        )

    def _sync(self, request: Any) -> _Later:
        plans = {each.member_id: bytes(each.assignment) for each in request.assignments}
        pending = self._brokers.sync(request.group_id, _caller(request), plans, request.protocol_name)
        return _Later(pending, lambda synced: SimpleNamespace(error_code=0, assignment=synced.plan))

    def _heartbeat(self, request: Any) -> SimpleNamespace:
        self._brokers.heartbeat(request.group_id, _caller(request))
        return SimpleNamespace(error_code=0)

    def _leave(self, request: Any) -> SimpleNamespace:
        def code(member: Any) -> int:
            try:
                self._brokers.leave(request.group_id, member.member_id, member.group_instance_id)
            except RefusedError as error:
                return int(error.code)
            return 0

        members = request.members or [SimpleNamespace(member_id=request.member_id, group_instance_id=None)]
        return SimpleNamespace(error_code=0, members=[SimpleNamespace(error_code=code(each)) for each in members])

    def _describe(self, request: Any) -> SimpleNamespace:
        return SimpleNamespace(groups=[self._described(name) for name in request.groups])

    def _described(self, name: str) -> SimpleNamespace:
        try:
            group = self._brokers.describe_group(name)
        except RefusedError as error:
            return SimpleNamespace(error_code=int(error.code), group_id=name, group_state="Dead", members=[])
        return SimpleNamespace(error_code=0, group_id=name, group_state=group.state.value, members=_members(group))

    def _delete(self, request: Any) -> SimpleNamespace:
        def code(name: str) -> int:
            try:
                self._brokers.delete_group(name)
            except RefusedError as error:
                return int(error.code)
            return 0

        return SimpleNamespace(
            results=[SimpleNamespace(group_id=name, error_code=code(name)) for name in request.groups_names]
        )


class _Later:
    """An answer that the coordinator will give, and how it is made from what the group says."""

    def __init__(self, pending: Pending[Any], made: Callable[[Any], SimpleNamespace]) -> None:
        self.pending = pending
        self.made = made


def _joined(joined: Any) -> SimpleNamespace:
    members = [
        SimpleNamespace(member_id=member, group_instance_id=instance, metadata=said)
        for member, instance, said in joined.members
    ]
    return SimpleNamespace(
        error_code=0,
        generation_id=joined.generation,
        protocol_name=joined.protocol,
        leader=joined.leader,
        member_id=joined.member_id,
        members=members,
    )


def _caller(request: Any) -> Caller:
    return Caller(request.member_id, request.generation_id, request.group_instance_id)


def _members(group: ConsumerGroup) -> list[SimpleNamespace]:
    # Brokers say nothing about the messages of a group during a rebalance.
    is_stable = group.state is State.STABLE
    return [
        SimpleNamespace(
            member_id=member.id,
            group_instance_id=member.instance,
            client_id=member.client_id,
            client_host="/127.0.0.1",
            member_metadata=member.metadata(group.protocol or "") if is_stable else b"",
            member_assignment=member.plan if is_stable else b"",
        )
        for member in group.members.values()
    ]
