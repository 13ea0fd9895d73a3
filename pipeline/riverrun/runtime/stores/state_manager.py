"""The stores of a task, with their changelogs."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from riverrun.decoders import why_unreadable
from riverrun.errors import InvalidStateStoreError, RefusedRecordError, StateError
from riverrun.state.api import PAUSED_AFTER, KeepsReads, StoreKind
from riverrun.state.declared.changelog import is_trimmed
from riverrun.state.stores.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from riverrun.records import TopicPartition
    from riverrun.runtime.ports import Ports
    from riverrun.runtime.task_spec import TaskSpec
    from riverrun.state.api import ChangelogBatch, StateStore, StoreBuilder, UpdateContext


class ProcessorStateManager:
    """Opens a task's stores, restores them, sends their changes, and brings the local state to committed points.

    Args:
        spec: The task.
        ports: Its connections.
        context: The record being processed.
    """

    def __init__(self, spec: TaskSpec, ports: Ports, context: UpdateContext) -> None:
        """Open the stores as the local state holds them."""
        builders = spec.sub_topology.stores
        self._task = spec.id
        self._ports = ports
        self.stores: dict[str, StateStore] = {
            builder.name: open_store(builder, ports.backend, context, ports.pause) for builder in builders
        }
        """The stores by name, in the order of their operators."""
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
        """Per changelog with retention, the event time (ms) before which all was forgotten at the last commit."""

    @property
    def changelogs(self) -> Mapping[str, TopicPartition]:
        """Return changelog partitions by store name, including inputs from which read-only stores are restored."""
        return self._own | self._sources

    def store(self, name: str) -> Any:
        """Return a store.

        Raises:
            InvalidStateStoreError: If there is no such store.
        """
        if name not in self.stores:
            message = f"Task {self._task} has no store {name}"
            raise InvalidStateStoreError(message, hint=f"It has: {', '.join(sorted(self.stores)) or 'none'}")
        return self.stores[name]

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
        """Apply changelog records, which have keys and precede `next_offset`, to the store they belong to.

        Raises:
            StateError: If the store cannot have written one of them.
        """
        name = next(store for store, tp in self.changelogs.items() if tp == changelog)
        try:
            puts = self.stores[name].restore(batch)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError, struct.error) as error:
            message = (
                f"Changelog {changelog} has a record before offset {next_offset} that store {name} cannot have written:"
                f" {why_unreadable(error)}"
            )
            hint = (
                "Another program writes to it: see who may. A new version of the application computes its state again."
            )
            raise StateError(message, hint=hint) from error
        self._ports.backend.write(puts, {changelog: next_offset})

    def flush(self) -> None:
        """Pass held-back updates on, in the order of operators, so the next flush includes the updates that one forwards."""
        for store in self.stores.values():
            store.flush()

    def send_changes(self, refused: Callable[[str, RefusedRecordError], NoReturn]) -> tuple[TopicPartition, ...]:
        """Send the changes since the last commit to the changelogs.

        Args:
            refused: Called with the name of a store whose change cannot be sent; raises.

        Returns:
            The changelog partitions that were written.
        """
        send, pause = self._ports.collector.send, self._ports.pause
        written = []
        for name, tp in self._own.items():
            number = -1
            topic, partition = tp
            try:
                for number, (key, value, timestamp, headers) in enumerate(self.stores[name].changelog()):
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
    ) -> None:
        """Bring the local state to the point of a commit, which is durable now.

        Args:
            positions: Per changelog partition that was written, the offset after its last record.
            inputs: Committed offsets per input, with their metadata.
            stream_time: The highest event time so far, ms.
        """
        puts: dict[str, dict[bytes, bytes | None]] = {}
        for store in self.stores.values():
            for table, entries in store.pending().items():
                puts.setdefault(table, {}).update(entries)
        read = {tp: inputs[tp][0] for tp in self._sources.values() if tp in inputs}
        if puts or positions or read:
            self._ports.backend.write(puts, {**positions, **read}, self._ports.pause, in_parts=self._may_be_torn)
        for store in self.stores.values():
            store.committed()
        self.forgotten = {  # windows may be ahead of the records that make them
            tp: min(store.first_kept, stream_time - retention_ms)
            for tp, (store, retention_ms) in self._forgetful.items()
        }


def _may_be_torn(builder: StoreBuilder) -> bool:
    """Return whether a part of a commit's writes can be completed from the changelog.

    The versions that a store accepts depend on the highest time it has seen, which must not be ahead of its rows.
    """
    return builder.logging and builder.kind is not StoreKind.VERSIONED
