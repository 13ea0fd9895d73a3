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
)
"""Lines that need no action: Spark prints them before it reads its settings, or in spite of these."""


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
    rest = b""
    while chunk := os.read(source, 65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        _show(target, [line + b"\n" for line in lines])
    _show(target, [rest])


def _show(target: int, lines: list[bytes]) -> None:
    shown = b"".join(line for line in lines if not _NOISE.search(line))
    try:
        while shown:
            shown = shown[os.write(target, shown) :]
    except OSError:  # the reader is gone: Java must not wait for it
        return
