"""Where a task keeps its local state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.state.memory import MemoryBackend
from pipeline.state.rocksdb import RocksDbBackend

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.state.api import StateBackend
    from pipeline.topology.nodes import SubTopology


def open_backend(sub_topology: SubTopology, directory: Path) -> StateBackend:
    """Where a task keeps its state: in RocksDB at `directory` if any of its stores is persistent, else in memory.

    Raises:
        StateError: If another process uses the directory.
    """
    if any(store.persistent for store in sub_topology.stores):
        return RocksDbBackend(directory)
    return MemoryBackend()
