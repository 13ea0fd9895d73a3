"""Frames so large that a local Spark judges a part of their expectations: verdicts are those of small ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.quality import gate
from riverrun.quality.frames import write_frame
from riverrun.quality.gate import judge
from riverrun.spark.session import spark_session
from tests.unit.quality.shipped import ALL, ROWS, of, told

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


def test_spark_finds_what_pandas_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = write_frame(tmp_path / "frame", ROWS)
    kinds = frame.kinds()
    possible = [each for kind in ALL for each in of(kind, *ROWS[0])]
    asked = [each for each in possible if gate._is_alike_on_spark(each, kinds)]
    assert len({type(each) for each in asked}) > 8
    verdicts = []
    for most in (300_000, 1):
        monkeypatch.setattr(gate, "ROWS_IN_MEMORY", most)
        verdicts.append(judge("rows", frame, asked, spark_session, keys=["_key"]))
    small, large = verdicts
    assert {name: told(each) for name, each in large.outcomes.items()} == {
        name: told(each) for name, each in small.outcomes.items()
    }
    assert sorted(large.critical) == sorted(small.critical)
