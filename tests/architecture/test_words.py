"""Words: what patterns can find of the style in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("pipeline", "plugins/millrace_airflow") for path in (ROOT / room).rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
QUESTIONS = re.compile(r"(What|Where|Who|Whoever|Whom|Whose|Which|The same)\b")


def docstrings() -> Iterator[tuple[str, str, str]]:
    """Where each is, the name of what it documents, and its text."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text is not None:
                where = f"{path.relative_to(ROOT)}:{node.body[0].lineno}"  # type: ignore[attr-defined]
                yield where, getattr(node, "name", ""), text


def test_docstrings_begin_with_a_subject_or_a_verb() -> None:
    found = [where for where, _, text in docstrings() if QUESTIONS.match(text)]
    assert not found, "Say what it does: a verb, or a noun that names it."


def test_constructors_with_nothing_to_say_say_nothing() -> None:
    found = [where for where, name, text in docstrings() if name == "__init__" and text.startswith("Nothing ")]
    assert not found, "Leave these docstrings out."


def test_names_of_tests_can_be_taken_in_at_a_glance() -> None:
    named = re.compile(r"^ *def (test_\w{75,})\(", re.MULTILINE)
    found = [name for path in sorted((ROOT / "tests").rglob("test_*.py")) for name in named.findall(path.read_text())]
    assert not found, "Fewer than 80 characters."
