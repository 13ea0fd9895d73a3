"""How far generated tests go: a little in `make test`, further in `make deep`."""

from __future__ import annotations

import os
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

DEEP = bool(os.environ.get("RIVERRUN_DEEP"))


def depth(usual: int, deep: int) -> int:
    """Return a number of examples, crashes or steps."""
    return deep if DEEP else usual


def combined(usual: int, *values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return all combinations of values in `make deep`, and usually some that are spread evenly over them."""
    found = list(product(*values))
    # An odd step, so that values of which there are two do not stay the same.
    return found if DEEP else found[:: len(found) // usual | 1]
