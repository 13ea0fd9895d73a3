"""The stores that every instance holds completely, and the way a host fills them (`GlobalStateUpdateTask`)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import USER_ERRORS
from riverrun.processor.handlers import ErrorHandlers
from riverrun.runtime.context import GLOBAL_TASK, Environment, TaskContext
from riverrun.runtime.failures import Failures, fail_at, user_code
from riverrun.runtime.generating.compile import instantiate, watched
from riverrun.runtime.inputs.key_bytes import KeyBytes, teller
from riverrun.runtime.inputs.queue import RecordQueue
from riverrun.runtime.node_context import NodeContext
from riverrun.state.stores.opening import open_store

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from riverrun.processor.metrics import Measurement
    from riverrun.processor.operator import Operator
    from riverrun.records import Headers, RawFields, TopicPartition
    from riverrun.runtime.ports import Clock, Watch
    from riverrun.state.api import StateBackend, StateStore
    from riverrun.topology.nodes import GlobalStore
    from riverrun.topology.topology import Topology

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Opened:
    declared: GlobalStore
    store: StateStore
    operator: Operator


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
        environment: Environment | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Open the stores as they were left; the handlers decide about records that cannot be decoded or processed."""
        self._watch = watch
        self._context = TaskContext(clock, environment=environment or Environment())
        self._failures = Failures(handlers or ErrorHandlers(), self._context, GLOBAL_TASK, _not_sent)
        self._backend = backend
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
        """Return the stores by name."""
        return {opened.declared.store.name: opened.store for opened in self._opened.values()}

    @property
    def dropped(self) -> Counter[str]:
        """Return the number of records that were not applied, by reason."""
        return self._context.dropped

    def measured(self) -> tuple[Measurement, ...]:
        """Return the measurements of its processors."""
        return self._context.measured()

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset to read per partition."""
        return self._backend.positions()

    def apply(self, tp: TopicPartition, records: Iterable[RawFields], next_offset: int) -> None:
        """Apply records of one partition, all before `next_offset`, and make them durable.

        Raises:
            DeserializationError: If a record cannot be decoded, and is not to be skipped.
            ProcessingError: If its processor raises, and the record is not to be skipped.
        """
        opened = self._opened[tp.topic]
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
                what = f"Processing for global store {opened.declared.store.name}"
                fail_at(error, what, task=str(GLOBAL_TASK), topic=tp.topic, partition=tp.partition, offset=offset)
        opened.store.flush()
        self._backend.write(opened.store.pending(), {tp: next_offset})
        opened.store.committed()

    def close(self) -> None:
        """Close the processors. The host closes the backend.

        Raises:
            ProcessingError: If user code fails.
        """
        for opened in self._opened.values():
            with user_code(f"close() of {opened.declared.processor.name}", GLOBAL_TASK):
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
    topic: str,
    _key: bytes | None,
    _value: bytes | None,
    _timestamp: int,
    _headers: Headers,
    _partition: int | None,
) -> None:
    """Send nothing: every instance reads every record, and each would send a dead letter of its own."""
    log.warning("no dead letter is sent to %s for a record of a global table", topic)


def _nowhere(key: object, value: object, timestamp: int, headers: Headers) -> None:
    """Forward nothing: global processors have no children."""
