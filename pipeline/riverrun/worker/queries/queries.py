"""Questions about the contents of stores, and their answers (`org.apache.kafka.streams.query`, KIP-796).

Plain values: they pass between a supervisor and its stream threads. Keys and values are bytes, as the store's serdes write
them: the asking side has the topology, and so the serdes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.records import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """The value of a key; key-value and versioned stores (`KeyQuery`, `TimestampedKeyQuery`, `VersionedKeyQuery`).

    Args:
        key: The key.
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


class Place(NamedTuple):
    """The place of a row in its store; rows are ordered by segment of time, then key, then time."""

    segment: int
    key: bytes
    time: int = 0
    start: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A query of one task's part of a store.

    Args:
        store: Name of the store.
        task: The task; None for global stores, which every process has.
        query: The query.
        limit: The most rows to return.
        after: The row after which to continue.
        allows_standby: Whether a standby, which may lag, may answer.
    """

    store: str
    task: TaskId | None
    query: Query
    limit: int = 100
    after: Place | None = None
    allows_standby: bool = False


class Row(NamedTuple):
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
class Page:
    """An answer.

    Args:
        rows: The rows, in the order of the store. There may be fewer than asked for although more follow.
        after: Where to continue; None if there are no more rows.
        position: The position of the answer in history: per input, the next offset to process; of a standby, per changelog, the
            next offset to apply.
        is_standby: Whether a standby answered.
    """

    rows: tuple[Row, ...]
    after: Place | None = None
    position: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_standby: bool = False


class Reason(Enum):
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
        reason: The reason.
        message: What happened, with the names in it.
        server: `host:port` of the instance that has the task, if known.
        missing: Number of changelog records that are still to be restored, if known.
    """

    reason: Reason
    message: str
    server: str | None = None
    missing: int | None = None
