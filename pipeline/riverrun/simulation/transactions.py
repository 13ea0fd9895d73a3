"""The transaction coordinator: owners of transactional ids, and where their transactions have written."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from confluent_kafka import KafkaError

from riverrun.simulation.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from riverrun.records import TopicPartition

_LAST_EPOCH = 2**15 - 2


class Owner(NamedTuple):
    """A producer: its id and its epoch. Each new owner of a transactional id has a later epoch."""

    producer_id: int
    epoch: int


class Phase(Enum):
    """The state of a transactional id, by the brokers' names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    ENDING = "PrepareCommit or PrepareAbort"
    COMMITTED = "CompleteCommit"
    ABORTED = "CompleteAbort"


class EndsTransactions(Protocol):
    """Ends a transaction where it has written."""

    def mark(self, owner: Owner, tps: Iterable[TopicPartition], groups: Iterable[str], *, commits: bool) -> bool:
        """Append markers to logs, and settle the offsets of groups. Return whether that was possible by now."""
        ...


@dataclass(slots=True)
class _Transaction:
    owner: Owner
    timeout_ms: int
    updated_ms: int
    phase: Phase = Phase.EMPTY
    started_ms: int = 0
    commits: bool = False
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)


class Transactions:
    """All transactional ids. Time limits count when `tick` is called."""

    def __init__(self, broker: Mapping[str, str], ending: EndsTransactions) -> None:
        self._broker = broker
        self._ending = ending
        self._ids = itertools.count(1_000)
        self._known: dict[str, _Transaction] = {}

    def init(self, transactional_id: str | None, timeout_ms: int, present: Owner | None, now_ms: int) -> Owner:
        """Return the new owner of an id, and abort the open transaction of the earlier one.

        Args:
            transactional_id: None for a producer without transactions.
            timeout_ms: How long its transactions may be open.
            present: The caller, if it only wants another epoch; it must be the owner.
            now_ms: The time.
        """
        if transactional_id is None:
            return Owner(next(self._ids), 0)
        if not 0 < timeout_ms <= int(self._broker["transaction.max.timeout.ms"]):
            raise RefusedError(KafkaError.INVALID_TRANSACTION_TIMEOUT)
        found = self._known.get(transactional_id)
        if found is None:
            owner = Owner(next(self._ids), 0)
            self._known[transactional_id] = _Transaction(owner, timeout_ms, now_ms)
            return owner
        if present is not None and present != found.owner:
            raise RefusedError(KafkaError.PRODUCER_FENCED)
        if found.phase is Phase.ONGOING:
            self._fence(found, now_ms)
        if found.phase is Phase.ENDING:
            raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS)
        found.owner = self._next(found.owner)
        found.phase, found.timeout_ms, found.updated_ms = Phase.EMPTY, timeout_ms, now_ms
        return found.owner

    def add_partitions(self, transactional_id: str, owner: Owner, tps: Iterable[TopicPartition], now_ms: int) -> None:
        """Let the owner's transaction write to partitions; it begins with the first ones."""
        self._begun(transactional_id, owner, now_ms).partitions.update(tps)

    def add_group(self, transactional_id: str, owner: Owner, group: str, now_ms: int) -> None:
        """Let the owner's transaction commit offsets of a group."""
        self._begun(transactional_id, owner, now_ms).groups.add(group)

    def end(self, transactional_id: str, owner: Owner, now_ms: int, *, commits: bool) -> None:
        """End the owner's transaction. One that has ended in this way before is answered again."""
        found = self._owned(transactional_id, owner)
        if found.phase is Phase.ONGOING:
            self._end(found, now_ms, commits=commits)
        elif found.phase is Phase.ENDING:
            raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS)
        elif found.phase is not (Phase.COMMITTED if commits else Phase.ABORTED):
            raise RefusedError(KafkaError.INVALID_TXN_STATE)

    def check_write(self, transactional_id: str, owner: Owner, tp: TopicPartition) -> None:
        """Refuse a record of a transaction that has not begun, or does not write to this partition."""
        found = self._known.get(transactional_id)
        if found is None or found.owner.producer_id != owner.producer_id:
            raise RefusedError(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if found.owner.epoch != owner.epoch:
            raise RefusedError(KafkaError.INVALID_PRODUCER_EPOCH)
        if found.phase is not Phase.ONGOING or tp not in found.partitions:
            raise RefusedError(KafkaError.INVALID_TXN_STATE)

    def check_offsets(self, transactional_id: str, owner: Owner, group: str) -> None:
        """Refuse offsets of a transaction that has not begun, or does not commit offsets of this group."""
        found = self._owned(transactional_id, owner)
        if found.phase is not Phase.ONGOING or group not in found.groups:
            raise RefusedError(KafkaError.INVALID_TXN_STATE)

    def finish(self) -> None:
        """Write the markers that were not written when their transactions ended."""
        for found in self._known.values():
            if found.phase is Phase.ENDING:
                self._finish(found)

    def forget_topic(self, topic: str) -> None:
        """Forget the partitions of a topic that is deleted."""
        for found in self._known.values():
            found.partitions = {tp for tp in found.partitions if tp.topic != topic}

    def abort_overdue(self, now_ms: int) -> None:
        """Abort transactions that have been open for longer than their owners allow, and fence the owners."""
        for found in self._known.values():
            if found.phase is Phase.ONGOING and found.started_ms + found.timeout_ms < now_ms:
                self._fence(found, now_ms)

    def forget_unused(self, now_ms: int) -> None:
        """Forget ids that nobody has used for `transactional.id.expiration.ms`."""
        before_ms = now_ms - int(self._broker["transactional.id.expiration.ms"])
        for known, found in list(self._known.items()):
            if found.phase not in {Phase.ONGOING, Phase.ENDING} and found.updated_ms <= before_ms:
                del self._known[known]

    def _owned(self, transactional_id: str, owner: Owner) -> _Transaction:
        found = self._known.get(transactional_id)
        if found is None or found.owner.producer_id != owner.producer_id:
            raise RefusedError(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if found.owner.epoch != owner.epoch:
            raise RefusedError(KafkaError.PRODUCER_FENCED)
        return found

    def _begun(self, transactional_id: str, owner: Owner, now_ms: int) -> _Transaction:
        found = self._owned(transactional_id, owner)
        if found.phase is Phase.ENDING:
            raise RefusedError(KafkaError.CONCURRENT_TRANSACTIONS)
        if found.phase is not Phase.ONGOING:
            found.phase, found.started_ms = Phase.ONGOING, now_ms
        found.updated_ms = now_ms
        return found

    def _fence(self, found: _Transaction, now_ms: int) -> None:
        found.owner = Owner(found.owner.producer_id, found.owner.epoch + 1)
        self._end(found, now_ms, commits=False)

    def _end(self, found: _Transaction, now_ms: int, *, commits: bool) -> None:
        found.phase, found.commits, found.updated_ms = Phase.ENDING, commits, now_ms
        self._finish(found)

    def _finish(self, found: _Transaction) -> None:
        partitions, groups = sorted(found.partitions), sorted(found.groups)
        if not self._ending.mark(found.owner, partitions, groups, commits=found.commits):
            return
        found.phase = Phase.COMMITTED if found.commits else Phase.ABORTED
        found.partitions.clear()
        found.groups.clear()

    def _next(self, owner: Owner) -> Owner:
        # As brokers do before the last epoch is used up.
        if owner.epoch >= _LAST_EPOCH:
            return Owner(next(self._ids), 0)
        return Owner(owner.producer_id, owner.epoch + 1)
