"""The bounded host: runs an application over ranges of offsets, as Spark tasks, and gives its outputs and stores as DataFrames.

`ranges` says which offsets, `session` makes the Spark session, `columns` says what bytes become in frames. `bounded_runs`
commit what they process, `dry_runs` give it as frames, and state stores are read as frames (`store_frames`). Below these,
`planning` cuts a run into slices and steps, `tasks` is what a task is on an executor, and `engine` is Spark itself.

May import hosting, the runtime, Kafka and what lies below; knows neither the worker nor the DSL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline.extras import require_extra

if TYPE_CHECKING:
    from pipeline.spark.dry_runs.outputs import dry_run
    from pipeline.spark.store_frames.stores import read_store

__all__ = ["dry_run", "read_store"]

_MODULES = {"dry_run": "pipeline.spark.dry_runs.outputs", "read_store": "pipeline.spark.store_frames.stores"}


def __getattr__(name: str) -> Any:
    """Import what needs Spark when it is asked for: workers resolve ranges without it."""
    if name not in _MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    require_extra("spark")
    return getattr(import_module(_MODULES[name]), name)
