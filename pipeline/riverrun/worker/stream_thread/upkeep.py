"""Does what is due while tasks run: publishes snapshots, purges topics, warns of late records, watches topics."""

from __future__ import annotations

import logging
import threading
from itertools import chain
from typing import TYPE_CHECKING

from riverrun.errors import BrokerError, SnapshotError
from riverrun.hosting.snapshots import has_snapshots, publish_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.active_task import ActiveTask
    from riverrun.hosting.application import Application
    from riverrun.hosting.purge import Purge
    from riverrun.hosting.snapshots import TaskCheckpoint
    from riverrun.records import TaskId, TopicPartition
    from riverrun.state.snapshots import Digests
    from riverrun.worker.stream_thread.figures import GlobalTables
    from riverrun.worker.tasks.aligned_tasks import LateShare
    from riverrun.worker.tasks.known_topics import KnownTopics, TopicWatch
    from riverrun.worker.tasks.task_manager import TaskManager

    _Progress = tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]

log = logging.getLogger(__name__)


class RegularSnapshots:
    """Determines which task's snapshot is due, and uploads one at a time in a thread. Failures are only logged.

    Args:
        interval_ms: `snapshot.interval.ms`; 0 for never.
    """

    def __init__(self, application: Application, interval_ms: int) -> None:
        self._application = application
        self._interval_ms = interval_ms
        self._last_ms: dict[TaskId, int] = {}
        self._published: dict[TaskId, _Progress] = {}
        self._digests: dict[TaskId, Digests] = {}
        self._uploading: threading.Thread | None = None

    def run_if_due(
        self, tasks: Mapping[TaskId, ActiveTask], now_ms: int, commit_state: Callable[[ActiveTask], bool]
    ) -> None:
        """Publish the state of a task that is due, right after a commit (`now_ms` is monotonic)."""
        active = self._due(tasks, now_ms)
        if active is not None and commit_state(active):
            self._publish(active)

    def _due(self, tasks: Mapping[TaskId, ActiveTask], now_ms: int) -> ActiveTask | None:
        if not self._interval_ms or not self._application.config.streams.snapshot_url:
            return None
        self._last_ms = {task_id: self._last_ms.get(task_id, now_ms) for task_id in tasks}
        if self._uploading is not None and self._uploading.is_alive():
            return None
        for task_id, last_ms in sorted(self._last_ms.items(), key=lambda entry: entry[1]):
            if now_ms - last_ms < self._interval_ms:
                return None
            # Noted before it is tried: a snapshot that fails is due again an interval later, not in each turn.
            self._last_ms[task_id] = now_ms
            if has_snapshots(self._application, task_id) and self._has_changed(tasks[task_id]):
                return tasks[task_id]
        return None

    def _publish(self, active: ActiveTask) -> None:
        self._published[active.id] = _progress(active)
        try:
            checkpoint = active.checkpoint()
        except SnapshotError as error:
            log.warning("cannot publish a snapshot of task %s: %s", active.id, error.message)
            return
        self._uploading = threading.Thread(target=self._upload, args=(checkpoint,), name="snapshot", daemon=True)
        self._uploading.start()

    def _has_changed(self, active: ActiveTask) -> bool:
        return self._published.get(active.id) != _progress(active)

    def _upload(self, checkpoint: TaskCheckpoint) -> None:
        digests = self._digests.setdefault(checkpoint.task_id, {})
        try:
            manifest = publish_checkpoint(checkpoint, digests)
        except (SnapshotError, BrokerError) as error:
            log.warning("cannot publish a snapshot of task %s: %s", checkpoint.task_id, error.message)
        else:
            log.info("task %s: snapshot %s published", checkpoint.task_id, manifest.name)


def _progress(active: ActiveTask) -> _Progress:
    # Both: changelogs may lag behind the last commit, and punctuations do not advance inputs.
    return active.applied(), active.committed_offsets


class Upkeep:
    """Does in each turn of a stream thread what is due, other than processing."""

    def __init__(
        self,
        topics: KnownTopics,
        manager: TaskManager,
        *,
        snapshots: RegularSnapshots,
        purge: Purge,
        late: LateShare,
        watch: TopicWatch,
    ) -> None:
        self._topics = topics
        self._manager = manager
        self._snapshots = snapshots
        self._purge = purge
        self._late = late
        self._watch = watch

    def run_if_due(self, now_ms: int) -> None:
        running = self._manager.running
        self._snapshots.run_if_due(running, now_ms, self._manager.commits.commit_state)
        self._purge.run_if_due(now_ms, running.values(), self._topics.repartition)
        self._late.warn_if_due()
        if self._watch.run_once(self._topics.application, self._topics.sources):
            self._topics.look_soon()


def topics_in_use(manager: TaskManager, tables: GlobalTables) -> set[tuple[str, int]]:
    """Return the topics that tasks and global tables depend on, with the ids that they had when they were first read."""
    own = (active.topics.items() for active in manager.running.values())
    return set(chain(tables.topic_ids.items(), *own))
