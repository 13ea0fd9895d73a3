"""Asks the leaders of partitions for offsets: the beginning, the end, and the offset of a time.

Asks for the size of partitions on brokers' disks through kafka-python, since librdkafka cannot.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import TopicError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import MISSING_HINT, MISSING_TOPIC, UNREACHABLE
from riverrun.kafka.librdkafka import end_in_background
from riverrun.kafka.requests import CLIENT_ID, REQUEST_SECONDS
from riverrun.records import TopicPartition, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.kafka.requests import Requests

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 3.0
"""Longest wait for a partition's leader before the leader is looked up again: the client itself would ask a dead broker for
minutes."""
_MISSING_SECONDS = 5.0
"""How long brokers may deny that a topic exists before it counts as missing: they learn of new topics at different times."""
_NO_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        librdkafka.NOENT,
    }
)
"""The topic was just created, or its broker just started or died."""


class Leaders:
    """Asks leaders through consumers, whose requests end on time even if a leader has died.

    It keeps one consumer per isolation level, and closes them at its end.
    """

    def __init__(self, requests: Requests) -> None:
        """Start without consumers; they are created on demand."""
        self._requests = requests
        self._askers: dict[str, Consumer] = {}
        self._making_asker = threading.Lock()
        weakref.finalize(self, _end_all, self._askers).atexit = False

    def offsets(
        self, tps: Iterable[TopicPartition], time_ms: int, isolation: str = "read_committed"
    ) -> dict[TopicPartition, int]:
        """Look up offsets with `ListOffsets`.

        Args:
            tps: The partitions.
            time_ms: The time whose first offset to find, or `OFFSET_BEGINNING` or `OFFSET_END`.
            isolation: `read_committed` for the last stable offset as end, `read_uncommitted` for the high watermark.

        Raises:
            TopicError: If there is no such partition.
            BrokerError: If no broker answers, or a partition stays without a leader.
        """
        request = [ClientTopicPartition(*tp, time_ms) for tp in tps]
        if not request:
            return {}
        found: dict[TopicPartition, int] = {}
        missing_at = time.monotonic() + _MISSING_SECONDS

        def has_leaders() -> bool:
            asker = self._asker(isolation)
            try:
                answers = asker.offsets_for_times(request, _ANSWER_SECONDS)
            except KafkaException as error:
                return self._leader_comes(asker, error.args[0], request[0], missing_at)
            for tp in answers:
                if tp.error is not None:
                    return self._leader_comes(asker, tp.error, tp, missing_at)
                found[TopicPartition(tp.topic, tp.partition)] = tp.offset
            return True

        self._requests.until(has_leaders, "find the leaders of partitions")
        return found

    def _leader_comes(self, asker: Consumer, error: KafkaError, tp: ClientTopicPartition, missing_at: float) -> bool:
        """Return False for an error that will pass: a partition without a leader, or with one that does not answer.

        Until `missing_at`, a topic that a broker does not know is such an error, too.

        Raises:
            TopicError: If there is no such partition.
            BrokerError: If it is another error, or no broker answers.
        """
        if error.code() not in _NO_LEADER | UNREACHABLE | MISSING_TOPIC:
            raise self._requests.error(error, f"look up offsets of {tp.topic}-{tp.partition}")
        try:
            self._check_exists(asker, TopicPartition(tp.topic, tp.partition))
        except TopicError:
            if time.monotonic() > missing_at:
                raise
        return False

    def _check_exists(self, asker: Consumer, tp: TopicPartition) -> None:
        """Distinguish a missing partition from one without a leader at present. Afterwards the client knows the leader.

        Raises:
            TopicError: If the partition does not exist.
            BrokerError: If no broker answers.
        """
        with self._requests.asking(f"find the leader of {tp}"):
            known = asker.list_topics(timeout=REQUEST_SECONDS).topics
        count = len(known[tp.topic].partitions) if tp.topic in known else 0
        if tp.partition >= count:
            has = f"has {counted(count, 'partition')}, but no partition {tp.partition}" if count else "does not exist"
            message = f"Topic {tp.topic} {has}"
            raise TopicError(message, hint=MISSING_HINT)

    def _asker(self, isolation: str) -> Consumer:
        with self._making_asker:  # tasks ask concurrently
            if isolation not in self._askers:
                self._askers[isolation] = self._requests.consumer("riverrun-unjoined", isolation)
            return self._askers[isolation]


def _end_all(askers: dict[str, Consumer]) -> None:
    """Close the consumers of a `Leaders` that no longer exists."""
    for consumer in askers.values():
        end_in_background(consumer.close, "asker")


def log_sizes(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the size of partitions on brokers' disks in bytes; see `Admin.log_sizes`."""
    names = sorted(set(topics))
    if not names:
        return {}
    from kafka import KafkaAdminClient, errors  # noqa: PLC0415 - loads for long, and only forecasts ask

    from riverrun.kafka.kafka_python import connection  # noqa: PLC0415 - as above

    try:
        client = KafkaAdminClient(
            **connection(kafka), client_id=CLIENT_ID, request_timeout_ms=int(REQUEST_SECONDS * 1_000)
        )
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
