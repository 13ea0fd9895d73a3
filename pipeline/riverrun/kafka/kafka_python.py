"""Uses kafka-python for requests that librdkafka lacks or crashes on; maps librdkafka's properties to its own."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

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
"""librdkafka's properties of connections, with their names in kafka-python."""
_LOOKUP_SECONDS = 0.1
"""Pause between two look-ups of a group's coordinator, in seconds."""
PRIVATE = (
    "_heartbeat_enabled",
    "_lock",
    "_manager",
    "_on_join_complete_async",
    "_perform_assignment",
    "_send_group_coordinator_request",
)
"""Private attributes of a coordinator in use; also `_coordinator` of a consumer, and `_net` of a manager."""


def connection(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of a connection with kafka-python's names; others are left out.

    Args:
        kafka: Client properties with librdkafka's names.
    """
    found: dict[str, Any] = {_NAMES[name]: value for name, value in kafka.items() if name in _NAMES}
    found["reconnect_backoff_max_ms"] = 1_000  # the default of 30 s exceeds session timeouts
    if "ssl_check_hostname" in found:
        found["ssl_check_hostname"] = found["ssl_check_hostname"] != "none"
    if "security_protocol" in found:
        found["security_protocol"] = found["security_protocol"].upper()
    return found


def said_by(metadata: bytes) -> bytes:
    """Return the bytes that a member of a group added to its subscription; empty if it is none, or added none."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription  # noqa: PLC0415 - the library loads for long

    try:
        return bytes(ConsumerProtocolSubscription.decode(metadata).user_data or b"")
    except Exception as error:  # noqa: BLE001 - whatever the library's parsers stumble over
        log.warning("a member's subscription cannot be read: %r", error)
        return b""


def planned_in(assignment: bytes) -> bytes:
    """Return the bytes that a leader added to an assignment; empty if it is none, or added none."""
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment  # noqa: PLC0415 - as above

    try:
        return bytes(ConsumerProtocolAssignment.decode(assignment).user_data or b"")
    except Exception as error:  # noqa: BLE001 - as above
        log.warning("an assignment of the group's leader cannot be read: %r", error)
        return b""


class GroupCoordinator:
    """Access to a consumer's group membership, which the library does not expose.

    Args:
        consumer: A `KafkaConsumer` of kafka-python.

    Raises:
        ConfigError: If the installed version of the library has another structure.
    """

    def __init__(self, consumer: Any) -> None:
        """Stop the library from recreating deleted topics, and pace its look-ups of the coordinator."""
        coordinator: Any = getattr(consumer, "_coordinator", None)
        missing = [name for name in PRIVATE if not hasattr(coordinator, name)]
        if missing:
            from importlib.metadata import version  # noqa: PLC0415 - loads far more than this module, for an error

            message = f"kafka-python {version('kafka-python')} is not supported: it has no {', '.join(missing)}"
            raise ConfigError(message, hint="pip install 'kafka-python>=3.0.12,<3.1'")
        self._coordinator = coordinator
        self._consumer = consumer
        # A deleted input must be reported, not recreated. The library ignores its own setting for this.
        self._coordinator._manager.cluster.config["allow_auto_create_topics"] = False
        self._pace_lookups()
        self._check_messages()

    @property
    def is_fenced(self) -> bool:
        """Return whether another process has joined with this `group_instance_id`, which ends this membership for good."""
        with self._coordinator._lock:
            # The library ends its heartbeats silently if it is fenced, and keeps its state.
            is_stable = "stable" in str(self._coordinator.state).lower()
            is_silent = is_stable and not self._coordinator._heartbeat_enabled
            return is_silent and not self._coordinator.rejoin_needed  # otherwise it is about to join again

    @property
    def needs_rejoin(self) -> bool:
        """Return whether it has to join or rejoin."""
        return bool(self._coordinator.need_rejoin())

    def request_rejoin(self) -> None:
        """Join again with the next poll."""
        self._coordinator.request_rejoin()

    def _pace_lookups(self) -> None:
        """Make the client pause between look-ups of the coordinator.

        While brokers still name a dead coordinator, the library would ask again at once, because the answer itself is
        no failure.
        """
        coordinator = self._coordinator
        ask, asked_at = coordinator._send_group_coordinator_request, 0.0

        async def ask_in_time() -> Any:
            nonlocal asked_at
            pause_s = asked_at + _LOOKUP_SECONDS - time.monotonic()
            if pause_s > 0:
                await coordinator._manager._net.sleep(pause_s)
            asked_at = time.monotonic()
            return await ask()

        coordinator._send_group_coordinator_request = ask_in_time

    def _check_messages(self) -> None:
        """Replace messages of other members by what is used of them, before the library reads them.

        The library would end the membership at bytes that it cannot read. It would also look up every topic that any member
        names, and read the partitions that a leader assigns.
        """
        from kafka.protocol.consumer.metadata import (  # noqa: PLC0415 - as above
            ConsumerProtocolAssignment,
            ConsumerProtocolSubscription,
        )

        coordinator = self._coordinator
        perform, complete = coordinator._perform_assignment, coordinator._on_join_complete_async

        def own_topics() -> list[str]:
            return sorted(self._consumer.subscription() or ())

        def perform_checked(leader: str, protocol: str, members: Any) -> Any:
            for member in members:
                said = said_by(bytes(member.metadata or b""))
                kept = ConsumerProtocolSubscription(version=0, topics=own_topics(), user_data=said)
                member.metadata = kept.encode()
            return perform(leader, protocol, members)

        async def complete_checked(generation: int, member_id: str, protocol: str, assignment: Any) -> None:
            kept = ConsumerProtocolAssignment(0, [], planned_in(bytes(assignment or b"")))
            await complete(generation, member_id, protocol, kept.encode())

        coordinator._perform_assignment = perform_checked
        coordinator._on_join_complete_async = complete_checked
