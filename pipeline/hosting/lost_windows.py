"""Windows that brokers have deleted from a changelog although they are open still.

They do that only where a store's `log_config` names a `retention.ms`, as Kafka Streams does for all windows
(`WindowedChangelogTopicConfig`): brokers compare event times with their own clock. Where event time lies far behind it, as when
old records are processed anew, they delete what the store has not forgotten yet, and a task without local state cannot get it
back.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipeline.runtime.offset_metadata import OffsetMetadata
from pipeline.state.api import WINDOWED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pipeline.hosting.restoring import Missing
    from pipeline.kafka.admin import Admin, CommittedOffset
    from pipeline.runtime.task_spec import TaskSpec


def lost_windows(
    admin: Admin, missing: Missing, spec: TaskSpec, committed: Iterable[CommittedOffset], now_ms: int
) -> Iterator[str]:
    """Say of which changelogs, whose beginning is gone and which have to be restored, the open windows may be gone.

    Args:
        admin: Asks the brokers.
        missing: What the task's state lacks.
        spec: The task.
        committed: What is committed of its inputs: event times are beside it.
        now_ms: What time it is.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    known, changelogs = missing.backend.positions(), spec.own_changelogs
    reached_ms = max((OffsetMetadata.decode(found.metadata).partition_time for found in committed), default=-1)
    for store in spec.sub_topology.stores:
        tp = changelogs.get(store.name)
        if tp is None or store.kind not in WINDOWED or known.get(tp, 0) >= missing.ranges[tp].start or reached_ms < 0:
            continue
        kept_ms = int(admin.topic_config(tp.topic)["retention.ms"])
        if 0 <= kept_ms < now_ms - (reached_ms - store.retention_ms):
            reached = datetime.fromtimestamp(reached_ms / 1000, UTC).isoformat(timespec="seconds")
            yield (
                f"Open windows of store {store.name} may be lost: event time is at {reached}, and brokers have deleted"
                f" what is older than {kept_ms} ms (retention.ms) from {tp}, which begins at offset {missing.ranges[tp].start}."
                " Leave retention.ms out of the store's log_config; a new version computes them again"
            )
