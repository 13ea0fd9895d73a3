"""Requests to brokers, each with a deadline, and requests to the leaders of partitions.

Leaders are asked for offsets: the beginning, the end, and the offset of a time.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.errors import BrokerError, ConfigError, TopicError
from riverrun.kafka import librdkafka
from riverrun.kafka.errors import (
    BUSY,
    MISSING_HINT,
    MISSING_TOPIC,
    UNREACHABLE,
    is_login_refused,
    mapped_errors,
    streams_error,
)
from riverrun.kafka.librdkafka import end_in_background
from riverrun.records import TopicPartition, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from riverrun.errors import StreamsError
    from riverrun.kafka.clients import ConsumerClient
    from riverrun.kafka.door import Kafka

log = logging.getLogger(__name__)

CLIENT_ID = "riverrun-admin"
REQUEST_SECONDS = 15.0
"""Time limit of a request, after which the brokers count as unreachable."""
# The pause between two attempts doubles: most conditions hold within milliseconds.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.05

# A leader that has not answered by then is looked up again: the client itself would ask a dead broker for minutes.
_ANSWER_SECONDS = 3.0
# Brokers learn of new topics at different times, so one may deny for so long that a topic exists.
_MISSING_SECONDS = 5.0
# The topic was just created, or its broker just started or died.
_NO_LEADER = BUSY | UNREACHABLE | MISSING_TOPIC | {librdkafka.NOENT}


class Requests:
    """Creates clients for requests, and waits for their answers."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        # The callback is no method: a client in a reference cycle would live until garbage collection.
        refusals: list[KafkaError] = []
        self._refusals = refusals

        def connection_failed(error: KafkaError) -> None:
            if is_login_refused(error):
                refusals[:] = [error]

        # To the library an admin client is a producer, whose requests may make brokers create the topics they mention.
        own = {"client.id": CLIENT_ID, "allow.auto.create.topics": False, "error_cb": connection_failed}
        try:
            with mapped_errors("use the client properties"):
                # It must outlive its requests: the future of a collected client never ends.
                self.client = kafka.admin(own)
        except ConfigError as error:
            missing = [f"{name} {path}" for name, path in kafka.properties.items() if _is_missing_file(name, path)]
            error.hint = f"These files do not exist: {', '.join(missing)}" if missing else error.hint
            raise

    def consumer(
        self, group: str, isolation: str = "read_committed", properties: Mapping[str, Any] = MappingProxyType({})
    ) -> ConsumerClient:
        """Return a consumer that reads or sets a group's offsets without joining. The caller closes it."""
        # The admin client would crash the process if the coordinator has just started, moved or died (librdkafka issue
        # 5040, pull request 5397).
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        with mapped_errors("create a consumer"):
            return self.kafka.consumer({**own, **properties})

    def result(self, future: Future[Any], doing: str, *, ignore: Collection[int] = ()) -> Any:
        """Return a request's answer; None if it is an error with a code to ignore. `doing` completes "Cannot"."""
        with self.asking(doing):
            try:
                # The library should give up first, with an error that names the reason.
                return future.result(REQUEST_SECONDS + 5)
            except KafkaException as error:
                if error.args[0].code() not in ignore:
                    raise
        return None

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Translate the client's exceptions to Riverrun's errors, with the servers' names."""
        try:
            yield
        except KafkaException as error:
            raise self.error(error.args[0], doing) from error
        # The future's timeout: the library should have given up earlier.
        except TimeoutError as error:
            raise self.error(KafkaError(librdkafka.TIMED_OUT), doing) from error

    def error(self, error: KafkaError, doing: str) -> StreamsError:
        """Return the error with its true cause: a refused login looks like a broker that does not answer."""
        if error.code() in UNREACHABLE:
            error = self.refusal() or error
        return streams_error(error, f"{doing} at {self.kafka.servers}")

    def refusal(self) -> KafkaError | None:
        """Return why the brokers refused the login; None if they did not, or did not answer. Each refusal is returned once."""
        # The library reports a refused login only to `error_cb`, which `poll` calls.
        self.client.poll(0)
        return self._refusals.pop() if self._refusals else None

    def until(
        self,
        condition: Callable[[], bool],
        doing: str,
        seconds: float = REQUEST_SECONDS,
        error: type[BrokerError] = BrokerError,
        hint: str = "Try again: the brokers are slow, or a leader has just died.",
    ) -> None:
        """Check repeatedly until a condition holds. `doing` completes "Cannot" in the retriable error."""
        deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                message = f"Cannot {doing} at {self.kafka.servers} within {seconds:.0f} s"
                raise error(message, retriable=True, hint=hint)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _is_missing_file(name: str, path: str) -> bool:
    # `probe` makes librdkafka search the usual places for certificates.
    return name.startswith("ssl.") and name.endswith(".location") and path != "probe" and not Path(path).exists()


class Leaders:
    """Asks leaders through consumers, whose requests end on time even if a leader has died.

    It keeps one consumer per isolation level, and closes them at its end.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._askers: dict[str, ConsumerClient] = {}
        self._making_asker = threading.Lock()
        # Not `atexit`: a process that ends closes its connections anyway.
        weakref.finalize(self, _end_all, self._askers).atexit = False

    def offsets(
        self, tps: Iterable[TopicPartition], time_ms: int, isolation: str = "read_committed"
    ) -> dict[TopicPartition, int]:
        """Look up offsets with `ListOffsets`: the first ones of a time, or `OFFSET_BEGINNING` or `OFFSET_END`."""
        request = [ClientTopicPartition(*tp, time_ms) for tp in tps]
        if not request:
            return {}
        found: dict[TopicPartition, int] = {}
        missing_at = time.monotonic() + _MISSING_SECONDS

        def has_leaders() -> bool:
            # The end is the last stable offset for `read_committed`, and the high watermark for `read_uncommitted`.
            asker = self._asker(isolation)
            try:
                # The admin client's `list_offsets` may answer -1001 without an error while a leader dies.
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

    def _leader_comes(
        self, asker: ConsumerClient, error: KafkaError, tp: ClientTopicPartition, missing_at: float
    ) -> bool:
        """Return False for an error that will pass: a partition without a leader, or with one that does not answer.

        Until `missing_at`, a topic that a broker does not know is such an error, too.
        """
        if error.code() not in _NO_LEADER:
            raise self._requests.error(error, f"look up offsets of {tp.topic}-{tp.partition}")
        try:
            self._check_exists(asker, TopicPartition(tp.topic, tp.partition))
        except TopicError:
            if time.monotonic() > missing_at:
                raise
        return False

    def _check_exists(self, asker: ConsumerClient, tp: TopicPartition) -> None:
        """Distinguish a missing partition from one without a leader at present. Afterwards the client knows the leader."""
        with self._requests.asking(f"find the leader of {tp}"):
            known = asker.list_topics(timeout=REQUEST_SECONDS).topics
        count = len(known[tp.topic].partitions) if tp.topic in known else 0
        if tp.partition >= count:
            has = f"has {counted(count, 'partition')}, but no partition {tp.partition}" if count else "does not exist"
            message = f"Topic {tp.topic} {has}"
            raise TopicError(message, hint=MISSING_HINT)

    def _asker(self, isolation: str) -> ConsumerClient:
        # Tasks ask concurrently.
        with self._making_asker:
            if isolation not in self._askers:
                self._askers[isolation] = self._requests.consumer("riverrun-unjoined", isolation)
            return self._askers[isolation]


def _end_all(askers: dict[str, ConsumerClient]) -> None:
    # No method: a finalizer that refers to its object would keep it.
    for consumer in askers.values():
        end_in_background(consumer.close, "asker")
