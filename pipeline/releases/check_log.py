"""The history of checks of live topics: when they were judged, up to where, and what was found; in a compacted topic."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pipeline.errors import BrokerError
from pipeline.hosting.control.control_topic import ControlTopic

if TYPE_CHECKING:
    from pipeline.kafka.admin import Admin

log = logging.getLogger(__name__)

CHECKS_TOPIC = "millrace-checks"
CHECKS_KEPT = 200
"""Of each application; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """One check of what a live version has published.

    Args:
        id: Names it; the run of its Data Docs is called so.
        app: The application.
        version: The version that was live.
        by: Who asked for it.
        at_ms: When, ms since the epoch.
        since: Offsets from which records were judged, as text; empty if all were.
        at: Offsets up to which they were judged, as text.
        outcomes: Expectation to outcome, in words.
        critical: Expectations that failed, of critical severity.
        warnings: Expectations that failed, of severity warning.
        pages: Pages of Data Docs by what they are about, relative to the application's directory of Data Docs.
    """

    id: str
    app: str
    version: str
    by: str
    at_ms: int
    since: str
    at: str
    outcomes: dict[str, str] = field(default_factory=dict)
    critical: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    pages: dict[str, str] = field(default_factory=dict)

    @property
    def result(self) -> str:
        """`failed`, `warnings` or `passed`."""
        return "failed" if self.critical else "warnings" if self.warnings else "passed"


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
        found = [
            msgspec.json.decode(value, type=CheckRecord)
            for name, value in self._topic.read().items()
            if name.startswith(f"{app}/")
        ]
        return sorted(found, key=lambda each: (each.at_ms, each.id), reverse=True)

    def put(self, record: CheckRecord) -> None:
        """Note a check, and forget the oldest. A check does not fail because nobody can be told of it."""
        try:
            older = self.checks(record.app)[CHECKS_KEPT - 1 :]
            forgotten: dict[str, bytes | None] = dict.fromkeys(f"{each.app}/{each.id}" for each in older)
            self._topic.put({f"{record.app}/{record.id}": msgspec.json.encode(asdict(record)), **forgotten})
        except BrokerError as error:
            log.warning("the check of %s is not recorded: %s", record.app, error.message)
