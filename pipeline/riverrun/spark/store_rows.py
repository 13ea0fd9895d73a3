"""Reads one partition of a store on an executor: a snapshot and the changelog's tail, in a temporary directory.

It fences no task and leaves the application's local state alone. Imports no pyspark.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import RangeError
from riverrun.hosting.process import SystemClock
from riverrun.hosting.snapshots import open_snapshot, open_state
from riverrun.kafka.ranges import read_range
from riverrun.records import OffsetRange
from riverrun.runtime.context import TaskContext
from riverrun.serde.exact_values import end_micros, micros
from riverrun.serde.serdes import BYTES
from riverrun.spark.columns import KEY, TIME, FrameColumn, array, columns_of
from riverrun.spark.tasks.reporting import reporting
from riverrun.spark.tasks.work import connected_here
from riverrun.state.api import StoreKind
from riverrun.state.stores.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.records import Headers, RawRecord, TaskId, TopicPartition
    from riverrun.spark.columns import Columns
    from riverrun.spark.tasks.work import Job
    from riverrun.state.api import StateBackend, StateStore, StoreBuilder
    from riverrun.topology.topology import Topology

_BATCH = 10_000
_PARTITION = FrameColumn("partition", pa.int32())
_WINDOW = (FrameColumn("window_start", TIME, micros), FrameColumn("window_end", TIME, end_micros))
_TIMESTAMP = (FrameColumn("timestamp", TIME, micros),)
_VALIDITY = (FrameColumn("valid_from", TIME, micros), FrameColumn("valid_to", TIME, end_micros))

Row = tuple[bytes, bytes, tuple[int | None, ...]]
"""Key, value, and the times (ms) in the order of their columns."""


@dataclass(frozen=True, slots=True)
class StoreWork:
    """One partition of a store.

    Args:
        changelog: The partition that it is restored from; of a source topic, if the store has no changelog.
        end: End offset (exclusive) of the restore; not used with a snapshot.
        snapshot: Name of the snapshot with the wanted state; None to read the changelog up to `end`.
    """

    job: Job
    task_id: TaskId
    store: str
    changelog: TopicPartition
    end: int
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class StoreColumns:
    """The columns of a store: key, times of the window, value, other times, partition."""

    key: Columns
    window: tuple[FrameColumn, ...]
    value: Columns
    times: tuple[FrameColumn, ...]

    @property
    def all(self) -> list[FrameColumn]:
        return [*self.key.columns, *self.window, *self.value.columns, *self.times, _PARTITION]


READABLE: dict[StoreKind, tuple[tuple[FrameColumn, ...], tuple[FrameColumn, ...]]] = {
    StoreKind.KEY_VALUE: ((), ()),
    StoreKind.TIMESTAMPED_KEY_VALUE: ((), _TIMESTAMP),
    StoreKind.WINDOW: (_WINDOW, ()),
    StoreKind.TIMESTAMPED_WINDOW: (_WINDOW, _TIMESTAMP),
    StoreKind.SESSION: (_WINDOW, ()),
    StoreKind.VERSIONED: ((), _VALIDITY),
}
"""The kinds of stores that are tables, with the columns of their windows and of other times."""


def store_columns(builder: StoreBuilder) -> StoreColumns:
    """Return the columns of a store; its kind must be one of `READABLE`."""
    window, times = READABLE[builder.kind]
    return StoreColumns(columns_of(KEY, builder.key_serde), window, columns_of("value", builder.value_serde), times)


def raw_builder(builder: StoreBuilder) -> StoreBuilder:
    """Return the store with keys and values as bytes."""
    return replace(builder, key_serde=BYTES, value_serde=BYTES, caching=False)


def rows_of(work: StoreWork, build: Callable[[Job], Topology]) -> Iterator[Row]:
    """Yield the rows of one partition as bytes, with their times. Errors are those of `read_rows`."""
    connected = connected_here(work.job, build)
    builder = connected.topology.stores[work.store]
    with _opened(work, connected, builder) as state:
        yield from _rows(builder, _store(builder, state))


def read_rows(work: StoreWork, build: Callable[[Job], Topology], *, raw: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition, as batches of Arrow; with `raw`, keys and values as bytes."""
    connected = connected_here(work.job, build)
    builder = connected.topology.stores[work.store]
    read = [0]
    with (
        _opened(work, connected, builder) as state,
        reporting(connected.admin, work.job.progress, [work.changelog], 0, lambda: sum(read)),
    ):
        for batch in batches_of(raw_builder(builder) if raw else builder, work.task_id, state):
            yield batch
            read.append(batch.num_rows)


def batches_of(builder: StoreBuilder, task_id: TaskId, state: StateBackend) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a task's store, as batches of Arrow."""
    columns = store_columns(builder)
    names = [column.name for column in columns.all]
    rows = _rows(builder, _store(builder, state))
    while batch := list(islice(rows, _BATCH)):
        yield pa.RecordBatch.from_arrays(_arrays(builder.name, task_id, columns, batch), names=names)


def _store(builder: StoreBuilder, state: StateBackend) -> StateStore:
    # With keys and values as bytes: its rows become columns later, and restores need no serdes.
    return open_store(raw_builder(builder), state, TaskContext(SystemClock()))


@contextmanager
def _opened(work: StoreWork, connected: ConnectedApplication, builder: StoreBuilder) -> Iterator[StateBackend]:
    """Open the state as it was at the wanted point."""
    with tempfile.TemporaryDirectory(prefix="riverrun-store-") as directory:
        elsewhere = connected.in_directory(Path(directory))
        if work.snapshot is not None:
            state = open_snapshot(elsewhere.application, work.task_id, work.snapshot)
        else:
            state = open_state(elsewhere, work.task_id)
        try:
            if work.snapshot is None:
                _follow(work, _store(builder, state), state, connected.admin)
            yield state
        finally:
            state.close()


def _follow(work: StoreWork, store: StateStore, state: StateBackend, admin: Admin) -> None:
    """Apply the store's changelog up to the wanted end."""
    start = state.positions().get(work.changelog, 0)
    if start > work.end:
        message = (
            f"Store {work.store} is already at offset {start} of {work.changelog}, beyond the requested {work.end}"
        )
        raise RangeError(message, hint="Read it again.")
    # A compacted changelog may begin later than the state ends.
    start = min(work.end, max(start, admin.beginning_offsets([work.changelog])[work.changelog]))
    for tp, records in read_range(admin, {work.changelog: OffsetRange(start, work.end)}):
        if records:
            state.write(store.restore(_Columns(records)), {tp: records[-1].offset + 1})


class _Columns:
    """Records of a changelog in the form that stores restore from: a `ChangelogBatch`."""

    def __init__(self, records: list[RawRecord]) -> None:
        self._parts = [(r.key, r.value, r.timestamp, r.headers) for r in records if r.key is not None]

    def keys(self) -> list[bytes]:
        return [key for key, _, _, _ in self._parts]

    def values(self) -> list[bytes | None]:
        return [value for _, value, _, _ in self._parts]

    def timestamps(self) -> list[int]:
        return [timestamp for _, _, timestamp, _ in self._parts]

    def headers(self) -> list[Headers]:
        return [headers for _, _, _, headers in self._parts]


def _rows(builder: StoreBuilder, store: Any) -> Iterator[Row]:
    """Yield all entries of the store, whatever its kind."""
    match builder.kind:
        case StoreKind.KEY_VALUE:
            return ((key, value, ()) for key, value in store.all())
        case StoreKind.TIMESTAMPED_KEY_VALUE:
            return ((key, value, (time_ms,)) for key, (value, time_ms) in store.all())
        case StoreKind.WINDOW:
            return ((key, value, (start, builder.end_of(start))) for key, start, value in store.all())
        case StoreKind.TIMESTAMPED_WINDOW:
            return (
                (key, value, (start, builder.end_of(start), time_ms)) for key, start, (value, time_ms) in store.all()
            )
        case StoreKind.SESSION:
            return ((key, value, (window.start, window.end)) for (key, window), value in store.all())
        case _:
            return ((key, found.value, (found.timestamp, found.valid_to)) for key, found in store.all_versions())


def _arrays(store: str, task_id: TaskId, columns: StoreColumns, rows: list[Row]) -> list[pa.Array]:
    def place(_row: int) -> dict[str, str | int]:
        return {"store": store, "task": str(task_id)}

    times = [
        array(column, [row[2][at] for row in rows], place)
        for at, column in enumerate((*columns.window, *columns.times))
    ]
    return [
        *columns.key.arrays([row[0] for row in rows], place),
        *times[: len(columns.window)],
        *columns.value.arrays([row[1] for row in rows], place),
        *times[len(columns.window) :],
        pa.array([task_id.partition] * len(rows), _PARTITION.kind),
    ]
