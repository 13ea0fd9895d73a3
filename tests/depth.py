"""How far generated tests go: a little in `make test`, further in `make deep`."""

from __future__ import annotations

import os

DEEP = bool(os.environ.get("RIVERRUN_DEEP"))


def depth(usual: int, deep: int) -> int:
    """Return a number of examples, crashes or steps."""
    return deep if DEEP else usual
