"""Uses kafka-python for requests that librdkafka lacks or crashes on; maps librdkafka's properties to its own.

Import it on demand: the library takes longer to load than all of this package, and most processes do not need it.
"""

from __future__ import annotations

import itertools
import logging
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from kafka import KafkaAdminClient, errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolType,
)
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from riverrun.errors import StreamsError
from riverrun.kafka import librdkafka
from riverrun.kafka.tokens import tokens_of
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Other modules import the library from here. If two threads loaded parts of it at the same time, in different orders, each
# would wait for the other, and Python would end one of them with an error.
__all__ = [
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "ConsumerProtocolType",
    "CoordinatorConnection",
    "DeleteGroupsRequest",
    "DescribeGroupsRequest",
    "HeartbeatRequest",
    "JoinGroupRequest",
    "LeaveGroupRequest",
    "SyncGroupRequest",
    "connection",
    "log_sizes",
    "planned_in",
    "said_by",
]

log = logging.getLogger(__name__)

_BATCHED_VERSION = 4
"""First version in which one request asks for the coordinators of several groups."""
_LOOK_SECONDS = 0.1
"""Interval at which a waiting request checks whether to stop waiting."""
# Bytes. By default, the library refuses answers of 1 MB, which the members of a large group may take together.
_LONGEST_ANSWER = 100_000_000

_NAMES = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
}


def connection(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of a connection with kafka-python's names; others are left out."""
    found: dict[str, Any] = {_NAMES[name]: value for name, value in kafka.items() if name in _NAMES}
    if "ssl_check_hostname" in found:
        found["ssl_check_hostname"] = found["ssl_check_hostname"] != "none"
    if "security_protocol" in found:
        found["security_protocol"] = found["security_protocol"].upper()
    tokens = tokens_of(kafka)
    if tokens is not None:
        # Its errors are clearer here, as in `client_properties`.
        tokens.current()
        found |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": tokens.for_kafka_python()}
    return found


def said_by(metadata: bytes) -> bytes:
    """Return the bytes that a member of a group added to its subscription; empty if it is none, or added none."""
    try:
        return bytes(ConsumerProtocolSubscription.decode(metadata).user_data or b"")
    except Exception as error:  # noqa: BLE001 - whatever the library's parsers stumble over
        log.warning("a member's subscription cannot be read: %r", error)
        return b""


def planned_in(assignment: bytes) -> bytes:
    """Return the bytes that a leader added to an assignment; empty if it is none, or added none."""
    try:
        return bytes(ConsumerProtocolAssignment.decode(assignment).user_data or b"")
    except Exception as error:  # noqa: BLE001 - as above
        log.warning("an assignment of the group's leader cannot be read: %r", error)
        return b""


class CoordinatorConnection:
    """Sends requests to the coordinator of a group, one at a time, in the threads of the callers.

    It opens with the first request, which looks the coordinator up. Whatever fails closes it, so the next request begins with
    nothing that an earlier one has left. Failures are `KafkaException`s with librdkafka's codes.

    Args:
        kafka: Client properties with librdkafka's names; those of the connection are used.
        attempt: Number of the first attempt: each asks another bootstrap server for the coordinator.
    """

    def __init__(self, kafka: Mapping[str, str], client_id: str, group: str, attempt: int) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._group = group
        self._attempts = itertools.count(attempt)
        self._open = ExitStack()
        self._loop: Any = None
        self._manager: Any = None
        self._node: Any = None

    def find(self, within_s: float, gives_up: Callable[[], bool]) -> None:
        """Look up the coordinator, unless it is known."""
        if self._node is None:
            self._node = self._done(self._found, within_s, gives_up)

    def ask(self, request: Any, within_s: float, gives_up: Callable[[], bool]) -> Any:
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


def log_sizes(
    kafka: Mapping[str, str], client_id: str, topics: Iterable[str], within_s: float
) -> dict[TopicPartition, int]:
    """Return the size of partitions on brokers' disks in bytes; see `Admin.log_sizes`."""
    names = sorted(set(topics))
    if not names:
        return {}
    try:
        client = KafkaAdminClient(**connection(kafka), client_id=client_id, request_timeout_ms=int(within_s * 1_000))
    except errors.KafkaError as error:
        log.info("brokers do not report the size of topics: %s", error)
        return {}
    try:
        return _largest(client.describe_log_dirs(names))
    except errors.KafkaError as error:
        log.info("brokers do not report the size of topics: %s", error)
        return {}
    finally:
        client.close()


def _largest(answers: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    directories = (directory for answer in answers for directory in answer["log_dirs"])
    for directory in directories:
        for topic in directory["topics"]:
            for each in topic["partitions"]:
                tp = TopicPartition(topic["name"], each["partition_index"])
                found[tp] = max(found.get(tp, 0), each["partition_size"])
    return found
