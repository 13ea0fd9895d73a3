"""What users implement to process records without touching their keys (`FixedKeyProcessor`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pipeline.errors import ProcessingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from pipeline.processor.api import Cancellable, PunctuationType
    from pipeline.records import Headers, RecordMetadata, TaskId

K = TypeVar("K")
V = TypeVar("V")
KIn = TypeVar("KIn")
VIn = TypeVar("VIn")


@dataclass(frozen=True, slots=True)
class FixedKeyRecord(Generic[K, V]):
    """A record whose key stays as it is (`org.apache.kafka.streams.processor.api.FixedKeyRecord`).

    The task makes them; a processor derives others by `with_…`, which is why its key can be trusted downstream.

    Args:
        key: Key, or None.
        value: Value, or None.
        timestamp: Event time in ms since the epoch; never negative.
        headers: Headers, shared with the record this one was made from.

    Raises:
        ProcessingError: If the timestamp is negative.
    """

    key: K
    value: V
    timestamp: int
    headers: Headers = ()

    def __post_init__(self) -> None:
        """Refuse negative timestamps."""
        if self.timestamp < 0:
            message = f"Malformed record: timestamp {self.timestamp} is negative"
            raise ProcessingError(message)

    def with_value(self, value: Any) -> FixedKeyRecord[K, Any]:
        """The same record with another value."""
        return replace(self, value=value)

    def with_timestamp(self, timestamp: int) -> FixedKeyRecord[K, V]:
        """The same record at another event time (ms)."""
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Headers) -> FixedKeyRecord[K, V]:
        """The same record with other headers."""
        return replace(self, headers=headers)


class FixedKeyProcessorContext(Protocol):
    """What such a processor may ask of its task (`org.apache.kafka.streams.processor.api.FixedKeyProcessorContext`)."""

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
        """Where the current record came from; None within a punctuation."""
        ...

    def forward(self, record: FixedKeyRecord[Any, Any], child: str | None = None) -> None:
        """Send a record to all children, or to one of them.

        Raises:
            TopologyError: If there is no child of that name.
        """
        ...

    def get_state_store(self, name: str) -> Any:
        """A store connected to this processor, or a global one (read only).

        Raises:
            InvalidStateStoreError: If the store is not connected to this processor.
        """
        ...

    def schedule(
        self, interval: timedelta, punctuation_type: PunctuationType, punctuator: Callable[[int], None]
    ) -> Cancellable:
        """Call `punctuator(time_ms)` at every interval; missed intervals are not caught up.

        Stream time: first with the first record. Wall clock: first after one interval.

        Raises:
            TopologyError: If the interval is below 1 ms.
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


class FixedKeyProcessor(Protocol[KIn, VIn]):
    """Handles one record after the other (`org.apache.kafka.streams.processor.api.FixedKeyProcessor`).

    A supplier must give a new instance on each call: every task has its own.
    """

    def init(self, context: FixedKeyProcessorContext) -> None:
        """Called once, before the first record."""

    def process(self, record: FixedKeyRecord[KIn, VIn]) -> None:
        """Handle one record; `context.forward` sends results on."""
        ...

    def close(self) -> None:
        """Called once, after the last record. Stores are closed by the task, not here."""
