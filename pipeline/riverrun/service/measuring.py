"""Statistics of an instance for the console: rates, lags and latencies, by task, sub-topology, topic and store.

All of it comes from reports that stream threads send each second anyway. No broker is asked. They are sent as server-sent
events. Regardless of the number of readers, the state is read once per second, and the sizes of stores every ten.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.hosting.local_state import task_directories
from riverrun.hosting.process import SystemClock
from riverrun.operators.lookups import LOOKUP_METRICS
from riverrun.runtime.layout import changelog_name, full_name
from riverrun.service.answering import Streams
from riverrun.topology.graph import CHOSEN
from riverrun.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from riverrun.hosting.application import Application
    from riverrun.records import TaskId
    from riverrun.service.metrics import MeasuredInstance
    from riverrun.topology.nodes import SubTopology
    from riverrun.worker.states import TaskFigures, ThreadSeconds
    from riverrun.worker.stream_thread.protocol import ThreadReport

# Reports come once per second, not at the time of a poll: rates over a single second would jump.
_COMPARED_SECONDS = 3.5
_RECENT_MS = 10_000
"""Maximum age of a commit whose latency is shown."""


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of topics and stores in the picture of a sub-topology.

    Args:
        other_reads: Stands for further topics that it reads: the pattern of their names; empty if there is none.
    """

    reads: Mapping[str, str]
    writes: Mapping[str, str]
    stores: Mapping[str, str]
    other_reads: str = ""

    @classmethod
    def of(cls, sub: SubTopology, application: Application) -> _Names:
        published, sinks = application.published or {}, [node for node in sub.nodes if isinstance(node, SinkNode)]
        topics = [sink.topic for sink in sinks if isinstance(sink.topic, str)]
        patterns = [source.pattern.pattern for source in sub.sources if source.pattern is not None]
        return cls(
            {
                full_name(sub, application.id, t): t
                for source in sub.sources
                if not source.pattern
                for t in source.topics
            },
            {published.get(t, full_name(sub, application.id, t)): t for t in topics},
            {changelog_name(application.id, store.name): store.name for store in sub.stores},
            patterns[0] if len(patterns) == 1 else "",
        )


@dataclass(slots=True)
class _Flow:
    """The work of a sub-topology: sums over its tasks."""

    rate: float = 0.0
    busy: float = 0.0
    lag: int = 0
    latency_ms: int | None = None
    state_bytes: int = 0
    read_rates: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    read_lags: Counter[str] = field(default_factory=Counter)
    write_rates: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    store_rates: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def shown(self) -> dict[str, Any]:
        """Return the statistics as JSON shows them."""
        reads = self.read_rates.keys() | self.read_lags.keys()
        return {
            "rate": round(self.rate, 1),
            "busy": round(self.busy, 3),
            "lag": self.lag,
            "latency_ms": self.latency_ms,
            "state_bytes": self.state_bytes,
            "reads": {
                name: {"rate": round(self.read_rates[name], 1), "lag": self.read_lags[name]} for name in sorted(reads)
            },
            "writes": {name: {"rate": round(rate, 1)} for name, rate in sorted(self.write_rates.items())},
            "stores": {name: {"rate": round(rate, 1)} for name, rate in sorted(self.store_rates.items())},
        }


@dataclass(frozen=True, slots=True)
class _Look:
    """The counts of an instance at a moment, from which rates are computed."""

    at: float
    tasks: Mapping[TaskId, TaskFigures]
    commits: int
    commit_s: float
    threads: Mapping[int, ThreadSeconds]
    nodes: Mapping[int, Mapping[str, float]]

    @classmethod
    def of(cls, reports: Mapping[int, ThreadReport], at: float) -> _Look:
        known = reports.values()
        return cls(
            at,
            {task: figures for report in known for task, figures in report.tasks.items()},
            sum(report.summary.commits for report in known),
            sum(report.commit_seconds[0] for report in known),
            {number: report.seconds for number, report in reports.items()},
            {number: report.nodes for number, report in reports.items()},
        )


class Measuring:
    """Compares an instance's statistics with those a few seconds earlier."""

    def __init__(self, instance: MeasuredInstance) -> None:
        self._instance = instance
        self._clock = SystemClock()
        self._looks: deque[_Look] = deque()
        self._names: tuple[Application | None, Mapping[int, _Names]] = (None, {})

    def figures(self, at: float, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Return the statistics of the last seconds, as JSON shows them.

        Args:
            at: Time of the poll, monotonic seconds.
            sizes: Bytes of local state by task, also of tasks that have moved away.
        """
        reports = self._instance.reports()
        now = _Look.of(reports, at)
        before = self._compared(now)
        now_ms, commits = self._clock.now_ms(), now.commits - before.commits
        flows, tasks = self._flows(before, now, now_ms)
        held = {str(task) for report in reports.values() for task in _held(report)}
        kept = {task: size for task, size in sizes.items() if task in held}
        for task, size in kept.items():
            flows[task.partition("_")[0]].state_bytes += size
        copies = {str(task): lag for report in reports.values() for task, lag in report.lags.items()}
        return {
            "at": now_ms,
            "rate": round(sum(flow.rate for flow in flows.values()), 1),
            "commit_ms": round((now.commit_s - before.commit_s) / commits * 1000, 2) if commits > 0 else None,
            "lag": sum(flow.lag for flow in flows.values()),
            "latency_ms": _latest(flow.latency_ms for flow in flows.values()),
            "copies_lag": sum(copies.values()),
            "lags": copies,
            "tasks": tasks,
            "sub_topologies": {sub: flow.shown() for sub, flow in sorted(flows.items())},
            "state_bytes": kept,
            "left_bytes": sum(sizes.values()) - sum(kept.values()),
            "stream_threads": _shares(before.threads, now.threads),
            "nodes": _node_shares(before, now),
            "lookups": _lookups(now.tasks.values()),
        }

    def _compared(self, now: _Look) -> _Look:
        """Return the counts to compare with: the earliest of the last seconds, or these if they are the first."""
        self._looks.append(now)
        while now.at - self._looks[0].at > _COMPARED_SECONDS:
            self._looks.popleft()
        return self._looks[0]

    def _flows(self, before: _Look, now: _Look, now_ms: int) -> tuple[dict[str, _Flow], dict[str, dict[str, Any]]]:
        flows: dict[str, _Flow] = defaultdict(_Flow)
        tasks = {}
        names, seconds = self._known_names(), now.at - before.at
        for task, figures in sorted(now.tasks.items()):
            flow, earlier = flows[str(task.sub_topology)], before.tasks.get(task, figures)
            rate = _rate(figures.processed, earlier.processed, seconds)
            lag = sum(progress.lag or 0 for progress in figures.inputs.values())
            latency_ms = _latency(figures, now_ms)
            flow.rate, flow.lag = flow.rate + rate, flow.lag + lag
            flow.latency_ms = _latest((flow.latency_ms, latency_ms))
            if task.sub_topology in names:
                _add_topics(flow, names[task.sub_topology], figures, earlier, seconds)
            busy = _busy(figures, earlier)
            flow.busy += busy
            tasks[str(task)] = {
                "rate": rate,
                "processed": figures.processed,
                "lag": lag,
                "latency_ms": latency_ms,
                "busy": busy,
            }
        return flows, tasks

    def _known_names(self) -> Mapping[int, _Names]:
        application = self._instance.application
        if self._names[0] is not application:  # a new object once a pattern has matched further topics
            subs = application.topology.sub_topologies()
            self._names = application, {sub.id: _Names.of(sub, application) for sub in subs}
        return self._names[1]


def _add_topics(flow: _Flow, names: _Names, figures: TaskFigures, earlier: TaskFigures, seconds: float) -> None:
    """Add a task's inputs, outputs and changelogs to the statistics of its sub-topology."""
    read = {tp.topic for tp in figures.inputs}
    for tp, progress in figures.inputs.items():
        name = names.reads.get(tp.topic, names.other_reads or tp.topic)
        flow.read_lags[name] += progress.lag or 0
        begun = earlier.inputs.get(tp, progress)
        # A task counts its records of all inputs together, so with several inputs only offsets are known by topic.
        # These include transaction markers.
        if len(read) > 1 and begun.position >= 0:
            flow.read_rates[name] += _rate(progress.position, begun.position, seconds)
    if len(read) == 1:
        (topic,) = read
        name = names.reads.get(topic, names.other_reads or topic)
        flow.read_rates[name] += _rate(figures.processed, earlier.processed, seconds)
    sent = figures.last_commit.sent if figures.last_commit is not None else {}
    before = earlier.last_commit.sent if earlier.last_commit is not None else {}
    for topic, count in sent.items():
        rate = _rate(count, before.get(topic, count if earlier is figures else 0), seconds)
        if topic in names.stores:
            flow.store_rates[names.stores[topic]] += rate
        else:
            flow.write_rates[names.writes.get(topic, CHOSEN)] += rate


def _held(report: ThreadReport) -> frozenset[TaskId]:
    """Return the tasks whose state a stream thread has open. Other state on disk is of tasks that have moved away."""
    return report.active.union(report.standby, report.restoring)


def _shares(before: Mapping[int, ThreadSeconds], now: Mapping[int, ThreadSeconds]) -> dict[str, dict[str, float]]:
    """Return the shares of time that each stream thread has spent on its parts since the earlier poll."""
    found = {}
    for number, seconds in sorted(now.items()):
        earlier = before.get(number, seconds)
        shares = seconds.shares_since(earlier)
        if shares:
            found[str(number)] = {name: round(share, 3) for name, share in shares.items()}
    return found


def _node_shares(before: _Look, now: _Look) -> dict[str, float]:
    """Return how busy each node has been since the earlier poll, in shares of one stream thread; all threads together."""
    found: defaultdict[str, float] = defaultdict(float)
    for number, nodes in now.nodes.items():
        earlier = before.nodes.get(number, nodes)
        passed = now.threads[number].all - before.threads.get(number, now.threads[number]).all
        if passed > 0:
            for node, spent in nodes.items():
                found[node] += max(spent - earlier.get(node, 0.0), 0.0) / passed
    return {node: round(share, 3) for node, share in sorted(found.items())}


_SUMS_OF_LOOKUPS = {
    "rate": "lookup-rate",
    "in_flight": "in-flight",
    "waiting": "waiting",
    "failures": "failure-total",
    "retries": "retry-total",
    "timeouts": "timeout-total",
    "cache_hits": "cache-hit-total",
    "cache_misses": "cache-miss-total",
}


def _lookups(tasks: Iterable[TaskFigures]) -> dict[str, dict[str, float | None]]:
    """Return what the look-ups of each node do, of all tasks together. Counts are those since a task was taken over."""
    by_node: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for figures in tasks:
        of_task: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for metric, value, _ in figures.measured:
            if metric.group == LOOKUP_METRICS and not math.isnan(value):
                of_task[metric.tags["lookup-id"]][metric.name] = value
        for node, values in of_task.items():
            by_node[node].append(values)
    return {node: _of_node(by_node[node]) for node in sorted(by_node)}


def _of_node(tasks: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Return the statistics of a node's look-ups: sums, and latencies (ms) of those that have ended lately."""
    found: dict[str, float | None] = {
        name: round(sum(values.get(metric, 0.0) for values in tasks), 1) for name, metric in _SUMS_OF_LOOKUPS.items()
    }
    # Averages are weighted by rate: a task with few look-ups counts little. Without look-ups, its last average would stay.
    timed = [values for values in tasks if "lookup-latency-avg" in values and values.get("lookup-rate", 0.0) > 0]
    ended = sum(values["lookup-rate"] for values in timed)
    spent = sum(values["lookup-rate"] * values["lookup-latency-avg"] for values in timed)
    found["latency_ms"] = round(spent / ended, 1) if timed else None
    found["latency_max_ms"] = round(max(values["lookup-latency-max"] for values in timed), 1) if timed else None
    return found


def _rate(count: int, before: int, seconds: float) -> float:
    """Return a count's growth per second."""
    # A task that has just moved here begins to count at 0 again.
    return round(max(0, count - before) / seconds, 1) if seconds > 0 else 0.0


def _busy(figures: TaskFigures, earlier: TaskFigures) -> float:
    """Return the share of time that a task has spent on records since its earlier report."""
    passed_s = (figures.at_ms - earlier.at_ms) / 1000
    spent_s = max(figures.process_s - earlier.process_s, 0.0)
    return round(min(spent_s / passed_s, 1.0), 3) if passed_s > 0 else 0.0


def _latency(figures: TaskFigures, now_ms: int) -> int | None:
    last = figures.last_commit
    return last.latency_ms if last is not None and now_ms - last.at_ms <= _RECENT_MS else None


def _latest(latencies: Iterable[int | None]) -> int | None:
    return max((each for each in latencies if each is not None), default=None)


_EVERY_SECONDS = 1.0
_SIZES_EVERY_SECONDS = 10.0


def instance_events(
    instance: MeasuredInstance, status: Callable[[], dict[str, Any]], every_s: float = _EVERY_SECONDS
) -> Streams:
    return Streams(_States(instance, status, every_s).event, every_s)


class _States:
    def __init__(self, instance: MeasuredInstance, status: Callable[[], dict[str, Any]], every_s: float) -> None:
        self._instance = instance
        self._status = status
        self._every_s = every_s
        self._measuring = Measuring(instance)
        self._last: tuple[float, bytes] = (float("-inf"), b"")
        self._sizes: tuple[float, dict[str, int]] = (float("-inf"), {})

    async def event(self) -> bytes:
        now = time.monotonic()
        if now - self._sizes[0] >= _SIZES_EVERY_SECONDS:
            # The time is set before the await: readers that come meanwhile take the old sizes, and do not read them as well.
            self._sizes = now, self._sizes[1]
            self._sizes = now, await asyncio.to_thread(_sizes, self._instance.application.directory)
        now = time.monotonic()
        # Half: readers wake up every second, but never exactly on time.
        if now - self._last[0] >= self._every_s / 2:
            self._last = now, self._last[1]  # likewise
            self._last = now, await asyncio.to_thread(self._encoded, now)
        return self._last[1]

    def _encoded(self, now: float) -> bytes:
        state = self._status() | self._measuring.figures(now, self._sizes[1])
        return b"event: state\ndata: " + msgspec.json.encode(state) + b"\n\n"


def _sizes(directory: Path) -> dict[str, int]:
    return {str(task): _bytes_below(path) for task, path in sorted(task_directories(directory).items())}


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        # RocksDB deletes files while they are counted.
        except OSError:
            continue
    return total
