"""Uses kafka-python for requests that librdkafka lacks or crashes on; maps librdkafka's properties to its own."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError
from riverrun.kafka.tokens import tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    "_send_heartbeat_request",
)
"""Private attributes of a coordinator in use; also `_coordinator` of a consumer, and `_net` of a manager."""


def connection(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of a connection with kafka-python's names; others are left out.

    Args:
        kafka: Client properties with librdkafka's names.

    Raises:
        BrokerError: If it logs in with a token, and there is none.
        ConfigError: If there can be none with these properties.
    """
    found: dict[str, Any] = {_NAMES[name]: value for name, value in kafka.items() if name in _NAMES}
    found["reconnect_backoff_max_ms"] = 1_000  # the default of 30 s exceeds session timeouts
    if "ssl_check_hostname" in found:
        found["ssl_check_hostname"] = found["ssl_check_hostname"] != "none"
    if "security_protocol" in found:
        found["security_protocol"] = found["security_protocol"].upper()
    tokens = tokens_of(kafka)
    if tokens is not None:
        tokens.current()  # as in `client_properties`
        found |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": tokens.for_kafka_python()}
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
        assign: Returns what the leader adds to the assignment of each member, given what each has added to its subscription.
            Called in a thread of its own, if this member leads.

    Raises:
        ConfigError: If the installed version of the library has another structure.
    """

    def __init__(self, consumer: Any, assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]]) -> None:
        """Stop the library from recreating deleted topics, and pace its look-ups of the coordinator."""
        coordinator: Any = getattr(consumer, "_coordinator", None)
        missing = [name for name in PRIVATE if not hasattr(coordinator, name)]
        if missing:
            from importlib.metadata import version  # noqa: PLC0415 - loads far more than this module, for an error

            message = f"kafka-python {version('kafka-python')} is not supported: it has no {', '.join(missing)}"
            raise ConfigError(message, hint="pip install 'kafka-python>=3.0.12,<3.1'")
        self._coordinator = coordinator
        self._consumer = consumer
        self._assign = assign
        self._said: Mapping[str, bytes] | None = None
        """The bytes of all members, from the time when this member is told to lead until it makes the assignments."""
        # A deleted input must be reported, not recreated. The library ignores its own setting for this.
        self._coordinator._manager.cluster.config["allow_auto_create_topics"] = False
        self._pace_lookups()
        self._check_messages()
        self._assign_outside()

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
            self._said = {member.member_id: said_by(bytes(member.metadata or b"")) for member in members}
            for member in members:
                member.metadata = ConsumerProtocolSubscription(version=0, topics=own_topics()).encode()
            return perform(leader, protocol, members)

        async def complete_checked(generation: int, member_id: str, protocol: str, assignment: Any) -> None:
            kept = ConsumerProtocolAssignment(0, [], planned_in(bytes(assignment or b"")))
            await complete(generation, member_id, protocol, kept.encode())

        coordinator._perform_assignment = perform_checked
        coordinator._on_join_complete_async = complete_checked

    def _assign_outside(self) -> None:
        """Make assignments when the library sends them: after its own `_perform_assignment`, which cannot wait for a thread."""
        from kafka.protocol.consumer import SyncGroupRequest  # noqa: PLC0415 - as above
        from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment  # noqa: PLC0415 - as above

        manager = self._coordinator._manager
        send = manager.send

        async def send_assignments(said: Mapping[str, bytes], request: Any, **where: Any) -> Any:
            made = await self._assigned(said)
            request.assignments = [
                SyncGroupRequest.SyncGroupRequestAssignment(member, ConsumerProtocolAssignment(0, [], plan).encode())
                for member, plan in made.items()
            ]
            return await send(request, **where)

        def send_completed(request: Any, *args: Any, **where: Any) -> Any:
            if self._said is None or not isinstance(request, SyncGroupRequest):
                return send(request, *args, **where)
            said, self._said = self._said, None
            return send_assignments(said, request, **where)

        manager.send = send_completed

    async def _assigned(self, said: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Make assignments in another thread, and send heartbeats meanwhile.

        The library sends none between joining and the assignment, as its heartbeats begin when the group is stable. Brokers
        would drop a leader whose assignments take longer than its session, and the group would start over, forever.
        """
        from kafka.errors import KafkaError, KafkaTimeoutError  # noqa: PLC0415 - as above
        from kafka.future import Future  # noqa: PLC0415 - as above

        coordinator = self._coordinator
        made = Future()

        def make() -> None:
            outcome: Any
            try:
                outcome, tell = self._assign(said), made.success
            except Exception as error:  # noqa: BLE001 - the library raises it where the member polls
                outcome, tell = error, made.failure
            with suppress(RuntimeError):  # the member has been closed
                coordinator._manager._net.call_soon_threadsafe(lambda: tell(outcome))

        threading.Thread(target=make, name="assignment", daemon=True).start()
        while not made.is_done:
            try:
                await coordinator._manager.wait_for(made, coordinator.config["heartbeat_interval_ms"])
            except KafkaTimeoutError:
                with suppress(KafkaError):  # brokers will refuse the assignments for the same reason
                    await coordinator._send_heartbeat_request()
        plans: Mapping[str, bytes] = made.value
        return plans
