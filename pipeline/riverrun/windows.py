"""Windows: pure arithmetic on event time (ms since the epoch)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from riverrun.arguments import DURATION, MOMENT, NUMBER, TEXT, optional, takes
from riverrun.calendars import Calendar
from riverrun.errors import TopologyError
from riverrun.records import EPOCH, counted, moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

K = TypeVar("K")

MAX_TIME_MS = 2**63 - 1
"""The end of windows without an end (`Long.MAX_VALUE`)."""


def millis(duration: timedelta, what: str = "duration") -> int:
    """Convert a duration to whole milliseconds.

    Raises:
        TopologyError: If it is negative or not a whole number of milliseconds.
    """
    micros = round(duration.total_seconds() * 1_000_000)
    if micros < 0 or micros % 1000:
        raise TopologyError(f"{what} must be a non-negative whole number of milliseconds, not {duration!r}")
    return micros // 1000


class Window(NamedTuple):
    """A span of event time (`org.apache.kafka.streams.kstream.Window`).

    Args:
        start: Start, ms since the epoch, inclusive.
        end: End, ms since the epoch: inclusive for sliding windows and sessions, exclusive for tumbling and hopping ones.
    """

    start: int
    end: int


class Windowed(NamedTuple, Generic[K]):
    """A key within a window: the key type of windowed aggregations (`org.apache.kafka.streams.kstream.Windowed`).

    >>> str(Windowed("a", Window(0, 5000)))
    '[a@0/5000]'

    Args:
        key: The grouping key.
        window: Start and end of the window, ms since the epoch.
    """

    key: K
    window: Window

    def __str__(self) -> str:
        """Return `[key@start/end]`, as Kafka Streams prints it."""
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
        grace_ms: How far a record may lag behind stream time and still be counted.
    """

    size_ms: int
    advance_ms: int
    grace_ms: int

    @classmethod
    @takes(size=DURATION, grace=optional(DURATION))
    def of(cls, size: timedelta, *, grace: timedelta | None = None) -> TimeWindows:
        """Return tumbling windows of the given size, with the given grace (none by default).

        Raises:
            TopologyError: If the size is not positive, the grace is negative, or either is not a whole number of ms.
        """
        size_ms = millis(size, "window size")
        if size_ms <= 0:
            raise TopologyError(f"window size must be positive, not {size!r}")
        return cls(size_ms, size_ms, millis(grace, "grace") if grace is not None else 0)

    @classmethod
    @takes(size=DURATION)
    def of_size_with_no_grace(cls, size: timedelta) -> TimeWindows:
        """Kafka Streams' `ofSizeWithNoGrace`: an alias of `of(size)`."""
        return cls.of(size)

    @classmethod
    @takes(size=DURATION, grace=DURATION)
    def of_size_and_grace(cls, size: timedelta, grace: timedelta) -> TimeWindows:
        """Kafka Streams' `ofSizeAndGrace`: an alias of `of(size, grace=grace)`."""
        return cls.of(size, grace=grace)

    @takes(advance=DURATION)
    def advance_by(self, advance: timedelta) -> TimeWindows:
        """Return these windows, hopping by `advance`.

        Raises:
            TopologyError: If the advance is not positive, or larger than the size.
        """
        advance_ms = millis(advance, "advance")
        if not 0 < advance_ms <= self.size_ms:
            raise TopologyError(f"advance must be in (0, {self.size_ms}] ms, not {advance_ms}")
        return replace(self, advance_ms=advance_ms)

    @property
    def retention_ms(self) -> int:
        """Return how long a store must keep a window: size plus grace."""
        return self.size_ms + self.grace_ms

    def starts_for(self, timestamp: int) -> Iterator[int]:
        """Yield the starts of all windows that contain `timestamp`, ascending (`TimeWindows.windowsFor`)."""
        first = max(0, timestamp - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms
        return iter(range(first, timestamp + 1, self.advance_ms))


@runtime_checkable
class Windows(Protocol):
    """Custom windows (`org.apache.kafka.streams.kstream.Windows`): an object with these attributes, best a frozen dataclass.

    Serialized keys hold a window's start, not its end. Readers compute the end with `windowed(STRING, size)`,
    whose `size` may be these windows.
    """

    @property
    def size_ms(self) -> int:
        """Usual length of a window, ms; a single window may be up to twice as long."""

    @property
    def grace_ms(self) -> int:
        """How far the end of a window may lag behind stream time while the window still changes, ms."""

    def windows_for(self, timestamp: int) -> Iterable[Window]:
        """Return the windows that contain `timestamp`, ascending: deterministic, and no two with the same start."""


@dataclass(frozen=True, slots=True)
class OwnWindows:
    """Custom windows in the form that operators and stores use.

    Args:
        given: The user's object.
        size_ms: Usual length.
        grace_ms: How far the end of a window may lag behind stream time while the window still changes.
    """

    given: Windows
    size_ms: int
    grace_ms: int

    @classmethod
    def of(cls, given: Windows) -> OwnWindows:
        """Read and check the attributes of the user's windows once.

        Raises:
            TopologyError: If the size is not positive, the grace is negative, or either is not a whole number.
        """
        size_ms, grace_ms = given.size_ms, given.grace_ms
        if {type(size_ms), type(grace_ms)} != {int} or size_ms <= 0 or grace_ms < 0:
            message = f"windows have a size_ms above 0 and a grace_ms of at least 0, not {size_ms!r} and {grace_ms!r}"
            raise TopologyError(message)
        return cls(given, size_ms, grace_ms)

    @property
    def retention_ms(self) -> int:
        """Return how long a store must usually keep a window: size plus grace."""
        return self.size_ms + self.grace_ms

    @property
    def slack_ms(self) -> int:
        """Return how much longer a store keeps windows than usual: windows may be twice as long."""
        return self.size_ms

    def starts_for(self, timestamp: int) -> Iterator[int]:
        """Yield the starts of all windows that contain `timestamp`."""
        return (window.start for window in self.given.windows_for(timestamp))

    def end_of(self, start: int) -> int:
        """Return the end of the window with this start.

        Raises:
            ValueError: If there is no such window, if it is empty, or if it is more than twice as long as usual.
        """
        end = next((window.end for window in self.given.windows_for(start) if window.start == start), None)
        if end is None or not start < end <= start + 2 * self.size_ms:
            latest = start + 2 * self.size_ms
            raise ValueError(f"windows_for({start}) of {self.given!r} has no window from {start} to at most {latest}")
        return end


_DAY_MS = 86_400_000
# No zone has set its clocks back by more within a year since 1970.
_LONGEST_SHIFT_MS = _DAY_MS // 2
# Days of the longest windows of so many months.
_DAYS_OF_MONTHS = {1: 31, 2: 62, 3: 92, 4: 123, 6: 184, 12: 366}
_SHORTEST_MONTH_MS = 28 * _DAY_MS
_MOST_DAYS = 366
_NO_OFFSET = timedelta(0)


@dataclass(frozen=True, slots=True)
class CalendarWindows:
    """Days, weeks, months, quarters or years of a time zone, which are as long as its clocks and its calendar have them.

    Windows follow each other without gaps. Each begins when local clocks show its first moment, or a later one where they
    leave that out.

    >>> from datetime import UTC, datetime
    >>> days = CalendarWindows.days("Europe/Berlin")
    >>> autumn = int(datetime(2026, 10, 25, 12, tzinfo=UTC).timestamp() * 1000)
    >>> [(window.end - window.start) // 3_600_000 for window in days.windows_for(autumn)]
    [25]

    Args:
        zone: Name of the time zone, such as `Europe/Berlin`.
        count: Number of units of a window.
        unit: Unit of the count.
        offset_months: Number of months by which windows of months begin later than in January.
        offset_ms: How much later windows begin than their first day, on local clocks.
        grace_ms: How far the end of a window may lag behind stream time while the window still changes.

    Raises:
        TopologyError: If there is no such zone, or if a number is out of bounds.
    """

    zone: str
    count: int
    unit: Literal["days", "months"]
    offset_months: int
    offset_ms: int
    grace_ms: int

    def __post_init__(self) -> None:
        """Refuse zones that do not exist, and lengths and offsets that no calendar has."""
        _check_zone(self.zone)
        if self.unit == "days":
            most_months, most_ms = 1, self.count * _DAY_MS
            if not 1 <= self.count <= _MOST_DAYS:
                raise TopologyError(f"windows have 1 to {_MOST_DAYS} days, not {self.count}")
        elif self.unit == "months":
            most_months, most_ms = self.count, _SHORTEST_MONTH_MS
            if self.count not in _DAYS_OF_MONTHS:
                message = f"windows have 1, 2, 3, 4, 6 or 12 months, so that each year begins one, not {self.count}"
                raise TopologyError(message)
        else:
            raise TopologyError(f"windows have the unit days or months, not {self.unit!r}")
        if not 0 <= self.offset_months < most_months:
            name, most = f"windows of {counted(self.count, self.unit[:-1])}", counted(most_months, "month")
            raise TopologyError(f"{name} begin less than {most} later, not {self.offset_months}")
        if not 0 <= self.offset_ms < most_ms:
            raise TopologyError(
                f"offset must be less than {counted(most_ms // _DAY_MS, 'day')}, not {self.offset_ms} ms"
            )
        if self.grace_ms < 0:
            raise TopologyError(f"grace must not be negative, not {self.grace_ms} ms")

    @classmethod
    @takes(zone=TEXT, count=NUMBER, offset=DURATION, grace=optional(DURATION))
    def days(
        cls, zone: str, count: int = 1, *, offset: timedelta = _NO_OFFSET, grace: timedelta | None = None
    ) -> CalendarWindows:
        """Return windows of one day, or of `count` days, which are counted from Monday, 5 January 1970.

        Args:
            zone: Name of the time zone.
            count: Number of days, at most 366.
            offset: How much later than midnight windows begin: `timedelta(hours=6)` for days that begin at six.
            grace: How far the end of a window may lag behind stream time while the window still changes; defaults to none.

        Raises:
            TopologyError: If there is no such zone, or if a number is out of bounds.
        """
        return cls._of(zone, count, "days", 0, offset, grace)

    @classmethod
    @takes(zone=TEXT, count=NUMBER, offset=DURATION, grace=optional(DURATION))
    def weeks(
        cls, zone: str, count: int = 1, *, offset: timedelta = _NO_OFFSET, grace: timedelta | None = None
    ) -> CalendarWindows:
        """Return windows of weeks, as `days` does: they begin on Mondays, with an offset of six days on Sundays.

        Raises:
            TopologyError: If there is no such zone, or if a number is out of bounds.
        """
        return cls._of(zone, 7 * count, "days", 0, offset, grace)

    @classmethod
    @takes(zone=TEXT, count=NUMBER, offset_months=NUMBER, offset=DURATION, grace=optional(DURATION))
    def months(
        cls,
        zone: str,
        count: int = 1,
        *,
        offset_months: int = 0,
        offset: timedelta = _NO_OFFSET,
        grace: timedelta | None = None,
    ) -> CalendarWindows:
        """Return windows of one month, or of 2, 3, 4, 6 or 12 months, the first of which begins in January.

        Args:
            zone: Name of the time zone.
            count: Number of months.
            offset_months: How many months later windows begin, less than `count`.
            offset: How much later than the first of the month windows begin, less than 28 days.
            grace: How far the end of a window may lag behind stream time while the window still changes; defaults to none.

        Raises:
            TopologyError: If there is no such zone, or if a number is out of bounds.
        """
        return cls._of(zone, count, "months", offset_months, offset, grace)

    @classmethod
    @takes(zone=TEXT, offset_months=NUMBER, offset=DURATION, grace=optional(DURATION))
    def quarters(
        cls, zone: str, *, offset_months: int = 0, offset: timedelta = _NO_OFFSET, grace: timedelta | None = None
    ) -> CalendarWindows:
        """Return windows of three months, as `months` does.

        Raises:
            TopologyError: If there is no such zone, or if a number is out of bounds.
        """
        return cls._of(zone, 3, "months", offset_months, offset, grace)

    @classmethod
    @takes(zone=TEXT, offset_months=NUMBER, offset=DURATION, grace=optional(DURATION))
    def years(
        cls, zone: str, *, offset_months: int = 0, offset: timedelta = _NO_OFFSET, grace: timedelta | None = None
    ) -> CalendarWindows:
        """Return windows of twelve months, as `months` does: with `offset_months=3` from April on.

        Raises:
            TopologyError: If there is no such zone, or if a number is out of bounds.
        """
        return cls._of(zone, 12, "months", offset_months, offset, grace)

    @classmethod
    def _of(
        cls,
        zone: str,
        count: int,
        unit: Literal["days", "months"],
        offset_months: int,
        offset: timedelta,
        grace: timedelta | None,
    ) -> CalendarWindows:
        grace_ms = 0 if grace is None else millis(grace, "grace")
        return cls(zone, count, unit, offset_months, millis(offset, "offset"), grace_ms)

    @property
    def size_ms(self) -> int:
        """Return a bound on the length of a window, ms: that of the longest in days of 24 hours, and twelve hours more."""
        days = _DAYS_OF_MONTHS[self.count] if self.unit == "months" else self.count
        return days * _DAY_MS + _LONGEST_SHIFT_MS

    @property
    def retention_ms(self) -> int:
        """Return how long a store must keep a window: size plus grace."""
        return self.size_ms + self.grace_ms

    def windows_for(self, timestamp: int) -> Iterable[Window]:
        """Return the window that contains `timestamp`; none before the epoch."""
        return [Window(start, self.end_of(start)) for start in self.starts_for(timestamp)]

    def starts_for(self, timestamp: int) -> Iterable[int]:
        """Return the start of the window that contains `timestamp`; none before the epoch."""
        return calendar_of(self).starts_for(timestamp)

    def end_of(self, start: int) -> int:
        """Return the end of the window with this start, ms."""
        return calendar_of(self).end_of(start)

    def __str__(self) -> str:
        """Return them as text: `str(CalendarWindows.weeks("Europe/Berlin"))` is `7 days of Europe/Berlin`."""
        unit = self.unit if self.count > 1 else self.unit.removesuffix("s")
        months = f", {self.offset_months} months later" if self.offset_months else ""
        later = f", {timedelta(milliseconds=self.offset_ms)} later" if self.offset_ms else ""
        return f"{self.count} {unit} of {self.zone}{months}{later}"


def _check_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    # ZoneInfo reads a file of that name: a name with `..`, or that of a directory, raises the other two.
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = (
            "Names are those of the IANA's database, such as Europe/Berlin: pip install tzdata if the system has none."
        )
        raise TopologyError(f"there is no time zone {name!r}", hint=hint) from None


@cache
def calendar_of(windows: CalendarWindows) -> Calendar:
    """Return the calendar that finds windows: its borders are found once for all users in a process."""
    return Calendar(windows.zone, windows.count, windows.unit, windows.offset_months, windows.offset_ms)


VaryingWindows = OwnWindows | CalendarWindows
"""Windows that tell where each of them ends (`end_of`)."""


def varying(given: Windows) -> VaryingWindows:
    """Return a user's windows in the form that operators and stores use."""
    return given if isinstance(given, CalendarWindows) else OwnWindows.of(given)


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows that slide with the records: one for each distinct set of records within the time difference.

    Copied from `org.apache.kafka.streams.kstream.SlidingWindows` (KIP-450).

    >>> from datetime import timedelta
    >>> SlidingWindows.of(timedelta(seconds=10), grace=timedelta(seconds=1))
    SlidingWindows(time_difference_ms=10000, grace_ms=1000)

    Each record closes a window that ends with it and, if others follow closely enough, opens one that begins 1 ms after it.
    Both bounds of `[start, start + time_difference]` are inclusive.

    Args:
        time_difference_ms: How far apart two records of a window may be.
        grace_ms: How far the end of a window may lag behind stream time while the window still changes.
    """

    time_difference_ms: int
    grace_ms: int

    @classmethod
    @takes(time_difference=DURATION, grace=optional(DURATION))
    def of(cls, time_difference: timedelta, *, grace: timedelta | None = None) -> SlidingWindows:
        """Return windows of records that are at most `time_difference` apart, with the given grace (none by default).

        Raises:
            TopologyError: If the time difference is not positive, or the grace is negative.
        """
        difference_ms = millis(time_difference, "time difference")
        # Kafka Streams accepts 0, and fails at the first record.
        if difference_ms == 0:
            raise TopologyError(f"time difference must be positive, not {time_difference!r}")
        return cls(difference_ms, millis(grace, "grace") if grace is not None else 0)

    @classmethod
    @takes(time_difference=DURATION)
    def of_time_difference_with_no_grace(cls, time_difference: timedelta) -> SlidingWindows:
        """Kafka Streams' `ofTimeDifferenceWithNoGrace`: an alias of `of(time_difference)`."""
        return cls.of(time_difference)

    @classmethod
    @takes(time_difference=DURATION, grace=DURATION)
    def of_time_difference_and_grace(cls, time_difference: timedelta, grace: timedelta) -> SlidingWindows:
        """Kafka Streams' `ofTimeDifferenceAndGrace`: an alias of `of(time_difference, grace=grace)`."""
        return cls.of(time_difference, grace=grace)

    @property
    def size_ms(self) -> int:
        """Return the length of a window: end minus start."""
        return self.time_difference_ms

    @property
    def retention_ms(self) -> int:
        """Return how long a store must keep a window, as Kafka Streams computes it (`SlidingWindowStoreMaterializer`)."""
        return 2 * self.time_difference_ms + self.grace_ms

    @property
    def slack_ms(self) -> int:
        """Return how much longer stores must keep windows than `retention_ms`."""
        # A record may lag behind stream time by grace plus difference, and needs windows that start up to twice the
        # difference before it. Kafka Streams finds those only while its cache holds them; otherwise it omits the
        # windows derived from them.
        return self.time_difference_ms + 1


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows of activity: records of a key that follow each other within the inactivity gap share one.

    Copied from `org.apache.kafka.streams.kstream.SessionWindows`.

    >>> from datetime import timedelta
    >>> SessionWindows.of(timedelta(minutes=30))
    SessionWindows(gap_ms=1800000, grace_ms=0)

    A window `[first, last]` spans its records; both bounds are inclusive. A record between two sessions merges them.

    Args:
        gap_ms: Longest pause within a session.
        grace_ms: How far, beyond the gap, a record may lag behind stream time and still be counted.
    """

    gap_ms: int
    grace_ms: int

    @classmethod
    @takes(inactivity_gap=DURATION, grace=optional(DURATION))
    def of(cls, inactivity_gap: timedelta, *, grace: timedelta | None = None) -> SessionWindows:
        """Return sessions that end after more than `inactivity_gap` without records, with the given grace (default: none).

        Raises:
            TopologyError: If the gap or the grace is negative.
        """
        return cls(millis(inactivity_gap, "inactivity gap"), millis(grace, "grace") if grace is not None else 0)

    @classmethod
    @takes(inactivity_gap=DURATION)
    def of_inactivity_gap_with_no_grace(cls, inactivity_gap: timedelta) -> SessionWindows:
        """Kafka Streams' `ofInactivityGapWithNoGrace`: an alias of `of(inactivity_gap)`."""
        return cls.of(inactivity_gap)

    @classmethod
    @takes(inactivity_gap=DURATION, grace=DURATION)
    def of_inactivity_gap_and_grace(cls, inactivity_gap: timedelta, grace: timedelta) -> SessionWindows:
        """Kafka Streams' `ofInactivityGapAndGrace`: an alias of `of(inactivity_gap, grace=grace)`."""
        return cls.of(inactivity_gap, grace=grace)

    @property
    def retention_ms(self) -> int:
        """Return how long a store must keep a session after its last record: gap plus grace."""
        return self.gap_ms + self.grace_ms


@dataclass(frozen=True, slots=True)
class UnlimitedWindows:
    """One window that never ends; records before its start are not counted.

    Copied from `org.apache.kafka.streams.kstream.UnlimitedWindows`.

    >>> from datetime import UTC, datetime
    >>> UnlimitedWindows.of(start=datetime(2026, 1, 1, tzinfo=UTC))
    UnlimitedWindows(start_ms=1767225600000)

    Args:
        start_ms: Start, ms since the epoch.
    """

    start_ms: int = 0

    @classmethod
    @takes(start=optional(MOMENT))
    def of(cls, *, start: datetime | None = None) -> UnlimitedWindows:
        """Return the window that begins at `start`, by default at the epoch. A start without a zone is in UTC.

        Raises:
            TopologyError: If the start is before the epoch, or is not a whole number of milliseconds.
        """
        if start is None:
            return cls()
        return cls(millis(moment(start) - EPOCH, "start, counted from the epoch,"))

    @property
    def size_ms(self) -> int:
        """Return the largest size: the window has no end."""
        return MAX_TIME_MS

    @property
    def grace_ms(self) -> int:
        """Return 0: the window never closes."""
        return 0

    @property
    def retention_ms(self) -> int:
        """Return the largest retention: a store must keep the window forever."""
        return MAX_TIME_MS

    def starts_for(self, timestamp: int) -> Iterator[int]:
        """Yield the start if `timestamp` is not before it (`UnlimitedWindows.windowsFor`)."""
        return iter((self.start_ms,) if timestamp >= self.start_ms else ())


@dataclass(frozen=True, slots=True)
class CountWindows:
    """Windows of a number of records of a key, in the order of their arrival.

    >>> CountWindows.of(3)
    CountWindows(size=3, advance=3)
    >>> CountWindows.of(3).advance_by(1)
    CountWindows(size=3, advance=1)

    Args:
        size: Number of records of a window.
        advance: Number of records between the beginnings of two windows.
    """

    size: int
    advance: int

    @classmethod
    @takes(size=NUMBER)
    def of(cls, size: int) -> CountWindows:
        """Return windows that follow each other, each with `size` records.

        Raises:
            TopologyError: If the size is not positive.
        """
        if size < 1:
            raise TopologyError(f"The size of windows must be at least one record, not {size}")
        return cls(size, size)

    @takes(records=NUMBER)
    def advance_by(self, records: int) -> CountWindows:
        """Return windows of this size, one of which begins every so many records.

        Raises:
            TopologyError: If that is not between one and the size.
        """
        if not 1 <= records <= self.size:
            raise TopologyError(f"Windows of {self.size} records must advance by 1 to {self.size}, not {records}")
        return replace(self, advance=records)


@dataclass(frozen=True, slots=True)
class RollingWindows:
    """The window of each record: its key's records of the time before it, up to the record itself.

    >>> from datetime import timedelta
    >>> RollingWindows.of(timedelta(minutes=10))
    RollingWindows(size_ms=600000, records=None, grace_ms=600000)
    >>> RollingWindows.of(timedelta(days=30), records=100, grace=timedelta(0))
    RollingWindows(size_ms=2592000000, records=100, grace_ms=0)

    Args:
        size_ms: How far the window of a record reaches back, inclusive.
        records: The most records of a window, the record itself included; None for all of the time.
        grace_ms: How far a record may lag behind stream time.
    """

    size_ms: int
    records: int | None
    grace_ms: int

    @classmethod
    @takes(size=DURATION, records=optional(NUMBER), grace=optional(DURATION))
    def of(cls, size: timedelta, *, records: int | None = None, grace: timedelta | None = None) -> RollingWindows:
        """Return windows that reach back by `size`, and by at most so many records; the grace defaults to `size`.

        Raises:
            TopologyError: If a time is negative or not a whole number of ms, or the number of records is not positive.
        """
        if records is not None and records < 1:
            raise TopologyError(f"A window has at least one record, its own: records must be 1 or more, not {records}")
        size_ms = millis(size, "size")
        return cls(size_ms, records, size_ms if grace is None else millis(grace, "grace"))

    @property
    def retention_ms(self) -> int:
        """Return how long a store must keep a record: size and grace, and their first millisecond."""
        return self.size_ms + self.grace_ms + 1


def end_of(start: int, size_ms: int) -> int:
    """Return the end of a window of a fixed size, ms, capped at the end of windows without an end."""
    end = start + size_ms
    # Not min(): a call takes longer, and each update asks.
    return end if end < MAX_TIME_MS else MAX_TIME_MS  # noqa: FURB136 - a call takes longer, and updates ask


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """Bounds of the time difference between two joined records of two streams; both bounds are inclusive.

    Copied from `org.apache.kafka.streams.kstream.JoinWindows`.

    A record of the left stream at `t` is joined with those of the right stream from `t - before` to `t + after`. Unlike in
    `TimeWindows`, late records are not dropped: they join the records that the other stream's store still holds.

    Args:
        before_ms: How much earlier than the left record the right one may be.
        after_ms: How much later it may be. Either may be negative, their sum may not.
        grace_ms: How far stream time must pass the end of a record's window before a left or outer join emits the record
            without a partner.

    Raises:
        TopologyError: If the sum of before and after, or the grace, is negative.
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
            raise TopologyError(f"Grace period must not be negative, not {self.grace_ms} ms")

    @classmethod
    @takes(time_difference=DURATION, grace=optional(DURATION))
    def of(cls, time_difference: timedelta, *, grace: timedelta | None = None) -> JoinWindows:
        """Return windows of equal length before and after, with the given grace (none by default).

        >>> from datetime import timedelta
        >>> JoinWindows.of(timedelta(seconds=5)).after(timedelta(0))
        JoinWindows(before_ms=5000, after_ms=0, grace_ms=0)

        Raises:
            TopologyError: If either is negative, or not a whole number of ms.
        """
        difference_ms = _signed_millis(time_difference, "time difference")
        return cls(difference_ms, difference_ms, _signed_millis(grace, "grace") if grace is not None else 0)

    @classmethod
    @takes(time_difference=DURATION)
    def of_time_difference_with_no_grace(cls, time_difference: timedelta) -> JoinWindows:
        """Kafka Streams' `ofTimeDifferenceWithNoGrace`: an alias of `of(time_difference)`."""
        return cls.of(time_difference)

    @classmethod
    @takes(time_difference=DURATION, grace=DURATION)
    def of_time_difference_and_grace(cls, time_difference: timedelta, grace: timedelta) -> JoinWindows:
        """Kafka Streams' `ofTimeDifferenceAndGrace`: an alias of `of(time_difference, grace=grace)`."""
        return cls.of(time_difference, grace=grace)

    @takes(time_difference=DURATION)
    def before(self, time_difference: timedelta) -> JoinWindows:
        """Return these windows with a new limit on how much earlier the other record may be; negative: it must be later.

        Raises:
            TopologyError: If the sum of before and after becomes negative, or the difference is not a whole number of ms.
        """
        return JoinWindows(_signed_millis(time_difference, "before"), self.after_ms, self.grace_ms)

    @takes(time_difference=DURATION)
    def after(self, time_difference: timedelta) -> JoinWindows:
        """Return these windows with a new limit on how much later the other record may be; negative: it must be earlier.

        Raises:
            TopologyError: If the sum of before and after becomes negative, or the difference is not a whole number of ms.
        """
        return JoinWindows(self.before_ms, _signed_millis(time_difference, "after"), self.grace_ms)

    @property
    def size_ms(self) -> int:
        """Return the length of the window: before plus after."""
        return self.before_ms + self.after_ms

    @property
    def retention_ms(self) -> int:
        """Return how long a store must keep a record: size plus grace."""
        return self.size_ms + self.grace_ms


def _signed_millis(duration: timedelta, what: str) -> int:
    magnitude_ms = millis(abs(duration), what)
    # Python keeps a negative duration as negative days and positive seconds.
    return -magnitude_ms if duration.days < 0 else magnitude_ms
