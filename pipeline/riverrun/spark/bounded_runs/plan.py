"""The plan of a bounded run, made before it does anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from riverrun.hosting.inputs.recreated_topics import found_ids
from riverrun.spark.planning.slices import MAX_RECORDS_PER_SLICE, slices_of
from riverrun.spark.ranges import RunRange, completed
from riverrun.topology.grouping import loops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId
    from riverrun.spark.planning.schedule import Slice
    from riverrun.spark.planning.unfinished import Begun


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The work that a run is going to do.

    Args:
        range: The range that it processes.
        slices: The parts of the range, in order.
        levels: For each slice: tasks that run at the same time, one level after the other.
        begun: Work that interrupted runs have begun within the range, the first of the slices; None if there is none.
        is_over: Whether the range was done before a later run that was interrupted. Then there is nothing to do, and the
            later run's work stays untouched.
        loops: Ids of sub-topologies that read topics that they write, directly or through each other. They process a slice's
            records of external topics first, and resulting records of repartition topics afterwards, whatever their times.
        topics: Ids of the topics of the range (`hosting.inputs.recreated_topics`).
    """

    range: RunRange
    slices: tuple[Slice, ...]
    levels: tuple[tuple[TaskId, ...], ...]
    begun: Begun | None = None
    is_over: bool = False
    loops: tuple[tuple[int, ...], ...] = ()
    topics: Mapping[str, int] = field(default_factory=dict)


def plan_run(
    connected: ConnectedApplication, run_range: RunRange, max_records_per_slice: int = MAX_RECORDS_PER_SLICE
) -> RunPlan:
    """Plan how to process a range. Creates and changes nothing.

    Partitions that the range leaves out are not processed.

    Raises:
        RangeError: If the range cannot be read.
        BrokerError: If brokers do not answer.
    """
    connected = connected.reading({tp.topic for tp in run_range.ranges})
    topology, topics = connected.topology, found_ids(connected.admin, connected.topology.source_topics)
    run_range = completed(connected, run_range)
    cut = slices_of(connected, run_range, max_records_per_slice)
    levels = []
    for level in topology.levels():
        ids = {sub.id for sub in level}
        levels.append(tuple(sorted(task_id for task_id in connected.layout.tasks if task_id.sub_topology in ids)))
    return RunPlan(
        range=run_range,
        slices=cut.parts,
        levels=tuple(levels),
        begun=cut.begun,
        is_over=cut.is_over,
        loops=loops(topology.sub_topologies()),
        topics=topics,
    )
