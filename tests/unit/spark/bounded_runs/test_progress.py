"""How far a run is: in records that tasks have processed, those at work included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config import AppConfig
from riverrun.kafka.door import Kafka
from riverrun.records import OffsetRange, TaskId, TopicPartition
from riverrun.spark.bounded_runs.attempts import RunProgress
from riverrun.spark.tasks.work import Job, SliceWork, TaskResult

if TYPE_CHECKING:
    from collections.abc import Collection

IN, BETWEEN = TopicPartition("in", 0), TopicPartition("app-v1-users-repartition", 0)
JOB = Job(
    config=AppConfig("app", "m:f"),
    version="v1",
    kafka=Kafka({}),
    state_directory=Path(),
    fingerprint="",
    published=None,
    partitions={},
    global_ends={},
)


class Reports:
    """Counts that tasks have reported, by the place and the turn."""

    def __init__(self) -> None:
        self.counts: dict[tuple[TopicPartition, int], int] = {}

    def of(self, places: Collection[TopicPartition], turn: int) -> int:
        return sum(self.counts.get((place, turn), 0) for place in places)


def work(sub: int, tp: TopicPartition, start: int, end: int) -> SliceWork:
    return SliceWork(JOB, TaskId(sub, 0), {tp: OffsetRange(start, end)})


def test_records_of_tasks_at_work_count_before_their_transaction_ends() -> None:
    reports: Any = Reports()
    progress = RunProgress(reports, 300, done=100)
    assert progress.look() == (100, 300)
    (first,) = progress.begin([work(0, IN, 100, 200)])
    assert progress.look() == (100, 300)
    reports.counts[IN, first.turn] = 70
    assert progress.look() == (170, 300)
    done = [TaskResult("0_0", 95, 0, {}, read=95)]  # five offsets are ends of transactions
    progress.end([first], done, frozenset({"in"}))
    assert progress.look() == (200, 300)
    (second,) = progress.begin([work(0, IN, 200, 300)])
    assert (second.turn, progress.look()) == (first.turn + 1, (200, 300)), "what was said before does not count"


def test_records_that_are_handed_over_are_counted_once_they_are_written() -> None:
    reports: Any = Reports()
    progress = RunProgress(reports, 100)
    works = progress.begin([work(0, IN, 0, 100)])
    written = [TaskResult("0_0", 100, 0, {}, read=100, written=60, published={"out": 20})]
    progress.end(works, written, frozenset({"in"}))
    assert progress.look() == (100, 140)
    works = progress.begin([work(1, BETWEEN, 0, 2)])
    reports.counts[BETWEEN, works[0].turn] = 30
    assert progress.look() == (130, 140)
    progress.end(works, [TaskResult("1_0", 40, 0, {})], frozenset({"in"}))
    assert progress.look() == (140, 140)
