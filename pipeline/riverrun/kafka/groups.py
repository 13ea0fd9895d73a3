"""Consumer groups, seen by a client that is no member: their state, their members, and their committed offsets."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import BrokerError
from riverrun.kafka import librdkafka
from riverrun.kafka.librdkafka import end_in_background
from riverrun.kafka.requests import CLIENT_ID, REQUEST_SECONDS
from riverrun.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.kafka.clients import ConsumerClient
    from riverrun.kafka.coordinators import CoordinatorRequest
    from riverrun.kafka.requests import Requests

log = logging.getLogger(__name__)

# Each attempt asks another broker, so two that do not answer leave time for a third one.
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.05
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 3.0
_SILENT_COORDINATOR = (
    "Brokers answer, but not the one that coordinates the group: it may be moving, or overloaded. Try again."
)
_OUTSIDE = {
    "group.protocol": "classic",
    # For a consumer that commits without joining, this limits its wait for a coordinator, even when it closes.
    "session.timeout.ms": int(REQUEST_SECONDS * 1000),
    "max.poll.interval.ms": 300_000,
}


class GroupState(NamedTuple):
    """State of a group by librdkafka's name, and each member's `client-id@host`."""

    state: str
    members: tuple[str, ...]


class Groups:
    """Describes, deletes and sets groups; repeats requests while coordinators start, move, or do not answer."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def names(self) -> list[str]:
        """Return the names of all groups that this client may see, without those of brokers that do not answer."""
        future = self._requests.client.list_consumer_groups(request_timeout=REQUEST_SECONDS)
        found = self._requests.result(future, "list groups")
        for error in found.errors:
            log.warning("a broker has not listed its groups: %s", error)
        return [each.group_id for each in found.valid]

    def state(self, group: str) -> GroupState:
        """Return a group's state; an unknown group is dead, without members."""
        from riverrun.kafka.coordinators import describe_group  # noqa: PLC0415 - loads for long, and few ask

        described = self._patiently(self._asking(group, describe_group), f"describe group {group}")
        return GroupState("dead", ()) if described is None else GroupState(*described)

    def member_messages(self, group: str) -> tuple[tuple[bytes, bytes], ...] | None:
        """Return what each member joined a group with, and its plan; empty for an unknown group, None during a rebalance."""
        from riverrun.kafka.coordinators import messages_in_group  # noqa: PLC0415 - loads for long, and few ask

        found: tuple[tuple[bytes, bytes], ...] | None = self._patiently(
            self._asking(group, messages_in_group), f"ask the members of group {group}"
        )
        return found

    def delete(self, group: str) -> None:
        """Delete a group and its committed offsets. Idempotent."""
        from riverrun.kafka.coordinators import delete_group  # noqa: PLC0415 - loads for long, and few ask

        self._patiently(self._asking(group, delete_group), f"delete group {group}")

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets of a group with librdkafka, as some hosts know only its properties."""
        partitions = [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        if partitions:
            doing = f"set offsets of {group}"
            self._patiently(lambda _attempt, within_s: self._commit(group, partitions, within_s), doing)

    def _asking(self, group: str, ask: Callable[[CoordinatorRequest], Any]) -> Callable[[int, float], Any]:
        # Not with librdkafka's admin client: if the coordinator does not answer, that client frees parts of the request
        # that are in use, and the process crashes (librdkafka pull request 5397).
        from riverrun.kafka.coordinators import CoordinatorRequest  # noqa: PLC0415 - loads for long, and few ask

        def attempt(number: int, within_s: float) -> Any:
            within_s = min(within_s, REQUEST_SECONDS / _ATTEMPTS)
            return ask(CoordinatorRequest(self._requests.kafka, CLIENT_ID, group, within_s, number))

        return attempt

    def _commit(self, group: str, partitions: list[ClientTopicPartition], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        # Raises an error that explains why no broker answers.
        self._requests.client.list_topics(partitions[0].topic, timeout=within_s)
        answers: list[tuple[KafkaError | None, list[Any]]] = []
        answered = {"on_commit": lambda error, tps: answers.append((error, tps))}
        consumer = self._requests.consumer(group, properties=_OUTSIDE | answered)
        try:
            # Asynchronous, for a time limit: a synchronous commit would wait for dead brokers.
            consumer.commit(offsets=partitions, asynchronous=True)
            while not answers and time.monotonic() < deadline:
                consumer.poll(_POLL_SECONDS)
        finally:
            end_in_background(consumer.close, group)
        if not answers:
            raise KafkaException(KafkaError(librdkafka.TIMED_OUT))
        for error in (answers[0][0], *(tp.error for tp in answers[0][1])):
            if error is not None:
                # While a group has members, brokers let only them commit, and this client is not a member.
                has_members = error.code() == KafkaError.UNKNOWN_MEMBER_ID
                raise KafkaException(KafkaError(KafkaError.NON_EMPTY_GROUP) if has_members else error)

    def _patiently(self, ask: Callable[[int, float], Any], doing: str) -> Any:
        """Repeat a request until the answer is final or the time is over; it gets the attempt's number and the seconds left."""
        deadline, attempt = time.monotonic() + REQUEST_SECONDS, 0
        while True:
            try:
                with self._requests.asking(doing):
                    return ask(attempt, max(_PAUSE_SECONDS, deadline - time.monotonic()))
            except BrokerError as error:
                if not error.retriable:
                    raise
                if time.monotonic() + _PAUSE_SECONDS > deadline:
                    raise self._unanswered(error) from error
            time.sleep(_PAUSE_SECONDS)
            attempt += 1

    def _unanswered(self, error: BrokerError) -> BrokerError:
        """Return an error of a request that no coordinator has answered, with the hint for what other brokers answer."""
        try:
            self._requests.client.list_topics(timeout=_LOOK_SECONDS)
        except KafkaException:
            return error
        return BrokerError(error.message, retriable=True, hint=_SILENT_COORDINATOR)


# A host that takes tasks of an application over asks for one group again and again.
_IDLE = 2
# A client has five threads and two connections, too many to keep, but takes time to create.
_IDLE_SECONDS = 10.0


class _Idle(NamedTuple):
    """A client, what it is for, and since when it is idle (monotonic seconds)."""

    group: str
    isolation: str
    client: ConsumerClient
    since_s: float


class GroupClients:
    """Keeps clients that have read committed offsets of a group, for the next question about that group.

    A client that makes its connections and finds the coordinator costs more than the question. Each is used by one thread at
    a time. Those that stay idle are closed.
    """

    def __init__(self, requests: Requests, idle_s: float = _IDLE_SECONDS) -> None:
        self._requests = requests
        self._idle_s = idle_s
        self._idle: list[_Idle] = []
        self._is_watched = False
        self._lock = threading.Lock()
        # Not `atexit`: a process that ends closes its connections anyway.
        weakref.finalize(self, _close_all, self._idle).atexit = False

    @contextmanager
    def client(self, group: str, isolation: str) -> Iterator[ConsumerClient]:
        """Lend a client of a group. One whose question failed is not used again."""
        client = self._taken(group, isolation) or self._requests.consumer(group, isolation)
        try:
            yield client
        except BaseException:
            end_in_background(client.close, group)
            raise
        self._keep(_Idle(group, isolation, client, time.monotonic()))

    def _taken(self, group: str, isolation: str) -> ConsumerClient | None:
        with self._lock:
            for place, idle in enumerate(self._idle):
                if (idle.group, idle.isolation) == (group, isolation):
                    del self._idle[place]
                    return idle.client
        return None

    def _keep(self, idle: _Idle) -> None:
        with self._lock:
            self._idle.append(idle)
            surplus = self._idle[:-_IDLE]
            del self._idle[:-_IDLE]
            if not self._is_watched:
                self._is_watched = True
                _look_later(weakref.ref(self), self._idle_s)
        _close_all(surplus)

    def close_idle(self) -> None:
        """Close the clients that nobody has asked for long enough, and look again later if others are left."""
        with self._lock:
            long_ago = time.monotonic() - self._idle_s
            over = [idle for idle in self._idle if idle.since_s <= long_ago]
            self._idle[:] = [idle for idle in self._idle if idle.since_s > long_ago]
            self._is_watched = bool(self._idle)
            if self._idle:
                _look_later(weakref.ref(self), self._idle[0].since_s - long_ago)
        _close_all(over)


def _look_later(clients: weakref.ref[GroupClients], wait_s: float) -> None:
    # A weak reference, so that the timer does not keep the clients of an object that nobody uses any more.
    def look() -> None:
        present = clients()
        if present is not None:
            present.close_idle()

    timer = threading.Timer(wait_s, look)
    timer.daemon = True
    timer.start()


def _close_all(clients: list[_Idle]) -> None:
    for idle in clients:
        end_in_background(idle.client.close, idle.group)


class GroupProgress:
    """Reads committed offsets over one connection, without waiting for transactions that are being committed."""

    def __init__(self, requests: Requests, group: str) -> None:
        self._requests = requests
        self._group = group
        # With read_committed, brokers would refuse to answer until open transactions have ended.
        self._consumer = requests.consumer(group, "read_uncommitted")

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        """Return committed offsets and their metadata; partitions without one are left out."""
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
