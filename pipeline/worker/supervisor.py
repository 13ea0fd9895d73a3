"""One instance of an application: a member of its group, and the stream processes that run its share of the tasks."""

from __future__ import annotations

import fcntl
import logging
import queue
import re
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

import pipeline.errors
from pipeline.errors import (
    BrokerError,
    ProcessingError,
    StateError,
    StateInUseError,
    StreamsError,
    TaskMigratedError,
    TopologyError,
)
from pipeline.hosting.application import prepare, source_partitions, with_partitions, with_topics
from pipeline.kafka.admin import Admin
from pipeline.kafka.membership import GroupMember
from pipeline.processor.metrics import added
from pipeline.records import TaskId
from pipeline.state.rocksdb import RocksDbBackend
from pipeline.worker.assignment import AssignmentConfig
from pipeline.worker.leadership import give_orders
from pipeline.worker.processes import StreamProcess, StreamProcesses
from pipeline.worker.protocol import Introduction, Orders, Pause, StreamJob, task_ids, texts
from pipeline.worker.queries import Reason, Refusal
from pipeline.worker.states import TRANSITIONS, WorkerState, WorkerSummary, moved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pipeline.hosting.application import Application
    from pipeline.runtime.layout import Layout
    from pipeline.topology.topology import Topology
    from pipeline.worker.protocol import Report
    from pipeline.worker.queries import Page, Question

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.1
_MEMBER_POLL_SECONDS = 0.5
_STOP_SECONDS = 60.0
_PREDECESSOR_SECONDS = 30.0
"""How long stream processes whose supervisor was killed may take to end."""
ANSWER_SECONDS = 10.0
"""How long to wait for the answer of a stream process."""
_DEATHS_ALLOWED = 10
"""So many deaths of processes within `_DEATHS_SECONDS` that nobody explained are too many."""
_DEATHS_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """What an instance can say of itself at any time.

    Args:
        state: Where it stands.
        active: Tasks that run here.
        standby: Tasks whose changelogs are followed here.
        lags: Records that are missing, per standby.
        restoring: Tasks that are being taken over, with the number of changelog records that are missing, if it is known.
        processes: Number of stream processes.
        paused: Whether it processes nothing for now.
        summary: What has been done since it started.
    """

    state: WorkerState
    active: frozenset[TaskId]
    standby: frozenset[TaskId]
    lags: Mapping[TaskId, int]
    restoring: Mapping[TaskId, int | None]
    processes: int
    paused: bool
    summary: WorkerSummary


class Supervisor:
    """Runs one instance until it is told to stop. All instances with one application id share its tasks.

    Args:
        application: What to run.
        build: Builds its topology within a stream process; must be importable there.
        server: `host:port` where this instance answers queries; empty if nowhere.
        on_state: Told about every change of state.
    """

    def __init__(
        self,
        application: Application,
        build: Callable[[StreamJob], Topology],
        *,
        server: str = "",
        on_state: Callable[[WorkerState], None] = lambda _state: None,
    ) -> None:
        """Nothing is started before `run`."""
        self.state = WorkerState.CREATED
        self._application = application
        self._streams = application.config.streams
        self._server = server
        self._on_state = on_state
        self._id = instance_id(application)
        self._found: dict[str, int] = {}
        self._looked_at = time.monotonic()
        self._processes = StreamProcesses(_job(application), build)
        self._wanted_processes = self._streams.num_stream_threads
        self._orders: Orders | None = None
        self._layout: Layout | None = None
        self._is_current = False
        self._arrived: queue.SimpleQueue[Orders | StreamsError] = queue.SimpleQueue()
        self._introduced: frozenset[TaskId] = frozenset()
        self._ready_warm_ups: frozenset[TaskId] = frozenset()
        self._rejoins = threading.Event()
        self._ends = threading.Event()
        self._shuts_down = False
        self._is_paused = False
        self._deaths: list[float] = []
        self._unsettled_at = time.monotonic()
        self._told_at = time.monotonic()
        self._told = WorkerSummary(0, 0, 0, {})
        self._positions: dict[TaskId, int] = {}
        self._past = WorkerSummary(0, 0, 0, {})

    def stop(self) -> None:
        """Ask it to commit, hand over its tasks and leave the group. May be called from a signal handler."""
        self._ends.set()

    def scale(self, processes: int) -> None:
        """Run so many stream processes from now on; tasks move without stopping those that stay.

        Raises:
            ValueError: If it is less than one.
        """
        if processes < 1:
            message = f"an instance needs at least one stream process, not {processes}"
            raise ValueError(message)
        self._wanted_processes = processes

    def pause(self, *, paused: bool = True) -> None:
        """Process nothing for now, or go on; tasks and standbys are kept."""
        self._is_paused = paused
        for stream in self._processes.all:
            stream.tell(Pause(paused))

    def status(self) -> InstanceStatus:
        """What there is to say at this moment."""
        streams = self._processes.all
        active = frozenset(task for stream in streams for task in stream.report.active)
        standby = frozenset(task for stream in streams for task in stream.report.standby)
        return InstanceStatus(
            self.state,
            active,
            standby,
            self._processes.lags(),
            self._processes.restoring(),
            len(streams),
            self._is_paused,
            self.summary(),
        )

    @property
    def id(self) -> str:
        """Names this instance; survives restarts."""
        return self._id

    @property
    def server(self) -> str:
        """`host:port` where this instance answers queries; empty if nowhere."""
        return self._server

    @property
    def application(self) -> Application:
        """What it runs."""
        return self._application

    @property
    def layout(self) -> Layout | None:
        """The tasks there are; None before the topics have been looked at."""
        return self._layout

    def reports(self) -> Mapping[int, Report]:
        """What each stream process has said last, by its number."""
        return {stream.number: stream.report for stream in self._processes.all}

    def ask(self, question: Question, timeout_s: float = ANSWER_SECONDS) -> Page | Refusal:
        """Answer a question about a store, if its task runs here. May be called from any thread.

        Args:
            question: What is asked, of which task.
            timeout_s: How long to wait for the process that has the task.
        """
        stream = self._processes.holder(question.task, standby=question.allows_standby)
        if stream is None:
            orders = self._orders
            if orders is not None and question.task in task_ids(orders.active):
                return Refusal(Reason.RESTORING, f"Task {question.task} is being taken over")
            return Refusal(Reason.NOT_HERE, f"Task {question.task} does not run here")
        answer = stream.ask(question)
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            answer.cancel()
            return Refusal(Reason.FAILED, f"Stream process {stream.number} did not answer within {timeout_s:g} s")

    def summary(self) -> WorkerSummary:
        """What all stream processes have done, those that have ended included."""
        summary = self._past
        for stream in self._processes.all:
            summary = _added(summary, stream)
        return summary

    def servers(self) -> Orders | None:
        """The last orders: they say where every task is; None before the first."""
        return self._orders

    def run(self) -> WorkerSummary:
        """Run until told to stop.

        Raises:
            TopicError: If topics are missing or do not fit.
            TopologyError: If other instances run another topology.
            RecordError: If a record cannot be handled, and the handler says so.
            BrokerError: If brokers do not answer.
        """
        with locked(self._application.directory):
            return self._run()

    def _run(self) -> WorkerSummary:
        self._move_to(WorkerState.REBALANCING)
        try:
            admin = Admin(self._application.kafka)
            self._application = with_topics(self._application, admin)
            self._layout = prepare(self._application, admin)
            if self._application.topology.has_patterns:
                self._found = source_partitions(self._application, admin)
            self._positions = left_positions(self._application)
            membership = threading.Thread(target=self._take_part, args=(admin,), name="membership", daemon=True)
            membership.start()
            try:
                while not self._ends.is_set():
                    self._turn()
                self._move_to(WorkerState.PENDING_SHUTDOWN)
            finally:
                self._stop_streams(self._processes.all)
                self._ends.set()
                membership.join()
        except BaseException:
            self.state = WorkerState.ERROR
            self._on_state(self.state)
            raise
        self._move_to(WorkerState.NOT_RUNNING)
        return self.summary()

    def _turn(self) -> None:
        self._scale()
        self._processes.listen(_TURN_SECONDS)
        self._positions.update(self._processes.positions())
        while not self._arrived.empty():
            self._follow(self._arrived.get())
        for stream in self._processes.dead():
            self._bury(stream)
        for stream in self._processes.silent(self._streams.max_poll_interval_ms / 1000):
            log.warning("stream process %d has been silent for too long: it is replaced", stream.number)
            stream.process.kill()
        if self._processes.take_losses():  # somebody else has them: the leader has to say whose they are
            self._is_current = False
            self._rejoins.set()
        if self._orders is None:
            return
        if self._is_current:
            self._processes.distribute(
                task_ids(self._orders.active), task_ids(self._orders.standby), self._orders.topics
            )
        self._speak_up(self._orders)
        self._show_state(self._orders)
        self._sum_up()

    def _scale(self) -> None:
        missing = self._wanted_processes - len(self._processes.all)
        if missing > 0:
            self._processes.start(missing)
            if self._is_paused:
                self.pause()
        elif missing < 0:
            self._stop_streams(self._processes.all[missing:])
        if missing:
            self._rejoins.set()

    def _stop_streams(self, streams: list[StreamProcess]) -> None:
        leaving = list(streams)
        self._processes.stop(leaving, _STOP_SECONDS)
        for stream in leaving:
            self._past = _added(self._past, stream)
        self._processes.all = [stream for stream in self._processes.all if stream not in leaving]
        failed = next((stream.failure for stream in leaving if stream.failure is not None), None)
        if failed is not None:
            log.warning("a stream process failed when it was to end: %s", failed.message)

    def _follow(self, arrived: Orders | StreamsError) -> None:
        if isinstance(arrived, StreamsError):
            raise arrived
        if arrived.refusal is not None:
            raise TopologyError(
                arrived.refusal, hint="Stop the other instances, or start this version under its own name."
            )
        if arrived.shuts_down:
            self._ends.set()
        if arrived.topics:
            self._application, self._layout = with_partitions(self._application, arrived.topics)
        self._orders = arrived
        self._is_current = True

    def _bury(self, stream: StreamProcess) -> None:
        """A process has ended: decide what follows (`StreamsUncaughtExceptionHandler`)."""
        self._past = _added(self._past, stream)
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < _DEATHS_SECONDS] + [now]
        reason = stream.failure.message if stream.failure else f"exit code {stream.process.exitcode}"
        coordinates = dict(stream.failure.coordinates) if stream.failure else {}
        log.warning("stream process %d ended: %s", stream.number, reason, extra=coordinates)
        policy = self._streams.uncaught_exception_handler
        replaces = stream.failure is None or policy == "replace_thread"
        if replaces and len(self._deaths) <= _DEATHS_ALLOWED:
            return
        if policy == "shutdown_application":
            self._shuts_down = True
            self._rejoins.set()
            self._linger()
        if stream.failure is None:
            message = f"Stream processes ended {len(self._deaths)} times within {_DEATHS_SECONDS:.0f} s, at last with {reason}"
            raise ProcessingError(message)
        kind = getattr(pipeline.errors, stream.failure.kind, ProcessingError)
        raise kind(stream.failure.message, hint=stream.failure.hint)

    def _linger(self) -> None:
        """Stay in the group until the others have heard that the application is to end."""
        deadline = time.monotonic() + _STOP_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                arrived = self._arrived.get(timeout=left)
            except queue.Empty:
                return
            if isinstance(arrived, StreamsError) or arrived.shuts_down:
                return

    def _speak_up(self, orders: Orders) -> None:
        """Ask for a rebalance when the leader should know: tasks were let go of, or a warm-up has caught up."""
        if self._introduced - self._processes.active():
            self._rejoins.set()
        lags = self._processes.lags()
        acceptable = self._streams.acceptable_recovery_lag
        ready = frozenset(task for task in task_ids(orders.warm_up) if lags.get(task, acceptable + 1) <= acceptable)
        if ready - self._ready_warm_ups:
            self._rejoins.set()
        self._ready_warm_ups = ready

    def _show_state(self, orders: Orders) -> None:
        streams = self._processes.all
        running = frozenset(
            task for stream in streams for task in stream.report.active - stream.report.restoring.keys()
        )
        wanted = WorkerState.RUNNING if task_ids(orders.active) == running else WorkerState.REBALANCING
        if wanted is not self.state and wanted in TRANSITIONS[self.state]:
            now = time.monotonic()
            if wanted is WorkerState.RUNNING:
                took_s = now - self._unsettled_at
                log.info("all %d tasks of this instance run, %.1f s after its tasks changed", len(running), took_s)
            self._unsettled_at = now
            self._move_to(wanted)

    def _sum_up(self) -> None:
        """Log what was done since the last time, in the words of Kafka Streams (`log.summary.interval.ms`; 0 for never)."""
        interval_s = self._streams.log_summary_interval_ms / 1000
        if not interval_s or time.monotonic() - self._told_at < interval_s:
            return
        told, now = self._told, self.summary()
        self._told_at, self._told = time.monotonic(), now
        log.info(
            "Processed %d total records and committed %d total tasks since the last update",
            now.processed - told.processed,
            now.commits - told.commits,
            extra={"application": self._application.id},
        )

    def _take_part(self, admin: Admin) -> None:
        """The membership thread: joins, hears orders, and asks for rebalances. Whatever ends it ends the instance."""
        try:
            member = self._join()
            try:
                self._attend(member, admin)
            finally:
                member.close()
        except StreamsError as error:
            self._arrived.put(error)
        except Exception as error:
            log.exception("membership ended")
            self._arrived.put(ProcessingError(f"Membership in {self._application.id} ended: {error!r}"))

    def _attend(self, member: GroupMember, admin: Admin) -> None:
        decode = msgspec.json.Decoder(Orders).decode
        while not self._ends.is_set():
            self._look_for_topics(admin)
            if self._rejoins.is_set():
                self._rejoins.clear()
                member.rejoin()
            try:
                orders = member.poll(_MEMBER_POLL_SECONDS)
            except BrokerError as error:
                if not error.retriable:
                    raise
                log.warning("%s", error)
                continue
            if orders:
                self._arrived.put(decode(orders))
            if member.is_fenced:
                message = f"Another process has joined {self._application.id} as the same static member"
                raise TaskMigratedError(message)

    def _look_for_topics(self, admin: Admin) -> None:
        """If it is time, look whether other topics match the patterns now; then all instances have to hear of it."""
        now, interval_s = time.monotonic(), self._streams.metadata_max_age_ms / 1000
        if not self._application.topology.has_patterns or now - self._looked_at < interval_s:
            return
        self._looked_at = now
        try:
            found = source_partitions(self._application, admin)
        except BrokerError as error:
            log.warning("topics are not looked for: %s", error)
            return
        if found != self._found:
            self._found = found
            self._rejoins.set()

    def _tasks_of(self, topics: Mapping[str, int]) -> Mapping[TaskId, bool]:
        """All tasks, and whether each has state; asked for in the leader, of the topics that some instance has found."""
        application, layout = self._application, self._layout
        if topics:
            application, layout = with_partitions(application, topics)
        assert layout is not None, "nobody leads before the start"  # noqa: S101 - a mistake of ours
        stateful = {sub.id for sub in application.topology.sub_topologies() if any(s.logging for s in sub.stores)}
        return {task: task.sub_topology in stateful for task in layout.tasks}

    def _join(self) -> GroupMember:
        client = self._streams.consumer
        config = AssignmentConfig(
            self._streams.num_standby_replicas,
            self._streams.max_warmup_replicas,
            self._streams.acceptable_recovery_lag,
            self._streams.rack_aware_assignment_tags,
        )
        return GroupMember(
            self._application.kafka,
            self._application.id,
            self._application.topology.source_topics,
            describe=self._introduce,
            assign=lambda said: give_orders(said, self._tasks_of, config, self._application.id),
            session_timeout_ms=int(client.get("session.timeout.ms", 45_000)),
            heartbeat_interval_ms=int(client.get("heartbeat.interval.ms", 3_000)),
            max_poll_interval_ms=self._streams.max_poll_interval_ms,
            group_instance_id=client.get("group.instance.id"),
        )

    def _introduce(self) -> bytes:
        active = self._processes.active()
        self._introduced = active
        return msgspec.json.encode(
            Introduction(
                self._id,
                self._application.topology.fingerprint(),
                self._wanted_processes,
                dict(self._streams.client_tag),
                texts(active),
                {str(task): position for task, position in self._positions.items()},
                self._server,
                self._shuts_down,
                self._found,
            )
        )

    def _move_to(self, state: WorkerState) -> None:
        self.state = moved(self.state, state)
        self._on_state(state)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other instances on this machine out of a state directory.

    Raises:
        StateInUseError: If one uses it.
        StateError: If it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / ".lock").open("w")
    except OSError as error:
        raise _unusable(directory, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = f"Another worker uses the state directory {directory}"
            raise StateInUseError(message, hint="Give each instance on a machine its own: --state-dir.") from error
        yield


def instance_id(application: Application) -> str:
    """The id of this state directory: made once, kept in it (`kafka-streams-process-metadata`).

    Raises:
        StateError: If the directory cannot be written.
    """
    path = application.directory / "process-id"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{uuid.uuid4()}\n")
        return path.read_text().strip()
    except OSError as error:
        raise _unusable(application.directory, error) from error


def _unusable(directory: Path, error: OSError) -> StateError:
    message = f"State in {directory} cannot be used: {error}"
    return StateError(message, hint="Is the disk full, or the directory read-only?")


def left_positions(application: Application) -> dict[TaskId, int]:
    """How far the state of each task is that lies in the local directory: changelog offsets applied, summed up.

    Stream processes of an instance that was killed here a moment ago may have it open still: they are waited for.
    """
    found = {}
    for path in filter(_is_state, application.directory.glob("*_*")):
        try:
            backend = _opened(path)
        except StateError as error:
            log.warning("local state is left aside: %s", error)
            continue
        found[TaskId.parse(path.name)] = sum(backend.positions().values())
        backend.close()
    return found


def _opened(path: Path) -> RocksDbBackend:
    deadline = time.monotonic() + _PREDECESSOR_SECONDS
    while True:
        try:
            return RocksDbBackend(path)
        except StateInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_TURN_SECONDS)


def _is_state(path: Path) -> bool:
    """Whether this is the directory of a task, and not what somebody left who died while he made one."""
    return re.fullmatch(r"\d+_\d+", path.name) is not None


def _job(application: Application) -> StreamJob:
    return StreamJob(
        application.config,
        application.version,
        application.kafka,
        application.state_directory,
        application.published,
        application.dead_letters,
    )


def _added(summary: WorkerSummary, stream: StreamProcess) -> WorkerSummary:
    dropped = dict(summary.dropped)
    for reason, count in stream.report.dropped.items():
        dropped[reason] = dropped.get(reason, 0) + count
    return WorkerSummary(
        summary.processed + stream.report.processed,
        summary.restored + stream.report.restored,
        summary.commits + stream.report.commits,
        dropped,
        added(summary.totals, stream.report.totals),
    )
