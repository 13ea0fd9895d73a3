"""Waits of tests for what threads, processes and brokers do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 240.0
"""For what takes moments: a machine may have much else to do. pytest ends a test after 600 s."""


_SHORTEST_S, _LONGEST_S = 0.05, 0.5
_PART = 0.1
"""A pause is this part of what was waited for so far: looks take time from those that are waited for."""


def until(
    condition: Callable[[], bool],
    what: str,
    explain: Callable[[], str] = lambda: "",
    *,
    turn: Callable[[], object] | None = None,
) -> None:
    """Wait until a condition holds.

    Args:
        condition: Asked again and again; what it raises ends the test.
        what: Ends the sentence "never ..." that a test fails with.
        explain: Returns what may explain the failure, such as logs.
        turn: Called between two looks; a pause if left out.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < DEADLINE_S, f"never {what}\n{explain()}"
        if turn is None:
            time.sleep(min(_LONGEST_S, _SHORTEST_S + _PART * waited))
        else:
            turn()
