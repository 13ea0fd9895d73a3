"""`MockProcessorContext`: the context of a processor in a unit test, without a topology."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from riverrun.arguments import PUNCTUATOR
from riverrun.errors import InvalidStateStoreError, StreamsError, TopologyError
from riverrun.processor.metrics import StreamsMetrics, metric_config
from riverrun.processor.stats import RecordingLevel
from riverrun.records import RecordMetadata, TaskId
from riverrun.runtime.context import TaskContext
from riverrun.state.api import StoreBuilder, name_of
from riverrun.state.memory import MemoryBackend
from riverrun.state.stores.opening import open_store
from riverrun.testing.driver import MockClock
from riverrun.testing.topics import given_settings
from riverrun.testing.watching import ValueWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta
    from pathlib import Path

    from riverrun.config import StreamsConfig
    from riverrun.processor.api import FixedKeyProcessorContext, FixedKeyRecord, ProcessorContext, PunctuationType
    from riverrun.records import Record

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class CapturedForward:
    """A forwarded record (`MockProcessorContext.CapturedForward`).

    Args:
        record: The record that the processor passed to `forward`.
        child_name: The child that received it; None for all.
    """

    record: Record[Any, Any] | FixedKeyRecord[Any, Any]
    child_name: str | None = None


@dataclass(slots=True)
class CapturedPunctuator:
    """A scheduled punctuation (`MockProcessorContext.CapturedPunctuator`); a test calls `punctuator` itself.

    Args:
        interval: Time between two calls.
        punctuation_type: The clock that it follows.
        punctuator: The function to call with the time in ms.
        start_ms: Time of the first call, ms since the epoch; None by default.
        cancelled: Whether the processor has cancelled it.
    """

    interval: timedelta
    punctuation_type: PunctuationType
    punctuator: Callable[[int], None]
    start_ms: int | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """Record the cancellation."""
        self.cancelled = True


class MockProcessorContext:
    """Captures what a processor does (`org.apache.kafka.streams.processor.api.MockProcessorContext`).

    For `Processor`, `FixedKeyProcessor` and `ValueTransformerWithKey`. The test is the host: it calls `init` and `process`,
    sets times and the origin of the current record, and calls punctuators. Reading the captured calls warns of values
    that the processor changed in place (`ChangedValueWarning`): a forwarded record, or a value from a store.

    >>> from riverrun import Processor, Record
    >>> class Shout(Processor[str, str]):
    ...     def init(self, context):
    ...         self.context = context
    ...
    ...     def process(self, record):
    ...         self.context.forward(record.with_value(record.value.upper()))
    >>> context, processor = MockProcessorContext(), Shout()
    >>> processor.init(context)
    >>> processor.process(Record("k", "hello", 5))
    >>> context.forwarded()
    [CapturedForward(record=Record(key='k', value='HELLO', timestamp=5, headers=()), child_name=None)]

    Args:
        config: Settings for the processor to read, also under Kafka Streams' dotted names.
        application_id: What the context returns as `application_id`, and as the setting `application.id`.
        task_id: What the context returns as `task_id`; defaults to 0_0.
        state_dir: Directory of local state; needed only if the processor asks for it.

    Raises:
        ConfigError: If a setting is unknown or impossible.
    """

    def __init__(
        self,
        config: StreamsConfig | Mapping[str, Any] | None = None,
        *,
        application_id: str = "test",
        task_id: TaskId | None = None,
        state_dir: Path | None = None,
    ) -> None:
        self._configs = {**given_settings(config, "MockProcessorContext").settings(), "application.id": application_id}
        self._application_id = application_id
        self._task_id = task_id or TaskId(0, 0)
        self._state_dir = state_dir
        self._clock = MockClock()
        self._task = TaskContext(self._clock)
        self._system_time_ms: int | None = None
        self._stream_time_ms: int | None = None
        self._stores: dict[str, Any] = {}
        self._watch = ValueWatch()
        self._begin_to_watch()
        self._forwarded: list[CapturedForward] = []
        self._punctuators: list[CapturedPunctuator] = []
        self._committed = False
        # Whatever `metrics.recording.level` says: a test looks at all sensors.
        taken = replace(metric_config(self._configs), record_level=RecordingLevel.DEBUG)
        self._metrics = StreamsMetrics(self._clock.now_ms, taken)

    @property
    def application_id(self) -> str:
        """The application id."""
        return self._application_id

    @property
    def task_id(self) -> TaskId:
        """The task's id."""
        return self._task_id

    @property
    def state_dir(self) -> Path:
        """The directory of local state that the test has set.

        Raises:
            StreamsError: If the test has not set it.
        """
        if self._state_dir is None:
            message = "The context was made without a state_dir"
            raise StreamsError(message, hint="MockProcessorContext(state_dir=...)")
        return self._state_dir

    @property
    def metrics(self) -> StreamsMetrics:
        """The processor's sensors, which record up to level DEBUG. `metrics.metrics()` returns their values."""
        return self._metrics

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """The metadata that the test has set."""
        return self._task.record_metadata

    def set_record_metadata(self, topic: str, partition: int, *, offset: int) -> None:
        """Set the origin of the records that are processed next."""
        self._tell_changes()
        self._task.topic, self._task.partition, self._task.offset = topic, partition, offset

    def app_configs(self) -> dict[str, Any]:
        """Return the settings, including defaults."""
        return dict(self._configs)

    def app_configs_with_prefix(self, prefix: str) -> dict[str, Any]:
        """Return the settings that begin with the prefix, without the prefix."""
        return {key.removeprefix(prefix): value for key, value in self._configs.items() if key.startswith(prefix)}

    def current_system_time_ms(self) -> int:
        """Return the clock that the test has set.

        Raises:
            StreamsError: If the test has not set it.
        """
        return _given(self._system_time_ms, "System time", "set_current_system_time_ms")

    def set_current_system_time_ms(self, time_ms: int) -> None:
        """Set the host's clock, ms since the epoch; sensors use it as well."""
        self._system_time_ms = self._clock.time_ms = time_ms

    def current_stream_time_ms(self) -> int:
        """Return the stream time that the test has set.

        Raises:
            StreamsError: If the test has not set it.
        """
        return _given(self._stream_time_ms, "Stream time", "set_current_stream_time_ms")

    def set_current_stream_time_ms(self, time_ms: int) -> None:
        """Set the task's stream time, ms since the epoch."""
        self._stream_time_ms = time_ms

    def add_state_store(self, store: Any) -> Any:
        """Add a store for the processor.

        Args:
            store: A description from `Stores`: the store is created in memory, whatever its kind, without a changelog. Or any
                object with a `name`.

        Returns:
            The store, for inspection.
        """
        opened = store
        if isinstance(store, StoreBuilder):
            opened = open_store(store, MemoryBackend(), self._task)
            self._watch.opened(store, opened)
        self._stores[opened.name] = opened
        return opened

    @overload
    def get_state_store(self, store: StoreBuilder[S]) -> S: ...

    @overload
    def get_state_store(self, store: str) -> Any: ...

    def get_state_store(self, store: str | StoreBuilder[Any]) -> Any:
        """Return a store that was added, by its name or its builder.

        Raises:
            InvalidStateStoreError: If there is no such store.
        """
        name = name_of(store)
        if name not in self._stores:
            message = f"The context has no StateStore {name}"
            raise InvalidStateStoreError(message, hint="Call add_state_store before the processor's init.")
        return self._stores[name]

    def schedule(
        self,
        interval: timedelta,
        punctuation_type: PunctuationType,
        punctuator: Callable[[int], None],
        *,
        start_ms: int | None = None,
    ) -> CapturedPunctuator:
        """Capture a punctuation; only the test calls it.

        Raises:
            TopologyError: If the punctuator cannot be called with a time, or is async or a generator function.
        """
        complaint = PUNCTUATOR.complaint(punctuator)
        if complaint is not None:
            message = f"the punctuator {complaint}"
            raise TopologyError(message)
        captured = CapturedPunctuator(interval, punctuation_type, punctuator, start_ms)
        self._punctuators.append(captured)
        return captured

    def scheduled_punctuators(self) -> list[CapturedPunctuator]:
        """Return the punctuations scheduled so far, in order, cancelled or not."""
        return list(self._punctuators)

    def forward(self, record: Record[Any, Any] | FixedKeyRecord[Any, Any], child: str | None = None) -> None:
        """Capture a record."""
        self._watch.was_forwarded(record.key, record.value)
        self._forwarded.append(CapturedForward(record, child))

    def forwarded(self, child_name: str | None = None) -> list[CapturedForward]:
        """Return the records forwarded so far, in order.

        Args:
            child_name: Selects the records that this child would have received.
        """
        self._tell_changes()
        if child_name is None:
            return list(self._forwarded)
        return [captured for captured in self._forwarded if captured.child_name in {None, child_name}]

    def reset_forwards(self) -> None:
        """Forget what has been forwarded."""
        self._tell_changes()
        self._forwarded.clear()

    def commit(self) -> None:
        """Record that the processor asked for a commit."""
        self._committed = True

    def committed(self) -> bool:
        """True if the processor has asked for a commit since the beginning, or since `reset_commit`."""
        self._tell_changes()
        return self._committed

    def reset_commit(self) -> None:
        """Forget that the processor asked for a commit."""
        self._committed = False

    def _begin_to_watch(self) -> None:
        self._watch.enter("The processor", None, None, None)

    def _tell_changes(self) -> None:
        # Whatever a test reads from the context, it reads between two calls of the processor.
        self._watch.leave(0)
        self._begin_to_watch()
        self._watch.tell()


def _given(time_ms: int | None, what: str, setter: str) -> int:
    if time_ms is None:
        message = f"{what} must be set before use via {setter}()"
        raise StreamsError(message)
    return time_ms


_serves_processors: Callable[[], ProcessorContext] = MockProcessorContext
_serves_fixed_key_processors: Callable[[], FixedKeyProcessorContext] = MockProcessorContext
