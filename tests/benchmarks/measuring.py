"""How fast a side is, seen from outside: by the offsets its group has committed."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import usage
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.kafka.librdkafka import quiet
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sides import Side

    from riverrun.kafka.admin import Admin
    from riverrun.records import TopicPartition

Figures = dict[str, float]
"""The figures of a run, by the names of the report's columns."""

_PAUSE_SECONDS = 0.05
_STALLED_SECONDS = 120
_REQUEST_SECONDS = 15
_MARKERS = 1_000
"""So many offsets may be left that are no records."""


@dataclass(frozen=True)
class Moment:
    """The CPU time that a side and the broker have used until then."""

    at_s: float
    cpu_s: float
    broker_cpu_s: float

    def since(self, first: Moment) -> Moment:
        """Return the times that have passed since an earlier moment."""
        return Moment(self.at_s - first.at_s, self.cpu_s - first.cpu_s, self.broker_cpu_s - first.broker_cpu_s)

    @property
    def cores(self) -> float:
        """Cores that the side kept busy, of a difference of moments."""
        return self.cpu_s / self.at_s

    @property
    def of_broker(self) -> Figures:
        """Cores that the broker kept busy, of a difference of moments; and its percentage of all CPU time of both."""
        both_s = self.cpu_s + self.broker_cpu_s
        return {
            "broker cores": self.broker_cpu_s / self.at_s,
            "broker share": 100 * self.broker_cpu_s / both_s if both_s else 0.0,
        }


@dataclass(frozen=True)
class Meter:
    """Reads the CPU time of a side and of the broker.

    Args:
        side: The side.
        broker: Returns the process of the broker, which may have been started again.
    """

    side: Side
    broker: Callable[[], int]

    def now(self) -> Moment:
        """Return the present moment."""
        return Moment(time.monotonic(), self.side.cpu_seconds(), usage.cpu_seconds(self.broker()))


@dataclass(frozen=True)
class Sample:
    """How far a side was at a moment."""

    moment: Moment
    records: int


class Watched(Protocol):
    """The progress of a side."""

    total: int
    """Records in the source."""

    def records(self) -> int:
        """How many it is done with."""
        ...


class Progress:
    """The records a group is done with, of topics that begin at offset 0 and have no gaps.

    Asked by a consumer that never joins: the admin client's way to ask crashes while a broker that was just started looks for
    the group's coordinator (librdkafka issue 5040).

    Args:
        admin: Asks for ends.
        kafka: Client properties.
        group: Whose offsets.
        source: The topic's partitions.
        internal: Those of the internal topics that all records of the source go through; empty if there is none.
        total: Records in the source.
    """

    def __init__(
        self,
        admin: Admin,
        kafka: Mapping[str, str],
        group: str,
        source: Iterable[TopicPartition],
        internal: Iterable[TopicPartition],
        total: int,
    ) -> None:
        settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        self._client = Consumer({**kafka, **settings}, logger=quiet)
        self._admin, self._kafka = admin, kafka
        self._source, self._internal = list(source), list(internal)
        self._committed: dict[TopicPartition, int] = {}
        self.total = total
        self.is_given_up = False
        """Whether the measurement ended before the output was complete."""

    def records(self) -> int:
        """How many; those on their way through a repartition topic count half, and the last one when nothing is there any more.

        Offsets of transactions that are just being committed do not count yet. Errors change nothing: a broker that was just
        started has no coordinator yet, and whatever lasts ends as no progress.
        """
        with suppress(KafkaException):
            asked = [ClientTopicPartition(*tp) for tp in [*self._source, *self._internal]]
            found = self._client.committed(asked, _REQUEST_SECONDS)
            self._committed = {
                tp: max(0, at.offset) for tp, at in zip([*self._source, *self._internal], found, strict=True)
            }
        read = self._sum(self._source)
        if not self._internal:
            return read
        if read == self.total and self._is_drained():
            return self.total
        return min((read + min(self._sum(self._internal), self.total)) // 2, self.total - 1)

    def covers(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether everything before these offsets of the source is done."""
        self.records()
        return all(self._committed.get(tp, 0) >= end for tp, end in ends.items())

    def close(self) -> None:
        """Release connections."""
        self._client.close()

    def _sum(self, tps: Iterable[TopicPartition]) -> int:
        return sum(self._committed.get(tp, 0) for tp in tps)

    def _is_drained(self) -> bool:
        """Whether nothing but markers of transactions lies behind what is committed of the repartition topic."""
        ends = self._admin.settled_end_offsets(self._internal)
        left = {tp: OffsetRange(self._committed[tp], max(end, self._committed[tp])) for tp, end in ends.items()}
        if sum(part.size for part in left.values()) > _MARKERS:
            return False
        return not any(records for _, records in read_range(self._admin, left))


def measure(meter: Meter, progress: Watched) -> Figures:
    """Wait until everything is done. Start-up is in no figure: they count from the first commit to the last.

    The second half of the records is counted on its own: by then Java has compiled what it runs.

    Raises:
        RuntimeError: If there were too few commits to tell, or it died, or got stuck.
    """
    samples = [Sample(meter.now(), done) for done in _seen(meter.side, progress)]
    second_half = [sample for sample in samples if sample.records >= progress.total / 2]
    if len(second_half) < 2:
        message = f"{progress.total} records are too few: all of the second half are in one commit"
        raise RuntimeError(message)
    whole, warm = _figures(samples), _figures(second_half)
    return {
        **whole,
        **{f"warm {name}": figure for name, figure in warm.items()},
        "memory": meter.side.memory_bytes() / 2**20,
    }


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the least of sorted figures that so many percent of them do not exceed."""
    return ascending[max(0, math.ceil(len(ascending) * percent / 100) - 1)]


def wait(side: Side, progress: Watched, seconds: float = math.inf) -> bool:
    """Wait until everything is done, or so long; return whether it is.

    Raises:
        RuntimeError: If it died, or got stuck.
    """
    end = time.monotonic() + seconds
    return all(done >= progress.total or time.monotonic() < end for done in _seen(side, progress))


def _seen(side: Side, progress: Watched) -> Iterator[int]:
    """Yield how many records are done, at every progress that is seen."""
    done, changed = 0, time.monotonic()
    while done < progress.total:
        side.check()
        time.sleep(_PAUSE_SECONDS)
        now, before, done = time.monotonic(), done, progress.records()
        if done > before:
            changed = now
            yield done
        elif now - changed > _STALLED_SECONDS:
            message = f"{done} of {progress.total} records, and no progress for {_STALLED_SECONDS} s"
            raise RuntimeError(message)


def _figures(samples: Sequence[Sample]) -> Figures:
    """Records/s, CPU seconds of the side per million records, and the broker's CPU."""
    records = samples[-1].records - samples[0].records
    used = samples[-1].moment.since(samples[0].moment)
    return {"speed": records / used.at_s, "cpu": used.cpu_s / records * 1_000_000, **used.of_broker}
