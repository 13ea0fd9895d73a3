"""Opens, restores and commits the stores of a task, and fills global stores (`GlobalStateUpdateTask`)."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.decoders import why_unreadable
from riverrun.errors import USER_ERRORS, InvalidStateStoreError, RefusedRecordError, StateError
from riverrun.processor.handlers import DropReason, ErrorHandlers
from riverrun.processor.operator import Closes
from riverrun.records import counted
from riverrun.runtime.compile import instantiate, watched
from riverrun.runtime.context import GLOBAL_TASK, TaskContext, TaskEnvironment
from riverrun.runtime.failures import Failures, user_code
from riverrun.runtime.inputs import RecordQueue
from riverrun.runtime.node_context import NodeContext
from riverrun.runtime.node_frames import fail_at
from riverrun.runtime.serde_places import KeyBytes, teller
from riverrun.serde.serdes import BYTES
from riverrun.state.api import PAUSED_AFTER, KeepsReads, StoreKind
from riverrun.state.stores.opening import open_store
from riverrun.state.suppliers import is_trimmed

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import NoReturn

    from riverrun.processor.metrics import Measurement
    from riverrun.processor.operator import Operator
    from riverrun.records import Headers, RawFields, TopicPartition, Whole
    from riverrun.runtime.context import FailedRecord
    from riverrun.runtime.layout import TaskSpec
    from riverrun.runtime.ports import Clock, Ports, Watch
    from riverrun.state.api import ChangelogBatch, StateBackend, StateStore, StoreBuilder, UpdateContext
    from riverrun.topology.nodes import GlobalStore
    from riverrun.topology.topology import Topology

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    declared: GlobalStore
    store: StateStore
    operator: Operator


_FAILURES = (DropReason.PROCESSING_FAILED.value, DropReason.UNDECODABLE.value)
"""Of the records that are not applied, those that somebody can mend; others have no key."""
_STILL_THERE = (
    "No dead letters are written of them. They are read again at each start: correct the function or the serde, or write"
    " newer records with their keys."
)


class GlobalState:
    """Opens the global stores of a topology over one backend, and applies the records of their topics."""

    def __init__(
        self,
        topology: Topology,
        application_id: str,
        *,
        backend: StateBackend,
        clock: Clock,
        handlers: ErrorHandlers | None = None,
        environment: TaskEnvironment | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._watch = watch
        self._first: FailedRecord | None = None
        self._context = TaskContext(clock, environment=environment or TaskEnvironment())
        self._failures = Failures(handlers or ErrorHandlers(), self._context, GLOBAL_TASK, _not_sent)
        self._backend = backend
        self._lines = topology.lines
        self._opened = {
            topic: self._open(declared, application_id)
            for declared in topology.global_stores
            for topic in declared.source.topics
        }
        self._queues: dict[TopicPartition, RecordQueue] = {}
        self._keys = KeyBytes(teller(self._watch))

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics of which all partitions are to be read."""
        return tuple(self._opened)

    @property
    def stores(self) -> Mapping[str, Any]:
        return {opened.declared.store.name: opened.store for opened in self._opened.values()}

    @property
    def dropped(self) -> Counter[str]:
        """Return the number of records that were not applied, by reason."""
        return self._context.dropped

    def left_out(self) -> str:
        """Return how many records failed to be applied, and which the first one was; empty if none did."""
        count = self._failed()
        if not count:
            return ""
        reasons = ", ".join(f"{reason} {times}" for reason in _FAILURES if (times := self.dropped[reason]))
        found = self._first
        where = f", the first one {found.topic}-{found.partition}@{found.offset}: {found.message}" if found else ""
        return f"Global tables lack {counted(count, 'record')} of their topics ({reasons}){where}. {_STILL_THERE}"

    def _failed(self) -> int:
        return sum(self.dropped[reason] for reason in _FAILURES)

    def take_failed(self) -> list[FailedRecord]:
        """Return the failures of records that were not applied since the last call."""
        return self._context.take_failed()

    def measured(self) -> tuple[Measurement, ...]:
        return self._context.measured()

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset to read per partition."""
        return self._backend.positions()

    def apply(self, tp: TopicPartition, records: Iterable[RawFields], next_offset: int) -> None:
        """Apply records of one partition, all before `next_offset`, and write them to the local state."""
        opened, before = self._opened[tp.topic], self._failed()
        if tp not in self._queues:
            self._queues[tp] = self._queue(tp, opened)
            self._keys.watch(tp)
        queue = self._queues[tp]
        if tp in self._keys.compared:
            records = list(records)
            self._keys.look_at(tp, opened.declared.source, records)
        queue.add(records)
        while (record := queue.pop()) is not None:
            key, value, timestamp, offset, headers = record
            self._context.topic, self._context.partition, self._context.offset = *tp, offset
            self._context.timestamp, self._context.headers = timestamp, headers
            try:
                queue.enter(key, value, timestamp, headers)
            except USER_ERRORS as error:
                self._fail(error, opened, tp, offset)
        opened.store.flush()
        # Rows and position in one batch: a crash repeats no record and loses none.
        self._backend.write(opened.store.pending(), {tp: next_offset})
        opened.store.committed()
        if self._failed() > before:
            # Tasks read partitions in any order, and say the same.
            self._first = min(filter(None, (self._first, self._context.failed[0])), key=_place)
            self._context.commit_failed()
            log.warning("%s", self.left_out())

    def _fail(self, error: BaseException, opened: _Opened, tp: TopicPartition, offset: int) -> NoReturn:
        def node_of(thing: object) -> str:
            return opened.declared.processor.name if thing is opened.operator else ""

        what = f"Processing for global store {opened.declared.store.name}"
        place: dict[str, str | int] = {
            "task": str(GLOBAL_TASK),
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset,
        }
        fail_at(error, place, what, node_of=node_of, lines=self._lines)

    def close(self) -> None:
        """Close the processors. The host closes the backend."""
        for opened in self._opened.values():
            with user_code(f"close() of {opened.declared.processor.name}", GLOBAL_TASK):
                if isinstance(opened.operator, Closes):
                    opened.operator.close()

    def _open(self, declared: GlobalStore, application_id: str) -> _Opened:
        store = open_store(declared.store, self._backend, self._context)
        if self._watch is not None:
            self._watch.opened(declared.store, store)
        operator = instantiate(declared.processor, GLOBAL_TASK)
        name = declared.processor.name
        stores = {declared.store.name: store}
        context = NodeContext(
            node=name,
            application_id=application_id,
            task_id=GLOBAL_TASK,
            task=self._context,
            forward=_nowhere,
            children={},
            stores=stores,
            failures=self._failures,
            watch=self._watch,
        )
        with user_code(f"init() of {name}", GLOBAL_TASK):
            operator.init(context)
        return _Opened(declared, store, operator)

    def _queue(self, tp: TopicPartition, opened: _Opened) -> RecordQueue:
        name = opened.declared.processor.name
        called = watched(opened.operator.process, name, self._context, self._watch)
        enter = self._failures.guarded(called, name)
        return RecordQueue(tp, opened.declared.source, enter, self._context, self._failures)


def _not_sent(
    _topic: str,
    _key: bytes | None,
    _value: bytes | None,
    _timestamp: int,
    _headers: Headers,
    _partition: int | None,
) -> None:
    """Send no dead letter: every thread, and every task of a run, reads all records of a global table, at each start."""


def _place(failed: FailedRecord) -> tuple[str, int, int]:
    return failed.topic, failed.partition, failed.offset


def _nowhere(key: object, value: object, timestamp: int, headers: Headers) -> None:
    """Forward nothing: global processors have no children."""


class ProcessorStateManager:
    """Opens a task's stores, restores them, sends their changes, and brings the local state to committed points."""

    def __init__(self, spec: TaskSpec, ports: Ports, context: UpdateContext) -> None:
        builders = spec.sub_topology.stores
        self._task = spec.id
        self._ports = ports
        self._context = context
        self._builders = {builder.name: builder for builder in builders}
        # In the order of their operators: `flush` relies on it.
        self.stores: dict[str, StateStore] = {
            builder.name: open_store(builder, ports.backend, context, ports.pause) for builder in builders
        }
        if ports.watch is not None:
            for builder in builders:
                ports.watch.opened(builder, self.stores[builder.name])
        self._keeping_reads = [store for store in self.stores.values() if isinstance(store, KeepsReads)]
        self._may_be_torn = all(_may_be_torn(builder) for builder in builders)
        self._own, self._sources = spec.own_changelogs, spec.source_changelogs
        self._forgetful: Mapping[TopicPartition, tuple[Any, int]] = {
            self._own[builder.name]: (self.stores[builder.name], builder.retention_ms)
            for builder in builders
            if builder.name in self._own and is_trimmed(builder)
        }
        self.forgotten: Mapping[TopicPartition, int] = {}
        """Per changelog with retention, the event time (ms) before which everything had expired at the last commit."""

    @property
    def changelogs(self) -> Mapping[str, TopicPartition]:
        """Return changelog partitions by store name, including inputs from which read-only stores are restored."""
        return self._own | self._sources

    def store(self, name: str) -> Any:
        if name not in self.stores:
            message = f"Task {self._task} has no store {name}"
            raise InvalidStateStoreError(message, hint=f"It has: {', '.join(sorted(self.stores)) or 'none'}")
        return self.stores[name]

    def raw_keys(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of the keys of a table's rows, as of the last commit."""
        builder = self._builders[name]
        # A second view of the same rows: nothing is decoded, and no uncommitted update of the cache is seen.
        raw = replace(builder, key_serde=BYTES, value_serde=BYTES, caching=False)
        store: Any = open_store(raw, self._ports.backend, self._context)
        if builder.kind is StoreKind.VERSIONED:
            return (key for key, found in store.all_versions() if found.valid_to is None)
        return (key for key, _ in store.all())

    def expired_puts(self) -> int:
        """Return the number of puts that were ignored because their windows had expired."""
        return sum(store.expired_puts for store in self.stores.values())

    def held_back_bytes(self) -> int:
        """Return the estimated size of uncommitted changes, bytes."""
        return sum(store.held_back_bytes() for store in self.stores.values())

    def forget_reads(self) -> None:
        """Forget decoded values that stores keep for the next read, if they exceed their limit."""
        for store in self._keeping_reads:
            store.forget_reads()

    def restore_starts(self) -> dict[TopicPartition, int]:
        """Return the start of each changelog's restore: after the local state's position, else at 0."""
        known = self._ports.backend.positions()
        return {tp: known.get(tp, 0) for tp in self.changelogs.values()}

    def restore(self, changelog: TopicPartition, batch: ChangelogBatch, next_offset: int) -> None:
        """Apply changelog records, which have keys and precede `next_offset`, to the store they belong to."""
        name = next(store for store, tp in self.changelogs.items() if tp == changelog)
        try:
            puts = self.stores[name].restore(batch)
        # Any of these may come of decoding bytes that another program has written.
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError, struct.error) as error:
            message = (
                f"Changelog {changelog} has a record before offset {next_offset} that store {name} cannot have written:"
                f" {why_unreadable(error)}"
            )
            hint = (
                "Another program has written to it: check who may write."
                " A new version of the application computes its state again."
            )
            raise StateError(message, hint=hint) from error
        self._ports.backend.write(puts, {changelog: next_offset})

    def flush(self) -> None:
        """Forward the updates that caches hold back."""
        # Upstream first: a flush forwards updates into stores further down, which are flushed after it.
        for store in self.stores.values():
            store.flush()

    def send_changes(self, refused: Callable[[str, RefusedRecordError], NoReturn]) -> tuple[TopicPartition, ...]:
        """Send the changes since the last commit to the changelogs; return the changelog partitions that were written."""
        send, pause = self._ports.collector.send, self._ports.pause
        written = []
        for name, tp in self._own.items():
            number = -1
            topic, partition = tp
            try:
                for number, (key, value, timestamp, headers) in enumerate(self.stores[name].changelog()):
                    # A large commit takes long, and the host answers queries in between.
                    if number % PAUSED_AFTER == 0:
                        pause()
                    send(topic, key, value, timestamp, headers, partition)
            except RefusedRecordError as error:
                refused(name, error)
            if number >= 0:
                written.append(tp)
        return tuple(written)

    def write(
        self,
        positions: Mapping[TopicPartition, int],
        inputs: Mapping[TopicPartition, tuple[int, str]],
        stream_time: int,
        whole: Whole | None = None,
    ) -> None:
        """Bring the local state to the point of a commit, which is durable now; `positions` are end offsets of changelogs."""
        puts: dict[str, dict[bytes, bytes | None]] = {}
        for store in self.stores.values():
            for table, entries in store.pending().items():
                puts.setdefault(table, {}).update(entries)
        read = {tp: inputs[tp][0] for tp in self._sources.values() if tp in inputs}
        if puts or positions or read:
            write = self._ports.backend.write
            # Positions lie before the marker of the commit: a successor may write once the commit is done.
            write(puts, {**positions, **read}, self._ports.pause, in_parts=self._may_be_torn, whole=whole)
        for store in self.stores.values():
            store.committed()
        # The lower bound: windows may be ahead of the records that make them.
        self.forgotten = {
            tp: min(store.first_kept, stream_time - retention_ms)
            for tp, (store, retention_ms) in self._forgetful.items()
        }


def _may_be_torn(builder: StoreBuilder) -> bool:
    """Return whether a part of a commit's writes can be completed from the changelog."""
    # The versions that a store accepts depend on the highest time it has seen, which must not be ahead of its rows.
    return builder.logging and builder.kind is not StoreKind.VERSIONED
