"""How long stores of windowed tables keep windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.errors import TopologyError
from pipeline.windows import millis

if TYPE_CHECKING:
    from pipeline.dsl.options import Materialized
    from pipeline.windows import TimeWindows


def retention_ms(options: Materialized[Any, Any], windows: TimeWindows, store: str) -> int:
    """The retention that was asked for, or what the windows need, ms.

    Raises:
        TopologyError: If less was asked for than the windows need, or a versioned store.
    """
    if options.is_versioned:
        message = f"Store {store} keeps windows: it cannot be versioned"
        raise TopologyError(message, hint="Leave history_retention out.")
    if options.retention is None:
        return windows.retention_ms
    asked_ms = millis(options.retention, "retention")
    if asked_ms < windows.retention_ms:
        message = (
            f"Store {store} keeps windows for {asked_ms} ms, less than "
            f"their size and grace together ({windows.retention_ms} ms)"
        )
        raise TopologyError(message)
    return asked_ms
