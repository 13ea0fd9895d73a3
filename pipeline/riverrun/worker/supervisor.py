"""One instance of an application: a member of its group, with the stream threads that run its share of the tasks."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.config.checks import check_number
from riverrun.config.streams import MOST_THREADS
from riverrun.errors import ConfigError, StreamsError, TopicError, TopologyError
from riverrun.hosting.barrier_listener import BarrierListener
from riverrun.hosting.connected import ConnectedApplication
from riverrun.hosting.inputs import warn_of_narrow_times
from riverrun.hosting.local_state import instance_id, left_positions, locked
from riverrun.hosting.ownership import await_no_sole_host
from riverrun.hosting.process import SystemClock
from riverrun.kafka.admin import Admin
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.producer import IdempotentProducer
from riverrun.worker.group.membership import Membership
from riverrun.worker.group.protocol import Introduction, Orders, task_ids, texts
from riverrun.worker.instance_duties import ObsoleteState, RegularSummary, UncaughtExceptionHandler, WarmUps
from riverrun.worker.queries import Reason, Refusal
from riverrun.worker.states import TRANSITIONS, InstanceStatus, WorkerState, WorkerSummary, moved
from riverrun.worker.stream_thread.protocol import Pause, StreamJob
from riverrun.worker.stream_threads import StreamThreadProcess, StreamThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.hosting.application import Application
    from riverrun.records import TaskId
    from riverrun.runtime.layout import Layout
    from riverrun.topology.topology import Topology
    from riverrun.worker.queries import Page, Question
    from riverrun.worker.stream_thread.protocol import Report

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.1
_STOP_SECONDS = 60.0
"""How long stream threads may take to commit and end; one that hangs in a record never ends by itself."""
_STOP_ALONE_SECONDS = 5.0
"""That time if no broker answers: waiting would not help, and uncommitted records are processed again."""
ANSWER_SECONDS = 10.0
"""How long to wait for an answer of a stream thread."""


class Supervisor:
    """Runs one instance until it is told to stop. All instances with one application id share its tasks.

    Args:
        application: The application to run.
        build: Builds its topology within a stream thread.
        server: `host:port` where this instance answers queries; empty if nowhere.
        on_state: Called with every change of state.
        uncaught_exception_handler: Returns the reaction to a failed stream thread, by the names of
            `uncaught.exception.handler`; as configured if left out.
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
        self._connected = ConnectedApplication(application, Admin(application.kafka))
        self._streams = application.config.streams
        self._server = server
        self._on_state = on_state
        self._id = instance_id(application)
        self._process_name = uuid.uuid4().hex
        self._processes = StreamThreads(_job(application), build)
        self._listener = BarrierListener(
            self._connected.admin, application.config.name, application.version, self._processes.inform, complete
        )
        self._wanted_threads = self._streams.num_stream_threads
        self._orders: Orders | None = None
        self._layout: Layout | None = None
        self._is_current = False
        self._is_heard_of = True
        self._membership: Membership
        self._introduced: frozenset[TaskId] = frozenset()
        self._warm_ups = WarmUps(self._streams.acceptable_recovery_lag)
        self._ends = threading.Event()
        self._leaves = threading.Event()
        self._shuts_down = False
        self._is_paused = False
        self._exception_handler = UncaughtExceptionHandler(
            uncaught_exception_handler or (lambda _error: self._streams.uncaught_exception_handler)
        )
        self._unsettled_at = time.monotonic()
        self._recovery_s: float | None = None
        self._regular_summary = RegularSummary(application.id, self._streams.log_summary_interval_ms)
        self._obsolete = ObsoleteState(application.directory, self._streams.state_cleanup_delay_ms, SystemClock())
        self._positions: Mapping[TaskId, int] = {}
        self._stateful = _stateful(application)

    def stop(self) -> None:
        """Ask the instance to commit, hand over its tasks and leave the group. May be called from a signal handler."""
        self._ends.set()

    def scale(self, threads: int) -> None:
        """Set the number of stream threads (`num.stream.threads`); tasks move without stopping those that stay.

        Raises:
            ConfigError: If the number is less than one, or more than an instance may have.
        """
        check_number("threads", threads, 1, MOST_THREADS)
        self._wanted_threads = threads

    def pause(self, *, paused: bool = True) -> None:
        """Pause or resume processing; tasks and standbys are kept."""
        self._is_paused = paused
        for stream in self._processes.all:
            stream.tell(Pause(paused))

    def status(self) -> InstanceStatus:
        """Return the present status."""
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
        )

    @property
    def id(self) -> str:
        """Return the id of this instance, which survives restarts."""
        return self._id

    @property
    def server(self) -> str:
        """Return `host:port` where this instance answers queries; empty if nowhere."""
        return self._server

    @property
    def application(self) -> Application:
        """Return the application that it runs."""
        return self._connected.application

    @property
    def live_version(self) -> str | None:
        """Return the live version by the last record of the control topic; None if the application was never released."""
        latest = self._listener.latest
        return None if latest is None else latest.live

    @property
    def layout(self) -> Layout | None:
        """Return the existing tasks; None before the topics have been looked up."""
        return self._layout

    def reports(self) -> Mapping[int, Report]:
        """Return the last report of each stream thread, by its number."""
        return {stream.number: stream.report for stream in self._processes.all}

    def ask(self, question: Question, timeout_s: float = ANSWER_SECONDS) -> Page | Refusal:
        """Answer a question about a store, if its task runs here. May be called from any thread.

        Args:
            question: The question, which names the task.
            timeout_s: How long to wait for the process that has the task, s.

        Returns:
            The answer, or why there is none.
        """
        stream = self._processes.holder(question.task, standby=question.allows_standby)
        if stream is None:
            orders = self._orders
            if orders is not None and question.task in task_ids(orders.active):
                return Refusal(Reason.RESTORING, f"Task {question.task} is being taken over")
            return Refusal(Reason.NOT_HERE, f"Task {question.task} does not run here")
        return stream.queries.ask(question, timeout_s)

    def summary(self) -> WorkerSummary:
        """Return the work of all stream threads, including those that have ended."""
        return self._processes.summary()

    @property
    def orders(self) -> Orders | None:
        """Return the last orders, which name the place of every task; None before the first orders."""
        return self._orders

    def run(self) -> WorkerSummary:
        """Run until told to stop.

        Returns:
            The work of all stream threads.

        Raises:
            ConfigError: If clients do not understand a property.
            TopicError: If topics are missing or do not fit.
            TopologyError: If other instances run another topology.
            UnderWayError: If a bounded run, or a worker without a group, processes the application.
            RecordError: If a record cannot be processed, and the handler decides to fail.
            BrokerError: If brokers do not answer.
        """
        with locked(self._connected.application.directory, group_writes=self._streams.allow_os_group_write_access):
            return self._run()

    def _run(self) -> WorkerSummary:
        self._move_to(WorkerState.REBALANCING)
        try:
            _check_properties(self._connected.application)
            await_no_sole_host(self._connected)
            self._connected = self._connected.resolved()
            self._layout = self._connected.prepare()
            warn_of_narrow_times(self._connected)
            self._membership = Membership(self._connected, self._leaves, self._introduce, self._tasks_of)
            try:
                self._listener.start()
                self._start_missing()  # they load while this process joins
                self._positions = left_positions(self._connected.application)
                self._membership.start()
                while not self._ends.is_set():
                    self._turn()
                self._move_to(WorkerState.PENDING_SHUTDOWN)
            finally:
                self._stop_streams(self._processes.all)
                self._listener.close()
                self._leaves.set()  # not before: others would take over tasks with uncommitted records
                self._membership.join()
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
            self._processes.inform(self._listener.latest)  # those that have just started
        self._positions = {**self._positions, **self._processes.positions()}
        while (arrived := self._membership.heard()) is not None:
            self._obey(arrived)
        for stream in self._processes.dead():
            self._bury(stream)
        for stream in self._processes.silent(self._streams.max_poll_interval_ms / 1000):
            log.warning("stream thread %d has been silent for too long: it is replaced", stream.number)
            stream.process.kill()
        if self._processes.take_losses():  # other owners have them: the leader has to assign them
            self._is_current = False
            self._membership.rejoin()
        if self._orders is None:
            return
        if self._is_current:
            self._processes.distribute(
                task_ids(self._orders.active), task_ids(self._orders.standby), self._orders.topics, self._stateful
            )
        self._speak_up(self._orders)
        self._show_state(self._orders)
        if self.state is WorkerState.RUNNING:
            self._clean_up(self._orders)
        self._regular_summary.log_if_due(self._processes.summary)

    def _scale(self) -> None:
        too_many = len(self._processes.all) - self._wanted_threads
        if too_many > 0:
            self._stop_streams(self._processes.all[-too_many:])
        has_started = self._start_missing()
        if has_started and self._is_paused:
            self.pause()
        if has_started or too_many > 0:
            self._membership.rejoin()

    def _start_missing(self) -> bool:
        """Start stream threads up to the wanted number, which may change meanwhile. Returns whether it has started any."""
        before = len(self._processes.all)
        while len(self._processes.all) < self._wanted_threads and not self._ends.is_set() and self._processes.start():
            continue
        return len(self._processes.all) > before

    def _stop_streams(self, streams: list[StreamThreadProcess]) -> None:
        is_alone = threading.Event()
        asked = self._connected.admin, is_alone
        threading.Thread(target=_look_for_brokers, args=asked, name="look-for-brokers", daemon=True).start()
        stopped = self._processes.stop(streams, lambda: _STOP_ALONE_SECONDS if is_alone.is_set() else _STOP_SECONDS)
        failed = next((stream.failure for stream in stopped if stream.failure is not None), None)
        if failed is not None:
            log.warning("a stream thread failed while it was ending: %s", failed.message)

    def _obey(self, arrived: Orders | StreamsError) -> None:
        if isinstance(arrived, StreamsError):
            raise arrived
        self._is_heard_of = arrived.process in ("", self._process_name)
        if not self._is_heard_of and self._is_obsolete(arrived):
            self._membership.rejoin()
            return
        if arrived.refusal is not None:
            raise TopologyError(
                arrived.refusal, hint="Stop the other instances, or start this version under its own name."
            )
        if arrived.shuts_down:
            self._ends.set()
        connected = self._connected.with_partitions(arrived.topics) if arrived.topics else self._connected
        wrong = _wrong_in(arrived, connected)
        if wrong is not None:
            self._membership.pass_over(wrong)
            return
        self._connected, self._layout = connected, connected.layout
        self._stateful = _stateful(connected.application)
        self._orders = arrived
        self._is_current = True

    def _is_obsolete(self, orders: Orders) -> bool:
        """Return whether orders to this process's predecessor, a static member, do not apply to this process."""
        return orders.refusal is not None or orders.shuts_down or orders.fingerprint != self._connected.fingerprint

    def _bury(self, stream: StreamThreadProcess) -> None:
        """Continue without a process that has ended, or end with its error."""
        end = self._exception_handler.handle(stream)
        if end is None:
            return
        if end.of_all:
            self._shuts_down = True
            self._membership.rejoin()
            self._linger()
        raise end.error

    def _linger(self) -> None:
        """Stay in the group until the others have heard that the application ends."""
        deadline = time.monotonic() + _STOP_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            arrived = self._membership.heard(left)
            if arrived is None or isinstance(arrived, StreamsError) or arrived.shuts_down:
                return

    def _speak_up(self, orders: Orders) -> None:
        """Ask for a rebalance when the leader has to hear of this process, of released tasks, or of a warm-up."""
        if not self._is_heard_of:
            self._is_heard_of = True
            self._membership.rejoin()
        if self._introduced - self._processes.active():
            self._membership.rejoin()
        if self._warm_ups.are_news(task_ids(orders.warm_up), self._processes.lags(), time.monotonic()):
            self._membership.rejoin()

    def _show_state(self, orders: Orders) -> None:
        streams = self._processes.all
        running = frozenset(
            task for stream in streams for task in stream.report.active - stream.report.restoring.keys()
        )
        wanted = WorkerState.RUNNING if task_ids(orders.active) == running else WorkerState.REBALANCING
        if wanted is not self.state and wanted in TRANSITIONS[self.state]:
            now = time.monotonic()
            if wanted is WorkerState.RUNNING:
                self._recovery_s = now - self._unsettled_at
                message = "all %d tasks of this instance run, %.1f s after its tasks changed"
                log.info(message, len(running), self._recovery_s)
            self._unsettled_at = now
            self._move_to(wanted)

    def _clean_up(self, orders: Orders) -> None:
        """Delete local state of tasks that moved away long ago, and no longer announce it."""
        kept = task_ids(orders.active) | task_ids(orders.standby) | self._processes.held()
        gone = self._obsolete.delete_if_due(kept)
        if gone:
            self._positions = {task: position for task, position in self._positions.items() if task not in gone}

    def _introduce(self, topics: dict[str, int]) -> Introduction:
        """Return the introduction for the leader; called by the membership thread."""
        active = self._processes.active()
        self._introduced = active
        return Introduction(
            instance=self._id,
            fingerprint=self._connected.fingerprint,
            capacity=self._wanted_threads,
            tags=dict(self._streams.client_tag),
            active=texts(active),
            positions={str(task): position for task, position in self._positions.items()},
            server=self._server,
            shuts_down=self._shuts_down,
            topics=topics,
            restoring=texts(self._processes.restoring()),
            standby=self._orders.standby if self._orders else [],
            process=self._process_name,
        )

    def _tasks_of(self, topics: Mapping[str, int]) -> Mapping[TaskId, bool]:
        """Return whether each task has state, for the leader, from the topics that this instance has found."""
        connected = self._connected.with_partitions(topics) if topics else self._connected
        stateful = _stateful(connected.application)
        return {task: task.sub_topology in stateful for task in connected.layout.tasks}

    def _move_to(self, state: WorkerState) -> None:
        self.state = moved(self.state, state)
        self._on_state(state)


def _wrong_in(orders: Orders, connected: ConnectedApplication) -> str | None:
    """Return why orders cannot be obeyed; None if they can be. The leader may be any member of the group."""
    try:
        tasks = connected.layout.tasks.keys()
    except (TopicError, TopologyError) as error:
        return error.message
    unknown = (task_ids(orders.active) | task_ids(orders.standby)) - tasks
    return f"they name tasks that do not exist, such as {min(unknown)}" if unknown else None


def _check_properties(application: Application) -> None:
    """Refuse client properties that are incomplete or unknown, before other instances release tasks for this one.

    Raises:
        ConfigError: If there is such a property.
    """
    streams = application.config.streams
    for tag in streams.rack_aware_assignment_tags:
        if not streams.client_tag.get(tag):
            message = f"rack.aware.assignment.tags names {tag}, but there is no client.tag.{tag}"
            raise ConfigError(message, hint="Set it on each instance, since copies are placed by its value.")
    if streams.consumer:
        RecordConsumer(application.kafka, streams.consumer).close()
    if streams.producer:
        IdempotentProducer(application.kafka, streams.producer).close()


def _stateful(application: Application) -> frozenset[int]:
    """Return the sub-topologies whose tasks have state to restore."""
    return frozenset(sub.id for sub in application.topology.sub_topologies() if any(s.logging for s in sub.stores))


def _look_for_brokers(admin: Admin, is_alone: threading.Event) -> None:
    if not admin.is_answered(_STOP_ALONE_SECONDS - _TURN_SECONDS):
        is_alone.set()


def _job(application: Application) -> StreamJob:
    config = replace(application.config, streams=application.config.streams.without_secrets())
    return StreamJob(
        config,
        application.version,
        application.kafka,
        application.state_directory,
        application.published,
        application.dead_letters,
    )
