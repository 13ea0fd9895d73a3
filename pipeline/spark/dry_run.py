"""A bounded run that commits nothing: its outputs as a DataFrame, for checks, notebooks and comparisons.

Levels of sub-topologies run one after the other as in a real run, but what one hands to the next stays in Spark. The whole
range is one slice, so of a cached aggregate there is one update per key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.errors import RangeError, StreamsError, UnsupportedByHostError
from pipeline.kafka.admin import Admin
from pipeline.records import OffsetRange, RawRecord, TaskId, TopicPartition
from pipeline.runtime.layout import full_name, plan_layout
from pipeline.spark.executor import run_of
from pipeline.spark.job import another_attempt_may_help, describe_error, job_of, rebuilt_error
from pipeline.spark.rehearsal import HandedOver, rehearse_task
from pipeline.spark.work import Job, TaskWork
from pipeline.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pipeline.hosting.application import Application
    from pipeline.runtime.layout import Layout
    from pipeline.spark.ranges import RunRange
    from pipeline.spark.rehearsal import Output
    from pipeline.topology.nodes import SubTopology
    from pipeline.topology.topology import Topology

_HEADERS = "array<struct<name: string, value: binary>>"
PUBLIC_COLUMNS = ("topic", "partition", "key", "value", "timestamp", "headers", "task", "position")
"""Of the frame a dry run gives: `timestamp` in ms; `position` counts the records of a task."""
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


def dry_run(application: Application, run_range: RunRange, spark: Any, build: Callable[[Job], Topology]) -> Any:
    """Process a range without committing anything; nobody is fenced, no topic is created or written.

    Args:
        application: What to run.
        run_range: What to process. It begins where the application stands (the run begins with its state), or at the
            beginning of the topics (the run begins with none).
        spark: A Spark session.
        build: Builds the topology on executors; must be picklable.

    Returns:
        A DataFrame of the records that would have been written to public topics, with `PUBLIC_COLUMNS`.

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
    return outputs.where("reader is null").select(*PUBLIC_COLUMNS)


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
    import pyarrow as pa  # noqa: PLC0415 - runs on executors

    rows = [row for row in inbox.to_pylist() if row["topic"] is not None]
    try:
        outputs = rehearse_task(work, _handed_over(rows), build, restores=rehearsal.restores)
    except StreamsError as error:
        if another_attempt_may_help(error):
            raise
        found = [{"error": describe_error(error)}]
    else:
        found = [_row(output, str(work.task_id), rehearsal.readers) for output in outputs]
    return pa.Table.from_pylist(found, _arrow_schema(pa))


def _arrow_schema(pa: Any) -> Any:
    """`_SCHEMA` in Arrow's words."""
    headers = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    kinds = {
        "partition": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "timestamp": pa.int64(),
        "headers": headers,
    }
    kinds["position"] = pa.int64()
    return pa.schema([(name, kinds.get(name, pa.string())) for name in ("reader", *PUBLIC_COLUMNS, "error")])


def _handed_over(rows: list[dict[str, Any]]) -> list[HandedOver]:
    runs: dict[tuple[TopicPartition, str], list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault((TopicPartition(row["topic"], row["partition"]), row["task"]), []).append(row)
    return [
        HandedOver(tp, run_of(TaskId.parse(writer)), [_record(row) for row in sorted(run, key=_position)])
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
