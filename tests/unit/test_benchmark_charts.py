"""Charts and ratios of benchmarks: what RESULTS.md shows is what was measured."""

from __future__ import annotations

import importlib
import re
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of the benchmarks, which are a program of their own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_charts_that_results_show_exist_and_have_figures() -> None:
    shown = re.findall(r"^!\[.+\]\((.+)\)$", (BENCHMARKS / "RESULTS.md").read_text(), re.MULTILINE)
    assert shown
    for name in shown:
        drawn = ET.fromstring((BENCHMARKS / name).read_text())  # noqa: S314 - our own
        assert list(drawn.iter(f"{SVG}rect")), name


def test_few_rounds_have_no_minimum_and_no_maximum(module: Any) -> None:
    column = module("report").Column("ratio", "speed", is_ratio=True)
    rounds = [{"speed": float(n)} for n in range(1, 6)]
    once = [{"speed": 1.0}] * 5
    assert column.cell(rounds, once) == "1.00 / 3.00 / 5.00"
    assert column.cell(rounds[:4], once[:4]) == "2.50"
    assert column.cell(rounds[:1], once[:1]) == "1.00"


def test_bars_are_as_long_as_their_values_are_large(module: Any) -> None:
    charts = module("charts")
    bars = [charts.Bars("a & b", {"Java": 1.0, "Riverrun": 4.0})]
    drawn = ET.fromstring(charts.chart("s <&>", bars, 1))  # noqa: S314 - our own
    lengths = [float(each.attrib["width"]) for each in drawn.iter(f"{SVG}rect")]
    assert lengths[1] == pytest.approx(4 * lengths[0], rel=0.02)
    assert [each.text for each in drawn.iter(f"{SVG}text")] == ["s <&>", "a & b", "Java 1.0", "Riverrun 4.0"]


def test_figures_of_charts_are_medians(module: Any) -> None:
    result = module("results").kept(BENCHMARKS / "results")["windows"][0]
    drawn = module("report").charts({"windows": [result]})["windows"]
    median = statistics.median(run["speed"] for run in result.runs["Riverrun"])
    assert "<title>windows: records per second</title>" in drawn
    assert f">Riverrun {median:,.0f}<" in drawn
