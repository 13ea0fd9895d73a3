"""Waiting for brokers that do not answer, for as long as `task.timeout.ms`."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from pipeline.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.kafka.admin import Admin
    from pipeline.worker.inputs.interruptions import Interruptions

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 0.5


class AbsentBrokers:
    """Waits for brokers that are absent.

    Args:
        admin: Asks them.
        task_timeout_ms: How long to wait (`task.timeout.ms`).
        interruptions: What may happen meanwhile.
        topics: What they are asked about while they are waited for; looked at anew each time.
    """

    def __init__(
        self, admin: Admin, task_timeout_ms: int, interruptions: Interruptions, topics: Callable[[], Iterable[str]]
    ) -> None:
        self.are_there = True
        """Whether they answered when they were asked last."""
        self.gives_up = False
        """Whether the wait is given up."""
        self._admin = admin
        self._timeout_s = task_timeout_ms / 1000
        self._interruptions = interruptions
        self._topics = topics

    def outlast(self, step: Callable[[], T], doing: str) -> T:
        """Take a step, again and again while brokers are away.

        Args:
            step: Asks brokers; what it has begun when it fails does not matter to the next attempt.
            doing: What the step is for, for the log.

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
        """Wait until they tell of the topics. Nothing else is tried meanwhile: each try would run into its own time limit.

        Args:
            deadline: For how long (monotonic seconds); None for `task.timeout.ms` from now on.

        Raises:
            BrokerError: If they do not answer until the deadline, or the wait is given up.
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
        """Return until when a step that fails now may be tried again (monotonic seconds)."""
        return time.monotonic() + self._timeout_s

    def _check(self, error: BrokerError, deadline: float) -> None:
        """Make sure that it is worth while to try again: the error passes, the deadline has not, and the wait goes on."""
        if not error.retriable or time.monotonic() > deadline or self.gives_up:
            raise error

    def _pause(self) -> None:
        with self._interruptions.away():
            time.sleep(_RETRY_SECONDS)
