"""Ends what a run of tests leaves behind: brokers and workers have sessions of their own, and outlive a run that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO

_MARK = "RIVERRUN_TESTS"
"""The variable by which all processes of a run are known: they inherit it."""


def end_with_this_process() -> IO[bytes]:
    """Let a process wait for the end of this one, however that comes, and kill what it has started by then.

    Returns:
        A pipe to keep open until the end.
    """
    mark = uuid.uuid4().hex
    guard = subprocess.Popen([sys.executable, __file__, mark], stdin=subprocess.PIPE, start_new_session=True)
    os.environ[_MARK] = mark
    os.environ["SPT_NOENV"] = "1"  # Airflow's servers would write their titles over the variables that the guard reads
    assert guard.stdin is not None
    return guard.stdin


def _kill_all(mark: str) -> bool:
    """Kill the processes that are there; return whether there were any."""
    entry, found = f"{_MARK}={mark}".encode(), False
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
                found = True
    return found


if __name__ == "__main__":
    sys.stdin.read()  # until its other end is closed, by hand or by the end of that process
    while _kill_all(sys.argv[1]):  # one that is found late may have started others meanwhile
        time.sleep(0.2)
