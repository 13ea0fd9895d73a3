"""Look-ups: users' functions that ask a service or a database, many at a time, with timeouts and repeated attempts.

A look-up runs on an event loop in another thread. Its task forwards the result, in the task's own thread (`operators.lookups`).
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

from riverrun.arguments import DURATION, NUMBER, Kind, function, optional, takes_fields
from riverrun.errors import TopologyError
from riverrun.windows import millis

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
    from concurrent.futures import Executor

K = TypeVar("K")
V = TypeVar("V")

_MOST_ATTEMPTS = 100
_MOST_IN_FLIGHT = 10_000
# With all attempts: a commit waits for a look-up, and brokers end a transaction after 60 s.
_LONGEST_SECONDS = 45.0
# One batch is under way and one gathers: a commit waits for both.
_BATCHES_AT_A_TIME = 2


def _error_classes(given: Any) -> str | None:
    kinds = given if isinstance(given, tuple) else (given,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return None
    return f"must be a class of exceptions, or a tuple of them, not {given!r}"


@takes_fields(
    attempts=NUMBER, backoff=DURATION, longest_wait=DURATION, on=Kind("classes of exceptions", _error_classes)
)
@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed look-up is tried again, and how long it waits before that.

    The first wait is `backoff`, and each one is twice as long as the one before. If the exception has an attribute
    `retry_after`, a number of seconds, the wait is at least as long. No wait is longer than `longest_wait`.

    >>> retry = Retry(attempts=4, backoff=timedelta(seconds=1), longest_wait=timedelta(seconds=3))
    >>> [retry.wait_seconds(attempt, ValueError()) for attempt in (1, 2, 3, 4)]
    [1.0, 2.0, 3.0, None]

    Args:
        attempts: Number of attempts in all, from 1 to 100.
        backoff: Wait after the first failure; defaults to 100 ms.
        longest_wait: Upper bound of each wait; defaults to 5 s.
        on: Classes of exceptions after which to try again. An answer that does not come in time is a `TimeoutError`.

    Raises:
        TopologyError: If a number or a time is out of range.
    """

    attempts: int = 3
    backoff: timedelta = timedelta(milliseconds=100)
    longest_wait: timedelta = timedelta(seconds=5)
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not 1 <= self.attempts <= _MOST_ATTEMPTS:
            raise TopologyError(f"Retry: attempts must be from 1 to {_MOST_ATTEMPTS}, not {self.attempts}")
        millis(self.backoff, "backoff")
        millis(self.longest_wait, "longest_wait")

    def wait_seconds(self, attempt: int, error: Exception) -> float | None:
        """Return how long to wait after a failed attempt, s; None if it was the last one.

        Args:
            attempt: Number of the attempt, from 1.
            error: The failure of that attempt.
        """
        if attempt >= self.attempts or not isinstance(error, self.on):
            return None
        asked = getattr(error, "retry_after", None)
        least = float(asked) if isinstance(asked, int | float) and asked > 0 else 0.0
        wait: float = self.backoff.total_seconds() * 2 ** (attempt - 1)
        return min(max(wait, least), self.longest_wait.total_seconds())

    @property
    def longest_seconds(self) -> float:
        """Return the longest time that all waits take together, s."""
        return (self.attempts - 1) * self.longest_wait.total_seconds()


ONCE = Retry(attempts=1)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of calls that look up several records each.

    Args:
        max_records: Most records of a call.
        max_wait_ms: How long the first record of a call may wait for others, ms.
    """

    max_records: int
    max_wait_ms: int

    @classmethod
    def of(cls, max_records: int, max_wait: timedelta) -> BatchLimits:
        """Return batches within the limits."""
        if isinstance(max_records, bool) or not 1 <= max_records <= _MOST_IN_FLIGHT:
            raise TopologyError(f"max_records must be from 1 to {_MOST_IN_FLIGHT}, not {max_records}")
        return cls(max_records, millis(max_wait, "max_wait"))


@dataclass(frozen=True, slots=True)
class Lookup:
    """Describes what one operator looks up, and how.

    Args:
        fetch: `(key, value) -> result`, or a coroutine function. With batches, it takes and returns lists.
        is_blocking: Whether `fetch` has to be called in a thread.
        timeout_s: How long an attempt may take, s.
        max_in_flight: Most look-ups of a task at a time.
        function: The user's function, of the value, or of key and value.
        batches: Limits of calls for several records; None if each record has a call.
    """

    fetch: Callable[[Any, Any], Any]
    is_blocking: bool
    timeout_s: float
    retry: Retry
    max_in_flight: int
    function: Callable[..., Any]
    batches: BatchLimits | None = None

    @property
    def takes_key(self) -> bool:
        """Return whether the user's function takes the key as well."""
        return self.function is self.fetch

    @property
    def longest_seconds(self) -> float:
        """Return the longest time of a call with all its attempts, s."""
        return self.retry.attempts * self.timeout_s + self.retry.longest_seconds

    @property
    def limit_seconds(self) -> float:
        """Return how long a call may take at most, with all that is tried again, s."""
        return _LONGEST_SECONDS if self.batches is None else _LONGEST_SECONDS / _BATCHES_AT_A_TIME

    @classmethod
    def of(
        cls,
        fetch: Callable[..., Any],
        taking_key: Callable[[Any, Any], Any],
        timeout: timedelta,
        retry: Retry | None,
        most: int | BatchLimits,
    ) -> Lookup:
        """Return a look-up within the limits; `taking_key` calls `fetch` with key and value, `most` is `max_in_flight`."""
        batches = most if isinstance(most, BatchLimits) else None
        max_in_flight = most.max_records * _BATCHES_AT_A_TIME if isinstance(most, BatchLimits) else most
        if batches is None and (isinstance(max_in_flight, bool) or not 1 <= max_in_flight <= _MOST_IN_FLIGHT):
            raise TopologyError(f"max_in_flight must be from 1 to {_MOST_IN_FLIGHT}, not {max_in_flight}")
        if millis(timeout, "timeout") < 1:
            raise TopologyError("timeout must be at least 1 ms")
        is_blocking, timeout_s = not is_coroutine_function(fetch), timeout.total_seconds()
        lookup = cls(taking_key, is_blocking, timeout_s, retry or ONCE, max_in_flight, fetch, batches=batches)
        if lookup.longest_seconds > lookup.limit_seconds:
            message = (
                f"A look-up may take {lookup.longest_seconds:g} s: timeout, times attempts, plus waits between them"
            )
            waited_for = "it" if batches is None else "two batches"
            hint = f"A commit waits for {waited_for}, so it may take {lookup.limit_seconds:g} s at most."
            raise TopologyError(message, hint=hint)
        return lookup


def is_coroutine_function(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    called = getattr(type(function), "__call__", None)  # noqa: B004 - the method is asked about, not called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


@dataclass(slots=True, eq=False)
class LookupCounts:
    """Counts what the look-ups of one operator do, in the thread of the event loop.

    Args:
        calls: Calls of the function.
        failures: Look-ups that failed after their last attempt.
        retries: Attempts after the first one.
        timeouts: Attempts that took too long.
        cache_hits: Answers that a `CachedLookup` had, or that another look-up was about to bring.
        cache_misses: Answers that it asked for.
        caches: The answers of each `CachedLookup` that was used, by its identity.
    """

    in_flight: int = 0
    calls: int = 0
    failures: int = 0
    retries: int = 0
    timeouts: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    caches: dict[int, Sized] = field(default_factory=dict)

    @property
    def cached(self) -> int:
        """Return the number of answers that these caches have."""
        # A copy: the thread of the event loop may add a cache meanwhile.
        return sum(map(len, list(self.caches.values())))


# The counts of the look-up in whose function a `CachedLookup` is awaited.
COUNTS: ContextVar[LookupCounts | None] = ContextVar("riverrun_lookup_counts", default=None)


@dataclass(slots=True, eq=False)
class PendingLookup:
    """A look-up in flight.

    Args:
        threads: Where blocking functions are called.
        landed: Called when it has finished, in the thread of the event loop.
        place: The input record that it is for: topic, partition, offset; None if time has brought it out.
        latency_ms: Time from its start to its end, with all attempts, ms.
    """

    lookup: Lookup
    key: Any
    value: Any
    threads: Executor
    counts: LookupCounts = field(default_factory=LookupCounts)
    node: str = ""
    place: tuple[str, int, int] | None = None
    landed: Callable[[PendingLookup], None] | None = None
    latency_ms: float = 0.0
    is_done: bool = False
    result: Any = None
    error: Exception | None = None
    task: asyncio.Task[None] | None = None
    is_cancelled: bool = False


class LookupExecutor(Protocol):
    """Runs look-ups of tasks: on an event loop, or in the virtual time of the test driver."""

    @property
    def finished(self) -> int:
        """Number of look-ups that have finished so far."""

    def start(self, flights: Sequence[PendingLookup]) -> None:
        """Start a look-up, or several that share a call."""

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until more look-ups have finished than `seen`, or the time (s) is up."""

    def cancel(self, flights: Iterable[PendingLookup]) -> None:
        """Cancel look-ups, and wait briefly for their cleanup."""


@dataclass(slots=True)
class _Facts(Generic[K, V]):
    """The answers that a `CachedLookup` has on one event loop.

    Args:
        known: Answers by key with the time until which they hold; the least recently used come first.
        flights: Look-ups on their way by key, with the number of those that wait for each.
    """

    known: dict[K, tuple[V, float]] = field(default_factory=dict)
    flights: dict[K, tuple[asyncio.Task[V], list[None]]] = field(default_factory=dict)


@takes_fields(
    fetch=function("key", awaits=True),
    ttl=optional(DURATION),
    max_entries=NUMBER,
)
@dataclass(frozen=True)
class CachedLookup(Generic[K, V]):
    """Keeps the answers of a function for facts that change slowly. Await it in the function that is looked up with.

    Each process has a cache of its own. Of several look-ups of one key at a time, one asks and all get its answer. Failures
    are not kept.

    >>> import asyncio
    >>> async def find_country(city):
    ...     return {"Oslo": "Norway"}.get(city)
    >>> country_of = CachedLookup(find_country, ttl=timedelta(hours=1))
    >>> async def with_country(order):
    ...     return {**order, "country": await country_of(order["city"])}
    >>> asyncio.run(with_country({"city": "Oslo"}))
    {'city': 'Oslo', 'country': 'Norway'}

    Args:
        fetch: A coroutine function of a hashable key, or a blocking function, which is called in a thread.
        ttl: How long an answer is kept; None for as long as there is room. Then None as an answer ("not found") is not kept.
        max_entries: Number of answers to keep, from 1. Those not used for longest are dropped first.

    Raises:
        TopologyError: If a limit is out of range.
    """

    fetch: Callable[[K], Any]
    ttl: timedelta | None = None
    max_entries: int = 10_000
    # Neither part of fingerprints nor pickled: what it knows depends on the process.
    _by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Facts[K, V]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, fetch: Callable[[K], Awaitable[V]], ttl: timedelta | None = None, max_entries: int = ...
        ) -> None: ...

        @overload
        def __init__(self, fetch: Callable[[K], V], ttl: timedelta | None = None, max_entries: int = ...) -> None: ...

        def __init__(self, fetch: Callable[[K], Any], ttl: timedelta | None = None, max_entries: int = ...) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.max_entries, bool) or self.max_entries < 1:
            raise TopologyError(f"CachedLookup: max_entries must be at least 1, not {self.max_entries}")
        if self.ttl is not None:
            millis(self.ttl, "ttl")

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedLookup, (self.fetch, self.ttl, self.max_entries)

    async def __call__(self, key: K) -> V:
        """Return the answer for a key, known or looked up."""
        import asyncio  # noqa: PLC0415 - slow to load, and only look-ups need it

        loop = asyncio.get_running_loop()
        facts = self._by_loop.setdefault(loop, _Facts())
        counts = COUNTS.get() or LookupCounts()
        counts.caches[id(self)] = facts.known
        if key in facts.known:
            answer, until = facts.known.pop(key)
            if loop.time() < until:
                facts.known[key] = answer, until
                counts.cache_hits += 1
                return answer
        if key in facts.flights:
            counts.cache_hits += 1
        else:
            counts.cache_misses += 1
            facts.flights[key] = loop.create_task(self._ask(key, facts)), []
        return await self._await(key, facts)

    async def _await(self, key: K, facts: _Facts[K, V]) -> V:
        """Wait for a look-up on its way."""
        import asyncio  # noqa: PLC0415 - slow to load, and only look-ups need it

        task, waiting = facts.flights[key]
        waiting.append(None)
        try:
            # Others may wait for the same answer, so the end of one of them must not cancel it.
            return await asyncio.shield(task)
        finally:
            waiting.pop()
            # Nobody waits for it any more, and it might hang.
            if not waiting and not task.done():
                task.cancel()
                if facts.flights.get(key, (None,))[0] is task:
                    del facts.flights[key]

    async def _ask(self, key: K, facts: _Facts[K, V]) -> V:
        import asyncio  # noqa: PLC0415 - as above

        loop = asyncio.get_running_loop()
        try:
            if is_coroutine_function(self.fetch):
                answer: V = await self.fetch(key)
            else:
                answer = await loop.run_in_executor(None, self.fetch, key)
        finally:
            if (flight := facts.flights.get(key)) is not None and flight[0] is asyncio.current_task():
                del facts.flights[key]
        # A key that is not found may be added later, and nothing would ever ask for it again.
        if answer is None and self.ttl is None:
            return answer
        until = float("inf") if self.ttl is None else loop.time() + self.ttl.total_seconds()
        facts.known[key] = answer, until
        # Dicts keep the order of insertion, and a hit is inserted again: the first one was not used for longest.
        while len(facts.known) > self.max_entries:
            del facts.known[next(iter(facts.known))]
        return answer
