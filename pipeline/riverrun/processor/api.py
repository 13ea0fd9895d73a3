"""Interfaces for custom record processing: `Processor`, `FixedKeyProcessor`, table transformers, and their contexts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, overload

from typing_extensions import TypeVar

from riverrun.records import check_headers, malformed_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from pathlib import Path

    from riverrun.processor.metrics import StreamsMetrics
    from riverrun.records import Headers, Record, RecordMetadata, TaskId
    from riverrun.state.api import StoreBuilder

K_contra = TypeVar("K_contra", contravariant=True)
V_contra = TypeVar("V_contra", contravariant=True)
VOut_co = TypeVar("VOut_co", covariant=True)
K = TypeVar("K")
S = TypeVar("S")
V = TypeVar("V")

KIn = TypeVar("KIn")
VIn = TypeVar("VIn")
KOut = TypeVar("KOut", default=Any)
VOut = TypeVar("VOut", default=Any)


class PunctuationType(Enum):
    """The clock that a punctuation follows (`org.apache.kafka.streams.processor.PunctuationType`)."""

    STREAM_TIME = "stream-time"
    """The highest event time that the task has seen; does not advance without records."""
    WALL_CLOCK_TIME = "wall-clock-time"
    """The host's clock. Results that depend on it cannot be reproduced by a bounded run."""


class Cancellable(Protocol):
    """A scheduled punctuation (`org.apache.kafka.streams.processor.Cancellable`)."""

    def cancel(self) -> None:
        """Stop the punctuation; takes effect immediately, also from within the punctuator."""


class ProcessingContext(Protocol):
    """A processor's view of its task (`org.apache.kafka.streams.processor.api.ProcessingContext`)."""

    @property
    def application_id(self) -> str:
        """The application id."""

    @property
    def task_id(self) -> TaskId:
        """The task this processor belongs to."""

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """The origin of the current record; None within a punctuation."""

    @property
    def state_dir(self) -> Path:
        """The directory of the task's local state, if any. Do not keep other data there: hosts delete it, and tasks move."""

    @property
    def metrics(self) -> StreamsMetrics:
        """Metrics of processors; hosts show them next to their own. Sensors end with the task."""

    def app_configs(self) -> dict[str, Any]:
        """Return the application's settings by dotted name, including defaults and `user.`, but no client properties."""

    def app_configs_with_prefix(self, prefix: str) -> dict[str, Any]:
        """Return the settings that begin with the prefix, without the prefix."""

    @overload
    def get_state_store(self, store: StoreBuilder[S]) -> S: ...

    @overload
    def get_state_store(self, store: str) -> Any: ...

    def get_state_store(self, store: str | StoreBuilder[Any]) -> Any:
        """Return a store connected to this processor, or a global store (read only).

        Args:
            store: Its name, or its builder: then type checkers know the types of its keys and values.

        Raises:
            InvalidStateStoreError: If the store is not connected to this processor.
        """

    def schedule(
        self,
        interval: timedelta,
        punctuation_type: PunctuationType,
        punctuator: Callable[[int], None],
        *,
        start_ms: int | None = None,
    ) -> Cancellable:
        """Call `punctuator(time_ms)` at every interval; missed intervals are skipped.

        By stream time, the first call comes with the first record. By the wall clock, it comes after one interval.

        Args:
            interval: Time between two calls.
            punctuation_type: The clock that it follows.
            punctuator: The function to call.
            start_ms: Time of the first call, ms since the epoch. If it has passed, the first call comes at the end of
                the current interval counted from it (KIP-1146).

        Raises:
            TopologyError: If the interval is below 1 ms, or the start before the epoch; in the processor of a global store.
        """

    def commit(self) -> None:
        """Ask for a commit soon."""

    def current_system_time_ms(self) -> int:
        """Return the host's clock, as cached at the start of the current record or punctuation, ms."""

    def current_stream_time_ms(self) -> int:
        """Return the task's stream time, ms; -1 before the first record."""


class ProcessorContext(ProcessingContext, Protocol[KOut, VOut]):
    """The context of a `Processor` (`org.apache.kafka.streams.processor.api.ProcessorContext`)."""

    def forward(self, record: Record[KOut, VOut], child: str | None = None) -> None:
        """Send a record to all children, or to one of them.

        Raises:
            TopologyError: If there is no child with this name.
        """


class ValueTransformerWithKey(Protocol[K_contra, V_contra, VOut_co]):
    """Computes a table's value from another table's (`org.apache.kafka.streams.kstream.ValueTransformerWithKey`).

    A supplier must return a new instance on each call: every task has its own.
    """

    def init(self, context: ProcessorContext) -> None:  # noqa: ARG002 - for those that implement it
        """Called once, before the first value. The context cannot forward."""
        return  # types: a docstring alone would make it abstract

    def transform(self, key: K_contra, value: V_contra | None) -> VOut_co | None:
        """Return the new value; None deletes the row. For deletions, `value` is None."""

    def close(self) -> None:
        """Called once, after the last value. Stores are closed by the task, not here."""
        return  # types: a docstring alone would make it abstract


class Processor(Protocol[KIn, VIn, KOut, VOut]):
    """Processes one record at a time (`org.apache.kafka.streams.processor.api.Processor`).

    Its types are those of the records that it takes and of those that it forwards. The latter are `Any` if left out.

    >>> from riverrun import Record
    >>> class Shout(Processor[str, str, str, str]):
    ...     def init(self, context: ProcessorContext[str, str]) -> None:
    ...         self.context = context
    ...
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.context.forward(record.with_value(record.value.upper()))

    A supplier must return a new instance on each call: every task has its own.
    """

    def init(self, context: ProcessorContext[KOut, VOut]) -> None:  # noqa: ARG002 - for those that implement it
        """Called once, before the first record."""
        return  # types: a docstring alone would make it abstract

    def process(self, record: Record[KIn, VIn]) -> None:
        """Process one record; `context.forward` sends results on."""

    def close(self) -> None:
        """Called once, after the last record. Stores are closed by the task, not here."""
        return  # types: a docstring alone would make it abstract


@dataclass(frozen=True)
class FixedKeyRecord(Generic[K, V]):
    """A record whose key cannot change (`org.apache.kafka.streams.processor.api.FixedKeyRecord`).

    The task creates it, and a processor derives others by `with_…`. So downstream nodes can rely on the key.

    Args:
        key: Key, or None.
        value: Value, or None.
        timestamp: Event time in ms since the epoch; never negative.
        headers: Headers, shared with the record this one was made from.

    Raises:
        ProcessingError: If the timestamp is negative or not a whole number, or if a header is not a name with bytes or None.
    """

    key: K
    value: V
    timestamp: int
    headers: Headers = ()

    def __post_init__(self) -> None:
        """Refuse negative timestamps, and malformed headers."""
        if not isinstance(self.timestamp, int):
            raise malformed_timestamp(self.timestamp)
        if self.timestamp < 0:
            raise malformed_timestamp(self.timestamp)
        if self.headers != ():
            check_headers(self.headers)

    def with_value(self, value: Any) -> FixedKeyRecord[K, Any]:
        """Return a copy with another value."""
        return replace(self, value=value)

    def with_timestamp(self, timestamp: int) -> FixedKeyRecord[K, V]:
        """Return a copy at another event time (ms)."""
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Headers) -> FixedKeyRecord[K, V]:
        """Return a copy with other headers."""
        return replace(self, headers=headers)


class FixedKeyProcessorContext(ProcessingContext, Protocol[KOut, VOut]):
    """The context of a `FixedKeyProcessor` (`org.apache.kafka.streams.processor.api.FixedKeyProcessorContext`)."""

    def forward(self, record: FixedKeyRecord[KOut, VOut], child: str | None = None) -> None:
        """Send a record to all children, or to one of them.

        Raises:
            TopologyError: If there is no child with this name.
        """


class FixedKeyProcessor(Protocol[KIn, VIn, VOut]):
    """Processes one record at a time (`org.apache.kafka.streams.processor.api.FixedKeyProcessor`).

    Its types are those of keys, of the values that it takes, and of those that it forwards: `Any` if left out.

    A supplier must return a new instance on each call: every task has its own.
    """

    def init(self, context: FixedKeyProcessorContext[KIn, VOut]) -> None:  # noqa: ARG002 - for those that implement it
        """Called once, before the first record."""
        return  # types: a docstring alone would make it abstract

    def process(self, record: FixedKeyRecord[KIn, VIn]) -> None:
        """Process one record; `context.forward` sends results on."""

    def close(self) -> None:
        """Called once, after the last record. Stores are closed by the task, not here."""
        return  # types: a docstring alone would make it abstract
