"""Answers queries in a stream thread, between two records or while it waits for brokers."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from riverrun.worker.queries.pipe import Answered, readiness
from riverrun.worker.queries.queries import KeyQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from riverrun.worker.queries.pipe import Ask
    from riverrun.worker.queries.queries import Page, Question, Refusal


class QueryServer:
    """Answers queries in one of two threads; only one of them at a time may touch the pipe and the stores.

    Usually that is the processing thread. While it waits for brokers and touches no store, a thread that only answers takes its
    place. So a query is answered between two records, or at once.

    Args:
        pipe: To the supervisor (`QueryClient`).
        answer: Answers a question; called by the thread that may touch the stores.
    """

    def __init__(self, pipe: Connection, answer: Callable[[Question], Page | Refusal]) -> None:
        self._pipe = pipe
        self._answer = answer
        self._postponed: deque[Ask] = deque()
        self._is_asked = readiness(pipe)
        self._stores = threading.Lock()
        self._stores.acquire()
        threading.Thread(target=self._answer_alone, name="answers", daemon=True).start()

    def attend(self) -> None:
        """Answer pending questions. Takes a microsecond if there are none.

        Raises:
            EOFError: If the supervisor has ended.
        """
        while self._postponed:
            self._reply(self._postponed.popleft())
        if self._is_asked(0):
            self._take_in()

    def pause(self) -> None:
        """Answer questions that look up a key; others wait until stores are at rest. Raises nothing: `attend` does."""
        if self._is_asked(0):
            with suppress(EOFError, OSError):
                self._take_in(is_at_rest=False)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let the other thread answer during the body, in which the processing thread does not touch the stores."""
        self._stores.release()
        try:
            yield
        finally:
            self._stores.acquire()

    def _answer_alone(self) -> None:
        """Wait until there is something to read, then for the stores. Ends with the pipe."""
        wait = readiness(self._pipe)
        with suppress(EOFError, OSError):
            while wait(None):
                with self._stores:
                    self.attend()

    def _take_in(self, *, is_at_rest: bool = True) -> None:
        while self._is_asked(0):
            ask: Ask = self._pipe.recv()
            if is_at_rest or isinstance(ask.question.query, KeyQuery):
                self._reply(ask)
            else:
                self._postponed.append(ask)

    def _reply(self, ask: Ask) -> None:
        self._pipe.send(Answered(ask.number, self._answer(ask.question)))
