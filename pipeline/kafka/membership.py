"""Membership in a consumer group whose members are given plans instead of partitions.

librdkafka has no assignor of one's own, so this is kafka-python's: join, heartbeat, leave. It never reads a record.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.errors import KafkaConfigurationError, KafkaError
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from pipeline.errors import BrokerError, ConfigError
from pipeline.kafka.coordinators import COUNT_BYTES
from pipeline.kafka.kafka_python import GroupCoordinator, connection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_PROTOCOL_VERSION = 3
_SOME_TOPIC = "__consumer_offsets"
"""Subscribed to where there is no other: without any, a consumer does not join. Nobody reads it."""


class _PlanAssignor(AbstractPartitionAssignor):  # type: ignore[misc] # kafka-python asks for its own class
    """Carries bytes both ways: what each member says of itself to the leader, and the leader's plans back.

    Its methods run on the library's network thread and must not block.
    """

    name = "millrace"

    def __init__(
        self,
        describe: Callable[[], bytes],
        assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]],
        follow: Callable[[bytes], None],
    ) -> None:
        self._describe = describe
        self._assign = assign
        self._follow = follow
        self._count = itertools.count()

    def supported_protocols(self) -> list[Any]:
        return [RebalanceProtocol.EAGER]  # there are no partitions to give up: the plan itself is cooperative

    def metadata(self, topics: Collection[str]) -> Any:
        """The broker starts a rebalance only for a follower whose bytes differ: the count makes them."""
        said = next(self._count).to_bytes(COUNT_BYTES, "big") + self._describe()
        return ConsumerProtocolSubscription(
            version=_PROTOCOL_VERSION, topics=sorted(topics), user_data=said, owned_partitions=[]
        )

    def assign(self, _cluster: object, members: Collection[Any]) -> dict[str, Any]:
        said = {member.member_id: bytes(member.metadata.user_data)[COUNT_BYTES:] for member in members}
        plans = self._assign(said)
        return {member: ConsumerProtocolAssignment(0, [], plan) for member, plan in plans.items()}

    def on_assignment(self, assignment: Any, _generation: int) -> None:
        if assignment.user_data:
            self._follow(bytes(assignment.user_data))


class GroupMember:
    """One member of a group.

    Args:
        kafka: Client properties, as librdkafka names them; those of the connection are used.
        group_id: The group.
        topics: Topics it subscribes to, for whoever describes the group; it reads none of them.
        client_id: What brokers call it when they say who the members are.
        describe: What this member says of itself; asked for at every rebalance, from another thread.
        assign: Makes a plan for each member out of what all say of themselves; called in the leader, from another thread.
        follow: Given this member's plan as soon as there is one, from another thread; must not block.
        session_timeout_ms: Without heartbeats for so long, a member counts as dead.
        heartbeat_interval_ms: How often to send one; members hear of a rebalance with the next.
        max_poll_interval_ms: A member that does not `poll` for so long leaves the group; it joins again with the next poll.
        group_instance_id: Makes it a static member, whose restart nobody notices.

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
        follow: Callable[[bytes], None],
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        group_instance_id: str | None = None,
    ) -> None:
        """Joins with the first `poll`."""
        self._group_id = group_id
        self._rejoins = threading.Event()

        def say() -> bytes:
            self._rejoins.clear()
            return describe()

        try:
            self._consumer = KafkaConsumer(
                **connection(kafka),
                client_id=client_id,
                group_id=group_id,
                group_instance_id=group_instance_id,
                partition_assignment_strategy=[_PlanAssignor(say, assign, follow)],
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
        self._coordinator = GroupCoordinator(self._consumer)
        self._consumer.subscribe(topics=sorted(topics) or [_SOME_TOPIC])

    @property
    def is_fenced(self) -> bool:
        """Whether another process has joined with the same `group_instance_id`: then this one is out for good."""
        return self._coordinator.is_fenced

    @property
    def is_joining(self) -> bool:
        """Whether it has to join, or to join again; if not, a `poll` that does not wait is enough."""
        return self._rejoins.is_set() or self._coordinator.needs_rejoin

    def poll(self, timeout_s: float) -> None:
        """Take part in the group for a while.

        Args:
            timeout_s: How long; half a second or more if it `is_joining`: a join that takes longer than a poll begins anew.

        Raises:
            BrokerError: If the brokers refuse. That they cannot be reached is no error here: the library reconnects.
        """
        if self._rejoins.is_set():
            self._coordinator.request_rejoin()
        try:
            self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkaError as error:
            message = f"Membership in group {self._group_id}: {error}"
            raise BrokerError(message, retriable=bool(getattr(error, "retriable", False))) from error

    def rejoin(self) -> None:
        """Say anew what there is to say, which starts a rebalance with one of the next `poll`s.

        May be called from any thread. The library forgets what it is asked during a join: it is asked until it has listened.
        """
        self._rejoins.set()

    def close(self) -> None:
        """Leave the group; a static member stays in it until its session times out."""
        self._consumer.close(autocommit=False, timeout_ms=3_000)
