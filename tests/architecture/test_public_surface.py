"""The public surface changes by decision, never by accident."""

from __future__ import annotations

import difflib
from pathlib import Path

from tests.architecture.public_surface import public_surface

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
