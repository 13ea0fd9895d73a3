"""Aggregates: folded over rows, merged, and with rows taken out again."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest

from riverrun.sql.functions import WrongArguments, find_aggregate, find_table_function
from riverrun.sql.types import Array, Primitive
from tests.unit.sql.functions.calls import TYPES, folded, types

Case = tuple[str, str, list[Any], tuple[Any, ...], Any]

CASES: list[Case] = [
    ("COUNT", "", [(), ()], (), 2),
    ("COUNT", "STRING", ["a", None], (), 1),
    ("COUNT", "NULL", [None, None], (), 0),
    ("TOPK", "INT NULL INT", [(1, None), (3, None)], (1,), [{"sort_col": 3, "col0": None}]),
    ("SUM", "INT", [1, None, 2], (), 3),
    ("SUM", "DOUBLE", [], (), 0.0),
    ("SUM", "DECIMAL", [Decimal("1.25"), Decimal("2.00")], (), Decimal("3.25")),
    ("SUM_LIST", "INTS", [[1, None], [2], None], (), 3),
    ("AVG", "INT", [1, 2, None], (), 1.5),
    ("AVG", "DECIMAL", [Decimal("1.00"), Decimal("2.00")], (), 1.5),
    ("AVG", "INT", [], (), 0.0),
    ("MIN", "STRING", ["b", None, "a"], (), "a"),
    ("MAX", "DATE", [1, 3, 2], (), 3),
    ("MAX", "INT", [None], (), None),
    ("COLLECT_LIST", "INT", [1, None, 1], (), [1, None, 1]),
    ("COLLECT_SET", "INT", [1, None, 1, 2, None], (), [1, None, 2]),
    ("HISTOGRAM", "STRING", ["a", "b", "a", None], (), {"a": 2, "b": 1}),
    ("TOPK", "INT INT", [1, 5, None, 3, 5], (3,), [5, 5, 3]),
    ("TOPK", "INT STRING INT", [(1, "a"), (3, "b")], (1,), [{"sort_col": 3, "col0": "b"}]),
    ("TOPKDISTINCT", "STRING INT", ["a", "c", "c", "b"], (2,), ["c", "b"]),
    ("LATEST_BY_OFFSET", "INT", [1, 2, None], (), 2),
    ("LATEST_BY_OFFSET", "INT BOOLEAN", [1, 2, None], (False,), None),
    ("LATEST_BY_OFFSET", "INT INT", [1, 2, None, 3], (2,), [2, 3]),
    ("LATEST_BY_OFFSET", "INT INT BOOLEAN", [1, 2, None], (2, False), [2, None]),
    ("EARLIEST_BY_OFFSET", "INT", [None, 1, 2], (), 1),
    ("EARLIEST_BY_OFFSET", "INT BOOLEAN", [None, 1], (False,), None),
    ("EARLIEST_BY_OFFSET", "INT INT", [None, 1, 2, 3], (2,), [1, 2]),
    ("STDDEV_SAMP", "INT", [0, 10], (), 50.0),
    ("STDDEV_SAMPLE", "INT", [10, 7, 3, 6, None], (), math.sqrt(25 / 3)),
    ("STDDEV_SAMPLE", "DOUBLE", [1.0], (), 0.0),
    ("CORRELATION", "INT INT", [(1, 8), (3, 11), (None, 2)], (), 1.0),
    ("CORRELATION", "DOUBLE DOUBLE", [(1.0, 1.0), (2.0, 1.0)], (), math.nan),
    ("COUNT_DISTINCT", "STRING", ["a", "b", "a", None], (), 2),
    ("ATTR", "STRING", ["a", "a"], (), "a"),
    ("ATTR", "STRING", ["a", None], (), None),
]


@pytest.mark.parametrize(("name", "argument_types", "rows", "literals", "expected"), CASES)
def test_an_aggregate_of_rows_is(
    name: str, argument_types: str, rows: list[Any], literals: tuple[Any, ...], expected: Any
) -> None:
    found = folded(name, argument_types, rows, *literals)
    assert found == (pytest.approx(expected, nan_ok=True) if isinstance(expected, float) else expected)
    assert type(found) is type(expected)


@pytest.mark.parametrize(("name", "argument_types", "rows", "literals", "expected"), CASES)
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_states_merge_to_the_state_of_all_rows(
    name: str, argument_types: str, rows: list[Any], literals: tuple[Any, ...], expected: Any, cut: int
) -> None:
    given = types(argument_types)
    aggregate = find_aggregate(name, given, [None] * (len(given) - len(literals)) + list(literals))
    states = []
    for part in (rows[:cut], rows[cut:]):
        state = aggregate.initial()
        for row in part:
            state = aggregate.add(state, *(row if isinstance(row, tuple) else (row,)))
        states.append(state)
    found = aggregate.result(aggregate.merge(*states))
    assert found == (pytest.approx(expected, nan_ok=True) if isinstance(expected, float) else expected)


@pytest.mark.parametrize(
    ("name", "argument_types", "rows", "undone"),
    [
        ("COUNT", "", [(), ()], ()),
        ("COUNT", "STRING", ["a", "b"], "c"),
        ("SUM", "DECIMAL", [Decimal("1.25")], Decimal("7.50")),
        ("AVG", "INT", [1, 2], 9),
        ("COLLECT_LIST", "INT", [1, 2], 1),
        ("HISTOGRAM", "STRING", ["a", "b"], "b"),
        ("ATTR", "STRING", ["a"], None),
        ("STDDEV_SAMP", "INT", [1, 2], 4),
        ("STDDEV_SAMPLE", "INT", [], 4),
        ("CORRELATION", "INT INT", [(1, 1), (2, 2)], (3, 0)),
        ("SUM_LIST", "INTS", [[1]], [2, None]),
    ],
)
def test_a_row_taken_out_leaves_the_others(name: str, argument_types: str, rows: list[Any], undone: Any) -> None:
    aggregate = find_aggregate(name, types(argument_types), ())
    state = aggregate.initial()
    values = undone if isinstance(undone, tuple) else (undone,)
    for row in [*rows, values]:
        state = aggregate.add(state, *(row if isinstance(row, tuple) else (row,)))
    assert aggregate.undo is not None
    assert aggregate.result(aggregate.undo(state, *values)) == pytest.approx(folded(name, argument_types, rows))


@pytest.mark.parametrize(
    "name", ["MIN", "MAX", "COLLECT_SET", "LATEST_BY_OFFSET", "EARLIEST_BY_OFFSET", "COUNT_DISTINCT"]
)
def test_some_aggregates_take_no_row_out(name: str) -> None:
    assert find_aggregate(name, [Primitive.INTEGER]).undo is None


def test_states_are_values_that_a_serde_can_write() -> None:
    for name, argument_types, rows, literals, _ in CASES:
        given = types(argument_types)
        aggregate = find_aggregate(name, given, [None] * (len(given) - len(literals)) + list(literals))
        state = aggregate.initial()
        for row in rows:
            before = repr(state)
            kept, state = state, aggregate.add(state, *(row if isinstance(row, tuple) else (row,)))
            assert repr(kept) == before, "a state stays as it was"
        assert json.loads(json.dumps(state, default=str)) is not ...


@pytest.mark.parametrize("name", ["collect_list", "collect_set"])
def test_settings_bound_what_is_gathered(name: str) -> None:
    bounded = find_aggregate(name, [Primitive.INTEGER], (), {f"ksql.functions.{name}.limit": 2})
    state = bounded.initial()
    for value in range(5):
        state = bounded.add(state, value)
    assert (bounded.result(state), bounded.merge([0], [1, 2])) == ([0, 1], [0, 1])


def test_a_histogram_counts_a_thousand_texts() -> None:
    found = folded("HISTOGRAM", "STRING", [str(number) for number in [*range(1100), 0]])
    assert (len(found), found["0"]) == (1000, 2)


@pytest.mark.parametrize("count", [512, 513, 20_000])
def test_distinct_values_are_counted_exactly_then_nearly(count: int) -> None:
    found = folded("COUNT_DISTINCT", "INT", list(range(count)))
    assert found == (count if count <= 512 else pytest.approx(count, rel=0.06))


@pytest.mark.parametrize(
    ("type_", "values"),
    [("INT", [2**31 - 1, 1]), ("BIGINT", [-(2**63), -1]), ("DECIMAL", [Decimal("9999.99"), Decimal("0.01")])],
)
def test_a_sum_its_type_cannot_hold_is_an_error(type_: str, values: list[Any]) -> None:
    with pytest.raises(OverflowError, match="too large"):
        folded("SUM", type_, values)


def test_a_count_of_values_must_be_a_constant_above_zero() -> None:
    for name in ("TOPK", "TOPKDISTINCT", "LATEST_BY_OFFSET"):
        with pytest.raises(WrongArguments, match="whole number above 0"):
            find_aggregate(name, [Primitive.INTEGER, Primitive.INTEGER], (None, 0))


def test_top_values_with_other_columns_are_structs() -> None:
    aggregate = find_aggregate("TOPK", types("INT STRING INT"), (None, None, 3))
    assert str(aggregate.returns) == "ARRAY<STRUCT<sort_col INTEGER, col0 STRING>>"


@pytest.mark.parametrize(
    ("name", "items", "rows"),
    [
        ("EXPLODE", [1, None], [1, None]),
        ("EXPLODE", None, []),
        ("CUBE_EXPLODE", [1, 2], [[None, None], [None, 2], [1, None], [1, 2]]),
        ("CUBE_EXPLODE", [1, None], [[None, None], [1, None]]),
    ],
)
def test_table_functions_make_rows(name: str, items: list[Any] | None, rows: list[Any]) -> None:
    function = find_table_function(name, [TYPES["INTS"]])
    assert function.apply(items) == rows
    assert function.returns == (Primitive.INTEGER if name == "EXPLODE" else Array(Primitive.INTEGER))
