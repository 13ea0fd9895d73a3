"""Drafts a suite of expectations from a sample of an output's rows, as assistants of Great Expectations did.

The rows of the sample meet each expectation, whose `notes` give the evidence.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.config.secrets import make_directory
from riverrun.errors import ConfigError
from riverrun.quality.frames import array_compute, write_frame
from riverrun.quality.gate import WARNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from decimal import Decimal
    from pathlib import Path

# These columns differ from check to check, or say nothing about the data.
_NOT_DRAFTED = frozenset(
    {"_partition", "_time", "_change", "_late_ms", "_offset", "_window_start", "_window_end"},
)
_KEY, _WINDOW = "_key", "_window_start"
_FEW_VALUES = 20
# With fewer rows per value of a set on average, further values are likely.
_ROWS_PER_VALUE = 10
# With fewer rows, equal lengths, a form or unique keys may be accidental.
_ENOUGH_ROWS = 20
# The margin of a range is its span, divided by this.
_MARGIN = 10
# Names that pandas and Spark have for the type of a column: either of them may judge it.
_TYPES: Mapping[str, tuple[str, ...]] = {
    "bool": ("BooleanDtype", "BooleanType"),
    "int": ("Int64Dtype", "LongType"),
    # Some rows may have whole numbers only.
    "float": ("float64", "DoubleType", "Int64Dtype", "LongType"),
    "decimal": ("Decimal", "DecimalType"),
    "text": ("StringDtype", "StringType"),
    "bytes": ("bytes", "BinaryType"),
}
# Forms that all texts of a column may have.
_FORMS: Mapping[str, str] = {
    "digits": r"^[0-9]+$",
    "UUIDs": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "dates": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "times": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?$",
    "e-mail addresses": r"^[^@\s]+@[^@\s]+[.][^@\s]+$",
    "capital letters": r"^[A-Z]+$",
}


@dataclass(frozen=True, slots=True)
class SuiteDraft:
    """A suite of expectations that the sampled rows of an output meet.

    Args:
        topic: The output's public topic.
        rows: The number of rows of the sample.
        document: The suite in the form of Great Expectations' own files.
    """

    topic: str
    rows: int
    document: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Write the suite to a new file."""
        require_new(path)
        try:
            make_directory(path.parent)
            # Mode "x": the file may have appeared since the check.
            with path.open("x", encoding="utf-8") as file:
                json.dump(self.document, file, indent=2, ensure_ascii=False)
                file.write("\n")
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}"
            raise ConfigError(message, hint="Name another file with --to.") from error


def require_new(path: Path) -> None:
    """Make sure that a draft would not replace a file."""
    if path.exists():
        message = f"{path} exists, and a draft replaces no suite"
        raise ConfigError(message, hint="Name another file with --to, and compare both.")


def draft(directory: Path, topic: str, rows: Iterable[Mapping[str, Any]], *, is_log: bool) -> SuiteDraft:
    """Draft a suite from rows as a gate would judge them; they are written to `directory`, which is created."""
    sampled = list(rows)
    frame = write_frame(directory, sampled)
    table = frame.table()
    partial, nested = _partial(sampled), _nested(sampled)
    made = [_row_count()]
    for name in frame.columns:
        if name not in _NOT_DRAFTED and name not in partial:
            made += _Column(name, table.column(name), is_nested=name in nested).expectations()
    # Not of tables: they have one row per key in any case, but a check may judge their updates.
    if is_log:
        made += _unique_keys(table)
    notes = [f"Drafted from {frame.rows:,} rows of {topic}. Read it, and raise what must block to critical."]
    if partial:
        notes.append(f"Left out, as some rows do not have them: {', '.join(sorted(partial))}.")
    return SuiteDraft(topic, frame.rows, {"name": topic, "notes": notes, "expectations": made})


def _partial(rows: list[Mapping[str, Any]]) -> set[str]:
    """Return the columns that some rows with a value do not have: in a small frame they could be missing as a whole."""
    with_value = [row.keys() for row in rows if not ("value" in row and row["value"] is None)]
    names = {name for row in rows for name in row}
    return {name for name in names if not all(name in row for row in with_value)} - _NOT_DRAFTED


def _nested(rows: list[Mapping[str, Any]]) -> set[str]:
    return {name for row in rows for name, value in row.items() if isinstance(value, dict | list | tuple)}


def _expectation(kind: str, notes: str, **kwargs: Any) -> dict[str, Any]:
    # Never critical: a person reads the draft, and decides which expectations block.
    return {"type": kind, "kwargs": kwargs, "severity": WARNING, "notes": notes}


def _row_count() -> dict[str, Any]:
    # The sample does not show how many rows a check judges.
    notes = "Compares checks of a kind with each other. It passes until there are enough of them."
    return _expectation("expect_table_row_count_to_be_near_last_runs", notes, runs=7, within=0.5)


def _unique_keys(table: Any) -> Iterator[dict[str, Any]]:
    columns = [name for name in (_KEY, _WINDOW) if name in table.column_names]
    keys = table.select(columns)
    if _KEY not in columns or keys.num_rows < _ENOUGH_ROWS or keys.column(_KEY).null_count:
        return
    if pa.types.is_floating(keys.column(_KEY).type) or len(keys.group_by(columns).aggregate([])) < keys.num_rows:
        return
    notes = f"All {keys.num_rows:,} keys of the sample differ."
    if len(columns) == 1:
        yield _expectation("expect_column_values_to_be_unique", notes, column=_KEY)
    else:
        yield _expectation("expect_compound_columns_to_be_unique", notes, column_list=columns)


class _Column:
    """Drafts the expectations of one column.

    Args:
        is_nested: Whether its values are text only because nested values have no columns of their own.
    """

    def __init__(self, name: str, values: Any, *, is_nested: bool) -> None:
        compute = array_compute()
        self._name = name
        self._rows = len(values)
        self._present = values.filter(compute.invert(compute.is_null(values, nan_is_null=True)))
        self._kind = "" if is_nested else _kind_of(values.type)

    def expectations(self) -> Iterator[dict[str, Any]]:
        count = len(self._present)
        if count == self._rows:
            yield self._one("expect_column_values_to_not_be_null", f"None of {self._rows:,} rows lacks it.")
            # Times have no type name that pandas and Spark share, and nested values are text only here.
            if self._kind:
                types = list(_TYPES[self._kind])
                notes = f"All {self._rows:,} rows have this type, by its names in pandas and Spark."
                yield self._one("expect_column_values_to_be_in_type_list", notes, type_list=types)
        if not count:
            return
        if self._kind in {"int", "float", "decimal"}:
            yield from self._range()
        elif self._kind == "text":
            yield from self._text()

    def _range(self) -> Iterator[dict[str, Any]]:
        found = array_compute().min_max(self._present).as_py()
        bounds = _with_margin(found["min"], found["max"])
        if bounds is not None:
            notes = f"{found['min']} to {found['max']} in {len(self._present):,} rows, and a margin."
            yield self._one("expect_column_values_to_be_between", notes, min_value=bounds[0], max_value=bounds[1])

    def _text(self) -> Iterator[dict[str, Any]]:
        count, distinct = len(self._present), self._present.unique()
        if len(distinct) <= _FEW_VALUES and count >= max(_ENOUGH_ROWS, _ROWS_PER_VALUE * len(distinct)):
            notes = f"There are no other values in {count:,} rows."
            yield self._one("expect_column_values_to_be_in_set", notes, value_set=sorted(distinct.to_pylist()))
            return
        yield self._lengths()
        texts = distinct.to_pylist()
        for called, pattern in _FORMS.items() if len(texts) >= _ENOUGH_ROWS else ():
            if all(re.fullmatch(pattern, text) for text in texts):
                notes = f"All {len(texts):,} distinct values are {called}."
                yield self._one("expect_column_values_to_match_regex", notes, regex=pattern)
                return

    def _lengths(self) -> dict[str, Any]:
        compute, count = array_compute(), len(self._present)
        found = compute.min_max(compute.utf8_length(self._present)).as_py()
        low, high = found["min"], found["max"]
        if low == high and count >= _ENOUGH_ROWS:
            notes = f"All {count:,} values have this length."
            return self._one("expect_column_value_lengths_to_equal", notes, value=low)
        margin = max(1, math.ceil((high - low) / _MARGIN))
        notes = f"{low} to {high} characters in {count:,} rows, and a margin."
        bounds = {"min_value": max(0, low - margin), "max_value": high + margin}
        return self._one("expect_column_value_lengths_to_be_between", notes, **bounds)

    def _one(self, kind: str, notes: str, **kwargs: Any) -> dict[str, Any]:
        return _expectation(kind, notes, column=self._name, **kwargs)


def _kind_of(kind: pa.DataType) -> str:
    """Return the kind of a column's values; empty for times, which have no name that pandas and Spark share."""
    checks = {
        "bool": pa.types.is_boolean,
        "int": pa.types.is_integer,
        "float": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "text": pa.types.is_string,
        "bytes": pa.types.is_binary,
    }
    return next((name for name, is_kind in checks.items() if is_kind(kind)), "")


def _with_margin(low: float | Decimal, high: float | Decimal) -> tuple[float, float] | None:
    """Return bounds around a range; None if it is a constant 0, or not finite.

    A range of positive numbers stays positive.

    >>> _with_margin(1, 5), _with_margin(0.0, 50.0), _with_margin(-3, 40), _with_margin(0, 0)
    ((0, 6), (0.0, 55.0), (-8, 45), None)
    """
    if isinstance(low, int) and isinstance(high, int):
        if low == high == 0:
            return None
        step = max(1, -(-((high - low) or abs(high)) // _MARGIN))
        return (max(0, low - step) if low >= 0 else low - step), high + step
    first, last = float(low), float(high)
    margin = ((last - first) or abs(last)) / _MARGIN
    if not (margin and math.isfinite(margin)):
        return None
    lowest, highest = first - margin, last + margin
    return (max(0.0, lowest) if first >= 0 else lowest), highest
