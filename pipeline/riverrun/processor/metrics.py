"""Metrics of users' processors (`org.apache.kafka.streams.StreamsMetrics`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from riverrun.errors import TopologyError
from riverrun.processor.stats import (
    Avg,
    CumulativeCount,
    CumulativeSum,
    MeasurableStat,
    MeasuredTotal,
    MetricConfig,
    Rate,
    RecordingLevel,
    SampledMax,
    WindowedCount,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
# Hosts report these themselves: no metric of a user may hide one.
_BUILT_IN_GROUPS = {
    "stream-metrics",
    "stream-state-updater-metrics",
    "stream-task-metrics",
    "stream-thread-metrics",
}
_TASK_TAG = "task-id"


@dataclass(frozen=True, slots=True)
class MetricName:
    """Name of a metric (`org.apache.kafka.common.MetricName`). Names are equal if name, group and tags are.

    >>> str(MetricName("hits", "stream-cache-metrics", tags={"cache-id": "eu"}))
    'stream-cache-metrics:hits{cache-id=eu}'

    Args:
        name: A letter, then letters, digits, `_`, `.` and `-`. The rule holds for groups and names of tags as well.
        group: Names the kind of the measured thing; groups of built-in metrics are reserved.
        description: Help text, which Prometheus shows; default: empty.
        tags: Distinguish it from other metrics with the name.

    Raises:
        TopologyError: If a name is illegal, or the group is one of built-in metrics.
    """

    name: str
    group: str
    description: str = field(default="", compare=False, kw_only=True)
    tags: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        for name in (self.name, self.group, *self.tags):
            if not _NAME.fullmatch(name):
                message = f"{name!r} cannot name a metric, a group or a tag"
                raise TopologyError(message, hint="Begin with a letter; use letters, digits, '_', '.' and '-'.")
        object.__setattr__(self, "tags", {tag: str(value) for tag, value in self.tags.items()})
        if self.group in _BUILT_IN_GROUPS:
            message = f"The group {self.group} is reserved for built-in metrics"
            raise TopologyError(message, hint="Choose another scope or group.")

    def __hash__(self) -> int:
        return hash((self.name, self.group, frozenset(self.tags.items())))

    def __str__(self) -> str:
        tags = ",".join(f"{tag}={value}" for tag, value in self.tags.items())
        return f"{self.group}:{self.name}{{{tags}}}" if tags else f"{self.group}:{self.name}"

    def of_task(self, task: str) -> MetricName:
        """Return the name with the tag `task-id` added: metrics of different tasks stay separate."""
        return replace(self, tags={**self.tags, _TASK_TAG: task})


class Measurement(NamedTuple):
    """The value of a metric, and whether it is a total, so that values of several tasks can be added."""

    name: MetricName
    value: float
    is_total: bool


class Sensor:
    """Records values, and computes metrics from them (`org.apache.kafka.common.metrics.Sensor`).

    Created by `StreamsMetrics`.
    """

    def __init__(
        self, name: str, metrics: StreamsMetrics, recording_level: RecordingLevel, parents: tuple[Sensor, ...]
    ) -> None:
        self.name = name
        self.parents = parents
        self.stats: dict[MetricName, MeasurableStat] = {}
        self._metrics = metrics
        self._config = metrics.config
        self._now_ms = metrics.now_ms
        self._records = recording_level <= metrics.config.record_level
        self._recorders: list[Callable[[MetricConfig, float, int], None]] = []

    @property
    def has_metrics(self) -> bool:
        """Return whether the sensor has any metric."""
        return bool(self.stats)

    @property
    def should_record(self) -> bool:
        """Return whether its level is recorded; `record` checks this, too."""
        return self._records

    def add(self, name: MetricName, stat: MeasurableStat) -> None:
        """Add a metric of future values. If the sensor already has a metric with this name, that one stays.

        Raises:
            TopologyError: If another sensor of the task has a metric with this name.
        """
        if name not in self.stats:
            self._metrics.claim(name)
            self.stats[name] = stat
            self._recorders.append(stat.record)

    def record(self, value: float = 1.0, time_ms: int | None = None) -> None:
        """Record a value, and pass it to the parents.

        Args:
            value: The number to record; default: 1, for sensors that count.
            time_ms: Time of the measurement, ms since the epoch; now by default.
        """
        if not self._records:
            return
        now_ms = self._now_ms() if time_ms is None else time_ms
        for record in self._recorders:
            record(self._config, value, now_ms)
        for parent in self.parents:
            parent.record(value, now_ms)


class StreamsMetrics:
    """The sensors of one task's processors (`org.apache.kafka.streams.StreamsMetrics`).

    Args:
        now_ms: Returns the current time, ms since the epoch.
        config: Settings of samples and levels.
    """

    def __init__(self, now_ms: Callable[[], int], config: MetricConfig | None = None) -> None:
        self.now_ms = now_ms
        self.config = config or MetricConfig()
        self._sensors: dict[str, Sensor] = {}

    def metrics(self) -> dict[MetricName, float]:
        """Return all metrics of the task's sensors with their current values."""
        return {measured.name: measured.value for measured in self.measured()}

    def add_sensor(
        self, name: str, recording_level: RecordingLevel = RecordingLevel.INFO, *, parents: Sequence[Sensor] = ()
    ) -> Sensor:
        """Return a sensor without metrics, or the existing one with this name.

        Args:
            name: Unique within the task.
            recording_level: Lowest `metrics.recording.level` at which it records.
            parents: Sensors that record its values as well.
        """
        if name not in self._sensors:
            _check_forest(name, parents, set())
            self._sensors[name] = Sensor(name, self, recording_level, tuple(parents))
        return self._sensors[name]

    def add_rate_total_sensor(
        self,
        scope_name: str,
        entity_name: str,
        *,
        operation_name: str,
        recording_level: RecordingLevel = RecordingLevel.INFO,
        tags: Mapping[str, str] | None = None,
    ) -> Sensor:
        """Return a sensor with the metrics `<operation>-rate`, per second, and `<operation>-total`: one for each `record()`.

        Args:
            scope_name: Kind of the measured thing; the group is `stream-<scope>-metrics`.
            entity_name: The measured thing: the tag `<scope>-id`.
            operation_name: The measured operation.
            recording_level: Lowest `metrics.recording.level` at which it records.
            tags: Further tags.

        Raises:
            TopologyError: If a name is illegal, or another sensor has a metric with this name.
        """
        group, all_tags = _entity(scope_name, entity_name, tags)
        rate, total = (
            MetricName(f"{operation_name}-{kind}", group, description=description, tags=all_tags)
            for kind, description in (
                ("rate", f"The average number of {operation_name} operations per second"),
                ("total", f"The total number of {operation_name} operations"),
            )
        )
        sensor = self.add_sensor(f"external.entity.{entity_name}.s.{operation_name}", recording_level)
        sensor.add(rate, Rate(WindowedCount()))
        sensor.add(total, CumulativeCount())
        return sensor

    def add_latency_rate_total_sensor(
        self,
        scope_name: str,
        entity_name: str,
        *,
        operation_name: str,
        recording_level: RecordingLevel = RecordingLevel.INFO,
        tags: Mapping[str, str] | None = None,
    ) -> Sensor:
        """Return a rate and total sensor with `<operation>-latency-avg` and `<operation>-latency-max` of its values.

        Arguments and errors are those of `add_rate_total_sensor`.
        """
        sensor = self.add_rate_total_sensor(
            scope_name, entity_name, operation_name=operation_name, recording_level=recording_level, tags=tags
        )
        group, all_tags = _entity(scope_name, entity_name, tags)
        kinds: tuple[tuple[str, str, MeasurableStat], ...] = (
            ("avg", "average", Avg()),
            ("max", "maximum", SampledMax()),
        )
        for kind, words, stat in kinds:
            description = f"The {words} latency of {operation_name}"
            sensor.add(
                MetricName(f"{operation_name}-latency-{kind}", group, description=description, tags=all_tags), stat
            )
        return sensor

    def remove_sensor(self, sensor: Sensor) -> None:
        """Remove a sensor with its metrics, and the sensors whose parent it is."""
        if self._sensors.get(sensor.name) is not sensor:
            return
        del self._sensors[sensor.name]
        for child in [other for other in self._sensors.values() if sensor in other.parents]:
            self.remove_sensor(child)

    def claim(self, name: MetricName) -> None:
        """Check that no sensor has a metric with this name.

        Raises:
            TopologyError: If a sensor has.
        """
        if any(name in sensor.stats for sensor in self._sensors.values()):
            raise TopologyError(f"A metric named '{name}' already exists, can't register another one.")

    def measured(self) -> tuple[Measurement, ...]:
        """Return all metrics, for hosts."""
        now_ms = self.now_ms()
        return tuple(
            Measurement(
                name,
                stat.measure(self.config, now_ms),
                isinstance(stat, CumulativeCount | CumulativeSum | MeasuredTotal),
            )
            for sensor in self._sensors.values()
            for name, stat in sensor.stats.items()
        )


def metric_config(settings: Mapping[str, Any]) -> MetricConfig:
    """Return the configuration of metrics from an application's settings by dotted name."""
    usual = MetricConfig()
    return MetricConfig(
        settings.get("metrics.num.samples", usual.samples),
        settings.get("metrics.sample.window.ms", usual.time_window_ms),
        RecordingLevel[settings.get("metrics.recording.level", usual.record_level.name)],
    )


def totals(measured: Iterable[Measurement]) -> dict[str, float]:
    """Return the totals by the text of their names, with equal names added up."""
    found: dict[str, float] = {}
    for name, value, is_total in measured:
        if is_total:
            found[str(name)] = found.get(str(name), 0.0) + value
    return found


def added(*parts: Mapping[str, float]) -> dict[str, float]:
    return {name: sum(part.get(name, 0.0) for part in parts) for name in sorted(set().union(*parts))}


def _entity(scope: str, entity: str, tags: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
    """Return group and tags for the metrics of one thing."""
    return f"stream-{scope}-metrics", {f"{scope}-id": entity, **(tags or {})}


def _check_forest(name: str, parents: Iterable[Sensor], seen: set[str]) -> None:
    for parent in parents:
        if parent.name in seen:
            raise TopologyError(f"Circular dependency in sensors: {name} would send its values to {parent.name} twice")
        seen.add(parent.name)
        _check_forest(name, parent.parents, seen)
