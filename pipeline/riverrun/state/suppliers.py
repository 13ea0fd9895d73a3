"""`StoreSupplier`, the name and storage of a store without serdes; and the settings of changelogs (`InternalTopicConfig`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.errors import TopologyError
from riverrun.state.api import WINDOWED, StoreKind

if TYPE_CHECKING:
    from riverrun.state.api import StoreBuilder


@dataclass(frozen=True, slots=True)
class StoreSupplier:
    """A store for an operator of the DSL (`org.apache.kafka.streams.state.StoreSupplier`); `Stores` makes them.

    In `Materialized` or `StreamJoined`, it determines everything but serdes, caching and logging.

    Args:
        name: Name of the store; part of the name of its changelog.
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
        if self.window_size_ms > self.retention_ms:
            raise TopologyError(
                f"The retention period of the window store {self.name} must be no smaller than its window size. "
                f"Got size=[{self.window_size_ms}], retention=[{self.retention_ms}]"
            )
        if self.max_entries is not None and self.max_entries < 0:
            raise TopologyError("max_cache_size cannot be negative")


# Default of `windowstore.changelog.additional.retention.ms`: time for which the changelog of a store with retention keeps
# records beyond the store's retention.
ADDITIONAL_RETENTION_MS = 86_400_000
# `retention.ms` of topics from which brokers delete nothing by time.
FOR_EVER = "-1"
# `min.compaction.lag.ms` of topics that brokers do not compact, however old a record is.
NEVER = str(2**63 - 1)


def changelog_config(builder: StoreBuilder) -> dict[str, str]:
    """Return the topic settings of a store's changelog; the store's `log_config` overrides all other settings."""
    config = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
    if builder.kind in WINDOWED:
        # Unlike with Kafka Streams (`WindowedChangelogTopicConfig`), brokers never delete windows. They would compare event
        # times with their own clock, so open windows in records of last year would be gone at once. The owner of the store
        # deletes its expired windows from the topic (`riverrun.hosting.purge`).
        config["cleanup.policy"] = "compact,delete"
        config["retention.ms"] = FOR_EVER
    if builder.kind is StoreKind.VERSIONED:
        # Unlike with Kafka Streams (`VersionedChangelogTopicConfig`), brokers do not compact versions. They would leave one
        # version per key of last year at once. The owner deletes none either, as the latest one of a key is always needed.
        config["min.compaction.lag.ms"] = NEVER
    config |= builder.log_config
    # Each key of a join's store is written once, so compaction has nothing to do.
    if builder.kind is StoreKind.JOIN_WINDOW:
        config["cleanup.policy"] = "delete"
    return config


def is_trimmed(builder: StoreBuilder) -> bool:
    """Return whether expired entries of a store are to be deleted from its changelog."""
    return builder.kind in WINDOWED and "delete" in changelog_config(builder)["cleanup.policy"]
