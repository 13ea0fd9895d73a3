"""State stores as DataFrames: their committed state now, or at any offset vector of the application's inputs.

Executors read the partitions in parallel, from snapshots and changelogs. Running applications are not disturbed, and none
has to run.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import ConfigError, InvalidStateStoreError, RangeError
from riverrun.hosting.continuing import require_new
from riverrun.hosting.inputs import input_lags
from riverrun.hosting.progress import polling_progress
from riverrun.hosting.snapshots import usable_snapshots
from riverrun.records import OffsetVector, TopicPartition
from riverrun.runtime.layout import changelog_name
from riverrun.spark.columns import spark_schema, with_variants
from riverrun.spark.databases import with_driver
from riverrun.spark.failures import complaint, on_executor, spark_failures
from riverrun.spark.formats import has_files, saved
from riverrun.spark.past_stores import rows_at
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import DONE, RunLog
from riverrun.spark.store_rows import READABLE, StoreWork, read_rows, store_columns
from riverrun.spark.tasks.reporting import Counts, new_group
from riverrun.spark.tasks.work import job_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId
    from riverrun.spark.runs import RunRecord
    from riverrun.spark.tasks.work import Job
    from riverrun.state.api import StoreBuilder
    from riverrun.topology.topology import Topology

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class _Past:
    """A point whose state has to be recomputed, and the runs that may have ended before it."""

    vector: OffsetVector
    runs: list[RunRecord]


def read_store(
    connected: ConnectedApplication,
    store: str,
    spark: Any,
    build: Callable[[Job], Topology],
    *,
    at: str = LATEST,
    progress: str = "",
) -> Any:
    """Return a store of an application as a DataFrame, with all its partitions and committed records only.

    `at` is `latest` (committed now), an offset vector of the application's inputs (`payments-0@12,payments-1@7`), or the id of
    a run. A vector means the state that a bounded run to there would leave. That state is read where the application stands
    now, and where a run ended that left snapshots. Elsewhere a dry run recomputes it, from the last earlier such end.

    Columns: `key`; `window_start` and `window_end` of window and session stores (a session's end is inclusive); `value`;
    `timestamp` of timestamped stores, `valid_from` and `valid_to` (null: still valid) of versioned ones; `partition`. Keys
    and values are typed as their serdes say (`riverrun.spark.columns`; bytes where a serde does not say).

    Spark reads the rows whenever it evaluates the frame, up to the offsets found in this call. Cache the frame to keep it
    unchanged for longer than the changelog keeps older values.
    """
    connected = connected.resolved()
    builder = _builder(connected.topology, store)
    job = job_of(connected, progress)
    columns = store_columns(builder).all
    changelogs = _changelogs(connected, builder)
    schema = spark_schema(columns)
    point = _find(connected, builder, changelogs, at)
    if isinstance(point, _Past):
        frame = rows_at(connected, builder, point.vector, point.runs, job=job, spark=spark, build=build, schema=schema)
        return with_variants(frame, columns)
    works = _works(job, store, changelogs, point)

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                with on_executor():
                    yield from read_rows(works[number], build)

    return with_variants(spark.range(0, len(works), 1, len(works)).mapInArrow(process, schema), columns)


def export_store(
    connected: ConnectedApplication,
    store: str,
    spark: Any,
    build: Callable[[Job], Topology],
    to: Callable[[Any], int],
    *,
    at: str = LATEST,
) -> int:
    """Hand the frame of a store to a writer, and report the progress of reading; return the writer's number of rows."""
    group = new_group(connected.id)
    counts = Counts(connected.admin, group)
    places = frozenset(_changelogs(connected.resolved(), _builder(connected.topology, store)).values())
    frame = read_store(connected, store, spark, build, at=at, progress=group)
    with closing(counts), polling_progress(f"{connected.id}, store {store}", lambda: (counts.of(places, 0), None)):
        return to(frame)


def works_of(connected: ConnectedApplication, store: str) -> list[StoreWork]:
    """Return the work for each partition of a store, for the state committed now, without Spark."""
    connected = connected.resolved()
    builder, job = _builder(connected.topology, store), job_of(connected)
    changelogs = _changelogs(connected, builder)
    return _works(job, store, changelogs, _as_it_is(connected, builder, changelogs))


def write_store(frame: Any, target: str, kind: str, options: Mapping[str, str]) -> int:
    """Write a frame of `read_store` to a target, replacing its content; return the number of rows.

    `target` is a directory, or the table of a `jdbc` target; `kind` any format that Spark writes.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    # Values without a schema are written as JSON text.
    for name, type_ in frame.dtypes:
        if type_ == "variant":
            frame = frame.withColumn(name, f.to_json(name))
    # Otherwise Spark would read the store again to count, perhaps other rows than were written.
    frame = frame.persist()
    writer = frame.write.format(kind).options(**options).mode("overwrite")
    try:
        with spark_failures(f"write to {kind} target {target}"):
            if kind == "jdbc":
                writer.options(**with_driver(options)).option("dbtable", target).save()
            elif has_files(kind):
                _replace_files(writer, frame, target)
            else:
                writer.save(target)
            rows: int = frame.count()
            return rows
    except AnalysisException as error:
        message = f"{kind} target {target} cannot be written: {complaint(error)}"
        raise ConfigError(message, hint="Check --format and --option.") from error
    finally:
        frame.unpersist()


def _replace_files(writer: Any, frame: Any, target: str) -> None:
    from pyspark.sql import functions as f

    files = saved(writer, frame.sparkSession, target, uuid.uuid4().hex)
    # Another one may have deleted files before they were complete, which Spark does not notice.
    filled = {row[0] for row in frame.select(f.spark_partition_id()).distinct().collect()} if files.own else set()
    if files.others or filled - files.partitions:
        message = f"Another process has written to {target} at the same time"
        raise ConfigError(message, hint="Export again when the other one has ended: that replaces all files.")


def _works(
    job: Job,
    store: str,
    changelogs: Mapping[TaskId, TopicPartition],
    points: Mapping[TaskId, tuple[int, str | None]],
) -> list[StoreWork]:
    return [
        StoreWork(job, task_id, store, changelogs[task_id], end, snapshot)
        for task_id, (end, snapshot) in sorted(points.items())
    ]


def _builder(topology: Topology, store: str) -> StoreBuilder:
    builder = readable(topology, store)
    if builder.logging or builder.source_topic is not None:
        return builder
    message = f"Store {store} cannot be read: it has no changelog"
    raise InvalidStateStoreError(
        message, hint="`riverrun state export --local DIRECTORY` reads what a stopped worker has left on its disk."
    )


def readable(topology: Topology, store: str) -> StoreBuilder:
    """Return a store that is a table, with a changelog or without."""
    if store in topology.stores:
        builder = topology.stores[store]
        if builder.kind in READABLE:
            return builder
        message = f"Store {store} cannot be read: it is a {builder.kind.value} store, which is not a table"
        raise InvalidStateStoreError(message)
    for found in topology.global_stores:
        if found.store.name == store:
            message = f"Store {store} is a global table: every instance fills it from {', '.join(found.source.topics)}"
            raise InvalidStateStoreError(message, hint="Read that topic.")
    names = ", ".join(sorted(name for name, builder in topology.stores.items() if builder.kind in READABLE))
    raise InvalidStateStoreError(f"The application has no store {store}", hint=f"It has: {names or 'none'}.")


def _changelogs(connected: ConnectedApplication, builder: StoreBuilder) -> dict[TaskId, TopicPartition]:
    topic = changelog_name(connected.id, builder.name) if builder.logging else builder.source_topic
    assert topic is not None, "such a store is refused before"  # noqa: S101 - a mistake of this package
    layout = connected.layout
    (owner,) = (sub.id for sub in connected.topology.sub_topologies() if builder in sub.stores)
    return {
        task_id: TopicPartition(topic, task_id.partition) for task_id in layout.tasks if task_id.sub_topology == owner
    }


def _find(
    connected: ConnectedApplication, builder: StoreBuilder, changelogs: Mapping[TaskId, TopicPartition], at: str
) -> dict[TaskId, tuple[int, str | None]] | _Past:
    """Return each changelog's end offset, or the snapshot to open; or the point to recompute the state for."""
    application = connected.application
    if at == LATEST:
        return _as_it_is(connected, builder, changelogs)
    runs = [run for run in RunLog(connected.admin).runs(application.config.name) if run.version == application.version]
    vector = _vector(runs, at)
    if _stands_at(connected, vector):
        found = _as_it_is(connected, builder, changelogs)
        # Asked again: a commit in between would have moved the ends of the changelogs.
        if _stands_at(connected, vector):
            return found
    usable = {task_id: {each.name for each in usable_snapshots(application, task_id)} for task_id in changelogs}
    for run in runs:
        if at == run.id or _ended_at(run, vector):
            snapshots = {task_id: run.snapshots.get(str(task_id), "") for task_id in changelogs}
            if all(name in usable[task_id] for task_id, name in snapshots.items()):
                return {task_id: (0, name) for task_id, name in snapshots.items()}
    return _Past(vector, runs)


def _as_it_is(
    connected: ConnectedApplication, builder: StoreBuilder, changelogs: Mapping[TaskId, TopicPartition]
) -> dict[TaskId, tuple[int, str | None]]:
    admin = connected.admin
    admin.require({tp.topic for tp in changelogs.values()}, f"store {builder.name} is restored from")
    if builder.logging:
        ends = admin.stable_end_offsets(changelogs.values())
    else:
        # Restored from its source topic, of which it holds the processed records only.
        committed = connected.committed(changelogs.values())
        # No commit may also mean that brokers have forgotten it: the store would seem to have no rows.
        require_new(connected, set(changelogs.values()) - committed.keys())
        ends = {tp: committed[tp].offset if tp in committed else 0 for tp in changelogs.values()}
    return {task_id: (ends[tp], None) for task_id, tp in changelogs.items()}


def _vector(runs: list[RunRecord], at: str) -> OffsetVector:
    """Return the requested offsets, or those at the end of the requested run."""
    for run in runs:
        if run.id == at:
            return RunRange.parse(run.range).end
    try:
        vector = OffsetVector.parse(at)
    except ValueError:
        vector = OffsetVector({})
    if not vector.offsets:
        message = f"{at!r} is neither latest, a vector (topic-0@12,topic-1@7) nor the id of a bounded run"
        raise RangeError(message, hint="`riverrun runs --json` shows the ids and ranges of runs.")
    return vector


def _ended_at(run: RunRecord, vector: OffsetVector) -> bool:
    return run.state == DONE and vector.offsets.items() <= RunRange.parse(run.range).end.offsets.items()


def _stands_at(connected: ConnectedApplication, vector: OffsetVector) -> bool:
    """Return whether the application has processed exactly the records before the vector, repartition topics included."""
    lags = input_lags(connected)
    stands = {lag.tp: lag.committed for lag in lags}
    is_there = all(stands.get(tp) == offset for tp, offset in vector.offsets.items())
    return is_there and not any(lag.lag for lag in lags if lag.is_internal)
