"""How often Python looks for cycles of objects while records are processed, and among which."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLLECTED_AFTER = 50_000


@cache
def collect_rarely() -> None:
    """Look for cycles after 50,000 new objects, and not among those that are there when this is called first.

    Records make no cycles; Python's default of 700 costs a quarter of reading them. What is there before the first record,
    modules above all, stays: Spark's Python processes look through everything after each task.
    """
    gc.set_threshold(_COLLECTED_AFTER)
    gc.collect()
    gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no cycles while very many objects are made that stay, and are in none.

    They would be looked through over and over as more come, a third of the time of reading records that are to be sorted.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
