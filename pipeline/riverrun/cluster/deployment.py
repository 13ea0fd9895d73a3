"""The driver of a deployment: starts instances as Spark tasks, restarts those that die, and stops them all."""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.cluster.instance import Channel, InstanceEnd, InstanceJob, InstanceReport, StopInstances, host_instance
from riverrun.config.checks import check_number
from riverrun.config.streams import MOST_INSTANCES
from riverrun.errors import EngineError, ProcessingError, StreamsError
from riverrun.hosting.barrier_listener import BarrierListener
from riverrun.hosting.process import current_style
from riverrun.spark.failures import cause_of, missing_module, rebuilt_error, text_row
from riverrun.worker.states import summed
from riverrun.worker.stream_thread.protocol import StreamJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.topology.topology import Topology
    from riverrun.worker.states import WorkerSummary

log = logging.getLogger(__name__)

# A task that lasts for ever is not slow, and a speculative copy would only fence it.
DEPLOYMENT_SETTINGS: Mapping[str, str] = {"spark.speculation": "false"}

_HEAR_SECONDS = 0.5
# Longer than an instance gives its stream threads to commit (60 s): after that, Spark ends it.
_STOP_SECONDS = 90.0
# Instances that still wait for a core have nothing to commit.
_NEVER_STARTED_SECONDS = 10.0
_CORE_SECONDS = 60.0
# Spark has tried each of them several times before: more than this within `_DEATHS_SECONDS` have a cause that remains.
_DEATHS_ALLOWED = 10
_DEATHS_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Died:
    """The end of an instance that Spark has given up."""

    error: Exception


class Deployment:
    """Runs instances of one application on a Spark cluster until it is asked to stop.

    The instances are members of the application's consumer group, like instances started anywhere else.

    Args:
        connected: The application to run. Its state directory is a path on the machines of the cluster.
        spark: A session of a cluster or of Spark Connect.
        build: Builds the topology on executors; must be importable there.
        instances: Number of instances; each takes one core.
        on_report: Called with each report of an instance.
        complete: Completes a switch of versions whose coordinator has died, in this process, which has the whole project;
            None to leave that to others.
    """

    def __init__(
        self,
        connected: ConnectedApplication,
        spark: Any,
        build: Callable[[StreamJob], Topology],
        *,
        instances: int = 1,
        token: str = "",
        on_report: Callable[[InstanceReport], None] = lambda _report: None,
        complete: Callable[[], None] | None = None,
    ) -> None:
        check_number("instances", instances, 1, MOST_INSTANCES)
        self.id = f"{connected.id}-{uuid.uuid4().hex[:8]}"
        self.application = connected.application
        self._admin = connected.admin
        self.spark = spark
        self._build = build
        self._instances = instances
        self._token = token
        self._on_report = on_report
        self._listener = BarrierListener(
            self._admin, self.application.config.name, self.application.version, lambda _record: None, complete
        )
        self._fingerprint = self.application.topology.fingerprint()
        self._running: dict[int, float] = {}
        self._heard: set[int] = set()
        self._ended: queue.SimpleQueue[tuple[int, InstanceEnd | _Died]] = queue.SimpleQueue()
        self._ends: list[InstanceEnd] = []
        self._deaths: list[float] = []
        self._failure: StreamsError | None = None
        self._stops = threading.Event()
        self._has_told = False
        self._deadline: float | None = None

    def stop(self) -> None:
        """Ask all instances to commit, hand over their tasks and end. Safe to call from a signal handler."""
        self._stops.set()

    def run(self) -> WorkerSummary:
        """Run until asked to stop, or until no instance is left."""
        channel = Channel(self._admin, self.id)
        self._listener.start()
        for number in range(self._instances):
            self._start(number)
        try:
            while self._running and not self._is_too_late():
                self._talk(channel)
                for number, end in _taken(self._ended):
                    if isinstance(end, _Died):
                        self._bury(number, end)
                    else:
                        self._take_leave(number, end)
                self._speak_of_waiting()
        finally:
            # Java may be gone, and its jobs with it.
            with suppress(Exception):
                self.spark.interruptAll()
            self._listener.close()
            channel.close()
        if self._failure is not None:
            raise self._failure
        return summed(end.summary for end in self._ends)

    def _start(self, number: int) -> None:
        self._running[number] = time.monotonic()
        self._heard.discard(number)
        threading.Thread(target=self._host, args=(number,), name=f"instance-{number}", daemon=True).start()

    def _host(self, number: int) -> None:
        try:
            job = StreamJob.of(self.application)
            work = InstanceJob(job, self._fingerprint, self.id, number, self._token, current_style())
            end: InstanceEnd | _Died = msgspec.json.decode(
                _run_on_spark(self.spark, work, self._build), type=InstanceEnd
            )
        except Exception as error:  # noqa: BLE001 - Spark raises many types; the main thread waits for an end, and decides
            end = _Died(error)
        self._ended.put((number, end))

    def _talk(self, channel: Channel) -> None:
        try:
            if self._stops.is_set() and not self._has_told:
                self._deadline = self._deadline or time.monotonic() + _STOP_SECONDS
                channel.tell(StopInstances())
                self._has_told = True
            for message in channel.hear(_HEAR_SECONDS):
                if isinstance(message, InstanceReport):
                    self._heard.add(message.number)
                    self._on_report(message)
        except StreamsError as error:
            log.warning("messages of instances cannot be read: %s", error.message)
            self._stops.wait(_HEAR_SECONDS)

    def _take_leave(self, number: int, end: InstanceEnd) -> None:
        del self._running[number]
        self._ends.append(end)
        if end.error is not None:
            self._fail(number, rebuilt_error(end.error))

    def _bury(self, number: int, end: _Died) -> None:
        """Restart an instance that Spark has given up, unless it has been restarted too often."""
        del self._running[number]
        if self._stops.is_set():
            log.warning("instance %d was ended before it handed over its tasks: %s", number, cause_of(end.error))
            return
        # Nothing can be started any more without the Java process.
        if isinstance(end.error, ConnectionError):
            self._fail(number, EngineError("Spark's driver, a Java process of this machine, has ended"))
            return
        # A module that executors lack will be missing at each attempt.
        if (missing := missing_module(str(end.error))) is not None:
            self._fail(number, missing)
            return
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < _DEATHS_SECONDS] + [now]
        if len(self._deaths) > _DEATHS_ALLOWED:
            message = f"Instances ended {len(self._deaths)} times within {_DEATHS_SECONDS:.0f} s: {cause_of(end.error)}"
            self._fail(number, ProcessingError(message))
            self.stop()
            return
        log.warning("instance %d has ended and is restarted: %s", number, cause_of(end.error))
        self._start(number)

    def _fail(self, number: int, error: StreamsError) -> None:
        log.warning("instance %d has ended: %s", number, error.message)
        self._failure = self._failure or error

    def _speak_of_waiting(self) -> None:
        now = time.monotonic()
        for number, since in self._running.items():
            if number not in self._heard and now - since > _CORE_SECONDS:
                log.warning("instance %d has not reported yet: does the cluster have a core for it?", number)
                self._running[number] = now

    def _is_too_late(self) -> bool:
        if self._deadline is None:
            return False
        allowed_s = 0.0 if self._heard & self._running.keys() else _STOP_SECONDS - _NEVER_STARTED_SECONDS
        is_too_late = time.monotonic() > self._deadline - allowed_s
        if is_too_late:
            log.warning("instances %s did not end in time: Spark ends them", sorted(self._running))
        return is_too_late


def _run_on_spark(spark: Any, work: InstanceJob, build: Callable[[StreamJob], Topology]) -> str:
    """Run one instance, and return its `InstanceEnd` as JSON."""
    # A job with one task, so that each instance is retried, restarted and reported separately. In a barrier stage, one dying
    # executor would end all; in one job of many tasks, a result would arrive only when all have ended.

    def process(batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:
            yield text_row("end", host_instance(work, build))

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(process, "end string").collect()
    text: str = row.end
    return text


def _taken(ended: queue.SimpleQueue[tuple[int, InstanceEnd | _Died]]) -> Iterator[tuple[int, InstanceEnd | _Died]]:
    while not ended.empty():
        yield ended.get()
