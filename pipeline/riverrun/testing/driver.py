"""`TopologyTestDriver`: runs a topology in memory, one record at a time."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from riverrun.errors import ConfigError, InvalidStateStoreError, SetAsideError, StreamsError
from riverrun.processor.handlers import error_handlers, global_error_handlers
from riverrun.processor.timestamps import timestamp_extractor
from riverrun.records import RawRecord, TaskId, TopicPartition
from riverrun.runtime.context import GLOBAL_TASK, TaskEnvironment
from riverrun.runtime.layout import TaskSpec, plan_layout, without_caches
from riverrun.runtime.ports import Ports
from riverrun.runtime.recorded_answers import AnsweredLookups, RecordingLookups, answers_of
from riverrun.runtime.serde_places import with_places
from riverrun.runtime.state_manager import GlobalState
from riverrun.runtime.task import Task
from riverrun.serde.api import SerdePlace, placed
from riverrun.state.api import StoreKind, name_of
from riverrun.state.memory import MemoryBackend
from riverrun.testing.attempts import Attempts
from riverrun.testing.lookups import VirtualLookups
from riverrun.testing.stores import PlainKeyValueStore, PlainWindowStore
from riverrun.testing.topics import TestInputTopic, TestOutputTopic, given_settings
from riverrun.testing.watching import ValueWatch
from riverrun.topology.nodes import SinkNode
from riverrun.windows import millis

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from datetime import timedelta

    from riverrun.config import StreamsConfig
    from riverrun.processor.handlers import ErrorHandlers
    from riverrun.records import Headers, ValueAndTimestamp
    from riverrun.runtime.recorded_answers import Answers
    from riverrun.serde.api import Serde
    from riverrun.state.api import StoreBuilder
    from riverrun.state.store_types import KeyValueStore, SessionStore, VersionedKeyValueStore, WindowStore
    from riverrun.topology.topology import Topology

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")

# Each driver has its own schema registry, in memory under a URL with its number: tests must not share schemas.
_DRIVERS = count()
# A topology that writes to its own inputs so many times in turn because of one record would never end.
_MOST_ROUNDS = 10_000


@dataclass(slots=True)
class MockClock:
    """A wall clock that moves only when set; times in ms."""

    time_ms: int = 0

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self.time_ms


@dataclass(slots=True)
class MemoryTopics:
    """All topics of the driver: one partition each, with all records kept. A `RecordCollector`."""

    logs: dict[str, list[RawRecord]] = field(default_factory=dict)
    read: Counter[str] = field(default_factory=Counter)
    inputs: set[str] = field(default_factory=set)
    arrived: deque[tuple[str, RawRecord]] = field(default_factory=deque)
    _input_offsets: Counter[str] = field(default_factory=Counter)
    _uncommitted: list[str] = field(default_factory=list)
    """The topic of each record that was sent since the last commit."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,  # noqa: ARG002 - there is one
    ) -> None:
        """Append a record, and queue it for tasks that read the topic."""
        # Kafka's client refuses anything else, so a test must not pass with it.
        for data in (key, value):
            if data is not None and not isinstance(data, bytes | bytearray | memoryview | str):
                message = f"{data!r} ({type(data).__name__}) is written to {topic}: a serde must return bytes"
                raise TypeError(message)
        log = self.logs.setdefault(topic, [])
        log.append(RawRecord(key, value, timestamp, len(log), headers))
        self._uncommitted.append(topic)
        if topic in self.inputs:
            self.pipe(topic, key, value, timestamp, headers)

    def pipe(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> None:
        """Queue a record for the tasks that read the topic."""
        self.arrived.append((topic, RawRecord(key, value, timestamp, self._input_offsets[topic], headers)))
        self._input_offsets[topic] += 1

    def commit(self) -> None:
        """Keep what was sent."""
        self._uncommitted.clear()

    def undo(self) -> None:
        """Remove what was sent since the last commit."""
        while self._uncommitted:
            topic = self._uncommitted.pop()
            self.logs[topic].pop()
            if topic in self.inputs:
                self.arrived.pop()
                self._input_offsets[topic] -= 1

    def end(self, topic: str) -> int:
        """Return the end offset of an input (exclusive)."""
        return self._input_offsets[topic]

    def partitions(self, topic: str) -> int:  # noqa: ARG002 - all are alike
        """Return 1: every topic has one partition."""
        return 1

    def take(self, topic: str) -> RawRecord | None:
        """Return the next unread record, or None."""
        log, at = self.logs.get(topic, []), self.read[topic]
        if at >= len(log):
            return None
        self.read[topic] += 1
        return log[at]

    def size(self, topic: str) -> int:
        """Return the number of unread records."""
        return len(self.logs.get(topic, [])) - self.read[topic]


@dataclass(slots=True)
class _Caching:
    """Decides when tasks commit whose caches hold updates back, as workers do."""

    settings: StreamsConfig
    committed_at_ms: int

    def is_due(self, now_ms: int, tasks: Collection[Task]) -> bool:
        is_late = now_ms - self.committed_at_ms >= self.settings.commit_interval_ms
        if is_late or any(task.commit_requested for task in tasks):
            return True
        most = self.settings.statestore_cache_max_bytes
        return most > 0 and sum(task.held_back_bytes() for task in tasks) > most


class TopologyTestDriver:
    """Runs a topology in memory (`org.apache.kafka.streams.TopologyTestDriver`).

    Each topic has one partition. For every input record, the driver processes it, punctuates by stream time and commits, so
    caches never hold anything back, unless `caching` is True. It then feeds records of internal topics back in until none is
    left. The wall clock stands still unless it is advanced. Look-ups end within the call, in virtual time: timeouts and
    pauses between attempts take no real time.

    >>> from riverrun import STRING, Consumed, Produced, StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", Consumed(STRING, STRING)).map_values(str.upper).to("out", Produced(STRING, STRING))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", STRING, STRING).pipe_input("a", "b", timestamp=5)
    ...     driver.output_topic("out", STRING, STRING).read_record()
    Record(key='a', value='B', timestamp=5, headers=())

    Args:
        topology: The topology, from `StreamsBuilder.build` or `Topology`.
        config: Settings, also under Kafka Streams' dotted names. Those that affect results have an effect: handlers, the dead
            letter topic, the timestamp extractor, whether stores cache at all (`statestore.cache.max.bytes`), and how long
            inputs wait for each other (`max.task.idle.ms`).
        application_id: Prefix of internal topics.
        initial_wall_clock_time_ms: Start of the wall clock, ms since the epoch.
        schema_registry: Settings of the schema registry; by default one in memory, for this driver only.
        answers: Recorded answers of look-ups, or their file, instead of calls. If an answer is missing, the call that pipes the
            record fails, whatever handlers do.
        record_answers: A file for the answers of look-ups; they are really made, and recorded.
        caching: Whether caches hold updates back, as in workers. The driver then commits when `commit` is called, and when the
            wall clock is advanced by `commit.interval.ms`. It also commits when a processor asks for it, and when the caches
            are full (`statestore.cache.max.bytes`). No record can be set aside.

    Raises:
        TopologyError: If the topology cannot run.
        ConfigError: If a setting is unknown or impossible, or refers to something that cannot be imported.
    """

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig | Mapping[str, Any] | None = None,
        *,
        application_id: str = "test",
        initial_wall_clock_time_ms: int = 0,
        schema_registry: Mapping[str, Any] | None = None,
        answers: Answers | None = None,
        record_answers: str | Path | None = None,
        caching: bool = False,
    ) -> None:
        """Open the stores and start the tasks."""
        settings = given_settings(config, "TopologyTestDriver")
        self._registry = schema_registry or {"url": f"mock://{next(_DRIVERS)}"}
        topology = with_places(topology, application_id, self._registry)
        configs = {**settings.settings(), "application.id": application_id}

        def environment(task: str) -> TaskEnvironment:
            return TaskEnvironment(configs, Path(settings.state_dir) / application_id / task)

        global_handlers, handlers = global_error_handlers(settings), error_handlers(settings)
        if caching:
            handlers = _without_setting_aside(handlers, settings)
        self._kinds = {name: builder.kind for name, builder in topology.stores.items()}
        self._kinds |= {declared.store.name: declared.store.kind for declared in topology.global_stores}
        self._processed = 0
        self._is_closed = False
        self._clock = MockClock(initial_wall_clock_time_ms)
        self._caching = _Caching(settings, initial_wall_clock_time_ms) if caching else None
        self._topics = MemoryTopics()
        self._watch = ValueWatch()
        self._calls = VirtualLookups(self._clock)
        self._lookups = _lookups(self._calls, answers, record_answers)
        self._global = GlobalState(
            topology,
            application_id,
            backend=MemoryBackend(),
            clock=self._clock,
            handlers=global_handlers,
            environment=environment("global"),
            watch=self._watch,
        )
        self._tasks: dict[TaskId, Task] = {}
        self._attempts: dict[TaskId, Attempts] = {}
        self._readers: dict[str, list[TaskId]] = {}
        for spec in _task_specs(topology, settings, application_id, environment, handlers):
            ports = Ports(
                self._topics,
                MemoryBackend(),
                self._clock,
                self._global.stores,
                watch=self._watch,
                lookups=self._lookups,
            )
            self._tasks[spec.id] = Task(spec, ports)
            sets_aside = spec.handlers.processing is not None or spec.handlers.production is not None
            self._attempts[spec.id] = Attempts(ports, sets_aside)
            for tp in spec.inputs:
                self._readers.setdefault(tp.topic, []).append(spec.id)
        if isinstance(self._lookups, AnsweredLookups):
            self._lookups.check_nodes(name for task in self._tasks.values() for name in task.lookup_nodes)
        self._topics.inputs = {*self._readers, *self._global.topics}
        for task in self._tasks.values():
            task.start({})

    def __enter__(self) -> Self:
        """Return the driver itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the driver."""
        self.close()

    def input_topic(
        self,
        topic: str,
        key_serde: Serde[K],
        value_serde: Serde[V],
        *,
        start_ms: int = 0,
        auto_advance: timedelta | None = None,
    ) -> TestInputTopic[K, V]:
        """Return an input topic to write to.

        Args:
            topic: A source topic (also one that a pattern matches), or the topic of a global table.
            key_serde: Serializes keys.
            value_serde: Serializes values.
            start_ms: Time of the first record that is piped without a timestamp, ms since the epoch.
            auto_advance: How far the topic's time moves with each such record; defaults to not at all.
        """
        if not self._readers_of(topic) and topic not in self._global.topics:
            message = f"No source reads topic {topic}"
            known = sorted({*self._readers, *self._global.topics})
            raise StreamsError(message, hint=f"The topology reads: {', '.join(known)}")
        advance_ms = millis(auto_advance) if auto_advance is not None else 0
        return TestInputTopic(topic, *self._placed(topic, key_serde, value_serde), self._pipe, start_ms, advance_ms)

    def output_topic(self, topic: str, key_serde: Serde[K], value_serde: Serde[V]) -> TestOutputTopic[K, V]:
        """Return an output topic to read from; internal topics and changelogs have their full names."""
        serdes = self._placed(topic, key_serde, value_serde)
        return TestOutputTopic(topic, *serdes, self._topics.take, self._topics.size, self._why_empty)

    def read_raw(self, topic: str) -> list[RawRecord]:
        """Return all unread records of a topic, serialized."""
        records = []
        while (record := self._topics.take(topic)) is not None:
            records.append(record)
        return records

    def produced_topic_names(self) -> set[str]:
        """Return every topic written to, including internal topics and changelogs."""
        return set(self._topics.logs)

    def advance_wall_clock_time(self, by: timedelta) -> None:
        """Advance the wall clock and call the punctuations that become due."""
        self._check_open()
        self._clock.time_ms += millis(by)
        self._watch.forget_calls()
        for task_id, task in list(self._tasks.items()):
            task.punctuate_wall_clock()
            if self._caching is None:
                # A record that is set aside must not undo this: another attempt schedules afresh.
                self._commit(task)
            self._process(task_id)
        self._settle()

    def commit(self) -> None:
        """Commit all tasks, until caches hold nothing back any more. Needed with `caching=True` only."""
        self._check_open()
        self._watch.forget_calls()
        self._commit_all()
        self._settle()

    def _commit_all(self) -> None:
        # What one task forwards may be held back by another one.
        for _ in range(_MOST_ROUNDS):
            waiting = [task for task in self._tasks.values() if task.needs_commit]
            if not waiting:
                break
            for task in waiting:
                self._commit(task)
            self._drain()
        else:
            raise _endless(self._topics.inputs)
        if self._caching is not None:
            self._caching.committed_at_ms = self._clock.time_ms

    @overload
    def get_state_store(self, store: StoreBuilder[S]) -> S: ...

    @overload
    def get_state_store(self, store: str) -> Any: ...

    def get_state_store(self, store: str | StoreBuilder[Any]) -> Any:
        """Return a store of any kind, by its name or its builder, to read it or to set up a test.

        Raises:
            InvalidStateStoreError: If the topology has no such store.
        """
        name = name_of(store)
        stores = self.get_all_state_stores()
        if name not in stores:
            message = f"The topology has no store {name}"
            raise InvalidStateStoreError(message, hint=f"It has: {', '.join(sorted(stores)) or 'none'}")
        return stores[name]

    def get_all_state_stores(self) -> Mapping[str, Any]:
        """Return all stores by name, including global ones."""
        stores = dict(self._global.stores)
        for task in self._tasks.values():
            stores |= task.stores()
        return stores

    def get_key_value_store(self, name: str) -> KeyValueStore[Any, Any]:
        """Return a key-value store; a timestamped store without its timestamps.

        Raises:
            InvalidStateStoreError: If there is no such store, or it has another kind. The other methods for stores
                raise it, too.
        """
        store = self._store_of(name, StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE)
        is_timestamped = self._kinds[name] is StoreKind.TIMESTAMPED_KEY_VALUE
        return PlainKeyValueStore(store) if is_timestamped else store

    def get_timestamped_key_value_store(self, name: str) -> KeyValueStore[Any, ValueAndTimestamp[Any]]:
        """Return a timestamped key-value store, the kind of tables and aggregations."""
        return self._store_of(name, StoreKind.TIMESTAMPED_KEY_VALUE)  # type: ignore[no-any-return]

    def get_versioned_key_value_store(self, name: str) -> VersionedKeyValueStore[Any, Any]:
        """Return a versioned store."""
        return self._store_of(name, StoreKind.VERSIONED)  # type: ignore[no-any-return]

    def get_window_store(self, name: str) -> WindowStore[Any, Any]:
        """Return a window store; a timestamped store without its timestamps."""
        store = self._store_of(name, StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW)
        is_timestamped = self._kinds[name] is StoreKind.TIMESTAMPED_WINDOW
        return PlainWindowStore(store) if is_timestamped else store

    def get_timestamped_window_store(self, name: str) -> WindowStore[Any, ValueAndTimestamp[Any]]:
        """Return a timestamped window store, the kind of windowed aggregations."""
        return self._store_of(name, StoreKind.TIMESTAMPED_WINDOW)  # type: ignore[no-any-return]

    def get_session_store(self, name: str) -> SessionStore[Any, Any]:
        """Return a session store."""
        return self._store_of(name, StoreKind.SESSION)  # type: ignore[no-any-return]

    def metrics(self) -> dict[str, float]:
        """Return the counts by Kafka Streams' names: `process-total`, `dropped-records-total`.

        Dropped records also appear by reason: `dropped-records-total{reason=late}`. Metrics of processors' sensors
        (`context.metrics`) appear by group, name and tags: `stream-cache-metrics:hit-total{cache-id=eu,task-id=0_0}`.
        """
        dropped = self.dropped()
        by_reason = {f"dropped-records-total{{reason={reason}}}": count for reason, count in sorted(dropped.items())}
        by_task = {GLOBAL_TASK: self._global.measured()}
        by_task |= {task_id: task.measured() for task_id, task in self._tasks.items()}
        own = {str(m.name.of_task(str(task))): m.value for task, measured in by_task.items() for m in measured}
        return {"process-total": self._processed, "dropped-records-total": dropped.total(), **by_reason, **own}

    def dropped(self) -> Counter[str]:
        """Return the number of dropped records by reason (`DropReason`)."""
        before = sum((attempts.dropped for attempts in self._attempts.values()), self._global.dropped)
        return sum((task.dropped for task in self._tasks.values()), before)

    def close(self) -> None:
        """Close the tasks and their processors; no further records can be piped. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._tasks.values():
            task.close()
        self._global.close()
        self._lookups.close()
        self._calls.close()

    def _placed(self, topic: str, key_serde: Serde[K], value_serde: Serde[V]) -> tuple[Serde[K], Serde[V]]:
        keys, values = (SerdePlace(topic, is_key, self._registry) for is_key in (True, False))
        return placed(key_serde, keys), placed(value_serde, values)

    def _store_of(self, name: str, *kinds: StoreKind) -> Any:
        store = self.get_state_store(name)
        if self._kinds[name] not in kinds:
            wanted = " or ".join(kind.value for kind in kinds)
            message = f"Store {name} is a {self._kinds[name].value} store, not a {wanted} store"
            raise InvalidStateStoreError(message)
        return store

    def _why_empty(self, topic: str) -> str | None:
        """Return why a topic may have no records: none are ever written to it, or caches hold them back."""
        sinks = [n for task in self._tasks.values() for n in task.spec.sub_topology.nodes if isinstance(n, SinkNode)]
        chosen = [sink.topic for sink in sinks if isinstance(sink.topic, str)]
        if topic in {*self._topics.logs, *chosen} or len(chosen) < len(sinks):
            is_held_back = self._caching is not None and any(task.needs_commit for task in self._tasks.values())
            return "Caches may hold updates back: call commit() of the driver." if is_held_back else None
        return f"The topology writes: {', '.join(sorted({*self._topics.logs, *chosen})) or 'nothing'}"

    def _check_open(self) -> None:
        if self._is_closed:
            message = "The driver has been closed"
            raise StreamsError(message)

    def _readers_of(self, topic: str) -> list[TaskId]:
        """Return the tasks that read a topic, by its name or by a pattern."""
        # Which topics match a pattern is only known once a test uses one of them.
        if topic not in self._readers:
            sources = (
                (task.spec.id, source) for task in self._tasks.values() for source in task.spec.sub_topology.sources
            )
            readers = [task_id for task_id, source in sources if source.pattern and source.pattern.fullmatch(topic)]
            if not readers:
                return []
            self._readers[topic] = readers
            self._topics.inputs.add(topic)
        return self._readers[topic]

    def _pipe(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> None:
        self._check_open()
        self._topics.pipe(topic, key, value, timestamp, headers)
        self._watch.forget_calls()
        self._settle()

    def _settle(self) -> None:
        """Process all that follows, and report what was wrong with look-ups and values."""
        try:
            self._drain()
            if self._caching is not None and self._caching.is_due(self._clock.time_ms, self._tasks.values()):
                self._commit_all()
        finally:
            # A missing answer is the error of the test, even if a handler has skipped its record or something else failed.
            if not isinstance(self._lookups, VirtualLookups):
                self._lookups.check()
        self._watch.tell()

    def _drain(self) -> None:
        """Process all records that have arrived, then the records that follow from them, and so on."""
        for _ in range(_MOST_ROUNDS):
            if not self._topics.arrived:
                return
            # A round takes what had arrived at its start: what follows from it counts as the next round.
            for _ in range(len(self._topics.arrived)):
                self._take_in(*self._topics.arrived.popleft())
        if self._topics.arrived:
            raise _endless({topic for topic, _ in self._topics.arrived})

    def _take_in(self, topic: str, record: RawRecord) -> None:
        tp = TopicPartition(topic, 0)
        if topic in self._global.topics:
            self._global.apply(tp, [record], record.offset + 1)
        for task_id in self._readers_of(topic):
            self._tasks[task_id].add_records(tp, [record])
            if (attempts := self._attempts[task_id]).may_be_needed:
                attempts.added.append((tp, record))
            self._process(task_id)

    def _process(self, task_id: TaskId) -> None:
        """Process records that need not wait for other inputs, and commit; start over without a record that is set aside."""
        while True:
            task = self._tasks[task_id]
            try:
                done = self._taken(task)
                if self._caching is None:
                    self._commit(task)
            except SetAsideError as error:
                self._topics.undo()
                self._lookups.undo((*error.aside.tp, error.aside.record.offset))
                self._watch.forget_calls()
                self._tasks[task_id] = self._attempts[task_id].another(task, error.aside)
            else:
                self._processed += done
                return

    def _taken(self, task: Task) -> int:
        """Process records, and return their number."""
        if task.spec.max_task_idle_ms < 0:
            return task.process_all()
        # An input without records holds the others back until the task knows that this is its end.
        for topic, readers in self._readers.items():
            if task.spec.id in readers:
                task.reached_end(TopicPartition(topic, 0), self._topics.end(topic))
        done = 0
        while task.is_ready():
            done += task.process(1)
            task.finish_lookups()
        return done

    def _commit(self, task: Task) -> None:
        # Metadata take a fifth of the time, and only another attempt reads them.
        attempts = self._attempts[task.spec.id]
        commit = task.prepare_commit(with_metadata=attempts.may_be_needed)
        ends = {tp: len(self._topics.logs[tp.topic]) for tp in commit.changelogs}
        task.post_commit(ends)
        self._topics.commit()
        self._lookups.commit(commit.offsets)
        if attempts.may_be_needed:
            attempts.committed(task, commit.offsets)


def _lookups(
    calls: VirtualLookups, answers: Answers | None, record: str | Path | None
) -> AnsweredLookups | RecordingLookups | VirtualLookups:
    if answers is not None and record is not None:
        message = "Look-ups either get recorded answers, or their answers are recorded"
        raise ConfigError(message)
    if answers is not None:
        return AnsweredLookups(answers_of(answers))
    return calls if record is None else RecordingLookups(calls, Path(record))


def _endless(topics: Iterable[str]) -> StreamsError:
    message = f"The topology has written to its own input {_MOST_ROUNDS} times in turn: {', '.join(sorted(topics))}"
    return StreamsError(message, hint="Write to another topic, or make sure that the loop ends.")


def _without_setting_aside(handlers: ErrorHandlers, settings: StreamsConfig) -> ErrorHandlers:
    """Return handlers that cannot set a record aside, as this would undo the records before it since the last commit."""
    if "set-aside" in {settings.processing_exception_handler, settings.production_exception_handler}:
        message = "TopologyTestDriver: a record cannot be set aside with caching=True"
        raise ConfigError(message, hint="Leave out caching=True: the driver then commits after each record.")
    return replace(handlers, can_undo=False)


def _task_specs(
    topology: Topology,
    settings: StreamsConfig,
    application_id: str,
    environment: Callable[[str], TaskEnvironment],
    handlers: ErrorHandlers,
) -> Iterator[TaskSpec]:
    """Return the description of each task; a task of patterns that match nothing yet has no inputs."""
    extractor = timestamp_extractor(settings.default_timestamp_extractor)
    layout = plan_layout(topology, application_id, dict.fromkeys(topology.external_topics, 1))
    subs = {sub.id: sub for sub in topology.sub_topologies()}
    if settings.statestore_cache_max_bytes == 0:
        subs = {number: without_caches(sub) for number, sub in subs.items()}
    waiting = {TaskId(number, 0): () for number, sub in subs.items() if any(s.pattern for s in sub.sources)}
    for task_id, inputs in {**waiting, **layout.tasks}.items():
        # A repartition topic may ask for several partitions, but has one here.
        if task_id.partition:
            continue
        yield TaskSpec(
            task_id,
            subs[task_id.sub_topology],
            application_id,
            inputs,
            handlers=handlers,
            timestamp_extractor=extractor,
            # Empty inputs count as complete, unless the task is to wait for them.
            max_task_idle_ms=settings.max_task_idle_ms or -1,
            environment=environment(str(task_id)),
        )
