"""Sinks: targets outside of Kafka that a follower keeps up to date, exactly once.

A sink stores the offsets of records with the records themselves. So a record is in the target if and only if it precedes the
target's offset, whatever fails in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from riverrun.records import TopicPartition

PARTITION, OFFSET, TIMESTAMP = "_partition", "_offset", "_timestamp"
OFFSETS_TABLE = "riverrun_offsets"
PLACE = (TIMESTAMP, PARTITION, OFFSET)
# Metadata of columns of text that hold JSON of any shape.
JSON_FIELD = {b"riverrun": b"json"}


@dataclass(frozen=True, slots=True)
class SinkTable:
    """The table that a sink keeps: the rows of one topic.

    Args:
        export: Name of the export, under which a target stores offsets: several exports may share it.
        topic_id: The brokers' id of the topic. A recreated topic has another id, and its offsets mean other records.
        schema: Names and types of the columns, as an Arrow schema: key, value, then event time and place.
        key: The columns of the record's key.
        is_upsert: Whether rows replace others by key. If not, each record is a row.
        may_add_columns: Whether the target gets columns that it lacks. If not, a lack is an error.
    """

    export: str
    topic: str
    topic_id: str
    schema: Any
    key: tuple[str, ...]
    is_upsert: bool = False
    may_add_columns: bool = True


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """Records of one partition, in order of offsets, as rows.

    Args:
        records: The rows, as an Arrow record batch with the columns of the sink's table.
        tombstones: Whether each record has no value, by row. Its columns of the value are null.
        absent: By row, the columns that keep their values, as the record has no field for them (`absent_fields = "keep"`).
            They are null in `records`. Empty if each record is a whole row.
    """

    tp: TopicPartition
    records: Any
    tombstones: Sequence[bool] = field(repr=False)
    absent: Sequence[Collection[str]] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.tombstones)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows by name of the column, without absent ones: times in UTC, structs and maps as dictionaries."""
        found: list[dict[str, Any]] = self.records.to_pylist(maps_as_pydicts="strict")
        for row, names in zip(found, self.absent, strict=False):
            for name in names:
                del row[name]
        return found


class RefusedRecordsError(ConfigError):
    """A target refuses records for what is in them, such as a text that is too long: others may be written.

    Args:
        message: The first of the reasons.
        reasons: Why each record is refused, in the words of the target.
    """

    def __init__(
        self, message: str, reasons: Mapping[tuple[TopicPartition, int], str], *, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons


@runtime_checkable
class RemovesRows(Protocol):
    """Removes rows whose deletion the topic no longer shows; a sink may offer this in addition to `Sink`."""

    def remove(self, tp: TopicPartition, before: int, kept: Sequence[int]) -> None:
        """Remove rows of a partition that are in the target and no longer in the topic, with the next commit.

        All records before the topic's end offset were written before. Rows of records from `before` on stay, and those of the
        earlier offsets in `kept`, which ascend.
        """


class Sink(Protocol):
    """Writes records to a target, together with offsets. One thread calls all three methods.

    A call may raise `EngineError` if the target does not answer. The follower then waits and calls `begin`, so the sink itself
    repeats nothing. A call raises `TaskMigratedError` if another owner has taken over a partition. After `RefusedRecordsError`,
    the follower asks its handler about these records, and writes the others again. Every other error ends it.
    """

    def begin(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Take over exactly these partitions, and forget all that was written and not committed.

        From now on the target refuses commits of all earlier owners of these partitions. Without partitions, the sink releases
        its connections; another call may follow.

        Returns:
            By partition, the offset of the first record that is not in the target. A partition without any is left out.
        """

    def write(self, batch: SinkBatch) -> None:
        """Take records that follow those taken before. Readers need not see them yet."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make the records since the last commit visible, with the next offset of each partition: per partition all or nothing.

        Nothing is committed of a partition that another owner has taken over.
        """
