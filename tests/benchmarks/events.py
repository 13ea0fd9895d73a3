"""Events that measured processes report: lines of JSON on their standard output, among all other output."""

from __future__ import annotations

import json
import time
from typing import Any


def tell(event: str, **details: Any) -> None:
    """Say that something has happened, and when (ms since the epoch)."""
    print(json.dumps({"event": event, "at_ms": time.time() * 1000, **details}), flush=True)


def event_report(text: str, event: str, after: int = 0) -> dict[str, Any] | None:
    """Return the report of an event, beyond the first `after` ones; None if there is none."""
    lines = [line for line in text.splitlines() if line.startswith('{"event"') and line.endswith("}")]
    found: list[dict[str, Any]] = [report for report in map(json.loads, lines) if report["event"] == event]
    return found[after] if len(found) > after else None
