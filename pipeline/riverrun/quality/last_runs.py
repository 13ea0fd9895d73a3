"""Expectations that compare a frame with the last ones of its kind, as classes of Great Expectations.

`judge` hands them the statistics of the frame and of earlier ones. Importing this module imports Great Expectations, which
takes seconds.
"""

from __future__ import annotations

import statistics as numbers
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from great_expectations.compatibility import pydantic
from great_expectations.expectations.expectation import BatchExpectation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.quality.frames import ColumnStatistics, Statistics

_OBSERVED, _EARLIER = "observed", "last_runs"
# The history of checks keeps no more of a kind.
_MOST_RUNS = 200
_MOST_WITHIN = 1000
Statistic: TypeAlias = Literal["nulls", "null_share", "distinct", "min", "max", "mean"]


class ExpectTableRowCountToBeNearLastRuns(BatchExpectation):  # type: ignore[misc] # the library has no types
    """Expect the number of rows to be near its median in the last runs.

    Args:
        runs: Number of earlier runs; with fewer, it passes.
        within: The largest distance from the median, as a share of it: 0.2 allows 80 to 120 around 100.
    """

    runs: int = pydantic.Field(7, ge=1, le=_MOST_RUNS)
    within: float = pydantic.Field(0.2, ge=0, le=_MOST_WITHIN)

    metric_dependencies: ClassVar[tuple[str, ...]] = ()
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id",)
    success_keys: ClassVar[tuple[str, ...]] = ("runs", "within")
    judges_no_rows: ClassVar[bool] = True

    def of_this_frame(self, found: Statistics, earlier: Sequence[Statistics]) -> Any:
        """Return a copy that knows the numbers of rows to compare.

        Args:
            found: Statistics of the frame to judge.
            earlier: Statistics of earlier frames, latest first.
        """
        return _with_numbers(self, found.rows, [each.rows for each in earlier])

    def _validate(self, *_metrics: Any, **_configuration: Any) -> dict[str, Any]:
        return _result(self)


class ExpectColumnStatisticToBeNearLastRuns(BatchExpectation):  # type: ignore[misc] # the library has no types
    """Expect a statistic of a column to be near its median in the last runs.

    Args:
        column: Column of the rows to judge; statistics of earlier runs are found under it.
        statistic: `nulls`, `null_share`, `distinct`, or of numbers `min`, `max` or `mean`.
        runs: Number of earlier runs; with fewer that have the statistic, it passes.
        within: The largest distance from the median, as a share of it.
    """

    column: str
    statistic: Statistic
    runs: int = pydantic.Field(7, ge=1, le=_MOST_RUNS)
    within: float = pydantic.Field(0.2, ge=0, le=_MOST_WITHIN)

    metric_dependencies: ClassVar[tuple[str, ...]] = ()
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id", "column")
    success_keys: ClassVar[tuple[str, ...]] = ("statistic", "runs", "within")

    def of_this_frame(self, found: Statistics, earlier: Sequence[Statistics]) -> Any:
        """Return a copy that knows the statistics to compare.

        Args:
            found: Statistics of the frame to judge.
            earlier: Statistics of earlier frames, latest first.
        """
        values = [_number(self.statistic, each, self.column) for each in (found, *earlier)]
        return _with_numbers(self, values[0], values[1:])

    def _validate(self, *_metrics: Any, **_configuration: Any) -> dict[str, Any]:
        return _result(self)


def _with_numbers(expectation: Any, found: float | None, earlier: Sequence[float | None]) -> Any:
    known = [value for value in earlier if value is not None][: expectation.runs]
    # In `meta`, which the library carries on to results.
    return expectation.copy(update={"meta": {**(expectation.meta or {}), _OBSERVED: found, _EARLIER: known}})


def _result(expectation: Any) -> dict[str, Any]:
    meta = expectation.meta or {}
    found = meta.get(_OBSERVED)
    success, told = compared(found, meta.get(_EARLIER, []), expectation.runs, expectation.within)
    return {"success": success, "result": {"observed_value": found, "details": {"compared": told}}}


def _number(name: Statistic, statistics: Statistics, column_name: str) -> float | None:
    column = statistics.columns.get(column_name)
    return None if column is None or not statistics.rows else _statistic(name, column, statistics.rows)


def _statistic(name: Statistic, column: ColumnStatistics, rows: int) -> float | None:
    match name:
        case "nulls":
            return column.nulls
        case "null_share":
            return column.nulls / rows
        case "distinct":
            return column.distinct
        case "min":
            return column.lowest
        case "max":
            return column.highest
        case "mean":
            return column.mean


def compared(observed: float | None, earlier: Sequence[float], runs: int, within: float) -> tuple[bool, str]:
    """Return whether a number is near the median of `earlier` (latest first), and what was compared, as text.

    >>> compared(1_150, [1_000, 1_100, 900], 3, 0.2)
    (True, '1,150, and the median of the last 3 runs is 1,000')
    >>> compared(2_000, [1_000, 1_100, 900], 3, 0.2)
    (False, '2,000, and the median of the last 3 runs is 1,000')
    >>> compared(2_000, [1_000], 3, 0.2)
    (True, '2,000, not compared: there are 1 of 3 earlier runs')
    """
    told = "no number" if observed is None else f"{observed:,.6g}" if observed % 1 else f"{observed:,.0f}"
    if len(earlier) < runs:
        return True, f"{told}, not compared: there are {len(earlier)} of {runs} earlier runs"
    median = numbers.median(earlier[:runs])
    shown = f"{median:,.6g}" if median % 1 else f"{median:,.0f}"
    is_near = observed is not None and abs(observed - median) <= within * abs(median)
    return is_near, f"{told}, and the median of the last {runs} runs is {shown}"
