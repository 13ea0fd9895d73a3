"""Settings of changelog topics (`InternalTopicConfig` and its subclasses)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.state.api import WINDOWED, StoreKind

if TYPE_CHECKING:
    from riverrun.state.api import StoreBuilder

ADDITIONAL_RETENTION_MS = 86_400_000
"""Default of `windowstore.changelog.additional.retention.ms`: time for which the changelog of a store with retention keeps
records beyond the store's retention."""
FOR_EVER = "-1"
"""`retention.ms` of topics from which brokers delete nothing by time."""
NEVER = str(2**63 - 1)
"""`min.compaction.lag.ms` of topics that brokers do not compact, however old a record is."""


def changelog_config(builder: StoreBuilder) -> dict[str, str]:
    """Return the topic settings of a store's changelog.

    Unlike with Kafka Streams (`WindowedChangelogTopicConfig`), brokers never delete windows. They would compare event times
    with their own clock, so open windows in records of last year would be gone at once. The owner of the store deletes
    its expired windows from the topic (`riverrun.hosting.tasks.purge`).

    Unlike with Kafka Streams (`VersionedChangelogTopicConfig`), brokers do not compact versions. They would leave one version
    per key of last year at once. The owner deletes no versions, as the latest one of a key is always needed.

    Args:
        builder: The store; its `log_config` overrides all other settings.
    """
    config = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
    if builder.kind in WINDOWED:
        config["cleanup.policy"] = "compact,delete"
        config["retention.ms"] = FOR_EVER
    if builder.kind is StoreKind.VERSIONED:
        config["min.compaction.lag.ms"] = NEVER
    config |= builder.log_config
    if builder.kind is StoreKind.JOIN_WINDOW:  # each key is written once, so compaction has nothing to do
        config["cleanup.policy"] = "delete"
    return config


def is_trimmed(builder: StoreBuilder) -> bool:
    """Return whether expired entries of a store are to be deleted from its changelog."""
    return builder.kind in WINDOWED and "delete" in changelog_config(builder)["cleanup.policy"]
