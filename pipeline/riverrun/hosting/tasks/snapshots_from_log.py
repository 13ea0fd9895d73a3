"""Publishes snapshots of tasks from their changelogs, while the tasks run elsewhere or nowhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from riverrun.hosting.progress import tell
from riverrun.hosting.restoring.snapshots import has_snapshots, publish_checkpoint, take_checkpoint
from riverrun.hosting.tasks.task_start import TaskStart

if TYPE_CHECKING:
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import TaskId
    from riverrun.runtime.ports import Clock
    from riverrun.state.backends.snapshots import Manifest


def publish_snapshots(connected: ConnectedApplication, clock: Clock, scratch: Path | None = None) -> list[Manifest]:
    """Publish snapshots of all tasks from the present changelogs. Workers may run meanwhile.

    Makes each state in a separate directory, from the newest snapshot and the changelogs' records since.

    Args:
        connected: The application; its patterns are resolved.
        clock: Tells the time.
        scratch: Directory in which to make the states; the system's directory for temporary files if left out.

    Returns:
        The snapshots.

    Raises:
        SnapshotError: If one cannot be published.
        BrokerError: If brokers do not answer.
    """
    published = []
    for task_id in sorted(connected.layout.tasks):
        if has_snapshots(connected.application, task_id):
            with tempfile.TemporaryDirectory(prefix="riverrun-snapshot-", dir=scratch) as directory:
                published.append(_publish_from_log(connected, task_id, clock, Path(directory)))
    return published


def _publish_from_log(connected: ConnectedApplication, task_id: TaskId, clock: Clock, directory: Path) -> Manifest:
    elsewhere = connected.in_directory(directory)
    start = TaskStart(elsewhere, task_id, clock)
    try:
        start.begin()
        start.restore(on_restore=lambda _tp, done, expected: tell(f"restore {task_id}", done, expected)).close()
        offsets = {tp: found.offset for tp, found in start.committed.items()}
        checkpoint = take_checkpoint(elsewhere, task_id, clock, start.missing.backend, offsets)
        return publish_checkpoint(checkpoint)
    finally:
        start.close()
