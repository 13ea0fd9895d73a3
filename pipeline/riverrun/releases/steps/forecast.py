"""Forecasts a reprocessing: bytes, time, and records that retention may delete before they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.hosting.clock import SystemClock
from riverrun.kafka.log_sizes import log_sizes
from riverrun.spark.planning.runs import DONE, RunLog
from riverrun.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from riverrun.kafka.admin import Admin
    from riverrun.records import TopicPartition
    from riverrun.spark.planning.runs import RunRecord

_LOOKS = 16
"""Number of moments of a reprocessing at which its position is compared with that of retention."""


_FEW = 10_000
"""Records that take less time than the start of a run."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed of a bounded run of the application.

    Args:
        records: Its input records.
        seconds: Its duration, its start included.
        run: The run.
    """

    records: int
    seconds: float
    run: str

    @property
    def records_per_s(self) -> float:
        """Return the input records per second; the run's start counts as well."""
        return self.records / self.seconds

    @property
    def is_of_few(self) -> bool:
        """Return whether the run was so small that it measured little but its start, which does not grow with records."""
        return self.records < _FEW

    def seconds_for(self, offsets: int) -> float | None:
        """Return how long a number of offsets may take; None if the run was too small to tell."""
        if not self.is_of_few:
            return offsets / self.records_per_s
        return self.seconds if offsets < _FEW else None


@dataclass(frozen=True, slots=True)
class Race:
    """A partition whose records may be deleted before a reprocessing has read them.

    Args:
        tp: The partition.
        within_s: Seconds from the beginning of the reprocessing.
        deleted_below: The offset below which records are older than `retention.ms` by then.
        read_below: The offset up to which they are read by then.
    """

    tp: TopicPartition
    within_s: float
    deleted_below: int
    read_below: int

    def __str__(self) -> str:
        """Describe it in words."""
        when = span(self.within_s)
        return (
            f"{self.tp} may lose offsets below {self.deleted_below} to retention within {when}, "
            f"and those below {self.read_below} are read by then"
        )


@dataclass(frozen=True, slots=True)
class Forecast:
    """Cost of a reprocessing.

    Args:
        bytes: Bytes to read, as they are stored on brokers; None where brokers do not tell.
        rate: The measured rate behind the estimated times; None if no bounded run of the application has read anything.
        seconds: Estimated duration; None without a rate, or if it is that of a run of few records.
        races: Partitions that may lose records before they are read, at the moment of the largest loss.
    """

    bytes: int | None = None
    rate: Rate | None = None
    seconds: float | None = None
    races: tuple[Race, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Describe it in words, line by line."""
        size = "" if self.bytes is None else f"{_size(self.bytes)} on the brokers' disks"
        if self.rate is None:
            time = "how long it takes is not known: no bounded run of the application has been measured"
        elif self.seconds is None:
            time = f"how long it takes is not known: the largest bounded run, {self.rate.run}, had few records"
        elif self.rate.is_of_few:
            time = f"about {span(self.seconds)}, as in run {self.rate.run}"
        else:
            time = f"about {span(self.seconds)} at {self.rate.records_per_s:,.0f} records/s, as in run {self.rate.run}"
        races = (f"{race}: raise retention.ms first" for race in self.races)
        return ("; ".join(filter(None, (size, time))), *races)


def forecast(app: str, wanted: RunRange, admin: Admin) -> Forecast:
    """Estimate a reprocessing.

    Args:
        app: The application, whose runs show how fast it is.
        wanted: What is to be processed.
        admin: Asks the brokers.

    Raises:
        BrokerError: If brokers do not answer.
    """
    rate = measured_rate(RunLog(admin).runs(app))
    seconds = None if rate is None else rate.seconds_for(wanted.size)
    return Forecast(_bytes(wanted, admin), rate, seconds, () if seconds is None else _races(wanted, seconds, admin))


def measured_rate(runs: Iterable[RunRecord]) -> Rate | None:
    """Return the rate of the run that read the most; shorter runs mostly measure the start of Spark.

    Args:
        runs: Runs of an application, of all versions.
    """
    largest = max((run for run in runs if run.state == DONE and run.records_in), key=_records, default=None)
    if largest is None or largest.ended_ms is None or largest.ended_ms <= largest.started_ms:
        return None
    return Rate(largest.records_in, (largest.ended_ms - largest.started_ms) / 1_000, largest.id)


def _records(run: RunRecord) -> int:
    return run.records_in


def _bytes(wanted: RunRange, admin: Admin) -> int | None:
    """Estimate the bytes to read. A range's share of its partition's bytes is its share of the offsets."""
    sizes = log_sizes(admin.kafka, {tp.topic for tp in wanted.ranges})
    if wanted.ranges.keys() - sizes.keys():
        return None
    first, last = admin.beginning_offsets(wanted.ranges), admin.end_offsets(wanted.ranges)
    parts = ((sizes[tp], each.size, last[tp] - first[tp]) for tp, each in wanted.ranges.items())
    return sum(size * part // offsets for size, part, offsets in parts if offsets)


def _races(wanted: RunRange, seconds: float, admin: Admin) -> tuple[Race, ...]:
    retained = _retention_ms(admin.topic_configs({tp.topic for tp in wanted.ranges}))
    return races(
        RunRange({tp: each for tp, each in wanted.ranges.items() if tp.topic in retained and each.size}),
        seconds,
        retained,
        SystemClock().now_ms(),
        admin.offsets_for_time,
    )


def _retention_ms(configs: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Return the topics that delete by time, with their retention in ms."""
    return {
        topic: int(config["retention.ms"])
        for topic, config in configs.items()
        if "delete" in config["cleanup.policy"] and int(config["retention.ms"]) >= 0
    }


def races(
    wanted: RunRange,
    seconds: float,
    retention_ms: Mapping[str, int],
    now_ms: int,
    offsets_for_time: Callable[[Iterable[TopicPartition], int], Mapping[TopicPartition, int]],
) -> tuple[Race, ...]:
    """Find the partitions whose records may exceed their topic's retention before they are read.

    Assumes that all partitions are read evenly. Brokers delete whole segments, never the newest, so the records found may be
    lost, but need not be.

    Args:
        wanted: What is to be read.
        seconds: Duration of the reading.
        retention_ms: Retention of each topic, ms.
        now_ms: Now, ms since the epoch.
        offsets_for_time: Returns the first offset of each partition at or after a time.
    """
    worst: dict[TopicPartition, Race] = {}
    for look in range(1, _LOOKS + 1):
        at_s = seconds * look / _LOOKS
        for topic, kept_ms in retention_ms.items():
            tps = [tp for tp in wanted.ranges if tp.topic == topic]
            deleted = offsets_for_time(tps, now_ms + int(at_s * 1_000) - kept_ms)
            for tp in tps:
                each = wanted.ranges[tp]
                race = Race(tp, at_s, min(deleted[tp], each.end), each.start + each.size * look // _LOOKS)
                if _lost(race) > (_lost(worst[tp]) if tp in worst else 0):
                    worst[tp] = race
    return tuple(worst[tp] for tp in sorted(worst))


def _lost(race: Race) -> int:
    return race.deleted_below - race.read_below


def span(seconds: float) -> str:
    """Return a time in a suitable unit.

    >>> span(0.2), span(90), span(5_400), span(200_000)
    ('1 s', '90 s', '90 min', '56 h')
    """
    if seconds < 120:  # noqa: PLR2004 # two of the larger unit
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7_200 else f"{round(seconds / 3_600)} h"  # noqa: PLR2004


def _size(number: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1_000:  # noqa: PLR2004 # three digits
            return f"{number:,} {unit}"
        number //= 1_000
    return f"{number:,} TB"
