"""Figures of an instance: rates, lags and latencies by task, sub-topology, topic and store."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import LONG, STRING, Consumed, Grouped, Materialized, Produced, StreamsBuilder, TimeWindows, windowed
from riverrun.config import AppConfig
from riverrun.hosting.application import Application
from riverrun.hosting.process import SystemClock
from riverrun.kafka.door import Kafka
from riverrun.operators.lookups import LOOKUP_METRICS
from riverrun.processor.metrics import Measurement, MetricName
from riverrun.records import TaskId, TopicPartition
from riverrun.service.measuring import Measuring
from riverrun.worker.states import (
    InputProgress,
    InstanceStatus,
    LastCommit,
    TaskFigures,
    ThreadSeconds,
    WorkerState,
    WorkerSummary,
)
from riverrun.worker.stream_thread.protocol import ThreadReport

if TYPE_CHECKING:
    from collections.abc import Mapping

FIVE = timedelta(minutes=5)
FIRST, SECOND = TaskId(0, 0), TaskId(1, 3)


def shop(published: Mapping[str, str] | None = None) -> Application:
    builder = StreamsBuilder()
    pages = builder.stream(["clicks", "views"], Consumed(STRING, STRING)).group_by(
        lambda _key, page: page, Grouped(STRING, STRING, name="by-page")
    )
    counts = pages.windowed_by(TimeWindows.of(FIVE)).count(Materialized(name="per-page"))
    counts.to_stream().to("page-counts", Produced(windowed(STRING, FIVE), LONG))
    return Application(AppConfig("shop", "m:f"), "v1", builder.build(), Kafka({}), Path("unused"), published)


@dataclass
class Reported:
    """An instance with these reports."""

    tasks: dict[TaskId, TaskFigures] = field(default_factory=dict)
    lags: dict[TaskId, int] = field(default_factory=dict)
    commits: int = 0
    commit_s: float = 0.0
    seconds: dict[int, float] = field(default_factory=lambda: {1: 0.0})
    """How long each stream thread runs, s."""
    nodes: dict[int, dict[str, float]] = field(default_factory=dict)
    application: Application = field(default_factory=shop)
    id: str = "i1"

    def status(self) -> InstanceStatus:
        return InstanceStatus(
            WorkerState.RUNNING, frozenset(), frozenset(), {}, {}, 1, paused=False, summary=WorkerSummary()
        )

    def reports(self) -> Mapping[int, ThreadReport]:
        summary = WorkerSummary(0, 0, self.commits)
        active = frozenset(self.tasks)
        return {
            number: ThreadReport(
                active=active,
                standby=frozenset(),
                positions={},
                lags=self.lags,
                summary=summary,
                obeyed=1,
                restoring={},
                commit_seconds=(self.commit_s, 0),
                tasks=self.tasks,
                seconds=ThreadSeconds(all=seconds),
                nodes=self.nodes.get(number, {}),
            )
            for number, seconds in self.seconds.items()
        }


def figures(
    processed: int, latency_ms: int | None, sent: dict[str, int], **inputs: tuple[int, int | None]
) -> TaskFigures:
    progress = {
        TopicPartition(topic.replace("_", "-"), 0): InputProgress(*position) for topic, position in inputs.items()
    }
    return TaskFigures(processed, {}, inputs=progress, last_commit=LastCommit(SystemClock().now_ms(), latency_ms, sent))


def test_each_topic_and_store_of_the_picture_has_its_rate_and_lag() -> None:
    repartition, changelog = "shop-v1-by-page-repartition", "shop-v1-per-page-changelog"
    instance = Reported()
    measuring = Measuring(instance)

    def work(times: int, latency_ms: int) -> None:
        instance.tasks = {
            FIRST: figures(
                100 * times, latency_ms, {repartition: 90 * times}, clicks=(60 * times, 200), views=(0, None)
            ),
            SECOND: figures(
                50 * times, 3, {changelog: 20 * times, "page-counts": 10 * times}, shop_v1_by_page_repartition=(50, 50)
            ),
        }
        instance.commits, instance.commit_s = 10 * times, 0.1 * times

    work(1, 40)
    begun = measuring.figures(100.0, {})
    assert (begun["rate"], begun["commit_ms"], begun["lag"]) == (0, None, 140)
    work(2, 30)
    now: dict[str, Any] = measuring.figures(102.0, {"1_3": 70, "1_4": 7})
    assert (now["rate"], now["lag"], now["latency_ms"]) == (75, 80, 30)
    assert now["commit_ms"] == pytest.approx(10)
    assert now["tasks"]["0_0"] == {"rate": 50, "processed": 200, "lag": 80, "latency_ms": 30, "busy": 0}
    first, second = now["sub_topologies"]["0"], now["sub_topologies"]["1"]
    assert first["reads"] == {"clicks": {"rate": 30, "lag": 80}, "views": {"rate": 0, "lag": 0}}
    assert first["writes"] == {"by-page-repartition": {"rate": 45}}
    assert second["reads"] == {"by-page-repartition": {"rate": 25, "lag": 0}}
    assert (second["writes"], second["stores"]) == ({"page-counts": {"rate": 5}}, {"per-page": {"rate": 10}})
    assert (second["state_bytes"], second["latency_ms"]) == (70, 3)
    assert (now["state_bytes"], now["left_bytes"]) == ({"1_3": 70}, 7), "task 1_4 has moved away"


def test_a_version_that_writes_to_staging_topics_has_its_rates_at_the_public_ones() -> None:
    instance = Reported(application=shop({"page-counts": "shop-v2-staging-page-counts"}))
    measuring, measured = Measuring(instance), list[Any]()
    for sent in (10, 30):
        instance.tasks = {SECOND: figures(sent, None, {"shop-v2-staging-page-counts": sent})}
        measured.append(measuring.figures(float(sent), {}))
    assert measured[-1]["sub_topologies"]["1"]["writes"] == {"page-counts": {"rate": 0}}, "too long ago to compare with"
    instance.tasks = {SECOND: figures(50, None, {"shop-v2-staging-page-counts": 50})}
    assert measuring.figures(31.0, {})["sub_topologies"]["1"]["writes"] == {"page-counts": {"rate": 20}}


def test_a_restarted_task_has_no_rate_below_zero() -> None:
    instance = Reported({FIRST: figures(100, None, {}, clicks=(100, 100))})
    measuring = Measuring(instance)
    measuring.figures(1.0, {})
    instance.tasks = {FIRST: figures(5, None, {}, clicks=(40, 100)), SECOND: figures(7, None, {})}
    found = measuring.figures(2.0, {})
    assert (found["rate"], found["lag"]) == (0, 60)


def test_a_latency_is_forgotten_when_no_commit_follows() -> None:
    old = LastCommit(SystemClock().now_ms() - 60_000, 12, {})
    measuring = Measuring(Reported({FIRST: TaskFigures(5, {}, last_commit=old)}))
    assert measuring.figures(1.0, {})["latency_ms"] is None


@pytest.mark.parametrize(("position", "end", "lag"), [(3, 10, 7), (10, 8, 0), (-1, 10, None), (3, None, None)])
def test_the_lag_of_an_input_is_known_when_both_its_ends_are(position: int, end: int | None, lag: int | None) -> None:
    assert InputProgress(position, end).lag == lag


def test_a_task_is_busy_for_the_share_of_time_that_it_spends_on_records() -> None:
    instance = Reported({FIRST: TaskFigures(5, {}, at_ms=1_000, process_s=1.0)})
    measuring = Measuring(instance)
    assert measuring.figures(1.0, {})["tasks"]["0_0"]["busy"] == 0
    instance.tasks = {FIRST: TaskFigures(9, {}, at_ms=3_000, process_s=1.5)}
    found = measuring.figures(3.0, {})
    assert (found["tasks"]["0_0"]["busy"], found["sub_topologies"]["0"]["busy"]) == (0.25, 0.25)
    instance.tasks = {FIRST: TaskFigures(1, {}, at_ms=4_000, process_s=0.1)}
    assert measuring.figures(4.0, {})["tasks"]["0_0"]["busy"] == 0, "it has come back, and counts from zero"


def test_a_node_is_as_busy_as_all_stream_threads_at_it_together() -> None:
    instance = Reported(seconds={1: 10.0, 2: 20.0}, nodes={1: {"parse": 4.0}, 2: {"parse": 1.0, "count": 2.0}})
    measuring = Measuring(instance)
    assert measuring.figures(0.0, {})["nodes"] == {}, "nothing to compare with"
    instance.seconds = {1: 12.0, 2: 24.0, 3: 1.0}
    instance.nodes = {1: {"parse": 5.0, "count": 0.5}, 2: {"parse": 2.0, "count": 2.0}, 3: {"parse": 0.5}}
    assert measuring.figures(1.0, {})["nodes"] == {"count": 0.25, "parse": 0.75}, "a thread that begins is left out"


def looked_up(node: str, **values: float) -> tuple[Measurement, ...]:
    """Measurements of a node's look-ups; `_` stands for `-`."""
    tags = {"lookup-id": node, "task-id": "0_0"}
    names = {name: MetricName(name.replace("_", "-"), LOOKUP_METRICS, tags=tags) for name in values}
    return tuple(Measurement(names[name], value, is_total=name.endswith("total")) for name, value in values.items())


def test_look_ups_of_a_node_are_those_of_all_its_tasks() -> None:
    rates = {"lookup_rate": 10.0, "lookup_latency_avg": 20.0, "lookup_latency_max": 90.0}
    caches = {"cache_hit_total": 6, "cache_miss_total": 2, "cache_size": 2}
    first = looked_up(
        "price", **rates, in_flight=4, waiting=7, failure_total=1, retry_total=3, timeout_total=2, **caches
    )
    second = looked_up(
        "price", lookup_rate=30.0, lookup_latency_avg=40.0, lookup_latency_max=50.0, in_flight=1, waiting=1
    )
    idle = looked_up("name", lookup_rate=0.0, lookup_latency_avg=math.nan, lookup_latency_max=math.nan, in_flight=0)
    other = (Measurement(MetricName("hit-rate", "own", tags={"own-id": "x"}), 1.0, is_total=False),)
    tasks = {FIRST: TaskFigures(5, {}, (*first, *idle, *other)), SECOND: TaskFigures(5, {}, second)}
    found = Measuring(Reported(tasks)).figures(1.0, {})["lookups"]
    assert list(found) == ["name", "price"]
    assert found["price"] == {
        "rate": 40,
        "in_flight": 5,
        "waiting": 8,
        "failures": 1,
        "retries": 3,
        "timeouts": 2,
        "cache_hits": 6,
        "cache_misses": 2,
        "latency_ms": 35,
        "latency_max_ms": 90,
    }
    assert (found["name"]["latency_ms"], found["name"]["rate"]) == (None, 0)
    assert Measuring(Reported({FIRST: TaskFigures(5, {})})).figures(1.0, {})["lookups"] == {}


def test_a_stream_thread_that_starts_again_has_no_figures_at_first() -> None:
    instance = Reported(seconds={1: 100.0}, nodes={1: {"parse": 40.0}})
    measuring = Measuring(instance)
    measuring.figures(0.0, {})
    instance.seconds, instance.nodes = {1: 1.0}, {1: {"parse": 0.5}}
    found = measuring.figures(1.0, {})
    assert (found["nodes"], found["stream_threads"]) == ({}, {})
