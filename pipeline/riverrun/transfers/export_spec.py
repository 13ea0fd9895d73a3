"""The specifications of an export and of its batches."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from riverrun.decoders import Natural, Word  # noqa: TC001 - msgspec reads the annotations
from riverrun.spark.ranges import RunRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.records import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """Specifies the topic to export, and the form of its files or rows.

    Args:
        topic: The topic.
        target: A directory, or the table of a `jdbc` target.
        format: Any format that Spark can write: parquet, csv, json, jdbc, or a data source's name.
        options: The writer's options.
        schema: Schema of JSON values as DDL: each field becomes a column. None for one column `value`.
        is_binary: Whether keys, and values without a schema, are bytes rather than text.
        name: Name of the export and its progress. By default the topic's name; another target is then refused, as it would
            get only new records.
        key: Columns of a `jdbc` target by which rows replace others (PostgreSQL). Of several records the last counts. With
            `_key`, the record's key, a record without a value deletes its row. None: rows are only added.
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
        """Return the name of its progress."""
        return self.name or self.topic

    @property
    def has_tables(self) -> bool:
        """Return whether the target is a table, not a directory."""
        return self.format == "jdbc"

    @property
    def place(self) -> str:
        """Return the identity of the target, without a database's address: one database may have several."""
        return self.target.rstrip("/")


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """One range of offsets.

    Args:
        number: Number of the batch, part of the directory's name.
        range: The range, as text.
        is_done: Whether it has been written.
        topic_id: The brokers' id of the topic. A recreated topic has another id, and its offsets mean other records.
        target: The target.
    """

    number: Natural = 0
    range: str = ""
    is_done: bool = True
    topic_id: Word = ""
    target: str = ""

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return the range by partition."""
        return RunRange.parse(self.range).ranges
