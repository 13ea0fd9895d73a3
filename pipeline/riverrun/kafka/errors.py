"""Translates all errors of the client library."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from riverrun.errors import BrokerError, ConfigError, StreamsError, TaskMigratedError, TopicError, UnknownOutcomeError
from riverrun.kafka import librdkafka
from riverrun.kafka.tokens import newer_token_may_help

if TYPE_CHECKING:
    from collections.abc import Iterator

FENCED = frozenset(
    {
        librdkafka.FENCED_PRODUCER,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Another producer with the same transactional id has taken over."""

UNREACHABLE = frozenset(
    {
        librdkafka.ALL_BROKERS_DOWN,
        librdkafka.TRANSPORT,
        # A broker that was asked has left the metadata meanwhile.
        librdkafka.DESTROY_BROKER,
        librdkafka.TIMED_OUT,
        librdkafka.RESOLVE,
        librdkafka.MSG_TIMED_OUT,
        librdkafka.WAIT_COORD,
        librdkafka.TIMED_OUT_QUEUE,
        # Reported for brokers whose features are not known yet.
        librdkafka.UNSUPPORTED_FEATURE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)
"""The brokers do not answer; waiting may help."""

BUSY = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""The brokers answer but are not ready; waiting helps (Java: subclasses of `RetriableException`)."""

REFUSED_LOGIN = frozenset(
    {
        librdkafka.AUTHENTICATION,
        librdkafka.SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
"""The brokers refuse the connection or the login."""

REFUSED_TOKEN = frozenset({librdkafka.AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
"""The brokers refuse a login, maybe with a token that has ended."""

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The brokers know the client, but deny the operation."""

MISSING_HINT = (
    "Correct the topic's name, or create the topic if it is not internal. If internal topics (-changelog, "
    "-repartition) are missing, the next start lists them and changes nothing."
)
MISSING_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        librdkafka.UNKNOWN_TOPIC,
        librdkafka.UNKNOWN_PARTITION,
    }
)
"""There is no such topic or partition."""


_CONNECTION_ENDED = tuple(
    KafkaError(code).str() for code in (librdkafka.TRANSPORT, librdkafka.TIMED_OUT, librdkafka.TIMED_OUT_QUEUE)
)


def is_login_refused(error: KafkaError) -> bool:
    """Return whether brokers refuse the connection or the login."""
    # The library reports a connection that ends during a login, as when a broker stops, as a login that failed.
    has_ended = error.code() == librdkafka.AUTHENTICATION and any(each in error.str() for each in _CONNECTION_ENDED)
    return error.code() in REFUSED_LOGIN and not has_ended


def streams_error(error: KafkaError, doing: str) -> StreamsError:
    """Translate a client's error; `doing` completes "Cannot" in its message."""
    code, is_refused = error.code(), is_login_refused(error)
    # A process may log in to a schema registry and to databases as well, whose errors name them.
    whose = "Kafka refuses the login: " if is_refused else "Kafka denies it: " if code in DENIED else ""
    text = f"Cannot {doing}: {whose}{error.str()}"
    if code == KafkaError.INVALID_PRODUCER_ID_MAPPING:
        forgotten = "or nothing was written for transactional.id.expiration.ms, and brokers have forgotten the id"
        return TaskMigratedError(f"{text}: another owner has taken over, {forgotten}")
    if code in FENCED:
        return TaskMigratedError(f"{text}: another owner has taken over")
    if code in MISSING_TOPIC:
        return TopicError(text, hint=MISSING_HINT)
    if code in UNREACHABLE or (code in REFUSED_LOGIN and not is_refused):
        hint = "Check that the brokers run and that bootstrap.servers names them."
        return BrokerError(text, retriable=True, hint=hint)
    # A fatal error leaves the library's producer unusable, whatever caused it.
    if code == librdkafka.FATAL:
        return UnknownOutcomeError(f"{text}: the producer cannot be used any more")
    if code == librdkafka.INVALID_ARG:
        return ConfigError(text, hint="Check the [kafka] section, and consumer.* and producer.* of the application.")
    is_passing = code in BUSY or bool(error.retriable()) or (code in REFUSED_TOKEN and newer_token_may_help())
    return BrokerError(text, retriable=is_passing, hint=_hint(code))


def _hint(code: int) -> str | None:
    if code in REFUSED_LOGIN:
        own = "If consumer.* or producer.* of the application have another login, check it."
        return f"Check security.protocol, sasl.mechanism and the credentials in the [kafka] section. {own}"
    if code in DENIED:
        return "Grant the user of the [kafka] section access to it."
    if code == KafkaError.NON_EMPTY_GROUP:
        return "Stop all its members first: workers and runs of the application."
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return (
            "Raise the topic's max.message.bytes, or set producer.message.max.bytes to its value: "
            "production.exception.handler can skip records that the client refuses, but brokers refuse whole "
            "batches."
        )
    if code == KafkaError.OFFSET_METADATA_TOO_LARGE:
        return (
            "A task commits the times of its operators with its offsets: raise offset.metadata.max.bytes of the "
            "brokers (default 4096). This commit had no effect."
        )
    if code in {KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}:
        return (
            "The event time of a record may be further from the brokers' clock than the topic allows: correct it "
            "(timestamp_extractor), or raise message.timestamp.after.max.ms or message.timestamp.before.max.ms of "
            "the topic. Compacted topics refuse records without a key."
        )
    return None


@contextmanager
def mapped_errors(doing: str) -> Iterator[None]:
    """Translate the client's exceptions to Riverrun's; `doing` completes "Cannot" in their messages."""
    try:
        yield
    except KafkaException as error:
        raise streams_error(error.args[0], doing) from error
