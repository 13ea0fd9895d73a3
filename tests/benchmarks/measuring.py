"""How fast a side is, seen from outside: by the offsets its group has committed."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from riverrun.kafka.librdkafka import quiet
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
class Sample:
    """How far a side was at a moment."""

    at_s: float
    records: int
    cpu_s: float


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


def measure(side: Side, progress: Progress) -> Figures:
    """Wait until everything is done. Start-up is in no figure: they count from the first commit to the last.

    The second half of the records is counted on its own: by then Java has compiled what it runs.

    Raises:
        RuntimeError: If there were too few commits to tell, or it died, or got stuck.
    """
    samples = list(_samples(side, progress))
    second_half = [sample for sample in samples if sample.records >= progress.total / 2]
    if len(second_half) < 2:
        message = f"{progress.total} records are too few: all of the second half are in one commit"
        raise RuntimeError(message)
    speed, cpu = _figures(samples)
    warm_speed, warm_cpu = _figures(second_half)
    return {
        "speed": speed,
        "cpu": cpu,
        "warm speed": warm_speed,
        "warm cpu": warm_cpu,
        "memory": side.memory_bytes() / 2**20,
    }


def wait(side: Side, progress: Progress) -> None:
    """Wait until everything is done.

    Raises:
        RuntimeError: If it died, or got stuck.
    """
    for _ in _samples(side, progress):
        pass


def _samples(side: Side, progress: Progress) -> Iterator[Sample]:
    """One at every progress that is seen."""
    done, changed = 0, time.monotonic()
    while done < progress.total:
        side.check()
        time.sleep(_PAUSE_SECONDS)
        now, before, done = time.monotonic(), done, progress.records()
        if done > before:
            changed = now
            yield Sample(now, done, side.cpu_seconds())
        elif now - changed > _STALLED_SECONDS:
            message = f"{done} of {progress.total} records, and no progress for {_STALLED_SECONDS} s"
            raise RuntimeError(message)


def _figures(samples: Sequence[Sample]) -> tuple[float, float]:
    """Records/s, and CPU seconds per million records."""
    first, last = samples[0], samples[-1]
    records = last.records - first.records
    return records / (last.at_s - first.at_s), (last.cpu_s - first.cpu_s) / records * 1_000_000
