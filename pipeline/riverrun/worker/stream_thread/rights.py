"""Applies the control topic to running tasks: where to hold for a mark, and whether to publish."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from riverrun.hosting.tasks.task_right import right_by

if TYPE_CHECKING:
    from riverrun.hosting.control.publication import LiveVersion
    from riverrun.hosting.tasks.owned_task import OwnedTask
    from riverrun.hosting.tasks.task_right import Right
    from riverrun.worker.alignment.alignment import Alignment
    from riverrun.worker.inputs.known_topics import KnownTopics

log = logging.getLogger(__name__)


class Rights:
    """Has tasks obey the newest record of their application, each between two commits.

    A task that was taken over later has read a newer record itself.

    Args:
        topics: Knows the application.
        alignment: Does not wait for inputs that hold.
    """

    def __init__(self, topics: KnownTopics, alignment: Alignment) -> None:
        self._topics = topics
        self._alignment = alignment
        self._right: Right | None = None
        self._since = 0.0

    @property
    def are_holding(self) -> bool:
        """Return whether tasks have to hold for a mark."""
        return self._right is not None and self._right.hold is not None

    def learn(self, record: LiveVersion) -> None:
        """Take note of a record; ignores older records."""
        right = right_by(self._topics.application, record)
        if self._right is not None and right.revision <= self._right.revision:
            return
        before, self._right = self._right, right
        held = before.hold if before else None
        self._alignment.hold(right.hold)
        if held is not None and (right.hold is None or right.hold.mark != held.mark):
            log.info("has held for mark %s for %.3f s, and continues", held.mark, time.monotonic() - self._since)
        if right.hold is not None and (held is None or right.hold.mark != held.mark):
            self._since = time.monotonic()
            log.info("holding for mark %s", right.hold.mark)

    def let_process(self, owned: OwnedTask) -> bool:
        """Apply the newest record to a task whose commit is not under way. Returns whether the task may process now."""
        right = self._right
        if right is None or owned.right is right or right.revision <= owned.right.revision:
            return True
        if not owned.may_obey(right):
            owned.task.request_commit()
            return False
        if owned.right.published != right.published:
            where = "staging" if right.published else "public"
            log.info("task %s writes to %s topics from now on", owned.id, where, extra={"task": str(owned.id)})
        owned.obey(right)
        return True

    def have_told(self, owned: OwnedTask) -> None:
        """Request a commit at once from a task that has reached the offsets of a mark."""
        if owned.task.has_news_of_hold():
            owned.task.request_commit()
