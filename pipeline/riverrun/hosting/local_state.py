"""The local state of tasks: its directories, on disk or in memory, their locks, and how far the state in them has come."""

from __future__ import annotations

import errno
import fcntl
import logging
import re
import time
import uuid
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from riverrun.config.secrets import close_to_others, make_directory
from riverrun.errors import StateError, StateInUseError
from riverrun.records import TaskId
from riverrun.state.memory import MemoryBackend
from riverrun.state.rocksdb import RocksDbBackend, delete_unused, finish_deletions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from riverrun.hosting.application import Application
    from riverrun.runtime.ports import Clock
    from riverrun.state.api import StateBackend
    from riverrun.topology.nodes import SubTopology

log = logging.getLogger(__name__)

T = TypeVar("T")


def open_backend(sub_topology: SubTopology, directory: Path) -> StateBackend:
    """Open a task's state: in RocksDB at `directory` if any of its stores is persistent, else in memory."""
    if any(store.persistent for store in sub_topology.stores):
        return RocksDbBackend(directory)
    return MemoryBackend()


def after_predecessor(open_state: Callable[[], T], *, within_s: float, retry_s: float = 0.1) -> T:
    """Open state that a killed or fenced predecessor on this machine may not have closed yet."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return open_state()
        except StateInUseError:
            if time.monotonic() > deadline:
                raise
        # RocksDB cannot wait for its lock, which a dead process may hold a moment longer.
        time.sleep(retry_s)


INSTANCE_DIRECTORY = "instance-{}"
"""Subdirectory of the state directory, by number, for each of several instances that are started together."""

_ID = re.compile(r"[!-~]{1,300}")
_TASK = re.compile(r"(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})")
# Stream threads may take so long to end after their instance was killed.
_PREDECESSOR_SECONDS = 30.0


@contextmanager
def locked(directory: Path, *, group_writes: bool = False) -> Iterator[None]:
    """Lock a state directory against other instances on this machine and other users.

    With `group_writes`, users of its group may write there (`allow.os.group.write.access`).
    """
    try:
        close_to_others(directory, group_writes=group_writes)
        file = (directory / ".lock").open("w")
    except OSError as error:
        raise _unusable(directory, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = f"Another worker uses the state directory {directory}"
            raise StateInUseError(message, hint="Give each instance on a machine its own: --state-dir.") from error
        yield


def instance_id(application: Application) -> str:
    """Return the id of this state directory: created once and stored in it (`kafka-streams-process-metadata`)."""
    path = application.directory / "process-id"
    try:
        found = path.read_bytes().decode(errors="replace").strip() if path.exists() else ""
        if not _ID.fullmatch(found):
            if found:
                log.warning("%s contains no valid instance id: a new id replaces it", path)
            make_directory(path.parent)
            found = str(uuid.uuid4())
            path.write_text(f"{found}\n")
    except OSError as error:
        raise _unusable(application.directory, error) from error
    return found


def _unusable(directory: Path, error: OSError) -> StateError:
    message = f"State in {directory} cannot be used: {error}"
    hint = "Is the disk full, or the directory read-only?"
    if error.errno in {errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG}:
        hint = "Set --state-dir or state.dir to a directory that can be created."
    return StateError(message, hint=hint)


def left_positions(application: Application) -> dict[TaskId, int]:
    """Return the position of each task's state in the local directory: the sum of its applied changelog offsets."""
    found = {}
    for task, path in task_directories(application.directory).items():
        # Stream threads of an instance that was just killed here may still have the state open.
        try:
            backend = after_predecessor(partial(RocksDbBackend, path), within_s=_PREDECESSOR_SECONDS)
        except StateError as error:
            log.warning("ignored local state that cannot be opened: %s", error)
            continue
        found[task] = sum(backend.positions().values())
        backend.close()
    return found


def directories_of(application_id: str, state_directory: Path) -> tuple[Path, ...]:
    """Return the directories of an application's local state below a state directory, including those of instances on Spark."""
    instances = sorted(state_directory.glob(f"{INSTANCE_DIRECTORY.format('*')}/{application_id}"))
    return tuple(path for path in (state_directory / application_id, *instances) if path.exists())


def task_directories(directory: Path) -> dict[TaskId, Path]:
    """Return the directories of tasks in an application's directory, without those that were never completed."""
    found = (path for path in directory.glob("*_*") if _TASK.fullmatch(path.name))
    return {TaskId.parse(path.name): path for path in found}


class ObsoleteState:
    """The state of tasks that have moved away; it is kept for a while, as they may come back.

    Args:
        delay_ms: How long state must have been closed, and how often to check (`state.cleanup.delay.ms`).
        clock: Has to agree with the times of files.
    """

    def __init__(self, directory: Path, delay_ms: int, clock: Clock) -> None:
        self._directory = directory
        self._delay_ms = delay_ms
        self._clock = clock
        self._looked_at = time.monotonic()

    def delete_if_due(self, kept: Collection[TaskId]) -> tuple[TaskId, ...]:
        """Delete obsolete state, if it is time to check."""
        if time.monotonic() - self._looked_at < self._delay_ms / 1000:
            return ()
        self._looked_at = time.monotonic()
        finish_deletions(self._directory)
        found = task_directories(self._directory)
        return tuple(task for task, path in found.items() if task not in kept and self._delete(task, path))

    def _delete(self, task: TaskId, path: Path) -> bool:
        try:
            idle_ms = self._clock.now_ms() - round(path.stat().st_mtime * 1000)
            # Other processes may use it: bounded runs take over tasks of a worker.
            if idle_ms <= self._delay_ms or not delete_unused(path):
                return False
        except OSError as error:
            log.warning("cannot delete obsolete state of task %s: %s", task, error, extra={"task": str(task)})
            return False
        message = "deleting obsolete state of task %s: it was not used for %d ms"
        log.info(message, task, idle_ms, extra={"task": str(task)})
        return True
