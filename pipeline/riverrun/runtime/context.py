"""The record being processed, and the rest of a task's state that changes with every record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.errors import USER_ERRORS, as_exception
from riverrun.processor.metrics import Measurement, StreamsMetrics, metric_config
from riverrun.records import RecordMetadata, TaskId
from riverrun.runtime.times import Lateness, Punctuations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from riverrun.processor.handlers import DropReason, ErrorHandlerContext
    from riverrun.records import Headers, RawRecord
    from riverrun.runtime.ports import Clock
    from riverrun.state.api import Place

# The least that a store may keep of decoded values: enough for about 18,000 small ones.
KEPT_BYTES = 10 * 1024 * 1024

# Topic, partition and offset of records that were not read from a topic.
NO_RECORD = (None, -1, -1)

GLOBAL_TASK = TaskId(-1, -1)
"""Stands for the task in errors and contexts of global processors (`GlobalStateUpdateTask`)."""

# Of failures until they are taken, since texts cost time and every record may fail.
MOST_FAILED = 20
_LONGEST_KEY, _LONGEST_MESSAGE = 100, 500


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A failure, with the record on which it happened.

    Args:
        at_ms: When, ms of the wall clock.
        task: The task; empty if it is not known.
        node: The node that failed; empty if it is not known.
        topic: Topic of the input record; empty within a punctuation.
        partition: Its partition; -1 within a punctuation.
        offset: Its offset; -1 within a punctuation.
        key: Beginning of its key as it was read, in readable form; empty if it is not known.
        outcome: Consequence: `skipped`, or the end of a stream thread.
    """

    at_ms: int
    task: str
    node: str
    topic: str
    partition: int
    offset: int
    key: str
    error: str
    message: str
    outcome: str


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """The part of the application that processors may see.

    Args:
        configs: The application's settings by their dotted names.
    """

    configs: Mapping[str, Any] = field(default_factory=dict)
    directory: Path = Path()


class Sources:
    """Input records as they were read, by the object made for their place, until the next commit.

    Records of a pack share one place, and a commit may come between them.
    """

    def __init__(self) -> None:
        self._by_object: dict[int, tuple[RecordMetadata, RawRecord | None, bool]] = {}

    def keep(self, metadata: RecordMetadata, source: RawRecord | None, *, is_by_time: bool) -> None:
        """Remember the input record of a place."""
        # The object is kept as well: until then, no other one can get its id.
        self._by_object[id(metadata)] = metadata, source, is_by_time

    def of(self, metadata: Place | None) -> tuple[RawRecord | None, bool]:
        """Return the record that came from a place, None if it is not known, and whether only time has brought it out."""
        _, source, is_by_time = self._by_object.get(id(metadata), (None, None, False))
        return source, is_by_time

    def clear(self) -> None:
        self._by_object.clear()


class Elsewhere(NamedTuple):
    """A failure of another record than the current one.

    Args:
        record: Key, value, timestamp and headers; None if only time has brought the failure out.
        before: Place, timestamp, headers and source of the current record: it is that again if a handler continues.
    """

    error: BaseException
    record: tuple[Any, Any, int, Headers] | None
    before: tuple[str | None, int, int, int, Headers, RawRecord | None]


@dataclass(slots=True)
class TaskContext:
    """The facts that change with every record of a task. Queues write them, stores read them.

    Input records as they were read (`source`) are known only if a handler may ask for them. `sources` then keeps the input
    records of updates that stores hold back until the commit.
    """

    clock: Clock
    topic: str | None = None
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    headers: Headers = ()
    stream_time: int = -1
    advanced_to: int = -1
    """Time to which stream time was moved without a record, ms; no input's highest time contains it."""
    commit_requested: bool = False
    kept_bytes: int = KEPT_BYTES
    dropped: Counter[str] = field(default_factory=Counter)
    lateness: Lateness = field(default_factory=Lateness)
    has_skipped: bool = False
    failed: list[FailedRecord] = field(default_factory=list)
    """Failures since the last commit. Another attempt would have them again."""
    committed_failed: list[FailedRecord] = field(default_factory=list)
    source: RawRecord | None = None
    sources: Sources | None = None
    is_by_time: bool = False
    """Whether time, and not the current record, has brought out what is processed."""
    failed_by_time: BaseException | None = None
    """The last failure of something that time has brought out."""
    elsewhere: Elsewhere | None = None
    """The last failure in the place of the current record."""
    processor_metadata: dict[str, int] = field(default_factory=dict)
    stream_punctuations: Punctuations = field(default_factory=Punctuations)
    wall_clock_punctuations: Punctuations = field(default_factory=Punctuations)
    shared: dict[str, Any] = field(default_factory=dict)
    environment: TaskEnvironment = field(default_factory=TaskEnvironment)
    used_metrics: StreamsMetrics | None = None

    def times(self) -> tuple[int, ...]:
        """Return the times that cannot be derived from the inputs."""
        return (self.advanced_to,)

    def resume(self, times: Sequence[int]) -> None:
        """Continue from earlier times; time does not go back."""
        self.advanced_to = times[0]
        self.stream_time = max(self.stream_time, self.advanced_to)

    @property
    def metrics(self) -> StreamsMetrics:
        """Return the sensors of the task's processors, made on first use."""
        if self.used_metrics is None:
            self.used_metrics = StreamsMetrics(self.clock.now_ms, metric_config(self.environment.configs))
        return self.used_metrics

    def measured(self) -> tuple[Measurement, ...]:
        return self.used_metrics.measured() if self.used_metrics is not None else ()

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Return the place that the current record came from; None within a punctuation."""
        if self.topic is None:
            return None
        # Half the time of calling the class.
        metadata = tuple.__new__(RecordMetadata, (self.topic, self.partition, self.offset))
        if self.sources is not None:
            self.sources.keep(metadata, self.source, is_by_time=self.is_by_time)
        return metadata

    @property
    def keeps_sources(self) -> bool:
        """Return whether `sources` is kept."""
        return self.sources is not None

    def enter(self, metadata: Place | None, timestamp: int, headers: Headers) -> None:
        """Make another record the current one, or none for a punctuation or an update that a cache held back."""
        self.topic, self.partition, self.offset = metadata or NO_RECORD
        self.timestamp = timestamp
        self.headers = headers
        if self.sources is not None:
            self.source, self.is_by_time = self.sources.of(metadata)

    def came_late(self, behind: Sequence[int]) -> None:
        """Note records that are behind stream time, by so many ms each."""
        self.lateness.add(behind, self.clock.now_ms())

    def drop(self, reason: DropReason) -> None:
        """Count a record that is not processed further."""
        self.dropped[reason.value] += 1

    def note_skipped(self, failed: FailedRecord) -> None:
        """Keep the failure of a skipped record until the host takes it, unless many are waiting already."""
        # The first one since the last commit is always kept.
        if not self.failed or len(self.failed) + len(self.committed_failed) < MOST_FAILED:
            self.failed.append(failed)

    def failure(self, where: ErrorHandlerContext, error: Exception) -> FailedRecord:
        """Describe the failure of a record that is skipped."""
        key = where.source_raw_key
        return FailedRecord(
            at_ms=self.clock.now_ms(),
            task=str(where.task_id),
            node=where.processor_node_id,
            topic=where.topic or "",
            partition=where.partition,
            offset=where.offset,
            key="" if key is None else key[:_LONGEST_KEY].decode(errors="backslashreplace"),
            error=type(error).__name__,
            message=_message(error),
            outcome="skipped",
        )

    def take_failed(self) -> list[FailedRecord]:
        """Return the failures that were committed since the last call."""
        taken, self.committed_failed = self.committed_failed, []
        return taken

    def commit_failed(self) -> None:
        """Let the host take the failures since the last commit."""
        self.committed_failed = [*self.committed_failed, *self.failed][:MOST_FAILED]
        self.failed = []


def _message(error: Exception) -> str:
    try:
        return str(error)[:_LONGEST_MESSAGE]
    except (
        USER_ERRORS
    ) as refused:  # an exception of the user may refuse to be shown: its record is skipped all the same
        as_exception(refused)
        return ""
