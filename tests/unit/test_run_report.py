"""The record of runs in a shell: readable at 80 columns, complete when it may be wider."""

from __future__ import annotations

import io

from rich.console import Console

from riverrun.cli.run import plan_table, runs_table
from riverrun.records import TaskId
from riverrun.spark.bounded_runs.job import RunPlan
from riverrun.spark.ranges import RunRange
from riverrun.spark.runs import RunRecord

RANGE = ",".join(f"payments-{number}@100000..200000" for number in range(12))
RUNS = [
    RunRecord(
        "b",
        "app",
        "v1-long",
        "me@host",
        1767225600000,
        RANGE,
        "done",
        1767229600000,
        3,
        12345678,
        12345678,
        {"late": 1234},
    ),
    RunRecord("a", "app", "v1", "me@host", 1767225600000, RANGE, "failed", 1767225610000, error="RangeError: [x] y"),
]


def shown(width: int, *, wide: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(runs_table("app", RUNS, wide=wide))
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_a_run_takes_one_line_of_80_columns() -> None:
    assert shown(80, wide=False) == [
        "runs of app",
        "started (UTC) version state took in out dropped",
        "2026-01-01 00:00:00 v1-long done 1:06:40 12345678 12345678 1234",
        "2026-01-01 00:00:00 v1 failed 0:00:10 0 0 0",
    ]


def test_the_wide_table_has_ranges_and_errors_as_they_are() -> None:
    lines = shown(1000, wide=True)
    assert lines[2].endswith(f"1234 me@host {RANGE}")
    assert lines[3].endswith(f"0 me@host {RANGE} RangeError: [x] y")


def test_a_run_without_records_is_a_sentence() -> None:
    assert plan_table(RunPlan(RunRange({}), (), ())) == "There are no records to process"


def test_a_plan_without_records_says_that_something_is_left_of_an_interrupted_run() -> None:
    done = RunRange.parse("payments-0@7..7")
    console = Console(file=io.StringIO(), width=160)
    console.print(plan_table(RunPlan(done, (done.ranges,), ((TaskId(0, 0),), (TaskId(1, 0), TaskId(1, 1))))))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0].strip() == "1 slice, in each: 1 task (0_0) then 2 tasks (1_0, 1_1)"
    assert "records that were left in repartition topics" in lines[4]


def test_a_plan_says_which_sub_topologies_read_what_they_write() -> None:
    done = RunRange.parse("payments-0@0..5")
    console = Console(file=io.StringIO(), width=1000)
    console.print(plan_table(RunPlan(done, (done.ranges,), ((TaskId(0, 0),),), loops=((0,), (1, 2)))))
    assert isinstance(console.file, io.StringIO)
    shown_plan = " ".join(console.file.getvalue().split())
    assert "Sub-topology 0 reads what it writes: in each slice," in shown_plan
    assert "Sub-topologies 1, 2 read what they write: in each slice," in shown_plan
