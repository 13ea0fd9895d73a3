"""The times that a task keeps: of punctuations, operators and stores, of late records, and of committed offsets.

Lateness must not depend on where a task was stopped, which worker takes it over, or where a run was cut. So the transaction
that commits results also commits all times that they depend on, unless the stored data contains them.

Kafka Streams' metadata of a committed offset has the partition's highest event time, and processors' own times. Entries that it
does not know are stored among the latter, which it reads and ignores:

- how much of a pack (`runtime.packs`) has been processed
- the times from which operators and stores continue (`ObservedTimes`)
- the time of the next record, by which tasks are aligned
- the barrier at which a task pauses
- the producer that owns the task
- when the task had read all of a compacted input, so that deletions that it may have missed are noticed
- how many records a task has dropped, on all hosts, so that a release can tell
- the ids of the topics that a task depends on, so that a topic that was deleted and created again is noticed
"""

from __future__ import annotations

import base64
import struct
import time
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING

from riverrun.errors import TopologyError
from riverrun.records import Whole
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from riverrun.state.api import KeepsTimes

# Of more maxima the oldest are merged, so one may be reported as later than it was, but none is missed.
_MAXIMA = 32


@dataclass(slots=True)
class Lateness:
    """The lateness of all records of a task since it was taken over.

    >>> lateness = Lateness()
    >>> lateness.add([40, 10], now_ms=1)
    >>> lateness.add([30], now_ms=2)
    >>> lateness
    Lateness(total_ms=80, maxima=[(1, 40), (2, 30)])

    Args:
        total_ms: Sum over all records, ms.
        maxima: For each wall-clock time that matters, the time and the highest lateness of records from then on, ms. The
            lateness falls from one to the next, so the first at or after a time has the maximum since that time.
    """

    total_ms: int = 0
    maxima: list[tuple[int, int]] = field(default_factory=list)

    def add(self, behind: Sequence[int], now_ms: int) -> None:
        """Add the lateness (ms) of one or more records."""
        self.total_ms += sum(behind)
        highest, maxima = max(behind), self.maxima
        # An earlier maximum that is not higher is the answer for no time any more.
        while maxima and maxima[-1][1] <= highest:
            maxima.pop()
        if not maxima or maxima[-1][0] < now_ms:
            maxima.append((now_ms, highest))
        if len(maxima) > _MAXIMA:
            maxima[:2] = [(maxima[1][0], maxima[0][1])]


NEVER = 2**63 - 1


@dataclass(slots=True)
class Schedule:
    """One punctuation."""

    due_ms: int
    interval_ms: int
    punctuate: Callable[[int], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Cancel the punctuation, also from within the punctuator."""
        self.is_cancelled = True

    def advance(self, now_ms: int) -> None:
        """Set the next due time on the grid of the first one, skipping missed intervals."""
        missed = max(0, now_ms - self.due_ms) // self.interval_ms
        self.due_ms += (missed + 1) * self.interval_ms


@dataclass(slots=True)
class KeptSchedules:
    """Schedules made in a processor's `init`. Its successor makes them again and continues from their times."""

    _schedules: list[Schedule] = field(default_factory=list)
    _dues_ms: Sequence[int] = ()

    def add(self, schedule: Schedule) -> None:
        """Let a schedule continue, if the times of its predecessor are known."""
        # The order in `init` identifies schedules: they have no names.
        number = len(self._schedules)
        self._schedules.append(schedule)
        if number < len(self._dues_ms):
            schedule.due_ms = self._dues_ms[number]

    def times(self) -> tuple[int, ...]:
        """Return when each schedule is due next, ms."""
        return tuple(schedule.due_ms for schedule in self._schedules)

    def resume(self, times: Sequence[int]) -> None:
        """Take over the due times."""
        self._dues_ms = times


@dataclass(slots=True)
class Punctuations:
    """The punctuations of a task by one clock."""

    next_due_ms: int = NEVER
    seconds: float = 0.0
    """Total time spent in punctuators."""
    _schedules: list[Schedule] = field(default_factory=list)
    _last_ms: int = 0

    def schedule(self, first_ms: int, interval: timedelta, punctuate: Callable[[int], None]) -> Schedule:
        """Call `punctuate(time_ms)` first when the clock reaches `first_ms`, then at every interval."""
        interval_ms = millis(interval, "punctuation interval")
        if interval_ms < 1:
            raise TopologyError(f"The minimum supported scheduling interval is 1 ms, not {interval!r}")
        schedule = Schedule(first_ms, interval_ms, punctuate)
        self._schedules.append(schedule)
        self.next_due_ms = min(self.next_due_ms, first_ms)
        return schedule

    def schedule_from(
        self, start_ms: int, now_ms: int, interval: timedelta, punctuate: Callable[[int], None]
    ) -> Schedule:
        """Call `punctuate` first at `start_ms`, or at the next interval since then if that has passed (KIP-1146)."""
        if start_ms < 0:
            raise TopologyError(f"The minimum supported start time is the epoch, not {start_ms} ms")
        schedule = self.schedule(start_ms, interval, punctuate)
        if start_ms < now_ms:
            schedule.advance(now_ms)
        return schedule

    @property
    def is_empty(self) -> bool:
        return all(schedule.is_cancelled for schedule in self._schedules)

    def is_due(self, now_ms: int) -> bool:
        # If a clock is set back, Kafka Streams waits until it has caught up; here the next time on the grid counts.
        if now_ms < self._last_ms:
            for schedule in self._schedules:
                # A start more than an interval ahead was chosen by the user, and stays.
                if schedule.due_ms - self._last_ms <= schedule.interval_ms:
                    schedule.due_ms = now_ms + 1 + (schedule.due_ms - now_ms - 1) % schedule.interval_ms
            self.next_due_ms = min((s.due_ms for s in self._schedules), default=NEVER)
        self._last_ms = now_ms
        return now_ms >= self.next_due_ms

    def fire_all(self, now_ms: int) -> int:
        """Call every punctuator once, due or not; return the number of calls."""
        for schedule in self._schedules:
            schedule.due_ms = min(schedule.due_ms, now_ms)
        return self.fire(now_ms)

    def fire(self, now_ms: int) -> int:
        """Call due punctuators, in order of due times (`PunctuationQueue.maybePunctuate`); return the number of calls.

        Each is called at most once; so are those that a punctuator schedules meanwhile, if they are due already.
        """
        fired, began = 0, time.perf_counter()
        while (schedule := self._first_due(now_ms)) is not None:
            # Before the call: even if it fails, it is not called for this time again.
            schedule.advance(now_ms)
            schedule.punctuate(now_ms)
            fired += 1
        self.seconds += time.perf_counter() - began
        self._schedules = [s for s in self._schedules if not s.is_cancelled]
        self.next_due_ms = min((s.due_ms for s in self._schedules), default=NEVER)
        return fired

    def _first_due(self, now_ms: int) -> Schedule | None:
        due = (s for s in self._schedules if s.due_ms <= now_ms and not s.is_cancelled)
        return min(due, key=lambda schedule: schedule.due_ms, default=None)


# Eight characters of Base64: metadata has room for 4 KiB in all.
_NAME_BYTES = 6


def short_name(name: str) -> str:
    """Return eight characters that stand for a name of any length.

    >>> short_name("KSTREAM-AGGREGATE-0000000003")
    'LnuBlOZg'
    """
    return urlsafe_b64encode(sha256(name.encode()).digest()[:_NAME_BYTES]).decode()


class ObservedTimes:
    """The times of one task, by the names of the objects that keep them."""

    def __init__(self, keepers: Mapping[str, KeepsTimes]) -> None:
        self._keepers = {short_name(name): keeper for name, keeper in keepers.items()}
        self._known: dict[str, int] = {}

    def learn(self, times: Mapping[str, int]) -> None:
        """Take over the times that were committed with an input; each input has a copy, and the latest time counts."""
        for name, time_ms in times.items():
            self._known[name] = max(time_ms, self._known.get(name, time_ms))

    def resume(self) -> None:
        """Let every object whose times are known continue from them."""
        for name, keeper in self._keepers.items():
            known = [self._known[f"{name}{number}"] for number in self._numbers(name)]
            if known:
                keeper.resume(known)

    def current(self) -> Mapping[str, int]:
        """Return all current times; those that are still unknown keep their earlier values."""
        for name, keeper in self._keepers.items():
            self._known |= {f"{name}{n}": time_ms for n, time_ms in enumerate(keeper.times()) if time_ms >= 0}
        return self._known

    def _numbers(self, name: str) -> Iterator[int]:
        number = 0
        while f"{name}{number}" in self._known:
            yield number
            number += 1


_VERSION_1 = 1
_VERSION_2 = 2
_UNKNOWN = -1
_TAKEN = "__riverrun.taken"
_TIMES = "__riverrun.time "
_NEXT_TIME = "__riverrun.next-time"
# Not "barrier": earlier versions have committed these bytes.
_BARRIER = "__riverrun.mark "
_DROPPED = "__riverrun.dropped "
_TOPIC = "__riverrun.topic "
_OWNER = "__riverrun.owner "
_WHOLE = "__riverrun.whole"
_KEPT = "__riverrun.tombstones-kept"
# Prefixes of keys that processors must not see as their own.
_FURTHER = (_TIMES, _BARRIER, _TOPIC, _DROPPED, _OWNER)
# Brokers' default of `offset.metadata.max.bytes`: they refuse the commit if metadata is longer.
_LIMIT = 4096
_COUNT = struct.Struct(">i")
_VALUE = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class OffsetMetadata:
    """The times that a task needs to continue where another one stopped (`TopicPartitionMetadata`).

    >>> OffsetMetadata(100).encode()
    'AgAAAAAAAABk'
    >>> OffsetMetadata.decode("AgAAAAAAAABk").partition_time
    100

    Args:
        partition_time: Highest event time of the partition so far, ms; -1 if unknown.
        taken: How many records of the pack at the offset have been processed.
        times: Times from which operators and stores continue, by short names without spaces.
        next_time: Event time to which the next record brings the partition, ms; -1 if unknown.
        barrier: Id of the barrier at which the task pauses, and the phase that it has reached; None if it does not pause.
        topics: Ids of topics that the task depends on, by short name, the most important first.
        dropped: How many records the task has not processed so far, by reason.
        owner: The producer that owns the task (`hosting.ownership`); empty if none does, or a bounded run.
        whole: When the task had read all of the partition, which is compacted; None if that is unknown.
    """

    partition_time: int
    processor_metadata: Mapping[str, int] = field(default_factory=dict)
    taken: int = 0
    times: Mapping[str, int] = field(default_factory=dict)
    next_time: int = _UNKNOWN
    barrier: tuple[str, int] | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    owner: str = ""
    whole: Whole | None = None

    def encode(self) -> str:
        """Return the Base64 text of Kafka Streams' version 2 layout."""
        head = struct.pack(">bq", _VERSION_2, self.partition_time)
        kept = {**self.processor_metadata, **_grouped(self.times)}
        if self.taken:
            kept[_TAKEN] = self.taken
        if self.next_time >= 0:
            kept[_NEXT_TIME] = self.next_time
        if self.barrier is not None:
            kept[_BARRIER + self.barrier[0]] = self.barrier[1]
        if self.owner:
            kept[_OWNER + self.owner] = 1
        if self.whole is not None:
            kept[_WHOLE], kept[_KEPT] = self.whole
        entries = [_entry(key, value) for key, value in kept.items()]
        size = len(head) + _COUNT.size + sum(map(len, entries))
        # Optional, so what does not fit is left out: a missing check is better than a commit that brokers refuse.
        further = chain(_prefixed(_DROPPED, self.dropped), _prefixed(_TOPIC, self.topics))
        for key, value in further:
            entry = _entry(key, value)
            size += len(entry)
            # Base64 makes four characters of three bytes.
            if size > _LIMIT // 4 * 3:
                break
            entries.append(entry)
        count = _COUNT.pack(len(entries)) if entries else b""
        return base64.b64encode(b"".join((head, count, *entries))).decode()

    @classmethod
    def decode(cls, text: str) -> OffsetMetadata:
        """Decode the text; of unreadable text nothing is known, as in Kafka Streams."""
        try:
            data = base64.b64decode(text, validate=True)
            version, partition_time = struct.unpack_from(">bq", data)
            if version not in {_VERSION_1, _VERSION_2}:
                return cls(_UNKNOWN)
            kept = dict(_processor_metadata(data))
            taken, next_time, times = max(0, kept.pop(_TAKEN, 0)), kept.pop(_NEXT_TIME, _UNKNOWN), _ungrouped(kept)
            barrier = next(((key[len(_BARRIER) :], n) for key, n in kept.items() if key.startswith(_BARRIER)), None)
            topics, dropped = _named(_TOPIC, kept), _named(_DROPPED, kept)
            owner = next(iter(_named(_OWNER, kept)), "")
            at_ms, kept_ms = kept.pop(_WHOLE, None), kept.pop(_KEPT, None)
            whole = None if at_ms is None or kept_ms is None else Whole(at_ms, kept_ms)
            own = {key: value for key, value in kept.items() if not key.startswith(_FURTHER)}
            known = max(_UNKNOWN, partition_time), own, taken, times, max(_UNKNOWN, next_time)
            counts = {reason: count for reason, count in dropped.items() if count >= 0}
            return cls(*known, barrier=barrier, topics=topics, dropped=counts, owner=owner, whole=whole)
        # Errors of Base64 and of UTF-8 are ValueErrors.
        except (struct.error, ValueError):
            return cls(_UNKNOWN)


def _prefixed(prefix: str, values: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((prefix + name, value) for name, value in values.items())


def _named(prefix: str, kept: Mapping[str, int]) -> dict[str, int]:
    return {key[len(prefix) :]: value for key, value in kept.items() if key.startswith(prefix)}


def _entry(key: str, value: int) -> bytes:
    return _named_bytes(key) + _VALUE.pack(value)


# Each commit of each input writes much the same names.
@lru_cache(maxsize=4096)
def _named_bytes(key: str) -> bytes:
    name = key.encode()
    return _COUNT.pack(len(name)) + name


def _grouped(times: Mapping[str, int]) -> dict[str, int]:
    # Names that share a time become one key: most times of a task are equal, and metadata has room for 4 KiB.
    names: dict[int, list[str]] = {}
    for name in sorted(times):
        names.setdefault(times[name], []).append(name)
    return {_TIMES + " ".join(group): time for time, group in names.items()}


def _ungrouped(kept: Mapping[str, int]) -> dict[str, int]:
    return {name: kept[key] for key in kept if key.startswith(_TIMES) for name in key[len(_TIMES) :].split(" ")}


def _processor_metadata(data: bytes) -> list[tuple[str, int]]:
    at = struct.calcsize(">bq")
    if len(data) == at:
        return []
    (count,) = struct.unpack_from(">i", data, at)
    at += 4
    entries = []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, at)
        if length < 0:
            raise ValueError(f"a name of {length} bytes")
        name = data[at + 4 : at + 4 + length].decode()
        (value,) = struct.unpack_from(">q", data, at + 4 + length)
        entries.append((name, value))
        at += 12 + length
    return entries
