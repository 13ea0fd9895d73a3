"""Handlers of records that cannot be read, processed or written; users choose or write them.

A handler is called with the place of the failure, the record and the exception, and answers with a `Response`:

>>> def skip_and_keep(context, record, exception):
...     letter = dead_letter_queue_record("dead-letters", context, exception)
...     return Response.resume(dead_letter_queue_records=[letter])
"""

from __future__ import annotations

import inspect
import logging
import traceback
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pipeline.config import load_attribute
from pipeline.errors import ConfigError
from pipeline.records import check_headers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.config import StreamsConfig
    from pipeline.records import ConsumerRecord, Headers, Record, TaskId

log = logging.getLogger(__name__)

ERRORS_EXCEPTION = "__streams.errors.exception"
ERRORS_MESSAGE = "__streams.errors.message"
ERRORS_STACKTRACE = "__streams.errors.stacktrace"
ERRORS_TOPIC = "__streams.errors.topic"
ERRORS_PARTITION = "__streams.errors.partition"
ERRORS_OFFSET = "__streams.errors.offset"


class SerializationExceptionOrigin(Enum):
    """The part of a record that cannot be serialised (`ProductionExceptionHandler.SerializationExceptionOrigin`)."""

    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class ErrorHandlerContext:
    """The place of a failure (`org.apache.kafka.streams.errors.ErrorHandlerContext`).

    Args:
        topic: Topic of the input record; None within a punctuation.
        partition: Its partition; -1 within a punctuation.
        offset: Its offset; -1 within a punctuation.
        headers: Headers of the record that was being processed.
        processor_node_id: The node that failed.
        task_id: The task it failed in.
        timestamp: Event time of the record that was being processed, or the time of the punctuation, ms.
        source_raw_key: The input record's key as it was read; None as well if there is no such record, as within a punctuation.
        source_raw_value: Its value, likewise.
        serialization_origin: What a sink could not serialise; None wherever something else failed. Kafka Streams gives it to
            `ProductionExceptionHandler.handleSerializationError`, and calls `handleError` for all else.
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


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to be written (`org.apache.kafka.clients.producer.ProducerRecord`).

    Args:
        topic: Where to.
        key: Key: bytes, or what could not be written as bytes.
        value: Value, likewise.
        timestamp: Event time, ms.
        headers: Headers.
        partition: The partition; None leaves it to Kafka's default.

    Raises:
        ProcessingError: If headers are no names with bytes or None.
    """

    topic: str
    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()
    partition: int | None = None

    def __post_init__(self) -> None:
        """Refuse what are no headers."""
        if self.headers != ():
            check_headers(self.headers)


class Result(Enum):
    """A handler's decision."""

    RESUME = "resume"
    """Drop the record, count it, and go on."""
    FAIL = "fail"
    """Stop the task."""
    RETRY = "retry"
    """Try again. Hosts try again by themselves whatever can be tried again, so this is `FAIL` (as in Kafka Streams)."""


@dataclass(frozen=True, slots=True)
class Response:
    """A handler's answer (`ProcessingExceptionHandler.Response` and its like).

    Args:
        result: What to do.
        dead_letter_queue_records: Bytes to write within the task's transaction. If the task stops, that is aborted.
    """

    result: Result
    dead_letter_queue_records: tuple[ProducerRecord, ...] = ()

    @classmethod
    def resume(cls, *, dead_letter_queue_records: Iterable[ProducerRecord] = ()) -> Response:
        """Drop the record and go on."""
        return cls(Result.RESUME, tuple(dead_letter_queue_records))

    @classmethod
    def fail(cls, *, dead_letter_queue_records: Iterable[ProducerRecord] = ()) -> Response:
        """Stop the task."""
        return cls(Result.FAIL, tuple(dead_letter_queue_records))

    @classmethod
    def retry(cls) -> Response:
        """Try again, if that can help; else stop the task."""
        return cls(Result.RETRY)


class DeserializationExceptionHandler(Protocol):
    """Called for a record that cannot be decoded (`org.apache.kafka.streams.errors.DeserializationExceptionHandler`)."""

    def __call__(
        self, context: ErrorHandlerContext, record: ConsumerRecord[bytes | None, bytes | None], exception: Exception, /
    ) -> Response:
        """Decide what to do about it."""
        ...


class ProcessingExceptionHandler(Protocol):
    """Called in the innermost node that raised (`org.apache.kafka.streams.errors.ProcessingExceptionHandler`)."""

    def __call__(
        self, context: ErrorHandlerContext, record: Record[Any, Any] | None, exception: Exception, /
    ) -> Response:
        """Decide what to do about it; the record is the one this node was given, None within a punctuation."""
        ...


class ProductionExceptionHandler(Protocol):
    """Called at a sink (`org.apache.kafka.streams.errors.ProductionExceptionHandler`).

    For what cannot be serialised the record has key and value as they reached the sink, and the context says which of them
    it is (`serialization_origin`); for what the client refuses before it is sent (too large), it has bytes. Nothing of either
    is in the transaction, so exactly that record can be skipped. What brokers refuse after it was sent always stops the task:
    they refuse a batch, not a record, and the transaction is lost.
    """

    def __call__(self, context: ErrorHandlerContext, record: ProducerRecord, exception: Exception, /) -> Response:
        """Decide what to do about it."""
        ...


@dataclass(frozen=True, slots=True)
class ErrorHandlers:
    """The handlers of an application; None stops the task without asking."""

    deserialization: DeserializationExceptionHandler | None = None
    processing: ProcessingExceptionHandler | None = None
    production: ProductionExceptionHandler | None = None


@dataclass(frozen=True, slots=True)
class LogAndContinue:
    """Logs, drops the record and goes on (`LogAndContinueExceptionHandler`, `LogAndContinueProcessingExceptionHandler`).

    Args:
        dead_letter_topic: Where the input record is kept; None keeps it nowhere.
    """

    dead_letter_topic: str | None = None

    def __call__(self, context: ErrorHandlerContext, _record: object, exception: Exception, /) -> Response:
        """Go on."""
        log.warning("%s", _text(context, exception))
        return Response.resume(dead_letter_queue_records=_letters(self.dead_letter_topic, context, exception))


@dataclass(frozen=True, slots=True)
class LogAndFail:
    """Logs and stops the task (`LogAndFailExceptionHandler`, `LogAndFailProcessingExceptionHandler`).

    Args:
        dead_letter_topic: Where the input record is kept, if what the task has written so far is committed after all.
    """

    dead_letter_topic: str

    def __call__(self, context: ErrorHandlerContext, _record: object, exception: Exception, /) -> Response:
        """Stop."""
        log.error("%s", _text(context, exception))
        return Response.fail(dead_letter_queue_records=_letters(self.dead_letter_topic, context, exception))


Handler: TypeAlias = "DeserializationExceptionHandler | ProcessingExceptionHandler | ProductionExceptionHandler"


def error_handlers(streams: StreamsConfig) -> ErrorHandlers:
    """The handlers that are configured.

    Raises:
        ConfigError: If one cannot be imported, or cannot be called.
    """
    topic = streams.errors_dead_letter_queue_topic_name
    return ErrorHandlers(
        _handler(streams.deserialization_exception_handler, topic),
        _handler(streams.processing_exception_handler, topic),
        _handler(streams.production_exception_handler, topic),
    )


def global_error_handlers(streams: StreamsConfig) -> ErrorHandlers:
    """The handlers of global tables and stores: that of failures in processors only if it is to be asked there, too.

    That is `processing.exception.handler.global.enabled`, as in Kafka Streams (`GlobalStateManagerImpl`).

    Raises:
        ConfigError: If one cannot be imported, or cannot be called.
    """
    handlers = error_handlers(streams)
    processing = handlers.processing if streams.processing_exception_handler_global_enabled else None
    return ErrorHandlers(handlers.deserialization, processing)


def may_keep_letters(streams: StreamsConfig) -> bool:
    """Whether dead letters may be written: there is a topic for them, or a handler of the user's may choose one."""
    chosen = (
        streams.deserialization_exception_handler,
        streams.processing_exception_handler,
        streams.production_exception_handler,
    )
    return streams.errors_dead_letter_queue_topic_name is not None or any(":" in handler for handler in chosen)


def _handler(chosen: str, topic: str | None) -> Any:
    if chosen == "continue":
        return LogAndContinue(topic)
    if chosen == "fail":
        return None if topic is None else LogAndFail(topic)
    found = load_attribute(chosen)
    handler = found() if isinstance(found, type) else found
    if not (callable(handler) and _takes_three(handler)):
        message = f"{chosen} is {handler!r}, which cannot be called as an exception handler"
        raise ConfigError(message, hint="Write a function of (context, record, exception) that gives a Response.")
    return handler


def _takes_three(handler: Any) -> bool:
    """Whether it can be called with three arguments, as far as it says which it takes."""
    try:
        inspect.signature(handler).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # it does not say
        return True
    return True


def dead_letter_queue_record(topic: str, context: ErrorHandlerContext, exception: Exception) -> ProducerRecord:
    """The input record as it is kept in a dead letter topic (`ExceptionHandlerUtils.buildDeadLetterQueueRecord`).

    Its headers are those of the record that was being processed, then what failed, its message and stack trace, and the
    topic, partition and offset of the input record, as text.

    Args:
        topic: The dead letter topic.
        context: Where something failed.
        exception: What failed.
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
    timestamp = max(context.timestamp, 0)  # whatever was wrong with the record, its letter can be written
    return ProducerRecord(
        topic, context.source_raw_key, context.source_raw_value, timestamp, (*context.headers, *added)
    )


def _letters(topic: str | None, context: ErrorHandlerContext, exception: Exception) -> list[ProducerRecord]:
    return [] if topic is None else [dead_letter_queue_record(topic, context, exception)]


def _class_name(exception: Exception) -> str:
    """The name as a stack trace shows it: with its module, unless it is built in."""
    kind = type(exception)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(context: ErrorHandlerContext, exception: Exception) -> str:
    """No headers, keys or values: they are the user's data."""
    where = f"topic {context.topic}, partition {context.partition}, offset {context.offset}"
    return f"{context.processor_node_id} in task {context.task_id} failed: {type(exception).__name__}: {exception} ({where})"
