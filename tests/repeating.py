"""Work that repeats in the background of a test or a measurement."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class Repeating:
    """Takes a step again and again, in a thread, while its block runs.

    Args:
        step: What is done.
        pause_s: How long it waits before each.
    """

    def __init__(self, step: Callable[[], object], pause_s: float) -> None:
        self._step = step
        self._pause_s = pause_s
        self._ends = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what has failed in the thread, if anything has."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ends.wait(self._pause_s):
                self._step()
        except Exception as error:  # noqa: BLE001 - raised in the waiting thread
            self._failure = error
