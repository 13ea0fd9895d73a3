"""Pages that are made from the code are what the code makes of it now."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from pipeline.cli import reference as cli_reference
from pipeline.cli.main import app
from pipeline.config import AppConfig, StreamsConfig
from pipeline.config import reference as config_reference
from pipeline.config.streams import OWN, PREFIXES, dotted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize(("name", "made"), [("cli", cli_reference.page), ("config", config_reference.page)])
def test_a_page_that_is_made_from_code_is_up_to_date(name: str, made: Callable[[], str]) -> None:
    page = REFERENCE / f"{name}.md"
    assert page.read_text() == made(), f"python -m pipeline.{name}.reference docs/reference/{name}.md makes it anew."


def parameters() -> Iterator[tuple[str, Any]]:
    """The name of each command, with each of its parameters."""
    waiting = [("millrace", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield from ((name, each) for each in command.params if "completion" not in str(each.name))
        waiting += [(f"{name} {part}", each) for part, each in getattr(command, "commands", {}).items()]


def test_every_command_and_option_is_on_the_page() -> None:
    sections = {
        part.partition("\n")[0]: part
        for part in (REFERENCE / "cli.md").read_text().replace("\n###", "\n##").split("\n## ")
    }
    missing = [
        (command, option)
        for command, parameter in parameters()
        for option in parameter.opts
        if parameter.param_type_name == "option" and command != "millrace" and f"`{option}" not in sections[command]
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
    meanings = config_reference.meanings(declared)
    names = [each.name for each in fields(declared)]  # type: ignore[arg-type]
    assert [name for name in names if not meanings.get(name, "").endswith(".")] == []
    assert sorted(meanings) == sorted(names)


def test_settings_that_kafka_does_not_have_are_settings() -> None:
    assert {dotted(each.name) for each in fields(StreamsConfig)} | set(PREFIXES) >= OWN
