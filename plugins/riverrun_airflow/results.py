"""Results of tasks: small objects of JSON, which other tasks get by XCom and readers of topics with asset events."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from riverrun_airflow.links import address_of, address_of_docs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from riverrun.hosting.release import Release
    from riverrun.spark.ranges import RunRange
    from riverrun.spark.runs import RunRecord
    from riverrun_airflow.sessions import Check

# Airflow's key of what a task returns.
_RETURNED = "return_value"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a task that has run an application over a range: of all its attempts together.

    Attempts that failed or died have no counts. What they committed is processed, and is in the events of their topics.

    Args:
        empty: Whether there was nothing to process: no record was read, written or corrected.
        records_out: Records written to public topics, by topic; to staging topics if the version is not live.
        late: Those of them that came after the end of their window and its grace period.
        engine: `local` or `spark`; empty if nothing was processed.
        links: Addresses of pages about the application and its last run.
        dry: Whether nothing was committed: `records_out` is what would be written.
        corrections: Records that were published to correct rows computed again.
        compared: Rows computed again that were compared with public ones.
    """

    app: str
    version: str
    range: str
    empty: bool
    records_in: int = 0
    records_out: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    late: int = 0
    duration_s: float = 0.0
    engine: str = ""
    snapshots: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    dry: bool = False
    corrections: int = 0
    compared: int = 0

    def told(self) -> dict[str, Any]:
        return asdict(self)


def result_of_runs(
    app: str, version: str, chosen: RunRange, runs: Sequence[RunRecord], corrections: int = 0, compared: int = 0
) -> RunResult:
    """Return the result of a task from its runs, earliest first.

    >>> from riverrun.spark.ranges import RunRange
    >>> result_of_runs("clicks", "v1", RunRange({}), []).empty
    True
    """
    from riverrun.processor.handlers import DropReason
    from riverrun.spark.runs import DONE

    done = [run for run in runs if run.state == DONE]
    written, dropped = _added(run.records_out_by_topic for run in done), _added(run.dropped for run in done)
    read = sum(run.records_in for run in done)
    # A run that failed or died has no counts, so nobody knows whether it has committed something.
    is_known = len(done) == len(runs) if runs else not chosen.size
    return RunResult(
        app=app,
        version=version,
        range=str(chosen),
        empty=is_known and not read and not written and not corrections,
        records_in=read,
        records_out=written,
        dropped=dropped,
        late=dropped.get(DropReason.LATE.value, 0),
        duration_s=sum(run.ended_ms - run.started_ms for run in runs if run.ended_ms is not None) / 1000,
        engine=next((run.engine for run in reversed(done) if run.engine), ""),
        snapshots={task: name for run in done for task, name in run.snapshots.items()},
        runs={run.id: run.state for run in runs},
        links=links_of(app, runs[-1].id if runs else ""),
        corrections=corrections,
        compared=compared,
    )


def result_of_rehearsal(app: str, version: str, chosen: RunRange, counts: Mapping[str, int]) -> RunResult:
    """Return the result of a dry run, which would write `counts` records by topic."""
    return RunResult(
        app, version, str(chosen), not chosen.size, records_out=dict(counts), links=links_of(app), dry=True
    )


def result_of_step(step: str, release: Release, docs_page: str = "") -> dict[str, Any]:
    """Return the result of a step of a release, after it.

    `state` is that of the release; `live`, `candidate` and `previous` are versions. `critical` and `warnings` are the failing
    expectations of the last gate, whose id is `verdict`. `lost_records` are deleted ones that the candidate lacks,
    `corrections` those that the last switch has published.
    """
    verdict = release.verdict
    return {
        "app": release.app,
        "step": step,
        "state": release.step.value,
        "live": release.live,
        "candidate": release.candidate,
        "previous": release.previous,
        "verdict": None if verdict is None else verdict.id,
        "critical": [] if verdict is None else list(verdict.critical),
        "warnings": [] if verdict is None else list(verdict.warnings),
        "lost_records": list(release.lost_records),
        "corrections": release.corrections,
        "pause_ms": release.pause_ms,
        "links": links_of(release.app, docs_page=docs_page),
    }


def result_of_check(app: str, check: Check, docs_page: str = "") -> dict[str, Any]:
    """Return the result of a check: `at` has the offsets up to which it judged, `warnings` the failing expectations."""
    return {
        "app": app,
        "check": check.id,
        "at": check.at,
        "topics": list(check.topics),
        "outcomes": dict(check.verdict.outcomes),
        "warnings": list(check.verdict.warnings),
        "links": links_of(app, docs_page=docs_page),
    }


def links_of(app: str, run: str = "", docs_page: str = "") -> dict[str, str]:
    """Return addresses of pages about an application, one of its runs, and Data Docs; only those that exist."""
    found = {"application": address_of(app)}
    if run:
        found["run"] = f"{found['application']}#run-{run}"
    if docs_page:
        found["docs"] = address_of_docs(app, docs_page)
    return found


def unless_empty(context: Context, result: dict[str, Any], *, skip: bool) -> dict[str, Any]:
    """Return the result of a task; if it is empty and `skip` is set, keep it and skip the task."""
    if skip and result["empty"]:
        # A skipped task returns nothing, but others may still read that its result is empty.
        fields = result if context["ti"].task.multiple_outputs else {}
        for name, value in {**fields, _RETURNED: result}.items():
            context["ti"].xcom_push(name, value)
        raise AirflowSkipException("there was nothing to process")
    return result


def _added(counts: Any) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter[str]()))
