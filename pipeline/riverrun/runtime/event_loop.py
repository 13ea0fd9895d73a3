"""Runs look-ups on one event loop per process, in a separate thread.

All tasks of a process share the loop, so connections that users' functions open there may be shared, too. Only tasks that look
something up load this module: `asyncio` is slow to load.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections import deque
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as NotYetError
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from riverrun.errors import USER_ERRORS, ProcessingError, as_exception
from riverrun.processor.lookups import COUNTS
from riverrun.runtime.failures import NOT_THE_USERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from riverrun.processor.lookups import LookupExecutor, PendingLookup

log = logging.getLogger(__name__)

# How long cancelled look-ups have for their `finally` blocks, before the task is closed without them.
_GOODBYE_SECONDS = 1.0
# For what coroutines call in threads without an executor of their own (`asyncio.to_thread`), and for caches of answers.
_THREADS = 32


class DaemonThreads(Executor):
    """Threads that are made on demand and never keep the process from ending, since a blocking call may hang.

    Args:
        most: The most threads. Calls beyond them wait for a free one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        # Calls that wait or run: if these are more than the threads, one more thread is of use.
        self._open = 0
        self._threads = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._open += 1
            if self._open > self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name="look-up", daemon=True).start()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - an Executor's
        """End the threads that have nothing to do, and the others when their calls have returned."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, called = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(called())
                # No coroutine can raise StopIteration, so this future could not deliver it.
                except StopIteration as error:
                    future.set_exception(ProcessingError(f"the function raised StopIteration: {error}"))
                except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                    future.set_exception(error)
            with self._lock:
                self._open -= 1


class LookupLoop(asyncio.SelectorEventLoop):
    """An event loop whose threads never keep the process from ending."""

    def __init__(self, selector: Any = None) -> None:
        super().__init__(selector)
        self._daemons = DaemonThreads(_THREADS)

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call a function in a thread of the executor, by default of this loop's own."""
        return super().run_in_executor(executor or self._daemons, func, *args)


async def attempts(flights: Sequence[PendingLookup]) -> Any:
    """Look up, with as many attempts as allowed, and return the result; raise the failure of the last attempt."""
    attempt, loop, first = 1, asyncio.get_running_loop(), flights[0]
    while True:
        try:
            return await _attempt(flights)
        except asyncio.CancelledError:
            raise
        except USER_ERRORS as error:
            # The coroutine is being closed, as the process ends: it must not await anything more.
            if asyncio.current_task(loop) is None:
                raise
            failed = as_exception(error)
        wait_s = first.lookup.retry.wait_seconds(attempt, failed)
        if wait_s is None:
            raise failed
        await asyncio.sleep(wait_s)
        attempt += 1
        first.counts.retries += 1


async def _attempt(flights: Sequence[PendingLookup]) -> Any:
    first = flights[0]
    lookup, key, value = first.lookup, first.key, first.value
    if lookup.batches is not None:
        key, value = [flight.key for flight in flights], [flight.value for flight in flights]
    first.counts.calls += 1
    limit = asyncio.timeout(lookup.timeout_s)
    try:
        async with limit:
            if not lookup.is_blocking:
                return await lookup.fetch(key, value)
            called = asyncio.get_running_loop().run_in_executor(first.threads, lookup.fetch, key, value)
            result = await called
            return await result if inspect.isawaitable(result) else result
    except TimeoutError as error:
        # The function may raise a TimeoutError itself, which is a failure like any other.
        if limit.expired():
            first.counts.timeouts += 1
            raise TimeoutError(f"no answer within {lookup.timeout_s:g} s") from error
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        # Otherwise the function has cancelled itself: that must fail the look-up, not end it silently.
        if task is not None and task.cancelling():
            raise
        raise ProcessingError("the function was cancelled from within") from error


def begin(flights: Sequence[PendingLookup], loop: asyncio.AbstractEventLoop, finished: Callable[[], None]) -> None:
    """Begin look-ups that share a call, in the thread of the event loop; `finished` is called at their end."""
    if not flights[0].is_cancelled:
        task = loop.create_task(_fly(flights, finished))
        for flight in flights:
            flight.task = task


async def end(flights: Iterable[PendingLookup]) -> None:
    """Cancel look-ups, in the thread of the event loop, and wait briefly for their cleanup."""
    tasks = set()
    for flight in flights:
        flight.is_cancelled = True
        if flight.task is not None:
            tasks.add(flight.task)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_GOODBYE_SECONDS)


async def _fly(flights: Sequence[PendingLookup], finished: Callable[[], None]) -> None:
    counts, loop = flights[0].counts, asyncio.get_running_loop()
    # A `CachedLookup` that the function calls counts there.
    COUNTS.set(counts)
    counts.in_flight += len(flights)
    began_s = loop.time()
    try:
        if len(flights) == 1:
            _share(await attempts(flights), flights)
        else:
            await _answer(flights, began_s + flights[0].lookup.limit_seconds)
    except asyncio.CancelledError:
        for flight in flights:
            flight.error = ProcessingError("the look-up was cancelled")
    # Of the function, or of its exception's text. The records would wait forever.
    except USER_ERRORS as error:
        # As in `attempts`.
        if asyncio.current_task(loop) is None:
            raise
        for flight in flights:
            flight.error = as_exception(error)
    counts.in_flight -= len(flights)
    for flight in flights:
        counts.failures += flight.error is not None and not flight.is_cancelled
        flight.latency_ms = (loop.time() - began_s) * 1000
        flight.is_done = True
        try:
            if flight.landed is not None:
                flight.landed(flight)
        # A result that is an iterator may be read there, which runs the user's code.
        except USER_ERRORS as error:
            flight.error = as_exception(error)
    finished()


async def _answer(flights: Sequence[PendingLookup], until_s: float) -> None:
    """Find the results. If a call for several records fails, ask for each half of them, to find the records that fail.

    A failure for which no record is to blame is not looked into.
    """
    failed = await _failure(flights)
    if failed is None:
        return
    if len(flights) == 1 or isinstance(failed, NOT_THE_USERS):
        for flight in flights:
            flight.error = failed
        return
    loop, middle = asyncio.get_running_loop(), len(flights) // 2
    for half in (flights[:middle], flights[middle:]):
        if loop.time() + half[0].lookup.longest_seconds <= until_s:
            await _answer(half, until_s)
        else:
            _give_up(half, failed)


async def _failure(flights: Sequence[PendingLookup]) -> Exception | None:
    """Look up, and return the failure of the last attempt; None if it brought results."""
    loop = asyncio.get_running_loop()
    try:
        _share(await attempts(flights), flights)
    except asyncio.CancelledError:
        raise
    except USER_ERRORS as error:
        # As in `attempts`.
        if asyncio.current_task(loop) is None:
            raise
        return as_exception(error)
    return None


def _share(answer: Any, flights: Sequence[PendingLookup]) -> None:
    """Hand out what the function returned."""
    if flights[0].lookup.batches is None:
        flights[0].result = answer
        return
    message = None
    # Dicts, sets and arrays have another order, other elements, or elements that no serde writes.
    if not isinstance(answer, list | tuple):
        message = f"the function returned {type(answer).__name__}, not a list"
    elif len(answer) != len(flights):
        message = f"the function returned {len(answer)} results for {len(flights)} values"
    if message is None:
        for flight, result in zip(flights, answer, strict=True):
            flight.result = result
        return
    # Not raised: a function that leaves values out may return the right number for a half of them, in the wrong order.
    for flight in flights:
        flight.error = ProcessingError(
            message, hint="Return a list: the result of each value, in the order of the values."
        )


def _give_up(flights: Sequence[PendingLookup], failed: Exception) -> None:
    message = (
        f"a call failed for several records, and there was no time to ask for each: {type(failed).__name__}: {failed}"
    )
    for flight in flights:
        # Each has an error to itself: raising one changes it.
        flight.error = ProcessingError(message)
        flight.error.__cause__ = failed


class EventLoopThread:
    """A `LookupExecutor` in real time. The thread starts with the first look-up."""

    def __init__(self) -> None:
        self.finished = 0
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # A forked process has no thread of its parent, and other threads may have held the locks.
        self._news = threading.Condition()
        self._starting = threading.Lock()
        self._loop: LookupLoop | None = None
        self._new: deque[Sequence[PendingLookup]] = deque()
        self._is_woken = False
        self._is_blocked = False

    def start(self, flights: Sequence[PendingLookup]) -> None:
        if self._loop is None:
            self._begin()
        self._new.append(flights)
        # Waking the loop is a system call, so look-ups that are started together wake it once.
        if not self._is_woken:
            self._is_woken = True
            self._running.call_soon_threadsafe(self._begin_new)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until more look-ups have finished than `seen`, or the time (s) is up."""
        with self._news:
            self._news.wait_for(lambda: self.finished != seen, timeout_s)

    def cancel(self, flights: Iterable[PendingLookup]) -> None:
        """Cancel look-ups, and wait briefly for their cleanup."""
        if self._loop is not None:
            ending = asyncio.run_coroutine_threadsafe(end(list(flights)), self._running)
            try:
                ending.result(0 if self._is_blocked else 2 * _GOODBYE_SECONDS)
            # A function blocks the loop: the next task that closes does not wait for it as well.
            except NotYetError:
                self._is_blocked = True

    @property
    def _running(self) -> LookupLoop:
        assert self._loop is not None, "the loop runs once a look-up was started"  # noqa: S101 - see `start`
        return self._loop

    def _begin(self) -> None:
        with self._starting:
            # Checked again with the lock: another task's thread may have started the loop meanwhile.
            if self._loop is None:
                loop = LookupLoop()
                threading.Thread(target=_run, args=(loop,), name="look-ups", daemon=True).start()
                self._loop = loop

    def _begin_new(self) -> None:
        # First: a look-up that is added from now on wakes the loop again.
        self._is_woken = self._is_blocked = False
        while self._new:
            begin(self._new.popleft(), self._running, self._finish)

    def _finish(self) -> None:
        with self._news:
            self.finished += 1
            self._news.notify_all()


def _run(loop: LookupLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - it would end the look-ups of all tasks
            log.warning("a task that a look-up function has created raised %r", error)


# One for the process: tasks share the connections that users' functions open on the loop.
LOOKUPS = EventLoopThread()

_conforms: type[LookupExecutor] = EventLoopThread
