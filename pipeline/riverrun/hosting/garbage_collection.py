"""Sets how often Python looks for reference cycles while records are processed, and among which objects."""

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
    """Look for cycles after 50,000 new objects, and never among the objects that exist at the first call.

    Records make no cycles; Python's default of 700 costs a quarter of the time for reading them. Objects from before the first
    record, mainly modules, stay: Spark's Python processes look through everything after each task.
    """
    gc.set_threshold(_COLLECTED_AFTER)
    gc.collect()
    gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend the search for cycles while the body makes very many objects that stay and are in no cycle.

    Python would search them over and over as more are made. That takes a third of the time for reading records to be sorted.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
