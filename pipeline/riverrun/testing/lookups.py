"""Runs look-ups in virtual time: in the order of their own waits, without waiting.

The time of their event loop jumps to its next timer as soon as all coroutines wait.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from riverrun.runtime.event_loop import LookupLoop, begin, end
from riverrun.runtime.failures import user_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor

    from riverrun.processor.lookups import LookupExecutor, PendingLookup
    from riverrun.runtime.ports import Clock

# Each event loop watches a connection to itself, through which other threads wake it.
_OWN_CONNECTIONS = 1
_LOOK_SECONDS = 0.01


class _Jumping(selectors.DefaultSelector):
    """A selector that skips the time until the next timer, unless something outside may happen before it."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        """Time that has passed, s."""
        self.under_way = 0
        """Number of calls in threads."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        # Functions in threads and open connections take real time: wait for them as any other loop does.
        if self.under_way or len(self.get_map()) > _OWN_CONNECTIONS:
            began = time.monotonic()
            found = super().select(timeout)
            self.skipped += time.monotonic() - began
        elif timeout is None:
            found = super().select(_LOOK_SECONDS)
        else:
            self.skipped += timeout
        return found


class _VirtualLoop(LookupLoop):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._clock.now_ms() / 1000 + self._jumping.skipped

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        called = super().run_in_executor(executor, func, *args)
        self._jumping.under_way += 1
        called.add_done_callback(self._returned)
        return called

    def _returned(self, _called: object) -> None:
        self._jumping.under_way -= 1


class VirtualLookups:
    """A `LookupExecutor` that works only while a task waits, so that results and their order are always alike.

    Args:
        clock: The clock of the driver. Time skipped is added to it, and does not move it.
    """

    def __init__(self, clock: Clock) -> None:
        self.finished = 0
        self._clock = clock
        self._loop: _VirtualLoop | None = None
        # A thread cannot run two event loops, and the test may already run one.
        self._thread = ThreadPoolExecutor(1, "look-ups")
        self._new: list[Sequence[PendingLookup]] = []

    def start(self, flights: Sequence[PendingLookup]) -> None:
        """Start look-ups that share a call, when a task waits."""
        self._new.append(flights)

    def wait(self, seen: int, timeout_s: float) -> None:  # noqa: ARG002 - virtual time ends by itself
        """Run until more look-ups have finished than `seen`."""
        if self.finished == seen:
            self._run(self._until_more(seen))

    def cancel(self, flights: Iterable[PendingLookup]) -> None:
        """Cancel look-ups, and wait until their functions have ended."""
        self._run(self._end(list(flights)))

    def commit(self, offsets: object) -> None:
        """Do nothing: nothing is kept."""

    def undo(self, aside: tuple[str, int, int]) -> None:
        """Do nothing: look-ups are made again."""

    def close(self) -> None:
        """Close the loop. Idempotent."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        self._thread.shutdown(wait=False)

    def _run(self, work: Any) -> None:
        if self._loop is None:
            self._loop = _VirtualLoop(self._clock)
        with user_code("A task that a look-up function has created"):
            self._thread.submit(self._loop.run_until_complete, work).result()

    async def _until_more(self, seen: int) -> None:
        loop = asyncio.get_running_loop()
        self._more = asyncio.Event()
        for flights in self._new:
            begin(flights, loop, self._finish)
        self._new.clear()
        if self.finished == seen:
            await self._more.wait()

    async def _end(self, flights: list[PendingLookup]) -> None:
        self._more = asyncio.Event()
        await end(flights)

    def _finish(self) -> None:
        self.finished += 1
        self._more.set()


_conforms: type[LookupExecutor] = VirtualLookups
