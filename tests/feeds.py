"""Parts of feeds for tests: batches that refuse nothing, and topics that forget no deletions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.processor.sinks import RefusedRecordsError
    from riverrun.records import OffsetRange, TopicPartition


class PlainBatches:
    """Batches by a function."""

    skipped = 0

    def __init__(self, batch: Callable[..., Any]) -> None:
        self.batch = batch

    def refuse(self, error: RefusedRecordsError) -> None:
        raise error

    def committed(self, _offsets: Mapping[TopicPartition, int]) -> None:
        pass


class NothingMissed:
    """`Deletions` of topics that forget none."""

    def to_read_again(self, _starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetRange]:
        return {}

    def require_recent(self) -> None:
        pass

    def look(self, _reached: Mapping[TopicPartition, int]) -> None:
        pass

    def note(self) -> str:
        return ""
