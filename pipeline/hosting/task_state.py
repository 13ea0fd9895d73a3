"""A task's local state: opened, and brought to the committed point out of its changelogs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pipeline.errors import RangeError, TaskCorruptedError
from pipeline.kafka.ranges import read_range
from pipeline.records import OffsetRange, TopicPartition
from pipeline.state.memory import MemoryBackend
from pipeline.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pipeline.errors import StreamsError
    from pipeline.kafka.admin import Admin
    from pipeline.records import RawRecord
    from pipeline.runtime.task import Task
    from pipeline.state.api import StateBackend
    from pipeline.topology.nodes import SubTopology

log = logging.getLogger(__name__)


def open_backend(sub_topology: SubTopology, directory: Path) -> StateBackend:
    """Where a task keeps its state: in RocksDB at `directory` if any of its stores is persistent, else in memory.

    Raises:
        StateError: If another process uses the directory.
    """
    if any(store.persistent for store in sub_topology.stores):
        return RocksDbBackend(directory)
    return MemoryBackend()


def restore(
    make_task: Callable[[], Task],
    backend: StateBackend,
    admin: Admin,
    kafka: Mapping[str, str],
    committed: Mapping[TopicPartition, int],
    on_restore: Callable[[TopicPartition, int, int], None],
) -> tuple[Task, int]:
    """Make a task and apply what its local state lacks of its changelogs; gives both the task and the number of records.

    Local state of another history than the changelogs' is thrown away, with the task whose stores have looked at it
    (`TaskCorruptedException`): another task is restored from the changelogs' beginning.

    Args:
        make_task: Makes the task above the backend.
        backend: Its state.
        admin: Asks the brokers.
        kafka: Client properties.
        committed: Committed offsets of the task's inputs. Read-only stores are restored from inputs, up to these.
        on_restore: Called with changelog, records so far and records expected.

    Raises:
        BrokerError: If the brokers do not answer.
        StateError: If the state cannot be written.
    """
    while True:
        task = make_task()
        try:
            ranges = _missing(task, admin, committed)
            return task, _apply(task, backend, read_range(admin, kafka, ranges), ranges, on_restore)
        except (TaskCorruptedError, RangeError) as error:  # the latter if records were deleted since we looked
            start_over(task, backend, error)


def start_over(task: Task, backend: StateBackend, error: StreamsError) -> None:
    """Throw the local state of a task away, and the task with it."""
    named = {"task": str(task.spec.id)}
    log.warning("task %s restores all of its state: %s", task.spec.id, error.message, extra=named)
    task.close()
    backend.wipe()


def check_starts(
    starts: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int]
) -> None:
    """Make sure that the changelogs go on where the local state ends.

    Args:
        starts: Per changelog the next offset that the local state lacks; 0 if it has nothing.
        first: Where the changelogs begin.
        last: Where they end.

    Raises:
        TaskCorruptedError: If one ends before, or begins later: deletions in between would be missed.
    """
    for tp, start in starts.items():
        if start > last[tp] or 0 < start < first[tp]:
            message = f"the local state is at offset {start} of {tp}, which has {first[tp]} to {last[tp]}"
            raise TaskCorruptedError(message)


def _apply(
    task: Task,
    backend: StateBackend,
    batches: Iterable[tuple[TopicPartition, list[RawRecord]]],
    ranges: Mapping[TopicPartition, OffsetRange],
    on_restore: Callable[[TopicPartition, int, int], None],
) -> int:
    expected, restored = sum(r.size for r in ranges.values()), 0
    for tp, records in batches:
        if records:
            task.restore(tp, records, records[-1].offset + 1)
            restored += len(records)
            on_restore(tp, restored, expected)
    for tp, whole in ranges.items():
        backend.write({}, {tp: whole.end})
    return restored


def _missing(task: Task, admin: Admin, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetRange]:
    """What of each changelog the local state lacks."""
    starts = task.restore_starts()
    first, last = admin.beginning_offsets(starts), dict(admin.end_offsets(starts))
    last |= {tp: max(first[tp], committed.get(tp, 0)) for tp in starts if tp in task.spec.inputs}
    check_starts(starts, first, last)
    return {tp: OffsetRange(max(start, first[tp]), last[tp]) for tp, start in starts.items()}
