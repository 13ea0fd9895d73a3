"""Sends the state of an instance once per second, as server-sent events.

Regardless of the number of readers, the state is read once per second, and the sizes of stores every ten.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.hosting.restoring.local_state import task_directories
from riverrun.service.figures.measuring import Measuring
from riverrun.service.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.service.figures.metrics import Measured

_EVERY_SECONDS = 1.0
_SIZES_EVERY_SECONDS = 10.0


def instance_events(
    instance: Measured, status: Callable[[], dict[str, Any]], every_s: float = _EVERY_SECONDS
) -> Streams:
    """Return the streams of an instance's events.

    Args:
        instance: The instance.
        status: Its status, as `/status` shows it.
        every_s: The time between two events (seconds).
    """
    return Streams(_States(instance, status, every_s).event, every_s)


class _States:
    """Reads the state of an instance, at a limited rate."""

    def __init__(self, instance: Measured, status: Callable[[], dict[str, Any]], every_s: float) -> None:
        self._instance = instance
        self._status = status
        self._every_s = every_s
        self._measuring = Measuring(instance)
        self._last: tuple[float, bytes] = (float("-inf"), b"")
        self._sizes: tuple[float, dict[str, int]] = (float("-inf"), {})

    async def event(self) -> bytes:
        """Return the newest event."""
        now = time.monotonic()
        if now - self._sizes[0] >= _SIZES_EVERY_SECONDS:
            self._sizes = now, self._sizes[1]  # concurrent readers need not read the sizes as well
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
    """Return the size in bytes of each task's local state; files that vanish meanwhile do not count."""
    return {str(task): _bytes_below(path) for task, path in sorted(task_directories(directory).items())}


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
