"""A task's local state: opened, and brought to the committed point out of its changelogs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.kafka.ranges import read_range
from pipeline.records import OffsetRange, TopicPartition
from pipeline.state.memory import MemoryBackend
from pipeline.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pipeline.kafka.admin import Admin
    from pipeline.runtime.task import Task
    from pipeline.state.api import StateBackend
    from pipeline.topology.nodes import SubTopology


def open_backend(sub_topology: SubTopology, directory: Path) -> StateBackend:
    """Where a task keeps its state: in RocksDB at `directory` if any of its stores is persistent, else in memory.

    Raises:
        StateError: If another process uses the directory.
    """
    if any(store.persistent for store in sub_topology.stores):
        return RocksDbBackend(directory)
    return MemoryBackend()


def restore(
    task: Task,
    backend: StateBackend,
    admin: Admin,
    kafka: Mapping[str, str],
    committed: Mapping[TopicPartition, int],
    on_restore: Callable[[TopicPartition, int, int], None],
) -> int:
    """Apply what the local state lacks of the task's changelogs; gives the number of records.

    Local state of another history than the changelogs' is thrown away and restored from their beginning.

    Args:
        task: The task; not started yet.
        backend: Its state.
        admin: Asks the brokers.
        kafka: Client properties.
        committed: Committed offsets of the task's inputs. Read-only stores are restored from inputs, up to these.
        on_restore: Called with changelog, records so far and records expected.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    limits = {tp: committed.get(tp, 0) for tp in task.changelogs.values() if tp in task.spec.inputs}
    ranges = _missing(admin, task.restore_starts(), limits)
    if ranges is None:
        backend.wipe()
        ranges = _missing(admin, dict.fromkeys(task.changelogs.values(), 0), limits) or {}
    expected, restored = sum(r.size for r in ranges.values()), 0
    for tp, records in read_range(admin, kafka, ranges):
        if records:
            task.restore(tp, records, records[-1].offset + 1)
            restored += len(records)
            on_restore(tp, restored, expected)
    for tp, whole in ranges.items():
        backend.write({}, {tp: whole.end})
    return restored


def _missing(
    admin: Admin, starts: Mapping[TopicPartition, int], limits: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetRange] | None:
    """What of each changelog the local state lacks; None if it is ahead of, or behind, what they still have."""
    first, last = admin.beginning_offsets(starts), dict(admin.end_offsets(starts))
    last |= {tp: max(first[tp], limit) for tp, limit in limits.items()}
    if any(start > last[tp] or 0 < start < first[tp] for tp, start in starts.items()):
        return None
    return {tp: OffsetRange(max(start, first[tp]), last[tp]) for tp, start in starts.items()}
