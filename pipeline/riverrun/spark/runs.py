"""The record of bounded runs: their users, times, ranges and outcomes, kept in a compacted topic."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from riverrun.config.secrets import redacted
from riverrun.decoders import Line, Name, Natural, Time, UnreadableError, Word, foreign_decoder, why_unreadable
from riverrun.errors import BrokerError, RangeError, TaskMigratedError
from riverrun.hosting.alone import sole_hosts
from riverrun.hosting.control_topic import ControlTopic, readable
from riverrun.hosting.process import SystemClock
from riverrun.records import OffsetRange, TopicPartition
from riverrun.spark.ranges import RunRange
from riverrun.spark.unfinished import InterruptedRun

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from riverrun.hosting.alone import SoleHost
    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.spark.tasks.work import TaskResult

log = logging.getLogger(__name__)

RUNS_TOPIC = "riverrun-runs"
# Number of runs kept for each version of an application; older ones are deleted.
RUNS_KEPT = 200

RUNNING, DONE, FAILED, DIED = "running", "done", "failed", "died"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One bounded run.

    Args:
        id: Identifies it; ids sort by time.
        started_ms: Start, ms since the epoch.
        range: The range to process, as text; a run can be repeated with it.
        state: `running`, `done`, `failed`, or `died` if it is no longer alive and never reported its end.
        ended_ms: End, ms since the epoch; None while it runs.
        records_in: Records read from the application's inputs.
        committed: Per input, repartition topics included, the offset and the metadata committed at its end. Empty if it left no
            snapshots, or another host has continued.
        outputs_before: End offset of each partition of its public topics when it began, before it wrote.
        outputs_after: Those when it ended; empty while it runs, or if it died.
        engine: `local` or `spark`, what processed its tasks; empty if there was nothing to process, or while it runs.
        records_out_by_topic: Records written to public topics, by topic; to staging topics if the version is not live.
        gate: What became of its outputs, if a gate held them back: `published` or `discarded`; empty while it holds them.
        pages: Pages of Data Docs about this gate by subject, relative to the application's directory of Data Docs.
    """

    id: Word
    app: Name
    version: Name
    by: Line
    started_ms: Time
    range: str
    state: Word = RUNNING
    ended_ms: Time | None = None
    slices: Natural = 0
    records_in: Natural = 0
    records_out: Natural = 0
    dropped: dict[str, Natural] = field(default_factory=dict)
    restored: Natural = 0
    totals: dict[str, float] = field(default_factory=dict)
    snapshots: dict[Word, Name] = field(default_factory=dict)
    committed: dict[str, tuple[Natural, str]] = field(default_factory=dict)
    error: str | None = None
    outputs_before: dict[str, Natural] = field(default_factory=dict)
    outputs_after: dict[str, Natural] = field(default_factory=dict)
    engine: Word = ""
    engine_reason: Line = ""
    records_out_by_topic: dict[str, Natural] = field(default_factory=dict)
    gate: Word = ""
    pages: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.app}/{self.version}/{self.id}"


_record = foreign_decoder(RunRecord)


def _run(data: bytes) -> RunRecord:
    run = _record(data)
    try:
        RunRange.parse(run.range)
        for name in (*run.committed, *run.outputs_before, *run.outputs_after):
            TopicPartition.parse(name)
    except (RangeError, ValueError) as error:
        raise UnreadableError(why_unreadable(error)) from error
    return run


class RunLog:
    """Writes and lists the records of runs; their topic is created when the first run is recorded."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._topic = ControlTopic(admin, RUNS_TOPIC)
        self._begun: dict[str, bytes] = {}

    def runs(self, app: str | None = None) -> list[RunRecord]:
        """Return the runs of an application (None: of all), of all its versions, latest first."""
        notes = self._topic.read()
        named = {
            name: value for name, value in notes.items() if name[:1] != "/" and app in {None, name.partition("/")[0]}
        }
        found = [run for run in readable(RUNS_TOPIC, named, _run) if run.name in named]
        open_ids = {f"{run.app}-{run.version}" for run in found if run.state == RUNNING}
        living = {host.id for open_id in open_ids for host in self._living(open_id)}
        return [_with_end(run, living) for run in sorted(found, key=lambda run: run.id, reverse=True)]

    def _living(self, application_id: str) -> tuple[SoleHost, ...]:
        """Return the live hosts that process alone; one that died counts as alive until its session times out."""
        return sole_hosts(self._admin, application_id)

    def written_by(self, app: str, version: str, by: str) -> list[tuple[RunRecord, dict[str, RunRange]]]:
        """Return what runs of one author wrote: each run that wrote something, earliest first, with ranges by topic.

        The range of a partition lies between its ends before and after the run. It may contain records that other applications
        wrote to the topic meanwhile.
        """
        runs = [run for run in reversed(self.runs(app)) if run.version == version]
        found = []
        for number, run in enumerate(runs):
            if run.by != by or not run.outputs_before:
                continue
            # A run that died has recorded no ends: its range ends where the next one began, or now.
            later = (each.outputs_before for each in runs[number + 1 :] if each.outputs_before)
            after = run.outputs_after or next(later, {}) or self._ends(run)
            ranges = written_between(run.outputs_before, after)
            if ranges:
                found.append((run, ranges))
        return found

    def _ends(self, run: RunRecord) -> dict[str, int]:
        ends = self._admin.written_offsets(map(TopicPartition.parse, run.outputs_before))
        return {str(tp): end for tp, end in ends.items()}

    def started(self, connected: ConnectedApplication, run_range: RunRange, host: SoleHost) -> RunRecord:
        """Record the start of a run; `host` is the place among hosts that it occupies while it is alive."""
        application = connected.application
        name, version, ends = application.config.name, application.version, ends_of_outputs(connected)
        run = RunRecord(host.id, name, version, host.by, host.since_ms, str(run_range), outputs_before=ends)
        self._put(run)
        return run

    def ended(
        self,
        run: RunRecord,
        slices: int,
        result: TaskResult,
        snapshots: Mapping[str, str],
        committed: Mapping[str, tuple[int, str]],
        outputs: Mapping[str, int],
    ) -> None:
        """Record the results of a run, and delete the oldest records."""
        self._end(
            run,
            state=DONE,
            slices=slices,
            records_in=result.read,
            records_out=sum(result.published.values()),
            records_out_by_topic=dict(result.published),
            dropped=dict(result.dropped),
            restored=result.restored,
            totals=dict(result.totals),
            snapshots=dict(snapshots),
            committed=dict(committed),
            outputs_after=dict(outputs),
        )

    def failed(self, run: RunRecord, error: BaseException, outputs: Mapping[str, int]) -> None:
        """Record the error that a run failed with, and where its outputs end; empty if that is not known."""
        what = "it was interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        self._end(run, state=FAILED, error=redacted(what), outputs_after=dict(outputs))

    def begin(self, application: Application, begun: InterruptedRun, check: Callable[[], None]) -> None:
        """Note the work that a run is about to begin. `check` raises if a run with a gate is no longer the present one."""
        name = _begun_name(application.config.name, application.version)
        self._begun[name] = begun.encode()
        if not application.attempt:
            self._topic.put({name: begun.encode()})
            return
        try:
            self._topic.write(name, {name: begun.encode()}, check)
        except TaskMigratedError:
            # Fenced by `forget_begun`, or by the attempt that continues the run.
            check()
            raise

    def begun(self, application: Application) -> InterruptedRun | None:
        """Return the work begun since the last finished run; None if there is none."""
        name = _begun_name(application.config.name, application.version)
        found = self._topic.read().get(name)
        try:
            return None if found is None else InterruptedRun.decode(found)
        except UnreadableError as error:
            message = f"Record {name} of topic {RUNS_TOPIC}, which describes an unfinished run, cannot be read: {error}"
            hint = "If a newer version of Riverrun wrote it, use that version. Workers can continue, too."
            raise RangeError(message, hint=hint) from error

    def forget_begun(self, application: Application, check: Callable[[], None]) -> None:
        """Delete the note of begun work, which was discarded, and fence the run that was to write it.

        `check` raises if the note may be of a later run.
        """
        name = _begun_name(application.config.name, application.version)
        self._topic.write(name, {name: None}, check)

    def forget(self, app: str) -> None:
        """Delete the records of all runs of an application."""
        of_app = (f"{app}/", _begun_name(app, ""))
        if names := [name for name in self._topic.read() if name.startswith(of_app)]:
            self._topic.put(dict.fromkeys(names))

    def decided(
        self,
        application: Application,
        since_ms: int,
        gate: str,
        before: Mapping[str, int] | None = None,
        after: Mapping[str, int] | None = None,
        *,
        pages: Mapping[str, str],
    ) -> None:
        """Record what became of the outputs of runs with a gate: `published` or `discarded`.

        It concerns the runs that began at `since_ms` or later. `before` and `after` are the ends of the public topics around
        the publication; None if the outputs were discarded.
        """
        runs = self.runs(application.config.name)
        own = [run for run in runs if run.version == application.version and run.started_ms >= since_ms]
        for number, run in enumerate(own):
            # The runs share one publication, so only the latest has its range: it must not count twice (`written_by`).
            is_last = number == 0
            self._put(
                replace(
                    run,
                    gate=gate,
                    pages=dict(pages),
                    outputs_before=dict(before or {}) if is_last else {},
                    outputs_after=dict(after or {}) if is_last else {},
                    # Without snapshots and offsets, no past state can be read: that of discarded runs never became valid.
                    snapshots=run.snapshots if before is not None else {},
                    committed=run.committed if before is not None else {},
                )
            )

    def _end(self, run: RunRecord, **changes: object) -> None:
        self._put(replace(run, ended_ms=SystemClock().now_ms(), **changes))  # type: ignore[arg-type] # fields of the record

    def _put(self, run: RunRecord) -> None:
        """Write a record; a run does not fail because its record cannot be written."""
        try:
            values: dict[str, bytes | None] = {run.name: msgspec.json.encode(asdict(run))}
            notes = self._topic.read() if run.state != RUNNING else {}
            older = sorted(name for name in notes if name.startswith(f"{run.app}/{run.version}/"))
            values |= dict.fromkeys(older[:-RUNS_KEPT])
            # A run that is done has also finished what interrupted runs had begun, but not what others have begun since.
            begun = _begun_name(run.app, run.version)
            if run.state == DONE and begun in notes and notes[begun] == self._begun.get(begun):
                values[begun] = None
            self._topic.put(values)
        except BrokerError as error:
            log.warning("cannot record the run of %s: %s", run.app, error.message)


def committed_at_end(connected: ConnectedApplication, run_range: RunRange) -> dict[str, tuple[int, str]]:
    """Return the committed offset and metadata of all inputs at the end of a run; empty if another host has continued."""
    committed = connected.committed()
    for tp, wanted in run_range.ranges.items():
        if (committed[tp].offset if tp in committed else 0) != wanted.end:
            return {}
    return {str(tp): (found.offset, found.metadata) for tp, found in committed.items()}


def ends_of_outputs(connected: ConnectedApplication) -> dict[str, int]:
    """Return the end offset of each partition of the topics that an application writes to: staging topics if it is not live."""
    # A run with a gate has no outputs until they are public.
    if connected.application.may_be_discarded:
        return {}
    admin, published = connected.admin, connected.application.published or {}
    counts = admin.partitions({published.get(topic, topic) for topic in connected.topology.sink_topics})
    # Records that are not committed yet count as well: brokers acknowledge a commit before readers of committed records see it,
    # and transactions of other applications may be open.
    ends = admin.written_offsets(TopicPartition(topic, n) for topic, count in counts.items() for n in range(count))
    return {str(tp): end for tp, end in sorted(ends.items())}


def written_between(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, RunRange]:
    """Return by topic the ranges between two ends; without partitions that have not grown."""
    found: dict[str, dict[TopicPartition, OffsetRange]] = {}
    for name, end in after.items():
        tp, start = TopicPartition.parse(name), before.get(name, 0)
        if end > start:
            found.setdefault(tp.topic, {})[tp] = OffsetRange(start, end)
    return {topic: RunRange(ranges) for topic, ranges in found.items()}


def _begun_name(app: str, version: str) -> str:
    # No application's name begins with a slash.
    return f"/begun/{app}/{version}"


def _with_end(run: RunRecord, living: Collection[str]) -> RunRecord:
    # The records of a live run and of a dead one both say `running`; only the group of hosts shows which it is.
    return replace(run, state=DIED) if run.state == RUNNING and run.id not in living else run
