"""Server-sent events, for as long as readers take them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

MAX_STREAMS = 8
"""Maximum number of simultaneous event streams: open answers are never closed to make room."""
UNKEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Headers that keep browsers and proxies from holding events back."""


class Streams:
    """Streams of events.

    Each reader gets the newest event after it has taken the one before. A slow reader misses some, and delays no other.

    Args:
        event: Returns the next event, encoded for sending.
        every_s: The time between two events (seconds).
    """

    def __init__(self, event: Callable[[], Awaitable[bytes]], every_s: float) -> None:
        self._event = event
        self._every_s = every_s
        self._lock = threading.Lock()
        self._open: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._has_ended = False

    @property
    def open_streams(self) -> int:
        """Number of open streams."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of streams is open."""
        return self.open_streams >= MAX_STREAMS

    def end(self) -> None:
        """End all streams at once; may be called from any thread."""
        with self._lock:
            self._has_ended = True
            for ends, loop in self._open.items():
                loop.call_soon_threadsafe(ends.set)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield events until the server stops or the reader leaves."""
        ends = asyncio.Event()
        with self._lock:
            if self._has_ended or self.is_full:
                return
            self._open[ends] = asyncio.get_running_loop()
        try:
            while not ends.is_set():
                yield await self._event()
                try:
                    await asyncio.wait_for(ends.wait(), self._every_s)
                except TimeoutError:
                    continue
        finally:
            with self._lock:
                del self._open[ends]
