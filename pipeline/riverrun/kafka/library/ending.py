"""Ends clients without waiting: the library takes up to 30 ms to stop its threads, and longer if brokers are gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def end_in_background(end: Callable[[], object], name: str) -> None:
    """Call a function that ends a client in a thread, which the process awaits before it exits.

    Args:
        end: Ends the client, which is no longer used.
        name: Name of the thread.
    """
    threading.Thread(target=end, name=f"end-{name}").start()
