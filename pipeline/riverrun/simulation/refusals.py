"""How requests to the brokers fail: they are refused with a code, or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection


class RefusedError(Exception):
    """The brokers answer with an error code of Kafka's protocol."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class LostError(Exception):
    """The request or its answer is lost: the client cannot know whether the brokers have acted."""


RETRIED: Collection[int] = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Refusals after which client libraries repeat a request."""
