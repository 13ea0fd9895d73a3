"""The work of running instances, as rows that a check judges."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from riverrun.releases.worker_quality import (
    Answers,
    InstanceWork,
    TaskWork,
    answers_verdict,
    counts,
    span_verdict,
    work_rows,
)

SERVER = "127.0.0.1:8090"
EARLIER = TaskWork(1_000, 9_000, 10, {"late": 2, "null-key": 1}, 50)
NOW = TaskWork(1_000, 20_000, 30, {"late": 7, "null-key": 1}, 90, ((5_000, 45), (12_000, 30)))


def answers(**tasks: TaskWork) -> Answers:
    return Answers({SERVER: InstanceWork("i1", tasks)})


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_without_an_earlier_check_all_work_since_a_task_was_taken_over_counts() -> None:
    (row,) = work_rows(answers(t=NOW), {})
    assert (row["_task"], row["_instance"], row["_since"]) == ("t", SERVER, at(1_000))
    assert (row["records"], row["dropped"], row["late"], row["null_key"]) == (30, 8, 7, 1)
    assert (row["lateness_avg_ms"], row["lateness_max_ms"]) == (3.0, 45)


def test_with_an_earlier_check_the_work_since_then_counts() -> None:
    (row,) = work_rows(answers(t=NOW), counts(answers(t=EARLIER)))
    assert (row["_since"], row["records"], row["dropped"], row["dropped_share"]) == (at(9_000), 20, 5, 0.25)
    assert (row["late"], row["null_key"], row["lateness_avg_ms"], row["lateness_max_ms"]) == (5, 0, 2.0, 30)


@pytest.mark.parametrize(
    "before", [{}, counts(answers(other=EARLIER)), counts(answers(t=TaskWork(500, 9_000, 99, {"late": 99})))]
)
def test_a_task_taken_over_since_an_earlier_check_counts_from_there_which_is_noted(before: dict[str, TaskWork]) -> None:
    (row,) = work_rows(answers(t=NOW), before)
    assert (row["_since"], row["records"], row["late"]) == (at(1_000), 30, 7)
    verdict = span_verdict(answers(t=NOW), before)
    expected = "noted: 1 of the tasks are counted since they were taken over: t since 1970-01-01T00:00:01Z"
    assert verdict.outcomes == {"workers: counted since": expected}
    assert verdict.warnings == verdict.critical == ()


def test_tasks_that_stay_where_they_were_need_no_note() -> None:
    assert span_verdict(answers(t=NOW), counts(answers(t=EARLIER))).outcomes == {}


@pytest.mark.parametrize(
    ("work", "silent", "outcome", "severity"),
    [
        ({}, {}, "failed: no running instance of clicks-v1 has an address (application.server)", "warnings"),
        ({SERVER: InstanceWork("i1", {})}, {}, "passed: 1", ""),
        (
            {SERVER: InstanceWork("i1", {})},
            {"b:1": "b:1 is gone"},
            "failed: 1 of 2 do not answer: b:1 is gone",
            "warnings",
        ),
        (
            {},
            {"a:1": "a:1 is gone", "b:1": "refused"},
            "failed: 2 of 2 do not answer: a:1 is gone; refused",
            "critical",
        ),
    ],
)
def test_instances_that_do_not_answer_are_a_warning_and_critical_if_none_does(
    work: dict[str, InstanceWork], silent: dict[str, str], outcome: str, severity: str
) -> None:
    verdict = answers_verdict("clicks-v1", Answers(work, silent))
    assert verdict.outcomes == {"workers: instances answer": outcome}
    assert (bool(verdict.warnings), bool(verdict.critical)) == (severity == "warnings", severity == "critical")


@pytest.mark.parametrize("answer", [None, [], {"instance": "i1"}, {"instance": "i1", "tasks": {"0_0": {"since": "?"}}}])
def test_answers_of_other_programs_are_not_believed(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing"):
        InstanceWork.of(answer)
