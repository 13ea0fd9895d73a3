"""A bounded run that commits nothing: its outputs as DataFrames, for checks, notebooks and comparisons.

Levels of sub-topologies run one after the other as in a real run, but what one hands to the next stays in Spark. The whole
range is one slice, so of a cached aggregate there is one update per key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.errors import RangeError, StreamsError, UnsupportedByHostError
from pipeline.kafka.admin import Admin
from pipeline.records import OffsetRange, RawRecord, TaskId, TopicPartition
from pipeline.runtime.layout import full_name, plan_layout
from pipeline.spark.columns import TIME, Column, columns_of, micros, spark_schema, with_variants
from pipeline.spark.job import job_of
from pipeline.spark.rehearsal import HandedOver, rehearse_task
from pipeline.spark.work import Job, TaskWork, another_attempt_may_help, describe_error, rebuilt_error
from pipeline.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pipeline.hosting.application import Application
    from pipeline.runtime.layout import Layout
    from pipeline.spark.columns import Columns
    from pipeline.spark.ranges import RunRange
    from pipeline.spark.rehearsal import Output
    from pipeline.topology.nodes import SubTopology
    from pipeline.topology.topology import Topology

_HEADERS = "array<struct<name: string, value: binary>>"
_COLUMNS = ("topic", "partition", "key", "value", "timestamp", "headers", "task", "position")
_HEADERS_KIND = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
_PLACE = (
    Column("timestamp", TIME),
    Column("partition", pa.int32()),
    Column("headers", _HEADERS_KIND),
    Column("task", pa.string()),
    Column("position", pa.int64()),
)
_SCHEMA = (
    f"reader string, topic string, partition int, key binary, value binary, timestamp long, headers {_HEADERS}, "
    "task string, position long, error string"
)


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """What all tasks of a dry run share: readers of internal topics by full name, and whether state is restored."""

    layout: Layout
    readers: Mapping[str, int]
    restores: bool


def dry_run(
    application: Application, run_range: RunRange, spark: Any, build: Callable[[Job], Topology]
) -> dict[str, Any]:
    """Process a range without committing anything; nobody is fenced, no topic is created or written.

    Args:
        application: What to run.
        run_range: What to process. It begins where the application stands (the run begins with its state), or at the
            beginning of the topics (the run begins with none).
        spark: A Spark session.
        build: Builds the topology on executors; must be picklable.

    Returns:
        By public topic, a DataFrame of the records that would have been written to it, empty if there would have been none.
        Columns: `key` and `value`, typed as their serdes say (`pipeline.spark.columns`; bytes where a serde does not say),
        `window_start` and `window_end` behind windowed keys, `timestamp`, `partition` (null: the producer would have chosen),
        `headers`, `task`, and `position`, which counts the records of a task.

    Raises:
        UnsupportedByHostError: If sub-topologies write to each other: joins by foreign key.
        RangeError: If the range begins elsewhere, or the application goes on meanwhile.
        TopicError: If a topic is missing, or has the wrong number of partitions.
        RecordError: If a record cannot be handled.
        BrokerError: If brokers do not answer.
    """
    topology = application.topology.resolved({tp.topic for tp in run_range.ranges})
    _refuse_cycles(topology)
    application = replace(application, topology=topology)
    admin = Admin(application.kafka)
    job = job_of(application, admin)
    layout = plan_layout(application.topology, application.id, job.partitions)
    admin.require(application.topology.sink_topics, f"application {application.id} writes to")
    rehearsal = _Rehearsal(layout, _readers(application), _begins_with_state(application, admin, run_range))
    frames: list[Any] = []
    for level in application.topology.levels():
        works = [_work(job, admin, rehearsal, run_range, task_id) for task_id in _task_ids(layout, level)]
        frames.append(_run_level(spark, works, frames, rehearsal, build))
    outputs = frames[0]
    for frame in frames[1:]:
        outputs = outputs.unionByName(frame)
    outputs = outputs.where("reader is null")
    topics = {*topology.sink_topics, *(row.topic for row in outputs.select("topic").distinct().collect())}
    return {
        topic: _typed(outputs.where(outputs.topic == topic), topic, job, topology, build) for topic in sorted(topics)
    }


def _typed(records: Any, topic: str, job: Job, topology: Topology, build: Callable[[Job], Topology]) -> Any:
    """The records of one topic with the columns of its serdes. Executors find these in the topology they build."""
    columns = [*_columns(topology, topic), *_PLACE]

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        key, value = (each.arrays for each in _serdes(build(job).resolved(job.partitions), topic))
        for batch in batches:
            places = partial(_place_of, topic, batch)
            arrays = [*key(batch["key"].to_pylist(), places), *value(batch["value"].to_pylist(), places)]
            times = [micros(time_ms) for time_ms in batch["timestamp"].to_pylist()]
            arrays += [pa.array(times, TIME), *(batch[column.name] for column in _PLACE[1:])]
            yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])

    raw = records.select("key", "value", *(column.name for column in _PLACE))
    return with_variants(raw.mapInArrow(process, spark_schema(columns)), columns)


def _serdes(topology: Topology, topic: str) -> tuple[Columns, Columns]:
    """What keys and values of a topic become; bytes if no sink is known for it."""
    sink = topology.sink_of(topic)
    if sink is None:
        return columns_of("key", None), columns_of("value", None)
    return columns_of("key", sink.key_serde), columns_of("value", sink.value_serde)


def _columns(topology: Topology, topic: str) -> list[Column]:
    key, value = _serdes(topology, topic)
    return [*key.columns, *value.columns]


def _place_of(topic: str, batch: Any, row: int) -> dict[str, str | int]:
    return {"topic": topic, "task": batch["task"][row].as_py(), "position": batch["position"][row].as_py()}


def _refuse_cycles(topology: Topology) -> None:
    """Tasks that ask each other must be run again from where they stood, and nothing of a dry run is kept."""
    for level in topology.levels():
        if is_cyclic(level):
            numbers = ", ".join(str(sub.id) for sub in level)
            message = (
                f"Sub-topologies {numbers} write to each other (a join by foreign key): there is no dry run of that"
            )
            raise UnsupportedByHostError(message, hint="Reprocess a release of it: millrace release plan.")


def _begins_with_state(application: Application, admin: Admin, run_range: RunRange) -> bool:
    committed = admin.committed(application.id, run_range.ranges)
    if committed and all(tp in committed and committed[tp].offset == r.start for tp, r in run_range.ranges.items()):
        return True
    first = admin.beginning_offsets(run_range.ranges)
    elsewhere = [tp for tp, r in run_range.ranges.items() if r.start != first[tp]]
    if elsewhere and application.topology.stores:
        message = f"There is no state to begin with at offset {run_range.ranges[elsewhere[0]].start} of {elsewhere[0]}"
        raise RangeError(message, hint="A dry run begins at `committed`, or without any state at `earliest`.")
    return False


def _readers(application: Application) -> dict[str, int]:
    """Which sub-topology reads each of the application's own topics, by full name."""
    return {
        full_name(sub, application.id, topic): sub.id
        for sub in application.topology.sub_topologies()
        for topic in sub.source_topics
        if topic in sub.repartition_topics
    }


def _task_ids(layout: Layout, level: Iterable[SubTopology]) -> list[TaskId]:
    ids = {sub.id for sub in level}
    return [task_id for task_id in layout.tasks if task_id.sub_topology in ids]


def _work(job: Job, admin: Admin, rehearsal: _Rehearsal, run_range: RunRange, task_id: TaskId) -> TaskWork:
    """The external inputs as the range says; of internal ones, what an earlier run left unprocessed."""
    inputs = rehearsal.layout.tasks[task_id]
    ranges = {tp: run_range.ranges[tp] for tp in inputs if tp in run_range.ranges}
    internal = [tp for tp in inputs if tp not in ranges]
    if rehearsal.restores and internal:
        first, ends = admin.beginning_offsets(internal), admin.settled_end_offsets(internal)
        committed = admin.committed(job.config.application_id(job.version), internal)
        for tp in internal:
            start = committed[tp].offset if tp in committed else first[tp]
            ranges[tp] = OffsetRange(start, max(start, ends[tp]))
    return TaskWork(job, task_id, ranges)


def _run_level(
    spark: Any, works: list[TaskWork], above: list[Any], rehearsal: _Rehearsal, build: Callable[[Job], Topology]
) -> Any:
    """One group of rows per task: a row that says there is a task, and the records handed over to it."""
    by_task = {str(work.task_id): work for work in works}

    def process(key: tuple[Any, ...], table: Any) -> Any:
        return _outputs(by_task[key[0].as_py()], table, rehearsal, build)

    inbox = spark.createDataFrame([(task,) + (None,) * 9 for task in by_task], _SCHEMA)
    for frame in above:
        inbox = inbox.unionByName(frame.where(frame.reader.isin(*by_task)))
    outputs = inbox.groupBy("reader").applyInArrow(process, _SCHEMA).persist()
    for row in outputs.where("error is not null").select("error").take(1):
        raise rebuilt_error(row.error)
    return outputs


def _outputs(work: TaskWork, inbox: Any, rehearsal: _Rehearsal, build: Callable[[Job], Topology]) -> Any:
    """Runs on executors: one task's outputs as an Arrow table, or its error as the only row."""
    rows = [row for row in inbox.to_pylist() if row["topic"] is not None]
    try:
        outputs = rehearse_task(work, _handed_over(rows), build, restores=rehearsal.restores)
    except StreamsError as error:
        if another_attempt_may_help(error):
            raise
        found = [{"error": describe_error(error)}]
    else:
        found = [_row(output, str(work.task_id), rehearsal.readers) for output in outputs]
    return pa.Table.from_pylist(found, _arrow_schema())


def _arrow_schema() -> Any:
    """`_SCHEMA` in Arrow's words."""
    kinds = {
        "partition": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "timestamp": pa.int64(),
        "headers": _HEADERS_KIND,
        "position": pa.int64(),
    }
    return pa.schema([(name, kinds.get(name, pa.string())) for name in ("reader", *_COLUMNS, "error")])


def _handed_over(rows: list[dict[str, Any]]) -> list[HandedOver]:
    runs: dict[tuple[TopicPartition, str], list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault((TopicPartition(row["topic"], row["partition"]), row["task"]), []).append(row)
    return [
        HandedOver(tp, TaskId.parse(writer), [_record(row) for row in sorted(run, key=_position)])
        for (tp, writer), run in sorted(runs.items())
    ]


def _position(row: dict[str, Any]) -> int:
    position: int = row["position"]
    return position


def _record(row: dict[str, Any]) -> RawRecord:
    headers = tuple((header["name"], header["value"]) for header in row["headers"])
    return RawRecord(row["key"], row["value"], row["timestamp"], row["position"], headers)


def _row(output: Output, task: str, readers: Mapping[str, int]) -> dict[str, Any]:
    partition = output.partition
    if output.topic in readers:
        partition = partition or 0  # without a key any will do
    return {
        "reader": str(TaskId(readers[output.topic], partition or 0)) if output.topic in readers else None,
        "topic": output.topic,
        "partition": partition,
        "key": output.key,
        "value": output.value,
        "timestamp": output.timestamp,
        "headers": [{"name": name, "value": value} for name, value in output.headers],
        "task": task,
        "position": output.position,
    }
