"""Submits work to Spark, one Spark task per stream task. Spark retries errors that may pass; all others end the run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

from riverrun.errors import EngineError, StreamsError
from riverrun.spark.bounded_runs.executor import run_task
from riverrun.spark.engine.executor_errors import another_attempt_may_help, describe_error, rebuilt_error
from riverrun.spark.engine.failures import on_executor, spark_failures
from riverrun.spark.engine.text_rows import text_row
from riverrun.spark.tasks.work import TaskResult, admin_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from riverrun.spark.tasks.work import Job, TaskWork
    from riverrun.topology.topology import Topology

_SCHEMA = "result string"
_ANSWER_SECONDS = 5.0


def run_on_spark(spark: Any, works: Sequence[TaskWork], build: Callable[[Job], Topology]) -> list[TaskResult]:
    """Run tasks, each in a Spark task of its own, and collect the results.

    Returns:
        One result per task.

    Raises:
        StreamsError: If a task failed for good.
        EngineError: If Spark gave up, or lost the result of a task.
    """
    if not works:
        return []

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with on_executor():
                    result = attempt(works[number], build)
                yield text_row("result", result)
        _forget_archives()

    frame = spark.range(0, len(works), 1, len(works)).mapInArrow(process, _SCHEMA)
    with spark_failures(f"process tasks {', '.join(str(work.task_id) for work in works)}"):
        results = [TaskResult(**json.loads(row.result)) for row in frame.collect()]
    for result in results:
        if result.error is not None:
            raise rebuilt_error(result.error)
    _check_all_answered(works, results)
    return results


def _check_all_answered(works: Sequence[TaskWork], results: Sequence[TaskResult]) -> None:
    """Check that every task has a result: the run would count as done without the records of a lost one.

    Raises:
        EngineError: If Spark returned neither a result nor an error for a task.
    """
    missing = sorted({str(work.task_id) for work in works} - {result.task_id for result in results})
    if missing:
        message = f"Spark says that it is done, and gave no result of tasks {', '.join(missing)}"
        raise EngineError(message, hint="Run it again: completed work is not repeated.")


def _forget_archives() -> None:
    """Clear Python's cache of the archives on its path, which it reads again when needed.

    Spark's Python processes read the directories of all archives again before each task. pyspark's own alone takes 0.1 s.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def attempt(work: TaskWork, build: Callable[[Job], Topology]) -> str:
    """Attempt a task's work once, and return the result as JSON. Raises errors that may pass, so that Spark retries the task.

    It does not raise that no broker answers: another attempt would wait just as long as this one has.
    """
    try:
        result = run_task(work, build)
    except StreamsError as error:
        if another_attempt_may_help(error) and admin_here(work.job.kafka).is_answered(_ANSWER_SECONDS):
            raise
        result = TaskResult(str(work.task_id), 0, 0, {}, describe_error(error))
    return json.dumps(asdict(result))
