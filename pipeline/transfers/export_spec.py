"""The specification of an export, and of a batch of it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from pipeline.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.records import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """Names the topic to export, and the form of its files or rows.

    Args:
        topic: Where from.
        target: A directory, or the table of a `jdbc` target.
        format: Any format Spark writes: parquet, csv, json, jdbc, or a data source's name.
        options: The writer's options.
        schema: Schema of JSON values as DDL: each field becomes a column. None gives one column `value`.
        is_binary: Whether keys, and values without a schema, are bytes rather than text.
        name: Names the export: its progress. The topic's name if left out; then another target is refused, as it would get what
            is new only.
        key: Columns of a `jdbc` target by which rows replace others (PostgreSQL): of several records the last counts, and with
            `_key`, the record's key, one without a value deletes. None: rows are only added.
    """

    topic: str
    target: str
    format: str
    _: KW_ONLY
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str | None = None
    is_binary: bool = False
    name: str = ""
    key: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The name that its progress is kept under."""
        return self.name or self.topic

    @property
    def has_tables(self) -> bool:
        """Whether the target is a table, not a directory."""
        return self.format == "jdbc"

    @property
    def place(self) -> str:
        """The target as it is told from others. Not by a database's address: the same one may be had at several."""
        return self.target.rstrip("/")


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """One range of offsets.

    Args:
        number: Counts the batches of the export; names the directory.
        range: The range, as text.
        is_done: Whether it has been written.
        topic_id: What the brokers call the topic: one that is created anew has another id, and offsets that mean other records.
        target: Where to.
    """

    number: int = 0
    range: str = ""
    is_done: bool = True
    topic_id: str = ""
    target: str = ""

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """The range, by partition."""
        return RunRange.parse(self.range).ranges
