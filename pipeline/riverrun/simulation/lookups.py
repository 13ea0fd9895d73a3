"""Runs look-ups in the turns of the tasks that wait for them, by the clock of the turns."""

from __future__ import annotations

import asyncio
import selectors
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from riverrun.runtime.event_loop import LookupLoop, begin, end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor

    from riverrun.processor.lookups import LookupExecutor, PendingLookup
    from riverrun.simulation.turns import Host, Turns

# Each event loop watches a connection to itself.
_OWN_CONNECTIONS = 1


class _Waiting(selectors.DefaultSelector):
    """A selector whose waits are turns of others."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout and len(self.get_map()) > _OWN_CONNECTIONS:
            # What is outside of the turns takes real time.
            found = super().select(timeout)
        if not found and timeout:
            look = super().select
            self._turns.wait_until(lambda: bool(look(0)), timeout)
        return found


class _HostLoop(LookupLoop):
    """The event loop of a host. One actor at a time runs it, while it waits for look-ups."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        # From zero: a timer would never be due if floats cannot tell its time from the one before.
        self._begin_ns = turns.now_ns
        self.more = asyncio.Event()
        super().__init__(_Waiting(turns))

    def time(self) -> float:
        return (self._turns.now_ns - self._begin_ns) / 1e9

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override] # noqa: ARG002
        """Call a function at once: a thread that blocks outside of the turns would stop them all."""
        called = self.create_future()
        try:
            called.set_result(func(*args))
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            called.set_exception(error)
        return called

    def end(self) -> None:
        """Close it. A process that was killed says nothing of the look-ups that were on their way."""
        self.set_exception_handler(lambda _loop, _context: None)
        self.close()


class SimulatedLookups:
    """A `LookupExecutor` for all hosts, each with an event loop."""

    def __init__(self, turns: Turns) -> None:
        self.finished = 0
        self._turns = turns
        self._loops: WeakKeyDictionary[Host, _HostLoop] = WeakKeyDictionary()

    def start(self, flights: Sequence[PendingLookup]) -> None:
        """Start look-ups that share a call, when a task of the host waits."""
        self._loop.call_soon_threadsafe(begin, flights, self._loop, self._finish)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until more look-ups have finished than `seen`, or the time (s) is up."""
        loop = self._loop
        if loop.is_running():
            self._turns.wait_until(lambda: self.finished != seen or not loop.is_running(), timeout_s)
        elif self.finished == seen:
            loop.run_until_complete(self._until_more(timeout_s))

    def cancel(self, flights: Iterable[PendingLookup]) -> None:
        """Cancel look-ups, and wait briefly for their cleanup."""
        loop = self._loop
        if loop.is_running():
            ending = asyncio.run_coroutine_threadsafe(end(flights), loop)
            self._turns.wait_until(lambda: ending.done() or not loop.is_running())
        else:
            loop.run_until_complete(end(flights))

    @property
    def _loop(self) -> _HostLoop:
        host = self._turns.host
        if host not in self._loops:
            self._loops[host] = _HostLoop(self._turns)
            host.at_end.append(self._loops[host].end)
        return self._loops[host]

    async def _until_more(self, timeout_s: float) -> None:
        more = self._loop.more
        more.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(more.wait(), timeout_s)

    def _finish(self) -> None:
        self.finished += 1
        self._loop.more.set()


_conforms: type[LookupExecutor] = SimulatedLookups
