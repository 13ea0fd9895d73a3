"""Judges what a live version has published, and the work of its workers, by expectations; writes to no topic of users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.config import OutputKind
from riverrun.config.checks import nearest
from riverrun.errors import ConfigError, RangeError
from riverrun.hosting.progress import counted_rows
from riverrun.kafka.ranges import offsets_at_time, read_fields
from riverrun.quality.expectations import WORKERS, by_topic, checks_of, declared
from riverrun.quality.frames import passing_frame
from riverrun.quality.gate import INFO, WARNING, GateReport, Verdict, judge
from riverrun.records import RAW_KEY, RAW_VALUE, OffsetRange, OffsetVector, TopicPartition
from riverrun.releases.check_log import CHECKS, SINCE, WHOLE, CheckLog, CheckRecord
from riverrun.releases.differ import Differ
from riverrun.releases.gating import judge_insides
from riverrun.releases.rows import KEY_COLUMNS, log_rows, table_rows
from riverrun.releases.topology import outputs
from riverrun.releases.verdicts import new_id, suite_digest
from riverrun.releases.worker_quality import (
    TaskWork,
    answers_verdict,
    counts,
    span_verdict,
    work_rows,
)
from riverrun.spark.ranges import time_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.quality.expectations import Checks
    from riverrun.records import RawFields
    from riverrun.releases.worker_quality import Answers
    from riverrun.runtime.ports import Clock
    from riverrun.topology.nodes import SinkNode

LAST = "last"
"""Start of a check that judges only records that are new since the last check that passed."""
_WIDER = 10
# Keeps the rows of public tables, so that the next check reads only new records.
_DIRECTORY = "quality"


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """Findings of a check of public topics.

    Args:
        at: End offsets (exclusive) of the judged records.
        docs: The directory of Data Docs; None if none are built.
    """

    at: OffsetVector
    verdict: Verdict
    id: str = ""
    docs: Path | None = None


class LiveCheck:
    """Judges the public topics of a live version.

    Args:
        ask: Asks all workers of a version, by its `application.id`, for the counts of their tasks.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        spark: Callable[[], Any],
        clock: Clock,
        ask: Callable[[str], Answers],
    ) -> None:
        self._connected = connected
        self._application = connected.application
        self._admin = connected.admin
        self._spark = spark
        self._clock = clock
        self._ask = ask
        self._log = CheckLog(connected.admin)
        self._directory = connected.application.directory / _DIRECTORY

    def run(self, since: str, by: str) -> LiveVerdict:
        """Judge the public topics, and record the findings in the history. Expectations of differences do not apply.

        Args:
            since: `last`, for records since the last check that passed; a vector of the public topics; or a time. If
                empty, everything is judged: then tables are judged by their rows, else by their updates.
            by: The user who asks, for the history.
        """
        config, kinds = self._application.config, outputs(self._application)
        logs = {topic for topic, output in kinds.items() if output.kind is OutputKind.LOG}
        given = declared(config.quality)
        checks, suite = checks_of(str(config.quality or ""), given, self._application.topology), suite_digest(given)
        wanted = by_topic(str(config.quality or ""), checks.outputs, kinds, logs)
        ends = self._admin.stable_end_offsets(
            TopicPartition(topic, n) for topic, count in self._admin.partitions(wanted).items() for n in range(count)
        )
        start, since_ms = self._start(since, ends)
        check, docs = new_id(), config.docs_directory
        kind = WHOLE if start is None else SINCE
        report = GateReport.of(config, check, checks.actions, self._log.earlier(config.name, kind))
        found = Verdict({})
        for topic, expectations in wanted.items():
            sink = self._application.topology.sink_of(topic)
            if sink is not None:
                own = {tp: end for tp, end in ends.items() if tp.topic == topic}
                found += self._of_topic(sink, own, expectations.table, topic in logs, start, report)
        found += self._of_insides(checks, report, since_ms)
        counted: Mapping[str, TaskWork] = {}
        if checks.workers:
            answers = self._ask(self._application.id)
            found += self._of_workers(answers, checks.workers, since_ms if since else None, report)
            counted = counts(answers)
        verdict = LiveVerdict(OffsetVector(ends), found, check, docs)
        self._note(verdict, start, by, counted, suite)
        return verdict

    def _of_topic(
        self,
        sink: SinkNode,
        ends: Mapping[TopicPartition, int],
        expectations: Iterable[Any],
        is_log: bool,  # noqa: FBT001 - one of two kinds
        start: OffsetVector | None,
        report: GateReport,
    ) -> Verdict:
        topic = next(iter(ends)).topic
        if start is not None:
            rows = self._records(sink, ends, start, is_log)
            found = self._judged(topic, rows, expectations, INFO, report)
            return found + unread_verdict(topic, start, self._admin.beginning_offsets(ends))
        if is_log:
            rows = self._records(sink, ends, OffsetVector({}), is_log)
            return self._judged(topic, rows, expectations, WARNING if expectations else INFO, report)
        with Differ("", topic, topic, self._directory / "tables" / topic, self._admin) as differ:
            differ.advance(ends, {})
            # One topic is both sides, so each row is on the side that was read last, and compares with nothing.
            pairs = (pair._replace(old=None, new=pair.new or pair.old) for pair in differ.rows())
            return self._judged(topic, table_rows(pairs, sink, topic), expectations, "", report)

    def _records(
        self,
        sink: SinkNode,
        ends: Mapping[TopicPartition, int],
        start: OffsetVector,
        is_log: bool,  # noqa: FBT001 - as above
    ) -> Iterator[dict[str, Any]]:
        """Return the rows of a range of records, without tombstones of a table."""
        first = self._admin.beginning_offsets(ends)
        ranges = {tp: OffsetRange(min(max(first[tp], start.offsets.get(tp, 0)), end), end) for tp, end in ends.items()}
        batches = read_fields(self._admin, ranges)
        kept = ((tp, [each for each in batch if is_log or each[RAW_VALUE] is not None]) for tp, batch in batches)
        return log_rows(kept, sink)

    def _of_insides(self, checks: Checks, report: GateReport, since_ms: int) -> Verdict:
        frame = self._directory / "frame"
        return judge_insides(self._connected, checks, frame, self._spark, report, since_ms)

    def _of_workers(
        self, answers: Answers, expectations: Iterable[Any], since_ms: int | None, report: GateReport
    ) -> Verdict:
        """Judge the work of workers since an earlier check; None counts all since they took their tasks over."""
        before = {} if since_ms is None else self._counted(since_ms)
        found = answers_verdict(self._application.id, answers)
        if since_ms is not None:
            found += span_verdict(answers, before)
        return found + self._judged(WORKERS, work_rows(answers, before), expectations, INFO, report)

    def _counted(self, until_ms: int) -> Mapping[str, TaskWork]:
        """Return the counts of the last check of this version that has any, no later than a time (ms since the epoch)."""
        for each in self._log.checks(self._application.config.name):
            if each.workers and each.version == self._application.version and each.at_ms <= until_ms:
                return each.workers
        return {}

    def _judged(
        self,
        topic: str,
        rows: Iterable[Mapping[str, Any]],
        expectations: Iterable[Any],
        if_empty: str,
        report: GateReport,
    ) -> Verdict:
        with passing_frame(self._directory / "frame", counted_rows(f"judge {topic}", rows)) as frame:
            keys = [f"_{column}" for column in (*KEY_COLUMNS, "task") if f"_{column}" in frame.columns]
            options = {"if_empty": if_empty} if if_empty else {}
            return judge(topic, frame, list(expectations), self._spark, keys=keys, report=report, **options)

    def _start(self, since: str, ends: Mapping[TopicPartition, int]) -> tuple[OffsetVector | None, int]:
        """Return the point from which records are judged (None for everything), and the time from which runs count."""
        if not since:
            return None, 0
        history = [each for each in self._log.checks(self._application.config.name) if each.kind in CHECKS]
        if since == LAST:
            passed = last_passed(history)
            start = None if passed is None else OffsetVector.parse(passed.at)
            # Counts of workers and runs continue after each check, whether it passed or not.
            return start, history[0].at_ms if history else 0
        vector = _vector(since)
        if vector is None:
            at_ms = time_ms(since)
            first = self._admin.beginning_offsets(ends)
            whole = {tp: OffsetRange(min(first[tp], end), end) for tp, end in ends.items()}
            return OffsetVector(offsets_at_time(self._admin, whole, at_ms)), at_ms
        for tp in vector.offsets:
            if tp not in ends:
                message = f"{tp} is not a partition that {self._application.config.name} publishes to"
                raise RangeError(message, hint=f"It has: {', '.join(map(str, sorted(ends)))}.")
        # Counts of workers and runs are not known by offset, but as of each check.
        earlier = (each for each in history if _is_within(OffsetVector.parse(each.at), vector))
        return vector, next((each.at_ms for each in earlier), 0)

    def _note(
        self, found: LiveVerdict, start: OffsetVector | None, by: str, workers: Mapping[str, TaskWork], suite: str
    ) -> None:
        record = CheckRecord(
            id=found.id,
            app=self._application.config.name,
            version=self._application.version,
            by=by,
            at_ms=self._clock.now_ms(),
            since="" if start is None else str(start),
            at=str(found.at),
            workers=dict(workers),
            kind=WHOLE if start is None else SINCE,
            suite=suite,
        )
        self._log.put(record.with_findings(found.verdict))


def _is_within(judged: OffsetVector, vector: OffsetVector) -> bool:
    """Return whether a check has judged nothing behind a vector, in the partitions that the vector names."""
    return all(judged.offsets.get(tp, 0) <= offset for tp, offset in vector.offsets.items())


def unread_verdict(topic: str, start: OffsetVector, first: Mapping[TopicPartition, int]) -> Verdict:
    """Warn of records that were deleted before a check could judge them."""
    gone = [f"{tp}@{at}..{first[tp]}" for tp, at in sorted(start.offsets.items()) if at < first.get(tp, 0)]
    name = f"{topic}: all records since"
    return (
        Verdict({name: f"failed: {', '.join(gone)} were deleted before they were judged"}, (), (name,))
        if gone
        else Verdict({})
    )


def last_passed(history: Sequence[CheckRecord]) -> CheckRecord | None:
    """Return the last of some checks (latest first) that has passed, like all that was published before what it judged."""
    passed: CheckRecord | None = None
    for each in reversed(history):
        # What the oldest check followed is no longer known.
        follows = each is history[-1] if passed is None else _begins_within(each, passed)
        if not each.critical and (each.kind == WHOLE or follows):
            passed = each
    return passed


def _begins_within(check: CheckRecord, passed: CheckRecord) -> bool:
    """Return whether no record lies between what one check has judged and what another one judges."""
    # A partition that the one does not name is judged from its beginning, and one that the other does not name is unjudged.
    at = OffsetVector.parse(passed.at).offsets
    return all(offset <= at.get(tp, 0) for tp, offset in OffsetVector.parse(check.since).offsets.items())


def is_judged(connected: ConnectedApplication) -> bool:
    """Return whether all that a live version has published has passed its present expectations, and the last check."""
    application, admin = connected.application, connected.admin
    history = [each for each in CheckLog(admin).checks(application.config.name) if each.kind in CHECKS]
    last = last_passed(history)
    if last is None or last is not history[0] or last.version != application.version:
        return False
    partitions = admin.partitions(outputs(application))
    ends = admin.stable_end_offsets(
        TopicPartition(topic, n) for topic, count in partitions.items() for n in range(count)
    )
    # Last, as it loads Great Expectations.
    return OffsetVector.parse(last.at).offsets == ends and last.suite == suite_digest(
        declared(application.config.quality)
    )


def sample_rows(connected: ConnectedApplication, topic: str, count: int) -> list[dict[str, Any]]:
    """Return the latest rows of a public topic, as a check sees them: of a table, the last record of each key of the sample.

    `count` is the number of offsets to read, spread over the partitions.
    """
    admin, kinds = connected.admin, outputs(connected.application)
    sink = connected.topology.sink_of(topic)
    if sink is None or topic not in kinds:
        message = f"{connected.application.config.name} {connected.version} has no output {topic!r}"
        raise ConfigError(message, hint=nearest(topic, kinds))
    admin.require([topic], "expectations are drafted from")
    ends = admin.stable_end_offsets(TopicPartition(topic, n) for n in range(admin.partitions([topic])[topic]))
    first, each = admin.beginning_offsets(ends), -(-count // len(ends))
    while True:
        ranges = {tp: OffsetRange(min(max(first[tp], end - each), end), end) for tp, end in ends.items()}
        batches = read_fields(admin, ranges)
        rows = list(log_rows(batches if kinds[topic].kind is OutputKind.LOG else _last_rows(batches), sink))
        # Offsets may be those of tombstones or markers of transactions, so a range need not have rows.
        if rows or all(ranges[tp].start <= first[tp] for tp in ends):
            return rows
        each *= _WIDER


def _last_rows(
    batches: Iterable[tuple[TopicPartition, list[RawFields]]],
) -> Iterator[tuple[TopicPartition, list[RawFields]]]:
    """Return the last record of each key, without those that delete a row."""
    last: dict[TopicPartition, dict[bytes | None, RawFields]] = {}
    for tp, batch in batches:
        last.setdefault(tp, {}).update((fields[RAW_KEY], fields) for fields in batch)
    for tp, rows in last.items():
        yield tp, [fields for fields in rows.values() if fields[RAW_VALUE] is not None]


def _vector(text: str) -> OffsetVector | None:
    try:
        found = OffsetVector.parse(text)
    except ValueError:
        return None
    return found if found.offsets else None
