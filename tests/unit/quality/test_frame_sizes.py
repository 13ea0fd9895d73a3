"""A frame gets one verdict, whatever its number of rows, and each expectation an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import great_expectations.expectations as gxe
import pytest

from riverrun.quality import gate
from riverrun.quality.frames import ColumnStatistics, Statistics, write_frame
from riverrun.quality.gate import GateReport, Verdict, judge
from tests.unit.quality.shipped import ALL, ROWS, of, told

if TYPE_CHECKING:
    from pathlib import Path


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
