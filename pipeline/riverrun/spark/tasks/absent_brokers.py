"""Waits for brokers that are away in the middle of a run. Imports no pyspark: executors wait as well."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from riverrun.errors import BrokerError, StreamsError, UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.kafka.admin import Admin

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_SECONDS = 5.0
_RETRY_SECONDS = 0.5


def outlast(step: Callable[[], T], admin: Admin, timeout_ms: int) -> T:
    """Repeat a step while brokers are away: its clients by themselves wait for seconds only.

    Args:
        step: The step; must be safe to repeat after any outcome.
        admin: Client for requests to the brokers.
        timeout_ms: Maximum duration of retries since the first failure, ms (`task.timeout.ms`).

    Returns:
        The step's result.

    Raises:
        StreamsError: The step's error, if waiting does not help, or has not helped.
    """
    deadline = None
    while True:
        try:
            return step()
        except (BrokerError, UnknownOutcomeError) as error:
            deadline = deadline or time.monotonic() + timeout_ms / 1000
            if not _may_pass(error) or not _come_back(admin, deadline, error.message):
                raise


def _may_pass(error: StreamsError) -> bool:
    return isinstance(error, UnknownOutcomeError) or bool(getattr(error, "retriable", False))


def _come_back(admin: Admin, deadline: float, missed: str) -> bool:
    """Wait for a broker to answer, as most steps would be in vain before. Returns False if none does before the deadline."""
    while time.monotonic() < deadline:
        log.warning("waiting for brokers: %s", missed)
        time.sleep(_RETRY_SECONDS)
        if admin.is_answered(_LOOK_SECONDS):
            return True
    return False
