"""Help of commands shows each of its texts as it was written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from riverrun.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

BRACKETS = re.compile(r"\[[A-Za-z/][^\]]*\]")


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return all commands with their paths, and texts as they were written."""
    if path:
        yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *path, name)


def bracketed(command: Any) -> set[str]:
    return {found for each in (command, *command.params) for found in BRACKETS.findall(each.help or "")}


WITH_BRACKETS = {
    path: found for path, command in commands(typer.main.get_command(app)) if (found := bracketed(command))
}


def shown(*path: str) -> str:
    return CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "1000"}).output


@pytest.mark.parametrize("path", sorted(WITH_BRACKETS), ids=" ".join)
def test_help_shows_all_brackets(path: tuple[str, ...]) -> None:
    assert WITH_BRACKETS[path] <= {*BRACKETS.findall(shown(*path))}


@pytest.mark.parametrize("path", [(), ("release",), ("state",), ("export",)], ids=" ".join)
def test_help_shows_no_escapes(path: tuple[str, ...]) -> None:
    assert "\\" not in shown(*path)


def test_help_shows_no_escapes_without_rich() -> None:
    environ = {**os.environ, "TYPER_USE_RICH": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "riverrun.cli", "export", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, env=environ, check=True).stdout
    assert "[exports.NAME]" in shown
    assert "\\" not in shown
