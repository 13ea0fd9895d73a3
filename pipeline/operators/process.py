"""Runs a user's `Processor` or `FixedKeyProcessor` as an operator: records become objects here, and only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.processor.fixed_key import FixedKeyRecord
from pipeline.records import Record

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.processor.api import Processor
    from pipeline.processor.fixed_key import FixedKeyProcessor
    from pipeline.processor.metrics import StreamsMetrics
    from pipeline.processor.operator import OperatorContext
    from pipeline.records import Headers, RecordMetadata, TaskId


class UserProcessor:
    """Adapts a `Processor` to the way operators are called."""

    def __init__(self, processor: Processor[Any, Any]) -> None:
        """The processor is this task's own."""
        self._processor = processor
        self._process = processor.process

    def init(self, context: OperatorContext) -> None:
        """Hand the processor its context."""
        self._processor.init(_Context(context))

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Hand the processor a record."""
        self._process(Record(key, value, timestamp, headers))

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()


class UserFixedKeyProcessor:
    """Adapts a `FixedKeyProcessor` to the way operators are called."""

    def __init__(self, processor: FixedKeyProcessor[Any, Any]) -> None:
        """The processor is this task's own."""
        self._processor = processor
        self._process = processor.process

    def init(self, context: OperatorContext) -> None:
        """Hand the processor its context."""
        self._processor.init(_Context(context))

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Hand the processor a record."""
        self._process(FixedKeyRecord(key, value, timestamp, headers))

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()


class _Context:
    """A `ProcessorContext`, or a `FixedKeyProcessorContext`, above an operator's context."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self.app_configs = context.app_configs
        self.app_configs_with_prefix = context.app_configs_with_prefix
        self.get_state_store = context.get_state_store
        self.schedule = context.schedule
        self.commit = context.commit
        self.current_system_time_ms = context.current_system_time_ms
        self.current_stream_time_ms = context.current_stream_time_ms

    @property
    def application_id(self) -> str:
        return self._context.application_id

    @property
    def task_id(self) -> TaskId:
        return self._context.task_id

    @property
    def state_dir(self) -> Path:
        return self._context.state_dir

    @property
    def metrics(self) -> StreamsMetrics:
        return self._context.metrics

    @property
    def record_metadata(self) -> RecordMetadata | None:
        return self._context.record_metadata

    def forward(self, record: Record[Any, Any] | FixedKeyRecord[Any, Any], child: str | None = None) -> None:
        send = self._context.forward if child is None else self._context.forward_to(child)
        send(record.key, record.value, record.timestamp, record.headers)
