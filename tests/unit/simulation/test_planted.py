"""Faults that are planted into a copy of the package are there, and histories find them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.histories.planted import (
    PACKAGE,
    ROOT,
    LostPlantError,
    copied,
    found_by_histories,
    outcomes_on,
    page,
    planted,
    planted_text,
)
from tests.histories.plants import PLANTS, Edit

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs/internals/planted-faults.md"


def test_each_plant_replaces_text_of_the_present_code() -> None:
    for plant in PLANTS:
        texts: dict[str, str] = {}
        for edit in plant.edits:
            text = texts.get(edit.module) or (PACKAGE / edit.module).read_text()
            texts[edit.module] = planted_text(edit, text)
        for module, text in texts.items():
            compile(text, module, "exec")


@pytest.mark.parametrize("text", ["a = 1\n", "a = 2\na = 2\n"])
def test_a_plant_whose_text_is_not_there_once_is_an_error(text: str) -> None:
    with pytest.raises(LostPlantError, match="not once"):
        planted_text(Edit("module.py", "a = 2\n", "a = 3\n"), text)


def test_a_module_is_as_before_once_its_plant_is_pulled_out(tmp_path: Path) -> None:
    plant = PLANTS[0]
    module = tmp_path / plant.edits[0].module
    module.parent.mkdir(parents=True)
    text = (PACKAGE / plant.edits[0].module).read_text()
    module.write_text(text)
    with planted(plant, tmp_path):
        assert module.read_text() != text
    assert module.read_text() == text


def test_the_page_has_every_plant_with_what_has_found_it() -> None:
    text = PAGE.read_text()
    found = outcomes_on(text)
    assert text == page(found)
    assert [plant.name for plant in PLANTS if not all((found[plant.name].histories, found[plant.name].tests))] == []


def test_what_nobody_finds_has_a_reason() -> None:
    found = outcomes_on(PAGE.read_text())
    missed = [plant for plant in PLANTS if found[plant.name].histories == "-"]
    assert [plant.name for plant in missed if not plant.remark] == []


@pytest.mark.slow
def test_histories_find_a_plant() -> None:
    plant = next(each for each in PLANTS if each.name == "restore-ends-early")
    with copied() as copy, planted(plant, copy):
        assert found_by_histories(plant, copy, 5).startswith("after")
