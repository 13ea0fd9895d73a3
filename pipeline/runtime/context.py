"""The record being processed, and all else that changes with every record of a task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.processor.metrics import Measurement, StreamsMetrics, metric_config
from pipeline.records import RecordMetadata, TaskId
from pipeline.runtime.punctuation import Punctuations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.processor.drops import DropReason
    from pipeline.records import Headers, RawRecord
    from pipeline.runtime.ports import Clock

KEPT_BYTES = 10 * 1024 * 1024
"""So much of decoded values does each store keep at least: some 18,000 small ones."""

NO_RECORD = (None, -1, -1)
"""Topic, partition and offset where nothing was read."""

GLOBAL_TASK = TaskId(-1, -1)
"""Named in errors and contexts of global processors (`GlobalStateUpdateTask`)."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What processors may know of the application around their task.

    Args:
        configs: Its settings by their dotted names.
        directory: Where the task's local state is kept, if it has any.
    """

    configs: Mapping[str, Any] = field(default_factory=dict)
    directory: Path = Path()


@dataclass(slots=True)
class TaskContext:
    """What changes with every record of a task. Stores read it, queues write it.

    Input records as they were read (`source`) are known only where a handler may ask for them; `sources` then keeps those of
    updates that stores hold back until the commit.
    """

    clock: Clock
    topic: str | None = None
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    headers: Headers = ()
    stream_time: int = -1
    commit_requested: bool = False
    kept_bytes: int = KEPT_BYTES
    dropped: Counter[str] = field(default_factory=Counter)
    has_skipped: bool = False
    source: RawRecord | None = None
    sources: dict[RecordMetadata, RawRecord | None] | None = None
    processor_metadata: dict[str, int] = field(default_factory=dict)
    stream_punctuations: Punctuations = field(default_factory=Punctuations)
    wall_clock_punctuations: Punctuations = field(default_factory=Punctuations)
    shared: dict[str, Any] = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    used_metrics: StreamsMetrics | None = None

    @property
    def metrics(self) -> StreamsMetrics:
        """The sensors of the task's processors; made when the first of them asks."""
        if self.used_metrics is None:
            self.used_metrics = StreamsMetrics(self.clock.now_ms, metric_config(self.environment.configs))
        return self.used_metrics

    def measured(self) -> tuple[Measurement, ...]:
        """What these have measured."""
        return self.used_metrics.measured() if self.used_metrics is not None else ()

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Where the current record came from; None within a punctuation."""
        if self.topic is None:
            return None
        metadata = tuple.__new__(RecordMetadata, (self.topic, self.partition, self.offset))  # half the time of a call
        if self.sources is not None:
            self.sources[metadata] = self.source
        return metadata

    @property
    def keeps_sources(self) -> bool:
        """Whether `sources` is kept."""
        return self.sources is not None

    def enter(self, metadata: RecordMetadata | None, timestamp: int, headers: Headers) -> None:
        """Make another record the current one, or none: a punctuation, or an update that a cache held back."""
        self.topic, self.partition, self.offset = metadata or NO_RECORD
        self.timestamp = timestamp
        self.headers = headers
        self.source = self.sources.get(metadata) if self.sources is not None and metadata is not None else None

    def drop(self, reason: DropReason) -> None:
        """Count a record that is not processed further."""
        self.dropped[reason.value] += 1
