"""Interfaces for processing records by hand: `Processor`, and the context it is given."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from pathlib import Path

    from pipeline.processor.metrics import StreamsMetrics
    from pipeline.records import Record, RecordMetadata, TaskId

KIn = TypeVar("KIn")
VIn = TypeVar("VIn")


class PunctuationType(Enum):
    """The clock that a punctuation follows (`org.apache.kafka.streams.processor.PunctuationType`)."""

    STREAM_TIME = "stream-time"
    """The highest event time the task has seen; stands still without records."""
    WALL_CLOCK_TIME = "wall-clock-time"
    """The host's clock. Results that depend on it cannot be reproduced by a bounded run."""


class Cancellable(Protocol):
    """A scheduled punctuation (`org.apache.kafka.streams.processor.Cancellable`)."""

    def cancel(self) -> None:
        """Stop it; takes effect at once, also from within the punctuator."""
        ...


class ProcessingContext(Protocol):
    """The task as every processor may ask it (`org.apache.kafka.streams.processor.api.ProcessingContext`)."""

    @property
    def application_id(self) -> str:
        """The application's id."""
        ...

    @property
    def task_id(self) -> TaskId:
        """The task this processor belongs to."""
        ...

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """The place that the current record came from; None within a punctuation."""
        ...

    @property
    def state_dir(self) -> Path:
        """The directory of the task's local state, if any. Hosts wipe it, and tasks move: nothing else may rely on it."""
        ...

    @property
    def metrics(self) -> StreamsMetrics:
        """Measurements of processors; hosts show them beside their own figures. Sensors end with the task."""
        ...

    def app_configs(self) -> dict[str, Any]:
        """The application's settings by their dotted names, defaults and those of `user.` included; no client properties."""
        ...

    def app_configs_with_prefix(self, prefix: str) -> dict[str, Any]:
        """Those that begin with the prefix, without it."""
        ...

    def get_state_store(self, name: str) -> Any:
        """A store connected to this processor, or a global one (read only).

        Raises:
            InvalidStateStoreError: If the store is not connected to this processor.
        """
        ...

    def schedule(
        self,
        interval: timedelta,
        punctuation_type: PunctuationType,
        punctuator: Callable[[int], None],
        *,
        start_ms: int | None = None,
    ) -> Cancellable:
        """Call `punctuator(time_ms)` at every interval; missed intervals are not caught up.

        Stream time: first with the first record. Wall clock: first after one interval.

        Args:
            interval: From one call to the next.
            punctuation_type: Which clock it follows.
            punctuator: What to call.
            start_ms: Instead, first at this time (ms since the epoch), or, if that is over, when the next interval since then
                ends (KIP-1146).

        Raises:
            TopologyError: If the interval is below 1 ms, or the start before the epoch; in the processor of a global store.
        """
        ...

    def commit(self) -> None:
        """Ask for a commit soon."""
        ...

    def current_system_time_ms(self) -> int:
        """The host's clock, as cached at the start of the current record or punctuation, ms."""
        ...

    def current_stream_time_ms(self) -> int:
        """The task's stream time, ms; -1 before the first record."""
        ...


class ProcessorContext(ProcessingContext, Protocol):
    """The context of a `Processor` (`org.apache.kafka.streams.processor.api.ProcessorContext`)."""

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        """Send a record to all children, or to one of them.

        Raises:
            TopologyError: If there is no child of that name.
        """
        ...


K_contra = TypeVar("K_contra", contravariant=True)
V_contra = TypeVar("V_contra", contravariant=True)
VOut_co = TypeVar("VOut_co", covariant=True)


class ValueTransformerWithKey(Protocol[K_contra, V_contra, VOut_co]):
    """Makes a table's value of another's (`org.apache.kafka.streams.kstream.ValueTransformerWithKey`).

    A supplier must give a new instance on each call: every task has its own.
    """

    def init(self, context: ProcessorContext) -> None:
        """Called once, before the first value. The context does not forward."""

    def transform(self, key: K_contra, value: V_contra | None) -> VOut_co | None:
        """The new value; None, which it is also given for deletions, deletes the row."""
        ...

    def close(self) -> None:
        """Called once, after the last value. Stores are closed by the task, not here."""


class Processor(Protocol[KIn, VIn]):
    """Handles one record after the other (`org.apache.kafka.streams.processor.api.Processor`).

    >>> from pipeline import Record
    >>> class Shout(Processor[str, str]):
    ...     def init(self, context: ProcessorContext) -> None:
    ...         self.context = context
    ...
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.context.forward(record.with_value(record.value.upper()))

    A supplier must give a new instance on each call: every task has its own.
    """

    def init(self, context: ProcessorContext) -> None:
        """Called once, before the first record."""

    def process(self, record: Record[KIn, VIn]) -> None:
        """Handle one record; `context.forward` sends results on."""
        ...

    def close(self) -> None:
        """Called once, after the last record. Stores are closed by the task, not here."""
