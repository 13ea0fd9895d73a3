"""`Cluster`: Kafka in memory and the hosts of a project on it, in one process, under one seed and one clock."""

from __future__ import annotations

import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
from collections import defaultdict, deque
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from riverrun.config import ProjectConfig
from riverrun.config.code import look_beside
from riverrun.errors import StreamsError
from riverrun.kafka.admin import Admin, TopicSpec
from riverrun.kafka.door import Kafka
from riverrun.kafka.producer import IdempotentProducer
from riverrun.kafka.ranges import read_range
from riverrun.kafka.reaching import obstacle_to
from riverrun.project.riverrun import Riverrun
from riverrun.records import OffsetRange, TopicPartition
from riverrun.runtime.event_loop import LOOKUPS
from riverrun.serde.api import SerdePlace, placed
from riverrun.simulation.brokers import SERVERS, Brokers
from riverrun.simulation.clients import clients_of
from riverrun.simulation.lookups import SimulatedLookups
from riverrun.simulation.processes import Processes
from riverrun.simulation.simulated import Namespace, RequestLock, simulated
from riverrun.simulation.turns import Killed, Turns
from riverrun.testing.topics import TestInputTopic, TestOutputTopic
from riverrun.windows import millis
from riverrun.worker.queries import readiness
from riverrun.worker.spawning import start_child
from riverrun.worker.stream_thread.process import obey_instance, run_stream_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from riverrun.project.app import App
    from riverrun.project.worker import AppWorker
    from riverrun.records import Headers, RawRecord
    from riverrun.serde.api import Serde
    from riverrun.simulation.faults import Faults
    from riverrun.simulation.processes import PipeEnd
    from riverrun.simulation.turns import Host

K = TypeVar("K")
V = TypeVar("V")

# Time limits of brokers are looked at so often while hosts run, and while none does.
_TICK_SECONDS, _IDLE_TICK_SECONDS = 0.05, 10.0
_LOOK_SECONDS = 0.1
_LONGEST_BEGIN = timedelta(minutes=10)
# A condition is looked at a hundred times in ten times the time, so that days of waiting take moments.
_LOOKS = 100
_NUMBERS = itertools.count(1)
_OPEN: list[Cluster] = []
"""The cluster that modules of Riverrun have clocks and locks of, if there is one."""


class Cluster:
    """Brokers in memory, with hosts as actors that take turns: a test of runs, workers, releases and faults without Java.

    Within `with`, the test and all that it starts take turns, which the seed chooses, under one clock: a day of waiting takes
    a moment, and a seed repeats its history. The modules of Riverrun get clocks, threads and locks of the cluster; those of
    the test and of other libraries keep Python's.

    Args:
        seed: Chooses the next turn, and the ids of topics and instances.
        brokers: Settings of the brokers, by Kafka's names, such as `offsets.retention.minutes`.
        faults: Decides what happens to requests. Defaults to nothing.
    """

    def __init__(
        self, *, seed: int = 0, brokers: Mapping[str, str] | None = None, faults: Faults | None = None
    ) -> None:
        self.turns = Turns(seed)
        self.brokers = Brokers(
            _Clock(self.turns),
            config=brokers,
            waiting=RequestLock(self.turns),
            faults=faults,
            seed=seed,
            at_end=self._note_for_the_end_of_the_host,
            away=self._away,
        )
        self.kafka = Kafka({"bootstrap.servers": SERVERS}, clients_of(self.brokers, f"cluster-{next(_NUMBERS)}"))
        """The door to the brokers, for Riverrun's own clients."""
        self._until_exit = ExitStack()
        self._was_entered = False
        self._watched: list[Host] = []
        self._read: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        self._unread: dict[str, deque[RawRecord]] = defaultdict(deque)

    def __enter__(self) -> Self:
        if self._was_entered:
            raise StreamsError("A cluster is entered once", hint="Make another one: `with Cluster() as cluster:`.")
        if _OPEN:
            raise StreamsError("Another cluster is open", hint="One at a time has the clock: leave its `with` first.")
        self._was_entered = True
        with ExitStack() as stack:
            _OPEN.append(self)
            stack.callback(_OPEN.clear)
            stack.callback(self._forget)
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riverrun-")))
            stack.enter_context(self.turns)
            stack.enter_context(simulated(self.turns, also=_stand_ins(self.turns)))
            self.start("brokers", self._tick)
            self._admin = Admin(self.kafka)
            self._producer = IdempotentProducer(self.kafka, admin=self._admin)
            stack.callback(self._close_producer)
            self._until_exit = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self._until_exit.callback(self._refuse_failed)
        self._until_exit.__exit__(kind, error, at)

    def project(self, config: str | Path | ProjectConfig | None = None, *, machine: str = "", **given: Any) -> Riverrun:
        """Return a project on these brokers.

        Its bounded runs take the engine `local`, and local state is in a directory of the cluster, whatever the project says.

        Args:
            config: Path of `streams.toml`, whose `[kafka]` is not used. Defaults to a project without a file.
            machine: Projects of one machine have their local state in common, such as the index of a gate and a switch.
            given: Further arguments of `Riverrun`.

        Raises:
            ConfigError: If the file cannot be read, or has an error.
        """
        self._refuse_closed()
        directory = given.pop("directory", None) or self._directory
        environ = given.get("environ")
        environ = os.environ if environ is None else environ  # noqa: TID251 - as `Riverrun` does
        if config is None:
            content = {"kafka": self.kafka.properties}
            config = ProjectConfig.read(Path(directory) / "Cluster.project()", content, environ)
        elif not isinstance(config, ProjectConfig):
            look_beside(Path(config))
            config = ProjectConfig.load(Path(config), environ, kafka=self.kafka.properties)
        overrides = {"bounded_engine": "local", "state_dir": str(self._directory / "machines" / machine / "state")}
        own = replace(config, kafka=self.kafka.properties, overrides={**config.overrides, **overrides})
        return Riverrun(own, clients=self.kafka.clients, **given)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, with settings by Kafka's names."""
        self._refuse_closed()
        self._admin.create_topics([TopicSpec(name, partitions, config or {})])

    def input_topic(
        self,
        topic: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        start_ms: int | None = None,
        auto_advance: timedelta | None = None,
    ) -> TestInputTopic[K, V]:
        """Return a topic to write to; keys choose partitions as in Kafka. `pipe_input` returns once brokers have the record.

        Args:
            topic: A topic that exists.
            key_serde: Serializes keys.
            value_serde: Serializes values.
            start_ms: Time of the first record that is piped without a timestamp, ms since the epoch; defaults to now.
            auto_advance: How far the topic's time moves with each such record; defaults to not at all. Without both, such
                records have the cluster's time when they are piped.
        """
        serdes = _placed(topic, key_serde, value_serde)
        if start_ms is None and auto_advance is None:
            return TestInputTopic(topic, *serdes, self._pipe, _now_ms=lambda: self.now_ms)
        advance_ms = 0 if auto_advance is None else millis(auto_advance)
        return TestInputTopic(topic, *serdes, self._pipe, self.now_ms if start_ms is None else start_ms, advance_ms)

    def output_topic(self, topic: str, key_serde: Serde[K], value_serde: Serde[V]) -> TestOutputTopic[K, V]:
        """Return a topic to read committed records from: of each partition in their order, the partitions one by one."""
        return TestOutputTopic(topic, *_placed(topic, key_serde, value_serde), self._take, self._size)

    def table(self, topic: str, key_serde: Serde[K], value_serde: Serde[V]) -> dict[K, V]:
        """Return the rows of a topic that is a table: the last committed value of each key, without those deleted."""
        rows: dict[bytes, bytes | None] = {}
        for record in self._records(topic, {}):
            if record.key is not None:
                rows[record.key] = record.value
        keys, values = _placed(topic, key_serde, value_serde)
        return {keys.deserialize(key): values.deserialize(value) for key, value in rows.items() if value is not None}

    @property
    def now_ms(self) -> int:
        """The time of the cluster, ms since the epoch."""
        return self.turns.now_ns // 1_000_000

    def advance(self, by: timedelta) -> None:
        """Let time pass, with all that happens meanwhile."""
        self._refuse_closed()
        self.turns.sleep(by.total_seconds())

    def wait_until(self, condition: Callable[[], bool], within: timedelta) -> None:
        """Let time pass until a condition holds.

        Raises:
            StreamsError: If it does not hold in time, or a host has failed whose error the test has not seen. The error names
                the seed.
        """
        self._refuse_closed()
        began_ns = self.turns.now_ns
        while not condition():
            self._refuse_failed()
            waited_s = (self.turns.now_ns - began_ns) / 1e9
            if waited_s > within.total_seconds():
                message = f"The condition does not hold after {within}, with seed {self.turns.seed}"
                raise StreamsError(message)
            self.turns.sleep(max(_LOOK_SECONDS, waited_s / _LOOKS))

    def start(self, name: str, function: Callable[[], object]) -> ClusterHost:
        """Call a function in a process of the cluster, which can be killed and suspended."""
        self._refuse_closed()
        host = self.turns.start_host(name, function)
        self._watched.append(host)
        return ClusterHost(self.turns, host, self._watched)

    def start_worker(self, app: App, name: str = "worker", *, threads: int | None = None) -> ClusterWorker:
        """Start a worker of an application, in the version that the application was asked for, or in the live one.

        Workers of the same name have the same local state, one after the other.

        Args:
            app: The application.
            name: The name of its process.
            threads: Number of stream threads; defaults to that of the application.
        """
        self._refuse_closed()
        state = self._directory / "workers" / name
        begun: list[AppWorker] = []

        def run() -> None:
            worker = app.worker(state_dir=state, threads=threads)
            worker.start()
            begun.append(worker)
            worker.wait()

        self.start(name, run)
        return ClusterWorker(self.turns, self._watched[-1], self._watched, begun)

    def _refuse_closed(self) -> None:
        if self not in _OPEN:
            raise StreamsError("The cluster is not open", hint="Use it within `with Cluster() as cluster:`.")

    def _refuse_failed(self) -> None:
        for host in self._watched:
            if (error := _failure(host)) is not None:
                message = f"Host {host.name!r} has failed, with seed {self.turns.seed}: {type(error).__name__}: {error}"
                raise StreamsError(message) from error

    def _forget(self) -> None:
        # Their finalizers hold consumers, which hold the brokers and so this cluster: together they would live for ever.
        for name in ("_admin", "_producer"):
            # An error while it was entered counts, not that there is none yet.
            vars(self).pop(name, None)

    def _close_producer(self) -> None:
        if not self.turns.is_stuck:
            self._producer.close()

    def _note_for_the_end_of_the_host(self, call: Callable[[], None]) -> None:
        self.turns.host.at_end.append(call)

    def _away(self) -> Callable[[], bool]:
        return partial(self.turns.is_away, self.turns.host)

    def _tick(self) -> None:
        while True:
            # The test, and the brokers themselves.
            is_idle = self.turns.awake <= 2  # noqa: PLR2004 - as above
            self.turns.sleep(_IDLE_TICK_SECONDS if is_idle else _TICK_SECONDS)
            self.brokers.tick()

    def _pipe(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> None:
        self._refuse_closed()
        self._producer.send(topic, key, value, timestamp, headers, None)
        self._producer.flush()

    def _take(self, topic: str) -> RawRecord | None:
        self._size(topic)
        return self._unread[topic].popleft() if self._unread[topic] else None

    def _size(self, topic: str) -> int:
        self._unread[topic] += self._records(topic, self._read[topic])
        return len(self._unread[topic])

    def _records(self, topic: str, read: dict[TopicPartition, int]) -> list[RawRecord]:
        """Return the committed records of a topic behind those that were read, and take note of them."""
        self._refuse_closed()
        tps = [TopicPartition(topic, number) for number in range(self._admin.partitions([topic]).get(topic, 0))]
        starts, ends = self._admin.beginning_offsets(tps), self._admin.end_offsets(tps)
        ranges = {tp: OffsetRange(max(read.get(tp, 0), starts[tp]), end) for tp, end in ends.items()}
        found: dict[TopicPartition, list[RawRecord]] = {tp: [] for tp in tps}
        for tp, batch in read_range(self._admin, ranges):
            found[tp] += batch
        read |= ends
        return [record for tp in tps for record in found[tp]]


class ClusterHost:
    """A process of a cluster in memory."""

    def __init__(self, turns: Turns, host: Host, watched: list[Host]) -> None:
        self._turns = turns
        self._host = host
        self._watched = watched

    @property
    def is_alive(self) -> bool:
        """True until it has stopped, was killed, or has failed."""
        return not self._host.is_dead

    @property
    def error(self) -> BaseException | None:
        """The error that has ended it; None if it was killed. An error that was looked at no longer fails the test."""
        found = _failure(self._host)
        if found is not None and self._host in self._watched:
            self._watched.remove(self._host)
        return found

    def kill(self) -> None:
        """Kill it, as SIGKILL does: nothing that it would still do reaches the brokers."""
        self._turns.kill(self._host)

    def suspend(self) -> None:
        """Suspend it, as SIGSTOP does."""
        self._turns.suspend(self._host)

    def resume(self) -> None:
        """Resume it."""
        self._turns.suspend(self._host, is_suspended=False)

    def join(self, within: timedelta) -> None:
        """Wait for its end. Returns also if it was killed.

        Raises:
            StreamsError: If it does not end in time.
            BaseException: The error that has ended it.
        """
        if not self._turns.wait_until(lambda: self._host.is_dead, within.total_seconds()):
            message = f"Host {self._host.name!r} has not ended after {within}, with seed {self._turns.seed}"
            raise StreamsError(message)
        if self.error is not None:
            raise self.error


class ClusterWorker(ClusterHost):
    """A worker in a process of a cluster in memory."""

    def __init__(self, turns: Turns, host: Host, watched: list[Host], begun: list[AppWorker]) -> None:
        super().__init__(turns, host, watched)
        self._begun = begun

    @property
    def version(self) -> str | None:
        """The version that it processes; None until it has begun."""
        return self._begun[0].application.version if self._begun else None

    def stop(self, within: timedelta) -> None:
        """Let it commit, hand over its tasks and end, as SIGTERM does.

        Raises:
            StreamsError: If it does not end in time.
            BaseException: The error that has ended it.
        """
        ends_ns = self._turns.now_ns + within.total_seconds() * 1e9
        if self._await_begin(within):
            self._begun[0].close(0)
        self.join(timedelta(seconds=max(0.0, ends_ns - self._turns.now_ns) / 1e9))

    def scale(self, threads: int) -> None:
        """Set its number of stream threads, which it reaches as time passes."""
        if self._await_begin(_LONGEST_BEGIN):
            self._begun[0].scale(threads)

    def _await_begin(self, within: timedelta) -> bool:
        self._turns.wait_until(lambda: bool(self._begun) or self._host.is_dead, within.total_seconds())
        return self.is_alive and bool(self._begun)


class _Clock:
    """The clock of turns, for brokers."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def now_ms(self) -> int:
        """Return the time."""
        return self._turns.now_ns // 1_000_000


def _failure(host: Host) -> BaseException | None:
    return None if isinstance(host.error, Killed) else host.error


def _placed(topic: str, key_serde: Serde[K], value_serde: Serde[V]) -> tuple[Serde[K], Serde[V]]:
    keys, values = (SerdePlace(topic, is_key, {}) for is_key in (True, False))
    return placed(key_serde, keys), placed(value_serde, values)


def _stand_ins(turns: Turns) -> list[tuple[object, object]]:
    """Return what stands in for processes of stream threads and their look-ups, with what it replaces."""
    processes = Processes(turns)

    def ready(pipe: PipeEnd) -> Callable[[float | None], object]:
        return lambda ms: turns.wait_until(pipe.is_readable, None if ms is None else ms / 1000)

    def obey(pipe: Any, queries: Any, job: Any, build: Any, _logs: object) -> None:
        obey_instance(pipe, queries, job, build)

    return [
        (multiprocessing, Namespace(multiprocessing, {"Pipe": processes.pipe})),
        (multiprocessing.connection.wait, processes.wait),
        (start_child, processes.start),
        (run_stream_thread, obey),
        (readiness, ready),
        (LOOKUPS, SimulatedLookups(turns)),
        # A socket would not find these brokers, whichever requests are lost.
        (obstacle_to, lambda _server, *, tls: None),  # noqa: ARG005 - named by callers
        # Handlers belong to the process.
        (signal, Namespace(signal, {"signal": lambda _number, _handler: None})),
    ]
