"""Opens the local state of a task, on disk or in memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from riverrun.errors import StateInUseError
from riverrun.state.backends.memory import MemoryBackend
from riverrun.state.backends.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.state.api import StateBackend
    from riverrun.topology.nodes import SubTopology

T = TypeVar("T")


def open_backend(sub_topology: SubTopology, directory: Path) -> StateBackend:
    """Open a task's state: in RocksDB at `directory` if any of its stores is persistent, else in memory.

    Raises:
        StateError: If another process uses the directory.
    """
    if any(store.persistent for store in sub_topology.stores):
        return RocksDbBackend(directory)
    return MemoryBackend()


def after_predecessor(open_state: Callable[[], T], *, within_s: float, retry_s: float = 0.1) -> T:
    """Open state that a killed or fenced predecessor on this machine may not have closed yet.

    Args:
        open_state: Opens it.
        within_s: How long to keep trying, s.
        retry_s: Time between attempts, s.

    Returns:
        The open state.

    Raises:
        StateInUseError: If another process still uses it after that time.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return open_state()
        except StateInUseError:
            if time.monotonic() > deadline:
                raise
        time.sleep(retry_s)
