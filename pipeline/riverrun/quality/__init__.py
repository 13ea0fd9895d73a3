"""Data checks: expectations of rows, judged by Great Expectations. `riverrun.releases` reads the rows.

Great Expectations takes seconds to import, so it is imported within functions only.
"""

from __future__ import annotations

import importlib
import typing

from riverrun.quality.expectations import Checks, Expectations

if typing.TYPE_CHECKING:
    from riverrun.quality.last_runs import ExpectColumnStatisticToBeNearLastRuns, ExpectTableRowCountToBeNearLastRuns

__all__ = [
    "Checks",
    "ExpectColumnStatisticToBeNearLastRuns",
    "ExpectTableRowCountToBeNearLastRuns",
    "Expectations",
]


def __getattr__(name: str) -> typing.Any:
    """Load the expectations that are classes of Great Expectations on first use."""
    if name in __all__:
        return getattr(importlib.import_module("riverrun.quality.last_runs"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
