"""Looks up a process: in Linux' `/proc` if it exists, otherwise with `ps`."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_HIGHEST = 2**31 - 1


def command_line(pid: int) -> str:
    """Return the command line of a process, joined by blanks; empty if there is no such process.

    A child of this process that has ended counts as gone, and is reaped.
    """
    if not 0 < pid <= _HIGHEST:
        return ""
    with suppress(ChildProcessError):  # not a child of ours
        os.waitpid(pid, os.WNOHANG)
    if (_PROC / "self").exists():
        try:
            return (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()
        except OSError:
            return ""
    shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()
