"""Statistics of frames, and expectations that compare them with those of the last runs."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from riverrun.quality import ExpectColumnStatisticToBeNearLastRuns, ExpectTableRowCountToBeNearLastRuns, frames
from riverrun.quality.frames import ColumnStatistics, Statistics, write_frame
from riverrun.quality.gate import INFO, GateReport, Verdict, judge

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_statistics_are_those_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int) -> None:
    monkeypatch.setattr(frames, "BATCH_ROWS", batch_rows)
    rows: list[dict[str, Any]] = [
        {"whole": 4, "part": float("nan"), "text": "a", "price": Decimal("1.50"), "mixed": 1, "flag": True},
        {"whole": None, "part": 0.5, "text": "b", "price": Decimal("2.5"), "mixed": "x", "raw": b"\xff"},
        {"whole": -2, "part": 1.5, "text": "a", "price": None, "flag": False, "raw": b"\xff"},
    ]
    found = write_frame(tmp_path / "frame", rows).statistics()
    assert found.rows == 3
    assert found.columns == {
        "whole": ColumnStatistics(1, 2, -2, 4, 1),
        "part": ColumnStatistics(1, 2, 0.5, 1.5, 1, 1),
        "text": ColumnStatistics(0, 2),
        "price": ColumnStatistics(1, 2, 1.5, 2.5, 2),
        "mixed": ColumnStatistics(1, 2),
        "flag": ColumnStatistics(1, 2),
        "raw": ColumnStatistics(1, 1),
    }
    assert write_frame(tmp_path / "empty", []).statistics() == Statistics(0)


def test_many_distinct_values_are_estimated(tmp_path: Path) -> None:
    rows = ({"number": number, "text": f"t{number % 5000}"} for number in range(50_000))
    columns = write_frame(tmp_path / "frame", rows).statistics().columns
    assert columns["number"].distinct == pytest.approx(50_000, rel=0.15)
    assert columns["text"].distinct == pytest.approx(5000, rel=0.15)


def judged(directory: Path, rows: int, earlier: list[int], *expectations: Any) -> Verdict:
    frame = write_frame(directory / "frame", [{"value": number, "_key": "k"} for number in range(rows)])
    before = [Statistics(each, {"value": ColumnStatistics(0, each, 0, each - 1, (each - 1) / 2)}) for each in earlier]
    report = GateReport(earlier={"sums": before})
    return judge("sums", frame, expectations, lambda: None, if_empty=INFO, report=report)


@pytest.mark.parametrize(
    ("rows", "earlier", "outcome"),
    [
        (100, [90, 110, 100], "passed: 100, and the median of the last 3 runs is 100"),
        (100, [100, 1], "passed: 100, not compared: there are 2 of 3 earlier runs"),
        (100, [70, 71, 72, 100, 100], "failed: 100, and the median of the last 3 runs is 71"),
        (1, [70, 71, 900], "failed: 1, and the median of the last 3 runs is 71"),
        (0, [70, 71, 900], "failed: 0, and the median of the last 3 runs is 71"),
        (0, [0, 0, 900], "passed: 0, and the median of the last 3 runs is 0"),
    ],
)
def test_a_row_count_is_near_the_median_of_the_last_runs(
    tmp_path: Path, rows: int, earlier: list[int], outcome: str
) -> None:
    expectation = ExpectTableRowCountToBeNearLastRuns(runs=3, within=0.25, meta={"owner": "ann"})
    verdict = judged(tmp_path, rows, earlier, expectation)
    name = "sums: expect_table_row_count_to_be_near_last_runs(runs=3, within=0.25)"
    assert verdict.outcomes[name] == outcome
    assert verdict.critical == ((name,) if outcome.startswith("failed") else ())
    assert verdict.statistics["sums"].rows == rows
    assert expectation.meta == {"owner": "ann"}, "it may be used again"


@pytest.mark.parametrize("statistic", ["distinct", "max", "mean"])
def test_statistics_of_columns_are_compared_likewise(tmp_path: Path, statistic: Any) -> None:
    expectation = ExpectColumnStatisticToBeNearLastRuns(column="value", statistic=statistic, runs=2, severity="warning")
    assert not judged(tmp_path / "near", 100, [100, 110], expectation).warnings
    assert judged(tmp_path / "far", 100, [40, 50], expectation).warnings
    misspelt = ExpectColumnStatisticToBeNearLastRuns(column="valuee", statistic=statistic)
    outcomes = judged(tmp_path / "no", 100, [], misspelt).outcomes
    assert any("there is no column 'valuee'. Did you mean 'value'?" in each for each in outcomes.values())


def test_impossible_numbers_are_refused() -> None:
    for wrong in ({"runs": 0}, {"runs": 201}, {"within": -0.1}):
        with pytest.raises(ValueError, match="ensure this value"):
            ExpectTableRowCountToBeNearLastRuns(**wrong)
