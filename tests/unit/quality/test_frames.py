"""Frames of any length, in files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from riverrun.errors import StateError
from riverrun.quality import frames
from riverrun.quality.frames import write_frame
from tests.full_disk import full_disk

if TYPE_CHECKING:
    from pathlib import Path


def values(frame: pd.DataFrame, column: str) -> list[Any]:
    return [None if pd.isna(each) else each for each in frame[column]]


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_columns_have_the_types_of_all_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(frames, "BATCH_ROWS", batch_rows)
    time = datetime(2026, 1, 1, tzinfo=UTC)
    rows: list[dict[str, Any]] = [
        {"whole": 2**53 + 1, "part": 1, "mixed": 1, "nested": {"a": [1]}, "none": None, "time": time},
        {"whole": None, "part": 0.5, "mixed": "x", "nested": None, "flag": True, "large": 2**70},
        {"whole": 7, "late": b"\xff"},
    ]
    frame = write_frame(tmp_path / "frame", rows)
    assert frame.rows == 3
    assert set(frame.columns) == {name for row in rows for name in row}
    found = frame.pandas()
    assert values(found, "whole") == [2**53 + 1, None, 7], "whole numbers stay whole beside missing ones"
    assert values(found, "part") == [1.0, 0.5, None]
    assert values(found, "mixed") == ["1", "x", None]
    assert values(found, "nested") == ['{"a":[1]}', None, None]
    assert values(found, "none") == [None, None, None]
    assert values(found, "time") == [pd.Timestamp(time), None, None]
    assert values(found, "flag") == [None, True, None]
    assert values(found, "large") == [None, str(2**70), None]
    assert values(found, "late") == [None, None, b"\xff"]


ANY_VALUE = {
    "text": "x",
    "half of a character": "\ud800",
    "bytes": b"\xff",
    "flag": True,
    "number": 1,
    "number that floats round": 2**53 + 1,
    "least number": -(2**63),
    "number of 20 digits": 10**19,
    "float": 1.0,
    "part": 0.5,
    "NaN": float("nan"),
    "decimal": Decimal("1.50"),
    "long decimal": Decimal("1E-30"),
    "decimal below zero by its sign": Decimal("-0.0"),
    "decimal that is no number": Decimal("NaN"),
    "infinite decimal": Decimal("-Infinity"),
    "time": datetime(2026, 1, 1, tzinfo=UTC),
    "time of a zone": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    "time before all of UTC": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    "time of no zone": datetime(2026, 1, 1),  # noqa: DTZ001 - it is about these
    "fields": {"\ud800": "\udfff"},
}


def test_columns_are_the_same_however_values_are_ordered_and_batched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {f"{one}, {other}": (ANY_VALUE[one], ANY_VALUE[other]) for one in ANY_VALUE for other in ANY_VALUE}
    rows = [{name: pair[place] for name, pair in pairs.items()} for place in (0, 1)]
    found = []
    for number, given in enumerate((rows, rows[::-1]) * 2):
        monkeypatch.setattr(frames, "BATCH_ROWS", 1 if number < 2 else 100)
        table = write_frame(tmp_path / str(number), given).table()
        columns = {name: table.column(name) for name in pairs}
        kinds = {name: str(column.type).partition("(")[0] for name, column in columns.items()}
        values = {name: sorted(map(repr, map(_plain, column.to_pylist()))) for name, column in columns.items()}
        found.append({name: (kinds[name], values[name]) for name in pairs})
    assert found[1:] == found[:1] * 3


def _plain(value: Any) -> Any:
    # Decimals of one value may differ in their digits.
    return float(value) if isinstance(value, Decimal) else value


MIXTURES: dict[str, tuple[list[Any], list[Any]]] = {
    "number and float": ([2**53 + 1, 0.5], ["9007199254740993", "0.5"]),
    "decimal and number": ([Decimal("1.50"), 2**53 + 1], [Decimal("1.50"), Decimal("9007199254740993.00")]),
    "decimal and text": ([Decimal("1.50"), Decimal("1E+30"), 7.0, "x"], ["1.5", f"1{'0' * 30}", "7", "x"]),
    "decimals of any size": (
        [Decimal("1.50"), Decimal("-Infinity"), Decimal("1E+999999999"), Decimal("1E-999999999")],
        ["1.5", "-Infinity", "1E+999999999", "1E-999999999"],
    ),
    "decimal zeros": ([Decimal("-0.00"), Decimal("0E+999999999"), "x"], ["0", "0", "x"]),
    "time and number": ([ANY_VALUE["time"], 1, Decimal("2.5")], ["2026-01-01T00:00:00Z", "1", "2.5"]),
    "time and NaN": ([ANY_VALUE["time"], float("nan")], ["2026-01-01T00:00:00Z", "NaN"]),
    "times of zones": ([ANY_VALUE["time of a zone"], None], [datetime(2025, 12, 31, 22, tzinfo=UTC), None]),
    "times with and without": (
        [ANY_VALUE["time of a zone"], ANY_VALUE["time of no zone"]],
        ["2025-12-31T22:00:00Z", "2026-01-01T00:00:00"],
    ),
    "flag and float": ([True, 0.5], ["true", "0.5"]),
    "text and bytes": (["x", b"y"], ["x", "eQ=="]),
    "halves of characters": (["\ud800", {"\ud800": ["é"]}], ["\\ud800", r'{"\ud800":["\u00e9"]}']),
}


@pytest.mark.parametrize("batch_rows", [1, 100])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_a_mixture_is_text_and_no_value_is_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int, mixture: str
) -> None:
    monkeypatch.setattr(frames, "BATCH_ROWS", batch_rows)
    given, expected = MIXTURES[mixture]
    frame = write_frame(tmp_path / "frame", [{"a": each} for each in given])
    assert frame.table().column("a").to_pylist() == expected


@pytest.mark.parametrize("batch_rows", [1, 100])
def test_a_field_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int) -> None:
    monkeypatch.setattr(frames, "BATCH_ROWS", batch_rows)
    frame = write_frame(tmp_path / "frame", [{"\ud800": 1}, {"\ud800": 2}, {"b": 3}])
    assert frame.columns == ("\\ud800", "b")
    assert frame.table().column("\\ud800").to_pylist() == [1, 2, None]


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    rows = ({"value": number, "text": f"{number:0100}"} for number in range(100_000))
    with full_disk(), pytest.raises(StateError, match=r"cannot be written to .*frame") as raised:
        write_frame(tmp_path / "frame", rows)
    assert "Is the disk full" in str(raised.value)


def test_a_frame_may_be_empty(tmp_path: Path) -> None:
    frame = write_frame(tmp_path / "frame", [])
    assert (frame.rows, frame.columns, len(frame.pandas())) == (0, (), 0)
