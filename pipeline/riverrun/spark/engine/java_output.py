"""Passes on Java's standard error output, without the lines that Spark prints at each start."""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_STDERR = 2
_NOISE = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting default log level"
    rb"|To adjust logging level use|WARN NativeCodeLoader|Setting Spark log level to"
    rb"|WARN Utils: Your hostname|WARN Utils: Set SPARK_LOCAL_IP"
    # What Ivy prints about packages that it finds, and where it has looked for the others:
    rb"|^:: (loading settings|resolving|resolution|retrieving|problems|USE VERBOSE)|^:::: WARNINGS|^Ivy Default Cache"
    rb"|^The jars for the packages|^[^ ]+#[^ ]+ added as a dependency|^\tconfs: |^\tfound |^\t:: modules in use|^\t[-|]"
    rb"|^\t[^ ]+#[^ ]+ from |^\t\d+ artifacts copied|^\t==== |^\t  -- artifact|^\t  [a-z/]+[:/]|^\t\t::::|UNRESOLVED"
    rb"|^\s*$"
)
"""Lines that need no action: Spark prints them before it reads its settings, or in spite of these."""
_ENDED, _FRAME = b'Exception in thread "main" ', b"\tat "
"""The line that says why Spark has not started, and those below it, in the text of its own code."""


@contextmanager
def quiet_java() -> Iterator[None]:
    """Start Java in the body; its output is passed on without the lines of each start.

    Java inherits this process's standard error output and keeps it. So Java gets a pipe instead, and a thread passes its
    lines on for as long as both processes live.
    """
    if threading.current_thread() is not threading.main_thread():  # other threads may be starting processes just now
        yield
        return
    sys.stderr.flush()
    before, (ours, javas) = os.dup(_STDERR), os.pipe()
    threading.Thread(target=_pass_on, args=(ours, before), name="java-output", daemon=True).start()
    os.dup2(javas, _STDERR)
    os.close(javas)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)


def _pass_on(source: int, target: int) -> None:
    """Copy whole lines until the last writer has ended."""
    rest, is_shown = b"", _Filter()
    while chunk := os.read(source, 65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        _show(target, [line + b"\n" for line in lines if is_shown(line)])
    _show(target, [rest] if rest and is_shown(rest) else [])


class _Filter:
    """Decides which lines are shown, one after the other."""

    def __init__(self) -> None:
        self._has_ended = False

    def __call__(self, line: bytes) -> bool:
        self._has_ended = self._has_ended or line.startswith(_ENDED)
        return not (_NOISE.search(line) or (self._has_ended and line.startswith(_FRAME)))


def _show(target: int, lines: list[bytes]) -> None:
    shown = b"".join(lines)
    try:
        while shown:
            shown = shown[os.write(target, shown) :]
    except OSError:  # the reader is gone: Java must not wait for it
        return
