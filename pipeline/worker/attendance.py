"""How a stream process hears its supervisor and answers questions, whatever it is at."""

from __future__ import annotations

import select
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pipeline.worker.protocol import Answered, Ask
from pipeline.worker.queries import KeyQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from pipeline.worker.protocol import Command
    from pipeline.worker.queries import Page, Question, Refusal


class Attendance:
    """Two threads of a stream process, of which one at a time has the floor, and with it the pipe and the stores.

    That is the thread that processes or, while it waits for brokers and touches no store, one that does nothing but answer.
    So a question is answered between two records, or at once. Commands are kept for the thread that processes.

    Args:
        pipe: To the supervisor.
        answer: Answers a question; called by whoever has the floor.
        on_command: Told of a command as soon as it has come, maybe long before it is taken; called by whoever has the floor.
    """

    def __init__(
        self, pipe: Connection, answer: Callable[[Question], Page | Refusal], on_command: Callable[[Command], None]
    ) -> None:
        """Whoever makes it has the floor."""
        self._pipe = pipe
        self._answer = answer
        self._on_command = on_command
        self._commands: deque[Command] = deque()
        self._postponed: deque[Ask] = deque()
        poller = select.poll()
        poller.register(pipe.fileno(), select.POLLIN)
        self._is_spoken_to = poller.poll
        self._floor = threading.Lock()
        self._floor.acquire()
        self._is_gone = False
        threading.Thread(target=self._answer_alone, name="answers", daemon=True).start()

    def attend(self) -> None:
        """Answer what was asked meanwhile. That nothing was costs a microsecond."""
        if self._postponed or self._is_spoken_to(0):
            self._take_in(0)

    def pause(self) -> None:
        """Answer those questions that look up a key; others wait until stores are at rest. Raises nothing: `attend` does."""
        if self._is_spoken_to(0):
            with suppress(EOFError, OSError):
                self._take_in(0, is_at_rest=False)

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

    def _take_in(self, timeout_s: float, *, is_at_rest: bool = True) -> None:
        if self._is_gone:
            message = "the supervisor is gone"
            raise EOFError(message)
        while is_at_rest and self._postponed:
            self._reply(self._postponed.popleft())
        is_said = self._pipe.poll(timeout_s)
        while is_said:
            message = self._pipe.recv()
            if not isinstance(message, Ask):
                self._commands.append(message)
                self._on_command(message)
            elif is_at_rest or isinstance(message.question.query, KeyQuery):
                self._reply(message)
            else:
                self._postponed.append(message)
            is_said = self._pipe.poll(0)

    def _reply(self, ask: Ask) -> None:
        self._pipe.send(Answered(ask.number, self._answer(ask.question)))
