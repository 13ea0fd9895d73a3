"""How a stream process hears its supervisor and answers questions, whatever it is at."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.worker.protocol import Answered, Ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from pipeline.worker.protocol import Command
    from pipeline.worker.queries import Page, Question, Refusal


class Attendance:
    """Two threads of a stream process, of which one at a time has the floor, and with it the pipe and the stores.

    That is the thread that processes or, while it waits for brokers and touches no store, one that does nothing but answer.
    So a question is answered between the turns of two tasks, or at once. Commands are kept for the thread that processes.

    Args:
        pipe: To the supervisor.
        answer: Answers a question; called by whoever has the floor.
    """

    def __init__(self, pipe: Connection, answer: Callable[[Question], Page | Refusal]) -> None:
        """Whoever makes it has the floor."""
        self._pipe = pipe
        self._answer = answer
        self._commands: deque[Command] = deque()
        self._floor = threading.Lock()
        self._floor.acquire()
        self._is_gone = False
        threading.Thread(target=self._answer_alone, name="answers", daemon=True).start()

    def attend(self) -> None:
        """Answer what was asked meanwhile."""
        self._take_in(0)

    def next_command(self, timeout_s: float = 0) -> Command | None:
        """The next command, if there is one or comes in time.

        Raises:
            EOFError: If the supervisor is gone.
        """
        if not self._commands:
            self._take_in(timeout_s)
        return self._commands.popleft() if self._commands else None

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within this, stores are not touched by the thread that processes: questions are answered by the other one."""
        self._floor.release()
        try:
            yield
        finally:
            self._floor.acquire()

    def _answer_alone(self) -> None:
        """The other thread: it waits until something is there to read, and then for the floor."""
        while not self._is_gone:
            try:
                self._pipe.poll(None)
                with self._floor:
                    self._take_in(0)
            except (EOFError, OSError):
                self._is_gone = True

    def _take_in(self, timeout_s: float) -> None:
        if self._is_gone:
            message = "the supervisor is gone"
            raise EOFError(message)
        is_said = self._pipe.poll(timeout_s)
        while is_said:
            message = self._pipe.recv()
            if isinstance(message, Ask):
                self._pipe.send(Answered(message.number, self._answer(message.question)))
            else:
                self._commands.append(message)
            is_said = self._pipe.poll(0)
