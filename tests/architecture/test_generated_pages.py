"""Pages that are made from the code are what the code makes of it now."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from riverrun import errors
from riverrun.cli.main import app
from riverrun.config import AppConfig, StreamsConfig
from tests.pages import commands, metrics, requests, settings
from tests.pages import errors as error_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("cli", commands),
        ("config", settings),
        ("errors", error_page),
        ("metrics", metrics),
        ("http", requests),
    ],
)
def test_a_page_that_is_made_from_code_is_up_to_date(name: str, module: ModuleType) -> None:
    made: str = module.page()
    page = REFERENCE / f"{name}.md"
    assert page.read_text() == made, f"python -m {module.__name__} docs/reference/{name}.md makes it again."
    assert f"`python -m {module.__name__}`" in made


def test_every_error_has_a_section_of_its_own() -> None:
    headings = re.findall(r"^## (\w+)$", (REFERENCE / "errors.md").read_text(), re.MULTILINE)
    classes = [name for name, found in vars(errors).items() if isinstance(found, type)]
    assert sorted(headings) == sorted(classes)


def test_every_request_and_parameter_has_a_meaning_that_is_a_sentence() -> None:
    sections = (REFERENCE / "http.md").read_text().split("\n## ")[1:]
    assert len(sections) > 12
    assert [section for section in sections if not section.split("\n")[2].endswith(".")] == []
    rows = [line for section in sections for line in section.splitlines() if line.startswith("| `")]
    assert [row for row in rows if not row.endswith(". |")] == []


def test_every_metric_has_a_meaning_that_is_a_sentence_and_labels() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \| (.+) \|$", (REFERENCE / "metrics.md").read_text(), re.MULTILINE)
    assert len(rows) > 15
    assert [name for name, _, labels, text in rows if "`" not in labels or not text.endswith(".")] == []


def parameters() -> Iterator[tuple[str, Any]]:
    """The name of each command, with each of its parameters."""
    waiting = [("riverrun", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield from ((name, each) for each in command.params if "completion" not in str(each.name))
        waiting += [(f"{name} {part}", each) for part, each in getattr(command, "commands", {}).items()]


def test_every_command_and_option_is_on_the_page() -> None:
    sections = {part.partition("\n")[0]: part for part in re.split(r"\n#{2,4} ", (REFERENCE / "cli.md").read_text())}
    missing = [
        (command, option)
        for command, parameter in parameters()
        for option in parameter.opts
        if parameter.param_type_name == "option" and not parameter.hidden
        if command != "riverrun" and f"`{option}" not in sections[command]
    ]
    assert missing == []


def test_every_parameter_of_a_command_has_a_help_text_that_is_a_sentence() -> None:
    poor = [
        (command, parameter.name, parameter.help)
        for command, parameter in parameters()
        if not parameter.help or not parameter.help.endswith(".")
    ]
    assert poor == []


@pytest.mark.parametrize("declared", [AppConfig, StreamsConfig])
def test_every_key_is_declared_with_a_meaning_that_is_a_sentence(declared: type) -> None:
    meanings = settings.meanings(declared)
    names = [each.name for each in fields(declared)]
    assert [name for name in names if not meanings.get(name, "").endswith(".")] == []
    assert sorted(meanings) == sorted(names)
