"""Runs a user's `Processor` or `FixedKeyProcessor` as an operator; only here do records become objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from riverrun.operators.user_context import UserContext
from riverrun.processor.fixed_key import FixedKeyRecord
from riverrun.processor.suppliers import refuse_result
from riverrun.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.processor.api import Processor
    from riverrun.processor.fixed_key import FixedKeyProcessor
    from riverrun.processor.operator import OperatorContext
    from riverrun.records import Headers


class UserProcessor:
    """Adapts a `Processor` to the way operators are called."""

    may_schedule: ClassVar[bool] = True

    def __init__(self, processor: Processor[Any, Any]) -> None:
        """Take the processor, which belongs to this task alone."""
        self._processor = processor
        self._process: Callable[..., object] = processor.process

    def init(self, context: OperatorContext) -> None:
        """Hand the processor its context."""
        self._processor.init(UserContext(context, _forwarding(context)))

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Hand the processor a record."""
        result: object = self._process(Record(key, value, timestamp, headers))
        if result is not None:
            refuse_result(result, f"{type(self._processor).__qualname__}.process")

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()


class UserFixedKeyProcessor:
    """Adapts a `FixedKeyProcessor` to the way operators are called."""

    may_schedule: ClassVar[bool] = True

    def __init__(self, processor: FixedKeyProcessor[Any, Any]) -> None:
        """Take the processor, which belongs to this task alone."""
        self._processor = processor
        self._process: Callable[..., object] = processor.process

    def init(self, context: OperatorContext) -> None:
        """Hand the processor its context."""
        self._processor.init(UserContext(context, _forwarding(context)))

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Hand the processor a record."""
        result: object = self._process(FixedKeyRecord(key, value, timestamp, headers))
        if result is not None:
            refuse_result(result, f"{type(self._processor).__qualname__}.process")

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()


def _forwarding(context: OperatorContext) -> Callable[..., None]:
    """Return the function that forwards a processor's records to the operator's children."""

    def forward(record: Record[Any, Any] | FixedKeyRecord[Any, Any], child: str | None = None) -> None:
        send = context.forward if child is None else context.forward_to(child)
        send(record.key, record.value, record.timestamp, record.headers)

    return forward
