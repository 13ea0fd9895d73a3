"""Membership in a consumer group whose members receive plans instead of partitions.

librdkafka has no custom assignors, so this uses kafka-python to join, send heartbeats and leave. It never reads a record.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.errors import KafkaConfigurationError, KafkaError, UnknownError
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from riverrun.errors import BrokerError, ConfigError
from riverrun.kafka.coordinators import COUNT_BYTES
from riverrun.kafka.kafka_python import GroupCoordinator, connection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_PROTOCOL_VERSION = 3
_SOME_TOPIC = "__consumer_offsets"
"""Subscribed to if there is no topic, as a consumer would not join without one. It is never read."""


class _PlanAssignor(AbstractPartitionAssignor):  # type: ignore[misc] # kafka-python asks for its own class
    """Carries this member's metadata to the leader, and the leader's plan back to this member.

    Its methods run on the library's network thread and must not block: the leader makes plans elsewhere (`GroupCoordinator`).
    """

    name = "riverrun"

    def __init__(
        self, describe: Callable[[], bytes], on_plan: Callable[[bytes], None], committed: Callable[[], Collection[str]]
    ) -> None:
        self._describe = describe
        self._committed = committed
        self._on_plan = on_plan
        self._count = itertools.count()

    def supported_protocols(self) -> list[Any]:
        return [RebalanceProtocol.EAGER]  # there are no partitions to revoke: the plan itself is cooperative

    def metadata(self, topics: Collection[str]) -> Any:
        """Return this member's metadata with a counter, as brokers start a rebalance only if a follower's bytes differ."""
        said = next(self._count).to_bytes(COUNT_BYTES, "big") + self._describe()
        return ConsumerProtocolSubscription(
            version=_PROTOCOL_VERSION,
            topics=sorted({*topics, *self._committed()}),
            user_data=said,
            owned_partitions=[],
        )

    def assign(self, _cluster: object, _members: object) -> dict[str, Any]:
        return {}  # `GroupCoordinator` makes the plans

    def on_assignment(self, assignment: Any, _generation: int) -> None:
        if assignment.user_data:
            self._on_plan(bytes(assignment.user_data))


class GroupMember:
    """One member of a group.

    Args:
        kafka: Client properties with librdkafka's names; those of the connection are used.
        group_id: The group.
        topics: Topics that it subscribes to, shown in descriptions of the group; it never reads them.
        client_id: Its name in brokers' lists of members.
        describe: Returns this member's metadata; called at every rebalance, from another thread.
        assign: Returns a plan per member, given the metadata of all; called in the leader, from a thread of its own.
        on_plan: Called with each new plan of this member, from another thread; must not block.
        session_timeout_ms: Time without heartbeats after which a member counts as dead.
        heartbeat_interval_ms: Interval of heartbeats; members learn of a rebalance with the next one.
        max_poll_interval_ms: Time without a `poll` after which a member leaves the group; it rejoins with the next poll.
        group_instance_id: Makes it a static member, whose restart causes no rebalance.
        committed: Returns further topics to subscribe to, at every rebalance, from another thread. Brokers delete committed
            offsets of topics that no member subscribes to. The library does not look these topics up.

    Raises:
        ConfigError: If a property cannot be used.
        BrokerError: If the brokers cannot be reached.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        group_id: str,
        topics: Collection[str],
        *,
        client_id: str,
        describe: Callable[[], bytes],
        assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]],
        on_plan: Callable[[bytes], None],
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        group_instance_id: str | None = None,
        committed: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Create the member; it joins with the first `poll`."""
        self._group_id = group_id
        self._rejoins = threading.Event()
        self.is_refused = False
        """Whether brokers have refused the record of the group's messages since the last plan."""

        def hear(plan: bytes) -> None:
            self.is_refused = False
            on_plan(plan)

        def say() -> bytes:
            self._rejoins.clear()  # kafka-python asks for metadata, so it has accepted the request
            return describe()

        def assign_without_counts(said: Mapping[str, bytes]) -> Mapping[str, bytes]:
            return assign({member: each[COUNT_BYTES:] for member, each in said.items()})

        try:
            self._consumer = KafkaConsumer(
                **connection(kafka),
                client_id=client_id,
                group_id=group_id,
                group_instance_id=group_instance_id,
                partition_assignment_strategy=[_PlanAssignor(say, hear, committed)],
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
                max_poll_interval_ms=max_poll_interval_ms,
                enable_auto_commit=False,
            )
        except (KafkaConfigurationError, TypeError, AssertionError, ValueError) as error:
            message = f"Cannot join group {group_id}: {error}"
            raise ConfigError(message, hint="Check the [kafka] section, and consumer.* of the application.") from error
        except KafkaError as error:
            message = f"Cannot join group {group_id} at {kafka.get('bootstrap.servers')}: {error}"
            raise BrokerError(message, retriable=True, hint="Check that the brokers run.") from error
        self._coordinator = GroupCoordinator(self._consumer, assign_without_counts)
        self._consumer.subscribe(topics=sorted(topics) or [_SOME_TOPIC])

    @property
    def is_fenced(self) -> bool:
        """Return whether another process has joined with this `group_instance_id`, which ends this membership for good."""
        return self._coordinator.is_fenced

    @property
    def is_joining(self) -> bool:
        """Return whether it has to join or rejoin; if not, a `poll` without waiting is enough."""
        return self._rejoins.is_set() or self._coordinator.needs_rejoin

    def poll(self, timeout_s: float) -> None:
        """Take part in the group for a while.

        Args:
            timeout_s: How long. At least half a second if it `is_joining`, because a join that exceeds a poll starts over.

        Raises:
            BrokerError: If the brokers refuse. Unreachable brokers are no error here: the library reconnects.
        """
        if self._rejoins.is_set():
            self._coordinator.request_rejoin()
        try:
            self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkaError as error:
            message = f"Membership in group {self._group_id}: {error}"
            # So brokers call the messages of a group that exceed their message.max.bytes. The leader can make them smaller.
            self.is_refused = isinstance(error, UnknownError)
            is_retriable = self.is_refused or bool(getattr(error, "retriable", False))
            hint = "The brokers' message.max.bytes may be too small for the group." if self.is_refused else None
            raise BrokerError(message, retriable=is_retriable, hint=hint) from error

    def rejoin(self) -> None:
        """Send new metadata, which starts a rebalance within the next `poll`s.

        May be called from any thread. The library ignores the request during a join, so it is repeated until accepted.
        """
        self._rejoins.set()

    def close(self) -> None:
        """Leave the group; a static member stays until its session times out."""
        self._consumer.close(autocommit=False, timeout_ms=3_000)
