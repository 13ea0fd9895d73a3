"""A frame gets one verdict, whatever its number of rows, and each expectation an outcome."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import great_expectations.expectations as gxe
import pytest
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.expectations.row_conditions import Column

from riverrun.quality import gate
from riverrun.quality.frames import ColumnStatistics, Statistics, write_frame
from riverrun.quality.gate import GateReport, Verdict, judge
from riverrun.quality.last_runs import ExpectColumnStatisticToBeNearLastRuns
from tests.unit.ends import ENDS
from tests.unit.quality.shipped import ALL, ROWS, of, told

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class ExpectNoEnd(BatchExpectation):  # type: ignore[misc] # the library has no types
    """A user's own expectation."""

    column: str
    metric_dependencies = ("column.max",)
    domain_keys = ("batch_id", "column")

    def _validate(self, *_metrics: Any, **_options: Any) -> dict[str, Any]:
        present[0]()
        return {"success": True}


class Action:
    """Sends a result to nobody."""

    name = "send"

    def run(self, **_result: Any) -> None:
        present[0]()


present: list[Callable[[], Any]] = []


def raises_nothing_said() -> Any:
    raise ValueError


def verdict(directory: Path, asked: list[Any], rows: list[dict[str, Any]] = ROWS, **options: Any) -> Verdict:
    return judge("rows", write_frame(directory / "frame", rows), asked, pytest.fail, keys=["_key"], **options)


def test_each_expectation_has_one_outcome_for_few_rows_and_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = (list(of(kind, "n")) for kind in ALL)
    asked = [one for each in variants for one in {id(each[0]): each[0], id(each[-1]): each[-1]}.values()]
    assert {type(each).__name__ for each in asked} == set(ALL)
    monkeypatch.setattr(gate, "_is_alike_on_spark", lambda *_: False)
    verdicts = []
    for most in (300_000, 1):
        monkeypatch.setattr(gate, "ROWS_IN_MEMORY", most)
        verdicts.append(verdict(tmp_path, asked))
    small, large = verdicts
    assert {name: told(each) for name, each in large.outcomes.items()} == {
        name: told(each) for name, each in small.outcomes.items()
    }
    assert sorted(large.critical) == sorted(small.critical)
    # Whether there are rows, and NaN in a column.
    assert len(small.outcomes) == 2 + len({gate._name(each.configuration) for each in asked})


@pytest.mark.parametrize(
    ("bounds", "is_of_spark"),
    [((0, 1.5), True), ((None, math.inf), True), ((math.nan, None), False), ((0, math.nan), False)],
)
def test_spark_judges_no_bound_that_it_orders_otherwise_than_pandas(bounds: tuple[Any, Any], is_of_spark: bool) -> None:
    asked = gxe.ExpectColumnValuesToBeBetween(column="n", min_value=bounds[0], max_value=bounds[1])
    assert gate._is_alike_on_spark(asked, {"n": "double"}) is is_of_spark


def test_an_expectation_without_a_result_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validated = gate.validated

    def forgetful(*arguments: Any) -> Any:
        result, page = validated(*arguments)
        result.results.pop()
        return result, page

    monkeypatch.setattr(gate, "validated", forgetful)
    null, rows = gxe.ExpectColumnValuesToNotBeNull(column="_key"), gxe.ExpectTableRowCountToEqual(value=len(ROWS))
    found = verdict(tmp_path, [null, rows])
    assert len(found.critical) == 1
    assert "no result" in found.outcomes[found.critical[0]]


def test_an_expectation_that_raises_blocks_and_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated = gate.validated

    def raising(context: Any, definition: Any, *others: Any) -> Any:
        if any(each.expectation_type.endswith("_null") for each in definition.suite.expectations):
            raise KeyError("metric")
        return validated(context, definition, *others)

    monkeypatch.setattr(gate, "validated", raising)
    null, rows = gxe.ExpectColumnValuesToNotBeNull(column="_key"), gxe.ExpectTableRowCountToEqual(value=len(ROWS))
    found = verdict(tmp_path, [null, rows])
    assert [told(found.outcomes[name]) for name in found.critical] == ["failed: it cannot be evaluated: 'metric'"]
    assert found.outcomes["rows: expect_table_row_count_to_equal(value=6)"] == "passed"


@pytest.mark.parametrize(
    ("rows", "nulls", "is_sudden"),
    [(1, 0, True), (5, 10, True), (5, 999, False), (1, 10, False), (5, 1_000, False)],
)
def test_a_column_that_is_suddenly_without_values_is_a_warning(
    tmp_path: Path, rows: int, nulls: int, *, is_sudden: bool
) -> None:
    before = Statistics(1_000, {"n": ColumnStatistics(nulls=nulls), "other": ColumnStatistics()})
    asked = [
        gxe.ExpectColumnValuesToBeBetween(column="n", min_value=0, severity="critical"),
        gxe.ExpectColumnValuesToBeInSet(column="n", value_set=[1], severity="critical"),
    ]
    given = [{"_key": str(n), "n": None, "other": None} for n in range(rows)]
    found = verdict(tmp_path, asked, given, report=GateReport(earlier={"rows": [before]}))
    assert (found.critical, found.warnings) == ((), ("rows: column n has values",) if is_sudden else ())
    passed = [each for each in found.outcomes.values() if each.startswith("passed: none of")]
    assert len(passed) == len(asked), "nobody takes them for judged values"


@pytest.mark.parametrize("severity", ["info", "warning", "critical"])
@pytest.mark.parametrize("end", [*ENDS, raises_nothing_said], ids=lambda end: end.__name__)
def test_however_an_expectation_ends_it_blocks_and_leaves_the_others_alone(
    tmp_path: Path, end: Callable[[], Any], severity: str
) -> None:
    present[:] = [end]
    rows = gxe.ExpectTableRowCountToEqual(value=len(ROWS))
    found = verdict(tmp_path, [ExpectNoEnd(column="n", severity=severity), rows])
    assert found.critical == ("rows: expect_no_end(column=n)",)
    assert found.outcomes[found.critical[0]].startswith("failed: it cannot be evaluated: ")
    assert found.outcomes["rows: expect_table_row_count_to_equal(value=6)"] == "passed"


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_however_an_action_ends_the_findings_stay(tmp_path: Path, end: Callable[[], Any]) -> None:
    present[:] = [end]
    rows = gxe.ExpectTableRowCountToEqual(value=len(ROWS))
    assert verdict(tmp_path, [rows], report=GateReport(actions=[Action()])) == verdict(tmp_path, [rows])


def test_no_expectation_of_rows_passes_without_rows_in_silence(tmp_path: Path) -> None:
    nobody = Column("_key") == "nobody"
    asked = [
        next(of(kind, "n")).copy(update={"row_condition": nobody})
        for kind in ALL
        # Those of types look at the column, not at its rows.
        if {"row_condition", "mostly"} <= {*gxe.__dict__[kind].__fields__} and "Type" not in kind
    ]
    pairs = {"column_A": "none", "column_B": "n", "ignore_row_if": "either_value_is_missing"}
    asked.append(gxe.ExpectColumnPairValuesToBeEqual(**pairs))
    outcomes = verdict(tmp_path, asked).outcomes
    judged = [outcomes[f"rows: {gate._name(each.configuration)}"] for each in asked]
    assert len(judged) > 20
    assert {told(each) for each in judged if each.startswith("passed")} == {
        "passed: it was not judged, as it leaves out all rows",
        "passed: none of 6 rows has a value",
    }


def test_columns_that_are_judged_have_statistics_however_many_there_are(tmp_path: Path) -> None:
    before = Statistics(5, {"z": ColumnStatistics(mean=2.0)})
    asked = [
        gxe.ExpectColumnValuesToBeBetween(column="z", min_value=0),
        ExpectColumnStatisticToBeNearLastRuns(column="z", statistic="mean", runs=1),
    ]
    for value, found in ((None, {"has values", "mean"}), (float("nan"), {"has values", "no NaN", "mean"})):
        given = [{"_key": str(n), **{f"c{i}": n for i in range(120)}, "z": value} for n in range(5)]
        judged = verdict(tmp_path, asked, given, report=GateReport(earlier={"rows": [before]}))
        failed = (*judged.critical, *judged.warnings)
        assert {each for each in found if any(each in name for name in failed)} == found
        assert len(judged.statistics["rows"].columns) == 100


def test_columns_whose_names_differ_in_case_alone_are_judged_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_is_alike_on_spark", lambda *_: False)
    asked = [next(of(kind, "N")) for kind in ALL if "column" in gxe.__dict__[kind].__fields__]
    assert len(asked) > 20
    apart, alike = ([{"_key": row["_key"], other: row["x"], "N": row["n"]} for row in ROWS] for other in ("other", "n"))
    expected = {name: told(each) for name, each in verdict(tmp_path, asked, apart).outcomes.items()}
    for most in (300_000, 1):
        monkeypatch.setattr(gate, "ROWS_IN_MEMORY", most)
        found = verdict(tmp_path, asked, alike).outcomes
        assert {name: told(each) for name, each in found.items()} == expected


def test_columns_that_cannot_be_told_apart_block(tmp_path: Path) -> None:
    asked = [
        gxe.ExpectColumnPairValuesToBeEqual(column_A="n", column_B="N", severity="info"),
        gxe.ExpectColumnValuesToNotBeNull(column="N", row_condition=Column("n") == 1, severity="info"),
        ExpectNoEnd(column="n", severity="info"),
    ]
    rows = gxe.ExpectTableRowCountToEqual(value=1)
    found = verdict(tmp_path, [*asked, rows], [{"_key": "k", "n": 1, "N": 1}])
    assert len(found.critical) == len(asked)
    assert all("has that name in another case" in found.outcomes[name] for name in found.critical)
    assert found.outcomes["rows: expect_table_row_count_to_equal(value=1)"] == "passed"
