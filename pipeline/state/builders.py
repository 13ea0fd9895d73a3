"""`Stores`: how users describe stores for the Processor API (`org.apache.kafka.streams.state.Stores`)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pipeline.errors import TopologyError
from pipeline.state.api import StoreBuilder, StoreKind
from pipeline.windows import millis

if TYPE_CHECKING:
    from datetime import timedelta

    from pipeline.serde.api import Serde

K = TypeVar("K")
V = TypeVar("V")

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Stores:
    """Descriptions of stores (`org.apache.kafka.streams.state.Stores`). Nothing is opened here.

    Where Kafka Streams has a supplier for each place (`persistentKeyValueStore`, `inMemoryKeyValueStore`, …) and a builder
    around it, there is one function per kind of store here: `persistent=False` keeps it in memory.

    >>> from pipeline.serde.primitives import LONG, STRING
    >>> Stores.key_value_store("Counts", STRING, LONG).name
    'Counts'
    """

    @staticmethod
    def key_value_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
    ) -> StoreBuilder:
        """Keys to values.

        Raises:
            TopologyError: If the name cannot be part of a topic's name.
        """
        return _store(name, StoreKind.KEY_VALUE, key_serde, value_serde, persistent, caching, logging)

    @staticmethod
    def lru_map(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        max_cache_size: int,
        caching: bool = False,
        logging: bool = True,
    ) -> StoreBuilder:
        """Keys to values, in memory; of the keys, those that were read or written last.

        Args:
            name: Name of the store.
            key_serde: Serde of the keys.
            value_serde: Serde of the values.
            max_cache_size: How many keys are kept.
            caching: Whether updates are held back and forwarded once per key and commit.
            logging: Whether changes, also the disappearance of keys, go to a changelog topic.

        Raises:
            TopologyError: If the name cannot be part of a topic's name, or the size is negative.
        """
        if max_cache_size < 0:
            message = f"Store {name}: max_cache_size cannot be negative"
            raise TopologyError(message)
        builder = _store(name, StoreKind.KEY_VALUE, key_serde, value_serde, False, caching, logging)  # noqa: FBT003
        return replace(builder, max_entries=max_cache_size)

    @staticmethod
    def timestamped_key_value_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
    ) -> StoreBuilder:
        """Keys to values with the time of their last update: `ValueAndTimestamp`.

        Raises:
            TopologyError: If the name cannot be part of a topic's name.
        """
        return _store(name, StoreKind.TIMESTAMPED_KEY_VALUE, key_serde, value_serde, persistent, caching, logging)

    @staticmethod
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
    ) -> StoreBuilder:
        """Windows of keys to values.

        Args:
            name: Name of the store.
            key_serde: Serde of the keys.
            value_serde: Serde of the values.
            retention: How long a window is kept behind the store's highest time.
            window_size: Length of a window.
            persistent: RocksDB if true, else memory.
            caching: Whether updates are held back and forwarded once per key and commit.
            logging: Whether changes go to a changelog topic.

        Raises:
            TopologyError: If the name is illegal, or the retention is below the window's size.
        """
        times = _window_times(name, retention, window_size)
        return _store(name, StoreKind.WINDOW, key_serde, value_serde, persistent, caching, logging, times)

    @staticmethod
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
    ) -> StoreBuilder:
        """Windows of keys to values with the time of their last update: `ValueAndTimestamp`.

        Arguments and errors are those of `window_store`.
        """
        times = _window_times(name, retention, window_size)
        return _store(name, StoreKind.TIMESTAMPED_WINDOW, key_serde, value_serde, persistent, caching, logging, times)

    @staticmethod
    def session_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        retention: timedelta,
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
    ) -> StoreBuilder:
        """Sessions of keys to values.

        Args:
            name: Name of the store.
            key_serde: Serde of the keys.
            value_serde: Serde of the values.
            retention: How long a session is kept behind the highest end of a session in the store.
            persistent: RocksDB if true, else memory.
            caching: Whether updates are held back and forwarded once per key and commit.
            logging: Whether changes go to a changelog topic.

        Raises:
            TopologyError: If the name is illegal, or the retention is negative.
        """
        times = millis(retention, "retention"), 0
        return _store(name, StoreKind.SESSION, key_serde, value_serde, persistent, caching, logging, times)

    @staticmethod
    def versioned_key_value_store(
        name: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        history_retention: timedelta,
        persistent: bool = True,
        logging: bool = True,
    ) -> StoreBuilder:
        """Keys to values and the times they held. Never cached.

        Args:
            name: Name of the store.
            key_serde: Serde of the keys.
            value_serde: Serde of the values.
            history_retention: How far back values can be looked up, and how late a put may be.
            persistent: RocksDB if true, else memory.
            logging: Whether changes go to a changelog topic.

        Raises:
            TopologyError: If the name cannot be part of a topic's name, or the retention is negative.
        """
        times = millis(history_retention, "history retention"), 0
        return _store(name, StoreKind.VERSIONED, key_serde, value_serde, persistent, False, logging, times)  # noqa: FBT003


def _store(
    name: str,
    kind: StoreKind,
    key_serde: Serde[K],
    value_serde: Serde[V],
    persistent: bool,  # noqa: FBT001 - passed through
    caching: bool,  # noqa: FBT001 - passed through
    logging: bool,  # noqa: FBT001 - passed through
    times: tuple[int, int] = (0, 0),
) -> StoreBuilder:
    if name in {".", ".."} or not _LEGAL_NAME.fullmatch(name):
        message = f"Store name {name!r} is illegal: 1 to 249 characters out of a-z A-Z 0-9 . _ -"
        raise TopologyError(message)
    retention_ms, window_size_ms = times
    return StoreBuilder(
        name,
        kind,
        key_serde,
        value_serde,
        persistent=persistent,
        caching=caching,
        logging=logging,
        retention_ms=retention_ms,
        window_size_ms=window_size_ms,
    )


def _window_times(name: str, retention: timedelta, window_size: timedelta) -> tuple[int, int]:
    retention_ms, window_size_ms = millis(retention, "retention"), millis(window_size, "window size")
    if window_size_ms <= 0 or retention_ms < window_size_ms:
        message = f"Store {name}: retention ({retention_ms} ms) must be at least the window size ({window_size_ms} ms)"
        raise TopologyError(message)
    return retention_ms, window_size_ms
