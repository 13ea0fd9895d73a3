"""One instance of a deployment, as it runs in a Spark task, and its messages with the driver. Imports no pyspark."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from riverrun.decoders import Line, Natural, Small, UnreadableError, Word, foreign_decoder
from riverrun.errors import RangeError, StateInUseError, StreamsError, TopologyError
from riverrun.hosting.local_state import INSTANCE_DIRECTORY, after_predecessor, locked
from riverrun.hosting.process import LogStyle, SystemClock, start_logging
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.consumer import RecordConsumer
from riverrun.kafka.producer import IdempotentProducer
from riverrun.records import TopicPartition
from riverrun.service.instance import new_instance
from riverrun.spark.failures import another_attempt_may_help, describe_error
from riverrun.worker.states import WorkerSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.hosting.application import Application
    from riverrun.topology.topology import Topology
    from riverrun.worker.stream_thread.protocol import StreamJob
    from riverrun.worker.streams_instance import StreamsInstance

# A topic, as brokers are the only machines that both driver and executors are known to reach. Executors may not reach a client
# of Spark Connect, and Spark ends tasks by killing their processes.
DEPLOYMENTS_TOPIC = "riverrun-deployments"
log = logging.getLogger(__name__)

_CONFIG = {"cleanup.policy": "delete", "retention.ms": str(24 * 3600 * 1000)}
_TP = TopicPartition(DEPLOYMENTS_TOPIC, 0)
_BATCH = 1_000


class StopInstances(msgspec.Struct, frozen=True, tag=True):
    """A message to the instances: commit, hand over tasks, and end."""


class InstanceReport(msgspec.Struct, frozen=True, tag=True):
    """A message from an instance about its progress.

    Args:
        number: Number of the instance within the deployment, from 0.
        server: `host:port` where it answers queries; empty if it does not.
        processed: Records processed since its start on this machine.
        commits: Commits of tasks since then.
    """

    number: Small
    host: Line
    state: Word
    server: Word
    processed: Natural
    commits: Natural


Message = StopInstances | InstanceReport
_message = foreign_decoder(Message)


class Channel:
    """The messages of one deployment, from its beginning on."""

    def __init__(self, admin: Admin, deployment: str) -> None:
        self._admin = admin
        self._key = deployment.encode()
        self._consumer: RecordConsumer | None = None
        self._producer: IdempotentProducer | None = None

    def tell(self, message: Message) -> None:
        """Send a message to all. May be repeated after an error: receivers act on a repeated message only once."""
        if self._producer is None:
            _create(self._admin)
            self._producer = IdempotentProducer(self._admin.kafka, admin=self._admin)
        now_ms = SystemClock().now_ms()
        try:
            self._producer.send(DEPLOYMENTS_TOPIC, self._key, msgspec.json.encode(message), now_ms, (), 0)
            self._producer.flush()
        except StreamsError:
            # A producer may be unusable after an error, so the next call makes a new one.
            self._fall_silent()
            raise

    def hear(self, timeout_s: float) -> list[Message]:
        """Return the messages since the last call; wait for them up to a timeout."""
        consumer = self._consumer or self._listen()
        try:
            polled = consumer.poll(_BATCH, timeout_s)
        except RangeError:
            # Retention has deleted the next record meanwhile; the next consumer begins with the oldest one.
            self._forget()
            return []
        except StreamsError:
            self._forget()
            raise
        return [
            message
            for key, value, *_ in polled.records.get(_TP, [])
            if key == self._key and value is not None and (message := self._read(value)) is not None
        ]

    def _read(self, value: bytes) -> Message | None:
        try:
            found: Message = _message(value)
        except UnreadableError as error:
            log.warning("skipping a message in topic %s that cannot be read: %s", DEPLOYMENTS_TOPIC, error)
            return None
        return found

    def close(self) -> None:
        self._forget()
        self._fall_silent()

    def _fall_silent(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _listen(self) -> RecordConsumer:
        # From the oldest record on: an instance that gets its core late must still read the order to stop.
        _create(self._admin)
        start = self._admin.beginning_offsets([_TP])
        self._consumer = consumer = RecordConsumer(self._admin.kafka)
        consumer.assign(start)
        return consumer

    def _forget(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _create(admin: Admin) -> None:
    admin.create_topics([TopicSpec(DEPLOYMENTS_TOPIC, 1, _CONFIG)])


_HEAR_SECONDS = 0.5
# For the processes of a killed attempt on the same machine to end, so that its state can be continued.
_PREDECESSOR_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class InstanceJob:
    """The work that the driver sends to a task.

    Args:
        fingerprint: Of the driver's topology.
        number: Number of the instance within the deployment, from 0.
        token: What callers of the instance must present.
        logs: Logging settings; logs go to the standard error output of the executor.
    """

    job: StreamJob
    fingerprint: str
    deployment: str
    number: int
    token: str = field(repr=False)
    logs: LogStyle


class InstanceEnd(msgspec.Struct, frozen=True):
    """The outcome that a task sends back.

    Args:
        error: The error that ended it, as `describe_error` writes it; None if the driver stopped it.
    """

    summary: WorkerSummary = WorkerSummary()
    error: str | None = None


def host_instance(work: InstanceJob, build: Callable[[StreamJob], Topology]) -> str:
    """Run an instance until the deployment is asked to stop. Returns its `InstanceEnd` as JSON."""
    start_logging(work.logs, work.job.config.logging)
    try:
        end = _run(_with_directory(_application(work, build), work.number), work, build)
    except StreamsError as error:
        # Raised, an error makes Spark try the task again. Returned, it ends the instance for good.
        if another_attempt_may_help(error):
            raise
        end = InstanceEnd(error=describe_error(error))
    return msgspec.json.encode(end).decode()


def _application(work: InstanceJob, build: Callable[[StreamJob], Topology]) -> Application:
    """Return the application, after a check that its topology is the driver's."""
    job, topology = work.job, build(work.job)
    if topology.fingerprint() != work.fingerprint:
        message = f"The topology of {job.config.name} on {socket.gethostname()} differs from the driver's"
        raise TopologyError(message, hint="Driver and executors must run the same release of the application.")
    return job.application(topology)


def _with_directory(application: Application, number: int) -> Application:
    """Return the application with a state directory for this instance alone, as instances may share a machine."""
    root = application.state_directory

    def numbered(number: int) -> Application:
        found = replace(application, state_directory=root / INSTANCE_DIRECTORY.format(number))
        with locked(found.directory, group_writes=found.config.streams.allow_os_group_write_access):
            return found

    # The directory with the instance's number has the state of its earlier attempts, which may still be ending. If it
    # stays locked, its owner belongs to another deployment.
    with suppress(StateInUseError):
        return after_predecessor(lambda: numbered(number), within_s=_PREDECESSOR_SECONDS, retry_s=_HEAR_SECONDS)
    for other in count(number + 1):
        with suppress(StateInUseError):
            found = numbered(other)
            log.warning("another instance uses %s/instance-%d: state is in instance-%d", root, number, other)
            return found
    # The loop has no end, which the type checker does not know.
    raise AssertionError


def _run(application: Application, work: InstanceJob, build: Callable[[StreamJob], Topology]) -> InstanceEnd:
    reports: deque[InstanceReport] = deque()
    with new_instance(application, build, token=work.token, on_state=lambda _state: report()) as instance:

        def report() -> None:
            done = instance.summary()
            state, server = instance.state.value, instance.server
            host = socket.gethostname()
            reports.append(InstanceReport(work.number, host, state, server, done.processed, done.commits))

        with _attending(Channel(Admin(application.kafka), work.deployment), instance, reports, report):
            done = instance.run()
    return InstanceEnd(done)


@contextmanager
def _attending(
    channel: Channel, instance: StreamsInstance, reports: deque[InstanceReport], report: Callable[[], None]
) -> Iterator[None]:
    """Report to the driver, and listen for the order to stop, in a thread."""
    ended = threading.Event()
    interval_s = instance.application.config.streams.log_summary_interval_ms / 1000

    def attend() -> None:
        told_at = time.monotonic()
        while not (ended.is_set() and not reports):
            if interval_s and time.monotonic() - told_at > interval_s:
                told_at = time.monotonic()
                report()
            try:
                while reports:
                    # Removed only once it is sent: after an error it is sent again.
                    channel.tell(reports[0])
                    reports.popleft()
                if not ended.is_set() and any(
                    isinstance(message, StopInstances) for message in channel.hear(_HEAR_SECONDS)
                ):
                    instance.stop()
            except StreamsError as error:
                # The instance runs on: it needs brokers for its tasks, and waits for these itself.
                log.warning("messages of the driver cannot be read: %s", error.message)
                if ended.wait(_HEAR_SECONDS):
                    return

    thread = threading.Thread(target=attend, name="deployment", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        channel.close()
