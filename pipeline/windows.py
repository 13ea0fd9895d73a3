"""Windows: pure arithmetic on event time (ms since the epoch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pipeline.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

K = TypeVar("K")


def millis(duration: timedelta, what: str = "duration") -> int:
    """A duration in whole milliseconds.

    Raises:
        TopologyError: If it is negative or not a whole number of milliseconds.
    """
    micros = round(duration.total_seconds() * 1_000_000)
    if micros < 0 or micros % 1000:
        message = f"{what} must be a non-negative whole number of milliseconds, not {duration!r}"
        raise TopologyError(message)
    return micros // 1000


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A stretch of event time. Whether `end` belongs to it depends on the kind of window."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Windowed(Generic[K]):
    """A key within a window; what windowed aggregations are keyed by.

    >>> str(Windowed("a", Window(0, 5000)))
    '[a@0/5000]'
    """

    key: K
    window: Window

    def __str__(self) -> str:
        """`[key@start/end]`, as Kafka Streams prints it."""
        return f"[{self.key}@{self.window.start}/{self.window.end}]"


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows of a fixed size, aligned to the epoch; tumbling unless `advance_by` makes them hop.

    Args:
        size_ms: Length of a window.
        advance_ms: Distance between the starts of two windows; at most the size.
        grace_ms: How far behind stream time a record may be and still be counted.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int

    @classmethod
    def of(cls, size: timedelta, *, grace: timedelta | None = None) -> TimeWindows:
        """Tumbling windows of the given size, with the given grace (none if left out).

        Raises:
            TopologyError: If the size is not positive.
        """
        size_ms = millis(size, "window size")
        if size_ms <= 0:
            message = f"window size must be positive, not {size!r}"
            raise TopologyError(message)
        return cls(size_ms, size_ms, millis(grace, "grace") if grace is not None else 0)

    @classmethod
    def of_size_with_no_grace(cls, size: timedelta) -> TimeWindows:
        """Kafka Streams' `ofSizeWithNoGrace`."""
        return cls.of(size)

    @classmethod
    def of_size_and_grace(cls, size: timedelta, grace: timedelta) -> TimeWindows:
        """Kafka Streams' `ofSizeAndGrace`."""
        return cls.of(size, grace=grace)

    def advance_by(self, advance: timedelta) -> TimeWindows:
        """The same windows, hopping by `advance`.

        Raises:
            TopologyError: If the advance is not positive, or larger than the size.
        """
        advance_ms = millis(advance, "advance")
        if not 0 < advance_ms <= self.size_ms:
            message = f"advance must be in (0, {self.size_ms}] ms, not {advance_ms}"
            raise TopologyError(message)
        return TimeWindows(self.size_ms, advance_ms, self.grace_ms)

    @property
    def retention_ms(self) -> int:
        """How long a store must keep a window: size and grace."""
        return self.size_ms + self.grace_ms

    def starts_for(self, timestamp: int) -> Iterator[int]:
        """Starts of all windows that hold `timestamp`, ascending (`TimeWindows.windowsFor`)."""
        first = max(0, timestamp - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms
        return iter(range(first, timestamp + 1, self.advance_ms))
