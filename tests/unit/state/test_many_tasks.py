"""The memory of many tasks with state on disk: it has a limit for all of them, not one for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.state.rocksdb import RocksDbBackend
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

TASKS, TABLES, MIB = 16, 3, 2**20
LIMIT_MIB = 128
"""Of memtables, in a process."""
FLUSHED_MIB = TASKS * TABLES
"""The last value of each table may be on its way to the disk."""


def on_disk_mib(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.rglob("*.sst")) / MIB


def test_tasks_keep_no_more_in_memory_together_than_a_few_of_them_alone(tmp_path: Path) -> None:
    """Each of their tables is far smaller than a memtable, so none would ever be written to a file for its own sake."""
    tasks = [RocksDbBackend(tmp_path / f"0_{number}") for number in range(TASKS)]
    for number in range(5):
        for task in tasks:
            task.write({f"table-{n}": {b"%d" % number: bytes(MIB)} for n in range(TABLES)}, {})
    written_mib = 5 * TASKS * TABLES
    until(lambda: on_disk_mib(tmp_path) > written_mib - LIMIT_MIB - FLUSHED_MIB, "flushed what is too much")
    for task in tasks:
        for n in range(TABLES):
            assert [key for key, _ in task.table(f"table-{n}").scan(None, None)] == [
                b"%d" % number for number in range(5)
            ]
        task.close()
