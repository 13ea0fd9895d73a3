"""The local state of an instance: whose its directory is, and how far the state is that lies in it."""

from __future__ import annotations

import fcntl
import logging
import re
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.errors import StateError, StateInUseError
from pipeline.records import TaskId
from pipeline.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.hosting.application import Application

log = logging.getLogger(__name__)

_PREDECESSOR_SECONDS = 30.0
"""How long stream processes whose supervisor was killed may take to end."""
_RETRY_SECONDS = 0.1


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other instances on this machine out of a state directory.

    Raises:
        StateInUseError: If one uses it.
        StateError: If it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
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
    """The id of this state directory: made once, kept in it (`kafka-streams-process-metadata`).

    Raises:
        StateError: If the directory cannot be written.
    """
    path = application.directory / "process-id"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{uuid.uuid4()}\n")
        return path.read_text().strip()
    except OSError as error:
        raise _unusable(application.directory, error) from error


def _unusable(directory: Path, error: OSError) -> StateError:
    message = f"State in {directory} cannot be used: {error}"
    return StateError(message, hint="Is the disk full, or the directory read-only?")


def left_positions(application: Application) -> dict[TaskId, int]:
    """How far the state of each task is that lies in the local directory: changelog offsets applied, summed up.

    Stream processes of an instance that was killed here a moment ago may have it open still: they are waited for.
    """
    found = {}
    for path in filter(_is_state, application.directory.glob("*_*")):
        try:
            backend = _opened(path)
        except StateError as error:
            log.warning("local state is left aside: %s", error)
            continue
        found[TaskId.parse(path.name)] = sum(backend.positions().values())
        backend.close()
    return found


def _opened(path: Path) -> RocksDbBackend:
    deadline = time.monotonic() + _PREDECESSOR_SECONDS
    while True:
        try:
            return RocksDbBackend(path)
        except StateInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _is_state(path: Path) -> bool:
    """Whether this is the directory of a task, and not what somebody left who died while he made one."""
    return re.fullmatch(r"\d+_\d+", path.name) is not None
