"""The levels of a dry run, one after the other; records that one hands to the next stay in Spark.

Each task is a partition of a frame: a row that marks the task, and the records handed over to it in processing order.
Spark sorts them, and spills to disk while it sorts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.errors import StreamsError
from riverrun.hosting.process import current_style, start_logging
from riverrun.records import TaskId, TopicPartition
from riverrun.runtime.layout import full_name
from riverrun.spark.dry_task import DryTask, ShuffledRecord, ShuffleReader, run_dry
from riverrun.spark.failures import another_attempt_may_help, describe_error, on_executor, rebuilt_error, spark_failures
from riverrun.spark.tasks.reporting import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.records import OffsetRange, RawFields
    from riverrun.runtime.layout import Layout
    from riverrun.runtime.recorded_answers import LookupAnswer
    from riverrun.spark.dry_task import ShuffleWriter
    from riverrun.spark.tasks.reporting import Counts
    from riverrun.spark.tasks.work import Job
    from riverrun.topology.nodes import SubTopology
    from riverrun.topology.topology import Topology

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
_SCHEMA = (
    "reader int, topic string, partition int, key binary, value binary, timestamp long, "
    "headers array<struct<name: string, value: binary>>, task string, slice int, position long, error string"
)
_ARROW_SCHEMA = pa.schema(
    [
        ("reader", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.int64()),
        ("headers", HEADERS),
        ("task", pa.string()),
        ("slice", pa.int32()),
        ("position", pa.int64()),
        ("error", pa.string()),
    ]
)
_ORDER = ("reader", "slice", "topic", "partition", "task", "position")
# The slice of rows that mark a task: below all others, so that the mark sorts before the task's records (`_ORDER`).
_TASK_MARK = -1
_BATCH = 10_000

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DryRunWork:
    """A dry run: its work, and the state and offsets that tasks begin with.

    Args:
        levels: Sub-topologies by level; none of a level reads what another one of it writes.
        slices: Per slice, the offsets to process of each external input.
        leftovers: Records already in repartition topics: part of the first slice.
        committed: Per input the offset and the metadata (times) that tasks begin with, as if committed.
        restores: Whether they begin with the application's state.
        is_public: Whether to keep the records that a real run would write to public topics.
        answers: Recorded answers of look-ups; None to call what they ask.
    """

    job: Job
    layout: Layout
    levels: Sequence[tuple[SubTopology, ...]]
    slices: Sequence[Mapping[TopicPartition, OffsetRange]]
    leftovers: Mapping[TopicPartition, OffsetRange]
    committed: Mapping[TopicPartition, tuple[int, str]]
    restores: bool
    snapshots: Mapping[TaskId, str]
    is_public: bool
    answers: tuple[LookupAnswer, ...] | None = None

    def parts(self, level: int) -> list[DryTask]:
        ids = {sub.id for sub in self.levels[level]}
        return [self._part(task_id, level) for task_id in sorted(self.layout.tasks) if task_id.sub_topology in ids]

    def _part(self, task_id: TaskId, level: int) -> DryTask:
        inputs = self.layout.tasks[task_id]
        slices = [{tp: ranges[tp] for tp in inputs if tp in ranges} for ranges in self.slices]
        slices[0] |= {tp: self.leftovers[tp] for tp in inputs if tp in self.leftovers}
        committed = {tp: self.committed[tp] for tp in inputs if tp in self.committed}
        snapshot = self.snapshots.get(task_id)
        return DryTask(
            job=self.job,
            task_id=task_id,
            slices=tuple(slices),
            committed=committed,
            restores=self.restores,
            snapshot=snapshot,
            readers=self._readers,
            is_public=self.is_public,
            turn=level,
            answers=self.answers,
        )

    def look(self, level: int, counts: Counts) -> Callable[[], tuple[int, int | None]]:
        """Return a function that counts a level's processed records, and all of its records (None if not known)."""
        parts = self.parts(level)
        places = {place_of(self.layout.tasks[part.task_id]) for part in parts}
        known = sum(wanted.size for part in parts for ranges in part.slices for wanted in ranges.values())
        return lambda: (counts.of(places, level), known or None)

    @property
    def _readers(self) -> dict[str, int]:
        """Return the sub-topology that reads each of the application's own topics, by full name."""
        application_id = self.job.config.application_id(self.job.version)
        return {
            full_name(sub, application_id, topic): sub.id
            for level in self.levels
            for sub in level
            for topic in sub.source_topics
            if topic in sub.repartition_topics
        }


def run_level(
    spark: Any, parts: Sequence[DryTask], above: Sequence[Any], build: Callable[[Job], Topology], doing: str
) -> Any:
    """Run a level's tasks and return their outputs as a persisted frame; `reader` is null for records of public topics.

    `above` has the frames of the levels above; `doing` is the current activity, for error messages.
    """
    by_task = {part.task_id: part for part in parts}
    logs, logging = current_style(), next((part.job.config.logging for part in parts), None)

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        start_logging(logs, logging)  # a process of Spark's
        for task_id, inbox in _inboxes(batches):
            with on_executor():
                yield from _outputs(by_task[task_id], inbox, build)

    # Persisted, or else each level below would run this one again. Tasks run at the first action, which looks for errors.
    outputs = inboxes(spark, parts, above).mapInArrow(process, _SCHEMA).persist()
    with spark_failures(doing):
        failed = outputs.where("error is not null").select("error").collect()
    for row in failed:
        raise rebuilt_error(row.error)
    return outputs


def run_last_level(
    spark: Any,
    parts: Sequence[DryTask],
    above: Sequence[Any],
    read: Callable[[DryTask, ShuffleReader], Iterator[Any]],
    schema: str,
) -> Any:
    """Return a lazy frame of the Arrow batches that `read` makes of each task of the last level."""
    by_task = {part.task_id: part for part in parts}

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        for task_id, inbox in _inboxes(batches):
            with on_executor():
                yield from read(by_task[task_id], inbox)

    return inboxes(spark, parts, above).mapInArrow(process, schema)


def inboxes(spark: Any, parts: Sequence[DryTask], above: Sequence[Any]) -> Any:
    """Return a frame with a partition for each task: a row that marks the task, and its inbox in order."""
    from pyspark.sql import functions as f

    nothing = (None,) * 5
    marks = [(*_task_mark(part.task_id), *nothing, _TASK_MARK, None, None) for part in parts]
    frame = spark.createDataFrame(marks, _SCHEMA)
    first: dict[int, int] = {}
    for number, part in enumerate(parts):
        first.setdefault(part.task_id.sub_topology, number)
    for outputs in above:
        frame = frame.unionByName(outputs.where(outputs.reader.isin(*first)))
    firsts = f.create_map(*(f.lit(number) for pair in first.items() for number in pair))
    # Tasks of a sub-topology stand in a row, so a task's number is that of the first one plus its partition.
    number = f.element_at(firsts, f.col("reader")) + f.col("partition")
    return frame.repartitionById(len(parts), number.cast("int")).sortWithinPartitions(*_ORDER)


def _task_mark(task_id: TaskId) -> tuple[int, None, int]:
    return task_id.sub_topology, None, task_id.partition


def _inboxes(batches: Iterable[Any]) -> Iterator[tuple[TaskId, ShuffleReader]]:
    """Yield the tasks of a partition, each with the records handed over to it. Runs on executors."""
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    for (reader, partition), own in groupby(rows, key=_reader):
        # Without the first row, the task's mark.
        yield TaskId(reader, partition), ShuffleReader(_handed(row) for row in islice(own, 1, None))


def _reader(row: Row) -> tuple[int, int]:
    return row[0], row[2]


def _handed(row: Row) -> ShuffledRecord:
    _, topic, partition, key, value, timestamp, headers, writer, number, position, _ = row
    own = tuple((header["name"], header["value"]) for header in headers)
    fields = (key, value, timestamp, position, own)
    return ShuffledRecord(number, TopicPartition(topic, partition), TaskId.parse(writer), fields)


def _outputs(part: DryTask, inbox: ShuffleReader, build: Callable[[Job], Topology]) -> Iterator[Any]:
    """Yield one task's outputs, or its error as the only row. Raises errors that may pass. Runs on executors."""
    try:
        with run_dry(part, inbox, build) as done:
            for tp, records in done.outputs.records():
                for at in range(0, len(records), _BATCH):
                    yield _batch(part, done.outputs, tp, records[at : at + _BATCH])
    except StreamsError as error:
        if another_attempt_may_help(error):
            raise
        rows = [{"error": describe_error(error)}]
        yield pa.RecordBatch.from_pylist(rows, _ARROW_SCHEMA)


def _batch(part: DryTask, outputs: ShuffleWriter, tp: TopicPartition, records: Sequence[RawFields]) -> Any:
    size = len(records)
    keys, values, times, positions, headers = zip(*records, strict=True)
    columns = (
        [part.readers.get(tp.topic)] * size,
        [tp.topic] * size,
        [tp.partition if tp.partition >= 0 else None] * size,
        keys,
        values,
        times,
        [[{"name": name, "value": value} for name, value in each] for each in headers],
        [str(part.task_id)] * size,
        [outputs.slice_of(position) for position in positions],
        positions,
        [None] * size,
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
