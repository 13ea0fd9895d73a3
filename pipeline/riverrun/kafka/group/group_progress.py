"""Reads the progress of a group repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.kafka.library.ending import end_in_background
from riverrun.kafka.requests import REQUEST_SECONDS
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.kafka.requests import Requests


class GroupProgress:
    """Reads committed offsets over one connection, without waiting for transactions that are being committed.

    Args:
        requests: Creates the client.
        group: The group.
    """

    def __init__(self, requests: Requests, group: str) -> None:
        self._requests = requests
        self._group = group
        self._consumer = requests.consumer(
            group, "read_uncommitted"
        )  # other isolation levels would wait for open transactions

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        """Return committed offsets and their metadata; partitions without one are left out.

        Raises:
            BrokerError: If the brokers do not answer.
        """
        partitions = [ClientTopicPartition(*tp) for tp in tps]
        with self._requests.asking(f"read committed offsets of {self._group}"):
            found = self._consumer.committed(partitions, REQUEST_SECONDS)
        return {
            TopicPartition(tp.topic, tp.partition): (tp.offset, tp.metadata or "")
            for tp in found
            if tp.error is None and tp.offset >= 0
        }

    def close(self) -> None:
        """Close the connection in the background."""
        end_in_background(self._consumer.close, self._group)
