"""Commands in a real pseudo-terminal, with what people type and see."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CTRL_C, CTRL_D, UP, TAB, ENTER = "\x03", "\x04", "\x1b[A", "\t", "\r"
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
_OWNED = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes the terminal that of the process, so that Ctrl-C reaches it as a signal."""


@dataclass
class Terminal:
    """A process whose input and output is a terminal."""

    process: subprocess.Popen[bytes]
    ours: int
    _seen: str = ""
    _looked_at: int = 0

    @property
    def shown(self) -> str:
        """All that was shown, without colours and movements."""
        return _CONTROLS.sub("", self._seen)

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def until(self, text: str) -> None:
        """Wait until a text is shown behind what was waited for before."""
        deadline = time.monotonic() + DEADLINE_S
        while (at := self.shown.find(text, self._looked_at)) < 0:
            assert self._read(deadline), f"{text!r} was not shown, but {self.shown!r}"
        self._looked_at = at + len(text)

    def ended(self) -> int:
        """Wait for the end, and return the exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline):
            pass
        return self.process.wait(DEADLINE_S)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.ours], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"nothing more came, behind {self.shown!r}"
        with suppress(OSError):  # the other end is closed
            data = os.read(self.ours, 10_000)
            self._seen += data.decode(errors="replace")
            return bool(data)
        return False


@contextmanager
def terminal(*arguments: str, environ: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """Runs `riverrun` with arguments in a terminal."""
    ours, theirs = pty.openpty()
    known = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "200", **(environ or {})}
    command = [sys.executable, "-c", _OWNED, sys.executable, "-m", "riverrun.cli", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=known, start_new_session=True)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
