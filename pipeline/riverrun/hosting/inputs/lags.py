"""Computes how far an application lags, and how many records it has dropped, from its committed offsets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from riverrun.runtime.times.offset_metadata import OffsetMetadata

if TYPE_CHECKING:
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TopicPartition


class InputLag(NamedTuple):
    """The lag of one input of an application, in offsets.

    `committed` is None without a committed offset. `start` is the first offset that still exists, `end` the last stable one.
    """

    tp: TopicPartition
    is_internal: bool
    committed: int | None
    start: int
    end: int

    @property
    def lag(self) -> int:
        """Return the number of offsets still to be processed, an upper bound of the number of records."""
        return max(self.end - (self.committed if self.committed is not None else self.start), 0)


def input_lags(connected: ConnectedApplication) -> list[InputLag]:
    """Return committed offsets and ends of all existing inputs, including repartition topics; sorted by partition.

    Raises:
        TopicError: If a source topic does not exist.
        BrokerError: If the brokers do not answer.
    """
    connected, admin = connected.resolved(), connected.admin
    internal = {topic.name for topic in connected.layout.repartition_topics}
    existing = admin.partitions({tp.topic for tp in connected.inputs})
    tps = sorted(tp for tp in connected.inputs if tp.topic in existing)
    committed = connected.committed(tps)
    starts, ends = admin.beginning_offsets(tps), admin.end_offsets(tps)
    return [
        InputLag(tp, tp.topic in internal, committed[tp].offset if tp in committed else None, starts[tp], ends[tp])
        for tp in tps
    ]


def dropped_so_far(connected: ConnectedApplication) -> Counter[str]:
    """Return how many records an application's tasks have not processed, by reason, on all hosts since it began.

    Tasks commit these counts with their offsets, so that each record counts once, whatever failed and was repeated.

    Raises:
        BrokerError: If the brokers do not answer.
    """
    committed, total = connected.committed(), Counter[str]()
    for inputs in connected.layout.tasks.values():
        found: Counter[str] = Counter()
        for tp in committed.keys() & set(inputs):
            found |= Counter(OffsetMetadata.decode(committed[tp].metadata).dropped)
        total += found
    return total
