"""The reference page of functions lists what there is."""

from __future__ import annotations

from pathlib import Path

from tests.pages.functions import reference

PAGE = Path(__file__).parents[4] / "docs/sql-functions.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "python -m tests.pages.functions > docs/sql-functions.md"


def test_every_function_is_described() -> None:
    entries = reference().split("\n### ")[1:]
    assert len(entries) > 140
    assert not [entry for entry in entries if not entry.split("```")[2].split("\n##")[0].strip()]
