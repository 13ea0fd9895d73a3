"""What measured processes tell: lines of JSON on their standard output, among whatever else they print."""

from __future__ import annotations

import json
import time
from typing import Any


def tell(event: str, **details: Any) -> None:
    """Say that something has happened, and when (ms since the epoch)."""
    print(json.dumps({"event": event, "at_ms": time.time() * 1000, **details}), flush=True)


def told(text: str, event: str, after: int = 0) -> dict[str, Any] | None:
    """What was told of an event, beyond the first `after` times; None if that has not happened."""
    lines = [line for line in text.splitlines() if line.startswith('{"event"') and line.endswith("}")]
    found: list[dict[str, Any]] = [told for told in map(json.loads, lines) if told["event"] == event]
    return found[after] if len(found) > after else None
