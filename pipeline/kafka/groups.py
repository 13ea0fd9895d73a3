"""Asks the brokers that coordinate groups: for their members and positions, and to forget a group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from pipeline.errors import BrokerError
from pipeline.kafka import librdkafka
from pipeline.kafka.ending import end_in_background
from pipeline.kafka.requests import CLIENT_ID, REQUEST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.kafka.coordinators import Question
    from pipeline.kafka.requests import Requests
    from pipeline.records import TopicPartition

_ATTEMPTS = 3
"""So many brokers may keep a question to themselves, one after the other, within the time that a request has."""
_PAUSE_SECONDS = 0.05
_POLL_SECONDS = 0.005
_OUTSIDE = {
    "group.protocol": "classic",
    "session.timeout.ms": int(REQUEST_SECONDS * 1000),
    "max.poll.interval.ms": 300_000,
}
"""Of a consumer that commits and does not join: the session's time is how long it waits, even at its end, for a coordinator."""


class GroupState(NamedTuple):
    """A group as brokers know it: its state in Kafka's words, and each member's `client-id@host`."""

    state: str
    members: tuple[str, ...]


class Groups:
    """Asks again, as long as a request may take, while coordinators start, move, or do not answer.

    Not by librdkafka's admin client, which frees what belongs to such a request while it is in use if the coordinator does not
    answer (librdkafka pull request 5397): the process crashes.

    Args:
        requests: Makes clients, and says what their errors mean.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def state(self, group: str) -> GroupState:
        """A group as the brokers know it; one that does not exist is dead, and has no members.

        Raises:
            BrokerError: If the brokers refuse or do not answer.
        """
        from pipeline.kafka.coordinators import describe_group  # noqa: PLC0415 - loads for long, and few ask

        described = self._patiently(self._asking(group, describe_group), f"describe group {group}")
        return GroupState("dead", ()) if described is None else GroupState(*described)

    def said_in(self, group: str) -> tuple[bytes, ...]:
        """Return what each member of a group said of itself when it joined; empty for an unknown group.

        Raises:
            BrokerError: If the brokers refuse or do not answer.
        """
        from pipeline.kafka.coordinators import said_in_group  # noqa: PLC0415 - loads for long, and few ask

        said: tuple[bytes, ...] = self._patiently(
            self._asking(group, said_in_group), f"ask the members of group {group}"
        )
        return said

    def delete(self, group: str) -> None:
        """Delete a group and its committed offsets. Idempotent.

        Raises:
            BrokerError: If it has members, or the brokers refuse or do not answer.
        """
        from pipeline.kafka.coordinators import delete_group  # noqa: PLC0415 - loads for long, and few ask

        self._patiently(self._asking(group, delete_group), f"delete group {group}")

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets of a group, with librdkafka: hosts that need no membership know its properties alone.

        Raises:
            BrokerError: If the group has members, or the brokers refuse or do not answer.
            TopicError: If there is no such partition.
        """
        partitions = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        if partitions:
            doing = f"set offsets of {group}"
            self._patiently(lambda _attempt, within_s: self._commit(group, partitions, within_s), doing)

    def _asking(self, group: str, ask: Callable[[Question], Any]) -> Callable[[int, float], Any]:
        """One attempt to ask a group's coordinator something."""
        from pipeline.kafka.coordinators import Question  # noqa: PLC0415 - loads for long, and few ask

        def attempt(number: int, within_s: float) -> Any:
            within_s = min(within_s, REQUEST_SECONDS / _ATTEMPTS)
            return ask(Question(self._requests.kafka, CLIENT_ID, group, within_s, number))

        return attempt

    def _commit(self, group: str, partitions: list[ClientTopicPartition], within_s: float) -> None:
        """Commit as somebody outside of the group, no longer than that: the library itself would wait for dead brokers."""
        deadline = time.monotonic() + within_s
        self._requests.client.list_topics(partitions[0].topic, timeout=within_s)  # says why if nobody answers
        answers: list[tuple[KafkaError | None, list[Any]]] = []
        answered = {"on_commit": lambda error, tps: answers.append((error, tps))}
        consumer = self._requests.consumer(group, properties=_OUTSIDE | answered)
        try:
            consumer.commit(offsets=partitions, asynchronous=True)
            while not answers and time.monotonic() < deadline:
                consumer.poll(_POLL_SECONDS)
        finally:
            end_in_background(consumer.close, group)
        if not answers:
            raise KafkaException(KafkaError(librdkafka.TIMED_OUT))
        for error in (answers[0][0], *(tp.error for tp in answers[0][1])):
            if error is not None:
                has_members = error.code() == KafkaError.UNKNOWN_MEMBER_ID  # only these may commit, and this is none
                raise KafkaException(KafkaError(KafkaError.NON_EMPTY_GROUP) if has_members else error)

    def _patiently(self, ask: Callable[[int, float], Any], doing: str) -> Any:
        """Ask until there is an answer that asking again would not change, or no time left.

        Args:
            ask: Given the number of the attempt, and how many seconds are left.
            doing: What is being done, as in "cannot <doing>".

        Raises:
            BrokerError: What went wrong last.
        """
        deadline, attempt = time.monotonic() + REQUEST_SECONDS, 0
        while True:
            try:
                with self._requests.asking(doing):
                    return ask(attempt, max(_PAUSE_SECONDS, deadline - time.monotonic()))
            except BrokerError as error:
                if not error.retriable or time.monotonic() + _PAUSE_SECONDS > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)
            attempt += 1
