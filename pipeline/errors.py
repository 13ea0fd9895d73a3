"""Every error Millrace raises, grouped by who must act.

* StreamsError
  x TopologyError                 the author of a topology, when it is built
  x ConfigError                   the operator, before anything starts
  x UnsupportedByHostError        the operator: this host cannot run that feature
  x RecordError                   whoever wrote the record, or the user code that met it
    - DeserializationError
    - SerializationError
    - ProcessingError
  x StateError                    the operator: a store cannot be used
    - InvalidStateStoreError
    - CorruptStateError
    - StateInUseError           another process has it open
    - SnapshotError             a copy of a state cannot be written or used; nothing depends on it
  x TaskError                     the host, which recovers by itself
    - TaskMigratedError           another owner fenced this task: give it up
    - UnknownOutcomeError         a commit got no answer: read the committed offsets and go on from there
  x BrokerError                   the operator of the brokers; `retriable` says whether waiting can help
    - RefusedRecordError          one record cannot be sent
    - TopicError                  a topic is missing or has the wrong shape
    - EmbeddedBrokerError         the broker that Millrace itself starts
    - RegistryError               a schema registry does not answer, or refuses whoever asks
  x SchemaError                   whoever writes a schema: the registry does not know it, or does not take it
  x EngineError                   the operator of Spark, or of a database it writes to: it gave up, trying again may help
  x RangeError                    whoever asked for a range of offsets
    - MissingOffsetError          a reader stands at an offset that is not there (any more)
    - BegunRangeError             another run has begun more than the range, and not finished it: wait for it, or complete it
  x ReleaseError                  whoever drives the release
    - VersionConflictError        somebody else changed the release in between: look again
    - UnderWayError               a run, a worker or a switch that must end first: wait, or stop it
    - NotLiveError                a version that has no right to publish: another one is live
    - NotReadyError               the candidate has not caught up (yet)
    - GateFailedError             the data did not pass: nothing was switched
    - ApprovalNeededError         the data passed with warnings that nobody has approved: nothing was switched
"""

from __future__ import annotations


class StreamsError(Exception):
    """Root of the tree (`org.apache.kafka.streams.errors.StreamsException`).

    Args:
        message: What happened, with the names in it.
        hint: What to do about it; printed on a line of its own.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Keep the message and the hint apart, so that a shell can print them apart."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The message and, on its own line, the hint."""
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


class TopologyError(StreamsError):
    """A topology that cannot be built (`org.apache.kafka.streams.errors.TopologyException`). Its author must act."""

    line: str | None = None
    """The line of the author's code that it is about, as `file:line`, if it is known."""

    def locate(self, line: str | None) -> None:
        """Add the line to the message, unless it has one."""
        if self.line is None and line is not None:
            self.line = line
            self.message = f"{self.message} ({line})"


class ConfigError(StreamsError):
    """Configuration that cannot be used (Kafka's `ConfigException`). Raised before anything has started."""


class MissingExtraError(StreamsError):
    """A part of Millrace needs packages that are not installed; the hint is the command that installs them."""


class UnsupportedByHostError(StreamsError):
    """A topology uses a feature which the chosen host does not offer. Raised before the first record."""


class RecordError(StreamsError):
    """A record could not be handled.

    Args:
        reason: What happened.
        hint: What to do about it.
        coordinates: Where: `task`, `topic`, `partition`, `offset`, as far as they are known.
    """

    def __init__(self, reason: str, *, hint: str | None = None, **coordinates: str | int) -> None:
        """Append the coordinates to the message, and keep both."""
        where = ", ".join(f"{name} {value}" for name, value in coordinates.items())
        super().__init__(f"{reason} ({where})" if where else reason, hint=hint)
        self.reason = reason
        self.coordinates = coordinates

    def at(self, **coordinates: str | int) -> RecordError:
        """Return the error with further coordinates, for callers that know them."""
        return type(self)(self.reason, hint=self.hint, **(self.coordinates | coordinates))


class DeserializationError(RecordError):
    """Bytes of a topic or a store are not what the serde expects, or a record carries no valid timestamp."""


class SerializationError(RecordError):
    """A key or a value cannot be written with the serde of its sink or store."""


class ProcessingError(RecordError):
    """User code raised while it handled a record."""


class StateError(StreamsError):
    """A state store cannot be used."""


class InvalidStateStoreError(StateError):
    """The store does not exist, is not connected to the caller, or is closed.

    Kafka Streams' `InvalidStateStoreException`.
    """


class CorruptStateError(StateError):
    """Files of a local store cannot be read. They are a cache: deleting them costs a restore, nothing else."""


class StateInUseError(StateError):
    """Another process has the local store open. One that was killed or fenced lets go of it within moments."""


class SnapshotError(StateError):
    """A snapshot cannot be written, or read. The changelogs have everything that is in it."""


class TaskError(StreamsError):
    """A task cannot go on in its present form. Hosts recover from it by themselves."""


class TaskMigratedError(TaskError):
    """Another owner has fenced this task. The one who sees this must drop the task and write nothing more.

    Kafka Streams' `TaskMigratedException`.
    """


class UnknownOutcomeError(TaskError):
    """A commit got no answer. Its producer must be discarded; the committed offsets tell whether it happened."""


class BrokerError(StreamsError):
    """The brokers refused or did not answer.

    Args:
        message: What happened.
        retriable: Whether the same call may succeed later without anybody acting.
        hint: What to do about it.
    """

    def __init__(self, message: str, *, retriable: bool = False, hint: str | None = None) -> None:
        """Keep whether waiting can help."""
        super().__init__(message, hint=hint)
        self.retriable = retriable


class RefusedRecordError(BrokerError):
    """A record was refused before it was sent: it is too large, or its topic does not take its time. Only it is affected."""


class RegistryError(BrokerError):
    """A schema registry did not answer, or refused who asked. No record is to blame, so no handler is asked."""


class OpenTransactionError(BrokerError):
    """Somebody's transaction stays open: what comes of it, and so what is committed, cannot be said before it ends."""


class TopicError(BrokerError):
    """A topic is missing, or has the wrong number of partitions or the wrong settings."""


class EmbeddedBrokerError(BrokerError):
    """The embedded broker cannot be installed, started or stopped."""


class EngineError(StreamsError):
    """Spark, or what it reads from or writes to, gave up: a disk is full, a database does not answer."""


class SchemaError(StreamsError):
    """The schema registry does not know a schema, or does not take it: it is none, or incompatible with earlier versions."""


class RangeError(StreamsError):
    """A range of offsets that cannot be processed: reversed, beyond the log, or behind its start."""


class MissingOffsetError(RangeError):
    """A reader stands at an offset that is not there, or not there any more.

    Args:
        message: What happened.
        topic: The topic that is read.
        partition: Its partition.
        hint: What to do about it.
    """

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, hint: str | None = None) -> None:
        """Keep the partition, so that hosts find the task that reads it."""
        super().__init__(message, hint=hint)
        self.topic = topic
        self.partition = partition


class BegunRangeError(RangeError):
    """A range that ends within what another run has begun and not finished. Waiting for that run may help."""


class ReleaseError(StreamsError):
    """A step of a release cannot be taken."""


class VersionConflictError(ReleaseError):
    """Somebody else changed the release between the look and the write. Nothing was written."""


class UnderWayError(ReleaseError):
    """A run, a worker or a switch is under way and has to end first. Waiting may help."""


class NotLiveError(ReleaseError):
    """A version was about to write to public topics although another one is live. Nothing was written."""


class NotReadyError(ReleaseError):
    """The candidate has not caught up with the live version. Waiting may help."""


class GateFailedError(ReleaseError):
    """The quality gate found critical failures. The live version stays live."""


class ApprovalNeededError(ReleaseError):
    """The quality gate has warnings that nobody has approved. The live version stays live."""


USER_ERRORS = (Exception, SystemExit)
"""What user code raises that is its failure. `sys.exit` is for commands: within a record it must not end a host."""


def as_exception(error: Exception | SystemExit) -> Exception:
    """A failure of user code as an exception that handlers know.

    >>> as_exception(SystemExit(3))
    RuntimeError('sys.exit(3) was called')
    """
    if isinstance(error, Exception):
        return error
    exited = RuntimeError(f"sys.exit({error.code!r}) was called")
    exited.__cause__ = error
    return exited


def of_an_interrupt(error: BaseException | None) -> bool:
    """Whether an error is what became of a `KeyboardInterrupt`: it was raised while one was on its way out.

    The bridge to Java answers Ctrl-C by closing its connections, all of them at times; what ends work on Spark may need one.

    >>> try:
    ...     try:
    ...         raise KeyboardInterrupt
    ...     finally:
    ...         raise OSError("the connection is closed")
    ... except OSError as error:
    ...     of_an_interrupt(error)
    True
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
