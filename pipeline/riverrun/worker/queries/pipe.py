"""Messages of the pipe for questions to a stream thread, and a way to wait for them."""

from __future__ import annotations

import select
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from riverrun.worker.queries.queries import Page, Question, Refusal


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to a stream thread; the answer has the same number."""

    number: int
    question: Question


@dataclass(frozen=True, slots=True)
class Answered:
    """A stream thread's answer to the question of that number."""

    number: int
    answer: Page | Refusal


def readiness(pipe: Connection) -> Callable[[float | None], object]:
    """Return a function that waits, for up to so many ms, until there is something to read or the pipe is closed.

    Only one thread may call it at a time.
    """
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return poller.poll
