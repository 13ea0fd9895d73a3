"""Suites that are drafted from a sample of rows."""

from __future__ import annotations

import json
import string
import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from riverrun.errors import ConfigError
from riverrun.quality.drafts import SuiteDraft, draft
from riverrun.quality.expectations import read_suites
from riverrun.quality.frames import write_frame
from riverrun.quality.gate import judge

ROWS: list[dict[str, Any]] = [
    {
        "_key": f"u{number:03}",
        "_partition": 0,
        "_time": datetime(2026, 1, 1, tzinfo=UTC),
        "_late_ms": number,
        "flights": number % 40,
        "price": Decimal(number) / 4,
        "state": ("open", "closed")[number % 2],
        "mail": f"a{number}@example.org",
        "nested": {"a": [number]},
        "note": None if number % 3 else "n" * (number + 1),
        **({"rare": 1} if number == 7 else {}),
    }
    for number in range(60)
]


def drafted(directory: Path, rows: list[dict[str, Any]] = ROWS, *, is_log: bool = True) -> dict[tuple[str, Any], Any]:
    document = draft(directory / "sample", "trips", rows, is_log=is_log).document
    return {(each["type"], each["kwargs"].get("column")): each for each in document["expectations"]}


def test_a_draft_has_what_the_rows_show_with_its_evidence(tmp_path: Path) -> None:
    found = drafted(tmp_path)
    assert {column for kind, column in found if kind == "expect_column_values_to_not_be_null"} == {
        "_key", "flights", "price", "state", "mail", "nested"
    }  # fmt: skip
    flights = found["expect_column_values_to_be_between", "flights"]
    assert flights["kwargs"] == {"column": "flights", "min_value": 0, "max_value": 43}
    assert flights["notes"] == "0 to 39 in 60 rows, and a margin."
    states = found["expect_column_values_to_be_in_set", "state"]["kwargs"]
    assert states["value_set"] == ["closed", "open"]
    assert found["expect_column_value_lengths_to_equal", "_key"]["kwargs"]["value"] == 4
    assert found["expect_column_values_to_match_regex", "mail"]["notes"].endswith("are e-mail addresses.")
    assert ("expect_column_values_to_be_unique", "_key") in found
    assert ("expect_column_value_lengths_to_be_between", "note") in found
    assert not any(column in {"rare", "_late_ms", "_time"} for _, column in found)
    assert {each["severity"] for each in found.values()} == {"warning"}
    assert all(each["notes"] for each in found.values())
    assert "rare" in draft(tmp_path / "again", "trips", ROWS, is_log=True).document["notes"][1]


def test_keys_of_tables_are_not_expected_to_differ_as_checks_may_judge_updates(tmp_path: Path) -> None:
    assert ("expect_column_values_to_be_unique", "_key") not in drafted(tmp_path, is_log=False)


def test_records_of_a_log_without_a_value_do_not_hide_the_columns_of_others(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"_key": "a", "value": None}, *({"_key": "b", "flights": each} for each in range(30))]
    assert ("expect_column_values_to_be_between", "flights") in drafted(tmp_path, rows)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
VALUES = st.sampled_from([
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 9),
    st.floats(),
    st.floats(width=16),
    st.decimals(-1000, 1000, places=2),
    st.booleans(),
    st.sampled_from(["open", "closed"]),
    TEXTS,
    st.text(string.digits, min_size=1, max_size=3),
    st.binary(max_size=4),
    st.datetimes(timezones=st.just(UTC)),
    st.just(None),
    st.lists(st.integers(0, 9), max_size=2),
    st.one_of(st.integers(), TEXTS),
])  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = ["_key", *draw(st.lists(st.sampled_from(["_window_start", "a", "b", "value"]), unique=True))]
    columns = {name: draw(VALUES) if draw(st.booleans()) else st.none() | draw(VALUES) for name in names}
    fixed = {name for name in names if name == "_key" or draw(st.booleans())}
    optional = {name: each for name, each in columns.items() if name not in fixed}
    row = st.fixed_dictionaries({name: columns[name] for name in fixed}, optional=optional)
    return draw(st.lists(row, min_size=1, max_size=60))


@settings(max_examples=40, deadline=None)
@given(rows=tables(), is_log=st.booleans())
@example(rows=[{"_key": None, "a": None}] * 2 + [{"a": float("nan")}, {"a": -1.9e16}], is_log=False)
def test_rows_meet_what_is_drafted_from_them(rows: list[dict[str, Any]], is_log: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        made = draft(directory / "sample", "trips", rows, is_log=is_log)
        made.save(directory / "suites" / "trips.json")
        expectations = read_suites(directory / "suites").outputs["trips"].table
        verdict = judge("trips", write_frame(directory / "frame", rows), expectations, lambda: None)
    # A gate warns of NaN whatever is expected.
    judged = {name: outcome for name, outcome in verdict.outcomes.items() if not name.endswith("has no NaN")}
    assert all(outcome.startswith("passed") for outcome in judged.values()), verdict.outcomes


def test_a_draft_replaces_no_file(tmp_path: Path) -> None:
    made = SuiteDraft("trips", 1, {"name": "trips", "expectations": []})
    path = tmp_path / "suites" / "trips.json"
    made.save(path)
    assert json.loads(path.read_text())["name"] == "trips"
    with pytest.raises(ConfigError, match=r"trips.json exists, and a draft replaces no suite\nHint: Name another file"):
        made.save(path)
    with pytest.raises(ConfigError, match=r"/proc/none/trips.json cannot be written"):
        made.save(Path("/proc/none/trips.json"))
