"""Waiting for brokers that are away in the middle of a run. Imports no pyspark: executors wait as well."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from pipeline.errors import BrokerError, StreamsError, UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.kafka.admin import Admin

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_SECONDS = 5.0
_RETRY_SECONDS = 0.5


def outlast(step: Callable[[], T], admin: Admin, timeout_ms: int) -> T:
    """Take a step, again and again while brokers are away: what its clients wait for by themselves is over within seconds.

    Args:
        step: May be taken anew, whatever came of it.
        admin: Asks whether brokers are there.
        timeout_ms: For how long, since it failed first (`task.timeout.ms`).

    Raises:
        StreamsError: Its own, if waiting does not help, or has not helped.
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
    """Wait until a broker answers: most of a step would be spent in vain before. False if none does before the deadline."""
    while time.monotonic() < deadline:
        log.warning("waiting for brokers: %s", missed)
        time.sleep(_RETRY_SECONDS)
        if admin.is_answered(_LOOK_SECONDS):
            return True
    return False
