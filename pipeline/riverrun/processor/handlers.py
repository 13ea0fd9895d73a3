"""Handlers for records that cannot be read, processed or written: built in, or written by users.

A handler receives the context of the failure, the record and the exception, and returns a `Response`:

>>> def skip_and_keep(context, record, exception):
...     letter = dead_letter_queue_record("dead-letters", context, exception)
...     return Response.resume(dead_letter_queue_records=[letter])

Dropped records are counted by reason (`DropReason`); Kafka Streams only counts all of them, as `dropped-records-total`.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from riverrun.arguments import HANDLER
from riverrun.config import AT_LEAST_ONCE
from riverrun.config.code import load_function, users_line
from riverrun.errors import (
    USER_ERRORS,
    ConfigError,
    MemoryExhaustedError,
    ProcessingError,
    RegistryError,
    StreamsError,
    as_exception,
)
from riverrun.records import check_headers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.config import StreamsConfig
    from riverrun.records import ConsumerRecord, Headers, RawFields, Record, TaskId, TopicPartition

log = logging.getLogger(__name__)

WITHOUT_MEMORY = "Give the process more memory, or fewer tasks. If one record needs too much, let your code refuse it."
"""The hint for a failure that no record is to blame for."""
_SET_ASIDE = "set-aside"


class DropReason(StrEnum):
    """All reasons. Metrics and summaries show the values."""

    EXPIRED_WINDOW = "expired-window"
    """A window, session or version was older than the retention of its store."""
    INVALID_TIMESTAMP = "invalid-timestamp"
    """A timestamp extractor returned a negative time."""
    LATE = "late"
    """Its window is closed: stream time has passed the end by the grace period."""
    NO_PARTITION = "no-partition"
    """A sink's partitioner returned no partition."""
    NULL_FOREIGN_KEY = "null-foreign-key"
    """A row has no foreign key to join by."""
    NULL_KEY = "null-key"
    """An operation needs a key, and the record has none."""
    NULL_KEY_OR_VALUE = "null-key-or-value"
    """An operation needs key and value, and the record lacks one."""
    NULL_VALUE = "null-value"
    """An operation needs a value, and the record has none."""
    OUT_OF_ORDER = "out-of-order"
    """A versioned table already had a later version of the row."""
    PROCESSING_FAILED = "processing-failed"
    """User code raised, and `processing.exception.handler` chose to continue."""
    PRODUCTION_FAILED = "production-failed"
    """A sink could not write it, and `production.exception.handler` chose to continue."""
    SET_ASIDE = "set-aside"
    """A handler set the input record aside: it has left no trace."""
    STALE_RESPONSE = "stale-response"
    """A foreign-key join answered after the row had changed again."""
    UNDECODABLE = "undecodable"
    """The source's serdes could not read it, and `deserialization.exception.handler` chose to continue."""


ERRORS_EXCEPTION = "__streams.errors.exception"
ERRORS_MESSAGE = "__streams.errors.message"
ERRORS_STACKTRACE = "__streams.errors.stacktrace"
ERRORS_TOPIC = "__streams.errors.topic"
ERRORS_PARTITION = "__streams.errors.partition"
ERRORS_OFFSET = "__streams.errors.offset"
SET_ASIDE = "__riverrun.set-aside"
"""The last header of letters whose record has left no trace: nothing was processed, or all of it was undone."""


class SerializationExceptionOrigin(Enum):
    """The part of a record that cannot be serialised (`ProductionExceptionHandler.SerializationExceptionOrigin`)."""

    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class ErrorHandlerContext:
    """The context of a failure (`org.apache.kafka.streams.errors.ErrorHandlerContext`).

    Args:
        topic: Topic of the input record; None within a punctuation.
        partition: Its partition; -1 within a punctuation.
        offset: Its offset; -1 within a punctuation.
        headers: Headers of the current record.
        processor_node_id: The node that failed.
        task_id: The task in which it failed.
        timestamp: Event time of the current record, or the time of the punctuation, ms.
        source_raw_key: The serialized key of the input record; None if it has none, or within a punctuation.
        source_raw_value: The serialized value of the input record; None if it has none, or within a punctuation.
        serialization_origin: The part that a sink could not serialise; None for other failures. Kafka Streams passes it to
            `ProductionExceptionHandler.handleSerializationError`, and calls `handleError` for other failures.
        may_be_set_aside: Whether the answer may be `Response.set_aside`. Otherwise the failure concerns no input record since
            the last commit, its input serves as a changelog, or nothing can be undone (`at_least_once`).
    """

    topic: str | None
    partition: int
    offset: int
    headers: Headers
    processor_node_id: str
    task_id: TaskId
    timestamp: int
    source_raw_key: bytes | None = None
    source_raw_value: bytes | None = None
    serialization_origin: SerializationExceptionOrigin | None = None
    may_be_set_aside: bool = False


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to be written (`org.apache.kafka.clients.producer.ProducerRecord`).

    Args:
        topic: Full name of the topic to write to.
        key: Serialized key, or an object that could not be serialised.
        value: Serialized value, or an object that could not be serialised.
        timestamp: Event time, ms since the epoch.
        headers: Pairs of a name and bytes, or None in place of the bytes; default: none.
        partition: The partition; None for Kafka's default.

    Raises:
        ProcessingError: If a header is not a name with bytes or None.
    """

    topic: str
    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()
    partition: int | None = None

    def __post_init__(self) -> None:
        if self.headers != ():
            check_headers(self.headers)


class Result(Enum):
    """A handler's decision."""

    RESUME = "resume"
    """Drop and count the record, and continue."""
    FAIL = "fail"
    """Stop the task."""
    RETRY = "retry"
    """Retry. Hosts retry by themselves where that can help, so this equals `FAIL` (as in Kafka Streams)."""
    SET_ASIDE = "set-aside"
    """Undo all since the last commit, and process it again without the input record. Kafka Streams has no such answer."""


LEAVES_OUT = frozenset({Result.RESUME, Result.SET_ASIDE})
"""The decisions to continue without a record of which nothing has been processed yet."""


@dataclass(frozen=True, slots=True)
class Response:
    """A handler's decision, with records for dead letter topics (`ProcessingExceptionHandler.Response` and its like).

    Args:
        result: Whether to drop the record and continue, or to stop the task.
        dead_letter_queue_records: Records to write in the task's transaction. If the task stops, it aborts the transaction.
    """

    result: Result
    dead_letter_queue_records: tuple[ProducerRecord, ...] = ()

    @classmethod
    def resume(cls, *, dead_letter_queue_records: Iterable[ProducerRecord] = ()) -> Response:
        """Drop the record and continue."""
        return cls(Result.RESUME, tuple(dead_letter_queue_records))

    @classmethod
    def fail(cls, *, dead_letter_queue_records: Iterable[ProducerRecord] = ()) -> Response:
        """Stop the task."""
        return cls(Result.FAIL, tuple(dead_letter_queue_records))

    @classmethod
    def set_aside(cls, *, dead_letter_queue_records: Iterable[ProducerRecord] = ()) -> Response:
        """Undo all that the input record has done, and continue without it; count it.

        The letters are written in the transaction that commits the offset of the record.
        """
        return cls(Result.SET_ASIDE, tuple(dead_letter_queue_records))

    @classmethod
    def retry(cls) -> Response:
        """Retry if that can help; otherwise stop the task."""
        return cls(Result.RETRY)


class DeserializationExceptionHandler(Protocol):
    """Called for a record that cannot be deserialised (`org.apache.kafka.streams.errors.DeserializationExceptionHandler`)."""

    def __call__(
        self, context: ErrorHandlerContext, record: ConsumerRecord[bytes | None, bytes | None], exception: Exception, /
    ) -> Response:
        """Decide how to proceed."""


class ProcessingExceptionHandler(Protocol):
    """Called in the innermost node that raised (`org.apache.kafka.streams.errors.ProcessingExceptionHandler`)."""

    def __call__(
        self, context: ErrorHandlerContext, record: Record[Any, Any] | None, exception: Exception, /
    ) -> Response:
        """Decide how to proceed. The record is this node's input, None within a punctuation."""


class ProductionExceptionHandler(Protocol):
    """Called at a sink (`org.apache.kafka.streams.errors.ProductionExceptionHandler`).

    If serialization fails, the record has key and value as they reached the sink, and `serialization_origin` in the
    context says which of them failed. If the client refuses the record before sending it (too large), key and value are
    bytes. In both cases nothing is in the transaction yet, so exactly this record can be skipped.

    A record that brokers refuse after it was sent always stops the task. Brokers refuse a batch, not a record, and the
    transaction is lost.
    """

    def __call__(self, context: ErrorHandlerContext, record: ProducerRecord, exception: Exception, /) -> Response:
        """Decide how to proceed."""


@dataclass(frozen=True, slots=True)
class ErrorHandlers:
    """The handlers of an application; None stops the task without asking."""

    deserialization: DeserializationExceptionHandler | None = None
    processing: ProcessingExceptionHandler | None = None
    production: ProductionExceptionHandler | None = None
    can_undo: bool = True
    """Whether all since the last commit can be undone: it is one transaction."""


@dataclass(frozen=True, slots=True)
class LogAndContinue:
    """Logs, drops the record and continues (`LogAndContinueExceptionHandler`, `LogAndContinueProcessingExceptionHandler`).

    Args:
        dead_letter_topic: Topic that receives the input record; None for none.
    """

    dead_letter_topic: str | None = None

    def __call__(self, context: ErrorHandlerContext, _record: object, exception: Exception, /) -> Response:
        log.warning("%s", _text(context, exception))
        return Response.resume(dead_letter_queue_records=_letters(self.dead_letter_topic, context, exception))


@dataclass(frozen=True, slots=True)
class LogAndFail:
    """Logs and stops the task (`LogAndFailExceptionHandler`, `LogAndFailProcessingExceptionHandler`).

    Args:
        dead_letter_topic: Topic that receives the input record, if the task's output so far is committed after all.
    """

    dead_letter_topic: str

    def __call__(self, context: ErrorHandlerContext, _record: object, exception: Exception, /) -> Response:
        log.error("%s", _text(context, exception))
        return Response.fail(dead_letter_queue_records=_letters(self.dead_letter_topic, context, exception))


@dataclass(frozen=True, slots=True)
class LogAndSetAside:
    """Logs, sets the input record aside and continues. Kafka Streams has no such handler.

    Stops the task if there is no record that may be set aside, as within a punctuation.

    Args:
        dead_letter_topic: Topic that receives the input record; None for none.
    """

    dead_letter_topic: str | None = None

    def __call__(self, context: ErrorHandlerContext, _record: object, exception: Exception, /) -> Response:
        log.warning("%s", _text(context, exception))
        return Response.set_aside(dead_letter_queue_records=_letters(self.dead_letter_topic, context, exception))


Handler: TypeAlias = "DeserializationExceptionHandler | ProcessingExceptionHandler | ProductionExceptionHandler"


def context_of(tp: TopicPartition, record: RawFields, node: str, task_id: TaskId) -> ErrorHandlerContext:
    """Return the context of a failure at a record as it was read."""
    key, value, timestamp, offset, headers = record
    return ErrorHandlerContext(
        *(tp.topic, tp.partition, offset, headers),
        processor_node_id=node,
        task_id=task_id,
        timestamp=timestamp,
        source_raw_key=key,
        source_raw_value=value,
    )


def _is_of_memory(exception: BaseException | None) -> bool:
    """Return whether memory was short, unless code of the user has said that the record was too large."""
    while isinstance(exception, StreamsError):
        exception = exception.__cause__
    return isinstance(exception, MemoryError)


def decision_of(
    handler: Handler, asked: str, where: ErrorHandlerContext, record: Any, exception: Exception
) -> Response:
    """Return a handler's decision; `asked` is its kind, for messages."""
    if _is_of_memory(exception):
        place = f"{where.topic}-{where.partition}@{where.offset}"
        message = f"Processing ended without memory at {place}: {exception}"
        raise MemoryExhaustedError(message, hint=WITHOUT_MEMORY) from exception
    try:
        response = handler(where, record, exception)
    # Its letters need a schema registry that does not answer: the host tries again later.
    except RegistryError:
        raise
    # The handler is user code, too.
    except USER_ERRORS as error:
        fatal = as_exception(error)
        message = f"Fatal user code error in {asked} error callback: {type(fatal).__name__}: {fatal}"
        raise ProcessingError(message) from fatal
    if not isinstance(response, Response):
        message = f"The {asked} exception handler returned {response!r}, not a Response"
        raise ProcessingError(message) from exception
    return response


def error_handlers(streams: StreamsConfig) -> ErrorHandlers:
    topic, can_undo = streams.errors_dead_letter_queue_topic_name, streams.processing_guarantee != AT_LEAST_ONCE
    if not can_undo and _SET_ASIDE in {streams.processing_exception_handler, streams.production_exception_handler}:
        message = "A record cannot be set aside under at_least_once: what it has done cannot be undone"
        hint = "Set processing.guarantee = exactly_once_v2, or continue instead of set-aside as the handler."
        raise ConfigError(message, hint=hint)
    return ErrorHandlers(
        _handler(streams.deserialization_exception_handler, topic),
        _handler(streams.processing_exception_handler, topic),
        _handler(streams.production_exception_handler, topic),
        can_undo,
    )


def global_error_handlers(streams: StreamsConfig) -> ErrorHandlers:
    """Return the handlers of global tables and stores."""
    handlers = error_handlers(streams)
    # Only on request, as in Kafka Streams (`GlobalStateManagerImpl`).
    processing = handlers.processing if streams.processing_exception_handler_global_enabled else None
    return ErrorHandlers(handlers.deserialization, processing, can_undo=False)


def may_keep_letters(streams: StreamsConfig) -> bool:
    """Return whether dead letters may be written: a topic is configured, or a user's handler may choose one."""
    chosen = (
        streams.deserialization_exception_handler,
        streams.processing_exception_handler,
        streams.production_exception_handler,
    )
    return streams.errors_dead_letter_queue_topic_name is not None or any(":" in handler for handler in chosen)


def may_set_aside(streams: StreamsConfig) -> bool:
    """Return whether a record may be set aside: by the setting, or by a user's handler."""
    chosen = streams.processing_exception_handler, streams.production_exception_handler
    return any(handler == _SET_ASIDE or ":" in handler for handler in chosen)


def _handler(chosen: str, topic: str | None) -> Any:
    if chosen == "continue":
        return LogAndContinue(topic)
    if chosen == _SET_ASIDE:
        return LogAndSetAside(topic)
    if chosen == "fail":
        return None if topic is None else LogAndFail(topic)
    hint = "Write a function of (context, record, exception) that returns a Response."
    return load_function(chosen, HANDLER, role="an exception handler", hint=hint)


def dead_letter_queue_record(topic: str, context: ErrorHandlerContext, exception: Exception) -> ProducerRecord:
    """Return the input record in the form for a dead letter topic (`ExceptionHandlerUtils.buildDeadLetterQueueRecord`).

    Its headers are those of the current record, followed by the exception with message and stack trace. Topic, partition and
    offset of the input record follow as text.

    Args:
        topic: The dead letter topic.
        context: Where the failure happened.
        exception: The failure.
    """
    trace = "".join(traceback.format_exception(exception))
    texts = (
        (ERRORS_EXCEPTION, _class_name(exception)),
        (ERRORS_MESSAGE, str(exception) or None),
        (ERRORS_STACKTRACE, trace),
        (ERRORS_TOPIC, context.topic),
        (ERRORS_PARTITION, str(context.partition)),
        (ERRORS_OFFSET, str(context.offset)),
    )
    added = tuple((name, None if text is None else text.encode()) for name, text in texts)
    # A letter can be written even if the record's own timestamp is malformed.
    timestamp = max(context.timestamp, 0)
    return ProducerRecord(
        topic, context.source_raw_key, context.source_raw_value, timestamp, (*context.headers, *added)
    )


def without_trace(letter: ProducerRecord) -> ProducerRecord:
    """Return a letter that says that its record has left no trace, so that a replay repeats nothing."""
    return replace(letter, headers=(*letter.headers, (SET_ASIDE, None)))


def _letters(topic: str | None, context: ErrorHandlerContext, exception: Exception) -> list[ProducerRecord]:
    return [] if topic is None else [dead_letter_queue_record(topic, context, exception)]


def _class_name(exception: Exception) -> str:
    """Return the name as in a stack trace: with its module, unless it is built in."""
    kind = type(exception)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(context: ErrorHandlerContext, exception: Exception) -> str:
    """Describe a failure for the log."""
    # Without headers, keys or values: they are the user's data.
    where = f"topic {context.topic}, partition {context.partition}, offset {context.offset}"
    node, failed = context.processor_node_id, f"{type(exception).__name__}: {exception}"
    line = users_line(exception)
    return f"{node} in task {context.task_id} failed: {failed} ({where}){'' if line is None else f'. {line}'}"
