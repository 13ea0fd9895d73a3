"""Words: checks that patterns can make of the style in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for room in ("pipeline", "plugins/riverrun_airflow", "tests") for path in (ROOT / room).rglob("*.py")
)
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "CONTRIBUTING.md"})
Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
QUESTIONS = re.compile(r"(What|Where|Who|Whoever|Whom|Whose|Which|The same)\b")

LONGEST = 25
"""Words of a sentence, or of a part of it that ends with a colon or a semicolon; code does not count."""

PEOPLE = [
    "and",
    "anybody",
    "anyone",
    "asked",
    "authors",
    "engineers",
    "everybody",
    "knows",
    "nobody",
    "person",
    "people",
    "principal",
    "ran",
    "says",
    "shows",
    "somebody",
    "someone",
    "started",
    "those",
    "user",
    "users",
]
"""Words that may stand before "who"."""


@cache
def docstrings() -> tuple[tuple[str, str, str], ...]:
    """Return the place of each docstring, the name of the object, and the text."""
    return tuple(_docstrings())


def _docstrings() -> Iterator[tuple[str, str, str]]:
    for path in SOURCES:
        for node in _documented(ast.parse(path.read_text())):
            if (text := ast.get_docstring(node)) is not None:
                yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}", getattr(node, "name", ""), text


def _documented(node: Documented) -> Iterator[Documented]:
    """Yield modules, classes and functions; expressions, which are most of a tree, are not searched."""
    yield node
    for child in node.body:
        if isinstance(child, DOCUMENTED):
            yield from _documented(child)


@cache
def prose() -> tuple[tuple[str, str], ...]:
    """Return docstrings and pages with their places, without code."""
    texts = [(where, text) for where, _, text in docstrings()]
    texts += [(str(path.relative_to(ROOT)), path.read_text()) for path in PAGES]
    return tuple((where, _without_code(text)) for where, text in texts)


def _without_code(text: str) -> str:
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *>>>.*?(?=\n\s*\n|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def _sentences(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n|\n\s*(?=[*x-] |\d+\. |\w+: |\|)|\|", text):
        yield from re.split(r"[.!?:;](?:\s|$)", " ".join(block.split()))


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.IGNORECASE)
    return lambda text: compiled.search(text) is not None


def _names_a_component_who(text: str) -> bool:
    before = re.findall(r"(\w+)?[, ]*\bwho\b", text, re.IGNORECASE)
    return any(word.lower() not in PEOPLE for word in before)


def _runs_on(text: str) -> bool:
    return any(len(re.findall(r"[^\W\d_][\w'-]*", sentence)) > LONGEST for sentence in _sentences(text))


TICS: dict[str, Callable[[str], bool]] = {
    "'who' is for people": _names_a_component_who,
    "'whoever' and 'his' are for people": _matches(r"\b(whoever|whomever|his|him)\b"),
    "'the same' needs a noun": _matches(r"\bthe same\s*(?=[.,;:)|]|$)"),
    "functions return, they do not give": _matches(r"\bgives\b(?! up)"),
    "say 'again' or 'from scratch', not 'anew'": _matches(r"\banew\b"),
    "say 'next to' or 'in addition to', not 'beside'": _matches(r"\bbeside\b"),
    f"sentences have at most {LONGEST} words": _runs_on,
}


@pytest.mark.parametrize("tic", TICS)
def test_prose_has_no_tics(tic: str) -> None:
    found = [where for where, text in prose() if TICS[tic](text)]
    assert not found, tic


def test_docstrings_begin_with_a_subject_or_a_verb() -> None:
    found = [where for where, _, text in docstrings() if QUESTIONS.match(text)]
    assert not found, "Say what it does: a verb, or a noun that names it."


def test_docstrings_with_nothing_to_say_say_what_is_done() -> None:
    found = [where for where, _, text in docstrings() if text.startswith("Nothing ")]
    assert not found, "Leave that of a constructor out; a method may do nothing, and say why."


def test_names_of_tests_can_be_taken_in_at_a_glance() -> None:
    named = re.compile(r"^ *def (test_\w{75,})\(", re.MULTILINE)
    found = [name for path in sorted((ROOT / "tests").rglob("test_*.py")) for name in named.findall(path.read_text())]
    assert not found, "Fewer than 80 characters."


def test_modules_that_pages_name_exist() -> None:
    named = re.compile(
        r"\b(?:riverrun|riverrun_airflow)(?:\.(?!py\b|json\b|addons\b)\w+)+"
    )  # the group of entry points
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in PAGES
        for name in sorted(set(named.findall(path.read_text())))
        if not _exists(name)
    ]
    assert not found


def _exists(name: str) -> bool:
    """Return whether a dotted name is a module, or a name that its module's text contains."""
    place = ROOT / ("plugins" if name.startswith("riverrun_airflow") else "pipeline")
    parts = name.split(".")
    for number in range(len(parts), 0, -1):
        module = place.joinpath(*parts[:number])
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        if file.is_file():
            return all(re.search(rf"\b{part}\b", file.read_text()) for part in parts[number:])
    return False
