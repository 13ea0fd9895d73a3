"""A stream process: a `Worker` in a process of its own, that does what its supervisor tells it.

Python's threads are no parallelism: what is a stream thread in Kafka Streams is a process here. If the supervisor dies, the
pipe between the two breaks, and the process lets go of its tasks and ends.
"""

from __future__ import annotations

import logging
import signal
import time
from typing import TYPE_CHECKING

from pipeline.errors import StreamsError, TaskMigratedError
from pipeline.hosting.application import Application
from pipeline.worker.protocol import Command, Failed, Pause, Report, Stop, StreamJob, Take
from pipeline.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from pipeline.topology.topology import Topology

log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0
"""How often it reports when nothing changes."""


def run_stream_process(job: StreamJob, build: Callable[[StreamJob], Topology], pipe: Connection) -> None:
    """What the process does from its beginning to its end.

    Args:
        job: The application.
        build: Builds its topology in this process.
        pipe: Commands come in, reports go out.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole process group; the supervisor says what follows
    try:
        application = Application(job.config, job.version, build(job), job.kafka, job.state_directory, job.published)
        _Obedience(Worker(application), pipe).run()
    except StreamsError as error:
        _last_word(pipe, Failed(type(error).__name__, error.message, error.hint))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        log.warning("the supervisor is gone: the stream process ends")


class _Obedience:
    """The loop: commands, a turn of the worker, a report now and then."""

    def __init__(self, worker: Worker, pipe: Connection) -> None:
        self._worker = worker
        self._pipe = pipe
        self._is_stopping = False
        self._is_paused = False
        self._reported: tuple[object, object] = (None, None)
        self._next_report = 0.0
        self._obeyed = 0

    def run(self) -> None:
        self._worker.start()
        try:
            while not self._is_stopping:
                waits = self._is_paused or self._worker.has_no_tasks
                while self._pipe.poll(self._worker.poll_seconds if waits else 0):
                    self._obey(self._pipe.recv())
                    waits = False
                if not self._is_stopping:
                    self._turn()
                    self._report()
            self._worker.commit_all()
        finally:
            self._worker.close()
        self._report(always=True)

    def _turn(self) -> None:
        if self._is_paused:
            return
        try:
            self._worker.run_once()
        except TaskMigratedError as error:
            log.warning("a task has gone to another owner: %s", error)
            self._worker.give_up_migrated()

    def _obey(self, command: Command) -> None:
        match command:
            case Take(active, standby, number):
                self._worker.take(active, standby)
                self._obeyed = number
                self._next_report = 0.0
            case Pause(paused):
                self._is_paused = paused
            case Stop():
                self._is_stopping = True

    def _report(self, *, always: bool = False) -> None:
        holds = self._worker.active, self._worker.standby
        now = time.monotonic()
        if not always and holds == self._reported and now < self._next_report:
            return
        self._reported, self._next_report = holds, now + REPORT_SECONDS
        summary = self._worker.summary()
        self._pipe.send(
            Report(
                *holds,
                self._worker.positions(),
                self._worker.lags(),
                summary.processed,
                summary.commits,
                summary.dropped,
                self._obeyed,
            )
        )


def _last_word(pipe: Connection, failed: Failed) -> None:
    try:
        pipe.send(failed)
    except (BrokenPipeError, ConnectionResetError):
        log.warning("nobody is left to hear of it: %s", failed.message)
