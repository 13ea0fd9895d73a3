"""Calls from operators, drivers and the page to Riverrun. Only this module calls engines, which load when they are called."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import BegunRangeError, ConfigError, EngineError, NotReadyError, StreamsError, UnderWayError
from riverrun.hosting.release import ACTIONS, DIFF, RESTORE
from riverrun_airflow.progress import spark_has_started
from riverrun_airflow.work_requests import ImportRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.archive.archiving import Archived
    from riverrun.config import ProjectConfig
    from riverrun.hosting.application import Application
    from riverrun.hosting.control_topic import ControlTopic
    from riverrun.hosting.inputs import InputLag
    from riverrun.project.riverrun import Riverrun
    from riverrun.project.runs import BoundedRun
    from riverrun.quality.gate import Verdict
    from riverrun.records import OffsetVector
    from riverrun.releases.gated_run import GatedRuns
    from riverrun.releases.releaser import Releaser
    from riverrun.releases.repair import Repair
    from riverrun.spark.bounded_runs.job import RunSummary
    from riverrun.spark.ranges import RunRange
    from riverrun.spark.runs import RunRecord
    from riverrun_airflow.work_requests import CheckRequest, RunRequest, StepRequest, TransferRequest

log = logging.getLogger(__name__)

_DRIVERS = "riverrun-drivers"
_WAITING_HELPS = BegunRangeError, EngineError, NotReadyError, UnderWayError
STEPS = tuple(name for name in ACTIONS if name not in {DIFF.name, RESTORE.name})


@dataclass(frozen=True, slots=True)
class WorkOutcome:
    """The outcome of a piece of work.

    Args:
        said: What was done, for the log.
        found: Facts for the task's result: `check`, the id of a check; `read` and `written`, the records of a transfer.
    """

    said: str
    found: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a live version's public topics.

    Args:
        at: The end offsets (exclusive) up to which the topics were judged, as text.
    """

    id: str
    at: str
    topics: tuple[str, ...]
    verdict: Verdict


def front_door(project: ProjectConfig, master: str = "", by: str = "") -> Riverrun:
    """Return the entry point for the work of a task; `by` identifies the task in the history of releases and runs."""
    from riverrun.project.riverrun import Riverrun
    from riverrun.spark.java import quiet_java

    found = Riverrun(project, master=master or None, by=by or None)
    # Passes Java's output on without the lines of each start, with which every task's log would begin.
    found.spark_sessions.output = quiet_java
    found.spark_sessions.on_start = spark_has_started
    return found


def is_worth_another_attempt(error: Exception) -> bool:
    """Return whether waiting may resolve a failure."""
    from riverrun.spark.failures import another_attempt_may_help

    # Errors of other libraries, such as those of the network, are unknown here: Airflow's retries decide about them.
    return not isinstance(error, StreamsError) or isinstance(error, _WAITING_HELPS) or another_attempt_may_help(error)


def of_ended_java(error: BaseException) -> EngineError | None:
    """Return a readable error if Spark's Java process has ended; None if something else has failed."""
    from riverrun.spark.failures import of_ended_java as found

    return found(error)


def is_answered(project: ProjectConfig, within_s: float) -> bool:
    """Return whether a broker answers within a number of seconds."""
    return front_door(project).cluster.is_answered(within_s)


def bounded(project: ProjectConfig, request: RunRequest) -> BoundedRun:
    """Return a run over the request's range, or else over the offsets that its start and end resolve to now."""
    from riverrun.project.runs import bounded_run
    from riverrun.spark.ranges import RunRange

    app = front_door(project, request.master, request.by).app(request.app, version=request.version or None)
    start = RunRange.parse(request.range) if request.range else request.start
    # An event's end may have been passed by another run, and a repeated one was.
    return bounded_run(app.runs.chosen, start, request.end, request.options, may_be_passed=True)


def run(chosen: BoundedRun) -> RunSummary:
    """Process a range, exactly once. An empty range starts no Spark."""
    return chosen.run()


def recompute(project: ProjectConfig, request: RunRequest) -> dict[str, Any]:
    """Compute rows of an interval again that the live version has processed, and publish the differences.

    Returns the numbers of rows `compared` and of published `corrections`, and by topic the ranges `corrected`, as text.
    """
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.spark.runs import ends_of_outputs, written_between

    if request.version:
        message = f"{request.app}: recompute_from is about the live version, and version is {request.version}"
        raise ConfigError(message, hint="Leave one of them out.")
    riverrun = front_door(project, request.master, request.by)
    app = riverrun.app(request.app)
    live = ConnectedApplication(app.loaded(), riverrun.cluster.admin)
    # Only one run writes at a time, so what lies between the ends before and after are these corrections.
    before = ends_of_outputs(live)
    done = _recomputed(riverrun, request)
    log.info("%s", "nothing was recomputed" if done is None else done)
    count, compared = (0, 0) if done is None else (done.corrections, sum(done.compared.values()))
    written = written_between(before, ends_of_outputs(live)) if count else {}
    return {
        "compared": compared,
        "corrections": count,
        "corrected": {topic: str(ranges) for topic, ranges in written.items()},
    }


def _recomputed(riverrun: Riverrun, request: RunRequest) -> Repair | None:
    from riverrun.project.restatement import Restatement
    from riverrun.project.runs import backfill_of

    chosen = riverrun.app(request.app).runs.chosen
    interval, options = (request.recompute_from, request.end), request.recompute
    if not request.downstream:
        return backfill_of(chosen, *interval, options).recompute(lambda plan: log.info("%s", plan))
    wanted = Restatement(riverrun.cluster, riverrun.config, chosen, interval, options, request.without)
    done, readers = wanted.recompute(lambda plan: log.info("%s", plan))
    for each in readers:
        log.info("%s", each)
    return done


def held_by(project: ProjectConfig, app: str, by: str) -> GatedRuns:
    """Return what the gate of an application's runs holds back."""
    return front_door(project, by=by).app(app).runs.held


def rehearse(chosen: BoundedRun) -> dict[str, int]:
    """Count by topic the records that a range would write, without committing anything."""
    return {topic: frame.count() for topic, frame in chosen.dry_run().items()}


def judge_live(project: ProjectConfig, request: CheckRequest) -> Check:
    """Judge the public topics of an application by the expectations of its gate."""
    found = front_door(project, request.master, request.by).app(request.app).checks.run(request.since)
    return _check(found.id, found.at, found.verdict)


def is_judged(project: ProjectConfig, app: str) -> bool:
    """Return whether all that an application has published has passed checks, the last one by the present expectations."""
    return front_door(project).app(app).checks.is_judged()


def judged(project: ProjectConfig, app: str, check: str) -> Check:
    from riverrun.quality.gate import Verdict
    from riverrun.records import OffsetVector

    for each in front_door(project).app(app).checks.history():
        if each.id == check:
            verdict = Verdict(each.outcomes, each.critical, each.warnings, each.pages)
            return _check(check, OffsetVector.parse(each.at), verdict)
    # The check itself has passed or failed, but brokers could not store it.
    raise NotReadyError(f"{app}: the history of checks does not have check {check}")


def _check(check: str, at: OffsetVector, verdict: Verdict) -> Check:
    return Check(check, str(at), tuple(sorted({tp.topic for tp in at.offsets})), verdict)


def transfer(project: ProjectConfig, request: TransferRequest, keep: Callable[[str], None]) -> WorkOutcome:
    """Import or export; `keep` is called after each finished batch with its offsets as text."""
    riverrun = front_door(project, request.master)

    def on_batch(ranges: RunRange) -> None:
        keep(str(ranges))

    if isinstance(request, ImportRequest):
        imported = riverrun.run_import(request.spec, packages=request.packages, on_batch=on_batch)
        said = f"{imported.read} rows read, {imported.written} records written to {request.spec.topic}"
        return WorkOutcome(said, {"read": imported.read, "written": imported.written})
    exported = riverrun.run_export(request.spec, packages=request.packages, on_batch=on_batch)
    if exported.batch is None:
        return WorkOutcome("nothing is new", {"read": 0, "written": 0})
    said = f"{exported.read} records read, {exported.written} rows written: {exported.batch.range}"
    return WorkOutcome(said, {"read": exported.read, "written": exported.written})


@dataclass(frozen=True, slots=True)
class ArchivedTopics:
    """The outcome of archiving topics: place of the archive, new offsets and records by topic, and bytes of the new files."""

    url: str
    offsets: dict[str, int]
    records: dict[str, int]
    size: int


def archive_declared(project: ProjectConfig, name: str, engine: str, *, may_skip: bool) -> ArchivedTopics:
    """Archive the topics of `[archives.NAME]`; `may_skip` skips lost records even if that is not declared."""
    declared = front_door(project).archive(name)
    return _archived(declared.config.url, declared.write(engine=engine or None, may_skip=may_skip))


def _archived(url: str, done: list[Archived]) -> ArchivedTopics:
    return ArchivedTopics(
        url,
        {each.manifest.topic: each.offsets for each in done},
        {each.manifest.topic: each.records for each in done},
        sum(each.size for each in done),
    )


def archive(
    project: ProjectConfig, app: str, topics: tuple[str, ...], url: str, engine: str, *, may_skip: bool
) -> ArchivedTopics:
    """Archive topics, or the inputs of an application (with an empty `url`, at its `archive.url`)."""
    from riverrun.project.archives import Archives
    from riverrun.releases.topology import load_application

    riverrun = front_door(project)
    place = url or (project.app(app).streams.archive_url if app else "")
    if not place or bool(app) == bool(topics):
        message = "An archive needs the topics and a URL, or an application that has archive.url"
        hint = "ArchiveOperator(name=...), ArchiveOperator(app=...) or ArchiveOperator(topics=[...], url=...)."
        raise ConfigError(message, hint=hint)
    chosen = topics or topics_of(load_application(project, app))[0]
    return _archived(
        place, Archives(riverrun.cluster, place).write(chosen, engine=engine or "local", may_skip=may_skip)
    )


def releaser_of(project: ProjectConfig, app: str, master: str, by: str) -> Releaser:
    """Return the object that takes the steps of an application's release."""
    return front_door(project, master, by).app(app).release().releaser


def take(project: ProjectConfig, request: StepRequest) -> str:
    """Take a step of a release. Return the state of the release afterwards, or what the step has found, for the log."""
    if request.step == "approve" and not request.about:
        return "no approval was requested"
    releaser = releaser_of(project, request.app, request.master, request.by)
    return str(ACTIONS[request.step].take(releaser, request.about, carry=request.carry))


def retired_by(releaser: Releaser) -> str:
    """Return the version that an application would retire now."""
    from riverrun.releases.step_checks import retired_of

    return retired_of(releaser.status(), None)


def topics_of(application: Application) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the topics that an application reads, and those that it writes: staging topics if its version is not live."""
    published, topology = application.published or {}, application.topology
    written = {published.get(topic, topic) for topic in topology.sink_topics}
    return tuple(sorted(topology.external_topics)), tuple(sorted(written))


def moved_by_step(project: ProjectConfig, app: str, version: str, step: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the topics that a step of a release reads, and those that it writes; none if it moves no records."""
    from riverrun.hosting.release import SWITCHING, staging_name

    # `reprocess` computes staging topics from the inputs; switches publish what staging topics have.
    if step not in {"reprocess", *(each.name for each in SWITCHING.values())}:
        return (), ()
    application = front_door(project).app(app, version=version)
    topology = application.topology()
    public = tuple(sorted(topology.sink_topics))
    staged = tuple(staging_name(application.application_id, topic) for topic in public)
    return (tuple(sorted(topology.external_topics)), staged) if step == "reprocess" else (staged, public)


def published_by(project: ProjectConfig, app: str) -> frozenset[str]:
    """Return the public topics of an application's live version."""
    return frozenset(front_door(project).app(app).topology().sink_topics)


@dataclass(frozen=True, slots=True)
class WrittenRecords:
    """The records that one run wrote to a topic.

    Args:
        processed: The range that was read, as text.
        records: Number of the records; None if the run failed, as it has no counts.
    """

    topic: str
    offsets: str
    processed: str
    run: str
    records: int | None


def runs_by(chosen: BoundedRun, by: str) -> list[RunRecord]:
    """Return the runs of one author, earliest first: all attempts of a task."""
    from riverrun.spark.runs import RunLog

    application = chosen.application
    runs = RunLog(chosen.admin).runs(application.config.name)
    return [run for run in reversed(runs) if run.by == by and run.version == application.version]


def written_by(chosen: BoundedRun, by: str) -> list[WrittenRecords]:
    """Return the records that all attempts of one task wrote, by the record of runs; other hosts write none of them."""
    from riverrun.spark.runs import DONE, RunLog

    application = chosen.application
    runs = RunLog(chosen.admin).written_by(application.config.name, application.version, by)
    return [
        WrittenRecords(
            topic, str(ranges), run.range, run.id, run.records_out_by_topic.get(topic, 0) if run.state == DONE else None
        )
        for run, found in runs
        for topic, ranges in sorted(found.items())
    ]


def notes_of_drivers(project: ProjectConfig) -> ControlTopic:
    """Return the topic through which drivers and waiting tasks communicate."""
    from riverrun.hosting.control_topic import ControlTopic

    return ControlTopic(front_door(project).cluster.admin, _DRIVERS)


def lags_of(project: ProjectConfig, app: str) -> dict[str, list[InputLag]]:
    """Return the lags of the live version, and of the candidate of a release that is under way."""
    from riverrun.hosting.control_topic import release_of
    from riverrun.hosting.release import SETTLED

    riverrun = front_door(project)
    release = release_of(riverrun.cluster.admin, project.app(app))
    versions = [release.live]
    if release.candidate is not None and release.step not in SETTLED:
        versions.append(release.candidate)
    return {version: riverrun.app(app, version=version).lag() for version in versions}


def now_ms() -> int:
    """Return the time, in ms since the epoch."""
    from riverrun.hosting.process import SystemClock

    return SystemClock().now_ms()
