"""The task as an operator sees it, with checks of what users' functions choose before a client or broker receives it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from riverrun.arguments import PUNCTUATOR
from riverrun.errors import InvalidStateStoreError, ProcessingError, TopologyError
from riverrun.processor.api import PunctuationType
from riverrun.records import Change, is_legal_topic
from riverrun.runtime.context import GLOBAL_TASK, Elsewhere
from riverrun.runtime.times import KeptSchedules
from riverrun.state.api import name_of
from riverrun.windows import MAX_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta
    from pathlib import Path

    from riverrun.partitioning import StreamPartitioner
    from riverrun.processor.handlers import DropReason
    from riverrun.processor.metrics import StreamsMetrics
    from riverrun.records import Headers, RecordMetadata, TaskId
    from riverrun.runtime.context import TaskContext
    from riverrun.runtime.failures import Failures
    from riverrun.runtime.ports import Watch
    from riverrun.runtime.times import Schedule
    from riverrun.state.api import CachedUpdate, Place, StoreBuilder

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChosenTopic:
    """The topic that a sink's function chooses for a record.

    Args:
        partitions: Returns the number of partitions of a topic, or raises if there is no such topic.
        met: Names that were checked already.
    """

    sink: str
    choose: Callable[[Any, Any, int], Any]
    partitions: Callable[[str], int]
    met: set[str] = field(default_factory=set)

    def __call__(self, key: Any, value: Any, timestamp: int) -> Any:
        name = self.choose(key, value, timestamp)
        if not isinstance(name, str) or name not in self.met:
            if not isinstance(name, str) or not is_legal_topic(name):
                message = f"The function of sink {self.sink} chose the topic {name!r}, which is not a legal topic name"
                raise ProcessingError(message)
            # Only to raise if there is no such topic.
            self.partitions(name)
            self.met.add(name)
        return name


@dataclass(frozen=True, slots=True)
class ChosenPartitions:
    """The partitions that a sink's partitioner chooses for a record."""

    sink: str
    choose: StreamPartitioner
    partitions: Callable[[str], int]

    def __call__(self, topic: str, key: Any, value: Any) -> Collection[int | None]:
        """Choose partitions; a single None leaves the choice to Kafka's default."""
        chosen: Any = self.choose(topic, key, value, self.partitions(topic))
        if chosen is None or (isinstance(chosen, int) and chosen >= 0):  # the usual choices
            return (chosen,)
        numbers = chosen if isinstance(chosen, Collection) and not isinstance(chosen, str) else (chosen,)
        for number in numbers:
            if not isinstance(number, int) or number < 0:
                message = f"The partitioner of sink {self.sink} chose {number!r} for {topic}: a partition is a number from 0 on"
                raise ProcessingError(message)
        return numbers


def is_time(chosen: object) -> bool:
    """Return whether something is a time in ms, or a negative number, which stands for no time."""
    return isinstance(chosen, int) and chosen <= MAX_TIME_MS


@dataclass(slots=True)
class NodeContext:
    """An `OperatorContext`: one node's view of its task."""

    node: str
    application_id: str
    task_id: TaskId
    task: TaskContext
    forward: Callable[[Any, Any, int, Headers], None]
    children: Mapping[str, Callable[[Any, Any, int, Headers], None]]
    stores: Mapping[str, Any]
    failures: Failures
    watch: Watch | None = None
    flush: Callable[[Sequence[CachedUpdate], Callable[[Any], Any]], None] | None = None
    """Forwards many updates without a call for each, if there is such a function (`Fusion.flush`)."""
    opened: list[Callable[[], None]] = field(default_factory=list)
    # Set by `CompiledNodes.init`: schedules that are made meanwhile continue where a predecessor's stopped.
    starting: bool = False
    schedules: KeptSchedules = field(default_factory=KeptSchedules)

    @property
    def headers(self) -> Headers:
        return self.task.headers

    @property
    def timestamp(self) -> int:
        """Return the event time of the current record, ms."""
        return self.task.timestamp

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Return the topic, partition and offset of the input record; None within a punctuation."""
        return self.task.record_metadata

    def forward_to(self, child: str) -> Callable[[Any, Any, int, Headers], None]:
        """Return the function that forwards to one child."""
        if child not in self.children:
            message = f"Unknown downstream node: {child} either does not exist or is not connected to {self.node}"
            raise TopologyError(message)
        return self.children[child]

    def acting_as(
        self,
        metadata: Place | None,
        act: Callable[[Any, Any, int, Headers], None],
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Pass a record to a function as if it were the current one, then restore the current one."""
        task, is_by_time = self.task, self.task.is_by_time
        before = task.topic, task.partition, task.offset, task.timestamp, task.headers, task.source
        task.enter(metadata, timestamp, headers)
        # No `finally`: handlers are asked about the record that has failed.
        try:
            act(key, value, timestamp, headers)
        except BaseException as error:
            task.elsewhere = Elsewhere(error, (key, value, timestamp, headers), before)
            if task.is_by_time:
                task.failed_by_time = error
            raise
        finally:
            task.is_by_time = is_by_time
        task.topic, task.partition, task.offset, task.timestamp, task.headers, task.source = before

    def by_time(self, act: Callable[[], None]) -> None:
        """Process what time has brought out: the current record is not set aside for its failures, as the next one would be."""
        task = self.task
        before, task.is_by_time = task.is_by_time, True
        try:
            act()
        except BaseException as error:
            task.failed_by_time = error
            raise
        finally:
            task.is_by_time = before

    def acting_at(self, time_ms: int, act: Callable[[], None]) -> None:
        """Act as if the current record had another time, ms, and no headers; then restore it."""
        task = self.task
        before = task.topic, task.partition, task.offset, task.timestamp, task.headers, task.source
        task.timestamp, task.headers = time_ms, ()
        # No `finally`, as above.
        try:
            self.by_time(act)
        except BaseException as error:
            task.elsewhere = Elsewhere(error, None, before)
            raise
        task.timestamp, task.headers = before[3], before[4]

    def forward_flushed(self, updates: Sequence[CachedUpdate], key_of: Callable[[Any], Any]) -> None:
        """Forward the updates that a cache held back, then restore the current record."""
        if self.flush is None:
            for key, new, old, timestamp, headers, place in updates:
                self.acting_as(place, self.forward, key_of(key), Change(new, old), timestamp, headers)
            return
        task = self.task
        before = task.topic, task.partition, task.offset, task.timestamp, task.headers
        self.flush(updates, key_of)
        task.topic, task.partition, task.offset, task.timestamp, task.headers = before

    def get_state_store(self, store: str | StoreBuilder[Any]) -> Any:
        name = name_of(store)
        if name not in self.stores:
            message = f"Processor {self.node} has no access to StateStore {name} as the store is not connected to it"
            raise InvalidStateStoreError(
                message, hint="Name the store when the processor is added, or connect them afterwards."
            )
        return self.stores[name]

    @property
    def state_dir(self) -> Path:
        """Return the directory of the task's local state."""
        return self.task.environment.directory

    @property
    def metrics(self) -> StreamsMetrics:
        """Return the sensors of the task's processors."""
        return self.task.metrics

    def app_configs(self) -> dict[str, Any]:
        """Return the application's settings."""
        return dict(self.task.environment.configs)

    def app_configs_with_prefix(self, prefix: str) -> dict[str, Any]:
        """Return the settings that begin with the prefix, without it."""
        configs = self.task.environment.configs
        return {key.removeprefix(prefix): value for key, value in configs.items() if key.startswith(prefix)}

    def schedule(
        self,
        interval: timedelta,
        punctuation_type: PunctuationType,
        punctuator: Callable[[int], None],
        *,
        start_ms: int | None = None,
    ) -> Schedule:
        """Schedule calls, the first at `start_ms`, else with the first record (stream time) or after one interval (wall clock).

        A schedule by stream time that is made while the node is initialised continues where a predecessor stopped.
        """
        complaint = PUNCTUATOR.complaint(punctuator)
        if complaint is not None:
            raise TopologyError(f"{self.node}: the punctuator {complaint}")
        if self.task_id == GLOBAL_TASK:
            message = f"schedule() not supported in global processor context: {self.node} fills a global store"
            raise TopologyError(message)

        called = punctuator if self.watch is None else self._watched(punctuator, self.watch)

        def punctuate(now_ms: int) -> None:
            self.task.enter(None, now_ms, ())
            self.failures.punctuate(called, now_ms, self.node)

        if punctuation_type is PunctuationType.STREAM_TIME:
            clock, now_ms, first_ms = self.task.stream_punctuations, self.task.stream_time, 0
        else:
            clock, now_ms = self.task.wall_clock_punctuations, self.task.clock.now_ms()
            first_ms = now_ms + round(interval.total_seconds() * 1000)
        if start_ms is None:
            schedule = clock.schedule(first_ms, interval, punctuate)
        else:
            schedule = clock.schedule_from(start_ms, now_ms, interval, punctuate)
        # Wall-clock punctuations start afresh: only stream time must not depend on restarts.
        if self.starting and punctuation_type is PunctuationType.STREAM_TIME:
            self.schedules.add(schedule)
        return schedule

    def _watched(self, punctuator: Callable[[int], object], watch: Watch) -> Callable[[int], object]:
        def look_on(now_ms: int) -> object:
            call = watch.enter(self.node, None, None, None)
            result: object = punctuator(now_ms)
            watch.leave(call)
            return result

        return look_on

    def processor_metadata(self, key: str) -> int | None:
        """Return a time (ms) that was committed with the offsets."""
        return self.task.processor_metadata.get(key)

    def set_processor_metadata(self, key: str, time_ms: int) -> None:
        """Commit a time (ms) with the offsets of the next commit."""
        self.task.processor_metadata[key] = time_ms

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return an object that operators of the task share, made on first use."""
        if name not in self.task.shared:
            self.task.shared[name] = make()
        return cast("T", self.task.shared[name])

    def close_with(self, close: Callable[[], None]) -> None:
        """Register a function to be called after the operator has been closed."""
        self.opened.append(close)

    def drop(self, reason: DropReason) -> None:
        """Count a record that is not processed further."""
        self.task.drop(reason)

    def commit(self) -> None:
        self.task.commit_requested = True

    def current_system_time_ms(self) -> int:
        """Return the host's clock, ms."""
        return self.task.clock.now_ms()

    def current_stream_time_ms(self) -> int:
        """Return the task's stream time, ms."""
        return self.task.stream_time
