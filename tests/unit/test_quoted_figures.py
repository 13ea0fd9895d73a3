"""Figures that pages quote are those of the benchmarks, of rows that were measured in five rounds or more."""

from __future__ import annotations

import importlib
import statistics
from typing import TYPE_CHECKING, Any

import pytest

from tests.oracle.scenarios import SCENARIOS, TOPICS
from tests.unit.page_tables import DOCS, ROOT, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    Median = Callable[[str, str, str], float]

BENCHMARKS = ROOT / "tests/benchmarks"
FIRST_GUARANTEES = ("exactly_once_v2", "in memory", "at_least_once")
"""Pages quote a row under the first of these that it has."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of the benchmarks, which are a program of their own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def groups(module: Any) -> dict[str, list[str]]:
    """The names of all rows, by group."""
    return {group: [row.name for row in found] for group, found in module("rows").GROUPS.items()}


@pytest.fixture
def median(module: Any) -> Median:
    """Returns the median of a row, a side and a column of RESULTS.md; refuses rows of fewer than five rounds."""
    declared = {row.name: row for found in module("rows").GROUPS.values() for row in found}
    results = [result for found in module("results").kept(BENCHMARKS / "results").values() for result in found]

    def found(name: str, side: str, title: str) -> float:
        row, shown = declared[name], {result.guarantee: result.runs for result in results if result.row == name}
        assert shown, f"{name} was not measured"
        runs = next(shown[guarantee] for guarantee in FIRST_GUARANTEES if guarantee in shown)
        assert len(runs[side]) >= module("report").SPREAD_ROUNDS, f"a page quotes {name}: it needs more rounds"
        (column,) = [column for column in module("report").KINDS[row.kind].columns if column.title == title]
        figures: list[float] = column.figures(runs[side], runs[row.sides[0]])
        return statistics.median(figures)

    return found


def test_the_readme_has_the_figures_that_the_repository_proves(median: Median) -> None:
    first, _, _ = (ROOT / "README.md").read_text().partition("```python")
    topologies = sum(map(len, TOPICS.values()))
    assert f"| {topologies * SCENARIOS:,} | random scenarios on {topologies} topologies" in first
    speed, java = (median("windowed-count", side, "records/s") for side in ("Riverrun", "Java"))
    ratio, warm = (median("windowed-count", "Riverrun", title) for title in ("ratio", "ratio, 2nd half"))
    shown = (
        f"{speed:,.0f} records/s of a windowed count, exactly once, against {java:,.0f} ({warm:.1f} once Java is warm"
    )
    assert f"| {ratio:.1f} | times Java's speed: {shown}" in first
    assert f"| {median('release, one level', 'Riverrun', 'cut') / 1000:.1f} s |" in first


def test_the_page_about_sizes_has_the_costs_that_were_measured(median: Median) -> None:
    shown = rows("how-to/size.md", "## Cores")
    assert shown
    for row, *figures in shown:
        cpu, speed, of_broker = (median(row, "Riverrun", title) for title in ("CPU", "records/s", "broker %"))
        assert figures == [f"{cpu:.1f}", f"{round(speed, -3):,.0f}", f"{of_broker:.0f} %"]


def test_the_page_about_sizes_has_the_latencies_that_were_measured(
    median: Median, groups: dict[str, list[str]]
) -> None:
    shown = rows("how-to/size.md", "## Latency")
    columns = {"p50": 0, "p99": 0, "cores": 1, "broker cores": 1, "threads": 0, "MiB": 0}
    for partitions, per_second, *figures in shown:
        row = f"{partitions} partitions, {per_second}/s"
        assert figures == [f"{median(row, 'Riverrun', title):,.{digits}f}" for title, digits in columns.items()]
    results = (BENCHMARKS / "RESULTS.md").read_text()
    assert len(shown) == sum(f"\n| {row} |" in results for row in groups["latency"])


def test_the_page_about_sizes_has_the_speed_of_reprocessing(median: Median) -> None:
    ratio = median("windowed-count from scratch", "Riverrun on Spark", "ratio")
    assert f"A windowed count is reprocessed at {ratio:.1f} times\n" in (DOCS / "how-to/size.md").read_text()


def test_the_page_about_performance_has_the_measured_costs_of_generated_lines(
    median: Median, groups: dict[str, list[str]]
) -> None:
    shown = rows("performance.md", "## What is generated")
    assert [row for row, *_ in shown] == groups["fusion"]
    for row, *figures in shown:
        assert figures == [f"{median(row, side, 'CPU'):.2f}" for side in ("called", "fused")]


def test_the_page_about_performance_has_the_measured_costs_of_sql(median: Median, groups: dict[str, list[str]]) -> None:
    shown = rows("performance.md", "## What SQL costs")
    assert [row for row, *_ in shown] == groups["sql"]
    for row, speed, cpu, *_in_memory in shown:
        in_sql, in_python = (median(row, side, "CPU") for side in ("Riverrun in SQL", "Riverrun"))
        assert [speed, cpu] == [f"{median(row, 'Riverrun in SQL', 'ratio'):.2f}", f"{in_sql / in_python:.2f}"]


def test_the_page_about_performance_has_the_measured_costs_of_schemas(median: Median) -> None:
    shown = rows("performance.md", "## What schemas cost")
    assert shown
    for side, *figures in shown:
        size, read, written = (median("serdes", side, title) for title in ("bytes", "read", "write"))
        assert figures == [f"{size:.0f}", f"{read:.2f}", f"{written:.2f}"]
    speeds = (median("windowed-count of formats", side, "ratio") for side in ("JSON Schema", "Protobuf", "Avro"))
    text = "{:.2f} (JSON Schema), {:.2f} (Protobuf) and {:.2f} (Avro) of the speed with JSON"
    assert text.format(*speeds) in (DOCS / "performance.md").read_text()


def test_the_page_about_performance_has_the_measured_costs_of_gates(median: Median) -> None:
    few, many = rows("performance.md", "## What a gate takes")
    assert many[0] == f"{median('differ and gate', 'Riverrun', 'rows'):,.0f}"
    for shown, rank in ((few, "few"), (many, "many")):
        figures = (median("differ and gate", "Riverrun", f"{name}, {rank}") for name in ("differ", "gate"))
        assert shown[1:] == [f"{figure:,.0f} MiB" for figure in figures]
    compared, judged = (median("differ and gate", "Riverrun", title) for title in ("s, differ", "s, gate"))
    text = (DOCS / "performance.md").read_text()
    assert f"reads the tables in {compared:.0f} s. Writing and judging the frames takes {judged:.0f} s." in text


def test_the_page_about_performance_compares_with_java_as_measured(median: Median) -> None:
    shown = rows("performance.md", "## Compared with Java")
    assert shown
    for row, *figures in shown:
        has_halves = "restore" not in row
        titles = ("ratio", "ratio, 2nd half") if has_halves else ("ratio",)
        ratios = [f"{median(row, 'Riverrun', title):.2f}" for title in titles]
        cpu = median(row, "Riverrun", "CPU") / median(row, "Java", "CPU")
        assert figures == [*ratios, *([] if has_halves else [""]), f"{cpu:.2f}"]


def test_the_page_about_performance_has_the_wait_of_queries_that_was_measured(median: Median) -> None:
    wait = median("point queries", "Riverrun", "loaded, in process p99")
    assert f"1 % wait {wait:.0f} ms." in (DOCS / "performance.md").read_text()


def test_the_guide_to_carrying_state_has_the_seconds_that_were_measured(median: Median) -> None:
    few, many = (
        [median(f"one more output{suffix}", side, "s") for side in ("carried", "computed")]
        for suffix in ("", ", many keys")
    )
    text = (DOCS / "how-to/carry-state.md").read_text().replace("\n", " ")
    assert f"took {many[0]:.0f} s for a million keys, and {many[1]:.0f} s when it was computed" in text
    assert f"took {few[0]:.1f} and {few[1]:.1f} s" in text


def test_the_comparison_has_the_speeds_of_engines_that_were_measured(median: Median) -> None:
    row, shown = "windowed-count of engines", rows("comparison.md", "## Speed")
    assert len(shown) > 1
    for engine, guarantee, *figures in shown:
        side = {"Kafka Streams": "Java"}.get(engine, engine)
        speed, cpu, mib = (median(row, side, title) for title in ("records/s", "CPU", "MiB"))
        assert figures == [f"{round(speed, -3):,.0f}", f"{cpu:.1f}", f"{mib:,.0f}"]
        assert guarantee == "at least once"
