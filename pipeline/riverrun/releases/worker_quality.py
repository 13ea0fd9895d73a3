"""The work of workers as rows to be judged: records read and dropped per task, and how late they were.

Workers count from when they took a task over. A check records the counts, and the next one judges what has been added.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from riverrun.decoders import Natural, Time, converter
from riverrun.processor.handlers import DropReason
from riverrun.quality.expectations import WORKERS
from riverrun.quality.gate import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ANSWER = f"{WORKERS}: instances answer"
_COUNTED = f"{WORKERS}: counted since"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The work of a task in one worker since it was taken over.

    Args:
        since: When it was taken over, ms of the worker's clock.
        at: When this was counted, ms of the same clock.
        lateness_ms: Lateness of all records together, ms.
        maxima: Wall-clock times (ms), each with the highest lateness of records from then on (ms).
    """

    since: Time
    at: Time
    processed: Natural
    dropped: dict[str, Natural] = field(default_factory=dict)
    lateness_ms: Natural = 0
    maxima: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceWork:
    """The work of a worker's tasks; the id of the instance survives restarts."""

    instance: str
    tasks: dict[str, TaskWork]

    @classmethod
    def of(cls, answer: Any) -> InstanceWork:
        """Return the work from a worker's answer to `/tasks`; raise `ValueError` if it is not one."""
        return converter(cls)(answer)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a version's workers.

    Args:
        answered: The work of each worker that answered, by address.
        silent: Reasons why the others did not answer, by address.
    """

    answered: Mapping[str, InstanceWork]
    silent: Mapping[str, str] = field(default_factory=dict)


def counts(answers: Answers) -> dict[str, TaskWork]:
    """Return all counts by instance and task, as the next check needs them."""
    # Without maxima: the worker's own list shows the highest lateness since any time.
    return {
        f"{each.instance}/{task}": replace(work, maxima=())
        for each in answers.answered.values()
        for task, work in each.tasks.items()
    }


def work_rows(answers: Answers, before: Mapping[str, TaskWork]) -> Iterator[dict[str, Any]]:
    """Return a row for each task that runs: its records, those dropped by reason, and their lateness, since `_since`.

    That is the time of the check that counted `before`, or the time when the task was taken over.

    >>> earlier = TaskWork(since=0, at=9_000, processed=10, dropped={"late": 2}, lateness_ms=50)
    >>> now = TaskWork(0, 20_000, 14, {"late": 3}, 90, ((5_000, 45), (12_000, 30)))
    >>> answers = Answers({"127.0.0.1:8090": InstanceWork("i1", {"0_1": now})})
    >>> row = next(work_rows(answers, {"i1/0_1": earlier}))
    >>> row["records"], row["late"], row["dropped_share"], row["lateness_avg_ms"], row["lateness_max_ms"]
    (4, 1, 0.25, 10.0, 30)
    """
    for server, each in sorted(answers.answered.items()):
        for task, work in sorted(each.tasks.items()):
            earlier = _earlier(f"{each.instance}/{task}", work, before)
            records = work.processed - earlier.processed
            reasons = {r.value: work.dropped.get(r.value, 0) - earlier.dropped.get(r.value, 0) for r in DropReason}
            dropped = sum(reasons.values())
            yield {
                "_task": task,
                "_instance": server,
                "_since": datetime.fromtimestamp(earlier.at / 1000, UTC),
                "records": records,
                "dropped": dropped,
                "dropped_share": dropped / max(1, records),
                "lateness_avg_ms": (work.lateness_ms - earlier.lateness_ms) / max(1, records),
                "lateness_max_ms": next((late for at, late in work.maxima if at >= earlier.at), 0),
                **{reason.replace("-", "_"): count for reason, count in reasons.items()},
            }


def answers_verdict(version: str, answers: Answers) -> Verdict:
    """Judge whether all workers have answered: one that has not is a warning; if none has, that is critical."""
    if not (answers.answered or answers.silent):
        reason = f"no running instance of {version} has an address (application.server)"
        return Verdict({_ANSWER: f"failed: {reason}"}, warnings=(_ANSWER,))
    if not answers.silent:
        return Verdict({_ANSWER: f"passed: {len(answers.answered)}"})
    reasons = "; ".join(list(answers.silent.values())[:_SHOWN])
    outcome = {
        _ANSWER: f"failed: {len(answers.silent)} of {len(answers.answered) + len(answers.silent)} do not answer: {reasons}"
    }
    return Verdict(outcome, warnings=(_ANSWER,)) if answers.answered else Verdict(outcome, critical=(_ANSWER,))


def span_verdict(answers: Answers, before: Mapping[str, TaskWork]) -> Verdict:
    """Note the tasks that were taken over since an earlier check: their work in between is not counted in full."""
    later = [
        f"{task} since {datetime.fromtimestamp(work.since / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for each in answers.answered.values()
        for task, work in sorted(each.tasks.items())
        if _earlier(f"{each.instance}/{task}", work, before).at == work.since
    ]
    if not later:
        return Verdict({})
    shown = ", ".join(later[:_SHOWN]) + (", ..." if len(later) > _SHOWN else "")
    return Verdict({_COUNTED: f"noted: {len(later)} of the tasks are counted since they were taken over: {shown}"})


def _earlier(name: str, work: TaskWork, before: Mapping[str, TaskWork]) -> TaskWork:
    """Return the counts that a task had at an earlier check; zeros if they began later, or were not reported then."""
    known = before.get(name)
    return known if known is not None and known.since == work.since else TaskWork(work.since, work.since, 0)
