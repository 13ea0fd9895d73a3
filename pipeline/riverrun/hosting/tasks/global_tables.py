"""Fills the global stores from their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.kafka.ranges import read_range
from riverrun.processor.handlers import global_error_handlers
from riverrun.records import OffsetRange, TopicPartition
from riverrun.runtime.stores.global_state import GlobalState
from riverrun.state.backends.memory import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.runtime.ports import Clock


def global_partitions(connected: ConnectedApplication) -> list[TopicPartition]:
    """Return all partitions of the topics that global stores are filled from."""
    topics = [topic for g in connected.topology.global_stores for topic in g.source.topics]
    counts = connected.admin.partitions(topics)
    return [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]


def open_global_state(
    connected: ConnectedApplication,
    clock: Clock,
    ends: Mapping[TopicPartition, int] | None = None,
    on_restore: Callable[[TopicPartition, int, int], None] | None = None,
) -> GlobalState:
    """Open the global stores and fill them up to the given ends, or to the present ones.

    They are kept in memory and filled at every start. Their topics are compacted, and hosts need no local files for them.

    Args:
        connected: The application.
        clock: Tells the time.
        ends: Offsets at which to stop; the present ends if left out.
        on_restore: Called with partition, records so far and offsets expected.

    Returns:
        The global stores.

    Raises:
        RangeError: If an end lies beyond the end of the partition.
        BrokerError: If the brokers do not answer.
    """
    application, admin = connected.application, connected.admin
    handlers = global_error_handlers(application.config.streams)
    state = GlobalState(
        application.topology,
        application.id,
        backend=MemoryBackend(),
        clock=clock,
        handlers=handlers,
        environment=application.environment("global"),
    )
    wanted = ends if ends is not None else admin.end_offsets(global_partitions(connected))
    first = admin.beginning_offsets(wanted)
    ranges = {tp: OffsetRange(min(first[tp], end), end) for tp, end in wanted.items()}
    expected, done = sum(r.size for r in ranges.values()), 0
    for tp, records in read_range(admin, ranges):
        if records:
            state.apply(tp, records, records[-1].offset + 1)
            done += len(records)
            if on_restore is not None:
                on_restore(tp, done, expected)
    for tp, end in wanted.items():
        state.apply(tp, [], end)
    return state
