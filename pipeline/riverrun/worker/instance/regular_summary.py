"""Logs a worker's summary at intervals, in the words of Kafka Streams (`log.summary.interval.ms`)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from riverrun.worker.states import WorkerSummary

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class RegularSummary:
    """Logs the work since the last summary.

    Args:
        application_id: The application id.
        interval_ms: The interval, ms; 0 for no summaries.
    """

    def __init__(self, application_id: str, interval_ms: int) -> None:
        """Begin the first interval."""
        self._application_id = application_id
        self._interval_s = interval_ms / 1000
        self._told_at = time.monotonic()
        self._told = WorkerSummary()

    def log_if_due(self, summary: Callable[[], WorkerSummary]) -> None:
        """Log the summary if it is time.

        Args:
            summary: Returns the work since the start.
        """
        if not self._interval_s or time.monotonic() - self._told_at < self._interval_s:
            return
        told, now = self._told, summary()
        self._told_at, self._told = time.monotonic(), now
        log.info(
            "Processed %d total records and committed %d total tasks since the last update",
            now.processed - told.processed,
            now.commits - told.commits,
            extra={"application": self._application_id},
        )
