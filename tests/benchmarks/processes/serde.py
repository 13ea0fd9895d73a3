"""Reads and writes one record again and again with a serde, without a broker; says how long that took."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from events import tell
from formats import format_of

from riverrun.serde.api import SerdePlace, placed

if TYPE_CHECKING:
    from collections.abc import Callable

_PLACE = SerdePlace("views", is_key=False, registry={"url": "mock://serdes"})
_FIELDS = {"id": 123_456, "user": "user-000123", "page": "/products/123", "millis": 45_678, "ok": True}


def cpu_of(function: Callable[[Any], Any], given: Any, times: int) -> float:
    """CPU time of a call, µs."""
    began = time.process_time()
    for _ in range(times):
        function(given)
    return (time.process_time() - began) / times * 1_000_000


def main(side: str, records: str) -> None:
    unplaced, kind = format_of(side)
    serde, value = placed(unplaced, _PLACE), kind(**_FIELDS)
    data = serde.serialize(value)
    read, written = cpu_of(serde.deserialize, data, int(records)), cpu_of(serde.serialize, value, int(records))
    tell("done", read=read, write=written, bytes=len(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
