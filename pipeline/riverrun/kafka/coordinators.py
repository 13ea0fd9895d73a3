"""Sends requests to group coordinators through kafka-python, as librdkafka's admin client may crash the process.

Import it on demand: the library takes longer to load than all of this package, and most processes do not need it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from riverrun.kafka import librdkafka
from riverrun.kafka.kafka_python import connection, planned_in, said_by

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNT_BYTES = 8
"""A member numbers its metadata: the number comes first, and makes the bytes differ."""
_BATCHED_VERSION = 4
"""First version in which one request asks for the coordinators of several groups."""
_STATES = {
    "PreparingRebalance": "preparing_rebalancing",
    "CompletingRebalance": "completing_rebalancing",
    "Stable": "stable",
    "Dead": "dead",
    "Empty": "empty",
}
"""Brokers' names of states, mapped to librdkafka's."""
_REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance"})


@dataclass(frozen=True, slots=True)
class CoordinatorRequest:
    """One attempt to send a request to the coordinator of a group.

    Args:
        kafka: Client properties with librdkafka's names; those of the connection are used.
        client_id: Id of this client.
        group: The group.
        within_s: Longest time for an answer.
        attempt: Number of the attempt: each asks another bootstrap server for the coordinator.
    """

    kafka: Mapping[str, str]
    client_id: str
    group: str
    within_s: float
    attempt: int


def describe_group(question: CoordinatorRequest) -> tuple[str, tuple[str, ...]] | None:
    """Return a group's state, and `client-id@host` of each member; None if there is no such group.

    Raises:
        KafkaException: If there is no answer, with librdkafka's code for the reason.
    """
    found = _answer(question, DescribeGroupsRequest(groups=[question.group])).groups[0]
    if not _exists(found.error_code):
        return None
    members = sorted(f"{member.client_id}@{member.client_host.lstrip('/')}" for member in found.members)
    return _STATES.get(found.group_state, "unknown"), tuple(members)


def messages_in_group(question: CoordinatorRequest) -> tuple[tuple[bytes, bytes], ...] | None:
    """Return by member the metadata with which it joined (`GroupMember.describe`), and its plan; empty if there are no members.

    Returns None during a rebalance: brokers do not tell it before all members have joined again.

    Raises:
        KafkaException: If there is no answer, with librdkafka's code for the reason.
    """
    found = _answer(question, DescribeGroupsRequest(groups=[question.group])).groups[0]
    if not _exists(found.error_code):
        return ()
    if found.group_state in _REBALANCING:
        return None
    members = ((bytes(each.member_metadata or b""), bytes(each.member_assignment or b"")) for each in found.members)
    return tuple((said_by(said)[COUNT_BYTES:], planned_in(plan) if plan else b"") for said, plan in members if said)


def delete_group(question: CoordinatorRequest) -> None:
    """Delete a group, if there is one.

    Raises:
        KafkaException: If there is no answer, with librdkafka's code for the reason.
    """
    _exists(_answer(question, DeleteGroupsRequest(groups_names=[question.group])).results[0].error_code)


def _exists(code: int) -> bool:
    if code not in {KafkaError.NO_ERROR, KafkaError.GROUP_ID_NOT_FOUND}:
        raise KafkaException(KafkaError(code))
    return bool(code == KafkaError.NO_ERROR)


def _answer(question: CoordinatorRequest, request: Any) -> Any:
    """Return the coordinator's answer. Uses this thread only, and leaves no resources behind.

    The library's own admin client may wait in its constructor until a broker has described all others. It may also wait
    without limit for the end of a TLS handshake. This function uses its parts, which can be abandoned at any time.
    """
    with closing(NetworkSelector()) as loop:
        try:
            with closing(
                KafkaConnectionManager(loop, **connection(question.kafka), client_id=question.client_id)
            ) as manager:
                answer = manager.call_soon(_coordinators_answer, manager, question, request)
                loop.poll(timeout_ms=question.within_s * 1000, future=answer)
        except Exception as error:  # the library has no error type for properties that it refuses
            raise KafkaException(_in_librdkafkas_words(error)) from error
    if not answer.is_done:
        raise KafkaException(KafkaError(librdkafka.TIMED_OUT))
    if answer.exception is not None:
        raise KafkaException(_in_librdkafkas_words(answer.exception)) from answer.exception
    return answer.value


async def _coordinators_answer(manager: Any, question: CoordinatorRequest, request: Any) -> Any:
    # The library shuffles them for each manager: attempts could ask an unresponsive broker again and again.
    servers = sorted(manager.cluster.bootstrap_brokers(), key=lambda server: (server.host, server.port))
    lookup = FindCoordinatorRequest(
        key=question.group, key_type=CoordinatorType.GROUP.value, coordinator_keys=[question.group]
    )
    found = await manager.send(lookup, node_id=servers[question.attempt % len(servers)].node_id)
    coordinator = found.coordinators[0] if found.API_VERSION >= _BATCHED_VERSION else found
    node = manager.cluster.add_coordinator(coordinator, CoordinatorType.GROUP, question.group)
    return await manager.send(request, node_id=node)


def _in_librdkafkas_words(error: BaseException) -> KafkaError:
    """Translate an error to librdkafka's: brokers' codes are equal; others mean an unreachable broker or a bad property."""
    if isinstance(error, errors.BrokerResponseError):
        return KafkaError(error.errno)
    is_refused = isinstance(error, errors.KafkaConfigurationError) or not isinstance(error, errors.KafkaError | OSError)
    code = librdkafka.INVALID_ARG if is_refused else librdkafka.TRANSPORT
    return KafkaError(code, str(error.args[0]) if error.args else type(error).__name__)
