"""Type checkers' knowledge of a topology: types that must be found, and mistakes that must not pass (tests/typing)."""

from __future__ import annotations

import re
import runpy
from collections import defaultdict
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "typing"
_ERROR = re.compile(r"^[^:]+:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)
_EXPECTED = re.compile(r"# E: ([a-z -]+)$")


def errors(name: str) -> dict[int, set[str]]:
    """Codes of mypy's errors by line."""
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", "--hide-error-context"]
    report, failures, _ = api.run([*options, str(CASES / name)])
    assert failures == ""
    found = defaultdict(set)
    for line, code in _ERROR.findall(report):
        found[int(line)].add(code)
    assert len(found) > 0 or "error" not in report, report
    return found


@pytest.mark.parametrize("name", ["streams.py", "tables.py"])
def test_chains_of_operators_have_the_types_of_their_functions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert errors(name) == {}
    runpy.run_path(str(CASES / name))


def test_every_mistake_is_found_on_its_line_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines = (CASES / "mistakes.py").read_text().splitlines()
    expected = {n: set(found[1].split()) for n, line in enumerate(lines, 1) if (found := _EXPECTED.search(line))}
    assert errors("mistakes.py") == expected
