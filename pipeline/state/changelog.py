"""Settings of changelog topics (`InternalTopicConfig` and its subclasses)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.state.api import WINDOWED, StoreKind

if TYPE_CHECKING:
    from pipeline.state.api import StoreBuilder

ADDITIONAL_RETENTION_MS = 86_400_000
"""Default of `windowstore.changelog.additional.retention.ms`: how much longer than the store the topic of a store that forgets
keeps records."""
FOR_EVER = "-1"
"""`retention.ms` of topics from which brokers delete nothing because of its time."""
NEVER = str(2**63 - 1)
"""`min.compaction.lag.ms` of topics that brokers do not compact, however old a record is."""


def changelog_config(builder: StoreBuilder) -> dict[str, str]:
    """Topic settings of a store's changelog.

    Windows are never deleted by brokers, as with Kafka Streams (`WindowedChangelogTopicConfig`): they compare event times with
    their own clock, and windows that are open in records of last year would be gone at once. Their owner deletes what the
    store has forgotten (`pipeline.hosting.tasks.purge`).

    Nor do brokers compact versions, as with Kafka Streams (`VersionedChangelogTopicConfig`): of those of last year they would
    leave one per key at once. Their owner deletes none: the latest version of a key is needed for ever.

    Args:
        builder: The store; its `log_config` has the last word.
    """
    config = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
    if builder.kind in WINDOWED:
        config["cleanup.policy"] = "compact,delete"
        config["retention.ms"] = FOR_EVER
    if builder.kind is StoreKind.VERSIONED:
        config["min.compaction.lag.ms"] = NEVER
    config |= builder.log_config
    if builder.kind is StoreKind.JOIN_WINDOW:  # every key is there once, so compaction has nothing to do
        config["cleanup.policy"] = "delete"
    return config


def is_trimmed(builder: StoreBuilder) -> bool:
    """Whether what a store has forgotten is to be deleted from its changelog."""
    return builder.kind in WINDOWED and "delete" in changelog_config(builder)["cleanup.policy"]
