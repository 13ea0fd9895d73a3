"""`Stores`: descriptions of stores for the Processor API (`org.apache.kafka.streams.state.Stores`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from riverrun.arguments import DURATION, NUMBER, SERDE, TEXT, optional, takes
from riverrun.errors import TopologyError
from riverrun.records import is_legal_topic
from riverrun.state.api import StoreBuilder, StoreKind
from riverrun.state.suppliers import StoreSupplier
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from riverrun.records import ValueAndTimestamp
    from riverrun.serde.api import Serde
    from riverrun.state.store_types import KeyValueStore, SessionStore, VersionedKeyValueStore, WindowStore

K = TypeVar("K")
V = TypeVar("V")


class Stores:
    """Descriptions of stores (`org.apache.kafka.streams.state.Stores`). They open no store.

    `key_value_store` and similar methods return builders, which processors refer to by name, or pass to `get_state_store`
    for a store with its types. `persistent_…`, `in_memory_…` and `lru_map` return suppliers without serdes: for
    `Materialized` and `StreamJoined`, or as the first argument of `key_value_store`. Where Kafka Streams needs a supplier
    for each builder, a name is enough here: `persistent=False` keeps the store in memory.

    >>> from riverrun.serde.serdes import LONG, STRING
    >>> Stores.key_value_store("Counts", STRING, LONG).name
    'Counts'
    >>> Stores.key_value_store(Stores.lru_map("Recent", 100), STRING, LONG).max_entries
    100
    """

    @staticmethod
    @takes(name=TEXT)
    def persistent_key_value_store(name: str) -> StoreSupplier:
        """Describe a key-value store in RocksDB."""
        return StoreSupplier(name, StoreKind.KEY_VALUE, persistent=True)

    @staticmethod
    @takes(name=TEXT)
    def in_memory_key_value_store(name: str) -> StoreSupplier:
        """Describe a key-value store in memory."""
        return StoreSupplier(name, StoreKind.KEY_VALUE, persistent=False)

    @staticmethod
    @takes(name=TEXT, max_cache_size=NUMBER)
    def lru_map(name: str, max_cache_size: int) -> StoreSupplier:
        """Describe a key-value store in memory for at most `max_cache_size` keys: those that were read or written last.

        Evicted rows are forgotten, not deleted: downstream operators see no update.

        Raises:
            TopologyError: If the size is negative.
        """
        return StoreSupplier(name, StoreKind.KEY_VALUE, persistent=False, max_entries=max_cache_size)

    @staticmethod
    @takes(name=TEXT, history_retention=DURATION)
    def persistent_versioned_key_value_store(name: str, history_retention: timedelta) -> StoreSupplier:
        """Describe a versioned key-value store in RocksDB.

        Raises:
            TopologyError: If the retention is negative, or not a whole number of ms.
        """
        history_ms = millis(history_retention, "historyRetention")
        return StoreSupplier(name, StoreKind.VERSIONED, persistent=True, retention_ms=history_ms)

    @staticmethod
    @takes(name=TEXT, retention_period=DURATION, window_size=DURATION)
    def persistent_window_store(
        name: str, retention_period: timedelta, window_size: timedelta, *, retain_duplicates: bool = False
    ) -> StoreSupplier:
        """Describe a window store in RocksDB.

        Args:
            name: Name of the store; part of the name of its changelog.
            retention_period: How long to keep a window behind the store's highest time.
            window_size: Length of a window.
            retain_duplicates: Whether a key may have several values at one time, which joins of streams need.

        Raises:
            TopologyError: If a time is negative or not a whole number of ms, or the retention is below the window's size.
        """
        times = millis(retention_period, "retentionPeriod"), millis(window_size, "windowSize")
        return StoreSupplier(name, StoreKind.WINDOW, True, *times, retain_duplicates)  # noqa: FBT003

    @staticmethod
    @takes(name=TEXT, retention_period=DURATION, window_size=DURATION)
    def in_memory_window_store(
        name: str, retention_period: timedelta, window_size: timedelta, *, retain_duplicates: bool = False
    ) -> StoreSupplier:
        """Describe a window store in memory; arguments and errors are those of `persistent_window_store`."""
        times = millis(retention_period, "retentionPeriod"), millis(window_size, "windowSize")
        return StoreSupplier(name, StoreKind.WINDOW, False, *times, retain_duplicates)  # noqa: FBT003

    @staticmethod
    @takes(name=TEXT, retention_period=DURATION)
    def persistent_session_store(name: str, retention_period: timedelta) -> StoreSupplier:
        """Describe a session store in RocksDB.

        Args:
            name: Name of the store; part of the name of its changelog.
            retention_period: How long to keep a session behind the highest end of a session in the store.

        Raises:
            TopologyError: If the time is negative, or not a whole number of ms.
        """
        retention_ms = millis(retention_period, "retentionPeriod")
        return StoreSupplier(name, StoreKind.SESSION, persistent=True, retention_ms=retention_ms)

    @staticmethod
    @takes(name=TEXT, retention_period=DURATION)
    def in_memory_session_store(name: str, retention_period: timedelta) -> StoreSupplier:
        """Describe a session store in memory; arguments and errors are those of `persistent_session_store`."""
        retention_ms = millis(retention_period, "retentionPeriod")
        return StoreSupplier(name, StoreKind.SESSION, persistent=False, retention_ms=retention_ms)

    @staticmethod
    @takes(key_serde=SERDE, value_serde=SERDE, ttl=optional(DURATION))
    def key_value_store(
        name: str | StoreSupplier,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
        log_config: Mapping[str, str] | None = None,
        ttl: timedelta | None = None,
    ) -> StoreBuilder[KeyValueStore[K, V]]:
        """Describe a key-value store.

        Args:
            name: Name of the store, or a supplier, which then decides where the store is kept instead of `persistent`.
            key_serde: Writes keys, in the state and in the changelog.
            value_serde: Writes values, in the state and in the changelog.
            persistent: RocksDB if true, else memory.
            caching: Whether to hold back updates and forward one per key and commit.
            logging: Whether to write changes to a changelog topic.
            log_config: Topic settings that override the defaults of the changelog topic.
            ttl: Time to live: a row that was not written for so long, in stream time, is deleted. Nothing is forwarded, and
                reads do not prolong it.

        Raises:
            TopologyError: If the name cannot be part of a topic's name, or the supplied store is of another kind. Also if
                `ttl` is not a positive whole number of ms, or the supplied store has a number of entries as well.
        """
        supplier = name if isinstance(name, StoreSupplier) else StoreSupplier(name, StoreKind.KEY_VALUE, persistent)
        if supplier.kind is not StoreKind.KEY_VALUE:
            message = f"Store {supplier.name} is supplied as a {supplier.kind.value} store, not a key-value store"
            raise TopologyError(message)
        builder = _store(
            supplier.name,
            supplier.kind,
            key_serde=key_serde,
            value_serde=value_serde,
            persistent=supplier.persistent,
            caching=caching,
            logging=logging,
            log_config=log_config,
        )
        if ttl is not None and supplier.max_entries is not None:
            message = f"Store {supplier.name} has a ttl, so it cannot have max_entries"
            raise TopologyError(message, hint="Leave one of them out: a row that expires, or keys that were used last.")
        return replace(builder, max_entries=supplier.max_entries, ttl_ms=ttl_millis(ttl))

    @staticmethod
    @takes(name=TEXT, key_serde=SERDE, value_serde=SERDE, ttl=optional(DURATION))
    def timestamped_key_value_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
        log_config: Mapping[str, str] | None = None,
        ttl: timedelta | None = None,
    ) -> StoreBuilder[KeyValueStore[K, ValueAndTimestamp[V]]]:
        """Describe a key-value store with the time of each key's last update: `ValueAndTimestamp`.

        Arguments are those of `key_value_store`. With a `ttl`, a row lives from its own time.

        Raises:
            TopologyError: If the name cannot be part of a topic's name, or `ttl` is not a positive whole number of ms.
        """
        builder = _store(
            name,
            StoreKind.TIMESTAMPED_KEY_VALUE,
            key_serde=key_serde,
            value_serde=value_serde,
            persistent=persistent,
            caching=caching,
            logging=logging,
            log_config=log_config,
        )
        return replace(builder, ttl_ms=ttl_millis(ttl))

    @staticmethod
    @takes(name=TEXT, key_serde=SERDE, value_serde=SERDE, retention=DURATION, window_size=DURATION)
    def window_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        retention: timedelta,
        window_size: timedelta,
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
        log_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[WindowStore[K, V]]:
        """Describe a window store, which keeps windows of length `window_size` for `retention` behind its highest time.

        Other arguments are those of `key_value_store`.

        Raises:
            TopologyError: If the name is illegal, or the retention is below the window's size.
        """
        times = _window_times(name, retention, window_size)
        return _store(
            name,
            StoreKind.WINDOW,
            key_serde=key_serde,
            value_serde=value_serde,
            persistent=persistent,
            caching=caching,
            logging=logging,
            log_config=log_config,
            times=times,
        )

    @staticmethod
    @takes(name=TEXT, key_serde=SERDE, value_serde=SERDE, retention=DURATION, window_size=DURATION)
    def timestamped_window_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        retention: timedelta,
        window_size: timedelta,
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
        log_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[WindowStore[K, ValueAndTimestamp[V]]]:
        """Describe a window store with the time of each window's last update: `ValueAndTimestamp`.

        Arguments and errors are those of `window_store`.
        """
        times = _window_times(name, retention, window_size)
        return _store(
            name,
            StoreKind.TIMESTAMPED_WINDOW,
            key_serde=key_serde,
            value_serde=value_serde,
            persistent=persistent,
            caching=caching,
            logging=logging,
            log_config=log_config,
            times=times,
        )

    @staticmethod
    @takes(name=TEXT, key_serde=SERDE, value_serde=SERDE, retention=DURATION)
    def session_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        retention: timedelta,
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
        log_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[SessionStore[K, V]]:
        """Describe a session store, which keeps a session for `retention` behind the highest end of a session in the store.

        Other arguments are those of `key_value_store`.

        Raises:
            TopologyError: If the name is illegal, or the retention is negative.
        """
        times = millis(retention, "retention"), 0
        return _store(
            name,
            StoreKind.SESSION,
            key_serde=key_serde,
            value_serde=value_serde,
            persistent=persistent,
            caching=caching,
            logging=logging,
            log_config=log_config,
            times=times,
        )

    @staticmethod
    @takes(name=TEXT, key_serde=SERDE, value_serde=SERDE, history_retention=DURATION)
    def versioned_key_value_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        history_retention: timedelta,
        persistent: bool = True,
        logging: bool = True,
        log_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[VersionedKeyValueStore[K, V]]:
        """Describe a versioned key-value store: values with the times from which they are valid. Never cached.

        Values can be looked up, and put late, for `history_retention`. Other arguments are those of `key_value_store`.

        Raises:
            TopologyError: If the name cannot be part of a topic's name, or the retention is negative.
        """
        times = millis(history_retention, "history retention"), 0
        return _store(
            name,
            StoreKind.VERSIONED,
            key_serde=key_serde,
            value_serde=value_serde,
            persistent=persistent,
            caching=False,
            logging=logging,
            log_config=log_config,
            times=times,
        )


def ttl_millis(ttl: timedelta | None) -> int | None:
    """Convert a time to live to whole ms; None stays."""
    if ttl is None:
        return None
    ttl_ms = millis(ttl, "ttl")
    if ttl_ms == 0:
        raise TopologyError("ttl must be positive")
    return ttl_ms


def _store(
    name: str,
    kind: StoreKind,
    *,
    key_serde: Serde[K],
    value_serde: Serde[V],
    persistent: bool,
    caching: bool,
    logging: bool,
    log_config: Mapping[str, str] | None,
    times: tuple[int, int] = (0, 0),
) -> StoreBuilder:
    if not is_legal_topic(name):
        raise TopologyError(f"Store name {name!r} is illegal: 1 to 249 characters out of a-z A-Z 0-9 . _ -")
    retention_ms, window_size_ms = times
    return StoreBuilder(
        name,
        kind,
        key_serde,
        value_serde,
        persistent=persistent,
        caching=caching,
        logging=logging,
        log_config=log_config or {},
        retention_ms=retention_ms,
        window_size_ms=window_size_ms,
    )


def _window_times(name: str, retention: timedelta, window_size: timedelta) -> tuple[int, int]:
    retention_ms, window_size_ms = millis(retention, "retention"), millis(window_size, "window size")
    if window_size_ms <= 0 or retention_ms < window_size_ms:
        message = f"Store {name}: retention ({retention_ms} ms) must be at least the window size ({window_size_ms} ms)"
        raise TopologyError(message)
    return retention_ms, window_size_ms
