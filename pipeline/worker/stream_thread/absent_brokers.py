"""Waiting for brokers that do not answer, for as long as `task.timeout.ms`."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from pipeline.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.kafka.admin import Admin
    from pipeline.worker.stream_thread.interruptions import Interruptions

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 0.5


class AbsentBrokers:
    """Whether brokers are absent, and for how long they are waited for.

    Args:
        admin: Asks them.
        task_timeout_ms: How long to wait (`task.timeout.ms`).
        interruptions: What may happen meanwhile.
    """

    def __init__(self, admin: Admin, task_timeout_ms: int, interruptions: Interruptions) -> None:
        """They are taken to be there."""
        self.are_there = True
        """Whether they answered when they were asked last."""
        self.gives_up = False
        """Whether nobody waits any longer."""
        self._admin = admin
        self._timeout_s = task_timeout_ms / 1000
        self._interruptions = interruptions

    def deadline(self) -> float:
        """Until when somebody who fails now may try again (monotonic seconds)."""
        return time.monotonic() + self._timeout_s

    def check(self, error: BrokerError, deadline: float) -> None:
        """Make sure that it is worth while to try again.

        Raises:
            BrokerError: This one, if it does not pass, the deadline has, or nobody waits any longer.
        """
        if not error.retriable or time.monotonic() > deadline or self.gives_up:
            raise error

    def outlast(self, step: Callable[[], T], topics: Iterable[str], doing: str) -> T:
        """Take a step, again and again while brokers are away.

        Args:
            step: Asks brokers; what it has begun when it fails does not matter to the next attempt.
            topics: What they are asked about while they are waited for.
            doing: What the step is for, for the log.

        Raises:
            BrokerError: If they refuse, or do not answer for too long, or nobody waits any longer.
        """
        deadline = None
        while True:
            try:
                return step()
            except BrokerError as error:
                deadline = deadline or self.deadline()
                self.are_there = False
                self.check(error, deadline)
                log.warning("%s: %s", doing, error)
            self._pause()
            self.wait(topics, deadline)

    def wait(self, topics: Iterable[str], deadline: float) -> None:
        """Wait until they tell of these topics. Nothing else is tried meanwhile: each try would run into its own time limit.

        Raises:
            BrokerError: If they do not answer until the deadline, or nobody waits any longer.
        """
        self.are_there = False
        while not self.are_there:
            try:
                with self._interruptions.away():
                    self._admin.partitions(topics)
            except BrokerError as error:
                self.check(error, deadline)
                log.warning("waiting for brokers: %s", error)
                self._pause()
            else:
                self.are_there = True

    def _pause(self) -> None:
        with self._interruptions.away():
            time.sleep(_RETRY_SECONDS)
