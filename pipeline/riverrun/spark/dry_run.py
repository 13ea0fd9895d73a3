"""A bounded run that commits nothing and returns its outputs as DataFrames, for checks, notebooks and comparisons.

It has the levels and slices of a real run, and reads its inputs in the same way. A level finishes all its slices before the
next one begins, and records between levels stay in Spark.

It is not a bounded run into temporary topics: that would need rights to create topics, and copies of all changelogs to begin
with the application's state. Stores of the past (`past_stores`) need tasks that commit nothing in any case, so little code
would go.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import RangeError, UnsupportedByHostError
from riverrun.hosting.continuing import require_new
from riverrun.hosting.progress import polling_progress
from riverrun.records import OffsetRange
from riverrun.runtime.recorded_answers import AnsweredLookups
from riverrun.serde.exact_values import micros
from riverrun.spark.columns import TIME, FrameColumn, array, columns_of, spark_schema, with_variants
from riverrun.spark.dry_levels import HEADERS, DryRunWork, run_level
from riverrun.spark.options import DEFAULTS, RunOptions
from riverrun.spark.slices import cut, slices_of
from riverrun.spark.tasks.reporting import Counts, new_group
from riverrun.spark.tasks.work import job_of
from riverrun.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import CommittedOffset
    from riverrun.records import TopicPartition
    from riverrun.runtime.recorded_answers import LookupAnswer
    from riverrun.spark.columns import Columns
    from riverrun.spark.ranges import RunRange
    from riverrun.spark.tasks.work import Job
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology

_TIME = FrameColumn("timestamp", TIME, micros)
_PLACE = (
    _TIME,
    FrameColumn("partition", pa.int32()),
    FrameColumn("headers", HEADERS),
    FrameColumn("task", pa.string()),
    FrameColumn("position", pa.int64()),
)


def dry_run(
    connected: ConnectedApplication,
    run_range: RunRange,
    spark: Any,
    build: Callable[[Job], Topology],
    options: RunOptions = DEFAULTS,
    *,
    answers: Iterable[LookupAnswer] | None = None,
) -> dict[str, Any]:
    """Process a range without committing anything; return a frame for each public topic, with the records a run would write.

    It fences no task, and creates and writes no topic. The range begins where the application stands, with its state, or at
    the beginning of the topics, with no state. `answers` are recorded answers of look-ups; None for calls.

    Columns: `key` and `value`, typed as their serdes say (`riverrun.spark.columns`; bytes where a serde does not say),
    `window_start` and `window_end` after windowed keys, `timestamp`, `partition` (null: the producer would choose), `headers`,
    `task`, and `position`, which counts the records of a task.
    """
    connected = connected.reading({tp.topic for tp in run_range.ranges})
    topology = connected.topology
    refuse_cycles(topology.levels())
    connected.admin.require(topology.sink_topics, f"application {connected.id} writes to")
    group = new_group(connected.id)
    job, counts = job_of(connected, group), Counts(connected.admin, group)
    course = _course(connected, job, run_range, options.max_records_per_slice)
    if answers is not None:
        course = replace(course, answers=tuple(answers))
        known = AnsweredLookups(course.answers or ())
        known.check_nodes(node.name for sub in topology.sub_topologies() for node in sub.nodes)
    frames: list[Any] = []
    with closing(counts):
        for level in range(len(course.levels)):
            doing = f"{connected.id}, dry run, level {level + 1} of {len(course.levels)}"
            with polling_progress(doing, course.look(level, counts)):
                frames.append(run_level(spark, course.parts(level), frames, build, f"do a dry run of {connected.id}"))
    outputs = frames[0]
    for frame in frames[1:]:
        outputs = outputs.unionByName(frame)
    outputs = outputs.where("reader is null")
    topics = {*topology.sink_topics, *(row.topic for row in outputs.select("topic").distinct().collect())}
    return {
        topic: _typed(outputs.where(outputs.topic == topic), topic, job, topology, build) for topic in sorted(topics)
    }


def _typed(records: Any, topic: str, job: Job, topology: Topology, build: Callable[[Job], Topology]) -> Any:
    """Return the records of one topic, with the columns of its serdes as found in the topology that executors build."""
    columns = [*_columns(topology, topic), *_PLACE]

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        key, value = (each.arrays for each in _serdes(build(job).resolved(job.partitions), topic))
        for batch in batches:
            places = partial(_place_of, topic, batch)
            arrays = [*key(batch["key"].to_pylist(), places), *value(batch["value"].to_pylist(), places)]
            arrays += [
                array(_TIME, batch["timestamp"].to_pylist(), places),
                *(batch[column.name] for column in _PLACE[1:]),
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])

    raw = records.select("key", "value", *(column.name for column in _PLACE))
    return with_variants(raw.mapInArrow(process, spark_schema(columns)), columns)


def _serdes(topology: Topology, topic: str) -> tuple[Columns, Columns]:
    """Return the columns of a topic's keys and values; bytes if no sink is known for it."""
    sink = topology.sink_of(topic)
    if sink is None:
        return columns_of("key", None), columns_of("value", None)
    return columns_of("key", sink.key_serde), columns_of("value", sink.value_serde)


def _columns(topology: Topology, topic: str) -> list[FrameColumn]:
    key, value = _serdes(topology, topic)
    return [*key.columns, *value.columns]


def _place_of(topic: str, batch: Any, row: int) -> dict[str, str | int]:
    return {"topic": topic, "task": batch["task"][row].as_py(), "position": batch["position"][row].as_py()}


def refuse_cycles(levels: Iterable[tuple[SubTopology, ...]]) -> None:
    """Refuse tasks that write to each other: they run repeatedly from their commits, and a dry run commits nothing."""
    for level in levels:
        if is_cyclic(level):
            numbers = ", ".join(str(sub.id) for sub in level)
            message = f"Sub-topologies {numbers} read topics that they write: a dry run cannot process them"
            raise UnsupportedByHostError(message, hint="Reprocess a release of it: riverrun release plan.")


def _course(connected: ConnectedApplication, job: Job, run_range: RunRange, max_records: int) -> DryRunWork:
    """Return the work with the application's own levels and slices, from where it stands, or from nothing."""
    committed = connected.committed()
    restores = _begins_with_state(connected, run_range, committed)
    if restores:
        # Also the application's own topics, whose records would be processed once more.
        require_new(connected, connected.inputs - committed.keys())
        slices = slices_of(connected, run_range, max_records).with_one_begun()
    else:
        slices = tuple(cut(connected.admin, run_range, max_records))
    return DryRunWork(
        job,
        connected.layout,
        connected.topology.levels(),
        slices or (run_range.ranges,),
        leftovers=_leftovers(connected, committed) if restores else {},
        committed=committed if restores else {},
        restores=restores,
        snapshots={},
        is_public=True,
    )


def _begins_with_state(
    connected: ConnectedApplication, run_range: RunRange, committed: Mapping[TopicPartition, CommittedOffset]
) -> bool:
    """Return whether the range begins where the application stands; otherwise it begins with no state."""
    ranges = run_range.ranges
    if committed and all(tp in committed and committed[tp].offset == r.start for tp, r in ranges.items()):
        return True
    # Without stores there is no state to lack, so the range may begin anywhere.
    first = connected.admin.beginning_offsets(ranges)
    elsewhere = [tp for tp, r in ranges.items() if r.start != first[tp]]
    if elsewhere and connected.topology.stores:
        message = f"There is no state to begin with at offset {ranges[elsewhere[0]].start} of {elsewhere[0]}"
        raise RangeError(message, hint="A dry run begins at `committed`, or without any state at `earliest`.")
    return False


def _leftovers(
    connected: ConnectedApplication, committed: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, OffsetRange]:
    """Return the unprocessed records of the repartition topics that exist."""
    admin = connected.admin
    existing = admin.partitions(topic.name for topic in connected.layout.repartition_topics)
    internal = [tp for tp in connected.inputs if tp.topic in existing]
    first, ends = admin.beginning_offsets(internal), admin.settled_end_offsets(internal)
    starts = {tp: committed[tp].offset if tp in committed else first[tp] for tp in internal}
    return {tp: OffsetRange(start, max(start, ends[tp])) for tp, start in starts.items()}
