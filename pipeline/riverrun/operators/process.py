"""Runs a user's `Processor`, `FixedKeyProcessor` or transformer as an operator; only here do records become objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from riverrun.processor.suppliers import refuse_result
from riverrun.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.processor.api import FixedKeyProcessor, FixedKeyRecord, Processor
    from riverrun.processor.metrics import StreamsMetrics
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers, RecordMetadata, TaskId


class UserContext:
    """A `ProcessorContext`, or a `FixedKeyProcessorContext`, above an operator's context.

    Args:
        is_lookup: Whether a value is looked up; then there is no current record.
    """

    def __init__(self, context: OperatorContext, forward: Callable[..., None], *, is_lookup: bool = False) -> None:
        self._context = context
        self._is_lookup = is_lookup
        # The operator's own methods, bound once: users call them for every record.
        self.forward = forward
        self.app_configs = context.app_configs
        self.app_configs_with_prefix = context.app_configs_with_prefix
        self.get_state_store = context.get_state_store
        self.schedule = context.schedule
        self.commit = context.commit
        self.current_system_time_ms = context.current_system_time_ms
        self.current_stream_time_ms = context.current_stream_time_ms

    @property
    def application_id(self) -> str:
        """Return the application's id."""
        return self._context.application_id

    @property
    def task_id(self) -> TaskId:
        """Return the id of the task that this processor belongs to."""
        return self._context.task_id

    @property
    def state_dir(self) -> Path:
        """Return the directory of the task's local state."""
        return self._context.state_dir

    @property
    def metrics(self) -> StreamsMetrics:
        """Return the sensors of the task's processors."""
        return self._context.metrics

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Return the place of the current record's input record."""
        return None if self._is_lookup else self._context.record_metadata


class UserProcessor:
    """Adapts a `Processor`, or a `FixedKeyProcessor`, to the way operators are called.

    Args:
        record: The class of the records that it takes.
    """

    may_schedule: ClassVar[bool] = True

    def __init__(
        self, processor: Processor[Any, Any] | FixedKeyProcessor[Any, Any], record: Callable[..., Any] = Record
    ) -> None:
        self._processor = processor
        self._record = record
        self._process: Callable[..., object] = processor.process

    def init(self, context: OperatorContext) -> None:
        self._processor.init(UserContext(context, _forwarding(context)))

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        result: object = self._process(self._record(key, value, timestamp, headers))
        if result is not None:
            refuse_result(result, f"{type(self._processor).__qualname__}.process")

    def close(self) -> None:
        self._processor.close()


def _forwarding(context: OperatorContext) -> Callable[..., None]:
    """Return the function that forwards a processor's records to the operator's children."""

    def forward(record: Record[Any, Any] | FixedKeyRecord[Any, Any], child: str | None = None) -> None:
        send = context.forward if child is None else context.forward_to(child)
        send(record.key, record.value, record.timestamp, record.headers)

    return forward
