"""The history of checks of live topics, in a compacted topic: time, offsets and findings of each check."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Line, Name, Time, UnreadableError, Word, foreign_decoder, why_unreadable
from riverrun.errors import BrokerError
from riverrun.hosting.control_topic import ControlTopic, readable
from riverrun.records import OffsetVector
from riverrun.releases.worker_quality import TaskWork  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from riverrun.kafka.admin import Admin

log = logging.getLogger(__name__)

CHECKS_TOPIC = "riverrun-checks"
CHECKS_KEPT = 200
"""Checks kept per application; older ones are deleted."""


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """Records one check of the output of a live version.

    Args:
        id: Identifies the check, and its run in Data Docs.
        app: The application.
        version: The version that was live.
        by: The person who asked for it.
        at_ms: Time of the check, ms since the epoch.
        since: Offsets from which records were judged, as text; empty if all were.
        at: Offsets up to which they were judged, as text.
        outcomes: Expectation to outcome, in words.
        critical: Expectations of critical severity that failed.
        warnings: Expectations of severity warning that failed.
        pages: Pages of Data Docs by subject, relative to the application's directory of Data Docs.
        workers: Counts of running instances by instance and task, which the next check compares with its own.
    """

    id: Word
    app: Name
    version: Name
    by: Line
    at_ms: Time
    since: str
    at: str
    outcomes: dict[str, str] = field(default_factory=dict)
    critical: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    pages: dict[str, str] = field(default_factory=dict)
    workers: dict[str, TaskWork] = field(default_factory=dict)

    @property
    def result(self) -> str:
        """`failed`, `warnings` or `passed`."""
        return "failed" if self.critical else "warnings" if self.warnings else "passed"


_record = foreign_decoder(CheckRecord)


def _check(data: bytes) -> CheckRecord:
    """Decode the record of a check.

    Raises:
        UnreadableError: If it is not one.
    """
    check = _record(data)
    try:
        OffsetVector.parse(check.since)
        OffsetVector.parse(check.at)
    except ValueError as error:
        raise UnreadableError(why_unreadable(error)) from error
    return check


class CheckLog:
    """Writes and lists the records of checks.

    Args:
        admin: Asks the brokers.
    """

    def __init__(self, admin: Admin) -> None:
        self._topic = ControlTopic(admin, CHECKS_TOPIC)

    def checks(self, app: str) -> list[CheckRecord]:
        """Return the checks of an application, latest first.

        Raises:
            BrokerError: If brokers do not answer.
        """
        own = {name: value for name, value in self._topic.read().items() if name.startswith(f"{app}/")}
        found = [each for each in readable(CHECKS_TOPIC, own, _check) if each.app == app]
        return sorted(found, key=lambda each: (each.at_ms, each.id), reverse=True)

    def put(self, record: CheckRecord) -> None:
        """Record a check and delete the oldest ones. If brokers cannot store the record, the check does not fail."""
        try:
            older = self.checks(record.app)[CHECKS_KEPT - 1 :]
            forgotten: dict[str, bytes | None] = dict.fromkeys(f"{each.app}/{each.id}" for each in older)
            self._topic.put({f"{record.app}/{record.id}": msgspec.json.encode(asdict(record)), **forgotten})
        except BrokerError as error:
            log.warning("cannot record the check of %s: %s", record.app, error.message)
