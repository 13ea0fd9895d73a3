"""Expectations of each class that Great Expectations ships, and rows with whatever engines treat differently."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from great_expectations.expectations import core
from great_expectations.expectations.row_conditions import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
_COLUMNS = "_key", "n", "x", "s", "p", "b", "t", "none"
_VALUES: list[tuple[Any, ...]] = [
    ("a", 1, 1.5, "one", Decimal("1.50"), True, AT, None),
    ("b", 2, math.nan, "two", Decimal("2.50"), False, AT, None),
    ("c", None, None, None, None, None, None, None),
    ("d", 2, math.inf, "ÉTÉ ٣", Decimal("-3.25"), True, AT, None),
    ("e", -7, -0.0, "", Decimal("0.00"), None, AT, None),
    ("f", 2**60, 3.0, "3", Decimal("9.99"), True, AT, None),
]
ROWS: list[dict[str, Any]] = [dict(zip(_COLUMNS, each, strict=True)) for each in _VALUES]
ALL = sorted(name for name in dir(core) if name.startswith("Expect"))
_ARGUMENTS: dict[str, list[Any]] = {
    "column_A": ["n"],
    "column_B": ["x"],
    "column_list": [["n", "x"]],
    "column_set": [["n", "x"], list(_COLUMNS)],
    "value_set": [[1, 2, -7, 2**60], ["one", "two"], ["1", "3"], [1.5, True], [Decimal("1.5")], []],
    "value_pairs_set": [[(1, 1.5), (2, 2.5)]],
    "type_": ["int64", "LongType"],
    "type_list": [["Int64", "int"], ["LongType"]],
    "value": [1, len(ROWS)],
    "regex": [r"\d", "(?<!t)o"],
    "regex_list": [[r"\d", "^o"]],
    "like_pattern": ["o%"],
    "like_pattern_list": [["o%", "%"]],
    "min_value": [0, -10.5, "a"],
    "max_value": [3, 1e30],
    "threshold": [1.0],
    "double_sided": [True],
    "json_schema": [{"type": "integer"}],
    "strftime_format": ["%Y-%m-%d"],
    "quantile_ranges": [{"quantiles": [0.1, 0.5], "value_ranges": [[None, 1], [1, 2]]}],
    "sum_total": [2.5],
    "method": ["iqr"],
    "multiplier": [1.5],
    "mostly": [0.3],
    "partition_object": [{"values": [1, 2], "weights": [0.5, 0.5]}],
    "other_table_name": ["rows"],
    "base_query": ["SELECT 1"],
    "comparison_data_source_name": ["rows"],
    "comparison_query": ["SELECT 1"],
}


def of(kind: str, *columns: str) -> Iterator[Any]:
    """Make expectations of a class, with each value of each argument. What the class itself refuses is left out.

    Args:
        kind: The name of the class.
        columns: The columns that they are about, if they are about one.
    """
    found = getattr(core, kind)
    known = [name for name in found.__fields__ if name in _ARGUMENTS]
    base = {
        name: _ARGUMENTS[name][0]
        for name in known
        if found.__fields__[name].required or name in {"min_value", "max_value", "column_set", "method"}
    }
    variants = [base, *({**base, name: value} for name in known for value in _ARGUMENTS[name])]
    if "row_condition" in found.__fields__:
        variants.append({**base, "row_condition": Column("n") > 1})
    for column in columns if "column" in found.__fields__ else ("",):
        for given in variants:
            try:
                yield found(**given, **({"column": column} if column else {}), severity="critical")
            except (ValueError, TypeError):
                continue


def told(outcome: str) -> str:
    """Return the part of an outcome that names no row."""
    return outcome.partition(", such as")[0]
