"""Windows: pure arithmetic on event time (ms since the epoch)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from pipeline.arguments import DURATION, MOMENT, optional, takes
from pipeline.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

K = TypeVar("K")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TIME_MS = 2**63 - 1
"""The end of windows without an end (`Long.MAX_VALUE`)."""


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


class Window(NamedTuple):
    """A stretch of event time (`org.apache.kafka.streams.kstream.Window`).

    Args:
        start: Its first moment, ms since the epoch.
        end: Its end, ms since the epoch. Belongs to sliding windows and sessions, and not to tumbling and hopping ones.
    """

    start: int
    end: int


class Windowed(NamedTuple, Generic[K]):
    """A key within a window; what windowed aggregations are keyed by (`org.apache.kafka.streams.kstream.Windowed`).

    >>> str(Windowed("a", Window(0, 5000)))
    '[a@0/5000]'

    Args:
        key: The key that was grouped by.
        window: The window.
    """

    key: K
    window: Window

    def __str__(self) -> str:
        """`[key@start/end]`, as Kafka Streams prints it."""
        return f"[{self.key}@{self.window.start}/{self.window.end}]"


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows of a fixed size, aligned to the epoch; tumbling unless `advance_by` makes them hop.

    Copied from `org.apache.kafka.streams.kstream.TimeWindows`.

    >>> from datetime import timedelta
    >>> hopping = TimeWindows.of(timedelta(minutes=10), grace=timedelta(minutes=1)).advance_by(timedelta(minutes=5))
    >>> list(hopping.starts_for(12 * 60_000))
    [300000, 600000]

    Args:
        size_ms: Length of a window.
        advance_ms: Distance between the starts of two windows; at most the size.
        grace_ms: How far behind stream time a record may be and still be counted.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int

    @classmethod
    @takes(size=DURATION, grace=optional(DURATION))
    def of(cls, size: timedelta, *, grace: timedelta | None = None) -> TimeWindows:
        """Tumbling windows of the given size, with the given grace (none if left out).

        Raises:
            TopologyError: If the size is not positive, the grace is negative, or either is no whole number of ms.
        """
        size_ms = millis(size, "window size")
        if size_ms <= 0:
            message = f"window size must be positive, not {size!r}"
            raise TopologyError(message)
        return cls(size_ms, size_ms, millis(grace, "grace") if grace is not None else 0)

    @classmethod
    @takes(size=DURATION)
    def of_size_with_no_grace(cls, size: timedelta) -> TimeWindows:
        """Kafka Streams' `ofSizeWithNoGrace`: the same as `of(size)`."""
        return cls.of(size)

    @classmethod
    @takes(size=DURATION, grace=DURATION)
    def of_size_and_grace(cls, size: timedelta, grace: timedelta) -> TimeWindows:
        """Kafka Streams' `ofSizeAndGrace`: the same as `of(size, grace=grace)`."""
        return cls.of(size, grace=grace)

    @takes(advance=DURATION)
    def advance_by(self, advance: timedelta) -> TimeWindows:
        """Return these windows, hopping by `advance`.

        Raises:
            TopologyError: If the advance is not positive, or larger than the size.
        """
        advance_ms = millis(advance, "advance")
        if not 0 < advance_ms <= self.size_ms:
            message = f"advance must be in (0, {self.size_ms}] ms, not {advance_ms}"
            raise TopologyError(message)
        return replace(self, advance_ms=advance_ms)

    @property
    def retention_ms(self) -> int:
        """How long a store must keep a window: size and grace."""
        return self.size_ms + self.grace_ms

    def starts_for(self, timestamp: int) -> Iterator[int]:
        """Starts of all windows that hold `timestamp`, ascending (`TimeWindows.windowsFor`)."""
        first = max(0, timestamp - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms
        return iter(range(first, timestamp + 1, self.advance_ms))


@runtime_checkable
class Windows(Protocol):
    """Windows of one's own (`org.apache.kafka.streams.kstream.Windows`): whatever has these, best a frozen dataclass.

    Bytes hold a window's start, not its end: other readers, with `windowed(STRING, size)`, take start and size for it.
    """

    @property
    def size_ms(self) -> int:
        """Length of a window as a rule, ms; single ones may be up to twice as long."""

    @property
    def grace_ms(self) -> int:
        """How far behind stream time a window's end may be and the window still changes, ms."""

    def windows_for(self, timestamp: int) -> Iterable[Window]:
        """The windows that hold `timestamp`, ascending: always the same ones for the same time, and no two with one start."""


@dataclass(frozen=True, slots=True)
class OwnWindows:
    """Windows of the user's, as operators and stores ask for them.

    Args:
        given: What the user has written.
        size_ms: Length as a rule.
        grace_ms: How far behind stream time a window's end may be and the window still changes.
    """

    given: Windows
    size_ms: int
    grace_ms: int

    @classmethod
    def of(cls, given: Windows) -> OwnWindows:
        """Look at what is given once.

        Raises:
            TopologyError: If the size is not positive, the grace is negative, or either is no whole number.
        """
        size_ms, grace_ms = given.size_ms, given.grace_ms
        if {type(size_ms), type(grace_ms)} != {int} or size_ms <= 0 or grace_ms < 0:
            message = f"windows have a size_ms above 0 and a grace_ms of at least 0, not {size_ms!r} and {grace_ms!r}"
            raise TopologyError(message)
        return cls(given, size_ms, grace_ms)

    @property
    def retention_ms(self) -> int:
        """How long a store must keep a window as a rule: size and grace."""
        return self.size_ms + self.grace_ms

    @property
    def slack_ms(self) -> int:
        """How much longer it keeps them: windows may be twice as long."""
        return self.size_ms

    def starts_for(self, timestamp: int) -> Iterator[int]:
        """Starts of all windows that hold `timestamp`."""
        return (window.start for window in self.given.windows_for(timestamp))

    def end_of(self, start: int) -> int:
        """End of the window that starts then.

        Raises:
            ValueError: If there is none, or it ends where it begins, or is more than twice as long as windows are as a rule.
        """
        end = next((window.end for window in self.given.windows_for(start) if window.start == start), None)
        if end is None or not start < end <= start + 2 * self.size_ms:
            latest = start + 2 * self.size_ms
            message = f"windows_for({start}) of {self.given!r} has no window from {start} to at most {latest}"
            raise ValueError(message)
        return end


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows around the records themselves: one for every stretch of time whose records differ in a new way.

    Copied from `org.apache.kafka.streams.kstream.SlidingWindows` (KIP-450).

    >>> from datetime import timedelta
    >>> SlidingWindows.of(timedelta(seconds=10), grace=timedelta(seconds=1))
    SlidingWindows(time_difference_ms=10000, grace_ms=1000)

    Each record closes a window that ends with it and, if others follow closely enough, opens one that begins 1 ms after it.
    Both bounds of `[start, start + time_difference]` are inclusive.

    Args:
        time_difference_ms: How far apart two records of a window may be.
        grace_ms: How far behind stream time a window's end may be and the window still changes.
    """

    time_difference_ms: int
    grace_ms: int

    @classmethod
    @takes(time_difference=DURATION, grace=optional(DURATION))
    def of(cls, time_difference: timedelta, *, grace: timedelta | None = None) -> SlidingWindows:
        """Windows of records that are at most `time_difference` apart, with the given grace (none if left out).

        Raises:
            TopologyError: If the time difference is not positive, or the grace is negative.
        """
        difference_ms = millis(time_difference, "time difference")
        if difference_ms == 0:  # Kafka Streams accepts it, and fails at the first record
            message = f"time difference must be positive, not {time_difference!r}"
            raise TopologyError(message)
        return cls(difference_ms, millis(grace, "grace") if grace is not None else 0)

    @classmethod
    @takes(time_difference=DURATION)
    def of_time_difference_with_no_grace(cls, time_difference: timedelta) -> SlidingWindows:
        """Kafka Streams' `ofTimeDifferenceWithNoGrace`: the same as `of(time_difference)`."""
        return cls.of(time_difference)

    @classmethod
    @takes(time_difference=DURATION, grace=DURATION)
    def of_time_difference_and_grace(cls, time_difference: timedelta, grace: timedelta) -> SlidingWindows:
        """Kafka Streams' `ofTimeDifferenceAndGrace`: the same as `of(time_difference, grace=grace)`."""
        return cls.of(time_difference, grace=grace)

    @property
    def size_ms(self) -> int:
        """Length of a window: end less start."""
        return self.time_difference_ms

    @property
    def retention_ms(self) -> int:
        """How long a store must keep a window, as Kafka Streams has it (`SlidingWindowStoreMaterializer`)."""
        return 2 * self.time_difference_ms + self.grace_ms

    @property
    def slack_ms(self) -> int:
        """How much longer windows are needed in truth.

        A record may be behind stream time by grace and difference, and needs windows that start twice the difference before
        it. Kafka Streams finds them only while its cache has them, and else makes no window that follows from them.
        """
        return self.time_difference_ms + 1


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows of activity: records of a key that follow each other within the inactivity gap share one.

    Copied from `org.apache.kafka.streams.kstream.SessionWindows`.

    >>> from datetime import timedelta
    >>> SessionWindows.of(timedelta(minutes=30))
    SessionWindows(gap_ms=1800000, grace_ms=0)

    A window `[first, last]` is as long as its records make it; both bounds are inclusive. A record between two sessions
    merges them.

    Args:
        gap_ms: Longest silence within a session.
        grace_ms: How far behind stream time a record may be, beyond the gap, and still be counted.
    """

    gap_ms: int
    grace_ms: int

    @classmethod
    @takes(inactivity_gap=DURATION, grace=optional(DURATION))
    def of(cls, inactivity_gap: timedelta, *, grace: timedelta | None = None) -> SessionWindows:
        """Sessions that end with a silence of more than `inactivity_gap`, with the given grace (none if left out).

        Raises:
            TopologyError: If the gap or the grace is negative.
        """
        return cls(millis(inactivity_gap, "inactivity gap"), millis(grace, "grace") if grace is not None else 0)

    @classmethod
    @takes(inactivity_gap=DURATION)
    def of_inactivity_gap_with_no_grace(cls, inactivity_gap: timedelta) -> SessionWindows:
        """Kafka Streams' `ofInactivityGapWithNoGrace`: the same as `of(inactivity_gap)`."""
        return cls.of(inactivity_gap)

    @classmethod
    @takes(inactivity_gap=DURATION, grace=DURATION)
    def of_inactivity_gap_and_grace(cls, inactivity_gap: timedelta, grace: timedelta) -> SessionWindows:
        """Kafka Streams' `ofInactivityGapAndGrace`: the same as `of(inactivity_gap, grace=grace)`."""
        return cls.of(inactivity_gap, grace=grace)

    @property
    def retention_ms(self) -> int:
        """How long a store must keep a session behind its last record: gap and grace."""
        return self.gap_ms + self.grace_ms


@dataclass(frozen=True, slots=True)
class UnlimitedWindows:
    """One window that never ends; records before its start are not counted.

    Copied from `org.apache.kafka.streams.kstream.UnlimitedWindows`.

    >>> from datetime import UTC, datetime
    >>> UnlimitedWindows.of(start=datetime(2026, 1, 1, tzinfo=UTC))
    UnlimitedWindows(start_ms=1767225600000)

    Args:
        start_ms: Where it starts, ms since the epoch.
    """

    start_ms: int = 0

    @classmethod
    @takes(start=optional(MOMENT))
    def of(cls, *, start: datetime | None = None) -> UnlimitedWindows:
        """The window from `start` on; from the epoch if left out.

        Raises:
            TopologyError: If the start has no time zone, is before the epoch or no whole number of milliseconds.
        """
        if start is None:
            return cls()
        if start.tzinfo is None:
            message = f"start must have a time zone: {start!r}"
            raise TopologyError(message)
        return cls(millis(start - _EPOCH, "start, counted from the epoch,"))

    @property
    def size_ms(self) -> int:
        """Without end."""
        return MAX_TIME_MS

    @property
    def grace_ms(self) -> int:
        """None is needed: the window never closes."""
        return 0

    @property
    def retention_ms(self) -> int:
        """A store must keep the window for ever."""
        return MAX_TIME_MS

    def starts_for(self, timestamp: int) -> Iterator[int]:
        """The start, if `timestamp` is not before it (`UnlimitedWindows.windowsFor`)."""
        return iter((self.start_ms,) if timestamp >= self.start_ms else ())


def end_of(start: int, size_ms: int) -> int:
    """End of a window of a fixed size, ms; windows that would end after all time do not end."""
    end = start + size_ms
    return end if end < MAX_TIME_MS else MAX_TIME_MS  # noqa: FURB136 - a call takes longer, and updates ask


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """How far apart in event time two records of two streams may be to be joined; both bounds are inclusive.

    Copied from `org.apache.kafka.streams.kstream.JoinWindows`.

    A record of the left stream at `t` is joined with those of the right stream from `t - before` to `t + after`. Unlike in
    `TimeWindows`, late records are not dropped: they are joined with whatever the other stream's store still has.

    Args:
        before_ms: How much earlier than the left record the right one may be.
        after_ms: How much later it may be. Either may be negative, their sum may not.
        grace_ms: How far stream time must go beyond the end of a record's window before a left or outer join says that the
            record has no partner.

    Raises:
        TopologyError: If before and after together, or the grace, are negative.
    """

    before_ms: int
    after_ms: int
    grace_ms: int = 0

    def __post_init__(self) -> None:
        """Refuse windows of negative length (`JoinWindows`)."""
        if self.before_ms + self.after_ms < 0:
            message = f"Window interval (before {self.before_ms} ms + after {self.after_ms} ms) must not be negative"
            raise TopologyError(message)
        if self.grace_ms < 0:
            message = f"Grace period must not be negative, not {self.grace_ms} ms"
            raise TopologyError(message)

    @classmethod
    @takes(time_difference=DURATION, grace=optional(DURATION))
    def of(cls, time_difference: timedelta, *, grace: timedelta | None = None) -> JoinWindows:
        """Windows of the same length before and after, with the given grace (none if left out).

        >>> from datetime import timedelta
        >>> JoinWindows.of(timedelta(seconds=5)).after(timedelta(0))
        JoinWindows(before_ms=5000, after_ms=0, grace_ms=0)

        Raises:
            TopologyError: If either is negative, or no whole number of ms.
        """
        difference_ms = _signed_millis(time_difference, "time difference")
        return cls(difference_ms, difference_ms, _signed_millis(grace, "grace") if grace is not None else 0)

    @classmethod
    @takes(time_difference=DURATION)
    def of_time_difference_with_no_grace(cls, time_difference: timedelta) -> JoinWindows:
        """Kafka Streams' `ofTimeDifferenceWithNoGrace`: the same as `of(time_difference)`."""
        return cls.of(time_difference)

    @classmethod
    @takes(time_difference=DURATION, grace=DURATION)
    def of_time_difference_and_grace(cls, time_difference: timedelta, grace: timedelta) -> JoinWindows:
        """Kafka Streams' `ofTimeDifferenceAndGrace`: the same as `of(time_difference, grace=grace)`."""
        return cls.of(time_difference, grace=grace)

    @takes(time_difference=DURATION)
    def before(self, time_difference: timedelta) -> JoinWindows:
        """Return these windows, with records of the other stream at most this much earlier; negative: at least that much later.

        Raises:
            TopologyError: If before and after together are negative then, or it is no whole number of ms.
        """
        return JoinWindows(_signed_millis(time_difference, "before"), self.after_ms, self.grace_ms)

    @takes(time_difference=DURATION)
    def after(self, time_difference: timedelta) -> JoinWindows:
        """Return these windows, with records of the other stream at most this much later; negative: at least that much earlier.

        Raises:
            TopologyError: If before and after together are negative then, or it is no whole number of ms.
        """
        return JoinWindows(self.before_ms, _signed_millis(time_difference, "after"), self.grace_ms)

    @property
    def size_ms(self) -> int:
        """Length of the window: before and after together."""
        return self.before_ms + self.after_ms

    @property
    def retention_ms(self) -> int:
        """How long a store must keep a record: size and grace."""
        return self.size_ms + self.grace_ms


def _signed_millis(duration: timedelta, what: str) -> int:
    magnitude_ms = millis(abs(duration), what)
    return -magnitude_ms if duration.days < 0 else magnitude_ms
