"""Every error Riverrun raises, grouped by the person or part that must act.

* StreamsError
  x TopologyError                 the author of a topology, when it is built
  x ConfigError                   the operator, before anything starts
  x UnsupportedByHostError        the operator: this host cannot run that feature
  x DebuggerError                 the author of a topology that stops in a debugger where there is no terminal
  x MemoryExhaustedError          the operator: the process needs more memory, or fewer tasks
  x RecordError                   the author of the record, or of the code that handled it
    - DeserializationError
    - SerializationError
    - ProcessingError
  x StateError                    the operator: a store cannot be used
    - InvalidStateStoreError
    - CorruptStateError
    - StateSchemaError            its rows were written by other classes or schemas: release a new version
    - StateInUseError           another process has it open
    - SnapshotError             a copy of state cannot be written or used; nothing depends on it
  x TaskError                     the host, which recovers by itself
    - TaskMigratedError           another owner fenced this task: give it up
    - UnknownOutcomeError         a commit got no answer: continue from the committed offsets
    - SetAsideError               continue from the committed offsets without one record
  x BrokerError                   the operator of the brokers; `retriable` says whether waiting can help
    - RefusedRecordError          one record cannot be sent
    - TopicError                  a topic is missing or has the wrong shape
    - EmbeddedBrokerError         the broker that Riverrun itself starts
    - RegistryError               a schema registry does not answer, or refuses the client
  x SchemaError                   the author of a schema: the registry does not know or accept it
  x EngineError                   the operator of Spark, or of a database it writes to: retrying may help
  x ArchiveError                  the operator of an archive: it cannot be read or written, or lacks records
  x RangeError                    the person who asked for a range of offsets
    - MissingOffsetError          a reader needs an offset that does not exist (any more)
    - BegunRangeError             an unfinished run goes beyond the range: wait for it, or complete it
  x ForgottenOffsetsError         the operator: brokers have deleted committed offsets, so where to continue is not known
  x ReleaseError                  the person who drives the release
    - VersionConflictError        the release has changed in the meantime: look again
    - UnderWayError               a run, a worker or a switch that must end first: wait, or stop it
    - NotLiveError                the version may not publish: another one is live
    - NotReadyError               the candidate has not caught up yet
    - GateFailedError             the data did not pass: nothing was switched
    - ApprovalNeededError         the warnings need a person's approval: nothing was switched
"""

from __future__ import annotations

import bdb
import opcode
import re
import signal
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_RAISE = opcode.opmap["RAISE_VARARGS"]


class StreamsError(Exception):
    """Root of the tree (`org.apache.kafka.streams.errors.StreamsException`).

    Args:
        message: What happened, with the names in it.
        hint: What to do about it; printed on a separate line.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Store the message and the hint separately, so that a shell can print them separately."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message and, on its own line, the hint."""
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


class TopologyError(StreamsError):
    """A topology cannot be built (`org.apache.kafka.streams.errors.TopologyException`). Its author must act."""

    line: str | None = None
    """The responsible line of the author's code, as `file:line`, if known."""

    def locate(self, line: str | None) -> None:
        """Add the line to the message, unless it has one."""
        if self.line is None and line is not None:
            self.line = line
            self.message = f"{self.message} ({line})"


class ConfigError(StreamsError):
    """Configuration cannot be used (Kafka's `ConfigException`). Raised before anything starts."""


class MissingExtraError(StreamsError):
    """A part of Riverrun needs packages that are not installed; the hint is the command that installs them."""


class UnsupportedByHostError(StreamsError):
    """A topology uses a feature that its host does not support. Raised before the first record."""


class DebuggerError(StreamsError):
    """A debugger ended the processing of a record: its user quit, or it found no terminal. No handler skips the record."""


class MemoryExhaustedError(StreamsError):
    """The process had no memory left for a record. No handler skips the record: the next ones would be lost as well.

    Kafka Streams asks no handler about an `OutOfMemoryError` either.
    """


class RecordError(StreamsError):
    """A record could not be handled.

    Args:
        reason: What happened.
        hint: What to do about it.
        coordinates: Where: `task`, `topic`, `partition`, `offset`, `node`, as far as they are known.
    """

    def __init__(self, reason: str, *, hint: str | None = None, **coordinates: str | int) -> None:
        """Append the coordinates to the message, and store both."""
        where = ", ".join(f"{name} {value}" for name, value in coordinates.items() if not _is_told(reason, name, value))
        super().__init__(f"{reason} ({where})" if where else reason, hint=hint)
        self.reason = reason
        self.coordinates = coordinates

    def at(self, **coordinates: str | int) -> RecordError:
        """Return the error with further coordinates, for callers that know them."""
        return type(self)(self.reason, hint=self.hint, **(self.coordinates | coordinates))


def _is_told(reason: str, name: str, value: str | int) -> bool:
    """Return whether a reason begins with a node: `Sink out cannot ...`, `Punctuation of alarm failed`."""
    return name == "node" and re.match(rf"(Sink|[\w ]+ of) {re.escape(str(value))} ", reason) is not None


class DeserializationError(RecordError):
    """A serde cannot read the bytes of a topic or a store, or a record has no valid timestamp."""


class SerializationError(RecordError):
    """A key or a value cannot be written with the serde of its sink or store."""


class ProcessingError(RecordError):
    """User code raised an error while it handled a record."""


class StateError(StreamsError):
    """A state store cannot be used."""


class InvalidStateStoreError(StateError):
    """The store does not exist, is not connected to the caller, or is closed.

    Kafka Streams' `InvalidStateStoreException`.
    """


class CorruptStateError(StateError):
    """Files of a local store cannot be read. They are a cache: deleting them costs a restore and loses nothing."""


class StateSchemaError(StateError):
    """Rows of a store, or of a repartition topic, cannot be read by the serdes of the present code. Nothing was processed."""


class StateInUseError(StateError):
    """Another process has the local store open. A process that was killed or fenced releases it within moments."""


class SnapshotError(StateError):
    """A snapshot cannot be written or read. The changelogs hold the state as well."""


class TaskError(StreamsError):
    """A task cannot continue. Its host recovers by itself."""


class TaskMigratedError(TaskError):
    """Another owner has fenced this task. The host must drop the task and write nothing more.

    Kafka Streams' `TaskMigratedException`.
    """


class UnknownOutcomeError(TaskError):
    """A commit got no answer. Its producer must be discarded; the committed offsets show whether it happened."""


class SetAsideError(TaskError):
    """A handler has set a record aside. The host must discard the task, and make it again without this record.

    Args:
        message: What happened.
        aside: The record (`runtime.failures.SetAside`).
    """

    def __init__(self, message: str, aside: Any) -> None:
        super().__init__(message)
        self.aside = aside


class BrokerError(StreamsError):
    """The brokers refused or did not answer.

    Args:
        message: What happened.
        retriable: Whether the same call may succeed later without anybody acting.
        hint: What to do about it.
    """

    def __init__(self, message: str, *, retriable: bool = False, hint: str | None = None) -> None:
        """Store whether waiting can help."""
        super().__init__(message, hint=hint)
        self.retriable = retriable


class RefusedRecordError(BrokerError):
    """A single record was refused before it was sent: it is too large, or its topic rejects its timestamp."""


class RegistryError(BrokerError):
    """A schema registry did not answer, or refused the client. No record is to blame, so no handler is asked."""


class OpenTransactionError(BrokerError):
    """Another producer's transaction is still open. Until it ends, the committed offsets are unknown."""


class TopicError(BrokerError):
    """A topic is missing, or has a wrong partition count or wrong settings."""


class EmbeddedBrokerError(BrokerError):
    """The embedded broker cannot be installed, started or stopped."""


class EngineError(StreamsError):
    """Spark, or a system that it reads from or writes to, gave up: a disk is full, or a database does not answer."""


class SchemaError(StreamsError):
    """The schema registry does not know or accept a schema: it is invalid, or incompatible with earlier versions."""


class ArchiveError(StreamsError):
    """An archive of topics cannot be written or read, lacks records, or is of another topic."""


class RangeError(StreamsError):
    """A range of offsets cannot be processed: it is reversed, ends beyond the log, or starts before it."""


class MissingOffsetError(RangeError):
    """A reader needs an offset that does not exist, or no longer exists.

    Args:
        message: What happened.
        topic: The topic that the reader reads.
        partition: Number of its partition; -1 if it is not known.
        hint: What to do about it.
    """

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, hint: str | None = None) -> None:
        """Store the partition, so that hosts find the task that reads it."""
        super().__init__(message, hint=hint)
        self.topic = topic
        self.partition = partition


class ForgottenOffsetsError(StreamsError):
    """An application has run before, and brokers no longer know how far. To begin again would repeat or skip records."""


class BegunRangeError(RangeError):
    """A range ends within the range of an unfinished run. Waiting for that run may help."""


class ReleaseError(StreamsError):
    """A step of a release cannot be taken."""


class VersionConflictError(ReleaseError):
    """The release changed between reading and writing its state. Nothing was written."""


class UnderWayError(ReleaseError):
    """A run, a worker or a switch is under way and has to end first. Waiting may help."""


class NotLiveError(ReleaseError):
    """A version tried to write to public topics although another one is live. Nothing was written."""


class NotReadyError(ReleaseError):
    """The candidate has not caught up with the live version. Waiting may help."""


class GateFailedError(ReleaseError):
    """The quality gate found critical failures. Nothing is published."""


class ApprovalNeededError(ReleaseError):
    """The quality gate has warnings that no person has approved. Nothing is published until then."""


# All but interruptions (`as_exception`): whatever a record raises, even SystemExit, it must not end a host.
USER_ERRORS = (BaseException,)


def as_exception(error: BaseException) -> Exception:
    """Return a failure of user code as an exception that handlers accept.

    >>> as_exception(SystemExit(3))
    RuntimeError('sys.exit(3) was called')

    Raises:
        BaseException: The error itself, if a signal has interrupted the code, since no record is to blame.
        DebuggerError: If a debugger was quit, for the same reason.
    """
    if is_interruption(error):
        raise error
    if isinstance(error, bdb.BdbQuit):
        message = "Processing ended in a debugger: it was quit, or found no terminal"
        hint = "Stream threads have no terminal. Debug in TopologyTestDriver, or with riverrun worker APP --in-process."
        raise DebuggerError(message, hint=hint) from error
    if isinstance(error, Exception):
        return error
    how = f"sys.exit({error.code!r}) was called" if isinstance(error, SystemExit) else f"{error!r} was raised"
    failed = RuntimeError(how)
    failed.__cause__ = error
    return failed


def is_interruption(error: BaseException) -> bool:
    """Return whether an exception comes from the handler of a signal, such as Ctrl-C or the time limit of a scheduler.

    Code may raise such exceptions as well: `raise KeyboardInterrupt` interrupts nothing.
    """
    # Python runs handlers of signals in the main thread only.
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers} - {None}
    cause: BaseException | None = error
    while cause is not None:
        frames = list(traceback.walk_tb(cause.__traceback__))
        if any(frame.f_code in codes for frame, _ in frames):
            return True
        # Python's default handler is C code and has no frame: then the line that the error comes from does not raise it.
        if isinstance(cause, KeyboardInterrupt) and signal.default_int_handler in handlers and not _raises(cause):
            return True
        cause = cause.__context__
    return False


def _raises(error: BaseException) -> bool:
    """Return whether the line that an exception comes from raises it."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code.co_code[place.tb_lasti] == _RAISE


def of_an_interrupt(error: BaseException | None) -> bool:
    """Return whether an error follows from a `KeyboardInterrupt` that was being handled when it was raised.

    >>> try:
    ...     try:
    ...         raise KeyboardInterrupt
    ...     finally:
    ...         raise OSError("the connection is closed")
    ... except OSError as error:
    ...     of_an_interrupt(error)
    True
    """
    # The bridge to Java may answer Ctrl-C by closing its connections, and code that stops work on Spark may need one.
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
