"""Seven arguments or more are named: two that are swapped would not be seen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

MOST = 6
ROOT = Path(__file__).parents[2]
HOT = {
    "pipeline/riverrun/kafka/sending.py",  # the client library takes the parts of a record by position
    "pipeline/riverrun/state/stores/buffer.py",  # per record
    "pipeline/riverrun/state/stores/window.py",  # per record
}
"""Modules whose calls are made per record: named arguments cost time."""
OF_ONE_KIND = {"Progress", "critical", "debug", "error", "exception", "info", "log", "select", "warning"}
"""Functions of any number of arguments: columns, what a message is about."""


@pytest.mark.parametrize("folder", ["pipeline", "plugins", "dags"])
def test_calls_name_their_arguments_if_there_are_many(folder: str) -> None:
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name not in HOT and (lines := unnamed(ast.parse(path.read_text()))):
            found[name] = lines
    assert not found, f"calls with more than {MOST} positional arguments, by line"


def test_modules_that_are_excepted_have_such_calls() -> None:
    assert {name for name in HOT if unnamed(ast.parse((ROOT / name).read_text()))} == HOT


def unnamed(tree: ast.AST) -> list[int]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > MOST]
    return [call.lineno for call in calls if ast.unparse(call.func).split(".")[-1] not in OF_ONE_KIND]
