"""Statistics of a sensor's values (`org.apache.kafka.common.metrics.stats`).

Sampled statistics cover the last `metrics.num.samples` samples of `metrics.sample.window.ms` each, cumulative ones all
values. They are own code, since Prometheus' client has no statistics over a time.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class RecordingLevel(IntEnum):
    """Level of detail (`Sensor.RecordingLevel`): a sensor records if its level is at most `metrics.recording.level`."""

    INFO = 0
    DEBUG = 1
    TRACE = 2


@dataclass(frozen=True, slots=True)
class MetricConfig:
    """Settings of metrics (`org.apache.kafka.common.MetricConfig`).

    Args:
        samples: Number of samples to keep.
        time_window_ms: Length of a sample, ms.
        record_level: Sensors of higher levels record nothing.
    """

    samples: int = 2
    time_window_ms: int = 30_000
    record_level: RecordingLevel = RecordingLevel.INFO


class MeasurableStat(Protocol):
    """A statistic of recorded values (`org.apache.kafka.common.metrics.MeasurableStat`)."""

    def record(self, config: MetricConfig, value: float, time_ms: int) -> None:
        """Add a value that was recorded at a time (ms)."""

    def measure(self, config: MetricConfig, now_ms: int) -> float:
        """Return the statistic at a time (ms)."""


class Sample:
    """The values of one period, aggregated to one number (`SampledStat.Sample`)."""

    __slots__ = ("count", "last_ms", "start_ms", "value")

    def __init__(self, initial: float, start_ms: int) -> None:
        self.reset(initial, start_ms)

    def reset(self, initial: float, start_ms: int) -> None:
        self.value = initial
        self.count = 0
        self.start_ms = self.last_ms = start_ms


class Samples:
    """The latest samples, including the current one (`SampledStat`)."""

    def __init__(self, initial: float, add: Callable[[float, float], float]) -> None:
        self._initial = initial
        self._add = add
        self._kept: list[Sample] = []
        self._current = 0

    def record(self, config: MetricConfig, value: float, time_ms: int) -> None:
        """Add a value to the current sample, or to a new one if that is complete."""
        sample = self._kept[self._current] if self._kept else self._new(time_ms)
        if time_ms - sample.start_ms >= config.time_window_ms:
            sample = self._advanced(config, time_ms)
        sample.value = self._add(sample.value, value)
        sample.count += 1
        sample.last_ms = time_ms

    def at(self, config: MetricConfig, now_ms: int) -> list[Sample]:
        """Return all samples; outdated ones are empty."""
        for sample in self._kept:
            if now_ms - sample.last_ms >= config.samples * config.time_window_ms:
                sample.reset(self._initial, now_ms)
        return self._kept

    def elapsed_ms(self, config: MetricConfig, now_ms: int) -> int:
        """Return the period that the samples cover, ms: at least all but one in full (`Rate.windowSize`)."""
        kept = self.at(config, now_ms) or [self._new(now_ms)]
        elapsed = now_ms - min(sample.start_ms for sample in kept)
        full = elapsed // config.time_window_ms
        return max(1, elapsed + max(0, config.samples - 1 - full) * config.time_window_ms)

    def _new(self, time_ms: int) -> Sample:
        sample = Sample(self._initial, time_ms)
        self._kept.append(sample)
        return sample

    def _advanced(self, config: MetricConfig, time_ms: int) -> Sample:
        # One more sample than configured: the oldest overlaps the start of the period.
        self._current = (self._current + 1) % (config.samples + 1)
        if self._current >= len(self._kept):
            return self._new(time_ms)
        sample = self._kept[self._current]
        sample.reset(self._initial, time_ms)
        return sample


class Avg:
    """The mean of the sampled values; NaN without values (`Avg`)."""

    def __init__(self) -> None:
        self._samples = Samples(0.0, operator.add)
        self.record = self._samples.record

    def measure(self, config: MetricConfig, now_ms: int) -> float:
        samples = self._samples.at(config, now_ms)
        count = sum(sample.count for sample in samples)
        return sum(sample.value for sample in samples) / count if count else math.nan


class SampledMax:
    """The maximum of the sampled values; NaN without values (`Max`)."""

    def __init__(self) -> None:
        self._samples = Samples(-math.inf, max)
        self.record = self._samples.record

    def measure(self, config: MetricConfig, now_ms: int) -> float:
        return max((sample.value for sample in self._samples.at(config, now_ms) if sample.count), default=math.nan)


class SampledMin:
    """The minimum of the sampled values; NaN without values (`Min`)."""

    def __init__(self) -> None:
        self._samples = Samples(math.inf, min)
        self.record = self._samples.record

    def measure(self, config: MetricConfig, now_ms: int) -> float:
        return min((sample.value for sample in self._samples.at(config, now_ms) if sample.count), default=math.nan)


class WindowedSum:
    """The sum of the sampled values (`WindowedSum`)."""

    def __init__(self) -> None:
        self.samples = Samples(0.0, operator.add)
        self.record = self.samples.record

    def measure(self, config: MetricConfig, now_ms: int) -> float:
        return sum(sample.value for sample in self.samples.at(config, now_ms))


class WindowedCount:
    """The number of sampled values (`WindowedCount`)."""

    def __init__(self) -> None:
        self.samples = Samples(0.0, _one_more)
        self.record = self.samples.record

    def measure(self, config: MetricConfig, now_ms: int) -> float:
        return sum(sample.value for sample in self.samples.at(config, now_ms))


class Rate:
    """A windowed sum or count per second (`Rate`).

    Args:
        stat: The sum or count; by default the sum of the values.
    """

    def __init__(self, stat: WindowedSum | WindowedCount | None = None) -> None:
        self._stat = stat or WindowedSum()
        self.record = self._stat.record

    def measure(self, config: MetricConfig, now_ms: int) -> float:
        value = self._stat.measure(config, now_ms)
        return value * 1000 / self._stat.samples.elapsed_ms(config, now_ms)


class CumulativeSum:
    """The sum of all values (`CumulativeSum`)."""

    def __init__(self) -> None:
        self._total = 0.0

    def record(self, _config: MetricConfig, value: float, _time_ms: int) -> None:
        self._total += value

    def measure(self, _config: MetricConfig, _now_ms: int) -> float:
        return self._total


class CumulativeCount:
    """The number of all values (`CumulativeCount`)."""

    def __init__(self) -> None:
        self._total = 0

    def record(self, _config: MetricConfig, _value: float, _time_ms: int) -> None:
        self._total += 1

    def measure(self, _config: MetricConfig, _now_ms: int) -> float:
        return float(self._total)


class Value:
    """The last value (`Value`)."""

    def __init__(self) -> None:
        self._value = 0.0

    def record(self, _config: MetricConfig, value: float, _time_ms: int) -> None:
        self._value = value

    def measure(self, _config: MetricConfig, _now_ms: int) -> float:
        return self._value


class Measured:
    """The result of a function, called when it is measured; recorded values do not matter."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    def record(self, config: MetricConfig, value: float, time_ms: int) -> None:
        """Do nothing: the function is asked when it is measured."""

    def measure(self, _config: MetricConfig, _now_ms: int) -> float:
        return float(self._read())


class MeasuredTotal(Measured):
    """A total that is counted elsewhere."""


def _one_more(held: float, _value: float) -> float:
    return held + 1
