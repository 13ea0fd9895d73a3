"""Asks for the size of partitions on brokers' disks through kafka-python, since librdkafka cannot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from riverrun.kafka.library.kafka_python import connection
from riverrun.kafka.requests import CLIENT_ID, REQUEST_SECONDS
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

log = logging.getLogger(__name__)


def log_sizes(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the size of partitions on brokers' disks in bytes: compressed, without indexes.

    With several replicas, the largest counts. Partitions whose size brokers do not report are left out. The request
    needs the right to describe the cluster, which a user of topics may lack.

    Args:
        kafka: Client properties.
        topics: The topics.
    """
    names = sorted(set(topics))
    if not names:
        return {}
    try:
        client = KafkaAdminClient(
            **connection(kafka), client_id=CLIENT_ID, request_timeout_ms=int(REQUEST_SECONDS * 1_000)
        )
    except KafkaError as error:
        log.info("brokers do not report the size of topics: %s", error)
        return {}
    try:
        return _largest(client.describe_log_dirs(names))
    except KafkaError as error:
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
