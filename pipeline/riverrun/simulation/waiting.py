"""How calls wait: for a change of the brokers, by a lock that all requests hold."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable

# A predicate may depend on more than the brokers: on whether a caller gives up.
_LOOK_SECONDS = 0.02


class WaitingLock(Protocol):
    """Lets one request at a time run, and others wait. A scheduler of deterministic tests replaces it."""

    def __enter__(self) -> Self:
        """Wait for the lock; a holder may take it again."""
        ...

    def __exit__(self, *_raised: object) -> None:
        """Release the lock."""
        ...

    def wait_until(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Release the lock until a condition holds or the time is over. Return whether it holds."""
        ...

    def changed(self) -> None:
        """Let all that wait look at their conditions again. The caller holds the lock."""
        ...

    def now_s(self) -> float:
        """Return seconds that only rise, by which timeouts are measured."""
        ...


class ThreadWaiting:
    """Waits in real threads, by the real clock."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def __enter__(self) -> Self:
        self._condition.__enter__()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._condition.release()

    def wait_until(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """See `WaitingLock.wait_until`."""
        deadline = time.monotonic() + timeout_s
        while not (holds := predicate()):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self._condition.wait(min(left_s, _LOOK_SECONDS))
        return holds

    def changed(self) -> None:
        """See `WaitingLock.changed`."""
        self._condition.notify_all()

    def now_s(self) -> float:
        """See `WaitingLock.now_s`."""
        return time.monotonic()
