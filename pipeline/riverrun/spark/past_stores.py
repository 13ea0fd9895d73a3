"""The state of a store at any point in the past: the nearest snapshots before it, and a dry run from there.

A changelog forgets older values when it is compacted; the application's inputs do not. So the state at an offset vector is
recomputed. It begins with snapshots that a bounded run left at its end, or with nothing, and adds the inputs from there on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import RangeError
from riverrun.hosting.added_partitions import reset_policies
from riverrun.hosting.snapshots import usable_snapshots
from riverrun.records import OffsetRange, OffsetVector, ResetStrategy, TaskId, TopicPartition
from riverrun.spark.dry_levels import DryRunWork, run_last_level, run_level
from riverrun.spark.dry_run import refuse_cycles
from riverrun.spark.dry_task import run_dry
from riverrun.spark.options import MAX_RECORDS_PER_SLICE
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import DONE
from riverrun.spark.slices import cut
from riverrun.spark.store_rows import batches_of
from riverrun.topology.grouping import upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.spark.dry_task import DryTask, ShuffleReader
    from riverrun.spark.runs import RunRecord
    from riverrun.spark.tasks.work import Job
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A point at which the state of all tasks is known.

    Args:
        committed: Per input the committed offset and metadata; empty at the beginning of all inputs.
    """

    committed: Mapping[TopicPartition, tuple[int, str]]
    snapshots: Mapping[TaskId, str]

    def start(self, tp: TopicPartition) -> int:
        """Return the first offset to read of an input."""
        return self.committed[tp][0] if tp in self.committed else 0


_BEGINNING = _Cut({}, {})


@dataclass(frozen=True, slots=True)
class _Past:
    """The part of the topology to process for a store: its sub-topology and those above it."""

    connected: ConnectedApplication
    levels: Sequence[tuple[SubTopology, ...]]
    sources: Sequence[TopicPartition]

    def stateful(self) -> list[TaskId]:
        ids = {sub.id for level in self.levels for sub in level if sub.stores}
        return [task_id for task_id in sorted(self.connected.layout.tasks) if task_id.sub_topology in ids]


def rows_at(
    connected: ConnectedApplication,
    builder: StoreBuilder,
    vector: OffsetVector,
    runs: Iterable[RunRecord],
    *,
    job: Job,
    spark: Any,
    build: Callable[[Job], Topology],
    schema: str,
) -> Any:
    """Return the rows that a bounded run up to a vector would have left in a store; levels above the store's run at once.

    `runs` are those of this version: the state may begin with snapshots of their ends. `schema` is the store's columns, as DDL.
    """
    past = _past(connected, builder)
    _check_vector(past, vector)
    cut_at = _nearest(past, vector, runs)
    _warn_of_compaction(past)
    ranges = {tp: OffsetRange(cut_at.start(tp), vector.offsets[tp]) for tp in past.sources}
    slices = cut(connected.admin, RunRange(ranges), MAX_RECORDS_PER_SLICE) or [ranges]
    course = DryRunWork(
        job,
        connected.layout,
        past.levels,
        slices,
        leftovers={},
        committed=cut_at.committed,
        restores=False,
        snapshots=cut_at.snapshots,
        is_public=False,
    )
    doing = f"read store {builder.name} of {connected.id} at {vector}"
    above: list[Any] = []
    for level in range(len(past.levels) - 1):
        above.append(run_level(spark, course.parts(level), above, build, doing))
    store = builder.name

    def read(part: DryTask, inbox: ShuffleReader) -> Iterator[Any]:
        with run_dry(part, inbox, build) as done:
            yield from batches_of(done.application.topology.stores[store], part.task_id, done.state)

    return run_last_level(spark, course.parts(len(past.levels) - 1), above, read, schema)


def _past(connected: ConnectedApplication, builder: StoreBuilder) -> _Past:
    topology, layout = connected.topology, connected.layout
    (owner,) = (sub for sub in topology.sub_topologies() if builder in sub.stores)
    ids = {sub.id for sub in upstream(topology.sub_topologies(), owner)}
    levels = [own for level in topology.levels() if (own := tuple(sub for sub in level if sub.id in ids))]
    refuse_cycles(levels)
    internal = {topic.name for topic in layout.repartition_topics}
    inputs = {tp for task_id, tps in layout.tasks.items() if task_id.sub_topology in ids for tp in tps}
    sources = sorted(tp for tp in inputs if tp.topic not in internal)
    return _Past(connected, levels, sources)


def _check_vector(past: _Past, vector: OffsetVector) -> None:
    """Refuse a vector that is not a point which all inputs of the store have reached and still hold."""
    connected, admin = past.connected, past.connected.admin
    unknown = sorted(vector.offsets.keys() - connected.inputs)
    if unknown:
        message = f"{connected.id} does not read {', '.join(map(str, unknown))}"
        raise RangeError(message, hint=f"The store is computed from {', '.join(map(str, past.sources))}.")
    missing = [tp for tp in past.sources if tp not in vector.offsets]
    if missing:
        message = f"The vector {vector} leaves out {', '.join(map(str, missing))}, on which the state depends"
        raise RangeError(message, hint="Name all partitions, with offset 0 for those that were not read.")
    first, last = admin.beginning_offsets(past.sources), admin.end_offsets(past.sources)
    for tp in past.sources:
        offset = vector.offsets[tp]
        if offset > last[tp]:
            message = f"{tp} ends at offset {last[tp]} (last stable offset), before the {offset} of the vector"
            raise RangeError(message, hint="Ask for a point that has been written and committed.")
        if 0 < offset < first[tp]:
            message = f"{tp}: the records before offset {first[tp]} are gone, and the state at {offset} was requested"
            raise RangeError(message, hint="Raise retention.ms if older states are needed.")


def _nearest(past: _Past, vector: OffsetVector, runs: Iterable[RunRecord]) -> _Cut:
    """Return the last known point at or before a vector from which all later records can be read."""
    snapshots = _Snapshots(past)
    first = past.connected.admin.beginning_offsets(past.sources)
    cuts = [found for run in runs if run.state == DONE and (found := snapshots.cut_of(run)) is not None]
    # The one with the most records behind it first: it leaves the fewest to process.
    cuts.sort(key=lambda found: -sum(map(found.start, past.sources)))
    for found in [*cuts, _BEGINNING]:
        starts = {tp: found.start(tp) for tp in past.sources}
        is_before = all(start <= vector.offsets[tp] for tp, start in starts.items())
        # Nothing is read of a partition that starts where the vector ends, so its records may be gone.
        lost = [tp for tp, start in starts.items() if start < min(first[tp], vector.offsets[tp])]
        if is_before and not lost:
            _check_policies(past, found)
            return found
    gone = ", ".join(f"{tp} before {first[tp]}" for tp in past.sources if first[tp] and vector.offsets[tp])
    message = f"The state at {vector} cannot be computed: records are gone ({gone}), and no snapshot lies between"
    ends = "; ".join(str(OffsetVector({tp: found.start(tp) for tp in past.sources})) for found in cuts)
    raise RangeError(message, hint=f"Bounded runs with snapshots ended at: {ends or 'none'}.")


def _check_policies(past: _Past, found: _Cut) -> None:
    # To begin without state at the first record is right only if the application has begun there itself.
    policies = reset_policies(past.connected.application)
    topics = {tp.topic for tp in past.sources if tp not in found.committed}
    elsewhere = sorted(topic for topic in topics if policies[topic].strategy is not ResetStrategy.EARLIEST)
    if elsewhere:
        what = ", ".join(elsewhere)
        message = f"The start offset of {past.connected.id} in {what} is unknown: its reset policy is not earliest"
        raise RangeError(message, hint="Bounded runs with snapshots (snapshot.url) record such points.")


def _warn_of_compaction(past: _Past) -> None:
    for topic in sorted({tp.topic for tp in past.sources}):
        if "compact" in past.connected.admin.topic_config(topic)["cleanup.policy"]:
            log.warning(
                "topic %s is compacted: values that were replaced since may be missing in the state read", topic
            )


class _Snapshots:
    """The existing snapshots of the tasks with state, looked up once."""

    def __init__(self, past: _Past) -> None:
        application = past.connected.application
        self._past = past
        self._usable = {task_id: usable_snapshots(application, task_id) for task_id in past.stateful()}

    def cut_of(self, run: RunRecord) -> _Cut | None:
        """Return the state at the end of a run; None if the state of a task is not known."""
        if not run.committed:
            return None
        committed = {TopicPartition.parse(name): known for name, known in run.committed.items()}
        snapshots = {}
        for task_id, inputs in self._past.connected.layout.tasks.items():
            # A task with none of its inputs committed has never processed anything, so it has no snapshot.
            if task_id in self._usable and not committed.keys().isdisjoint(inputs):
                name = self._of(task_id, run, {str(tp): committed[tp][0] for tp in inputs if tp in committed})
                if name is None:
                    return None
                snapshots[task_id] = name
        return _Cut(committed, snapshots)

    def _of(self, task_id: TaskId, run: RunRecord, offsets: Mapping[str, int]) -> str | None:
        """Return the run's own snapshot of a task or, if it did not process the task, one at equal input offsets."""
        own = run.snapshots.get(str(task_id))
        for manifest in self._usable[task_id]:
            if manifest.name == own or (own is None and manifest.inputs == offsets):
                return manifest.name
        return None
