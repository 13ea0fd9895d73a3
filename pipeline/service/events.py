"""The state of an instance once per second, streamed as server-sent events for as long as a reader takes them.

However many read, the instance is looked at once per second, and the sizes of its stores every ten.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.hosting.restoring.local_state import task_directories
from pipeline.service.measuring import Measuring

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pipeline.service.metrics import Measured

MAX_STREAMS = 8
"""So many streams of events there may be at a time: open answers are never closed to make room."""
_EVERY_SECONDS = 1.0
_SIZES_EVERY_SECONDS = 10.0


class Events:
    """Streams of events.

    Args:
        instance: The instance that is looked at.
        status: Its status, as `/status` shows it.
        every_s: The time between two events (seconds).
    """

    def __init__(
        self, instance: Measured, status: Callable[[], dict[str, Any]], every_s: float = _EVERY_SECONDS
    ) -> None:
        self._instance = instance
        self._status = status
        self._every_s = every_s
        self._lock = threading.Lock()
        self._open: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._has_ended = False
        self._measuring = Measuring(instance)
        self._last: tuple[float, bytes] = (float("-inf"), b"")
        self._sizes: tuple[float, dict[str, int]] = (float("-inf"), {})

    @property
    def open_streams(self) -> int:
        """How many streams there are."""
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether there are as many streams as there may be."""
        return self.open_streams >= MAX_STREAMS

    def end(self) -> None:
        """End all streams at once; may be called from any thread."""
        with self._lock:
            self._has_ended = True
            for ends, loop in self._open.items():
                loop.call_soon_threadsafe(ends.set)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield events until the instance ends, or the reader does."""
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

    async def _event(self) -> bytes:
        now = time.monotonic()
        if now - self._sizes[0] >= _SIZES_EVERY_SECONDS:
            self._sizes = now, self._sizes[1]  # others that read at present need not look as well
            self._sizes = now, await asyncio.to_thread(_sizes, self._instance.application.directory)
        now = time.monotonic()
        if now - self._last[0] >= self._every_s / 2:
            self._last = now, self._last[1]  # likewise
            self._last = now, await asyncio.to_thread(self._encoded, now)
        return self._last[1]

    def _encoded(self, now: float) -> bytes:
        state = self._status() | self._measuring.figures(now, self._sizes[1])
        return b"event: state\ndata: " + msgspec.json.encode(state) + b"\n\n"


def _sizes(directory: Path) -> dict[str, int]:
    """Return how many bytes the local state of each task takes; files that vanish meanwhile count nothing."""
    return {str(task): _bytes_below(path) for task, path in sorted(task_directories(directory).items())}


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
