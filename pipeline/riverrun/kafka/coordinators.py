"""Sends requests to group coordinators through kafka-python, as librdkafka's admin client may crash the process.

Import it on demand: the library takes longer to load than all of this package, and most processes do not need it.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from riverrun.errors import StreamsError
from riverrun.kafka import librdkafka
from riverrun.kafka.kafka_python import connection, planned_in, said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# A member's metadata begins with a number, which makes the bytes differ: otherwise brokers start no rebalance.
COUNT_BYTES = 8
_BATCHED_VERSION = 4
"""First version in which one request asks for the coordinators of several groups."""
_LOOK_SECONDS = 0.1
"""Interval at which a waiting request checks whether to stop waiting."""
# Bytes. By default, the library refuses answers of 1 MB, which the members of a large group may take together.
_LONGEST_ANSWER = 100_000_000
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
        attempt: Number of the attempt: each asks another bootstrap server for the coordinator.
    """

    kafka: Mapping[str, str]
    client_id: str
    group: str
    within_s: float
    attempt: int


def describe_group(question: CoordinatorRequest) -> tuple[str, tuple[str, ...]] | None:
    """Return a group's state, and `client-id@host` of each member; None if there is no such group."""
    found = _answer(question, DescribeGroupsRequest(groups=[question.group])).groups[0]
    if not _exists(found.error_code):
        return None
    members = sorted(f"{member.client_id}@{member.client_host.lstrip('/')}" for member in found.members)
    return _STATES.get(found.group_state, "unknown"), tuple(members)


def messages_in_group(question: CoordinatorRequest) -> tuple[tuple[bytes, bytes], ...] | None:
    """Return by member the metadata with which it joined (`GroupMember.describe`), and its plan; empty if there are no members.

    Returns None during a rebalance: brokers do not report it before all members have joined again.
    """
    found = _answer(question, DescribeGroupsRequest(groups=[question.group])).groups[0]
    if not _exists(found.error_code):
        return ()
    if found.group_state in _REBALANCING:
        return None
    members = ((bytes(each.member_metadata or b""), bytes(each.member_assignment or b"")) for each in found.members)
    return tuple((said_by(said)[COUNT_BYTES:], planned_in(plan) if plan else b"") for said, plan in members if said)


def delete_group(question: CoordinatorRequest) -> None:
    """Delete a group, if there is one."""
    _exists(_answer(question, DeleteGroupsRequest(groups_names=[question.group])).results[0].error_code)


def _exists(code: int) -> bool:
    if code not in {KafkaError.NO_ERROR, KafkaError.GROUP_ID_NOT_FOUND}:
        raise KafkaException(KafkaError(code))
    return bool(code == KafkaError.NO_ERROR)


def _answer(question: CoordinatorRequest, request: Any) -> Any:
    """Return the coordinator's answer. Uses this thread only, and leaves no resources behind."""
    connection = CoordinatorConnection(question.kafka, question.client_id, question.group, question.attempt)
    with closing(connection):
        return connection.ask(request, question.within_s)


class CoordinatorConnection:
    """Sends requests to the coordinator of a group, one at a time, in the threads of the callers.

    It opens with the first request, which looks the coordinator up. Whatever fails closes it, so the next request begins with
    nothing that an earlier one has left. Failures are `KafkaException`s with librdkafka's codes.

    Args:
        kafka: Client properties with librdkafka's names; those of the connection are used.
        attempt: Number of the first attempt: each asks another bootstrap server for the coordinator.
    """

    def __init__(self, kafka: Mapping[str, str], client_id: str, group: str, attempt: int = 0) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._group = group
        self._attempts = itertools.count(attempt)
        self._open = ExitStack()
        self._loop: Any = None
        self._manager: Any = None
        self._node: Any = None

    def find(self, within_s: float, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Look up the coordinator, unless it is known."""
        if self._node is None:
            self._node = self._done(self._found, within_s, gives_up)

    def ask(self, request: Any, within_s: float, gives_up: Callable[[], bool] = lambda: False) -> Any:
        """Return the coordinator's answer to a request."""
        deadline = time.monotonic() + within_s
        self.find(within_s, gives_up)

        async def asked() -> Any:
            return await self._manager.send(request, node_id=self._node, request_timeout_ms=int(within_s * 1000) + 1000)

        return self._done(asked, deadline - time.monotonic(), gives_up)

    def close(self) -> None:
        """Close it; the next request opens it again."""
        self._node = None
        self._open.close()
        self._manager = self._loop = None

    def _done(self, ask: Callable[[], Any], within_s: float, gives_up: Callable[[], bool]) -> Any:
        deadline = time.monotonic() + within_s
        try:
            if self._manager is None:
                self._start()
            answer = self._manager.call_soon(ask)
            while not answer.is_done and (left_s := deadline - time.monotonic()) > 0 and not gives_up():
                self._loop.poll(timeout_ms=min(left_s, _LOOK_SECONDS) * 1000, future=answer)
        # Any error: the library has no type for properties that it refuses.
        except Exception as error:
            self.close()
            if isinstance(error, StreamsError):
                raise
            raise KafkaException(_in_librdkafkas_words(error)) from error
        if not answer.is_done:
            self.close()
            raise KafkaException(KafkaError(librdkafka.TIMED_OUT))
        if answer.exception is not None:
            self.close()
            raise KafkaException(_in_librdkafkas_words(answer.exception)) from answer.exception
        return answer.value

    def _start(self) -> None:
        self._loop = self._open.enter_context(closing(NetworkSelector()))
        properties = {**connection(self._kafka), "receive_message_max_bytes": _LONGEST_ANSWER}
        # Parts of the library's admin client, which can be abandoned at any time. The client itself may wait without
        # limit: in its constructor for a description of all brokers, and for the end of a TLS handshake.
        self._manager = self._open.enter_context(
            closing(KafkaConnectionManager(self._loop, **properties, client_id=self._client_id))
        )

    async def _found(self) -> Any:
        # Sorted, as the library shuffles them for each manager: attempts could ask an unresponsive broker again and again.
        known = self._manager.cluster.bootstrap_brokers()
        servers = sorted(known, key=lambda server: (server.host, server.port))
        lookup = FindCoordinatorRequest(
            key=self._group, key_type=CoordinatorType.GROUP.value, coordinator_keys=[self._group]
        )
        found = await self._manager.send(lookup, node_id=servers[next(self._attempts) % len(servers)].node_id)
        coordinator = found.coordinators[0] if found.API_VERSION >= _BATCHED_VERSION else found
        return self._manager.cluster.add_coordinator(coordinator, CoordinatorType.GROUP, self._group)


def _in_librdkafkas_words(error: BaseException) -> KafkaError:
    """Translate an error to librdkafka's: brokers' codes are equal; others mean an unreachable broker or a bad property."""
    if isinstance(error, errors.BrokerResponseError):
        return KafkaError(error.errno)
    is_refused = isinstance(error, errors.KafkaConfigurationError) or not isinstance(error, errors.KafkaError | OSError)
    code = librdkafka.INVALID_ARG if is_refused else librdkafka.TRANSPORT
    return KafkaError(code, str(error.args[0]) if error.args else type(error).__name__)
