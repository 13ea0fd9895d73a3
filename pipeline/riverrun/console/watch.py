"""Looks at a project repeatedly in a thread of its own, as long as somebody wants to see it."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
_SHARE = 4
"""The pause after a long look, as a multiple of its duration: brokers have other work."""
_UNWATCHED_SECONDS = 30.0
_END_SECONDS = 2.0


class Watch:
    """Keeps the last look at a project.

    Args:
        look: Looks once; may take any time.
        every_s: The time between two looks (seconds).
    """

    def __init__(self, look: Callable[[], dict[str, Any]], every_s: float = EVERY_SECONDS) -> None:
        self._look = look
        self._every_s = every_s
        self._wanted_at = float("-inf")
        self._is_wanted, self._ends = threading.Event(), threading.Event()
        self._latest: dict[str, Any] = {"at": None}
        self._encoded = _event(self._latest)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> dict[str, Any]:
        """Return the last look; its `at` is None before the first. Each call keeps the looks going."""
        self._wanted_at = time.monotonic()
        self._is_wanted.set()
        return self._latest

    async def event(self) -> bytes:
        """Return the last look as a server-sent event."""
        _ = self.latest
        return self._encoded

    def close(self) -> None:
        """Stop looking."""
        self._ends.set()
        self._is_wanted.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._ends.is_set():
            if time.monotonic() - self._wanted_at > _UNWATCHED_SECONDS:
                self._is_wanted.clear()
                self._is_wanted.wait()
                continue
            begun = time.monotonic()
            found = self._looked()
            took = time.monotonic() - begun
            pause = max(self._every_s, _SHARE * took)
            self._latest = found | {"took_s": round(took, 2), "every_s": round(took + pause, 1)}
            self._encoded = _event(self._latest)
            self._ends.wait(pause)

    def _looked(self) -> dict[str, Any]:
        try:
            return self._look()
        except Exception as error:  # a page that stops without explanation would be worse
            log.exception("the project cannot be looked at")
            return self._latest | {"error": f"{type(error).__name__}: {error}"}


def _event(found: dict[str, Any]) -> bytes:
    return b"event: state\ndata: " + msgspec.json.encode(found) + b"\n\n"
