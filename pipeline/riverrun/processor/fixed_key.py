"""Interfaces for processing records without changing their keys (`FixedKeyProcessor`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from riverrun.errors import ProcessingError
from riverrun.processor.api import ProcessingContext
from riverrun.records import check_headers

if TYPE_CHECKING:
    from riverrun.records import Headers

K = TypeVar("K")
V = TypeVar("V")
KIn = TypeVar("KIn")
VIn = TypeVar("VIn")


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
            message = f"Malformed record: timestamp {self.timestamp!r} is not a whole number of ms"
            raise ProcessingError(message)
        if self.timestamp < 0:
            message = f"Malformed record: timestamp {self.timestamp} is negative"
            raise ProcessingError(message)
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


class FixedKeyProcessorContext(ProcessingContext, Protocol):
    """The context of a `FixedKeyProcessor` (`org.apache.kafka.streams.processor.api.FixedKeyProcessorContext`)."""

    def forward(self, record: FixedKeyRecord[Any, Any], child: str | None = None) -> None:
        """Send a record to all children, or to one of them.

        Raises:
            TopologyError: If there is no child with this name.
        """
        ...


class FixedKeyProcessor(Protocol[KIn, VIn]):
    """Processes one record at a time (`org.apache.kafka.streams.processor.api.FixedKeyProcessor`).

    A supplier must return a new instance on each call: every task has its own.
    """

    def init(self, context: FixedKeyProcessorContext) -> None:  # noqa: ARG002 - for those that implement it
        """Called once, before the first record."""
        return  # types: a docstring alone would make it abstract

    def process(self, record: FixedKeyRecord[KIn, VIn]) -> None:
        """Process one record; `context.forward` sends results on."""
        ...

    def close(self) -> None:
        """Called once, after the last record. Stores are closed by the task, not here."""
        return  # types: a docstring alone would make it abstract
