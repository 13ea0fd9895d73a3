"""Asks the leaders of partitions about their logs: where these begin and end, and where a time begins."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from pipeline.errors import TopicError
from pipeline.kafka import librdkafka
from pipeline.kafka.ending import end_in_background
from pipeline.kafka.errors import MISSING_HINT, MISSING_TOPIC, UNREACHABLE
from pipeline.kafka.requests import REQUEST_SECONDS
from pipeline.records import TopicPartition, counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.kafka.requests import Requests

_ANSWER_SECONDS = 3.0
"""How long a partition's leader may take to answer before it is asked anew who leads: the client itself would go on asking a
broker that died, for minutes."""
_MISSING_SECONDS = 5.0
"""How long brokers may say that there is no such topic before it is believed: not all of them hear of a new one at once."""
_NO_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        librdkafka.NOENT,
    }
)
"""The topic was just created, or its broker just started or died."""


class Leaders:
    """Asks leaders with consumers, whose requests end when they should even if a leader has died.

    Consumers are kept, one for each isolation level, and end with this object.
    """

    def __init__(self, requests: Requests) -> None:
        """A consumer is made when it is first needed."""
        self._requests = requests
        self._askers: dict[str, Consumer] = {}
        self._making_asker = threading.Lock()
        weakref.finalize(self, _end_all, self._askers).atexit = False

    def offsets(
        self, tps: Iterable[TopicPartition], time_ms: int, isolation: str = "read_committed"
    ) -> dict[TopicPartition, int]:
        """Ask them with `ListOffsets`.

        Args:
            tps: The partitions.
            time_ms: The time whose first offset is wanted, or `OFFSET_BEGINNING` or `OFFSET_END`.
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
        """That a partition has no leader at present, or one that does not answer, passes: False, the answer is not there yet.

        So does, before `missing_at`, that a broker has not heard of it.

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
        """Tell a partition that does not exist from one without a leader for the moment; the asker knows who leads afterwards.

        Raises:
            TopicError: If it does not exist.
            BrokerError: If no broker answers.
        """
        with self._requests.asking(f"find the leader of {tp}"):
            known = asker.list_topics(timeout=REQUEST_SECONDS).topics
        count = len(known[tp.topic].partitions) if tp.topic in known else 0
        if tp.partition >= count:
            has = f"has {counted(count, 'partition')}, and no number {tp.partition}" if count else "does not exist"
            message = f"Topic {tp.topic} {has}"
            raise TopicError(message, hint=MISSING_HINT)

    def _asker(self, isolation: str) -> Consumer:
        with self._making_asker:  # tasks ask at the same time
            if isolation not in self._askers:
                self._askers[isolation] = self._requests.consumer("millrace-unjoined", isolation)
            return self._askers[isolation]


def _end_all(askers: dict[str, Consumer]) -> None:
    """End the consumers of a `Leaders` that is gone."""
    for consumer in askers.values():
        end_in_background(consumer.close, "asker")
