"""Frames so large that a local Spark judges a part of their expectations: verdicts are those of small ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import great_expectations.expectations as gxe
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


NAMES = "a.b", "a", "c`d", "e f", " g", "h;,{}()=", "é", "n", "N"
NUMBERS = 2**63 - 1, -(2**63), 2**53 + 1, 0, None


@pytest.mark.parametrize(("names", "keys"), [(NAMES, ["_key"]), (NAMES[3:-1], [])], ids=["of pandas", "of Spark"])
def test_spark_finds_what_pandas_finds_whatever_columns_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], keys: list[str]
) -> None:
    rows = [{"_key": "k", **dict.fromkeys(names, number)} for number in NUMBERS]
    # Columns differ from each other.
    frame = write_frame(tmp_path / "frame", [*rows, *({"_key": "k", name: 1} for name in names[1:])])
    asked = [
        expectation
        for name in names
        for expectation in (
            gxe.ExpectColumnValuesToNotBeNull(column=name),
            gxe.ExpectColumnValuesToBeBetween(column=name, max_value=float(2**53), strict_max=True),
            gxe.ExpectColumnValuesToBeBetween(column=name, min_value=-math.inf, max_value=2**70),
            gxe.ExpectColumnValuesToBeInSet(column=name, value_set=[1, 2**70]),
            gxe.ExpectColumnValuesToNotBeInSet(column=name, value_set=[-(2**63), 2**63 - 1]),
        )
    ]
    outcomes = []
    for most in (300_000, 1):
        monkeypatch.setattr(gate, "ROWS_IN_MEMORY", most)
        found = judge("rows", frame, asked, spark_session, keys=keys).outcomes
        outcomes.append({name: told(each) for name, each in found.items()})
    assert outcomes[0] == outcomes[1]
    assert not any("cannot be evaluated" in each for each in outcomes[0].values())
