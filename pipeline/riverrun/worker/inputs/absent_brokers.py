"""Waits for brokers that do not answer, for up to `task.timeout.ms`."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from riverrun.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from riverrun.kafka.admin import Admin
    from riverrun.worker.inputs.interruptions import Interruptions

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 0.5


class AbsentBrokers:
    """Waits for absent brokers.

    Args:
        admin: Asks them.
        task_timeout_ms: How long to wait, ms (`task.timeout.ms`).
        interruptions: Called meanwhile.
        topics: The topics to ask about while waiting; looked up each time.
    """

    def __init__(
        self, admin: Admin, task_timeout_ms: int, interruptions: Interruptions, topics: Callable[[], Iterable[str]]
    ) -> None:
        self.are_there = True
        """Whether they answered the last request."""
        self.gives_up = False
        """Whether the wait is given up."""
        self._admin = admin
        self._timeout_s = task_timeout_ms / 1000
        self._interruptions = interruptions
        self._topics = topics

    def outlast(self, step: Callable[[], T], doing: str) -> T:
        """Take a step, and repeat it while brokers are absent.

        Args:
            step: Asks brokers; a failed attempt leaves nothing that matters to the next.
            doing: The purpose of the step, for the log.

        Returns:
            The result of the step.

        Raises:
            BrokerError: If they refuse, or do not answer for too long, or the wait is given up.
        """
        deadline = None
        while True:
            try:
                return step()
            except BrokerError as error:
                deadline = deadline or self._deadline()
                self.are_there = False
                self._check(error, deadline)
                log.warning("%s: %s", doing, error)
            self._pause()
            self.wait(deadline)

    def wait(self, deadline: float | None = None) -> None:
        """Wait until brokers answer about the topics. Tries nothing else meanwhile: each attempt would have its own timeout.

        Args:
            deadline: Until when to wait (monotonic seconds); None for `task.timeout.ms` from now.

        Raises:
            BrokerError: If they do not answer before the deadline, or the wait is given up.
        """
        self.are_there = False
        deadline = deadline or self._deadline()
        while not self.are_there:
            try:
                with self._interruptions.away():
                    self._admin.partitions(self._topics())
            except BrokerError as error:
                self._check(error, deadline)
                log.warning("waiting for brokers: %s", error)
                self._pause()
            else:
                self.are_there = True

    def _deadline(self) -> float:
        """Return until when a step that fails now may be repeated (monotonic seconds)."""
        return time.monotonic() + self._timeout_s

    def _check(self, error: BrokerError, deadline: float) -> None:
        """Raise the error, unless it is temporary, the deadline has not passed, and the wait continues."""
        if not error.retriable or time.monotonic() > deadline or self.gives_up:
            raise error

    def _pause(self) -> None:
        with self._interruptions.away():
            time.sleep(_RETRY_SECONDS)
