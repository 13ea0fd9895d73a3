"""The stream threads of one instance, each a process: starts, commands, monitors and replaces them."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import time
from collections import Counter, defaultdict, deque
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

import riverrun.errors
from riverrun.config.streams import UNCAUGHT_EXCEPTION_RESPONSES
from riverrun.errors import ConfigError, ProcessingError
from riverrun.hosting.process import SystemClock, current_style
from riverrun.runtime.context import GLOBAL_TASK, FailedRecord
from riverrun.runtime.failures import user_code
from riverrun.runtime.stuck_records import StuckRecord
from riverrun.worker.group.assignment import spread
from riverrun.worker.group.protocol import RUNNING
from riverrun.worker.queries import QueryClient
from riverrun.worker.spawning import start_child
from riverrun.worker.states import WorkerSummary, summed
from riverrun.worker.stream_thread.process import run_stream_thread
from riverrun.worker.stream_thread.protocol import (
    Alive,
    Assign,
    Beware,
    Command,
    Failed,
    Learn,
    Stop,
    StreamJob,
    ThreadReport,
)
from riverrun.worker.stuck_records import LOOK, TRIES, Tries, named_after_s

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping
    from multiprocessing.connection import Connection

    from riverrun.errors import StreamsError
    from riverrun.hosting.release import Release
    from riverrun.records import TaskId
    from riverrun.topology.topology import Topology
    from riverrun.worker.spawning import ChildProcess

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_KEPT_FAILURES = 200
_LONGEST_MESSAGE = 1000
_NOTHING = ThreadReport(
    active=frozenset(), standby=frozenset(), positions={}, lags={}, summary=WorkerSummary(), obeyed=0
)


@dataclass(slots=True)
class StreamThreadProcess:
    """One process, from the instance's view.

    Args:
        number: Its number within the instance, from 1.
        orders: The last order, after earlier ones that it may still be carrying out.
        heard_at: When its last message arrived (monotonic seconds).
        lost: Tasks that another owner has taken over from it.
        is_silent: Whether it was killed because it was silent for too long.
    """

    number: int
    process: ChildProcess
    pipe: Connection
    queries: QueryClient
    orders: list[Assign] = field(default_factory=lambda: [Assign(frozenset(), frozenset(), 0)])
    report: ThreadReport = _NOTHING
    heard_at: float = field(default_factory=time.monotonic)
    failure: Failed | None = None
    lost: frozenset[TaskId] = frozenset()
    is_silent: bool = False
    stuck: StuckRecord | None = None
    _learnt: Release | None = None
    _speaking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def held(self) -> frozenset[TaskId]:
        """Return the tasks that it has open, or may have open."""
        return self.report.standby.union(self.active, *(order.standby for order in self.orders))

    @property
    def active(self) -> frozenset[TaskId]:
        return self.report.active.union(*(order.active for order in self.orders))

    def hear(self, message: ThreadReport | Alive | Failed | StuckRecord) -> None:
        # No sign of life: a signal handler sends it while the thread hangs.
        if isinstance(message, StuckRecord):
            self._note_stuck(message)
            return
        self.heard_at = time.monotonic()
        match message:
            case Failed():
                self.failure = message
            case ThreadReport():
                self._note(message)

    def _note_stuck(self, message: StuckRecord) -> None:
        if self.stuck is None or not self.stuck.is_at(message):
            text = "stream thread %d has been in one record for %.0f s, and its tasks wait: %s"
            log.warning(text, self.number, message.seconds, message, extra=dict(message.coordinates))
        self.stuck = message

    def _note(self, message: ThreadReport) -> None:
        if self.stuck is not None:
            log.warning("stream thread %d continues: %s", self.number, self.stuck)
            self.stuck = None
        self.report = message
        last = self.orders[-1]
        if message.obeyed < last.number:
            self.orders = [order for order in self.orders if order.number > message.obeyed]
        elif message.active != last.active:
            # It has carried out the order, and still has fewer tasks: another owner has taken them over.
            self.lost |= last.active - message.active
            self.orders = [replace(last, active=message.active, standby=message.standby)]
        else:
            self.orders = [last]

    def order(self, active: frozenset[TaskId], standby: frozenset[TaskId], topics: Mapping[str, int]) -> None:
        """Send it an order, unless it has that order already."""
        last = self.orders[-1]
        if (active, standby, topics) != (last.active, last.standby, last.topics):
            self.orders.append(Assign(active, standby, last.number + 1, topics))
            self.tell(self.orders[-1])

    def inform(self, record: Release) -> None:
        """Send it a record of the control topic, unless it has that record already. May be called from any thread."""
        with self._speaking:
            if self._learnt is record:
                return
            self._learnt = record
        # Outside the lock, so in any order: the receiver knows which of two records is newer.
        self.tell(Learn(record))

    def tell(self, command: Command) -> None:
        """Send a command; ignored if the process has ended. May be called from any thread."""
        try:
            with self._speaking:
                self.pipe.send(command)
        except (BrokenPipeError, ConnectionResetError, OSError):
            # `dead` notices the end of the process and decides what follows.
            return


class StreamThreads:
    """The processes of all stream threads of an instance."""

    def __init__(self, job: StreamJob, build: Callable[[StreamJob], Topology]) -> None:
        self._job = job
        self._build = build
        self._next_number = 1
        self._next_attempt = float("-inf")
        self._past = WorkerSummary()
        self._failed: deque[FailedRecord] = deque(maxlen=_KEPT_FAILURES)
        self.tries = Tries(job.config.streams.max_poll_interval_ms / 1000)
        self.all: list[StreamThreadProcess] = []

    def start(self) -> bool:
        """Start another process. Returns False if the machine lacks resources for it (files, processes, memory) now."""
        if time.monotonic() < self._next_attempt:
            return False
        try:
            self.all.append(self._started())
        except OSError as error:
            what = "cannot start stream thread %d, trying again in %.0f s: %s"
            log.warning(what, self._next_number, _RETRY_SECONDS, error)
            self._next_attempt = time.monotonic() + _RETRY_SECONDS
            return False
        self._next_number += 1
        self._warn([self.all[-1]])
        return True

    def _warn(self, streams: Iterable[StreamThreadProcess]) -> None:
        if records := self.tries.enough():
            for stream in streams:
                stream.tell(Beware(records))

    def _started(self) -> StreamThreadProcess:
        with ExitStack() as pipes:
            ours, theirs = map(pipes.enter_context, multiprocessing.Pipe())
            our_line, their_line = map(pipes.enter_context, multiprocessing.Pipe())
            process = start_child(
                f"StreamThread-{self._next_number}",
                run_stream_thread,
                (theirs, their_line),
                (self._job, self._build, current_style()),
            )
            pipes.pop_all()
        # With a copy left open here, the death of the process would never be read as the end of its pipe.
        theirs.close()
        their_line.close()
        queries = QueryClient(our_line, f"Stream thread {self._next_number}")
        return StreamThreadProcess(self._next_number, process, ours, queries)

    def inform(self, record: Release) -> None:
        """Send each process a record of the control topic, unless it has that record already. May be called from any thread."""
        for stream in list(self.all):
            stream.inform(record)

    def failed(self) -> tuple[FailedRecord, ...]:
        """Return the last failures: of skipped records, and of processes that have ended. May be called from any thread."""
        return tuple(self._failed)

    def _note(self, failed: Iterable[FailedRecord]) -> None:
        """Keep failures; each thread fills the global tables, and reports theirs."""
        known = {(each.topic, each.partition, each.offset) for each in self._failed if each.task == str(GLOBAL_TASK)}
        self._failed.extend(
            each
            for each in failed
            if each.task != str(GLOBAL_TASK) or (each.topic, each.partition, each.offset) not in known
        )

    def listen(self, timeout_s: float) -> bool:
        """Wait for reports. Returns whether there were any."""
        by_pipe = {stream.pipe: stream for stream in self.all}
        heard = wait(list(by_pipe), timeout_s)
        for pipe in heard:
            stream = by_pipe[pipe]  # type: ignore[index] # they are the connections of the call
            try:
                while stream.pipe.poll():
                    message = stream.pipe.recv()
                    stream.hear(message)
                    if isinstance(message, ThreadReport):
                        self._note(message.failed)
            except (EOFError, ConnectionResetError, OSError):
                # The pipe breaks a moment before the process has ended; `dead` should find it in this turn.
                stream.process.join(1.0)
        return bool(heard)

    def dead(self) -> list[StreamThreadProcess]:
        """Remove and return the processes that have ended, but keep their summaries."""
        ended = [stream for stream in self.all if not stream.process.is_alive()]
        self.all = [stream for stream in self.all if stream.process.is_alive()]
        for stream in ended:
            self._past = summed((self._past, stream.report.summary))
            stream.pipe.close()
            stream.queries.gone()
            self._failed.append(_ended(stream))
            # A process that was silent while it still loaded was in no record.
            if (stream.is_silent and stream.report is not _NOTHING) or stream.stuck is not None:
                self.tries.note(stream.stuck)
                self._warn(self.all)
        return ended

    def holder(self, task: TaskId | None, *, standby: bool) -> StreamThreadProcess | None:
        """Return the process that runs a task or, with `standby`, follows it; any process for None (global stores)."""
        streams = list(self.all)
        running = [stream for stream in streams if task is None or task in stream.report.active]
        following = [stream for stream in streams if standby and task in stream.report.standby]
        return next(iter(running + following), None)

    def restoring(self) -> Mapping[TaskId, int | None]:
        """Return the tasks that are being taken over, with the number of missing records, if known."""
        return {task: missing for stream in self.all for task, missing in stream.report.restoring.items()}

    def distribute(
        self,
        active: frozenset[TaskId],
        standby: frozenset[TaskId],
        topics: Mapping[str, int] | None = None,
        stateful: Container[int] = (),
    ) -> None:
        """Distribute tasks over processes; a task moves only after its process has closed it."""
        if not self.all:
            return
        capacity = {str(stream.number): 1 for stream in self.all}
        running = self._lags(lambda stream: stream.report.active)
        # Tasks with state first, then those without, then standbys: each kind is evened out on top of the ones before.
        with_state = {task for task in active if task.sub_topology in stateful}
        runners = spread(with_state, capacity, running, {})
        runners |= spread(active - with_state, capacity, running, Counter(runners.values()))
        following = self._lags(lambda stream: stream.report.standby)
        followers = spread(standby, capacity, following, Counter(runners.values()))
        for stream in self.all:
            # A task is withheld until the other process reports that it has closed it: only one may open its state.
            elsewhere = {task for other in self.all if other is not stream for task in other.held}
            stream.order(
                frozenset(task for task, name in runners.items() if name == str(stream.number)) - elsewhere,
                frozenset(task for task, name in followers.items() if name == str(stream.number)) - elsewhere,
                topics or {},
            )

    def replace_silent(self) -> None:
        """Kill processes that have been silent for `max.poll.interval.ms`; ask the ones silent for less where they are."""
        for stream in self.all:
            silent_s = time.monotonic() - stream.heard_at
            if silent_s > self.tries.limit_s:
                text = "replacing stream thread %d, which has not reported for %.0f s: %s"
                log.warning(text, stream.number, silent_s, stream.stuck or "it does not report where it is")
                stream.is_silent = True
                stream.process.kill()
            elif silent_s > named_after_s(self.tries.limit_s):
                stream.process.signal(LOOK)

    def stop(self, streams: Iterable[StreamThreadProcess], timeout_s: Callable[[], float]) -> list[StreamThreadProcess]:
        """Let processes commit and end; kill those that do not end in time (`timeout_s`, called repeatedly)."""
        stopping = list(streams)
        for stream in stopping:
            stream.tell(Stop())
            # It is still loading: it has nothing to commit, and would read the command only afterwards.
            if stream.report is _NOTHING:
                stream.process.kill()
                stream.process.join()
        begun = time.monotonic()
        while any(stream.process.is_alive() for stream in stopping) and time.monotonic() < begun + timeout_s():
            self.listen(0.1)
        for stream in stopping:
            if stream.process.is_alive():
                log.warning("killing stream thread %d: it has not ended within %.0f s", stream.number, timeout_s())
                stream.process.kill()
            stream.process.join()
            stream.queries.gone()
            self._past = summed((self._past, stream.report.summary))
        self.all = [stream for stream in self.all if stream not in stopping]
        return stopping

    def summary(self) -> WorkerSummary:
        """Return the work of all processes, including those that have ended."""
        return summed((self._past, *(stream.report.summary for stream in self.all)))

    def positions(self) -> Mapping[TaskId, int]:
        """Return the sum of applied changelog offsets, per open task."""
        return {task: position for stream in self.all for task, position in stream.report.positions.items()}

    def lags(self) -> Mapping[TaskId, int]:
        """Return the number of missing records per standby."""
        return {task: lag for stream in self.all for task, lag in stream.report.lags.items()}

    def active(self) -> frozenset[TaskId]:
        """Return the tasks that any process runs, or may run."""
        return frozenset(task for stream in self.all for task in stream.active)

    def held(self) -> frozenset[TaskId]:
        """Return the tasks that any process has open, or may have open."""
        return frozenset(task for stream in self.all for task in stream.held)

    def take_losses(self) -> frozenset[TaskId]:
        """Return the tasks that other owners have taken over since the last call."""
        lost = frozenset(task for stream in self.all for task in stream.lost)
        for stream in self.all:
            stream.lost = frozenset()
        return lost

    def _lags(self, runs: Callable[[StreamThreadProcess], frozenset[TaskId]]) -> Mapping[TaskId, Mapping[str, int]]:
        # For `spread`: a process that has the task open in the other role is the second best place, as the state stays open.
        lags: defaultdict[TaskId, dict[str, int]] = defaultdict(dict)
        for stream in self.all:
            for task in stream.held:
                lags[task][str(stream.number)] = RUNNING if task in runs(stream) else 0
        return lags


def _ended(stream: StreamThreadProcess) -> FailedRecord:
    """Return the end of a process as a failure, with its record, if known."""
    found = stream.failure or Failed("", f"exit code {stream.process.exitcode}", None)
    if stream.failure is None and stream.stuck is not None:
        found = Failed("", f"no function returned for {stream.stuck.seconds:.0f} s", None, stream.stuck.coordinates)
    place = found.coordinates
    return FailedRecord(
        at_ms=SystemClock().now_ms(),
        task=str(place.get("task", "")),
        node=stream.stuck.node if stream.stuck is not None else str(place.get("node", "")),
        topic=str(place.get("topic", "")),
        partition=int(place.get("partition", -1)),
        offset=int(place.get("offset", -1)),
        key="",
        error=found.kind,
        message=found.message[:_LONGEST_MESSAGE],
        outcome=f"stream thread {stream.number} ended",
    )


# More processes than this that end within `_SECONDS` are too many.
_ALLOWED = 10
_SECONDS = 300.0


def _hint(exit_code: int | None) -> str:
    """Return a hint on what may have ended a process that reported no error."""
    log_has_more = "Its standard error output may say more. Nothing that was committed is lost."
    if exit_code is None or exit_code >= 0:
        return f"Functions of the topology, or libraries that they call, may have ended the process (os._exit). {log_has_more}"
    name = _signal_name(-exit_code)
    if name == "SIGKILL":
        return f"The process was killed, perhaps because the system or its container had no memory left. {log_has_more}"
    return f"Signal {name} ended the process: a library that functions of the topology call may have crashed. {log_has_more}"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


@dataclass(frozen=True, slots=True)
class End:
    """The decision that an instance ends.

    Args:
        of_all: Whether all instances end.
    """

    error: StreamsError
    of_all: bool


class UncaughtExceptionHandler:
    """Decides how to react when a stream thread of an instance has ended (`StreamsUncaughtExceptionHandler`).

    Args:
        handler: Returns the reaction to an error: `replace_thread`, `shutdown_client` or `shutdown_application`.
        tries: The records in which stream threads have been stuck.
    """

    def __init__(self, handler: Callable[[StreamsError], str], tries: Tries) -> None:
        self._handler = handler
        self._tries = tries
        self._at: list[float] = []

    def handle(self, stream: StreamThreadProcess) -> End | None:
        """Decide how the instance ends after the end of a process; None if another process replaces it."""
        now = time.monotonic()
        self._at = [at for at in self._at if now - at < _SECONDS] + [now]
        reason = stream.failure.message if stream.failure else f"exit code {stream.process.exitcode}"
        coordinates = dict(stream.failure.coordinates) if stream.failure else {}
        log.warning("stream thread %d ended: %s", stream.number, reason, extra=coordinates)
        # Whatever the handler says: another thread would be stuck in the same record.
        if self._tries.is_over(stream.stuck) and (stream.is_silent or stream.stuck is not None):
            return End(self._stuck(stream), of_all=False)
        error = self._error(stream, reason)
        is_few = len(self._at) <= _ALLOWED
        # A crash or a kill reports no error, so there is nothing to ask the handler about.
        if is_few and stream.failure is None:
            return None
        wanted = self._asked(error)
        if is_few and wanted == "replace_thread":
            return None
        return End(error, wanted == "shutdown_application")

    def _error(self, stream: StreamThreadProcess, reason: str) -> StreamsError:
        if stream.failure is None:
            message = f"Stream threads ended {len(self._at)} times within {_SECONDS:.0f} s, the last time with {reason}"
            return ProcessingError(message, hint=_hint(stream.process.exitcode))
        kind: type[StreamsError] = getattr(riverrun.errors, stream.failure.kind, ProcessingError)
        return kind(stream.failure.message, hint=stream.failure.hint)

    def _stuck(self, stream: StreamThreadProcess) -> StreamsError:
        if stream.failure is not None:
            return self._error(stream, "")
        tries = f"{TRIES} times, {self._tries.limit_s:.0f} s each (max.poll.interval.ms)"
        if stream.stuck is None:
            tasks = ", ".join(map(str, sorted(stream.report.active))) or "no task"
            message = f"Stream threads were silent {tries}: a function, or a library that it calls, never returns"
            return ProcessingError(
                f"{message}. The last one had {tasks}",
                hint="Such code handles no signal, so it has no place. Look for long calls of compiled code there.",
            )
        found = stream.stuck
        message = f"A function of {found.node or 'the topology'} has not returned, {tries}"
        hint = None
        if found.topic:
            hint = f"To skip this one alone: riverrun skip APP {found.topic}-{found.partition}@{found.offset}."
        return ProcessingError(message, hint=hint).at(**found.coordinates)

    def _asked(self, error: StreamsError) -> str:
        with user_code("The handler of uncaught exceptions"):
            wanted = self._handler(error)
        if wanted not in UNCAUGHT_EXCEPTION_RESPONSES:
            message = f"The handler of uncaught exceptions returns {wanted!r} for: {error.message}"
            raise ConfigError(message, hint=f"Allowed: {', '.join(UNCAUGHT_EXCEPTION_RESPONSES)}")
        return wanted
