"""Processors' measurements of their own work (`StreamsMetrics`)."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import (
    STRING,
    Consumed,
    MetricName,
    Processor,
    ProcessorContext,
    RecordingLevel,
    Stores,
    StreamsBuilder,
    StreamsMetrics,
    TopologyError,
    ValueTransformerWithKey,
)
from riverrun.processor.stats import (
    Avg,
    CumulativeCount,
    CumulativeSum,
    MeasurableStat,
    Rate,
    SampledMax,
    SampledMin,
    Value,
    WindowedSum,
)
from riverrun.testing import TopologyTestDriver

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS: Consumed[str, str] = Consumed(STRING, STRING)
GROUP = "stream-cache-metrics"
TAGS = {"cache-id": "eu"}


class Measuring(Processor[str, str]):
    """Does what it is told with its metrics, first of all, and then for each record."""

    def __init__(self, begin: Callable[[StreamsMetrics], Any], go_on: Callable[[Any, str], None]) -> None:
        self.begin, self.go_on = begin, go_on

    def init(self, context: ProcessorContext) -> None:
        self.made = self.begin(context.metrics)

    def process(self, record: Any) -> None:
        self.go_on(self.made, record.value)


def recording(made: Any, value: str) -> None:
    made.record(float(value))


def driver_of(
    begin: Callable[[StreamsMetrics], Any], go_on: Callable[[Any, str], None] = recording, settings: Any = None
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    builder.stream("in", TEXTS).process(lambda: Measuring(begin, go_on))
    return TopologyTestDriver(builder.build(), settings)


def own(driver: TopologyTestDriver) -> dict[str, float]:
    """The sensors' figures by name; names of tags are checked elsewhere."""
    return {name.split(":")[1].split("{")[0]: v for name, v in driver.metrics().items() if name.startswith("stream-")}


def test_a_latency_sensor_has_rate_total_average_and_maximum() -> None:
    def begin(metrics: StreamsMetrics) -> Any:
        return metrics.add_latency_rate_total_sensor("cache", "eu", operation_name="lookup", tags={"zone": "a"})

    with driver_of(begin) as driver:
        driver.input_topic("in", STRING, STRING).pipe_value_list(["3", "5"])
        tags = "{cache-id=eu,zone=a,task-id=0_0}"
        assert driver.metrics() == {
            "process-total": 2,
            "dropped-records-total": 0,
            f"{GROUP}:lookup-rate{tags}": 2 / 30,
            f"{GROUP}:lookup-total{tags}": 2,
            f"{GROUP}:lookup-latency-avg{tags}": 4,
            f"{GROUP}:lookup-latency-max{tags}": 5,
        }


def test_sampled_figures_forget_and_cumulative_ones_do_not() -> None:
    stats: dict[str, MeasurableStat] = {
        "avg": Avg(),
        "max": SampledMax(),
        "min": SampledMin(),
        "sum": WindowedSum(),
        "rate": Rate(),
    }

    def begin(metrics: StreamsMetrics) -> Any:
        sensor = metrics.add_sensor("sizes")
        for name, stat in {**stats, "bytes": CumulativeSum(), "all": CumulativeCount(), "last": Value()}.items():
            sensor.add(MetricName(name, GROUP), stat)
        return sensor

    with driver_of(begin, settings={"metrics.sample.window.ms": 10_000}) as driver:
        topic = driver.input_topic("in", STRING, STRING)
        topic.pipe_value_list(["4", "8"])
        driver.advance_wall_clock_time(timedelta(seconds=15))
        topic.pipe_input("k", "9")
        assert own(driver) == {
            "avg": 7, "max": 9, "min": 4, "sum": 21, "rate": 21 / 15, "bytes": 21, "all": 3, "last": 9
        }  # fmt: skip
        driver.advance_wall_clock_time(timedelta(seconds=20))
        left = own(driver)
        assert all(math.isnan(left.pop(name)) for name in ("avg", "max", "min"))
        assert left == {"sum": 0, "rate": 0, "bytes": 21, "all": 3, "last": 9}


def test_a_sensor_records_for_its_parents() -> None:
    def begin(metrics: StreamsMetrics) -> Any:
        everything = metrics.add_rate_total_sensor("cache", "eu", operation_name="lookup")
        misses = metrics.add_sensor("misses", parents=[everything])
        misses.add(MetricName("misses", GROUP), CumulativeCount())
        return {"hit": everything, "miss": misses}

    with driver_of(begin, lambda made, value: made[value].record()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_value_list(["hit", "miss", "hit"])
        assert (own(driver)["lookup-total"], own(driver)["misses"]) == (3, 1)


@pytest.mark.parametrize(("level", "recorded"), [("INFO", [1, 0, 0]), ("DEBUG", [1, 1, 0]), ("TRACE", [1, 1, 1])])
def test_sensors_above_the_recording_level_record_nothing(level: str, recorded: list[int]) -> None:
    def begin(metrics: StreamsMetrics) -> Any:
        sensors = [metrics.add_sensor(each.name, each) for each in RecordingLevel]
        for sensor in sensors:
            sensor.add(MetricName(sensor.name, GROUP), CumulativeCount())
        return sensors

    def go_on(made: Any, _value: str) -> None:
        for sensor in made:
            sensor.record()
        assert [sensor.should_record for sensor in made] == list(map(bool, recorded))

    with driver_of(begin, go_on, {"metrics.recording.level": level}) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "v")
        assert list(own(driver).values()) == recorded


def test_a_sensor_that_is_removed_takes_its_children_along_and_frees_their_names() -> None:
    metrics = StreamsMetrics(lambda: 0)
    parent = metrics.add_rate_total_sensor("cache", "eu", operation_name="lookup")
    child = metrics.add_sensor("child", parents=[parent])
    child.add(MetricName("misses", GROUP), CumulativeCount())
    assert set(metrics.metrics()) == {
        MetricName("lookup-rate", GROUP, tags=TAGS),
        MetricName("lookup-total", GROUP, tags=TAGS),
        MetricName("misses", GROUP),
    }
    metrics.remove_sensor(parent)
    metrics.remove_sensor(parent)
    assert metrics.metrics() == {}
    other = metrics.add_sensor("child")
    assert other is not child
    other.add(MetricName("misses", GROUP), CumulativeCount())
    assert other.has_metrics
    metrics.remove_sensor(child)
    assert metrics.metrics() == {MetricName("misses", GROUP): 0}, "an old sensor does not take a new one's place"


def test_processors_of_a_task_share_the_sensor_of_a_name() -> None:
    def begin(metrics: StreamsMetrics) -> Any:
        return metrics.add_rate_total_sensor("cache", "eu", operation_name="lookup")

    builder = StreamsBuilder()
    stream = builder.stream("in", TEXTS)
    for _ in range(2):
        stream.process(lambda: Measuring(begin, recording))
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "1")
        assert own(driver)["lookup-total"] == 2


def test_figures_of_tasks_are_told_apart_those_of_global_stores_too() -> None:
    def begin(metrics: StreamsMetrics) -> Any:
        return metrics.add_rate_total_sensor("cache", "eu", operation_name="lookup", tags={"task-id": "mine"})

    builder = StreamsBuilder()
    builder.stream("a", TEXTS).process(lambda: Measuring(begin, recording))
    builder.stream("b", TEXTS).process(lambda: Measuring(begin, recording))
    store = Stores.key_value_store("s", STRING, STRING)
    builder.add_global_store(store, "all", TEXTS, lambda: Measuring(begin, recording))
    with TopologyTestDriver(builder.build()) as driver:
        for topic in ("a", "all", "all"):
            driver.input_topic(topic, STRING, STRING).pipe_input("k", "1")
        found = {name: value for name, value in driver.metrics().items() if "lookup-total" in name}
        assert found == {
            f"{GROUP}:lookup-total{{cache-id=eu,task-id=-1_-1}}": 2,
            f"{GROUP}:lookup-total{{cache-id=eu,task-id=0_0}}": 1,
            f"{GROUP}:lookup-total{{cache-id=eu,task-id=1_0}}": 0,
        }


def test_transformers_of_tables_have_metrics() -> None:
    class Counted(ValueTransformerWithKey[str, str, str]):
        def init(self, context: ProcessorContext) -> None:
            self.sensor = context.metrics.add_rate_total_sensor("cache", "eu", operation_name="lookup")

        def transform(self, _key: str, value: str | None) -> str | None:
            self.sensor.record()
            return value

    builder = StreamsBuilder()
    builder.table("in", TEXTS).transform_values(Counted)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input_topic("in", STRING, STRING).pipe_input("k", "1")
        assert own(driver)["lookup-total"] == 1


def test_what_would_hide_another_figure_is_refused() -> None:
    metrics = StreamsMetrics(lambda: 0)
    metrics.add_rate_total_sensor("cache", "eu", operation_name="lookup")
    with pytest.raises(TopologyError, match="already exists"):
        metrics.add_sensor("other").add(MetricName("lookup-total", GROUP, tags=TAGS), CumulativeCount())
    with pytest.raises(TopologyError, match="reserved for built-in metrics"):
        metrics.add_rate_total_sensor("task", "0_0", operation_name="process")
    for name in ("", "1st", "with space", "a{b"):
        with pytest.raises(TopologyError, match="cannot name"):
            MetricName(name, GROUP)
        with pytest.raises(TopologyError, match="cannot name"):
            MetricName("hits", GROUP, tags={name: "x"})


def test_a_value_must_not_reach_a_parent_twice() -> None:
    metrics = StreamsMetrics(lambda: 0)
    top = metrics.add_sensor("top")
    left, right = (metrics.add_sensor(name, parents=[top]) for name in ("left", "right"))
    with pytest.raises(TopologyError, match="Circular dependency in sensors"):
        metrics.add_sensor("both", parents=[left, right])
