"""Settings of changelog topics (`InternalTopicConfig` and its subclasses)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.state.api import StoreKind

if TYPE_CHECKING:
    from pipeline.state.api import StoreBuilder

ADDITIONAL_RETENTION_MS = 86_400_000
"""Default of `windowstore.changelog.additional.retention.ms`."""


def changelog_config(builder: StoreBuilder, additional_retention_ms: int = ADDITIONAL_RETENTION_MS) -> dict[str, str]:
    """Topic settings of a store's changelog.

    Args:
        builder: The store; its `log_config` has the last word.
        additional_retention_ms: How much longer than the store the topic of a window or session store keeps records, and that
            of a versioned store all versions of a key.
    """
    config = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
    windowed = {StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.JOIN_WINDOW, StoreKind.SESSION}
    if builder.kind in windowed:
        config["cleanup.policy"] = "compact,delete"
        config["retention.ms"] = str(min(builder.retention_ms + additional_retention_ms, 2**63 - 1))
    if builder.kind is StoreKind.VERSIONED:
        config["min.compaction.lag.ms"] = str(min(builder.retention_ms + additional_retention_ms, 2**63 - 1))
    config |= builder.log_config
    if builder.kind is StoreKind.JOIN_WINDOW:  # every key is there once, so compaction has nothing to do
        config["cleanup.policy"] = "delete"
    return config
