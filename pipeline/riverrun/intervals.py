"""Calls a function at an interval while a block runs."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def repeating(call: Callable[[], object], every_s: float, name: str, *, last_s: float | None = None) -> Iterator[None]:
    """Call a function at an interval from another thread within this context, or until it returns True.

    The end of the context waits for a call that has begun: for at most `last_s` seconds, or, by default, until it returns.
    """
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            if call() is True:
                return

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(last_s)
