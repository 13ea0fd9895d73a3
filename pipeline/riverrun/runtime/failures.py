"""Handles records that cannot be read, processed or written: asks the handlers once per failure."""

from __future__ import annotations

import logging
import struct
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_stack, walk_tb
from typing import TYPE_CHECKING, Any, NoReturn

from riverrun.arguments import refuse_unstarted
from riverrun.config.code import users_line
from riverrun.errors import (
    USER_ERRORS,
    BrokerError,
    CorruptStateError,
    DebuggerError,
    DeserializationError,
    MemoryExhaustedError,
    ProcessingError,
    RecordError,
    SerializationError,
    SetAsideError,
    StreamsError,
    TaskError,
    as_exception,
)
from riverrun.operators.process import UserProcessor
from riverrun.processor.handlers import (
    LEAVES_OUT,
    WITHOUT_MEMORY,
    DropReason,
    ErrorHandlerContext,
    Result,
    context_of,
    decision_of,
    without_trace,
)
from riverrun.records import ConsumerRecord, Record, TopicPartition
from riverrun.runtime.context import GLOBAL_TASK
from riverrun.serde.api import hint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from riverrun.processor.handlers import (
        ErrorHandlers,
        Handler,
        ProducerRecord,
        Response,
        SerializationExceptionOrigin,
    )
    from riverrun.records import Headers, RawRecord, Send, TaskId
    from riverrun.runtime.context import FailedRecord, TaskContext

    Forward = Callable[[Any, Any, int, Headers], None]

log = logging.getLogger(__name__)

_NO_RECORD = "Correct it and start again. No handler is asked about what concerns no record."
_NONE_TO_SET_ASIDE = (
    "What time has brought out, a punctuation, a global table, and at_least_once have none. Nor has the input of a table that"
    " is restored from it (reuse.ktable.source.topics). A handler can look at context.may_be_set_aside, and answer"
    " Response.resume() then."
)
# A chain of processors is recognised on the stack by the code that calls them.
_PROCESSORS = {UserProcessor.process.__code__}
# A processor takes about so many nested calls to forward a record; with more, the recursion is its own.
_MOST_CALLS = 10
# The host must handle these: a handler that skipped the record because of one would lose it.
NOT_THE_USERS = (TaskError, BrokerError, CorruptStateError, DebuggerError, MemoryExhaustedError)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that a handler has set aside: a task leaves it out from its last commit on.

    Args:
        record: The record as it was read; records of a pack share its offset.
        letters: Its dead letters, which the task writes when it comes to the record.
    """

    task_id: TaskId
    tp: TopicPartition
    record: RawRecord
    letters: tuple[ProducerRecord, ...]
    failed: FailedRecord


class Failures:
    """Asks a task's handlers, sends their dead letters, and counts dropped records or raises errors as they decide.

    Kafka Streams does this in `ProcessorNode.process`, `StreamTask.punctuate`, `RecordDeserializer` and `RecordCollectorImpl`.

    Args:
        changelogs: Inputs from which stores are restored, with every record.
    """

    def __init__(
        self,
        handlers: ErrorHandlers,
        context: TaskContext,
        task_id: TaskId,
        send: Send,
        changelogs: Collection[TopicPartition] = (),
    ) -> None:
        self._handlers = handlers
        self._changelogs = changelogs
        self._context = context
        self._task_id = task_id
        self._send = self._send_anywhere = send
        self._decided: Exception | None = None
        self._undone: SetAsideError | None = None
        self.aside: tuple[SetAside, ...] = ()
        """Records that earlier attempts have set aside, and that are still to come."""

    def keep_letters_in(self, topic: str | None) -> None:
        """Send all dead letters to one topic from now on; with None, to the topics that the handlers name."""
        self._send = self._send_anywhere if topic is None else _to_topic(self._send_anywhere, topic)

    @property
    def needs_sources(self) -> bool:
        """Return whether a handler may need the input record, as it was read, of a later failure."""
        return self._handlers.processing is not None or self._handlers.production is not None

    @property
    def asks_what_to_skip(self) -> bool:
        """Return whether a handler decides about records that cannot be decoded."""
        return self._handlers.deserialization is not None

    def leaves_out(self, tp: TopicPartition, record: RawRecord) -> bool:
        """Return whether an earlier attempt has set a record aside; if so, send its letters and count it."""
        if not self.aside:
            return False
        found = next((each for each in self.aside if each.record == record and each.tp == tp), None)
        if found is None:
            return False
        # Only one of equal records in a pack.
        self.aside = tuple(each for each in self.aside if each is not found)
        self._send_letters(found.letters)
        self._context.note_skipped(found.failed)
        self._context.drop(DropReason.SET_ASIDE)
        # The next record that is set aside would undo this again.
        self._context.commit_requested = True
        return True

    def require_whole(self) -> None:
        """Make sure that no record was set aside in this attempt, even if code of the user has caught the error."""
        if self._undone is not None:
            raise self._undone

    def guarded(self, process: Forward, node: str) -> Forward:
        """Return the function with its failures passed to the handler; without a handler, the function itself."""
        if self._handlers.processing is None:
            return process

        def guard(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            try:
                process(key, value, timestamp, headers)
            except NOT_THE_USERS:
                raise
            except USER_ERRORS as error:
                # A node below has failed, and its handler has decided: handlers are asked once per failure.
                if error is self._decided:
                    raise
                self._processing(node, (key, value, timestamp, headers), as_exception(error))

        return guard

    def punctuate(self, punctuator: Callable[[int], object], now_ms: int, node: str) -> None:
        try:
            result = punctuator(now_ms)
            if result is not None:
                refuse_unstarted(result, f"The punctuator of {node}")
        except NOT_THE_USERS:
            raise
        except USER_ERRORS as error:
            if error is self._decided:
                raise
            if self._handlers.processing is None:
                self._fail(f"Punctuation of {node}", as_exception(error))
            self._processing(node, None, as_exception(error))

    def undecodable(
        self, node: str, tp: TopicPartition, raw: RawRecord, error: Exception, message: str, advice: str | None = None
    ) -> None:
        """Handle a record that a source cannot decode, or whose event time cannot be found; `advice` names an alternative."""
        handler = self._handlers.deserialization
        if handler is not None:
            where = context_of(tp, raw, node, self._task_id)
            record = ConsumerRecord(raw.key, raw.value, raw.timestamp, raw.headers, *tp, raw.offset)
            # Nothing has been processed of it, so it is set aside as it is.
            response = decision_of(handler, "deserialization", where, record, error)
            self._send_letters(map(without_trace, response.dead_letter_queue_records))
            if response.result in LEAVES_OUT:
                self._skip(where, error, DropReason.UNDECODABLE)
                return
        place: dict[str, str | int] = {
            "task": str(self._task_id),
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": raw.offset,
            "node": node,
        }
        hint = "Set deserialization.exception.handler = continue to skip such records."
        # Of an extractor, or of a serde of the user.
        line = users_line(error)
        hints = "" if line is None else f"{line}\n", f"{advice} " if advice else "", hint
        failed = DeserializationError(message, hint="".join(hints))
        raise (failed.at(**place) if self._task_id == GLOBAL_TASK else located(failed, place)) from error

    def unserializable(
        self,
        node: str,
        record: ProducerRecord,
        origin: SerializationExceptionOrigin,
        error: Exception,
        message: str,
        *,
        is_internal: bool,
    ) -> None:
        """Handle a record whose key or value a sink cannot serialise."""
        if not self._production_goes_on(node, record, error, origin):
            failed = SerializationError(message, hint=hint_of(error))
            # Decided for the nodes above as well. But a function of the user may have made a key that a repartition topic
            # refuses: unless a handler was asked, that is a failure of its node.
            if self._handlers.production is not None or not is_internal:
                self._decided = failed
            raise failed from error

    def without_partition(self, topic: str) -> None:
        """Drop a record that a partitioner sends to no partition (`RecordCollectorImpl.send`)."""
        log.warning("a record is dropped: the partitioner named no partition of %s", topic)
        self._context.drop(DropReason.NO_PARTITION)

    def refused(self, node: str, record: ProducerRecord, error: BrokerError) -> None:
        """Handle a record that the client refused before it was sent."""
        if not self._production_goes_on(node, record, error):
            raise error

    def _processing(self, node: str, record: tuple[Any, Any, int, Headers] | None, error: Exception) -> None:
        handler = self._handlers.processing
        assert handler is not None, "only guarded nodes ask"  # noqa: S101 - see `guarded`
        context = self._context
        before, context.before_failure = context.before_failure, None
        timestamp, headers = (context.timestamp, context.headers) if record is None else record[2:]
        where = self._where(node, timestamp, headers, error)
        # A `Record` refuses negative times, and this error would replace the user's.
        given = None if record is None or timestamp < 0 else Record(*record)
        if self._ask(handler, where, given, error, "processing").result is not Result.RESUME:
            self._fail("Processing" if record is not None else f"Punctuation of {node}", error)
        self._skip(where, error, DropReason.PROCESSING_FAILED)
        if before is not None:
            context.topic, context.partition, context.offset, context.timestamp, context.headers, context.source = (
                before
            )

    def _production_goes_on(
        self,
        node: str,
        record: ProducerRecord,
        error: Exception,
        origin: SerializationExceptionOrigin | None = None,
    ) -> bool:
        handler = self._handlers.production
        if handler is None:
            return False
        where = self._where(node, record.timestamp, record.headers, error, origin)
        if self._ask(handler, where, record, error, "production").result is not Result.RESUME:
            return False
        self._skip(where, error, DropReason.PRODUCTION_FAILED)
        return True

    def _where(
        self,
        node: str,
        timestamp: int,
        headers: Headers,
        error: Exception,
        origin: SerializationExceptionOrigin | None = None,
    ) -> ErrorHandlerContext:
        context, source = self._context, self._context.source
        key, value = (None, None) if source is None else (source.key, source.value)
        failed = context.failed_by_time
        # The cause if it is no `Exception` (`as_exception`).
        by_time = context.is_by_time or (failed is not None and (failed is error or failed is error.__cause__))
        is_restored = (context.topic, context.partition) in self._changelogs
        return ErrorHandlerContext(
            topic=context.topic,
            partition=context.partition,
            offset=context.offset,
            headers=headers,
            processor_node_id=node,
            task_id=self._task_id,
            timestamp=timestamp,
            source_raw_key=key,
            source_raw_value=value,
            serialization_origin=origin,
            may_be_set_aside=self._handlers.can_undo and source is not None and not by_time and not is_restored,
        )

    def _ask(self, handler: Handler, where: ErrorHandlerContext, record: Any, error: Exception, asked: str) -> Response:
        """Return the handler's answer; its dead letters are sent, unless it sets the input record aside, which raises."""
        try:
            response = decision_of(handler, asked, where, record, error)
            if response.result is Result.SET_ASIDE:
                self._set_aside(where, response.dead_letter_queue_records, asked, error)
        except ProcessingError as fatal:
            self._decided = fatal
            raise
        # Also if the handler fails the task: in a transaction they are then aborted with everything else.
        self._send_letters(response.dead_letter_queue_records)
        return response

    def _set_aside(
        self, where: ErrorHandlerContext, letters: Sequence[ProducerRecord], asked: str, error: Exception
    ) -> NoReturn:
        """Discard this attempt of the task: the next one leaves the input record out."""
        source = self._context.source
        if not where.may_be_set_aside or source is None:
            message = (
                f"The {asked} exception handler sets a record aside, but there is none: {type(error).__name__}: {error}"
            )
            raise ProcessingError(message, hint=_NONE_TO_SET_ASIDE) from error
        tp = TopicPartition(where.topic or "", where.partition)
        kept = tuple(map(without_trace, letters))
        aside = SetAside(self._task_id, tp, source, kept, self._context.failure(where, error))
        message = f"{tp}@{source.offset} is set aside: {aside.failed.error}: {aside.failed.message}"
        self._undone = SetAsideError(message, aside)
        raise self._undone from error

    def _send_letters(self, letters: Iterable[ProducerRecord]) -> None:
        for letter in letters:
            self._send(letter.topic, letter.key, letter.value, letter.timestamp, letter.headers, letter.partition)

    def _skip(self, where: ErrorHandlerContext, error: Exception, reason: DropReason) -> None:
        self._context.note_skipped(self._context.failure(where, error))
        self._context.drop(reason)

    def _fail(self, what: str, error: Exception) -> NoReturn:
        """Stop the task; nodes above do not ask their handlers about this failure again."""
        if isinstance(error, StreamsError):
            self._decided = error
            raise error
        self._decided = processing_error(what, error)
        raise self._decided from error


@contextmanager
def user_code(what: str, task: TaskId | None = None) -> Iterator[None]:
    """Convert failures of user code that processes no record, so that no handler is asked about them."""
    try:
        yield
    except StreamsError:
        raise
    except USER_ERRORS as error:
        failure = as_exception(error)
        message = f"{what} failed: {type(failure).__name__}: {failure}"
        place = {} if task is None else {"task": str(task)}
        raise ProcessingError(message, hint=_NO_RECORD, **place) from failure


def processing_error(what: str, error: Exception) -> ProcessingError:
    """Return an error of user code as an error of this project."""
    if isinstance(error, RecursionError):
        # The stack as well as the traceback, because a handler is asked while the upper part of the chain still runs.
        frames = (*walk_stack(None), *walk_tb(error.__traceback__))
        passed = sum(frame.f_code in _PROCESSORS for frame, _ in frames)
        if passed > sys.getrecursionlimit() // _MOST_CALLS:
            return _too_long_a_chain(what, passed)
    message = f"{what} failed: {type(error).__name__}: {error}"
    hint = "Set processing.exception.handler = continue to skip such records."
    if isinstance(error, MemoryError):
        hint = WITHOUT_MEMORY
    # Python's own text for an int of more than 64 bits.
    if isinstance(error, OverflowError | struct.error) and "too large to convert" in str(error):
        message = (
            f"{what} failed: a number does not fit into 64 bits, or the end of a window at a time near 2^63 - 1 ms"
        )
        hint = f"{hint} A timestamp_extractor can keep impossible times out."
    return ProcessingError(message, hint=hint)


def _too_long_a_chain(what: str, passed: int) -> ProcessingError:
    limit = sys.getrecursionlimit()
    message = f"{what} failed: after {passed} processors in a row, Python's limit of {limit} nested calls was reached"
    return ProcessingError(
        message, hint="Do the work of several processors in one, or put a repartition() between them."
    )


def located(error: RecordError, coordinates: Mapping[str, str | int]) -> RecordError:
    """Return an error with the place where it happened; for a single record, also with how to skip it."""
    found = error.at(**coordinates)
    if "offset" in coordinates and "riverrun skip" not in (found.hint or ""):
        place = "{topic}-{partition}@{offset}".format_map(found.coordinates)
        found.hint = " ".join(filter(None, (found.hint, f"To skip this one alone: riverrun skip APP {place}.")))
    return found


def _to_topic(send: Send, topic: str) -> Send:
    """Return a function that sends every dead letter to one topic, into the partition that belongs to its key."""

    def send_there(
        _topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        _partition: int | None,
    ) -> None:
        send(topic, key, value, timestamp, headers, None)

    return send_there
