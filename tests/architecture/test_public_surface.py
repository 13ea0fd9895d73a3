"""The public surface changes by decision, never by accident."""

from __future__ import annotations

import difflib
import importlib
import inspect
from pathlib import Path
from typing import Any

from tests.architecture.public_surface import MODULES, public_surface

AGREED = Path(__file__).with_name("public_surface.txt")
RULE = """
A name that is new: add it here (python -m tests.architecture.public_surface) and to CHANGELOG.md.
A name or parameter that goes: it works for one more minor version, with a DeprecationWarning that names its successor (see
"The public surface" in ARCHITECTURE.md). Before 1.0 there is no such promise, but the change is listed in CHANGELOG.md.
"""


def test_the_public_surface_is_what_was_agreed_on() -> None:
    before, now = AGREED.read_text().splitlines(), list(public_surface())
    changes = [line for line in difflib.unified_diff(before, now, lineterm="", n=0) if line[0] in "+-"]
    assert not changes, "\n".join([RULE, *changes])


def test_public_functions_are_described() -> None:
    plain: list[str] = []
    for line in AGREED.read_text().splitlines():
        module = max((each for each in MODULES if line.startswith(f"{each}.")), key=len)
        found: Any = importlib.import_module(module)
        for part in line.removeprefix(f"{module}.").partition("(")[0].split("."):
            found = getattr(found, part, None)
        if inspect.isroutine(found) and not inspect.getdoc(found):
            plain.append(line)
    assert plain == []
