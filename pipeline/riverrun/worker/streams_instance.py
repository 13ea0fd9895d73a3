"""One instance of an application: a member of its group, with the stream threads that run its share of the tasks."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.config.checks import check_number
from riverrun.config.streams import MOST_THREADS
from riverrun.errors import ConfigError, StreamsError
from riverrun.hosting.added_partitions import note_unmatched
from riverrun.hosting.alone import await_no_sole_host
from riverrun.hosting.barrier_listener import BarrierListener
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.inputs import warn_of_narrow_times
from riverrun.hosting.local_state import ObsoleteState, locked
from riverrun.hosting.process import SystemClock
from riverrun.hosting.state_schemas import StateSchemas
from riverrun.kafka.admin import Admin
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.producer import IdempotentProducer
from riverrun.worker.group.client import GroupClient
from riverrun.worker.group.protocol import AssignmentInfo, task_ids
from riverrun.worker.node_sampling import signalled
from riverrun.worker.queries import Refusal, RefusalReason
from riverrun.worker.states import TRANSITIONS, InstanceStatus, RegularSummary, WorkerState, WorkerSummary, moved
from riverrun.worker.stream_thread.protocol import Pause, StreamJob
from riverrun.worker.stream_threads import StreamThreadProcess, StreamThreads, UncaughtExceptionHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.runtime.context import FailedRecord
    from riverrun.runtime.layout import Layout
    from riverrun.topology.topology import Topology
    from riverrun.worker.queries import AnswerPage, StoreQuery
    from riverrun.worker.stream_thread.protocol import ThreadReport

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.1
# A stream thread that hangs in a record never ends by itself.
_STOP_SECONDS = 60.0
# If no broker answers, waiting would not help: uncommitted records are processed again in any case.
_STOP_ALONE_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""Default timeout of queries."""


class StreamsInstance:
    """Runs one instance until it is stopped. All instances with one application id share its tasks.

    Args:
        build: Builds the topology within a stream thread's process.
        server: `host:port` where this instance answers queries; empty if it does not.
        uncaught_exception_handler: Returns the reaction to a failed stream thread, by the names of
            `uncaught.exception.handler`; defaults to that setting.
        complete: Completes a switch of versions whose coordinator has died; None to leave that to others.
    """

    def __init__(
        self,
        application: Application,
        build: Callable[[StreamJob], Topology],
        *,
        server: str = "",
        on_state: Callable[[WorkerState], None] = lambda _state: None,
        uncaught_exception_handler: Callable[[StreamsError], str] | None = None,
        complete: Callable[[], None] | None = None,
    ) -> None:
        self.state = WorkerState.CREATED
        application = application.lasting()
        self._connected = ConnectedApplication(application, Admin(application.kafka))
        self._streams = application.config.streams
        self._on_state = on_state
        self._processes = StreamThreads(_job(application), build)
        self._listener = BarrierListener(
            self._connected.admin, application.config.name, application.version, self._processes.inform, complete
        )
        self._wanted_threads = self._streams.num_stream_threads
        self._group = GroupClient(
            self._connected, self._processes, server=server, capacity=lambda: self._wanted_threads
        )
        self._ends = threading.Event()
        self._is_paused = False
        self._exception_handler = UncaughtExceptionHandler(
            uncaught_exception_handler or (lambda _error: self._streams.uncaught_exception_handler),
            self._processes.tries,
        )
        self._unsettled_at = time.monotonic()
        self._recovery_s: float | None = None
        self._regular_summary = RegularSummary(application.id, self._streams.log_summary_interval_ms)
        self._obsolete = ObsoleteState(application.directory, self._streams.state_cleanup_delay_ms, SystemClock())

    def stop(self) -> None:
        """Ask the instance to commit, hand over its tasks and leave the group. May be called from a signal handler."""
        self._ends.set()

    def scale(self, threads: int) -> None:
        """Set the number of stream threads (`num.stream.threads`); tasks move without stopping those that stay."""
        check_number("threads", threads, 1, MOST_THREADS)
        self._wanted_threads = threads

    def pause(self, *, paused: bool = True) -> None:
        """Pause or resume processing; tasks and standbys are kept."""
        self._is_paused = paused
        for stream in self._processes.all:
            stream.tell(Pause(paused))

    def status(self) -> InstanceStatus:
        streams = self._processes.all
        active = frozenset(task for stream in streams for task in stream.report.active)
        standby = frozenset(task for stream in streams for task in stream.report.standby)
        return InstanceStatus(
            state=self.state,
            active=active,
            standby=standby,
            lags=self._processes.lags(),
            restoring=self._processes.restoring(),
            threads=len(streams),
            paused=self._is_paused,
            summary=self.summary(),
            recovery_s=self._recovery_s,
            holding=self._listener.pauses.barrier,
            held_s=self._listener.pauses.last_s,
            is_member=self._group.is_counted,
            stuck={stream.number: stream.stuck for stream in streams if stream.stuck is not None},
        )

    @property
    def id(self) -> str:
        """Return the id of this instance, which survives restarts."""
        return self._group.id

    @property
    def server(self) -> str:
        """Return `host:port` where this instance answers queries; empty if it does not."""
        return self._group.server

    @property
    def application(self) -> Application:
        """Return the application, with the topics of the last assignment."""
        return self._group.connected.application

    @property
    def live_version(self) -> str | None:
        """Return the live version by the last record of the control topic; None if the application was never released."""
        latest = self._listener.latest
        return None if latest is None else latest.live

    @property
    def layout(self) -> Layout | None:
        """Return the existing tasks; None before the topics have been looked up."""
        return self._group.layout

    def reports(self) -> Mapping[int, ThreadReport]:
        return {stream.number: stream.report for stream in self._processes.all}

    def failed(self) -> tuple[FailedRecord, ...]:
        """Return the last failures: of records that were skipped, and of stream threads that have ended."""
        return self._processes.failed()

    def ask(self, question: StoreQuery, timeout_s: float = ANSWER_SECONDS) -> AnswerPage | Refusal:
        """Answer a question about a store, if its task runs here. May be called from any thread."""
        stream = self._processes.holder(question.task, standby=question.allows_standby)
        if stream is None:
            assignment = self._group.assignment
            if assignment is not None and question.task in task_ids(assignment.active):
                return Refusal(RefusalReason.RESTORING, f"Task {question.task} is being taken over")
            return Refusal(RefusalReason.NOT_HERE, f"Task {question.task} does not run here")
        return stream.queries.ask(question, timeout_s)

    def summary(self) -> WorkerSummary:
        """Return the work of all stream threads, including those that have ended."""
        return self._processes.summary()

    @property
    def assignment(self) -> AssignmentInfo | None:
        """Return the last assignment, which names the place of every task; None before the first."""
        return self._group.assignment

    def run(self) -> WorkerSummary:
        directory, interval_ms = self._connected.application.directory, self._streams.node_sample_interval_ms
        with (
            locked(directory, group_writes=self._streams.allow_os_group_write_access),
            signalled(interval_ms, lambda: [stream.process for stream in list(self._processes.all)]),
        ):
            return self._run()

    def _run(self) -> WorkerSummary:
        self._move_to(WorkerState.REBALANCING)
        try:
            _check_properties(self._connected.application)
            await_no_sole_host(self._connected.admin, self._connected.application.config, self._connected.id)
            self._group.prepare()
            note_unmatched(self._group.connected)
            StateSchemas(self._group.connected).check()
            warn_of_narrow_times(self._group.connected)
            try:
                self._listener.start()
                # Before joining: processes load while this one waits for its first assignment.
                self._start_missing()
                self._group.join()
                while not self._ends.is_set():
                    self._turn()
                self._move_to(WorkerState.PENDING_SHUTDOWN)
            finally:
                self._stop_streams(self._processes.all)
                self._listener.close()
                # Last: once this instance has left, others take over its tasks, which must be committed by then.
                self._group.leave()
        except BaseException:
            self.state = WorkerState.ERROR
            self._on_state(self.state)
            raise
        self._move_to(WorkerState.NOT_RUNNING)
        return self.summary()

    def _turn(self) -> None:
        self._scale()
        self._processes.listen(_TURN_SECONDS)
        if self._listener.latest is not None:
            # Processes that have just started have missed it; the others ignore what they know.
            self._processes.inform(self._listener.latest)
        self._group.note_positions()
        self._group.receive()
        if self._group.is_told_to_end:
            self._ends.set()
        for stream in self._processes.dead():
            self._handle_thread_death(stream)
        self._processes.replace_silent()
        if self._processes.take_losses():
            self._group.note_losses()
        assignment = self._group.assignment
        if assignment is None:
            return
        # Not after another owner has taken over a task: this assignment would claim it back.
        if self._group.is_current:
            active, standby = task_ids(assignment.active), task_ids(assignment.standby)
            self._processes.distribute(active, standby, assignment.topics, self._group.stateful)
        self._group.request_rebalance_if_needed(assignment)
        self._show_state(assignment)
        if self.state is WorkerState.RUNNING:
            self._clean_up(assignment)
        self._regular_summary.log_if_due(self._processes.summary)

    def _scale(self) -> None:
        too_many = len(self._processes.all) - self._wanted_threads
        if too_many > 0:
            self._stop_streams(self._processes.all[-too_many:])
        has_started = self._start_missing()
        if has_started and self._is_paused:
            self.pause()
        if has_started or too_many > 0:
            self._group.request_rebalance()

    def _start_missing(self) -> bool:
        """Start stream threads up to the wanted number. Returns whether any was started."""
        # `scale` may change the number meanwhile, from another thread.
        before = len(self._processes.all)
        while len(self._processes.all) < self._wanted_threads and not self._ends.is_set() and self._processes.start():
            continue
        return len(self._processes.all) > before

    def _stop_streams(self, streams: list[StreamThreadProcess]) -> None:
        is_alone = threading.Event()
        asked = self._connected.admin, is_alone
        # In a thread: a request to absent brokers would use up the time in which processes may commit.
        threading.Thread(target=_look_for_brokers, args=asked, name="look-for-brokers", daemon=True).start()
        stopped = self._processes.stop(streams, lambda: _STOP_ALONE_SECONDS if is_alone.is_set() else _STOP_SECONDS)
        failed = next((stream.failure for stream in stopped if stream.failure is not None), None)
        if failed is not None:
            # Not raised: the next owners of its tasks continue from the last commits.
            log.warning("a stream thread failed while it was ending: %s", failed.message)

    def _handle_thread_death(self, stream: StreamThreadProcess) -> None:
        end = self._exception_handler.handle(stream)
        if end is None:
            return
        if end.of_all:
            self._group.end_application()
        raise end.error

    def _show_state(self, assignment: AssignmentInfo) -> None:
        streams = self._processes.all
        running = frozenset(
            task for stream in streams for task in stream.report.active - stream.report.restoring.keys()
        )
        is_settled = self._group.is_counted and task_ids(assignment.active) == running
        wanted = WorkerState.RUNNING if is_settled else WorkerState.REBALANCING
        if wanted is not self.state and wanted in TRANSITIONS[self.state]:
            now = time.monotonic()
            if wanted is WorkerState.RUNNING:
                self._recovery_s = now - self._unsettled_at
                message = "all %d tasks of this instance run, %.1f s after its tasks changed"
                log.info(message, len(running), self._recovery_s)
            self._unsettled_at = now
            self._move_to(wanted)

    def _clean_up(self, assignment: AssignmentInfo) -> None:
        """Delete local state of tasks that moved away long ago, and no longer announce it."""
        kept = task_ids(assignment.active) | task_ids(assignment.standby) | self._processes.held()
        self._group.forget_positions(self._obsolete.delete_if_due(kept))

    def _move_to(self, state: WorkerState) -> None:
        self.state = moved(self.state, state)
        self._on_state(state)


def _check_properties(application: Application) -> None:
    """Refuse client properties that are incomplete or unknown."""
    # Before joining: otherwise other instances would release tasks for one that cannot run them.
    streams = application.config.streams
    for tag in streams.rack_aware_assignment_tags:
        if not streams.client_tag.get(tag):
            message = f"rack.aware.assignment.tags names {tag}, but there is no client.tag.{tag}"
            raise ConfigError(message, hint="Set it on each instance, since copies are placed by its value.")
    if streams.consumer:
        # librdkafka checks properties when a client is created.
        RecordConsumer(application.kafka, streams.consumer).close()
    if streams.producer:
        IdempotentProducer(application.kafka, streams.producer).close()


def _look_for_brokers(admin: Admin, is_alone: threading.Event) -> None:
    if not admin.is_answered(_STOP_ALONE_SECONDS - _TURN_SECONDS):
        is_alone.set()


def _job(application: Application) -> StreamJob:
    config = replace(application.config, streams=application.config.streams.without_secrets())
    return replace(StreamJob.of(application), config=config)
