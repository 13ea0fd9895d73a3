"""The context of users' processors and transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from riverrun.processor.metrics import StreamsMetrics
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import RecordMetadata, TaskId


class UserContext:
    """A `ProcessorContext`, or a `FixedKeyProcessorContext`, above an operator's context.

    Args:
        context: The operator's context.
        forward: Takes the forwarded records, and the name of a child, if there is one.
        is_lookup: Whether a value is looked up; then there is no current record.
    """

    def __init__(self, context: OperatorContext, forward: Callable[..., None], *, is_lookup: bool = False) -> None:
        """Bind the operator's own methods that are called often."""
        self._context = context
        self._is_lookup = is_lookup
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
