"""`StoreSupplier`: the name and the storage of a store, without serdes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.errors import TopologyError

if TYPE_CHECKING:
    from riverrun.state.api import StoreKind


@dataclass(frozen=True, slots=True)
class StoreSupplier:
    """A store for an operator of the DSL (`org.apache.kafka.streams.state.StoreSupplier`); `Stores` makes them.

    In `Materialized` or `StreamJoined`, it determines everything but serdes, caching and logging.

    Args:
        name: Name of the store.
        kind: `KEY_VALUE`, `WINDOW`, `SESSION` or `VERSIONED`. The operator decides whether times are stored with the values.
        persistent: RocksDB if true, else memory.
        retention_ms: Window and session stores: time for which entries are kept; versioned ones: length of the history.
        window_size_ms: Window stores: length of a window.
        retain_duplicates: Window stores: whether a key may have several values at the same time, as joins of streams need it.
        max_entries: Key-value stores: maximum number of keys; None keeps all.

    Raises:
        TopologyError: If windows are kept for less than their length, or the number of keys is negative.
    """

    name: str
    kind: StoreKind
    persistent: bool
    retention_ms: int = 0
    window_size_ms: int = 0
    retain_duplicates: bool = False
    max_entries: int | None = None

    def __post_init__(self) -> None:
        """Check times and size as `Stores` of Kafka Streams does."""
        if self.window_size_ms > self.retention_ms:
            message = (
                f"The retention period of the window store {self.name} must be no smaller than its window size. "
                f"Got size=[{self.window_size_ms}], retention=[{self.retention_ms}]"
            )
            raise TopologyError(message)
        if self.max_entries is not None and self.max_entries < 0:
            message = "max_cache_size cannot be negative"
            raise TopologyError(message)
