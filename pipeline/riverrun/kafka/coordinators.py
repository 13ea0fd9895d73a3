"""Describes and deletes groups at their coordinators, by kafka-python, as librdkafka's admin client may crash the process.

Import it on demand: the library takes longer to load than all of this package, and most processes do not need it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from riverrun.kafka.kafka_python import DeleteGroupsRequest, DescribeGroupsRequest, planned_in, said_by

if TYPE_CHECKING:
    from riverrun.kafka.door import Kafka

# A member's metadata begins with a number, which makes the bytes differ: otherwise brokers start no rebalance.
COUNT_BYTES = 8
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
        attempt: Number of the attempt: each asks another bootstrap server for the coordinator.
    """

    kafka: Kafka
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
    _exists(_answer(question, DeleteGroupsRequest(groups_names=[question.group])).results[0].error_code)


def _exists(code: int) -> bool:
    if code not in {KafkaError.NO_ERROR, KafkaError.GROUP_ID_NOT_FOUND}:
        raise KafkaException(KafkaError(code))
    return bool(code == KafkaError.NO_ERROR)


def _answer(question: CoordinatorRequest, request: Any) -> Any:
    """Return the coordinator's answer. Uses this thread only, and leaves no resources behind."""
    with closing(question.kafka.coordinator(question.client_id, question.group, question.attempt)) as connection:
        return connection.ask(request, question.within_s, lambda: False)
