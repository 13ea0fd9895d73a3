"""Publishes snapshots of tasks out of their changelogs, while the tasks run elsewhere or nowhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.hosting.restoring.snapshots import has_snapshots, publish_checkpoint, take_checkpoint
from pipeline.hosting.tasks.task_start import TaskStart

if TYPE_CHECKING:
    from pipeline.hosting.application import Application
    from pipeline.kafka.admin import Admin
    from pipeline.records import TaskId
    from pipeline.runtime.layout import Layout
    from pipeline.runtime.ports import Clock
    from pipeline.state.snapshots import Manifest


def publish_snapshots(
    application: Application, layout: Layout, admin: Admin, clock: Clock, scratch: Path | None = None
) -> list[Manifest]:
    """Publish snapshots of all tasks as their changelogs are now. Workers may go on meanwhile.

    Each state is made in a directory of its own, of the newest snapshot and what its changelogs have had since.

    Args:
        application: Whose tasks.
        layout: Which tasks there are.
        admin: Asks the brokers.
        clock: What time it is.
        scratch: Where the states are made; the system's place for temporary files if left out.

    Raises:
        SnapshotError: If one cannot be published.
        BrokerError: If brokers do not answer.
    """
    published = []
    for task_id in sorted(layout.tasks):
        if has_snapshots(application, task_id):
            with tempfile.TemporaryDirectory(prefix="millrace-snapshot-", dir=scratch) as directory:
                elsewhere = application.in_directory(Path(directory))
                published.append(_publish_from_log(elsewhere, layout, task_id, admin, clock))
    return published


def _publish_from_log(
    application: Application, layout: Layout, task_id: TaskId, admin: Admin, clock: Clock
) -> Manifest:
    start = TaskStart(application, task_id, layout.tasks[task_id], admin, clock)
    try:
        start.begin()
        start.restore().close()
        offsets = {tp: found.offset for tp, found in start.committed.items()}
        checkpoint = take_checkpoint(application, task_id, clock, start.missing.backend, offsets)
        return publish_checkpoint(checkpoint, admin)
    finally:
        start.close()
