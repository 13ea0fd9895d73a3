"""Messages of the pipe through which a stream thread is asked, and a way to wait for them."""

from __future__ import annotations

import select
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from pipeline.worker.queries.queries import Page, Question, Refusal


@dataclass(frozen=True, slots=True)
class Ask:
    """To a stream thread: answer this; the number comes back with the answer."""

    number: int
    question: Question


@dataclass(frozen=True, slots=True)
class Answered:
    """From a stream thread: the answer to the question of that number."""

    number: int
    answer: Page | Refusal


def readiness(pipe: Connection) -> Callable[[float | None], object]:
    """Return a function that waits, for so many ms, until there is something to read or the pipe is closed.

    It is for one thread at a time.
    """
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return poller.poll
