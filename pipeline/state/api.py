"""The contracts of state: what processors see (stores), and what hosts provide (backends).

A task owns one backend: an ordered map of bytes per table, written atomically together with the changelog
positions it corresponds to. Stores lie above it. They keep what was written since the last commit to
themselves; a host first makes the commit durable in Kafka and then hands the same writes to the backend, so that a
backend is always at some committed point, whenever the process dies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pipeline.records import Change, Headers, RecordMetadata, TopicPartition, VersionedRecord
    from pipeline.serde.api import Serde
    from pipeline.windows import Windowed

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)
V = TypeVar("V")

Puts = dict[str, dict[bytes, bytes | None]]
"""Writes per table name; None deletes."""


PAUSED_AFTER = 64
"""After so many entries of something long somebody may look."""


def idle() -> None:
    """Do nothing."""


class Table(Protocol):
    """An ordered map of bytes to bytes; keys compare as unsigned bytes."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        ...

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with `lower <= key < upper` in key order; None is an open end. Later writes are not seen."""
        ...


class StateBackend(Protocol):
    """All tables of one task."""

    def table(self, name: str) -> Table:
        """The table of that name, created when it is first written."""
        ...

    def tables(self) -> tuple[str, ...]:
        """Names of all tables that exist, sorted."""
        ...

    def drop(self, name: str) -> None:
        """Remove a table and its entries; nothing happens if there is none."""
        ...

    def delete_range(self, name: str, lower: bytes, upper: bytes) -> None:
        """Remove the entries of a table with `lower <= key < upper`; nothing happens if there is no such table.

        Raises:
            StateError: If it cannot be written.
        """
        ...

    def write(
        self,
        puts: Puts,
        positions: Mapping[TopicPartition, int],
        pause: Callable[[], None] = idle,
        *,
        in_parts: bool = False,
    ) -> None:
        """Apply writes and the changelog positions they correspond to, all or nothing.

        Args:
            puts: The writes.
            positions: The positions.
            pause: Called now and then between two writes. What is being written must be read from elsewhere meanwhile.
            in_parts: What kills the process may leave some of the writes, with the old positions: to be allowed if the
                changelogs have all of them, and restoring them over some of them ends in the same state.
        """
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """Per changelog partition the next offset that is not yet applied."""
        ...

    def topic_ids(self) -> dict[str, str]:
        """Ids of the topics that the positions are of, as they were noted."""
        ...

    def note_topic_ids(self, ids: Mapping[str, str]) -> None:
        """Note which topics the positions are of; ids of other topics that were noted before stay.

        Raises:
            StateError: If it cannot be written.
        """
        ...

    def checkpoint(self, directory: Path) -> None:
        """Write a consistent copy into a directory that does not exist yet.

        Raises:
            UnsupportedByHostError: If the backend is in memory.
        """
        ...

    def close(self) -> None:
        """Release files and locks. Idempotent."""
        ...

    def wipe(self) -> None:
        """Delete everything: tables, positions, ids of topics. The backend stays usable."""
        ...


class ChangelogRecord(NamedTuple):
    """A change of a store as it is written to, or restored from, its changelog topic; `timestamp` in ms, None deletes."""

    key: bytes
    value: bytes | None
    timestamp: int
    headers: Headers = ()


class ChangelogBatch(Protocol):
    """Records of a changelog partition that follow each other, by columns: most stores need few of them, and none by record."""

    def keys(self) -> Sequence[bytes]:
        """Keys, in the order of the log."""
        ...

    def values(self) -> Sequence[bytes | None]:
        """Values; None is a deletion."""
        ...

    def timestamps(self) -> Sequence[int]:
        """Times, ms."""
        ...

    def headers(self) -> Sequence[Headers]:
        """Headers."""
        ...


PUT_RETURN_CODE_VALID_TO_UNDEFINED = -1
"""Returned by `VersionedKeyValueStore.put` if the value is the key's latest."""
PUT_RETURN_CODE_NOT_PUT = -(2**63)
"""Returned if the value came too late: nothing has changed."""


class StoreKind(Enum):
    """The kind of a store; decides its byte layout and its changelog's configuration."""

    KEY_VALUE = "key-value"
    TIMESTAMPED_KEY_VALUE = "timestamped-key-value"
    WINDOW = "window"
    TIMESTAMPED_WINDOW = "timestamped-window"
    SESSION = "session"
    BUFFER = "buffer"
    JOIN_WINDOW = "join-window"
    """One side of a stream-stream join: a window store that keeps duplicates."""
    LIST_VALUE = "list-value"
    """What both sides of a left or outer join share: values without a partner so far."""
    VERSIONED = "versioned"


WINDOWED = frozenset({StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.JOIN_WINDOW, StoreKind.SESSION})
"""Kinds of stores that forget by event time."""


@dataclass(frozen=True, slots=True)
class StoreBuilder:
    """Everything needed to open a store, and nothing that is open (`org.apache.kafka.streams.state.StoreBuilder`).

    Args:
        name: Name of the store; its changelog is `<application.id>-<name>-changelog`.
        kind: What it can do.
        key_serde: Serde of the keys (of window stores: of the inner key).
        value_serde: Serde of the values (of timestamped stores: without the timestamp).
        persistent: RocksDB if true, else memory.
        caching: Whether updates are held back and forwarded once per key and commit.
        logging: Whether changes go to a changelog topic.
        log_config: Topic settings that override the defaults of the changelog topic.
        retention_ms: Window and session stores: how long a window is kept behind the store's highest time; windows count
            by their start, sessions by their end. Versioned stores: how far back the history reaches, and how late a put may
            be.
        source_topic: Read-only stores (KIP-813): the topic of somebody else that the store is filled from, and restored from
            instead of a changelog of its own.
        window_size_ms: Window stores: length of a window.
        slack_ms: Window stores: how much longer than the retention, which the changelog shares, windows are kept here.
        max_entries: Key-value stores: how many keys are kept; those used last. None keeps all.
        emits_final: Window and session stores: whether an aggregation forwards closed windows only.
        grace_ms: How late records may be that change what is kept; None if that does not depend on their order.
    """

    name: str
    kind: StoreKind
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    persistent: bool = True
    caching: bool = False
    logging: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)
    retention_ms: int = 0
    window_size_ms: int = 0
    slack_ms: int = 0
    emits_final: bool = False
    source_topic: str | None = None
    max_entries: int | None = None
    grace_ms: int | None = None


Place: TypeAlias = "tuple[str | None, int, int]"
"""Topic, partition and offset that an update came from, as in `RecordMetadata`; the topic is None within a punctuation."""


class CachedUpdate(NamedTuple):
    """An update that a caching store forwards for one key when it is flushed.

    `key` is the store's key (of window stores: `(key, window_start)`, of session stores: `Windowed`); `new` and `old` are
    values without their times; `old` is what the store held before the first held-back update, or None where it was not asked
    for it; `headers` and `metadata` are those of the last update; `timestamp` (ms) is the one to forward with.
    """

    key: Any
    new: Any
    old: Any
    timestamp: int
    headers: Headers
    metadata: Place | None


FlushListener: TypeAlias = "Callable[[Sequence[CachedUpdate]], None]"
"""Told about updates as they are flushed, some at a time."""


class UpdateContext(Protocol):
    """The record being processed, as far as a store needs it."""

    @property
    def topic(self) -> str | None:
        """The topic that it came from; None within a punctuation."""
        ...

    @property
    def partition(self) -> int:
        """Partition of its topic."""
        ...

    @property
    def offset(self) -> int:
        """Its offset there."""
        ...

    @property
    def keeps_sources(self) -> bool:
        """Whether somebody may ask for the input records of updates that are held back."""
        ...

    @property
    def kept_bytes(self) -> int:
        """So much of decoded values, beside those that are held back, may a store keep for the next read, bytes."""
        ...

    @property
    def timestamp(self) -> int:
        """Event time of the record being processed, ms; timestamps the changelog of stores without their own."""
        ...

    @property
    def headers(self) -> Headers:
        """Headers of the record being processed."""
        ...

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """The place that the record being processed came from; None within a punctuation."""
        ...


class StateStore(Protocol):
    """The part of every store, whatever its kind, that a task uses."""

    @property
    def name(self) -> str:
        """Name of the store."""
        ...

    @property
    def expired_puts(self) -> int:
        """Number of puts that were ignored because the store had let go of their time already."""
        ...

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:
        """Forward held-back updates to `listener`. False if this store does not hold anything back."""
        ...

    def flush(self) -> None:
        """Give held-back updates to the listener, in the order of the last update of each key."""
        ...

    def held_back_bytes(self) -> int:
        """Estimated size of the updates since the last commit, bytes."""
        ...

    def changelog(self) -> Iterator[ChangelogRecord]:
        """The writes since the last commit: one record per key, the last one.

        They are in order of the first write, or of the last update where a cache has held them back. Versioned stores give
        every write, in order.
        """
        ...

    def pending(self) -> Puts:
        """Return the pending writes as the backend wants them."""
        ...

    def committed(self) -> None:
        """The pending writes are in the backend now: forget them, drop expired segments."""
        ...

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Changelog records as the backend wants them; also recovers the store's highest time."""
        ...


@runtime_checkable
class KeepsTimes(Protocol):
    """An operator or a store whose results depend on event times that are not in what it stores: its task commits these."""

    def times(self) -> tuple[int, ...]:
        """These times, ms, always as many; negative ones are not known."""
        ...

    def resume(self, times: Sequence[int]) -> None:
        """Go on from times that another one has had. Called once at most: of an operator before `init`, of a restored store."""
        ...


@runtime_checkable
class KeepsReads(Protocol):
    """A store that keeps decoded values for the next read."""

    def forget_reads(self, limit_bytes: int | None = None) -> None:
        """Forget those that are not held back, if they take more.

        Args:
            limit_bytes: Their estimated size, bytes; if left out, `UpdateContext.kept_bytes`.
        """
        ...


@runtime_checkable
class KeyValueStore(Protocol[K, V]):
    """Keys to values (`org.apache.kafka.streams.state.KeyValueStore`). Iteration is in order of serialized keys.

    Timestamped stores are `KeyValueStore[K, ValueAndTimestamp[V]]`.
    """

    @property
    def name(self) -> str:
        """Name of the store."""
        ...

    def get(self, key: K) -> V | None:
        """The value, or None."""
        ...

    def put(self, key: K, value: V | None) -> None:
        """Set the value; None deletes."""
        ...

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value if there is none; returns what was there."""
        ...

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Set several values."""
        ...

    def delete(self, key: K) -> V | None:
        """Delete, and return what was there."""
        ...

    def range(self, from_key: K | None = None, to_key: K | None = None) -> Iterator[tuple[K, V]]:
        """Entries from `from_key` to `to_key`, both inclusive; None is an open end."""
        ...

    def reverse_range(self, from_key: K | None = None, to_key: K | None = None) -> Iterator[tuple[K, V]]:
        """Scan a range backwards."""
        ...

    def all(self) -> Iterator[tuple[K, V]]:
        """All entries."""
        ...

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """All entries, backwards."""
        ...

    def prefix_scan(self, prefix: bytes) -> Iterator[tuple[K, V]]:
        """Entries whose serialized key starts with `prefix`."""
        ...

    def approximate_num_entries(self) -> int:
        """Number of entries; may be an estimate."""
        ...


@runtime_checkable
class WindowStore(Protocol[K, V]):
    """Windows of keys to values (`org.apache.kafka.streams.state.WindowStore`); times are window starts, ms, inclusive.

    Windows of several keys come by segments of time, the oldest first, and in order of serialized keys within one.

    Timestamped stores are `WindowStore[K, ValueAndTimestamp[V]]`.
    """

    @property
    def name(self) -> str:
        """Name of the store."""
        ...

    def put(self, key: K, value: V | None, window_start: int) -> None:
        """Set the value of a window; None deletes. Ignored and counted if the window has expired."""
        ...

    def fetch(self, key: K, time: int) -> V | None:
        """The value of the window that starts at `time`."""
        ...

    def fetch_range(self, key: K, time_from: int, time_to: int) -> Iterator[tuple[int, V]]:
        """`(start, value)` of the key's windows that start in `[time_from, time_to]`, ascending."""
        ...

    def backward_fetch_range(self, key: K, time_from: int, time_to: int) -> Iterator[tuple[int, V]]:
        """Fetch a range in descending order."""
        ...

    def fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[tuple[K, int, V]]:
        """`(key, start, value)` of a range of keys and of times, all inclusive."""
        ...

    def backward_fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[tuple[K, int, V]]:
        """Fetch a range of keys backwards."""
        ...

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[K, int, V]]:
        """`(key, start, value)` of the windows of all keys that start in `[time_from, time_to]`."""
        ...

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[K, int, V]]:
        """Fetch all backwards."""
        ...

    def all(self) -> Iterator[tuple[K, int, V]]:
        """`(key, start, value)` of everything that has not expired."""
        ...

    def backward_all(self) -> Iterator[tuple[K, int, V]]:
        """Scan all backwards."""
        ...


@runtime_checkable
class SessionStore(Protocol[K, V]):
    """Sessions of keys to values (`org.apache.kafka.streams.state.SessionStore`).

    A session `Windowed(key, Window(first, last))` has both bounds inclusive; times are in ms. Sessions of several keys come by
    segments of time, the oldest first, and in order of serialized keys within one.
    """

    @property
    def name(self) -> str:
        """Name of the store."""
        ...

    def put(self, session: Windowed[K], value: V | None) -> None:
        """Set the value of a session; None deletes. Ignored and counted if the session has expired."""
        ...

    def remove(self, session: Windowed[K]) -> None:
        """Delete a session."""
        ...

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """The value of exactly that session."""
        ...

    def find_sessions(self, key: K, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed[K], V]]:
        """The key's sessions that end at `earliest_end` or later and start at `latest_start` or earlier, by end."""
        ...

    def backward_find_sessions(self, key: K, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed[K], V]]:
        """Find sessions backwards."""
        ...

    def find_sessions_of_keys(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Find sessions of a range of keys, both inclusive; None is an open end."""
        ...

    def backward_find_sessions_of_keys(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Find sessions of a range of keys backwards."""
        ...

    def fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """All sessions of a key, by end."""
        ...

    def backward_fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Fetch backwards."""
        ...

    def fetch_keys(self, key_from: K | None, key_to: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """All sessions of a range of keys, both inclusive; None is an open end."""
        ...

    def backward_fetch_keys(self, key_from: K | None, key_to: K | None) -> Iterator[tuple[Windowed[K], V]]:
        """Fetch a range of keys backwards."""
        ...

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Everything that has not expired."""
        ...


class ChangeBuffer(Protocol[K, V]):
    """Updates of a table that wait, one per key (`TimeOrderedKeyValueBuffer`); for `suppress`."""

    def __len__(self) -> int:
        """Number of buffered keys."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of everything buffered, bytes."""
        ...

    @property
    def first_time(self) -> int | None:
        """The lowest buffer time, ms; None if nothing is buffered."""
        ...

    def put(self, buffer_time: int, key: K, change: Change[V], timestamp: int, headers: Headers) -> None:
        """Buffer an update of the current record; a key that is buffered keeps its place and its time."""
        ...

    def pop(self) -> tuple[K, Change[V], BufferedOrigin]:
        """Take out the first key, its last update and where that came from."""
        ...

    def prior_value(self, key: K) -> tuple[bool, V | None]:
        """Whether the key is buffered, and the value it had when its first update was buffered."""
        ...


class BufferedOrigin(Protocol):
    """The record of a buffered update."""

    @property
    def timestamp(self) -> int:
        """Its event time, ms."""
        ...

    @property
    def headers(self) -> Headers:
        """Its headers."""
        ...

    @property
    def metadata(self) -> RecordMetadata | None:
        """The place that it came from; None within a punctuation."""
        ...


@runtime_checkable
class VersionedKeyValueStore(Protocol[K_contra, V]):
    """Keys to values and the times they held (`org.apache.kafka.streams.state.VersionedKeyValueStore`); times are in ms."""

    @property
    def name(self) -> str:
        """Name of the store."""
        ...

    def put(self, key: K_contra, value: V | None, timestamp: int) -> int:
        """Set the value that holds from `timestamp` on, until the next later one; None deletes.

        Returns:
            The timestamp of the next later value; `PUT_RETURN_CODE_VALID_TO_UNDEFINED` if there is none;
            `PUT_RETURN_CODE_NOT_PUT` if the history does not reach back that far.
        """
        ...

    def delete(self, key: K_contra, timestamp: int) -> VersionedRecord[V] | None:
        """Delete from `timestamp` on. Returns what held then."""
        ...

    def get(self, key: K_contra, as_of: int | None = None) -> VersionedRecord[V] | None:
        """The latest value, or the one that held at a time; None if there was none, or the history does not reach back."""
        ...


class OpenStore(Protocol):
    """How stores come to life: `pipeline.state.stores.opening.open_store`."""

    def __call__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> StateStore:
        """Open the store that `builder` describes, above `backend`."""
        ...
