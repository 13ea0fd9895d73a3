"""Committed offsets of one group, and those that open transactions will commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError

from riverrun.simulation.refusals import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from riverrun.records import TopicPartition


class Committed(NamedTuple):
    """A committed offset, with its metadata and the time of its commit."""

    offset: int
    metadata: str
    time_ms: int


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of a group. Those of a transaction are pending until it ends."""

    present: dict[TopicPartition, Committed] = field(default_factory=dict)
    _pending: dict[int, dict[TopicPartition, Committed]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.present or self._pending)

    def commit(self, offsets: Mapping[TopicPartition, Committed], producer_id: int | None = None) -> None:
        """Set offsets: at once, or with the end of a producer's transaction."""
        into = self.present if producer_id is None else self._pending.setdefault(producer_id, {})
        into.update(offsets)

    def end(self, producer_id: int, *, commits: bool) -> None:
        """End a producer's transaction."""
        pending = self._pending.pop(producer_id, {})
        if commits:
            self.present.update(pending)

    def is_unstable(self, tp: TopicPartition) -> bool:
        """Return whether an open transaction will replace an offset."""
        return any(tp in pending for pending in self._pending.values())

    def fetch(self, tps: Collection[TopicPartition], *, stable: bool) -> dict[TopicPartition, Committed]:
        """Return offsets; with `stable`, refuse those that an open transaction will replace."""
        if stable and any(map(self.is_unstable, tps)):
            raise RefusedError(KafkaError.UNSTABLE_OFFSET_COMMIT)
        return {tp: self.present[tp] for tp in tps if tp in self.present}

    def expire(self, before_ms: int, keep: Collection[str] = ()) -> None:
        """Forget offsets that were committed before a time, but those of some topics and of open transactions."""
        for tp, committed in list(self.present.items()):
            if committed.time_ms <= before_ms and tp.topic not in keep and not self.is_unstable(tp):
                del self.present[tp]

    def forget_topic(self, topic: str) -> None:
        """Forget the offsets of a topic that is deleted."""
        for offsets in (self.present, *self._pending.values()):
            for tp in [tp for tp in offsets if tp.topic == topic]:
                del offsets[tp]
