"""Makes the page that lists every metric: `python -m tests.pages.metrics docs/reference/metrics.md`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from riverrun.operators.lookups import latency_sensor
from riverrun.processor.lookups import LookupCounts
from riverrun.processor.metrics import StreamsMetrics
from riverrun.service.follower_metrics import FollowerMetrics
from riverrun.service.metrics import families, sensor_name
from riverrun.worker.states import InstanceStatus, WorkerState, WorkerSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from riverrun.worker.stream_thread.protocol import ThreadReport

_HEAD = """\
# Metrics

`python -m tests.pages.metrics` makes this page from the metrics themselves.
[Monitor](../how-to/monitor.md) describes how Prometheus reads them, and lists alerts.

An instance serves them at `/metrics`. A metric that Kafka Streams also has keeps its name from there.
Counters start at zero when an instance starts. `/metrics` also has the [sensors of processors](../processors.md#metrics), as
`kafka_streams_GROUP_NAME` with their own tags, and figures of the instance's own process (`process_...`).

| Metric | Type | Labels | Meaning |
|---|---|---|---|
"""
_LOOKUPS = """
## Look-ups

A task has these for each node that [looks something up](../how-to/look-up.md), and none without such nodes. They are sensors,
so `TopologyTestDriver.metrics()` and the totals of a bounded run have them as well. Labels are `thread_id`, `task_id` and
`lookup_id`, the node. A latency is the time of a look-up with all its attempts, ms. Averages and maxima are those of the last
minute or so.

| Metric | Type | Meaning |
|---|---|---|"""
_FOLLOWERS = """
## Followers

A process that follows topics into an export or an archive, or a source into a topic, serves these if it has a
`metrics_server`. They are those of its last report, every ten seconds. Counters start at zero when it starts, or when
another version goes live.

| Metric | Type | Labels | Meaning |
|---|---|---|---|"""


class _Example:
    """An instance that has a value wherever one may be missing."""

    id = "instance"
    application: Any = SimpleNamespace(id="clicks-v1", version="v1")

    def status(self) -> InstanceStatus:
        nothing: frozenset[Any] = frozenset()
        running, summary = WorkerState.RUNNING, WorkerSummary()
        return InstanceStatus(
            running, nothing, nothing, {}, {}, 1, paused=False, summary=summary, recovery_s=0.0, held_s=0.0
        )

    def reports(self) -> Mapping[int, ThreadReport]:
        return {}


def page() -> str:
    """Return the page, as Markdown."""
    instance, follower = families(_Example()), FollowerMetrics("export", "totals").collect()
    parts = [*_rows(instance), _LOOKUPS, *_of_lookups(), _FOLLOWERS, *_rows(follower)]
    return _HEAD + "\n".join(parts) + "\n"


def _of_lookups() -> Iterator[str]:
    metrics = StreamsMetrics(lambda: 0)
    latency_sensor(metrics, "node", LookupCounts(), lambda: 0)
    for name, _, is_total in metrics.measured():
        kind = "counter" if is_total else "gauge"
        yield f"| `{sensor_name(name)}` | {kind} | {name.description}. |"


def _rows(found: Iterable[Metric]) -> Iterator[str]:
    for family in found:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in _labels(family))
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def _labels(family: Metric) -> tuple[str, ...]:
    names: tuple[str, ...] = family._labelnames  # type: ignore[attr-defined]
    return names


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
