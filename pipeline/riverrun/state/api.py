"""The contracts of state between stores, tasks and backends. `store_types` has those with processors.

A task owns one backend: an ordered map of bytes per table, written atomically together with the changelog positions of its
content. Stores buffer the writes since the last commit. A host first makes the commit durable in Kafka, and then passes the
writes to the backend. So a backend is always at a committed point, whenever the process dies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, runtime_checkable

from typing_extensions import TypeVar

from riverrun.windows import end_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from riverrun.records import Headers, RecordMetadata, TopicPartition, Whole
    from riverrun.serde.api import Serde

S_co = TypeVar("S_co", covariant=True, default=Any)

Puts = dict[str, dict[bytes, bytes | None]]
"""Writes per table name; None deletes."""


# Number of entries after which a long operation pauses for other work, such as queries.
PAUSED_AFTER = 64


def idle() -> None:
    """Do nothing."""


class Table(Protocol):
    """An ordered map of bytes to bytes; keys compare as unsigned bytes."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def scan(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Return entries with `lower <= key < upper` in key order; None is an open end. Later writes are not visible."""


class StateBackend(Protocol):
    """All tables of one task."""

    def table(self, name: str) -> Table:
        """Return the table with this name, created on its first write."""

    def tables(self) -> tuple[str, ...]:
        """Return the sorted names of all existing tables."""

    def drop(self, name: str) -> None:
        """Remove a table and its entries, if it exists."""

    def delete_range(self, name: str, lower: bytes, upper: bytes) -> None:
        """Remove the entries of a table with `lower <= key < upper`, if the table exists."""

    def write(
        self,
        puts: Puts,
        positions: Mapping[TopicPartition, int],
        pause: Callable[[], None] = idle,
        *,
        in_parts: bool = False,
        whole: Whole | None = None,
    ) -> None:
        """Apply writes and their changelog positions, all or nothing.

        Args:
            puts: The writes by table.
            positions: Per changelog partition, the next offset to apply.
            pause: Called now and then between two writes. Meanwhile, the values being written must be read from elsewhere.
            in_parts: Whether a crash may leave some of the writes, with the old positions. Allowed if the changelogs have all
                of them, and restoring all over a part of them leads to the same state.
            whole: When the state with these positions was whole; None to keep what is known.
        """

    def positions(self) -> dict[TopicPartition, int]:
        """Return, per changelog partition, the next offset to apply."""

    def whole(self) -> Whole | None:
        """Return when the state was known to be whole last; None if that is unknown."""

    def topic_ids(self) -> dict[str, str]:
        """Return the recorded ids of the changelogs, and of the inputs."""

    def note_topic_ids(self, ids: Mapping[str, str]) -> None:
        """Record the ids of topics; ids of other topics are kept."""

    def checkpoint(self, directory: Path) -> None:
        """Write a consistent copy into a directory that does not exist yet; refused if the backend is in memory."""

    def close(self) -> None:
        """Release files and locks. Idempotent."""

    def wipe(self) -> None:
        """Delete everything: tables, positions, ids of topics. The backend stays usable."""


class ChangelogRecord(NamedTuple):
    """A change of a store in the form of its changelog topic; `timestamp` in ms, a value of None deletes."""

    key: bytes
    value: bytes | None
    timestamp: int
    headers: Headers = ()


class ChangelogBatch(Protocol):
    """Consecutive records of a changelog partition, by columns: most stores need few columns, and none by record."""

    def keys(self) -> Sequence[bytes]:
        """Keys, in the order of the log."""

    def values(self) -> Sequence[bytes | None]:
        """Values; None is a deletion."""

    def timestamps(self) -> Sequence[int]:
        """Times, ms."""

    def headers(self) -> Sequence[Headers]:
        """Headers."""


class StoreKind(Enum):
    """The kind of a store, which determines its byte layout and its changelog's configuration."""

    KEY_VALUE = "key-value"
    TIMESTAMPED_KEY_VALUE = "timestamped-key-value"
    WINDOW = "window"
    TIMESTAMPED_WINDOW = "timestamped-window"
    SESSION = "session"
    BUFFER = "buffer"
    JOIN_WINDOW = "join-window"
    """One side of a stream-stream join: a window store that keeps duplicates."""
    LIST_VALUE = "list-value"
    """The shared store of a left or outer join: values without a partner so far."""
    VERSIONED = "versioned"


WINDOWED = frozenset({StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.JOIN_WINDOW, StoreKind.SESSION})
"""Kinds of stores that expire entries by event time."""


@dataclass(frozen=True, slots=True)
class StoreBuilder(Generic[S_co]):
    """Everything needed to open a store, and nothing that is open (`org.apache.kafka.streams.state.StoreBuilder`).

    `StoreBuilder[S]` says which store it opens, such as `KeyValueStore[str, int]`: `get_state_store` has that type for it.

    Args:
        name: Name of the store; its changelog is `<application.id>-<name>-changelog`.
        kind: Kind, which determines the byte layout and the changelog's default settings.
        key_serde: Serde of the keys (of window stores: of the inner key).
        value_serde: Serde of the values (of timestamped stores: without the timestamp).
        persistent: RocksDB if true, else memory.
        caching: Whether to hold back updates and forward one per key and commit.
        logging: Whether to write changes to a changelog topic.
        log_config: Topic settings that override the defaults of the changelog topic.
        retention_ms: Window and session stores: how long a window is kept behind the store's highest time; windows count
            by their start, sessions by their end. Versioned stores: how far back the history reaches, and how late a put may
            be.
        source_topic: Read-only stores (KIP-813): the external topic that fills the store, and serves as its changelog.
        window_size_ms: Window stores: length of a window.
        own_end_of: Window stores: returns the end of the window with a start, if lengths differ.
        slack_ms: Window stores: how long windows are kept beyond the retention, which also applies to the changelog.
        max_entries: Key-value stores: number of keys to keep, those used last. None keeps all.
        emits_final: Window and session stores: whether an aggregation forwards closed windows only.
        grace_ms: How late records may be that change the content; None if the content does not depend on their order.
        ttl_ms: Key-value stores: how long a row is kept after its last write, in stream time, ms; None for ever.
        table_expires: Whether the operator of a table deletes rows after `ttl_ms`, and forwards that, instead of the store.
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
    ttl_ms: int | None = None
    table_expires: bool = False
    own_end_of: Callable[[int], int] | None = None

    def end_of(self, start: int) -> int:
        """Return the end of the window with this start."""
        return end_of(start, self.window_size_ms) if self.own_end_of is None else self.own_end_of(start)


def name_of(store: str | StoreBuilder[Any]) -> str:
    """Return the name of a store that a processor names, or whose builder it has."""
    return store.name if isinstance(store, StoreBuilder) else store


Place: TypeAlias = "tuple[str | None, int, int]"
"""Topic, partition and offset of the record that caused an update; the topic is None within a punctuation."""


class CachedUpdate(NamedTuple):
    """An update that a caching store forwards for one key when it is flushed.

    `key` is the store's key (window stores: `(key, window_start)`, session stores: `Windowed`). `new` and `old` are
    values without timestamps; `old` is the value before the first held-back update, or None if it was not requested.
    `headers` and `metadata` are those of the last update; `timestamp` (ms) is the timestamp to forward.
    """

    key: Any
    new: Any
    old: Any
    timestamp: int
    headers: Headers
    metadata: Place | None


FlushListener: TypeAlias = "Callable[[Sequence[CachedUpdate]], None]"
"""Receives flushed updates, several at a time."""


class UpdateContext(Protocol):
    """The part of the current record that a store needs."""

    @property
    def topic(self) -> str | None:
        """The topic of the current record; None within a punctuation."""

    @property
    def partition(self) -> int:
        """The partition of the current record."""

    @property
    def offset(self) -> int:
        """The offset of the current record."""

    @property
    def keeps_sources(self) -> bool:
        """True if the input records of held-back updates may be needed."""

    @property
    def kept_bytes(self) -> int:
        """Maximum size of decoded values, in addition to held-back ones, that a store may keep for the next read, bytes."""

    @property
    def timestamp(self) -> int:
        """Event time of the current record, ms; the changelog timestamp of stores without timestamps."""

    @property
    def stream_time(self) -> int:
        """The task's highest event time so far, ms; -1 before the first record."""

    @property
    def headers(self) -> Headers:
        """Headers of the current record."""

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """The origin of the current record; None within a punctuation."""


class StateStore(Protocol):
    """The part of every kind of store that tasks use."""

    @property
    def name(self) -> str:
        """Name of the store."""

    @property
    def expired_puts(self) -> int:
        """Number of puts that were ignored because their time had expired."""

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:
        """Forward held-back updates to `listener`. Returns False if this store does not hold back updates."""

    def flush(self) -> None:
        """Pass held-back updates to the listener, in the order of the last update of each key."""

    def held_back_bytes(self) -> int:
        """Return the estimated size of the updates since the last commit, bytes."""

    def changelog(self) -> Iterator[ChangelogRecord]:
        """Return the writes since the last commit: the last record of each key.

        They are in order of the first write, or of the last update if a cache has held them back. Versioned stores
        return every write, in order.
        """

    def pending(self) -> Puts:
        """Return the pending writes in the backend's form."""

    def committed(self) -> None:
        """Forget the pending writes, which are now in the backend, and drop expired segments."""

    def restore(self, batch: ChangelogBatch) -> Puts:
        """Convert changelog records to the backend's form, and recover the store's highest time."""


@runtime_checkable
class KeepsTimes(Protocol):
    """An operator or a store whose results depend on event times outside its content; its task commits these times."""

    def times(self) -> tuple[int, ...]:
        """Return these times, ms; their number never changes, and negative ones are unknown."""

    def resume(self, times: Sequence[int]) -> None:
        """Continue from an earlier owner's times. Called at most once: on an operator before `init`, on a restored store."""


@runtime_checkable
class KeepsReads(Protocol):
    """A store that keeps decoded values for the next read."""

    def forget_reads(self, limit_bytes: int | None = None) -> None:
        """Drop values that are not held back, if they exceed a limit (bytes). Defaults to `UpdateContext.kept_bytes`."""


class StoreOpener(Protocol):
    """Opens stores: `riverrun.state.stores.opening.open_store`."""

    def __call__(self, builder: StoreBuilder, backend: StateBackend, context: UpdateContext) -> StateStore:
        """Open the store that `builder` describes, above `backend`."""
