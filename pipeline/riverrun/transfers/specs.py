"""The specifications of imports and exports, from the command line, Python and Airflow to Spark."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from dataclasses import KW_ONLY, dataclass, field


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """Specifies the topic to export, and the form of its files or rows.

    Args:
        topic: Name of the topic to read.
        target: A directory, or the table of a `jdbc` target.
        format: Any format that Spark can write: parquet, csv, json, jdbc, or a data source's name.
        options: Options of Spark's writer, by its names.
        schema: Schema of JSON values as DDL: each field becomes a column. None for one column `value`.
        is_binary: Whether keys, and values without a schema, are bytes rather than text.
        name: Name of the export and its progress. Defaults to the topic's name; another target is then refused, as it would
            get only new records.
        key: Columns of a `jdbc` target by which rows replace others (PostgreSQL). Of several records the last counts. With
            `_key`, the record's key, a record without a value deletes its row. None: rows are only added.
        app: Name of an application that reads or writes the topic: its serdes make the columns. Fields of values, keys of any
            kind and windows (`_window_start`, `_window_end`) become columns. Not with `schema` and `is_binary`.
        version: Its version; by default the live one.
        partition_by: Levels of directories within a batch: columns, and `year`, `month`, `day` or `hour` of a time in UTC, such
            as `day(_timestamp)`. Columns that name directories are not in files.
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
    app: str = ""
    version: str | None = None
    partition_by: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return the name under which progress is stored."""
        return self.name or self.topic

    @property
    def has_tables(self) -> bool:
        """Return whether the target is a table, not a directory."""
        return self.format == "jdbc"

    @property
    def place(self) -> str:
        """Return the identity of the target."""
        # Without the address of a database, which may have several.
        return self.target.rstrip("/")


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """Specifies the rows to import, and how they become records.

    Args:
        topic: The topic, which must exist.
        source: A path (directory, file or pattern), or the table of a `jdbc` source.
        format: Any format that Spark can read: parquet, csv, json, jdbc, or a data source's name.
        options: Options of Spark's reader, by its names.
        schema: The rows' schema as DDL, for formats without one.
        key: Key columns. One is written as text, or unchanged if binary; several as a JSON object. Without a key, rows with
            equal values of the incremental column, or else equal values, go to equal partitions.
        value: The column of values, text or binary, where null is a tombstone. None writes each row as a JSON object.
        timestamp: The column of event times: timestamps, dates, or numbers of ms since the epoch; None for the current time.
        missing_timestamp: Treatment of rows without an event time: `fail` ends the import, `now` uses the current time, after
            which other rows may be late.
        not_a_number: Treatment of NaN and infinity, which JSON does not have: `fail` ends the import, `null` writes null.
        incremental: A column that only rises (a number, a date, a time). New rows are those above the highest imported value.
            The import misses rows that appear later with that value or a lower one (a transaction that began before the
            import and ended after it; a second row of one ms), rows without a value, and deletions. None imports new
            files, or everything if there are no files.
        name: Name of the import, its progress and its transactions. Defaults to the topic's name; another source of an
            incremental import is then refused, as it may be another table.
        parts: Number of parts per batch, each one transaction. At most the number of the topic's partitions, as each
            partition gets its records from one part, in the order of the source.
    """

    topic: str
    source: str
    format: str
    _: KW_ONLY
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str | None = None
    key: tuple[str, ...] = ()
    value: str | None = None
    timestamp: str | None = None
    incremental: str | None = None
    name: str = ""
    parts: int = 4
    missing_timestamp: str = "fail"
    not_a_number: str = "fail"

    @property
    def id(self) -> str:
        """Return the name of its progress."""
        return self.name or self.topic
