"""Finds windows and versions that brokers have deleted from a changelog although their stores still need them.

That happens only where a store's `log_config` sets `retention.ms` or `min.compaction.lag.ms`, as Kafka Streams does for
all windows and versions (`WindowedChangelogTopicConfig`, `VersionedChangelogTopicConfig`). Brokers compare event times with
their own clock. When old records are processed again, event time is far behind that clock. Brokers then delete records that
are still needed, and a task without local state cannot restore them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from riverrun.runtime.times.offset_metadata import OffsetMetadata
from riverrun.state.api import WINDOWED, StoreKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from riverrun.hosting.restoring.changelog_ranges import Missing
    from riverrun.kafka.admin import Admin, CommittedOffset
    from riverrun.runtime.task_spec import TaskSpec
    from riverrun.state.api import StoreBuilder


def lost_history(
    admin: Admin, missing: Missing, spec: TaskSpec, committed: Iterable[CommittedOffset], now_ms: int
) -> Iterator[str]:
    """Yield warnings about stores to be restored that may lack open windows, or versions within their history.

    Args:
        admin: Asks the brokers.
        missing: The changelog records that the task's state lacks.
        spec: The task.
        committed: Commits of its inputs, whose metadata has event times.
        now_ms: The present time, ms since the epoch.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    changelogs = spec.own_changelogs
    reached_ms = max((OffsetMetadata.decode(found.metadata).partition_time for found in committed), default=-1)
    for store in spec.sub_topology.stores:
        tp = changelogs.get(store.name)
        if tp is None or reached_ms < 0:
            continue
        known, wanted = missing.backend.positions().get(tp, 0), missing.ranges[tp]
        needed_ms = now_ms - (reached_ms - store.retention_ms)
        reached = _shown(reached_ms)
        if store.kind in WINDOWED and known < wanted.start:
            kept_ms = int(admin.topic_config(tp.topic)["retention.ms"])
            if 0 <= kept_ms < needed_ms:
                yield (
                    f"Open windows of store {store.name} may be lost: event time is at {reached}, and brokers have deleted"
                    f" what is older than {kept_ms} ms (retention.ms) from {tp}, which begins at offset {wanted.start}."
                    " Leave retention.ms out of the store's log_config; a new version computes them again"
                )
        elif _is_compacted_early(admin, store, tp.topic, needed_ms) and known < wanted.end:
            yield (
                f"Versions of store {store.name} may be lost: event time is at {reached}, and brokers keep one per key of what"
                f" is older than min.compaction.lag.ms in {tp}, which is restored from offset {wanted.start}."
                " Leave min.compaction.lag.ms out of the store's log_config; a new version computes them again"
            )


def _is_compacted_early(admin: Admin, store: StoreBuilder, topic: str, needed_ms: int) -> bool:
    """Return whether brokers may compact versions as old as `needed_ms`, by their clock."""
    return store.kind is StoreKind.VERSIONED and int(admin.topic_config(topic)["min.compaction.lag.ms"]) < needed_ms


def _shown(time_ms: int) -> str:
    """Return an event time as text; committed ones may be later than any date."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
