"""The one door through which the client library's errors come in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from pipeline.errors import BrokerError, ConfigError, StreamsError, TaskMigratedError, TopicError

if TYPE_CHECKING:
    from collections.abc import Iterator

FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - how the library names its own codes
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Another producer with the same transactional id has taken over."""

UNREACHABLE = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - how the library names its own codes
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)
"""Waiting may help."""

MISSING_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - how the library names its own codes
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
"""There is no such topic or partition."""


def streams_error(error: KafkaError, doing: str) -> StreamsError:
    """What a client's error means to whoever must act.

    Args:
        error: The client's error.
        doing: What was being done, as in "cannot <doing>".
    """
    text = f"Cannot {doing}: {error.str()}"
    code = error.code()
    if code in FENCED:
        return TaskMigratedError(f"{text}: another owner has taken over")
    if code in MISSING_TOPIC:
        return TopicError(text, hint="Create the topic, or correct its name.")
    if code in UNREACHABLE:
        hint = "Check that the brokers run and that bootstrap.servers names them."
        return BrokerError(text, retriable=True, hint=hint)
    if code == KafkaError._INVALID_ARG:  # noqa: SLF001 - how the library names its own codes
        return ConfigError(text, hint="Check the [kafka] section.")
    return BrokerError(text, retriable=bool(error.retriable()))


@contextmanager
def mapped_errors(doing: str) -> Iterator[None]:
    """Turn the client's exceptions into Millrace's.

    Args:
        doing: What is being done, as in "cannot <doing>".
    """
    try:
        yield
    except KafkaException as error:
        raise streams_error(error.args[0], doing) from error
