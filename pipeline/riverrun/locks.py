"""Locks of a process, which other threads may hold when it is forked."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class ProcessLock:
    """A lock that is free in a forked process, which has no thread that could release it.

    Args:
        make: Makes the lock, `threading.Lock` or `threading.RLock`.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]] = threading.Lock) -> None:
        self._make = make
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = self._make()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock while the body runs; a fork within the body releases the lock that its process had."""
        with self._lock:
            yield
