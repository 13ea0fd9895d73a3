"""Publishes the state of tasks as snapshots, and opens local state, from a snapshot if there is none.

A snapshot saves reading a changelog from its beginning, and nothing else depends on it. A snapshot that does not fit is
ignored with a warning, and the task restores from the changelog.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverrun.errors import CorruptStateError, SnapshotError
from riverrun.hosting.local_state import open_backend
from riverrun.kafka.tombstones import whole_now, why_incomplete
from riverrun.records import TopicPartition, Whole
from riverrun.state.snapshots import FORMAT_VERSION, Manifest, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from riverrun.hosting.application import Application
    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.kafka.admin import Admin
    from riverrun.records import TaskId
    from riverrun.runtime.ports import Clock
    from riverrun.state.api import StateBackend
    from riverrun.state.snapshots import Digests

log = logging.getLogger(__name__)


def has_snapshots(application: Application, task_id: TaskId) -> bool:
    """Return whether a task has snapshots: it has state on disk, and `snapshot.url` is set."""
    stores = application.sub_topology(task_id.sub_topology).stores
    return bool(application.config.streams.snapshot_url) and any(store.persistent for store in stores)


def snapshot_store(application: Application, task_id: TaskId) -> SnapshotStore:
    """Return the store of a task's snapshots."""
    streams = application.config.streams
    return SnapshotStore(f"{streams.snapshot_url}/{application.id}/{task_id}", streams.snapshot_keep)


def open_state(connected: ConnectedApplication, task_id: TaskId) -> StateBackend:
    """Open a task's local state; if there is none, that of the newest usable snapshot."""
    application = connected.application
    directory = application.directory / str(task_id)
    sub_topology = application.sub_topology(task_id.sub_topology)
    _fetch(connected, task_id, directory)
    try:
        return open_backend(sub_topology, directory)
    except CorruptStateError as error:
        named = {"task": str(task_id)}
        log.warning("task %s is restored from its changelogs: %s", task_id, error.message, extra=named)
        # Nothing is lost: the changelogs contain all of it.
        shutil.rmtree(directory)
        return open_backend(sub_topology, directory)


def usable_snapshots(application: Application, task_id: TaskId) -> list[Manifest]:
    """Return the snapshots of a task that this topology and this release have made, newest first."""
    if not has_snapshots(application, task_id):
        return []
    manifests = snapshot_store(application, task_id).manifests()
    return [manifest for manifest in manifests if _why_foreign(manifest, application, task_id) is None]


def _why_foreign(manifest: Manifest, application: Application, task_id: TaskId) -> str | None:
    """Return why a snapshot was not made by this task, topology and release; None if it was."""
    if manifest.format != FORMAT_VERSION:
        return f"it has format {manifest.format}, this release reads {FORMAT_VERSION}"
    if (manifest.application, manifest.task) != (application.id, str(task_id)):
        return f"it is a snapshot of task {manifest.task} of {manifest.application}"
    if manifest.fingerprint != application.topology.fingerprint():
        return "it was made by another topology"
    return None


def open_snapshot(application: Application, task_id: TaskId, name: str) -> StateBackend:
    """Open a task's state as it is in one snapshot, in a directory without local state."""
    store = snapshot_store(application, task_id)
    manifest = next((found for found in store.manifests() if found.name == name), None)
    if manifest is None:
        message = f"Snapshot {name} of task {task_id} is no longer at {application.config.streams.snapshot_url}"
        raise SnapshotError(
            message, hint=f"The last {application.config.streams.snapshot_keep} are kept (snapshot.keep)."
        )
    if (reason := _why_foreign(manifest, application, task_id)) is not None:
        raise SnapshotError(f"Snapshot {name} of task {task_id} cannot be used: {reason}")
    directory = application.directory / str(task_id)
    store.fetch(manifest, directory)
    return open_backend(application.sub_topology(task_id.sub_topology), directory)


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """An immutable copy of a task's state.

    Args:
        directory: The directory of the copy; removed once the copy is published.
        positions: Per changelog, the next offset that is not in the copy.
        whole: When the state was whole; None if that is unknown.
    """

    connected: ConnectedApplication
    task_id: TaskId
    directory: Path
    positions: Mapping[TopicPartition, int]
    inputs: Mapping[TopicPartition, int]
    whole: Whole | None
    created_ms: int


def take_checkpoint(
    connected: ConnectedApplication,
    task_id: TaskId,
    clock: Clock,
    state: StateBackend,
    inputs: Mapping[TopicPartition, int],
) -> TaskCheckpoint:
    """Copy a task's state, which is at a committed point, within its file system, by linking files."""
    directory = connected.application.directory / f".checkpoint-{task_id}"
    # A process that died may have left one.
    shutil.rmtree(directory, ignore_errors=True)
    try:
        state.checkpoint(directory)
    # rocksdict raises plain exceptions.
    except Exception as error:
        message = f"The state of task {task_id} cannot be copied to {directory}: {error}"
        raise SnapshotError(message, hint="Is the disk full?") from error
    return TaskCheckpoint(
        connected,
        task_id,
        directory,
        positions=state.positions(),
        inputs=dict(inputs),
        whole=state.whole(),
        created_ms=clock.now_ms(),
    )


def publish_checkpoint(checkpoint: TaskCheckpoint, digests: Digests | None = None) -> Manifest:
    """Publish a copy of a task's state and remove it. Returns the newest snapshot if nothing has changed since.

    `digests` are checksums of files that are known from the last time; they are updated.
    """
    application, task_id = checkpoint.connected.application, checkpoint.task_id
    try:
        store = snapshot_store(application, task_id)
        changelogs = {str(tp): offset for tp, offset in checkpoint.positions.items()}
        ids = checkpoint.connected.admin.topic_ids({tp.topic for tp in checkpoint.positions})
        fingerprint = application.topology.fingerprint()
        inputs = {str(tp): offset for tp, offset in checkpoint.inputs.items()}
        draft = Manifest(
            application=application.id,
            task=str(task_id),
            fingerprint=fingerprint,
            created_ms=checkpoint.created_ms,
            changelogs=changelogs,
            topic_ids=ids,
            inputs=inputs,
            whole=checkpoint.whole,
        )
        newest = next(store.manifests(), None)
        if newest is not None and _says_the_same(newest, draft):
            return newest
        return store.publish(checkpoint.directory, draft, digests)
    finally:
        shutil.rmtree(checkpoint.directory, ignore_errors=True)


def _says_the_same(one: Manifest, other: Manifest) -> bool:
    """Return whether two snapshots are of the same state, and can be used for about as long."""
    if (one.fingerprint, one.changelogs, one.topic_ids) != (other.fingerprint, other.changelogs, other.topic_ids):
        return False
    if one.whole is None or other.whole is None:
        return one.whole == other.whole
    # A snapshot is of use while brokers keep deletions, so equal state is published again after a quarter of that time.
    return other.whole[0] - one.whole[0] < other.whole[1] // 4


def _fetch(connected: ConnectedApplication, task_id: TaskId, directory: Path) -> None:
    """Fetch a usable snapshot, if any, to a place without local state."""
    application = connected.application
    # RocksDB has a file `CURRENT` in each database.
    if (directory / "CURRENT").exists() or not has_snapshots(application, task_id):
        return
    try:
        store = snapshot_store(application, task_id)
        for manifest in store.manifests():
            reason = _why_foreign(manifest, application, task_id) or _why_unusable(manifest, connected.admin)
            if reason is None:
                try:
                    store.fetch(manifest, directory)
                except SnapshotError as error:
                    reason = error.message
                else:
                    log.info("task %s begins with snapshot %s", task_id, manifest.name)
                    return
            log.warning("skipping snapshot %s of task %s: %s", manifest.name, task_id, reason)
    except SnapshotError as error:
        log.warning("task %s is restored from its changelogs: %s", task_id, error.message)


def _why_unusable(manifest: Manifest, admin: Admin) -> str | None:
    """Return why a snapshot and the rest of its changelogs would make wrong state; None if the state would be right."""
    # As `find_missing`, which comes too late: all files have been fetched by then.
    positions = {TopicPartition.parse(name): offset for name, offset in manifest.changelogs.items()}
    topics = {tp.topic for tp in positions}
    if admin.topic_ids(topics) != manifest.topic_ids:
        return "a changelog has been recreated since"
    now = whole_now(admin, topics)
    first, last = admin.beginning_offsets(positions), admin.end_offsets(positions)
    for tp, offset in positions.items():
        if offset > last[tp]:
            return f"it is ahead of changelog {tp}, which ends at {last[tp]}"
        if 0 < offset < first[tp]:
            return f"changelog {tp} begins at {first[tp]}: the records in between have been deleted"
    unread = {tp: offset for tp, offset in positions.items() if 0 < offset < last[tp]}
    whole = None if manifest.whole is None else Whole(*manifest.whole)
    reason = why_incomplete(admin, whole, now, unread)
    return None if reason is None else str(reason)
