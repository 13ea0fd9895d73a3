"""Reads Parquet files into a store of an application that does not run, through the store's changelog.

Columns are those of frames (`spark.store_rows`). Rows are put into a store in a temporary directory, whose changelog
records are then sent: no second place knows how stores write. All of them are one transaction.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.errors import InvalidStateStoreError, StateError
from riverrun.hosting.alone import RUN, processing_alone
from riverrun.hosting.kept_offsets import KeptOffsets
from riverrun.hosting.ownership import fence_owners, transactional_id
from riverrun.hosting.process import SystemClock
from riverrun.hosting.state_schemas import StateSchemas
from riverrun.kafka.producer import TransactionalProducer
from riverrun.project.imported_rows import RowsOfFile, batches_of_file, check_columns, parquet_files
from riverrun.records import TopicPartition, ValueAndTimestamp
from riverrun.runtime.context import TaskContext
from riverrun.runtime.layout import changelog_name
from riverrun.service.routing import store_places
from riverrun.spark.store_rows import READABLE, raw_builder, rows_of
from riverrun.spark.stores import works_of
from riverrun.state.api import StoreKind
from riverrun.state.rocksdb import RocksDbBackend
from riverrun.state.stores.opening import open_store
from riverrun.windows import Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId
    from riverrun.service.routing import StorePlace
    from riverrun.spark.store_rows import Row
    from riverrun.spark.tasks.work import Job
    from riverrun.state.api import StateBackend, StoreBuilder
    from riverrun.topology.topology import Topology

# The longest transaction that brokers allow unless `transaction.max.timeout.ms` says otherwise.
_TRANSACTION_MS = 900_000


@dataclass(frozen=True, slots=True)
class Imported:
    """Rows that were written to a store.

    Args:
        rows: Number of rows in the files.
        replaced: Number of rows that the store had before.
    """

    rows: int
    replaced: int


def import_rows(
    connected: ConnectedApplication,
    store: str,
    source: Path,
    build: Callable[[Job], Topology],
    *,
    replaces: bool = False,
    keeps_partitions: bool = False,
) -> Imported:
    """Write the rows of Parquet files to a store's changelog, all or none, from which workers and runs restore it."""
    connected = connected.resolved()
    files = parquet_files(source)
    builder = _importable(connected, store)
    for file in files:
        # All files before anything is fenced or written: most mistakes are in columns.
        check_columns(builder, file)
    with processing_alone(connected, RUN), ExitStack() as opened:
        connected.prepare()
        StateSchemas(connected).check()
        place = store_places(connected.topology, connected.layout, connected.id)[store]
        # `processing_alone` has found nobody, but a paused worker may wake up: its transactional ids must not work any
        # more.
        fence_owners(connected, place.tasks)
        producer = TransactionalProducer(
            connected.application.kafka,
            transactional_id(connected.id, "import"),
            transaction_timeout_ms=_TRANSACTION_MS,
            overrides=connected.application.config.streams.producer,
            admin=connected.admin,
        )
        opened.callback(producer.close)
        producer.init()
        directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="riverrun-import-"))
        stores = _Stores(builder, place, Path(directory), changelog_name(connected.id, store), producer)
        opened.callback(stores.close)
        replaced = 0
        for work in works_of(connected, store):
            for row in rows_of(work, build):
                # Deleted versions stay in the history of a store, so it cannot be emptied.
                if not replaces or builder.kind is StoreKind.VERSIONED:
                    raise _not_empty(connected, builder)
                stores.delete(work.task_id, row)
                replaced += 1
        stores.send()
        rows = 0
        for file in files:
            rows += _import_file(stores, file, keeps_partitions=keeps_partitions)
        stores.send()
        # First: an application with rows, but without any progress, would seem to have lost its offsets.
        KeptOffsets(connected.admin, connected.id).note_import(store)
        producer.commit({}, "")
    return Imported(rows, replaced)


def _not_empty(connected: ConnectedApplication, builder: StoreBuilder) -> StateError:
    message = f"Store {builder.name} of {connected.id} has rows"
    if builder.kind is StoreKind.VERSIONED:
        return StateError(
            message, hint="Versions stay in the history of a store: import into a new version of the application."
        )
    return StateError(
        message, hint="Look at them first: riverrun state export. --replace puts the imported rows in their place."
    )


def _importable(connected: ConnectedApplication, store: str) -> StoreBuilder:
    builder = connected.topology.stores.get(store)
    if builder is None:
        names = ", ".join(sorted(connected.topology.stores))
        message = f"The application has no store {store}"
        raise InvalidStateStoreError(message, hint=f"It has: {names or 'none'}.")
    if builder.kind not in READABLE:
        message = f"Store {store} cannot be imported: it is a {builder.kind.value} store, which is not a table"
        raise InvalidStateStoreError(message)
    if not builder.logging:
        topic = builder.source_topic
        why = f"topic {topic} fills it" if topic else "it has no changelog, so each machine has its own"
        message = f"Store {store} cannot be imported: {why}"
        hint = f"Write to {topic}." if topic else "Give the store a changelog: leave out logging=False."
        raise InvalidStateStoreError(message, hint=hint)
    return builder


def _import_file(stores: _Stores, path: Path, *, keeps_partitions: bool) -> int:
    """Put the rows of a file, and return their number."""
    done = 0
    for rows in batches_of_file(stores.builder, path):
        for number in range(rows.batch.num_rows):
            key, value = rows.bytes_at(number)
            stores.put(key, value, rows, number, keeps_partitions=keeps_partitions)
        done += rows.batch.num_rows
        stores.send()
    return done


@dataclass(slots=True)
class _Stores:
    """One store per partition, in a temporary directory; what they would write to their changelog is sent."""

    builder: StoreBuilder
    place: StorePlace
    directory: Path
    topic: str
    producer: TransactionalProducer
    _open: dict[TaskId, tuple[Any, StateBackend, TaskContext]] = field(default_factory=dict)

    def put(self, key: bytes, value: bytes, rows: RowsOfFile, number: int, *, keeps_partitions: bool) -> None:
        store, _, context = self._of(self._task(key, rows, number, keeps_partitions=keeps_partitions))
        time_ms = rows.time("timestamp", number)
        context.timestamp = SystemClock().now_ms() if time_ms is None else time_ms
        kind, expired = self.builder.kind, store.expired_puts
        if kind is StoreKind.KEY_VALUE:
            store.put(key, value)
        elif kind is StoreKind.TIMESTAMPED_KEY_VALUE:
            store.put(key, ValueAndTimestamp(value, context.timestamp))
        elif kind is StoreKind.SESSION:
            start, end = rows.needed("window_start", number), rows.needed("window_end", number)
            if start > end:
                raise rows.error(number, "the session ends before it begins")
            context.timestamp = end
            store.put(Windowed(key, Window(start, end)), value)
        elif kind is StoreKind.VERSIONED:
            self._put_version(store, key, value, (rows.needed("valid_from", number), rows.time("valid_to", number)))
        else:
            start = rows.needed("window_start", number)
            context.timestamp = start if time_ms is None else time_ms
            store.put(
                key,
                ValueAndTimestamp(value, context.timestamp) if kind is StoreKind.TIMESTAMPED_WINDOW else value,
                start,
            )
        if store.expired_puts > expired:
            raise rows.error(number, f"store {self.builder.name} keeps {self.builder.retention_ms} ms, and it is older")

    @staticmethod
    def _put_version(store: Any, key: bytes, value: bytes, valid: tuple[int, int | None]) -> None:
        start, end = valid
        store.put(key, value, start)
        if end is not None:
            # The end of a version is a deletion at that time, unless another version begins there, which must stay.
            later = store.get(key, end)
            if later is None or later.timestamp != end:
                store.put(key, None, end)

    def delete(self, task_id: TaskId, row: Row) -> None:
        """Delete a row that the store has."""
        store, _, context = self._of(task_id)
        key, _, times = row
        context.timestamp = SystemClock().now_ms()
        if self.builder.kind is StoreKind.SESSION:
            context.timestamp = times[1] or 0
            store.remove(Windowed(key, Window(times[0] or 0, times[1] or 0)))
        elif self.builder.kind in {StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW}:
            context.timestamp = times[0] or 0
            store.put(key, None, times[0] or 0)
        else:
            store.put(key, None)

    def send(self) -> None:
        """Send all changes since the last call."""
        for task_id, (store, state, _) in self._open.items():
            for record in store.changelog():
                self.producer.send(
                    self.topic, record.key, record.value, record.timestamp, record.headers, task_id.partition
                )
            # The offset does not matter: the directory is temporary, and only the records are sent.
            state.write(store.pending(), {TopicPartition(self.topic, task_id.partition): 0})
            store.committed()

    def close(self) -> None:
        for _, state, _ in self._open.values():
            state.close()

    def _of(self, task_id: TaskId) -> tuple[Any, StateBackend, TaskContext]:
        if task_id not in self._open:
            state, context = RocksDbBackend(self.directory / str(task_id)), TaskContext(SystemClock())
            # A cache would hold changes back, and write one per key.
            builder = replace(raw_builder(self.builder), caching=False)
            self._open[task_id] = open_store(builder, state, context), state, context
        return self._open[task_id]

    def _task(self, key: bytes, rows: RowsOfFile, number: int, *, keeps_partitions: bool) -> TaskId:
        named = rows.time("partition", number)
        try:
            found = None if keeps_partitions and named is not None else self.place.task_of(key)
        except ValueError as error:
            raise rows.error(number, str(error)) from error
        if found is None:
            found = next((task for task in self.place.tasks if task.partition == named), None)
            if found is None:
                raise rows.error(number, f"there is no partition {named}")
        elif named is not None and named != found.partition:
            why = f"its key belongs to partition {found.partition}, not to {named}"
            hint = "Leave the column partition out, or keep it with --keep-partitions if your partitioner decides."
            raise rows.error(number, why, hint)
        return found
