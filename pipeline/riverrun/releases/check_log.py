"""The history of checks and gates, in a compacted topic: time, offsets, findings and statistics of each."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Line, Name, Time, UnreadableError, Word, foreign_decoder, why_unreadable
from riverrun.errors import BrokerError
from riverrun.hosting.control_topic import ControlTopic, readable
from riverrun.quality.expectations import RUNS, WORKERS
from riverrun.quality.frames import Statistics  # noqa: TC001 - msgspec reads the annotation
from riverrun.quality.gate import HAS_VALUES
from riverrun.records import OffsetVector
from riverrun.releases.worker_quality import TaskWork  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Collection

    from riverrun.kafka.admin import Admin
    from riverrun.quality.gate import Verdict

log = logging.getLogger(__name__)

CHECKS_TOPIC = "riverrun-checks"
# Per application and kind; older checks are deleted.
CHECKS_KEPT = 200
WHOLE, SINCE, GATE_OF_RUN, GATE_OF_RELEASE = "whole", "since", "run", "release"
"""Kinds: checks of all that is published, checks since a point, gates of runs, gates of releases."""
CHECKS = frozenset({WHOLE, SINCE})
"""Kinds that judge what a live version has published."""
_WHOLE_TABLES = frozenset({WHOLE, GATE_OF_RELEASE})
_NOT_COUNTED = frozenset({RUNS, WORKERS})
_DIFFERENCE = ", difference"


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """Records one check of the output of a live version, or one gate.

    Args:
        id: Identifies the check, and its run in Data Docs.
        version: The version that was live, or the candidate of a release.
        at_ms: Time of the check, ms since the epoch.
        since: Offsets from which records were judged, as text; empty if all were.
        at: Offsets up to which they were judged, as text; of a gate, those of the inputs.
        warnings: Expectations of severity warning that failed.
        pages: Pages of Data Docs by subject, relative to the application's directory of Data Docs.
        workers: Counts of workers by instance and task, which the next check compares with its own.
        kind: `whole`, `since`, `run` or `release`.
        run: The run that a gate has judged, which may judge it again.
        suite: Digest of the expectations of a check; empty if that is not known.
    """

    id: Word
    app: Name
    version: Name
    by: Line
    at_ms: Time
    since: str = ""
    at: str = ""
    outcomes: dict[str, str] = field(default_factory=dict)
    critical: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    pages: dict[str, str] = field(default_factory=dict)
    workers: dict[str, TaskWork] = field(default_factory=dict)
    kind: Word = WHOLE
    run: Word = ""
    statistics: dict[str, Statistics] = field(default_factory=dict)
    suite: Word = ""

    @property
    def what(self) -> str:
        match self.kind:
            case "since":
                return "check of new records"
            case "run":
                return f"gate of run {self.run}"
            case "release":
                return "gate of a release"
        return "check"

    def with_findings(self, verdict: Verdict) -> CheckRecord:
        counted = {name: each for name, each in verdict.statistics.items() if _is_counted(name)}
        return replace(
            self,
            outcomes=dict(verdict.outcomes),
            critical=verdict.critical,
            warnings=verdict.warnings,
            pages=dict(verdict.pages),
            statistics=counted,
        )

    @property
    def result(self) -> str:
        """`failed`, `warnings` or `passed`."""
        return "failed" if self.critical else "warnings" if self.warnings else "passed"


def _is_counted(name: str) -> bool:
    return name not in _NOT_COUNTED and not name.endswith(_DIFFERENCE)


def _without_emptied(name: str, statistics: Statistics, warnings: Collection[str]) -> Statistics:
    # Otherwise the next gate would find that a column without values is nothing new, and ask nobody.
    columns = statistics.columns
    kept = {each: columns[each] for each in columns if f"{name}: {HAS_VALUES.format(each)}" not in warnings}
    return replace(statistics, columns=kept)


_record = foreign_decoder(CheckRecord)


def _check(data: bytes) -> CheckRecord:
    check = _record(data)
    try:
        OffsetVector.parse(check.since)
        OffsetVector.parse(check.at)
    except ValueError as error:
        raise UnreadableError(why_unreadable(error)) from error
    return check


class CheckLog:
    """Writes and lists the records of checks."""

    def __init__(self, admin: Admin) -> None:
        self._topic = ControlTopic(admin, CHECKS_TOPIC)

    def checks(self, app: str) -> list[CheckRecord]:
        """Return the checks of an application, latest first."""
        own = {name: value for name, value in self._topic.read().items() if name.startswith(f"{app}/")}
        found = [each for each in readable(CHECKS_TOPIC, own, _check) if each.app == app]
        return sorted(found, key=lambda each: (each.at_ms, each.id), reverse=True)

    def earlier(self, app: str, kind: str, run: str = "") -> dict[str, list[Statistics]]:
        """Return the statistics of earlier checks that can be compared with one of a kind, by subject, latest first.

        `run` is the run that the check judges, if it is the gate of one. Each run counts once.
        """
        # Rows of whole tables are no measure for the rows of a run.
        kinds, seen = _WHOLE_TABLES if kind in _WHOLE_TABLES else {kind}, {run} - {""}
        found: dict[str, list[Statistics]] = {}
        for each in self.checks(app):
            if each.kind not in kinds or each.run in seen:
                continue
            seen |= {each.run} - {""}
            # What failed critically is not as expected, so it is no measure either.
            for name, statistics in each.statistics.items() if not each.critical else ():
                found.setdefault(name, []).append(_without_emptied(name, statistics, each.warnings))
        return found

    def put(self, record: CheckRecord) -> None:
        """Record a check, and delete the oldest ones of its kind."""
        # The findings are there: a check does not fail because brokers cannot store its record.
        try:
            older = [each for each in self.checks(record.app) if each.kind == record.kind][CHECKS_KEPT - 1 :]
            forgotten: dict[str, bytes | None] = dict.fromkeys(f"{each.app}/{each.id}" for each in older)
            self._topic.put({f"{record.app}/{record.id}": msgspec.json.encode(asdict(record)), **forgotten})
        except BrokerError as error:
            log.warning("cannot record the check of %s: %s", record.app, error.message)
