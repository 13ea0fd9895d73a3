"""Rows that differ, as people see them: the key, and the old and the new value by field."""

from __future__ import annotations

from typing import Any

import pytest

from riverrun.releases.rows import row_of

PLACE = {"partition": 0, "time": None}


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"key": "ann", "change": "changed", "old": 5, "new": 3}, "sums ann is changed: 5 -> 3"),
        ({"key": "ann", "change": "new", "new": 3, "old": None}, "sums ann is new: nothing -> 3"),
        ({"key": "ann", "change": "gone", "old": 5, "new": None}, "sums ann is gone: 5 -> nothing"),
        (
            {"key": 1, "window_start": "9:00", "window_end": "9:05", "change": "changed", "old": 5, "new": 3},
            "sums 1 9:00 9:05 is changed: 5 -> 3",
        ),
        (
            {"key": "ann", "change": "changed", "old_n": 1, "new_n": 2, "old_of": "a", "new_of": None},
            "sums ann is changed: n 1, of a -> n 2, of None",
        ),
        ({"key": "ann", "change": "new", "old_n": None, "new_n": 2}, "sums ann is new: nothing -> n 2"),
    ],
)
def test_a_row_that_differs_is_shown_with_its_old_and_its_new_value(row: dict[str, Any], shown: str) -> None:
    assert str(row_of("sums", {**PLACE, **row})) == shown
