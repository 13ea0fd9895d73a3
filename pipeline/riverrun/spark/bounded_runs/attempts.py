"""Carries out the steps of a bounded run: finds the work of each level, attempts it, and counts the records.

Two engines attempt tasks in the same way: Spark, with one Spark task per stream task, and this process, one after the other.
Both retry errors that may pass; all others end the run.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from zipimport import zipimporter

from riverrun.config.secrets import redacted
from riverrun.errors import USER_ERRORS, EngineError, StreamsError, as_exception
from riverrun.hosting.process import collect_rarely, current_style, start_logging
from riverrun.records import OffsetRange, OffsetVector, TopicPartition, counted
from riverrun.runtime.layout import full_name
from riverrun.spark.bounded_runs.executor import run_task
from riverrun.spark.failures import (
    another_attempt_may_help,
    describe_error,
    on_executor,
    rebuilt_error,
    spark_failures,
    text_row,
)
from riverrun.spark.ranges import RunRange
from riverrun.spark.session import DEFAULT_ATTEMPTS, SessionOnDemand
from riverrun.spark.tasks.reporting import place_of
from riverrun.spark.tasks.work import SliceWork, TaskResult, admin_here
from riverrun.spark.unfinished import InterruptedRun, steps
from riverrun.topology.grouping import is_cyclic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.records import TaskId
    from riverrun.spark.tasks.reporting import Counts
    from riverrun.spark.tasks.work import Job
    from riverrun.spark.unfinished import Slice, Step
    from riverrun.topology.topology import Topology


log = logging.getLogger(__name__)

LOCAL: Final = "local"
SPARK: Final = "spark"
AUTO: Final = "auto"
# `auto` processes up to this many offsets in this process. Up to there it is faster than Spark on two cores, also with JSON
# and a repartition (docs/internals/bounded-runs.md).
MAX_LOCAL_OFFSETS = 1_000_000


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of bounded runs, and the reason for its choice.

    Args:
        name: `local` (this process) or `spark`.
        attempts: How often this process tries a task whose error may pass: as often as Spark would.
    """

    name: str
    reason: str
    attempts: int = DEFAULT_ATTEMPTS

    def __str__(self) -> str:
        """Return the engine and the reason.

        >>> str(Engine("spark", "its master is spark://host:7077"))
        'spark (its master is spark://host:7077)'
        """
        return f"{self.name} ({self.reason})"


def chosen_engine(wanted: str, spark: Any, offsets: int) -> Engine:
    """Return the engine of a run; `wanted` is the setting `bounded.engine`."""
    # Only a `SessionOnDemand` knows its master without starting Spark.
    lazy = spark if isinstance(spark, SessionOnDemand) else SessionOnDemand(lambda: spark)
    if wanted == LOCAL:
        return Engine(LOCAL, "as chosen", lazy.attempts)
    if wanted == SPARK:
        return Engine(SPARK, "as chosen")
    # Whoever passes a session has chosen Spark. Releases and repairs do: they recreate topics, and librdkafka may end a
    # process that keeps its clients through that. Spark replaces such a process.
    if lazy.master is None:
        return Engine(SPARK, "its session was passed")
    if not lazy.is_local:
        return Engine(SPARK, redacted(f"its master is {lazy.master}"))
    if offsets > MAX_LOCAL_OFFSETS:
        return Engine(SPARK, f"{counted(offsets, 'offset')}, more than {MAX_LOCAL_OFFSETS}")
    return Engine(LOCAL, f"{counted(offsets, 'offset')}, at most {MAX_LOCAL_OFFSETS}", lazy.attempts)


class RunProgress:
    """Counts the records of a run. Safe to call from several threads.

    Args:
        everything: Number of offsets of the inputs, an upper bound of their records.
        done: Number of offsets that were processed before this run.
    """

    def __init__(self, counts: Counts, everything: int, done: int = 0) -> None:
        self._counts = counts
        self._everything = everything
        self._done = done
        self._turn = 0
        self._at_work: frozenset[TopicPartition] = frozenset()
        # `look` is called by the thread that shows the progress (`hosting.progress`).
        self._lock = threading.Lock()

    def begin(self, works: Iterable[SliceWork]) -> list[SliceWork]:
        """Note which tasks begin, and return their work with the number of this turn."""
        with self._lock:
            self._turn += 1
            numbered = [replace(work, turn=self._turn) for work in works]
            self._at_work = frozenset(place_of(work.ranges) for work in numbered if work.ranges)
            return numbered

    def end(self, works: Sequence[SliceWork], results: Iterable[TaskResult], sources: frozenset[str]) -> None:
        found = list(results)
        offsets = sum(each.size for work in works for tp, each in work.ranges.items() if tp.topic in sources)
        with self._lock:
            self._at_work = frozenset()
            # What did not go to public topics went to repartition topics: the next level will read it, so the total grows.
            self._everything += sum(max(0, each.written - sum(each.published.values())) for each in found)
            self._done += offsets + sum(each.processed - each.read for each in found)

    def look(self) -> tuple[int, int]:
        """Return the number of processed records, and the total known so far."""
        with self._lock:
            done, everything, turn, places = self._done, self._everything, self._turn, self._at_work
        return min(done + self._counts.of(places, turn), everything), everything


_SCHEMA = "result string"
_ANSWER_SECONDS = 5.0


def run_on_spark(spark: Any, works: Sequence[SliceWork], build: Callable[[Job], Topology]) -> list[TaskResult]:
    """Run each task in a separate Spark task, and collect the results."""
    if not works:
        return []

    logs = current_style()

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        collect_rarely()  # a process of Spark's
        start_logging(logs, works[0].job.config.logging)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with on_executor():
                    result = attempt(works[number], build)
                yield text_row("result", result)
        _forget_archives()

    # One partition per row, and with that one Spark task per stream task.
    frame = spark.range(0, len(works), 1, len(works)).mapInArrow(process, _SCHEMA)
    with spark_failures(f"process tasks {', '.join(str(work.task_id) for work in works)}"):
        results = [_result(row.result) for row in frame.collect()]
    _raise_errors(results)
    _check_all_answered(works, results)
    return results


def run_here(
    works: Sequence[SliceWork], build: Callable[[Job], Topology], attempts: int, admin: Admin
) -> list[TaskResult]:
    """Run tasks in this process, one after the other, as `run_on_spark` does."""
    # Errors are raised at the end: as on Spark, a task that fails for good lets the others commit their work.
    results = [_result(_attempted(partial(attempt, work, build, admin), work.task_id, attempts)) for work in works]
    _raise_errors(results)
    return results


def _attempted(attempt_once: Callable[[], str], task_id: TaskId, attempts: int) -> str:
    for number in range(1, attempts):
        try:
            return attempt_once()
        except USER_ERRORS as error:
            # Spark tries again whatever users' functions raise, not only errors that may pass.
            log.info("attempt %d of task %s failed: %s", number, task_id, as_exception(error))
    try:
        return attempt_once()
    except StreamsError:
        raise
    except USER_ERRORS as error:
        failed = as_exception(error)
        message = redacted(f"Task {task_id} cannot be processed: {type(failed).__name__}: {failed}")
        raise EngineError(message) from error


def _result(text: str) -> TaskResult:
    return TaskResult(**json.loads(text))


def _raise_errors(results: Iterable[TaskResult]) -> None:
    for result in results:
        if result.error is not None:
            raise rebuilt_error(result.error)


def _check_all_answered(works: Sequence[SliceWork], results: Sequence[TaskResult]) -> None:
    # A run would count as done without the records of a task whose result Spark has lost.
    missing = sorted({str(work.task_id) for work in works} - {result.task_id for result in results})
    if missing:
        message = f"Spark ended the job without results of tasks {', '.join(missing)}"
        raise EngineError(message, hint="Run it again: completed work is not repeated.")


def _forget_archives() -> None:
    """Clear Python's cache of the archives on its path, which it reads again when needed."""
    # Spark's Python processes read the directories of all cached archives again before each task. pyspark's own alone takes
    # 0.1 s.
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def attempt(work: SliceWork, build: Callable[[Job], Topology], admin: Admin | None = None) -> str:
    """Attempt a task's work once, and return the result as JSON. Raise errors that may pass, so that Spark retries the task."""
    try:
        result = run_task(work, build, admin)
    except StreamsError as error:
        # Without a broker that answers, another attempt would only wait as long as this one has (`task.timeout.ms`).
        asked = admin or admin_here(work.job.kafka)
        if another_attempt_may_help(error) and asked.is_answered(_ANSWER_SECONDS):
            raise
        result = TaskResult(str(work.task_id), 0, 0, {}, describe_error(error))
    return json.dumps(asdict(result))


class Levels:
    """The work of each level, and the ends of the written slices in the repartition topics."""

    def __init__(self, job: Job, connected: ConnectedApplication) -> None:
        self._job = job
        self._connected = connected
        self._admin = connected.admin
        self._layout = connected.layout
        self._levels = connected.topology.levels()
        self._ends: dict[tuple[TopicPartition, int], int] = {}

    def know(self, begun: InterruptedRun) -> None:
        """Adopt the ends of slices that an interrupted run has noted."""
        # The last begun slice ends where the topics end now, as another host may have continued it.
        complete = begun.ends[:-1]
        internal = {tp for level in range(len(self._levels)) for tp in self._internal(level)}
        now = self._admin.settled_end_offsets(internal) if complete else {}
        for number, ends in enumerate(complete):
            # Topics that were deleted and recreated since are shorter than the noted ends.
            self._ends |= {(tp, number): min(end, now[tp]) for tp, end in ends.offsets.items() if tp in now}

    def begun(self, step: Step, slices: Sequence[Slice], origin: Mapping[TopicPartition, int]) -> InterruptedRun:
        """Return the work that is begun and unfinished once a step begins; `origin` is where tasks stood before all of it."""
        numbers = [number for _, number in step]
        unfinished = range(min(numbers), max(numbers) + 1)
        whole = RunRange({tp: OffsetRange(start, slices[max(numbers)][tp].end) for tp, start in origin.items()})
        ends = [OffsetVector({tp: end for (tp, n), end in self._ends.items() if n == number}) for number in unfinished]
        return InterruptedRun(whole, tuple(RunRange(slices[number]) for number in unfinished), tuple(ends))

    def steps(self, slices: int) -> list[Step]:
        """Return the steps in order, each with the pairs of level and slice that run at the same time."""
        return steps(self._levels, slices)

    def repeats(self, step: Step) -> bool:
        """Return whether the step is repeated, each task from its committed offsets, until nothing is left."""
        return any(is_cyclic(self._levels[level]) for level, _ in step)

    def works(self, step: Step, slices: Sequence[Slice]) -> list[SliceWork]:
        """Return the remaining work of a step, the largest first."""
        repeats = self.repeats(step)
        found = []
        for level, number in step:
            internal = self._internal(level)
            ends = (
                self._admin.settled_end_offsets(internal)
                if repeats
                else {tp: self._ends[tp, number] for tp in internal}
            )
            found += self._works(level, slices[number], ends, resumes=repeats)
        return sorted((work for work in found if work.size), key=lambda work: -work.size)

    def finish(self, step: Step) -> None:
        """Note the ends of a finished step's slices in the topics that it wrote to."""
        written = {level: self._written(level) for level, _ in step}
        ends = self._admin.settled_end_offsets({tp for tps in written.values() for tp in tps})
        for level, number in step:
            for tp in written[level]:
                # The note of an interrupted run is more exact: the topic may end after later slices by now.
                self._ends.setdefault((tp, number), ends[tp])

    def last_works(self, level: int, end: Slice) -> list[SliceWork]:
        """Return work for all tasks of a level, even if there is nothing to read."""
        return self._works(level, end, self._admin.settled_end_offsets(self._internal(level)), resumes=False)

    def _works(self, level: int, part: Slice, ends: Mapping[TopicPartition, int], *, resumes: bool) -> list[SliceWork]:
        """Return the work of a level.

        External inputs are read as the slice says or, with `resumes`, from where the task stands. Internal ones are read up
        to an end.
        """
        tasks = self._tasks(level)
        first = self._admin.beginning_offsets(ends)
        asked = [tp for inputs in tasks.values() for tp in inputs] if resumes else ends
        committed = {tp: known.offset for tp, known in self._connected.committed(asked).items()}

        def wanted(tp: TopicPartition) -> OffsetRange:
            if tp in ends:
                start = committed.get(tp, first[tp])
                return OffsetRange(start, max(start, ends[tp]))
            start = max(part[tp].start, committed.get(tp, 0))
            return OffsetRange(start, max(start, part[tp].end))

        return [SliceWork(self._job, task_id, {tp: wanted(tp) for tp in inputs}) for task_id, inputs in tasks.items()]

    def _tasks(self, level: int) -> dict[TaskId, tuple[TopicPartition, ...]]:
        ids = {sub.id for sub in self._levels[level]}
        return {task_id: inputs for task_id, inputs in self._layout.tasks.items() if task_id.sub_topology in ids}

    def _internal(self, level: int) -> list[TopicPartition]:
        """Return the partitions of repartition topics that a level reads."""
        own = {topic.name for topic in self._layout.repartition_topics}
        return [tp for inputs in self._tasks(level).values() for tp in inputs if tp.topic in own]

    def _written(self, level: int) -> list[TopicPartition]:
        """Return the partitions of repartition topics that a level writes to."""
        names = {
            full_name(sub, self._connected.id, topic)
            for sub in self._levels[level]
            for topic in sub.written_repartition_topics
        }
        return [
            TopicPartition(topic.name, number)
            for topic in self._layout.repartition_topics
            if topic.name in names
            for number in range(topic.partitions)
        ]
