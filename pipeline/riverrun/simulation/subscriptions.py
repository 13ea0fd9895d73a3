"""Subscriptions and assignments of consumers, in the bytes of Kafka's consumer protocol; and its range assignor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

_VERSION = 1


def subscription(topics: Collection[str]) -> bytes:
    """Return what a consumer joins with."""
    said: bytes = ConsumerProtocolSubscription(
        version=_VERSION, topics=sorted(topics), user_data=None, owned_partitions=[]
    ).encode()
    return said


def subscribed_topics(said: Iterable[bytes]) -> set[str]:
    """Return the topics of subscriptions; those of other protocols have none."""
    found: set[str] = set()
    for each in said:
        try:
            found.update(ConsumerProtocolSubscription.decode(each).topics)
        except Exception:  # noqa: BLE001, S112 - whatever the library's parser raises for foreign bytes
            continue
    return found


def assignment(tps: Iterable[TopicPartition]) -> bytes:
    """Return a consumer's plan."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(tps):
        by_topic.setdefault(topic, []).append(partition)
    named = [ConsumerProtocolAssignment.TopicPartition(topic, each) for topic, each in by_topic.items()]
    plan: bytes = ConsumerProtocolAssignment(_VERSION, named, b"").encode()
    return plan


def assigned(plan: bytes) -> list[TopicPartition]:
    if not plan:
        return []
    found = ConsumerProtocolAssignment.decode(plan).assigned_partitions
    return [TopicPartition(each.topic, partition) for each in found for partition in each.partitions]


def range_plans(
    members: Iterable[tuple[str, str | None, bytes]], partitions: Callable[[str], int]
) -> Mapping[str, bytes]:
    """Return a plan per member: of each topic, consecutive partitions."""
    wanted = {member: subscribed_topics([said]) for member, _instance, said in members}
    order = [member for _key, member in sorted((instance or member, member) for member, instance, _said in members)]
    given: dict[str, list[TopicPartition]] = {member: [] for member in wanted}
    for topic in sorted(set().union(*wanted.values())):
        readers = [member for member in order if topic in wanted[member]]
        share, rest = divmod(partitions(topic), len(readers))
        start = 0
        for place, member in enumerate(readers):
            end = start + share + (1 if place < rest else 0)
            given[member] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return {member: assignment(tps) for member, tps in given.items()}
