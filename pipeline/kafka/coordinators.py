"""Asks the broker that coordinates a group, by kafka-python: librdkafka's admin client may crash the process over it.

To be imported when it is needed: the library takes longer to load than all else here, and most processes ask nothing of this.
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
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from pipeline.kafka import librdkafka
from pipeline.kafka.kafka_python import connection

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNT_BYTES = 8
"""A member counts what it says: the number comes before it, and makes the bytes differ."""
_BATCHED_VERSION = 4
"""Since then one request may ask who coordinates several groups."""
_STATES = {
    "PreparingRebalance": "preparing_rebalancing",
    "CompletingRebalance": "completing_rebalancing",
    "Stable": "stable",
    "Dead": "dead",
    "Empty": "empty",
}
"""Brokers' names of states, and librdkafka's."""


@dataclass(frozen=True, slots=True)
class Question:
    """One attempt to ask the coordinator of a group.

    Args:
        kafka: Client properties, as librdkafka names them; those of the connection are used.
        client_id: Who asks.
        group: The group.
        within_s: How long an answer may take.
        attempt: Counts the attempts: each asks another one of the bootstrap servers who the coordinator is.
    """

    kafka: Mapping[str, str]
    client_id: str
    group: str
    within_s: float
    attempt: int


def describe_group(question: Question) -> tuple[str, tuple[str, ...]] | None:
    """A group's state, and `client-id@host` of each member; None if there is no such group.

    Raises:
        KafkaException: If there is no answer, with librdkafka's code for the reason.
    """
    found = _answer(question, DescribeGroupsRequest(groups=[question.group])).groups[0]
    if not _exists(found.error_code):
        return None
    members = sorted(f"{member.client_id}@{member.client_host.lstrip('/')}" for member in found.members)
    return _STATES.get(found.group_state, "unknown"), tuple(members)


def said_in_group(question: Question) -> tuple[bytes, ...]:
    """Return what each member of a group has said of itself when it joined (`GroupMember.describe`); nothing if there is none.

    Raises:
        KafkaException: If there is no answer, with librdkafka's code for the reason.
    """
    found = _answer(question, DescribeGroupsRequest(groups=[question.group])).groups[0]
    if not _exists(found.error_code):
        return ()
    metadata = (bytes(member.member_metadata or b"") for member in found.members)
    said = (bytes(ConsumerProtocolSubscription.decode(each).user_data or b"") for each in metadata if each)
    return tuple(each[COUNT_BYTES:] for each in said)


def delete_group(question: Question) -> None:
    """Delete a group, if there is one.

    Raises:
        KafkaException: If there is no answer, with librdkafka's code for the reason.
    """
    _exists(_answer(question, DeleteGroupsRequest(groups_names=[question.group])).results[0].error_code)


def _exists(code: int) -> bool:
    if code not in {KafkaError.NO_ERROR, KafkaError.GROUP_ID_NOT_FOUND}:
        raise KafkaException(KafkaError(code))
    return bool(code == KafkaError.NO_ERROR)


def _answer(question: Question, request: Any) -> Any:
    """Return the coordinator's answer. All of it happens in this thread, and nothing is left of it afterwards.

    The library's own admin client waits in its constructor, in silence, until a broker has told of all others, and for the
    end of a TLS handshake without limit: its parts are used, which can be given up at any time.
    """
    with closing(NetworkSelector()) as loop:
        try:
            with closing(
                KafkaConnectionManager(loop, **connection(question.kafka), client_id=question.client_id)
            ) as manager:
                answer = manager.call_soon(_coordinators_answer, manager, question, request)
                loop.poll(timeout_ms=question.within_s * 1000, future=answer)
        except Exception as error:  # the library has no kind of its own for properties that it does not take
            raise KafkaException(_in_librdkafkas_words(error)) from error
    if not answer.is_done:
        raise KafkaException(KafkaError(librdkafka.TIMED_OUT))
    if answer.exception is not None:
        raise KafkaException(_in_librdkafkas_words(answer.exception)) from answer.exception
    return answer.value


async def _coordinators_answer(manager: Any, question: Question, request: Any) -> Any:
    # The library shuffles them anew for each manager: attempts would ask a broker that sleeps again and again.
    servers = sorted(manager.cluster.bootstrap_brokers(), key=lambda server: (server.host, server.port))
    lookup = FindCoordinatorRequest(
        key=question.group, key_type=CoordinatorType.GROUP.value, coordinator_keys=[question.group]
    )
    found = await manager.send(lookup, node_id=servers[question.attempt % len(servers)].node_id)
    coordinator = found.coordinators[0] if found.API_VERSION >= _BATCHED_VERSION else found
    node = manager.cluster.add_coordinator(coordinator, CoordinatorType.GROUP, question.group)
    return await manager.send(request, node_id=node)


def _in_librdkafkas_words(error: BaseException) -> KafkaError:
    """Brokers' codes are the same ones; what else goes wrong on the way is a broker that cannot be reached, or a property."""
    if isinstance(error, errors.BrokerResponseError):
        return KafkaError(error.errno)
    is_refused = isinstance(error, errors.KafkaConfigurationError) or not isinstance(error, errors.KafkaError | OSError)
    code = librdkafka.INVALID_ARG if is_refused else librdkafka.TRANSPORT
    return KafkaError(code, str(error.args[0]) if error.args else type(error).__name__)
