"""Figures that processors take of their own work (`org.apache.kafka.streams.StreamsMetrics`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.errors import TopologyError
from pipeline.processor.stats import (
    Avg,
    CumulativeCount,
    CumulativeSum,
    Max,
    MeasurableStat,
    MetricConfig,
    Rate,
    RecordingLevel,
    WindowedCount,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_BUILT_IN_GROUPS = {
    "stream-metrics",
    "stream-state-updater-metrics",
    "stream-task-metrics",
    "stream-thread-metrics",
}
"""Whose figures hosts report themselves."""
_TASK_TAG = "task-id"


@dataclass(frozen=True, slots=True)
class MetricName:
    """Names a figure (`org.apache.kafka.common.MetricName`). Two are equal if name, group and tags are.

    >>> str(MetricName("hits", "stream-cache-metrics", tags={"cache-id": "eu"}))
    'stream-cache-metrics:hits{cache-id=eu}'

    Args:
        name: What is measured: a letter, then letters, digits, `_`, `.` and `-`. So for groups, and for names of tags.
        group: What it belongs to.
        description: In words.
        tags: What tells it from other figures of that name.

    Raises:
        TopologyError: If a name cannot be one, or the group is that of built-in figures.
    """

    name: str
    group: str
    description: str = field(default="", compare=False, kw_only=True)
    tags: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what Prometheus could not show beside the built-in figures."""
        for name in (self.name, self.group, *self.tags):
            if not _NAME.fullmatch(name):
                message = f"{name!r} cannot name a metric, a group or a tag"
                raise TopologyError(message, hint="Begin with a letter; use letters, digits, '_', '.' and '-'.")
        object.__setattr__(self, "tags", {tag: str(value) for tag, value in self.tags.items()})
        if self.group in _BUILT_IN_GROUPS:
            message = f"The group {self.group} is that of built-in metrics"
            raise TopologyError(message, hint="Choose another scope or group.")

    def __hash__(self) -> int:
        return hash((self.name, self.group, frozenset(self.tags.items())))

    def __str__(self) -> str:
        """As summaries show it."""
        tags = ",".join(f"{tag}={value}" for tag, value in self.tags.items())
        return f"{self.group}:{self.name}{{{tags}}}" if tags else f"{self.group}:{self.name}"

    def of_task(self, task: str) -> MetricName:
        """Return metrics with the tag `task-id` besides: figures of different tasks are different ones."""
        return replace(self, tags={**self.tags, _TASK_TAG: task})


class Measurement(NamedTuple):
    """The value of a figure, and whether it is a total: those of several tasks can be added up."""

    name: MetricName
    value: float
    is_total: bool


class Sensor:
    """Takes values, and keeps the figures made of them (`org.apache.kafka.common.metrics.Sensor`).

    `StreamsMetrics` makes them.
    """

    def __init__(
        self, name: str, metrics: StreamsMetrics, recording_level: RecordingLevel, parents: tuple[Sensor, ...]
    ) -> None:
        """It has no figures yet."""
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
        """Whether any figure is made of its values."""
        return bool(self.stats)

    @property
    def should_record(self) -> bool:
        """Whether its level is recorded at all; `record` asks as well."""
        return self._records

    def add(self, name: MetricName, stat: MeasurableStat) -> None:
        """Make a figure of the values from now on. If the sensor has one of that name already, that one stays.

        Raises:
            TopologyError: If another sensor of the task has a figure of that name.
        """
        if name not in self.stats:
            self._metrics.claim(name)
            self.stats[name] = stat
            self._recorders.append(stat.record)

    def record(self, value: float = 1.0, time_ms: int | None = None) -> None:
        """Take a value, and hand it to the parents.

        Args:
            value: The value.
            time_ms: When it was measured, ms since the epoch; now if left out.
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
        now_ms: What time it is, ms since the epoch.
        config: How figures are taken.
    """

    def __init__(self, now_ms: Callable[[], int], config: MetricConfig | None = None) -> None:
        """There are none."""
        self.now_ms = now_ms
        self.config = config or MetricConfig()
        self._sensors: dict[str, Sensor] = {}

    def metrics(self) -> dict[MetricName, float]:
        """All figures of the task's sensors, as they are now."""
        return {measured.name: measured.value for measured in self.measured()}

    def add_sensor(
        self, name: str, recording_level: RecordingLevel = RecordingLevel.INFO, *, parents: Sequence[Sensor] = ()
    ) -> Sensor:
        """A sensor without figures; if there is one of that name, that one.

        Args:
            name: Unique within the task.
            recording_level: It records if `metrics.recording.level` is not below.
            parents: What it records, these record as well.

        Raises:
            TopologyError: If a value would reach a parent in more than one way.
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
        """A sensor with the figures `<operation>-rate`, per second, and `<operation>-total`, one for each `record()`.

        Args:
            scope_name: What kind of thing is measured; the group is `stream-<scope>-metrics`.
            entity_name: Which thing: the tag `<scope>-id`.
            operation_name: What it does.
            recording_level: It records if `metrics.recording.level` is not below.
            tags: Further tags.

        Raises:
            TopologyError: If a name cannot be one, or another sensor has a figure of that name.
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
        """Add a rate and total sensor with `<operation>-latency-avg` and `<operation>-latency-max` of recorded values.

        Args:
            scope_name: What kind of thing is measured; the group is `stream-<scope>-metrics`.
            entity_name: Which thing: the tag `<scope>-id`.
            operation_name: What it does.
            recording_level: It records if `metrics.recording.level` is not below.
            tags: Further tags.

        Raises:
            TopologyError: If a name cannot be one, or another sensor has a figure of that name.
        """
        sensor = self.add_rate_total_sensor(
            scope_name, entity_name, operation_name=operation_name, recording_level=recording_level, tags=tags
        )
        group, all_tags = _entity(scope_name, entity_name, tags)
        kinds: tuple[tuple[str, str, MeasurableStat], ...] = (("avg", "average", Avg()), ("max", "maximum", Max()))
        for kind, words, stat in kinds:
            description = f"The {words} latency of {operation_name}"
            sensor.add(
                MetricName(f"{operation_name}-latency-{kind}", group, description=description, tags=all_tags), stat
            )
        return sensor

    def remove_sensor(self, sensor: Sensor) -> None:
        """Forget a sensor with its figures, and those whose parent it is."""
        if self._sensors.get(sensor.name) is not sensor:
            return
        del self._sensors[sensor.name]
        for child in [other for other in self._sensors.values() if sensor in other.parents]:
            self.remove_sensor(child)

    def claim(self, name: MetricName) -> None:
        """Make sure that no sensor has a figure of that name.

        Raises:
            TopologyError: If one has.
        """
        if any(name in sensor.stats for sensor in self._sensors.values()):
            message = f"A metric named '{name}' already exists, can't register another one."
            raise TopologyError(message)

    def measured(self) -> tuple[Measurement, ...]:
        """All figures, for hosts."""
        now_ms = self.now_ms()
        return tuple(
            Measurement(name, stat.measure(self.config, now_ms), isinstance(stat, CumulativeCount | CumulativeSum))
            for sensor in self._sensors.values()
            for name, stat in sensor.stats.items()
        )


def metric_config(settings: Mapping[str, Any]) -> MetricConfig:
    """How figures are taken, out of an application's settings by their dotted names."""
    usual = MetricConfig()
    return MetricConfig(
        settings.get("metrics.num.samples", usual.samples),
        settings.get("metrics.sample.window.ms", usual.time_window_ms),
        RecordingLevel[settings.get("metrics.recording.level", usual.record_level.name)],
    )


def totals(measured: Iterable[Measurement]) -> dict[str, float]:
    """The totals by the text of their names, those of equal names added up."""
    found: dict[str, float] = {}
    for name, value, is_total in measured:
        if is_total:
            found[str(name)] = found.get(str(name), 0.0) + value
    return found


def added(*parts: Mapping[str, float]) -> dict[str, float]:
    """Several totals as one."""
    return {name: sum(part.get(name, 0.0) for part in parts) for name in sorted(set().union(*parts))}


def _entity(scope: str, entity: str, tags: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
    """Group and tags of the figures of one thing of a kind."""
    return f"stream-{scope}-metrics", {f"{scope}-id": entity, **(tags or {})}


def _check_forest(name: str, parents: Iterable[Sensor], seen: set[str]) -> None:
    for parent in parents:
        if parent.name in seen:
            message = f"Circular dependency in sensors: {name} would give its values to {parent.name} twice"
            raise TopologyError(message)
        seen.add(parent.name)
        _check_forest(name, parent.parents, seen)
