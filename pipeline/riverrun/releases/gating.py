"""Judges a candidate at one point, where both versions have processed the same offsets: outputs, stores and bounded runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from riverrun.config import OutputKind
from riverrun.errors import UnderWayError
from riverrun.hosting.inputs import input_lags
from riverrun.hosting.progress import counted_rows
from riverrun.hosting.release import staging_name
from riverrun.kafka.ranges import read_fields
from riverrun.processor.handlers import DropReason
from riverrun.quality.expectations import RUNS, STORE, by_topic, checks_of, declared
from riverrun.quality.frames import passing_frame
from riverrun.quality.gate import CRITICAL, INFO, WARNING, GateReport, Verdict, judge
from riverrun.records import OffsetRange, OffsetVector, TopicPartition, counted
from riverrun.releases.differ import Differ, everything
from riverrun.releases.difference import Side
from riverrun.releases.emptied import EmptiedParts, emptied_log
from riverrun.releases.rows import KEY_COLUMNS, difference_rows, log_rows, table_rows, whole_key
from riverrun.releases.topology import build_topology, outputs
from riverrun.spark.runs import DONE, RunLog
from riverrun.spark.store_rows import read_rows
from riverrun.spark.stores import works_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from riverrun.config.code import PickledFunction
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.quality.expectations import Checks, Expectations
    from riverrun.quality.frames import Statistics
    from riverrun.releases.differ import Covers
    from riverrun.releases.scope import Scope
    from riverrun.releases.versions import Versions
    from riverrun.spark.runs import RunRecord
    from riverrun.topology.nodes import SinkNode

# Columns of a store that are not part of its values; in the frame they begin with an underscore, as fields may have such names.
_OWN = ("key", "window_start", "window_end", "timestamp", "valid_from", "valid_to", "partition")


def judge_insides(
    connected: ConnectedApplication,
    checks: Checks,
    directory: Path,
    spark: Callable[[], Any],
    report: GateReport,
    since_ms: int = 0,
) -> Verdict:
    """Judge the stores of a version as they are now, and its bounded runs that began at or after `since_ms`.

    Frames are written below `directory`, and deleted afterwards.
    """

    def judged(name: str, rows: Iterable[Mapping[str, Any]], expectations: Iterable[Any]) -> Verdict:
        with passing_frame(directory, counted_rows(f"judge {name}", rows)) as frame:
            keys = [column for column in ("_key", "_run") if column in frame.columns]
            return judge(name, frame, list(expectations), spark, keys=keys, if_empty=INFO, report=report)

    found = Verdict({})
    for store, expectations in checks.stores.items():
        found += judged(f"{STORE}{store}", store_rows(connected, store), expectations)
    if checks.runs:
        application = connected.application
        runs = RunLog(connected.admin).runs(application.config.name)
        own = [run for run in runs if run.version == application.version and run.started_ms >= since_ms]
        found += judged(RUNS, run_rows(own), checks.runs)
    return found


def store_rows(connected: ConnectedApplication, store: str) -> Iterator[dict[str, Any]]:
    """Return the committed rows of a store, with the fields of its values as columns."""
    for work in works_of(connected, store):
        for batch in read_rows(work, build_topology):
            for row in batch.to_pylist():
                yield _with_fields(row)


def run_rows(runs: Iterable[RunRecord]) -> Iterator[dict[str, Any]]:
    """Return a row for each completed run: records read, written and dropped, in total and by reason.

    >>> from riverrun.spark.runs import RunRecord
    >>> run = RunRecord("7-a", "clicks", "v1", "ann", 0, "", state="done", ended_ms=0, records_in=4, dropped={"late": 1})
    >>> row = next(run_rows([run]))
    >>> row["dropped"], row["dropped_share"], row["late"], row["null_key"]
    (1, 0.25, 1, 0)
    """
    for run in runs:
        if run.state == DONE:
            dropped = sum(run.dropped.values())
            reasons = {reason.value.replace("-", "_"): run.dropped.get(reason.value, 0) for reason in DropReason}
            yield {
                "_run": run.id,
                "_time": datetime.fromtimestamp((run.ended_ms or 0) / 1000, UTC),
                "records_in": run.records_in,
                "records_out": run.records_out,
                "dropped": dropped,
                "dropped_share": dropped / max(1, run.records_in),
                **reasons,
            }


def _with_fields(row: dict[str, Any]) -> dict[str, Any]:
    key, value = row["key"], _parsed(row.pop("value", None))
    own = {("_time" if name == "timestamp" else f"_{name}"): row[name] for name in _OWN if name in row}
    fields = value if isinstance(value, dict) else {"value": value}
    if isinstance(key, dict):
        own["_key"] = whole_key(key, key)
        own |= {(f"_key_{name}" if name in fields or name in own else name): part for name, part in key.items()}
    return own | fields


def _parsed(value: Any) -> Any:
    """Return JSON text as its value; other values unchanged."""
    if isinstance(value, str) and value[:1] == "{":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


# The live version may process records while the ends of its outputs are read.
_ATTEMPTS = 5
_FRAMES = "gate"


@dataclass(frozen=True, slots=True)
class Point:
    """A point at which two versions are compared.

    Args:
        vector: The source offsets that both have processed, exactly.
        ends: End offset (exclusive) of each partition of their public and staging topics at that point.
    """

    vector: OffsetVector
    ends: Mapping[TopicPartition, int]

    def of(self, topic: str) -> dict[TopicPartition, int]:
        return {tp: end for tp, end in self.ends.items() if tp.topic == topic}


class Gate:
    """Judges candidates of one application by the expectations that `quality` refers to (`AppConfig.quality`)."""

    def __init__(self, quality: str | PickledFunction | None, versions: Versions, spark: Callable[[], Any]) -> None:
        self._quality = quality
        self._versions = versions
        self._spark = spark
        self._report = GateReport()

    def point(self, live: ConnectedApplication, candidate: ConnectedApplication) -> Point:
        """Find a point that both versions have reached. A candidate that is behind is first brought up to the live version."""
        for _ in range(_ATTEMPTS):
            if not self._versions.are_at_one_place(live, candidate):
                self._versions.follow(candidate, live)
            vector = self._versions.place(live, candidate)
            ends = self.ends(candidate)
            # Only if neither version has moved since are these the ends at the vector.
            if self._is_at(live, candidate, vector):
                return Point(vector, ends)
        message = f"{live.id} continues while {candidate.version} is compared with it"
        raise UnderWayError(message, hint="Wait for the end of its run, or stop its workers for the gate.")

    def ends(self, candidate: ConnectedApplication) -> dict[TopicPartition, int]:
        """Return the ends of a candidate's public and staging topics."""
        return candidate.admin.stable_end_offsets(self._partitions(candidate))

    def judge(
        self,
        live: ConnectedApplication,
        candidate: ConnectedApplication,
        point: Point,
        scope: Scope | None = None,
        check: str = "",
        *,
        has_all_logs: bool = False,
        earlier: Mapping[str, Sequence[Statistics]] | None = None,
    ) -> Verdict:
        """Judge a candidate's outputs, and their difference from the public ones, at a point.

        Args:
            live: The version whose outputs are public.
            candidate: The version to judge, which writes into staging topics.
            point: From `point`, or from a barrier of running versions.
            scope: The only rows of tables to judge; defaults to all outputs, stores and runs.
            check: Identifies the check in Data Docs.
            has_all_logs: Whether the candidate has processed all that the live version has written logs of.
            earlier: Statistics of earlier checks of all that is published, by subject, latest first.
        """
        kinds = outputs(candidate.application)
        logs = {topic for topic, output in kinds.items() if output.kind is OutputKind.LOG}
        where = str(self._quality or "")
        checks = checks_of(where, declared(self._quality), candidate.topology)
        wanted = by_topic(where, checks.outputs, kinds, logs)
        directory = candidate.application.directory / _FRAMES
        self._report = GateReport.of(candidate.application.config, check, checks.actions, earlier or {})
        verdict = Verdict({})
        for topic, expectations in wanted.items():
            sink = candidate.topology.sink_of(topic)
            if sink is None or (scope is not None and not scope.is_about(topic, kinds)):
                continue
            if topic in logs:
                verdict += self._of_log(candidate, sink, topic, expectations, point, is_whole=has_all_logs)
            else:
                old = live.topology.sink_of(topic) or sink
                covers = everything if scope is None else scope.covers(sink, topic)
                # A part of a table may have no rows.
                if_empty = CRITICAL if scope is None else WARNING
                verdict += self._of_table(
                    candidate,
                    (old, sink),
                    topic=topic,
                    expectations=expectations,
                    point=point,
                    covers=covers,
                    if_empty=if_empty,
                )
                verdict += Verdict({}) if scope is not None else self._digests(candidate, topic)
        if scope is None:
            ended = outputs(live.application).keys() - kinds.keys()
            stays = f"noted: {candidate.version} does not write it any more; its records stay"
            verdict += Verdict({f"{topic}: output": stays for topic in sorted(ended)})
            verdict += self._new_logs(candidate, logs - outputs(live.application).keys(), point)
            verdict += judge_insides(candidate, checks, directory, self._spark, self._report)
        return verdict

    def _of_table(
        self,
        candidate: ConnectedApplication,
        sinks: tuple[SinkNode, SinkNode],
        *,
        topic: str,
        expectations: Expectations,
        point: Point,
        covers: Covers,
        if_empty: str,
    ) -> Verdict:
        old, new = sinks
        staging = staging_name(candidate.id, topic)
        with Differ.of(candidate, topic) as differ:
            differ.advance(point.of(topic), point.of(staging))
            parts = EmptiedParts(topic, old, new)
            found = table_rows(parts.counted(filter(covers, differ.rows())), new, staging)
            verdict = self._judged(candidate, topic, found, expectations.table, "_", if_empty=if_empty)
            verdict += parts.verdict(is_whole=covers is everything)
            if not expectations.difference:
                return verdict
            unreadable: list[None] = []
            pairs = filter(covers, differ.rows())
            rows = difference_rows(pairs, old, new, differ.topics, lambda: unreadable.append(None))
            name = f"{topic}, difference"
            verdict += self._judged(candidate, name, rows, expectations.difference, "")
        if unreadable:
            verdict += Verdict({f"{name}: old rows": f"noted: {counted(len(unreadable), 'row')} cannot be read"})
        return verdict

    def _digests(self, candidate: ConnectedApplication, topic: str) -> Verdict:
        """Record digests of both tables as they were judged, to compare with what is published later."""
        with Differ.of(candidate, topic) as differ:
            digests = differ.digests()
        ranges = counted(len(digests.old.keys() | digests.new.keys()), "range")
        found = f"{digests.of(Side.NEW)} of the candidate, {digests.of(Side.OLD)} of the live version"
        return Verdict({f"{topic}: digests": f"noted: {found}; {len(digests.unequal)} of {ranges} of keys differ"})

    def _new_logs(self, candidate: ConnectedApplication, topics: Iterable[str], point: Point) -> Verdict:
        """Note how much of the logs that the live version does not write the cut publishes."""
        found = {}
        for topic in sorted(topics):
            ends = point.of(staging_name(candidate.id, topic))
            first = candidate.admin.beginning_offsets(ends)
            count = sum(end - first[tp] for tp, end in ends.items())
            found[f"{topic}: new log"] = f"noted: the cut publishes its records, {counted(count, 'offset')} so far"
        return Verdict(found)

    def _of_log(
        self,
        candidate: ConnectedApplication,
        sink: SinkNode,
        topic: str,
        expectations: Expectations,
        point: Point,
        *,
        is_whole: bool,
    ) -> Verdict:
        ends = point.of(staging_name(candidate.id, topic))
        first = candidate.admin.beginning_offsets(ends)
        ranges = {tp: OffsetRange(min(first[tp], end), end) for tp, end in ends.items()}
        batches = read_fields(candidate.admin, ranges)
        public = point.of(topic) if is_whole else {}
        # A log that was emptied since the point begins after it.
        old = {
            tp.partition: max(0, public[tp] - start) for tp, start in candidate.admin.beginning_offsets(public).items()
        }
        new = {tp.partition: wanted.size for tp, wanted in ranges.items()}
        if_empty = WARNING if expectations.table or any(old.values()) else INFO
        verdict = self._judged(candidate, topic, log_rows(batches, sink), expectations.table, "_", if_empty=if_empty)
        return verdict + emptied_log(topic, old, new)

    def _judged(
        self,
        candidate: ConnectedApplication,
        name: str,
        rows: Iterable[Mapping[str, Any]],
        expectations: Iterable[Any],
        prefix: str,
        **options: str,
    ) -> Verdict:
        with passing_frame(candidate.application.directory / _FRAMES, counted_rows(f"judge {name}", rows)) as frame:
            keys = [prefix + column for column in KEY_COLUMNS if prefix + column in frame.columns]
            return judge(name, frame, list(expectations), self._spark, keys=keys, report=self._report, **options)

    def _is_at(self, live: ConnectedApplication, candidate: ConnectedApplication, vector: OffsetVector) -> bool:
        """Return whether both versions are still at the vector, with nothing left between their sub-topologies."""
        return (
            self._versions.are_at_one_place(live, candidate)
            and self._versions.place(live, candidate) == vector
            and not any(each.is_internal and each.lag for one in (live, candidate) for each in input_lags(one))
        )

    def _partitions(self, candidate: ConnectedApplication) -> list[TopicPartition]:
        topics = outputs(candidate.application).keys()
        names = {*topics, *(staging_name(candidate.id, topic) for topic in topics)}
        return [
            TopicPartition(name, n) for name, count in candidate.admin.partitions(names).items() for n in range(count)
        ]
