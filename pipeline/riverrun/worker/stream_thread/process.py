"""Runs a stream thread in a separate process, and obeys its instance.

Threads of Python do not run in parallel, so a thread of Kafka Streams (`StreamThread`) is a process here. If the instance
dies, the pipe between the two breaks, and the process closes its tasks and ends.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from riverrun.errors import RecordError, StreamsError
from riverrun.hosting.process import LogStyle, collect_rarely, start_logging
from riverrun.worker.answers import QueryServer
from riverrun.worker.queries import readiness
from riverrun.worker.stream_thread.protocol import (
    Alive,
    Assign,
    Beware,
    Command,
    Failed,
    Learn,
    Pause,
    Stop,
    StreamJob,
)
from riverrun.worker.stream_thread.stream_thread import StreamThread
from riverrun.worker.stuck_records import LOOK, RecordWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from riverrun.hosting.application import Application
    from riverrun.runtime.stuck_records import StuckRecord
    from riverrun.topology.topology import Topology
    from riverrun.worker.queries import AnswerPage, Refusal, StoreQuery
    from riverrun.worker.stream_thread.protocol import ThreadReport

log = logging.getLogger(__name__)

# The answering thread waits for the interpreter for so long. A short interval has no cost without queries.
_SWITCH_SECONDS = 0.0002
_PR_SET_PDEATHSIG = 1
REPORT_SECONDS = 1.0
"""Interval of reports when nothing changes."""
_LIFE_SECONDS = 5.0
"""Interval of `Alive` while the process waits for brokers and does not report."""


def run_stream_thread(
    pipe: Connection, queries: Connection, job: StreamJob, build: Callable[[StreamJob], Topology], logs: LogStyle
) -> None:
    """Run the process of a stream thread from its beginning to its end."""
    _end_with_instance()
    start_logging(logs, job.config.logging)
    collect_rarely()
    sys.setswitchinterval(_SWITCH_SECONDS)
    obey_instance(pipe, queries, job, build)


def obey_instance(
    pipe: Connection, queries: Connection, job: StreamJob, build: Callable[[StreamJob], Topology]
) -> None:
    """Run a stream thread until its instance ends it, and report the error that it cannot handle."""
    try:
        _CommandLoop(job.application(build(job)), pipe, queries).run()
    except StreamsError as error:
        coordinates = error.coordinates if isinstance(error, RecordError) else {}
        _last_word(pipe, Failed(type(error).__name__, error.message, error.hint, coordinates))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        log.warning("the instance has ended: this stream thread ends as well")


class _CommandLoop:
    """Obeys commands between the turns of a stream thread, and reports at intervals."""

    def __init__(self, application: Application, pipe: Connection, queries: Connection) -> None:
        self._queries = QueryServer(queries, self._answer)
        self._thread = StreamThread(
            application,
            gives_up=True,
            interruptions=self,
            on_restore=lambda _changelog, _done, _expected: self._report(),
        )
        self._poll_seconds = application.config.streams.poll_ms / 1000
        self._takes_samples = application.config.streams.node_sample_interval_ms > 0
        self._pipe = pipe
        self._has_order = readiness(pipe)
        self._commands: deque[Command] = deque()
        self._is_stopping = False
        self._is_paused = False
        self._reported: tuple[object, ...] = ()
        self._next_report = 0.0
        self._said_at = time.monotonic()
        self._ordered = self._obeyed = 0
        self._is_sending = False
        self._watch = RecordWatch(
            self._thread.figures.node_of,
            lambda: time.monotonic() - self._said_at,
            self._name,
            application.config.streams.max_poll_interval_ms / 1000,
        )

    def run(self) -> None:
        signal.signal(LOOK, lambda _number, frame: self._watch.look(frame))
        if self._takes_samples:
            self._thread.figures.nodes.start()
        # The instance has reached brokers, so they are only away for now.
        self._thread.start(waits_for_brokers=True)
        try:
            while not self._is_stopping:
                waits = self._is_paused or not (self._thread.figures.active or self._thread.figures.standby)
                while (command := self._next_command(self._poll_seconds if waits else 0)) is not None:
                    self._obey(command)
                    waits = False
                if not self._is_stopping:
                    if self._is_paused:
                        self._thread.rest()
                    else:
                        self._thread.run_once()
                    self._report()
            # Commits the tasks without an owner, so that the next owner fences nobody.
            self._thread.assign(frozenset(), frozenset())
            self._report(always=True)
        finally:
            self._thread.close()

    def attend(self) -> None:
        """Between two records, answer pending questions, and show at intervals that the process is alive."""
        self._queries.attend()
        if time.monotonic() >= self._next_report:
            self._report()

    def pause(self) -> None:
        """Within a commit, answer the questions that can be answered."""
        self._queries.pause()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Answer questions while the thread waits for brokers, and end the wait when the process has to end."""
        with self._queries.away():
            yield
        self._hear()
        self._show_life()

    def _next_command(self, timeout_s: float) -> Command | None:
        if timeout_s and not self._commands:
            with self._queries.away():
                self._has_order(timeout_s * 1000)
        self._hear()
        return self._commands.popleft() if self._commands else None

    def _hear(self) -> None:
        while self._has_order(0):
            command: Command = self._pipe.recv()
            self._commands.append(command)
            # At once, not when it is obeyed: the thread may be waiting for brokers, and obey nothing until then.
            if isinstance(command, Stop):
                self._thread.stop_waiting()

    def _show_life(self) -> None:
        # A wait for brokers sends no report, and silent processes are killed.
        now = time.monotonic()
        if now - self._said_at > _LIFE_SECONDS:
            self._said_at = now
            self._send(Alive())

    def _answer(self, question: StoreQuery) -> AnswerPage | Refusal:
        return self._thread.answer(question)

    def _obey(self, command: Command) -> None:
        match command:
            case Assign(active, standby, number, topics):
                if topics:
                    self._thread.read_topics(topics)
                self._thread.assign(active, standby)
                self._ordered = number
                self._next_report = 0.0
            case Pause(paused):
                # Kafka Streams keeps committing while it is paused. Here an open transaction would hold up readers.
                if paused:
                    self._thread.commit_all()
                self._is_paused = paused
            case Learn(record):
                self._thread.learn(record)
            case Beware(records):
                self._watch.tried = records
            case Stop():
                self._is_stopping = True

    def _report(self, *, always: bool = False) -> None:
        figures = self._thread.figures
        seen = figures.active, figures.standby, not figures.restoring
        # An order is obeyed when its revoked tasks are closed: only then may other processes open their state.
        if not self._thread.is_closing_tasks:
            self._obeyed = self._ordered
        now = time.monotonic()
        if not always and seen == self._reported and now < self._next_report:
            return
        self._reported, self._next_report, self._said_at = seen, now + REPORT_SECONDS, now
        self._send(figures.report(self._obeyed))

    def _send(self, message: ThreadReport | Alive | StuckRecord) -> None:
        self._is_sending = True
        self._pipe.send(message)
        self._is_sending = False

    def _name(self, stuck: StuckRecord) -> None:
        # Called from a signal handler, which may have interrupted a send: a message within a message would break the pipe.
        if not self._is_sending:
            self._send(stuck)


def _end_with_instance() -> None:
    # The kernel kills this process when its instance dies. A busy process would otherwise keep the local state locked
    # against the next instance until it checks the pipe again. On other systems that happens.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _last_word(pipe: Connection, failed: Failed) -> None:
    try:
        pipe.send(failed)
    except (BrokenPipeError, ConnectionResetError):
        log.warning("the instance has ended and gets no report of this failure: %s", failed.message)
