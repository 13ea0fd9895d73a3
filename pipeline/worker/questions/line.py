"""The line on which a stream process is asked: what is said on it, and how to wait for that."""

from __future__ import annotations

import select
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from pipeline.worker.questions.queries import Page, Question, Refusal


@dataclass(frozen=True, slots=True)
class Ask:
    """To a stream process: answer this; the number comes back with the answer."""

    number: int
    question: Question


@dataclass(frozen=True, slots=True)
class Answered:
    """From a stream process: the answer to the question of that number."""

    number: int
    answer: Page | Refusal


def readiness(line: Connection) -> Callable[[float | None], object]:
    """Waits, for so many ms, until there is something to read or the line is closed. For one thread at a time."""
    poller = select.poll()
    poller.register(line.fileno(), select.POLLIN)
    return poller.poll
