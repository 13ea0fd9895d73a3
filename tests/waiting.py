"""Waits of tests for what threads, processes and brokers do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 240.0
"""For what takes moments: a machine may have much else to do. pytest ends a test after 600 s."""


def pause() -> None:
    """Let the others work."""
    time.sleep(0.05)


def until(
    condition: Callable[[], bool],
    what: str,
    told: Callable[[], str] = lambda: "",
    *,
    turn: Callable[[], object] = pause,
) -> None:
    """Wait until a condition holds.

    Args:
        condition: Asked again and again; what it raises ends the test.
        what: Ends the sentence "never ..." that a test fails with.
        told: Returns what may explain the failure, such as logs.
        turn: Called between two looks.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"never {what}\n{told()}"
        turn()
