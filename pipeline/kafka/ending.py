"""Ends clients without waiting for them: the library takes up to 30 ms to stop its threads, and longer if brokers are gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def end_in_background(end: Callable[[], object], name: str) -> None:
    """Call what ends a client in a thread, which the process waits for before it exits.

    Args:
        end: Ends the client; it is not used any more.
        name: Of the client, for those who look at threads.
    """
    threading.Thread(target=end, name=f"end-{name}").start()
