"""Frames of any length, in files."""

from __future__ import annotations

from datetime import UTC, datetime
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


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    rows = ({"value": number, "text": f"{number:0100}"} for number in range(100_000))
    with full_disk(), pytest.raises(StateError, match=r"cannot be written to .*frame") as raised:
        write_frame(tmp_path / "frame", rows)
    assert "Is the disk full" in str(raised.value)


def test_a_frame_may_be_empty(tmp_path: Path) -> None:
    frame = write_frame(tmp_path / "frame", [])
    assert (frame.rows, frame.columns, len(frame.pandas())) == (0, (), 0)
