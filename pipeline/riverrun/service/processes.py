"""Processes that plan and compute the queries of an SQL application, each of which can be killed.

A query is text of others, and reads records of others. Python cannot end a thread that computes. One that never lets go of the
interpreter stops all others, also those that keep the instance in its group. So neither the text nor a record is evaluated in
the process of the instance. A process that takes too much time or memory is killed, and another one is started.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from riverrun.worker.spawning import start_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from riverrun.hosting.application import Application
    from riverrun.worker.spawning import ChildProcess

log = logging.getLogger(__name__)

# Queries per process that run or wait. More would occupy the threads of the HTTP interface, which other requests need.
_WAITING = 4
_LOOK_SECONDS = 0.02
"""Time between two checks of a process's memory."""
_OTHERS, _STARTING = "Other queries are running", "The process for queries is starting"
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Planned:
    """A query as its instance reads it from a store: bytes and plain values.

    Args:
        keys: The keys to look up; None for all keys between the bounds.
        lower: First key; None if there is no lower bound.
        upper: Last key; None if there is no upper bound.
        time_from: Earliest start of a window, ms.
        time_to: Latest start of a window, ms.
        limit: Greatest number of rows; None for all.
        is_gathered: Whether the result needs all entries: it has groups or an order.
    """

    columns: tuple[tuple[str, str], ...]
    store: str
    keys: tuple[bytes, ...] | None
    lower: bytes | None
    upper: bytes | None
    time_from: int
    time_to: int
    limit: int | None
    is_gathered: bool


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a query, or a failure to answer it.

    Args:
        error: The kind of error, for programs.
    """

    error: str
    message: str
    status: int


@dataclass(frozen=True, slots=True)
class PushQuery:
    """A push query: its text, where topics begin, and the greatest size of its rows."""

    text: str
    start: str
    most_bytes: int


class QueryRefusedError(Exception):
    """A query has no answer.

    Args:
        error: The kind of error, for programs.
    """

    def __init__(self, error: str, message: str, status: int) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.status = status


class TimeOverError(Exception):
    """The time of a push query is over."""


class QueryProcesses:
    """The processes that compute the queries of an application whose topology is a file of statements."""

    def __init__(self, application: Application, compute: Callable[..., None]) -> None:
        streams = application.config.streams
        self._compute = compute
        self._application = application
        self._streams = streams
        # Reentrant: the garbage collector may close a forgotten generator, which leaves, in a thread that holds the lock.
        self._lock = threading.RLock()
        self._free = threading.Semaphore(streams.server_query_processes)
        self._idle: list[QueryProcess] = []
        self._all: set[QueryProcess] = set()
        self._callers = 0
        self._is_closed = False

    @property
    def seconds(self) -> float:
        return self._streams.server_query_timeout_ms / 1000

    @property
    def most(self) -> int:
        return self._streams.server_query_processes

    def start(self) -> None:
        """Start a process, so that the first query need not wait for it."""
        with self._lock:
            if not self._all and not self._is_closed:
                self._idle.append(self._started())

    def close(self) -> None:
        """End all processes, and with them the queries that they compute."""
        with self._lock:
            self._is_closed = True
            ended = list(self._all)
        # Outside the lock: `end` waits for processes, and their queries need the lock to leave.
        for each in ended:
            each.end()

    @contextmanager
    def process(self, until: float) -> Iterator[QueryProcess]:
        """Take a process for one query, which must be answered at `until` (`time.monotonic`)."""
        # Counted before waiting, so that callers beyond the limit are refused at once.
        self._enter()
        try:
            if not self._free.acquire(timeout=max(until - time.monotonic(), 0)):
                raise _busy()
            try:
                taken = self._taken()
                try:
                    yield taken
                finally:
                    self._leave(taken)
            finally:
                self._free.release()
        finally:
            with self._lock:
                self._callers -= 1

    def _enter(self) -> None:
        with self._lock:
            if self._is_closed or self._callers >= _WAITING * self._streams.server_query_processes:
                raise _busy()
            self._callers += 1

    def _taken(self) -> QueryProcess:
        with self._lock:
            if self._is_closed:
                raise _busy()
            while self._idle:
                found = self._idle.pop()
                if found.is_alive:
                    return found
                self._all.discard(found)
            return self._started()

    def _leave(self, process: QueryProcess) -> None:
        """Keep a process for the next query; start another one in place of one that was ended."""
        with self._lock:
            if not process.is_alive:
                self._all.discard(process)
                process = process if self._is_closed else self._started()
            self._idle.append(process)

    def _started(self) -> QueryProcess:
        process = QueryProcess(self._application, self._compute)
        self._all.add(process)
        return process


def _busy(reason: str = _OTHERS) -> QueryRefusedError:
    error = "too-many-queries"
    return QueryRefusedError(error, f"{reason}: try again", 503)


class QueryProcess:
    """A process that computes one query at a time."""

    def __init__(self, application: Application, compute: Callable[..., None]) -> None:
        self._streams = streams = application.config.streams
        self._is_ready = self._is_following = False
        self._line, theirs = multiprocessing.Pipe()
        with theirs:
            # The process evaluates text of callers: what it does not have, no query can reveal.
            config = replace(application.config, streams=streams.without_secrets())
            given = (config, application.version, application.kafka)
            self._child: ChildProcess = start_child("queries", compute, [theirs], given)

    @property
    def is_alive(self) -> bool:
        """True if it can compute."""
        return self._child.is_alive()

    def end(self) -> None:
        self._child.kill()
        self._child.join()

    def plan(self, text: str, until: float) -> Planned:
        found: Planned = self._ask(text, text, until)
        return found

    def rows(self, found: Sequence[Any] | None, most: int | None, text: str, until: float) -> list[bytes]:
        """Return the rows, as JSON, that the planned query makes of entries of its store (`row_object`): `most` at most.

        A gathered query makes its rows of all entries so far, if `found` is None.
        """
        made: list[bytes] = self._ask((found, most, self._streams.server_query_max_bytes), text, until)
        return made

    def changes(self, text: str, start: str, until: float, beat_s: float) -> Iterator[Any]:
        """Yield the names of a push query's columns, then its rows as JSON, and None where none has come for `beat_s`.

        Raises TimeOverError at `until` (`time.monotonic`). `start` is where topics begin: `latest` or `earliest`.
        """
        if not self._is_ready:
            self._wait_until_ready(until)
        self._is_following = True
        seconds = max(until - time.monotonic(), 0.001)
        try:
            self._line.send_bytes(pickle.dumps((seconds, PushQuery(text, start, self._streams.server_query_max_bytes))))
            while True:
                if not self._is_heard(text, until, beat_s):
                    yield None
                    continue
                answer = pickle.loads(self._line.recv_bytes())  # noqa: S301 - of a process of our own
                if answer is None or isinstance(answer, Mistake):
                    break
                yield answer
        except (OSError, EOFError):
            self._refuse("query-failed", "ended its process", text)
        self._is_following = False
        if isinstance(answer, Mistake):
            raise QueryRefusedError(answer.error, answer.message, answer.status)

    def end_unless_idle(self) -> None:
        """Kill the process if a push query still runs: there is no other way to stop it."""
        if self._is_following:
            self.end()

    def _is_heard(self, text: str, until: float, beat_s: float) -> bool:
        """Wait `beat_s` for an answer. Return whether there is one; raise TimeOverError at `until`."""
        is_heard = self._answers(text, min(until, time.monotonic() + beat_s))
        if time.monotonic() > until:
            raise TimeOverError
        return is_heard

    def _ask(self, question: Any, text: str, until: float) -> Any:
        if not self._is_ready:
            self._wait_until_ready(until)
        seconds = max(until - time.monotonic(), 0.001)
        try:
            self._line.send_bytes(pickle.dumps((seconds, question)))
            if not self._answers(text, until):
                milliseconds = self._streams.server_query_timeout_ms
                self._refuse("query-too-long", f"took longer than {milliseconds} ms (server.query.timeout.ms)", text)
            answer = pickle.loads(self._line.recv_bytes())  # noqa: S301 - of a process of our own
        except (OSError, EOFError):
            self._refuse("query-failed", "ended its process", text)
        if isinstance(answer, Mistake):
            raise QueryRefusedError(answer.error, answer.message, answer.status)
        return answer

    def _wait_until_ready(self, until: float) -> None:
        if not self._line.poll(max(until - time.monotonic(), 0)):
            raise _busy(_STARTING)
        with suppress(OSError, EOFError):
            self._line.recv_bytes()
        self._is_ready = True

    def _answers(self, text: str, until: float) -> bool:
        """Wait for an answer, or the end of the process. Return False if `until` comes first."""
        most = self._streams.server_query_max_memory_bytes
        while not self._line.poll(_LOOK_SECONDS):
            if _memory_bytes(self._child.pid) > most:
                reason = f"needed more than {most} bytes of memory (server.query.max.memory.bytes)"
                self._refuse("query-too-large", reason, text)
            if time.monotonic() > until:
                return False
        return True

    def _refuse(self, error: str, reason: str, text: str) -> NoReturn:
        """Kill the process, and raise an error that says why."""
        self.end()
        log.warning("a query %s: %r", reason, text[:_SHOWN])
        message = f"The query {reason}"
        raise QueryRefusedError(error, message, 503)


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 on systems without /proc, where memory is not limited."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
