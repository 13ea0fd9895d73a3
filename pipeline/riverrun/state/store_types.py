"""The kinds of stores as processors and operators use them (`org.apache.kafka.streams.state`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from riverrun.records import Change, Headers, RecordMetadata, VersionedRecord
    from riverrun.windows import Windowed

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)
V = TypeVar("V")

PUT_RETURN_CODE_VALID_TO_UNDEFINED = -1
"""Returned by `VersionedKeyValueStore.put` if the value is the key's latest one."""
PUT_RETURN_CODE_NOT_PUT = -(2**63)
"""Returned if the value came too late, and changed nothing."""


@runtime_checkable
class KeyValueStore(Protocol[K, V]):
    """Keys to values (`org.apache.kafka.streams.state.KeyValueStore`). Iteration is in order of serialized keys.

    Timestamped stores are `KeyValueStore[K, ValueAndTimestamp[V]]`.
    """

    @property
    def name(self) -> str:
        """Name of the store."""

    def get(self, key: K) -> V | None:
        """Return the value, or None."""

    def put(self, key: K, value: V | None) -> None:
        """Set the value; None deletes."""

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value if there is none; return the previous value."""

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Set several values."""

    def delete(self, key: K) -> V | None:
        """Delete the value, and return it."""

    def range(self, from_key: K | None = None, to_key: K | None = None) -> Iterator[tuple[K, V]]:
        """Return entries from `from_key` to `to_key`, both inclusive; None is an open end."""

    def reverse_range(self, from_key: K | None = None, to_key: K | None = None) -> Iterator[tuple[K, V]]:
        """Return the entries of a range in reverse order."""

    def all(self) -> Iterator[tuple[K, V]]:
        """Return all entries."""

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """Return all entries in reverse order."""

    def prefix_scan(self, prefix: bytes) -> Iterator[tuple[K, V]]:
        """Return entries whose serialized key starts with `prefix`."""

    def approximate_num_entries(self) -> int:
        """Return the number of entries, which may be an estimate."""


@runtime_checkable
class WindowStore(Protocol[K, V]):
    """Windows of keys to values (`org.apache.kafka.streams.state.WindowStore`); times are window starts, ms, inclusive.

    Windows of several keys are ordered by segments of time, the oldest first, and by serialized keys within a segment.

    Timestamped stores are `WindowStore[K, ValueAndTimestamp[V]]`.
    """

    @property
    def name(self) -> str:
        """Name of the store."""

    def put(self, key: K, value: V | None, window_start: int) -> None:
        """Set the value of a window; None deletes. Ignored and counted if the window has expired."""

    def fetch(self, key: K, time: int) -> V | None:
        """Return the value of the window that starts at `time`."""

    def fetch_range(self, key: K, time_from: int, time_to: int) -> Iterator[tuple[int, V]]:
        """Return `(start, value)` of the key's windows that start in `[time_from, time_to]`, ascending."""

    def backward_fetch_range(self, key: K, time_from: int, time_to: int) -> Iterator[tuple[int, V]]:
        """Return a key's windows in descending order."""

    def fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[tuple[K, int, V]]:
        """Return `(key, start, value)` of a range of keys and of times, all bounds inclusive."""

    def backward_fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[tuple[K, int, V]]:
        """Return a range of keys in reverse order."""

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[K, int, V]]:
        """Return `(key, start, value)` of the windows of all keys that start in `[time_from, time_to]`."""

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[K, int, V]]:
        """Return windows of all keys in reverse order."""

    def all(self) -> Iterator[tuple[K, int, V]]:
        """Return `(key, start, value)` of all windows that have not expired."""

    def backward_all(self) -> Iterator[tuple[K, int, V]]:
        """Return all windows in reverse order."""


@runtime_checkable
class SessionStore(Protocol[K, V]):
    """Sessions of keys to values (`org.apache.kafka.streams.state.SessionStore`).

    A session `Windowed(key, Window(first, last))` has both bounds inclusive; times are in ms. Sessions of several keys are
    ordered by segments of time, the oldest first, and by serialized keys within a segment.
    """

    @property
    def name(self) -> str:
        """Name of the store."""

    def put(self, session: Windowed[K], value: V | None) -> None:
        """Set the value of a session; None deletes. Ignored and counted if the session has expired."""

    def remove(self, session: Windowed[K]) -> None:
        """Delete a session."""

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """Return the value of the session with exactly these bounds."""

    def find_sessions(self, key: K, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed[K], V]]:
        """Return the key's sessions that end at `earliest_end` or later and start at `latest_start` or earlier, by end."""

    def backward_find_sessions(self, key: K, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed[K], V]]:
        """Return the sessions of `find_sessions` in reverse order."""

    def find_sessions_of_keys(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Return sessions of a range of keys, both inclusive; None is an open end."""

    def backward_find_sessions_of_keys(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Return sessions of a range of keys in reverse order."""

    def fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Return all sessions of a key, by end."""

    def backward_fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Return all sessions of a key in reverse order."""

    def fetch_keys(self, key_from: K | None, key_to: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """Return all sessions of a range of keys, both inclusive; None is an open end."""

    def backward_fetch_keys(self, key_from: K | None, key_to: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """Return all sessions of a range of keys in reverse order."""

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Return all sessions that have not expired."""


class ChangeBuffer(Protocol[K, V]):
    """A buffer of table updates, one per key (`TimeOrderedKeyValueBuffer`), for `suppress`."""

    def __len__(self) -> int:
        """Return the number of buffered keys."""

    @property
    def size_bytes(self) -> int:
        """Size of everything buffered, bytes."""

    @property
    def first_time(self) -> int | None:
        """The lowest buffer time, ms; None if nothing is buffered."""

    def put(self, buffer_time: int, key: K, change: Change[V], timestamp: int, headers: Headers) -> None:
        """Buffer an update of the current record; a buffered key keeps its place and its time."""

    def pop(self) -> tuple[K, Change[V], BufferedOrigin]:
        """Remove the first key, and return it with its last update and the update's origin."""

    def prior_value(self, key: K) -> tuple[bool, V | None]:
        """Return whether the key is buffered, and its value before its first buffered update."""


class BufferedOrigin(Protocol):
    """The record of a buffered update."""

    @property
    def timestamp(self) -> int:
        """Its event time, ms."""

    @property
    def headers(self) -> Headers:
        """Its headers."""

    @property
    def metadata(self) -> RecordMetadata | None:
        """Its origin; None within a punctuation."""


@runtime_checkable
class VersionedKeyValueStore(Protocol[K_contra, V]):
    """Keys to values with times of validity (`org.apache.kafka.streams.state.VersionedKeyValueStore`); times are in ms."""

    @property
    def name(self) -> str:
        """Name of the store."""

    def put(self, key: K_contra, value: V | None, timestamp: int) -> int:
        """Set the value that is valid from `timestamp` until the next later one; None deletes.

        Returns:
            The timestamp of the next later value; `PUT_RETURN_CODE_VALID_TO_UNDEFINED` if there is none;
            `PUT_RETURN_CODE_NOT_PUT` if the history does not reach back that far.
        """

    def delete(self, key: K_contra, timestamp: int) -> VersionedRecord[V] | None:
        """Delete from `timestamp` on, and return the value that was valid then."""

    def get(self, key: K_contra, as_of: int | None = None) -> VersionedRecord[V] | None:
        """Return the latest value, or the one valid at a time; None if there was none, or it is beyond the history."""
