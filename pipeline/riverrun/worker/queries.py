"""Queries of stores, their answers, and the pipe to a stream thread (`org.apache.kafka.streams.query`, KIP-796).

Plain values: they pass between an instance and its stream threads. Keys and values are bytes, as the store's serdes write
them: the asking side has the topology, and so the serdes.
"""

from __future__ import annotations

import itertools
import select
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from riverrun.records import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to a stream thread; the answer has the same number."""

    number: int
    question: StoreQuery


@dataclass(frozen=True, slots=True)
class Answered:
    """A stream thread's answer to the question of that number."""

    number: int
    answer: AnswerPage | Refusal


def readiness(pipe: Connection) -> Callable[[float | None], object]:
    """Return a function that waits, for up to so many ms, until the pipe can be read or is closed; for one thread at a time."""
    # Registered once: `Connection.poll` makes a selector per call, and this is called thousands of times per second.
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return poller.poll


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """The value of a key; key-value and versioned stores (`KeyQuery`, `TimestampedKeyQuery`, `VersionedKeyQuery`).

    Args:
        as_of: For versioned stores, the time of the value, ms; None for now.
    """

    key: bytes
    as_of: int | None = None


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """Entries in order of their keys' bytes; key-value stores (`RangeQuery`, `TimestampedRangeQuery`).

    Args:
        lower: First key, inclusive; None for an open end.
        upper: Last key, inclusive; None for an open end.
        prefix: Only keys whose bytes begin with it; then the bounds are ignored.
        reverse: Whether to return entries in reverse order; not with a prefix.
    """

    lower: bytes | None = None
    upper: bytes | None = None
    prefix: bytes = b""
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """Windows of one key, or of a range of keys; window stores (`WindowKeyQuery`, `WindowRangeQuery`).

    Args:
        lower: First key, inclusive; None for an open end. One key if it equals `upper`.
        upper: Last key, inclusive; None for an open end.
        time_from: Earliest start of a window, ms.
        time_to: Latest start of a window, ms.
    """

    lower: bytes | None = None
    upper: bytes | None = None
    time_from: int = 0
    time_to: int = MAX_TIME_MS


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Sessions of one key, or of all; session stores (`WindowRangeQuery.withKey`).

    Args:
        key: The key; None for all.
        time_from: Earliest end of a session, ms.
        time_to: Latest start of a session, ms.
    """

    key: bytes | None = None
    time_from: int = 0
    time_to: int = MAX_TIME_MS


Query = KeyQuery | RangeQuery | WindowQuery | SessionQuery


class RowPlace(NamedTuple):
    """The place of a row in its store; rows are ordered by segment of time, then key, then time."""

    segment: int
    key: bytes
    time: int = 0
    start: int = 0


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A query of one task's part of a store.

    Args:
        task: The task; None for global stores, which every process has.
        allows_standby: Whether a standby, which may lag, may answer.
    """

    store: str
    task: TaskId | None
    query: Query
    limit: int = 100
    after: RowPlace | None = None
    allows_standby: bool = False


class StoreRow(NamedTuple):
    """An entry of a store.

    `timestamp` is the time of the last update, if the store keeps it. `start` and `end` belong to the window or session. All
    are in ms.
    """

    key: bytes
    value: bytes
    timestamp: int | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerPage:
    """One page of an answer.

    Args:
        rows: The rows, in the order of the store. There may be fewer than asked for although more follow.
        after: Where to continue; None if there are no more rows.
        position: Per input, the next offset to process; of a standby, per changelog, the next offset to apply.
    """

    rows: tuple[StoreRow, ...]
    after: RowPlace | None = None
    position: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_standby: bool = False


class RefusalReason(Enum):
    """The reason why there is no answer (`FailureReason`)."""

    NO_SUCH_STORE = "no-such-store"
    UNKNOWN_QUERY = "unknown-query"
    """Stores of that kind cannot answer such a query."""
    NOT_HERE = "not-owned-here"
    NOT_LIVE = "not-live"
    """Another version is live, or was requested."""
    RESTORING = "restoring"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as a value, in place of an answer.

    Args:
        server: `host:port` of the instance that has the task, if known.
        missing: Number of changelog records that are still to be restored, if known.
    """

    reason: RefusalReason
    message: str
    server: str | None = None
    missing: int | None = None


class QueryClient:
    """The instance's end of the pipe for questions to one stream thread; closed when the process is `gone`."""

    def __init__(self, pipe: Connection, name: str) -> None:
        self._pipe = pipe
        self._name = name
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._answers: dict[int, AnswerPage | Refusal | None] = {}
        """Answers by number of the question; None until the answer arrives."""
        self._has_listener = self._is_gone = False
        self._is_readable = readiness(pipe)

    def ask(self, question: StoreQuery, timeout_s: float) -> AnswerPage | Refusal:
        """Return the answer, or why there is none. May be called from any thread."""
        deadline = time.monotonic() + timeout_s
        number = next(self._numbers)
        self._answers[number] = None
        try:
            with self._sending:
                self._pipe.send(Ask(number, question))
            return self._wait_for(number, deadline) or self._refusal(f"did not answer within {timeout_s:g} s")
        except (EOFError, OSError):
            return self._refusal("ended before it answered")
        finally:
            del self._answers[number]

    def gone(self) -> None:
        """Close the pipe: the process has ended, and will not answer its questions. Idempotent."""
        with self._sending, self._changed:
            self._is_gone = True
            # The process's end of the pipe is closed, so a thread that listens notices at once. Closing this end under it
            # would let it read from whatever gets the same file descriptor next.
            self._changed.wait_for(lambda: not self._has_listener)
            self._pipe.close()

    def _wait_for(self, number: int, deadline: float) -> AnswerPage | Refusal | None:
        """Return the answer; None if it does not arrive in time."""
        with self._changed:
            while self._answers[number] is None and self._has_listener:
                if not self._changed.wait(deadline - time.monotonic()):
                    return self._answers[number]
            if self._answers[number] is not None:
                return self._answers[number]
            if self._is_gone:
                raise EOFError
            # One of the waiting threads listens for all. A separate listener would have to be woken before each
            # answer, which takes as long as the answer itself.
            self._has_listener = True
        try:
            return self._listen_for(number, deadline)
        finally:
            with self._changed:
                self._has_listener = False
                # The remaining threads choose another listener.
                self._changed.notify_all()

    def _listen_for(self, number: int, deadline: float) -> AnswerPage | Refusal | None:
        while (left := deadline - time.monotonic()) > 0:
            if not self._is_readable(left * 1000):
                return None
            message: Answered = self._pipe.recv()
            if message.number == number:
                return message.answer
            with self._changed:
                # The thread that asked may have given up.
                if message.number in self._answers:
                    self._answers[message.number] = message.answer
                    self._changed.notify_all()
        return None

    def _refusal(self, what: str) -> Refusal:
        return Refusal(RefusalReason.FAILED, f"{self._name} {what}")
