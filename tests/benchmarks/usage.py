"""CPU time, memory, threads and file handles of a process and of all below it, as `/proc` tells them (`man 5 proc`)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PROC = Path("/proc")
_ENDED = (FileNotFoundError, ProcessLookupError)
"""Raised for a process that has ended just now."""


def family(pid: int, proc: Path = PROC) -> list[int]:
    """Return a process and all below it."""
    children = []
    for thread in (proc / str(pid) / "task").glob("*/children"):
        with suppress(*_ENDED):  # its process adopts what a thread began that has ended
            children += [int(child) for child in thread.read_text().split()]
    return [pid, *(below for child in children for below in family(child, proc))]


def cpu_seconds(pid: int, proc: Path = PROC) -> float:
    """User and system time so far, of all threads, and of children that have ended and were waited for.

    If a process ends meanwhile, all are read again: its time is now its parent's.
    """
    while True:
        try:
            return sum(_ticks(each, proc) for each in family(pid, proc)) / os.sysconf("SC_CLK_TCK")
        except _ENDED:
            if not (proc / str(pid)).exists():
                raise


def memory_bytes(pid: int, proc: Path = PROC) -> int:
    """Resident memory; pages that several of the processes share count once (`Pss`)."""
    return _sum(pid, proc, _resident_bytes)


def handles(pid: int, proc: Path = PROC) -> int:
    """Open file handles."""
    return _sum(pid, proc, lambda process: len(list((process / "fd").iterdir())))


def threads(pid: int, proc: Path = PROC) -> int:
    """Threads."""
    return _sum(pid, proc, lambda process: len(list((process / "task").iterdir())))


def _sum(pid: int, proc: Path, figure: Callable[[Path], int]) -> int:
    """Add up a figure of all processes; those that have ended meanwhile hold nothing."""
    found = 0
    for each in family(pid, proc):
        with suppress(*_ENDED):
            found += figure(proc / str(each))
    return found


def _ticks(pid: int, proc: Path) -> int:
    """Ticks of `utime`, `stime`, `cutime` and `cstime`; the name before them may hold blanks and brackets."""
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def _resident_bytes(process: Path) -> int:
    lines = (process / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
