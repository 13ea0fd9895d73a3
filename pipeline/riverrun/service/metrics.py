"""Metrics of an instance for Prometheus, under the names of Kafka Streams' metrics.

A scrape costs stream threads nothing: all metrics come from the reports that they send each second anyway.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from riverrun.worker.states import ThreadSeconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from riverrun.hosting.application import Application
    from riverrun.processor.metrics import MetricName
    from riverrun.worker.states import InstanceStatus
    from riverrun.worker.stream_thread.protocol import ThreadReport

_THREAD = "kafka_streams_stream_thread_metrics_"
_TASK = "kafka_streams_stream_task_metrics_"
_UPDATER = "kafka_streams_stream_state_updater_metrics_"
_NODE = "kafka_streams_stream_processor_node_metrics_"
_CLIENT = "kafka_streams_stream_metrics_"
# Kafka Streams' ratios are of the last `metrics.sample.window.ms`, too.
_WINDOW_SECONDS = 30.0
_BEGIN = ThreadSeconds()
_RATIOS: Sequence[tuple[str, str, Sequence[str]]] = (
    (f"{_THREAD}process_ratio", "Share of time spent processing records, 0 to 1.", ("process",)),
    (f"{_THREAD}punctuate_ratio", "Share of time spent in punctuators, 0 to 1.", ("punctuate",)),
    (
        f"{_THREAD}commit_ratio",
        "Share of time spent committing and waiting for commits, 0 to 1.",
        ("commit", "commit_wait"),
    ),
    (
        f"{_THREAD}commit_wait_ratio",
        "Share of time spent waiting for commits, part of the commit ratio.",
        ("commit_wait",),
    ),
    (f"{_THREAD}poll_ratio", "Share of time spent fetching records and waiting for them, 0 to 1.", ("poll",)),
)
"""Names of ratios, their meanings, and the parts of time that each has."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")


class MeasuredInstance(Protocol):
    """An instance, as seen by its metrics (`StreamsInstance`)."""

    @property
    def id(self) -> str:
        """Identifies the instance."""

    @property
    def application(self) -> Application:
        """The application that it runs."""

    def status(self) -> InstanceStatus:
        """Return the state of the instance."""

    def reports(self) -> Mapping[int, ThreadReport]:
        """Return the last reports of its stream threads."""


def registry_of(host: MeasuredInstance) -> CollectorRegistry:
    """Return a registry with the metrics of an instance, and those of its process."""
    registry = CollectorRegistry()
    registry.register(_Figures(host))
    ProcessCollector(registry=registry)
    return registry


def families(host: MeasuredInstance) -> Iterable[Metric]:
    """Return all metrics of an instance, with names, types and meanings, including those that have no values yet."""
    return _Figures(host).collect()


class _Figures(Collector):
    def __init__(self, host: MeasuredInstance) -> None:
        self._host = host
        self._client = f"{host.application.id}-{host.id}"
        self._ratios = _Ratios()

    def collect(self) -> Iterable[Metric]:
        reports = {f"{self._client}-StreamThread-{n}": report for n, report in self._host.reports().items()}
        yield from self._of_client()
        yield from _of_threads(reports)
        yield from self._ratios.of_threads({thread: report.seconds for thread, report in reports.items()})
        yield from _of_nodes(reports)
        yield from _of_tasks(reports)
        yield from _of_progress(reports)
        yield from _of_copies(reports)
        yield from _of_sensors(reports)

    def _of_client(self) -> Iterable[Metric]:
        status = self._host.status()
        state = GaugeMetricFamily(
            f"{_CLIENT}state", "1 for the instance's current state.", labels=["client_id", "state"]
        )
        state.add_metric([self._client, status.state.value], 1)
        yield state
        text = "1 if brokers count the instance as a member of its group, or did less than a session ago; 0 if not."
        member = GaugeMetricFamily(f"{_CLIENT}group_member", text, labels=["client_id"])
        member.add_metric([self._client], int(status.is_member))
        yield member
        text = "How long a stream thread has been in one record, s. Only records that take long have values."
        names = ["client_id", "thread_id", "task_id", "processor_node_id", "topic", "partition", "offset"]
        stuck = GaugeMetricFamily(f"{_CLIENT}stuck_record_seconds", text, labels=names)
        for number, record in status.stuck.items():
            place = (record.task, record.node, record.topic, str(record.partition), str(record.offset))
            stuck.add_metric([self._client, f"{self._client}-StreamThread-{number}", *place], record.seconds)
        yield stuck
        threads = GaugeMetricFamily(f"{_CLIENT}alive_stream_threads", "Number of stream threads.", labels=["client_id"])
        threads.add_metric([self._client], status.threads)
        yield threads
        version = GaugeMetricFamily(
            f"{_CLIENT}application",
            "Always 1; the labels name the application and its version.",
            labels=["client_id", "application_id", "version"],
        )
        version.add_metric([self._client, self._host.application.id, self._host.application.version], 1)
        yield version
        if status.recovery_s is not None:
            text = "Time from the last change of its tasks until all of them ran, s."
            recovery = GaugeMetricFamily(f"{_CLIENT}recovery_seconds", text, labels=["client_id"])
            recovery.add_metric([self._client], status.recovery_s)
            yield recovery
        if status.held_s is not None:
            text = (
                "Time that the instance has paused at the last barrier of a release, s. It publishes nothing meanwhile."
            )
            held = GaugeMetricFamily(f"{_CLIENT}hold_seconds", text, labels=["client_id"])
            held.add_metric([self._client], status.held_s)
            yield held


def _of_threads(reports: Mapping[str, ThreadReport]) -> Iterable[Metric]:
    processed = CounterMetricFamily(f"{_THREAD}process", "Records processed.", labels=["thread_id"])
    commits = CounterMetricFamily(f"{_THREAD}commit", "Commits of tasks.", labels=["thread_id"])
    spent = CounterMetricFamily(f"{_THREAD}commit_latency_ms", "Time spent committing, ms.", labels=["thread_id"])
    longest = GaugeMetricFamily(f"{_THREAD}commit_latency_max", "Longest commit, ms.", labels=["thread_id"])
    for thread, report in reports.items():
        processed.add_metric([thread], report.summary.processed)
        commits.add_metric([thread], report.summary.commits)
        spent.add_metric([thread], report.commit_seconds[0] * 1000)
        longest.add_metric([thread], report.commit_seconds[1] * 1000)
    return processed, commits, spent, longest


class _Ratios:
    """Shares of stream threads' time since an earlier scrape, or since they began. Scrapes may be concurrent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: deque[tuple[float, Mapping[str, ThreadSeconds]]] = deque([(float("-inf"), {})])

    def of_threads(self, now: Mapping[str, ThreadSeconds]) -> Iterable[Metric]:
        """Return the ratios of stream threads with these times."""
        earlier = self._earlier(now)
        families = [GaugeMetricFamily(name, text, labels=["thread_id"]) for name, text, _ in _RATIOS]
        for thread, seconds in now.items():
            shares = seconds.shares_since(earlier.get(thread, _BEGIN))
            for family, (_, _, parts) in zip(families, _RATIOS, strict=True):
                if shares:
                    family.add_metric([thread], sum(shares[part] for part in parts))
        return families

    def _earlier(self, now: Mapping[str, ThreadSeconds]) -> Mapping[str, ThreadSeconds]:
        """Return the times at the last scrape that is a window ago, and remember those of this one."""
        at = time.monotonic()
        with self._lock:
            # Not simply the last scrape: two servers that scrape would halve each other's window, down to nothing.
            while len(self._looks) > 1 and at - self._looks[1][0] > _WINDOW_SECONDS:
                self._looks.popleft()
            self._looks.append((at, now))
            return self._looks[0][1]


def _of_nodes(reports: Mapping[str, ThreadReport]) -> Iterable[Metric]:
    text = "Time that a stream thread has spent at a node, estimated from samples, s."
    spent = CounterMetricFamily(f"{_NODE}busy_seconds", text, labels=["thread_id", "processor_node_id"])
    for thread, report in reports.items():
        for node, seconds in report.nodes.items():
            spent.add_metric([thread, node], seconds)
    return (spent,)


def _of_tasks(reports: Mapping[str, ThreadReport]) -> Iterable[Metric]:
    processed = CounterMetricFamily(f"{_TASK}process", "Records processed.", labels=["thread_id", "task_id"])
    labels = ["thread_id", "task_id", "reason"]
    dropped = CounterMetricFamily(f"{_TASK}dropped_records", "Records dropped, by reason.", labels=labels)
    text = "Time that the task has waited for tasks behind it in event time, s."
    held_back = CounterMetricFamily(f"{_TASK}held_back_seconds", text, labels=["thread_id", "task_id"])
    text = "Time since which a task with records has waited for an input or another task, s since the epoch."
    labels = ["thread_id", "task_id", "waits_for"]
    waiting = GaugeMetricFamily(f"{_TASK}waiting_since_seconds", text, labels=labels)
    for thread, report in reports.items():
        for task, figures in report.tasks.items():
            if figures.waiting is not None:
                for waited_for in (*figures.waiting.inputs, *figures.waiting.tasks):
                    waiting.add_metric([thread, str(task), str(waited_for)], figures.waiting.since_ms / 1000)
            held_back.add_metric([thread, str(task)], figures.held_back_s)
            processed.add_metric([thread, str(task)], figures.processed)
            for reason, count in figures.dropped.items():
                dropped.add_metric([thread, str(task), reason], count)
    return processed, dropped, held_back, waiting


def _of_progress(reports: Mapping[str, ThreadReport]) -> Iterable[Metric]:
    labels = ["thread_id", "task_id", "topic", "partition"]
    lag = GaugeMetricFamily(
        f"{_TASK}input_lag_records", "Offsets of an input that are still to be processed.", labels=labels
    )
    text = "Time from the newest record's event time to its commit, at the last commit, s."
    latency = GaugeMetricFamily(f"{_TASK}record_e2e_latency_seconds", text, labels=["thread_id", "task_id"])
    for thread, report in reports.items():
        for task, figures in report.tasks.items():
            for tp, progress in figures.inputs.items():
                if progress.lag is not None:
                    lag.add_metric([thread, str(task), tp.topic, str(tp.partition)], progress.lag)
            last = figures.last_commit
            if last is not None and last.latency_ms is not None:
                latency.add_metric([thread, str(task)], last.latency_ms / 1000)
    return lag, latency


def _of_copies(reports: Mapping[str, ThreadReport]) -> Iterable[Metric]:
    restored = CounterMetricFamily(f"{_UPDATER}restore_records", "Records restored.", labels=["thread_id"])
    labels = ["thread_id", "task_id"]
    remaining = GaugeMetricFamily(f"{_TASK}restore_remaining_records", "Records still to be restored.", labels=labels)
    lag = GaugeMetricFamily(f"{_TASK}standby_lag_records", "Records by which a standby is behind.", labels=labels)
    for thread, report in reports.items():
        restored.add_metric([thread], report.summary.restored)
        for task, missing in report.restoring.items():
            # NaN while the end of the changelog is not known: 0 would mean restored.
            remaining.add_metric([thread, str(task)], missing if missing is not None else float("nan"))
        for task, count in report.lags.items():
            lag.add_metric([thread, str(task)], count)
    return restored, remaining, lag


def sensor_name(metric: MetricName) -> str:
    """Return the name under which Prometheus knows a metric of a sensor."""
    return _ILLEGAL.sub("_", f"kafka_streams_{metric.group}_{metric.name}")


def _of_sensors(reports: Mapping[str, ThreadReport]) -> Iterable[Metric]:
    """Return the metrics of processors, each with its thread and task."""
    families: dict[str, Metric] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for thread, report in reports.items():
        for task, figures in report.tasks.items():
            for metric, value, is_total in figures.measured:
                name = sensor_name(metric)
                tags = {_ILLEGAL.sub("_", tag): text for tag, text in metric.tags.items()}
                labels = {**tags, "thread_id": thread, "task_id": str(task)}
                family = name.removesuffix("_total") if is_total else name
                sample = f"{family}_total" if is_total else name
                # Names that differ in '.', '-' and '_' only become one; Prometheus rejects a sample that comes twice.
                if (sample, frozenset(labels.items())) in seen:
                    continue
                seen.add((sample, frozenset(labels.items())))
                kind = "counter" if is_total else "gauge"
                found = families.setdefault(family, Metric(family, metric.description or metric.name, kind))
                found.add_sample(sample, labels, value)
    return families.values()
