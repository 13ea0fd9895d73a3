"""Applies the control topic to running tasks: where to hold for a mark, and whether to publish.

Publishes snapshots of a worker's tasks in the background, while they run.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, SnapshotError
from riverrun.hosting.snapshots import has_snapshots, publish_checkpoint
from riverrun.hosting.task_start import right_by

if TYPE_CHECKING:
    from riverrun.hosting.owned_task import OwnedTask
    from riverrun.hosting.publication import LiveVersion
    from riverrun.hosting.task_start import Right
    from riverrun.worker.tasks.alignment import Alignment
    from riverrun.worker.tasks.known_topics import KnownTopics

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


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.hosting.owned_task import OwnedTask
    from riverrun.hosting.snapshots import TaskCheckpoint
    from riverrun.records import TaskId, TopicPartition
    from riverrun.state.snapshots import Digests

    _Progress = tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]


class RegularSnapshots:
    """Determines which task's snapshot is due, and uploads one at a time in a thread. Failures are only logged.

    Args:
        application: The application.
        interval_ms: How often to publish each task's state, ms (`snapshot.interval.ms`); 0 for never.
    """

    def __init__(self, application: Application, interval_ms: int) -> None:
        self._application = application
        self._interval_ms = interval_ms
        self._last_ms: dict[TaskId, int] = {}
        self._published: dict[TaskId, _Progress] = {}
        self._digests: dict[TaskId, Digests] = {}
        self._uploading: threading.Thread | None = None

    def run_if_due(
        self, tasks: Mapping[TaskId, OwnedTask], now_ms: int, commit_state: Callable[[OwnedTask], bool]
    ) -> None:
        """Publish the state of a task that is due, right after a commit.

        Args:
            tasks: The tasks that run.
            now_ms: The present time, ms since the epoch.
            commit_state: Commits a task and its local state; returns whether the task still runs.
        """
        owned = self._due(tasks, now_ms)
        if owned is not None and commit_state(owned):
            self._publish(owned)

    def _due(self, tasks: Mapping[TaskId, OwnedTask], now_ms: int) -> OwnedTask | None:
        """Return the task whose snapshot is due; None if there is none, or an upload is under way."""
        if not self._interval_ms or not self._application.config.streams.snapshot_url:
            return None
        self._last_ms = {task_id: self._last_ms.get(task_id, now_ms) for task_id in tasks}
        if self._uploading is not None and self._uploading.is_alive():
            return None
        for task_id, last_ms in sorted(self._last_ms.items(), key=lambda entry: entry[1]):
            if now_ms - last_ms < self._interval_ms:
                return None
            self._last_ms[task_id] = now_ms
            if has_snapshots(self._application, task_id) and self._has_changed(tasks[task_id]):
                return tasks[task_id]
        return None

    def _publish(self, owned: OwnedTask) -> None:
        """Copy a task's state at its last commit, and upload the copy in the background."""
        self._published[owned.id] = _progress(owned)
        try:
            checkpoint = owned.checkpoint()
        except SnapshotError as error:
            log.warning("no snapshot of task %s: %s", owned.id, error.message)
            return
        self._uploading = threading.Thread(target=self._upload, args=(checkpoint,), name="snapshot", daemon=True)
        self._uploading.start()

    def _has_changed(self, owned: OwnedTask) -> bool:
        return self._published.get(owned.id) != _progress(owned)

    def _upload(self, checkpoint: TaskCheckpoint) -> None:
        digests = self._digests.setdefault(checkpoint.task_id, {})
        try:
            manifest = publish_checkpoint(checkpoint, digests)
        except (SnapshotError, BrokerError) as error:
            log.warning("no snapshot of task %s: %s", checkpoint.task_id, error.message)
        else:
            log.info("task %s: snapshot %s published", checkpoint.task_id, manifest.name)


def _progress(owned: OwnedTask) -> _Progress:
    """Return the progress of a task, by changelogs and inputs.

    Its changelogs may lag behind its last commit, and punctuations do not advance its inputs.
    """
    return owned.applied(), owned.committed_offsets
