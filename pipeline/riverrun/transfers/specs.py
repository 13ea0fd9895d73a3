"""The specifications of imports and exports, and checks of them without Spark, whose start takes many seconds."""

from __future__ import annotations

import difflib
import re
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from riverrun.decoders import (
    Natural,  # noqa: TC001 - msgspec reads the annotations
    Small,  # noqa: TC001 - as above
    Word,  # noqa: TC001 - msgspec reads the annotations
)
from riverrun.errors import ConfigError
from riverrun.spark.formats import check_format, has_files
from riverrun.spark.ranges import RunRange
from riverrun.spark.session import DEFAULT_MASTER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from riverrun.records import OffsetRange, TopicPartition


def escaped(path: str) -> str:
    r"""Escape a path for Spark, so that it is not read as a pattern.

    >>> print(escaped("in/a b[1].json"))
    in/a b\[1\].json
    """
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


def listing(spark: Any, path: str, options: Mapping[str, str]) -> Any:
    """Return a frame with the files below a path (`inputFiles`) and the columns of its directories; no file is read."""
    # `binaryFile` has a fixed schema, so Spark opens no file to infer one.
    return spark.read.format("binaryFile").options(**options).load(path)


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
class ExportBatch:
    """One range of offsets, as the topic of exports stores it.

    Args:
        number: Number of the batch, part of the directory's name.
        range: The range, as `RunRange` writes it.
        is_done: Whether it has been written.
        topic_id: The brokers' id of the topic. A recreated topic has another id, and its offsets mean other records.
        target: The directory or table (`ExportSpec.place`).
        whole: Time at which the batches up to this one had all of the topic, as `riverrun.records.Whole` writes it.
    """

    number: Natural = 0
    range: str = ""
    is_done: bool = True
    topic_id: Word = ""
    target: str = ""
    whole: str = ""

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return the range by partition."""
        return RunRange.parse(self.range).ranges


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


@dataclass(frozen=True, slots=True)
class Terms:
    """The fields of an `ImportSpec` that select the rows of a batch and assign them to parts."""

    source: str = ""
    format: str = ""
    schema: str | None = None
    key: tuple[str, ...] = ()
    value: str | None = None
    incremental: str | None = None

    @classmethod
    def of(cls, spec: ImportSpec) -> Terms:
        """Return the terms of an import."""
        return cls(spec.source, spec.format, spec.schema, tuple(spec.key), spec.value, spec.incremental)

    def differences(self, other: Terms) -> str:
        """Describe the differences to other terms.

        >>> Terms("a", key=("id",)).differences(Terms("b", key=("id",)))
        "source 'a', not 'b'"
        """
        there = asdict(other)
        pairs = ((name, mine, there[name]) for name, mine in asdict(self).items())
        return "; ".join(f"{name} {mine!r}, not {theirs!r}" for name, mine, theirs in pairs if mine != theirs)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of an import, as the topic of imports stores it.

    Args:
        number: Number of the batch, from 1; 0 before the first one.
        partitions: Number of the topic's partitions at the time of planning.
        parts: Number of its parts, of which each is one transaction.
        files: Its files, as Spark names them.
        above: Lower bound of the incremental column, exclusive, as text; None for none.
        upto: Upper bound of the incremental column, inclusive, as text; None without such a column.
        is_done: Whether it is written completely.
        terms: Select its rows, and assign them to parts.
        topic_id: The brokers' id of the topic. A recreated topic has another id, and none of the records.
        after: The key of the last row with the upper bound, as JSON, if rows are ordered by two columns.
    """

    number: Natural = 0
    partitions: Small = 0
    parts: Small = 0
    files: tuple[str, ...] = ()
    above: str | None = None
    upto: str | None = None
    is_done: bool = True
    terms: Terms = Terms()
    topic_id: Word = ""
    after: str | None = None


_TYPES = frozenset(
    """
    array bigint binary boolean byte char character date dec decimal double float int integer interval long map numeric
    real short smallint string struct time timestamp timestamp_ltz timestamp_ntz tinyint varchar variant void
    """.split()  # noqa: SIM905 - as a list it takes a page
)
_COLUMN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+)\s*:?\s+(\w+)[^`]*|\s*(`(?:[^`]|``)+`|\w+):(\w+)[^`]*")
_PATTERN = re.compile(r"[*?\[\]{}\\]")


def check_import(spec: ImportSpec, settings: Mapping[str, str], master: str | None, packages: Collection[str]) -> None:
    """Find mistakes in an import, before Spark starts; `master` overrides the settings of Spark."""
    check_format(spec.format, settings, packages)
    check_schema(spec.schema)
    path = source_here(spec, settings, master)
    if path is not None:
        if not path.exists():
            message = f"File or directory {spec.source} does not exist"
            raise ConfigError(message)
        # Not for directories, whose names may add columns.
        if spec.schema is not None and path.is_file():
            _check_columns(spec, spec.schema)


def source_here(spec: ImportSpec, settings: Mapping[str, str], master: str | None) -> Path | None:
    """Return the file or directory of this machine that an import reads; None if the source is elsewhere."""
    where = master or settings.get("spark.remote") or settings.get("spark.master") or DEFAULT_MASTER
    is_here = where.startswith("local") and not any(key.endswith("fs.defaultFS") for key in settings)
    return _local(spec.source) if is_here and has_files(spec.format) else None


def check_schema(schema: str | None) -> None:
    """Refuse a schema with types that Spark does not know."""
    for column in _columns("" if schema is None or schema.lower().lstrip().startswith("struct<") else schema):
        found = _COLUMN.fullmatch(column)
        kind = (found[2] or found[4]).lower() if found else ""
        if kind not in _TYPES:
            near = difflib.get_close_matches(kind, _TYPES, 1)
            message = f"The schema has {column.strip()!r}, which is not a column with a Spark type"
            hint = f"Did you mean {near[0]!r}?" if near else 'For example --schema "user string, at timestamp".'
            raise ConfigError(message, hint=hint)


def _check_columns(spec: ImportSpec, schema: str) -> None:
    found = [_COLUMN.fullmatch(column) for column in _columns(schema)]
    names = {(each[1] or each[3]).strip("`").lower() for each in found if each}
    wanted = [*spec.key, spec.value, spec.timestamp, spec.incremental]
    missing = [column for column in wanted if column is not None and column.lower() not in names]
    if missing:
        message = f"The schema has no column {', '.join(missing)}"
        raise ConfigError(message, hint=f"It has: {schema}.")


def _columns(schema: str) -> Iterator[str]:
    """Return the columns of a schema, split at commas outside brackets and quotes.

    >>> list(_columns("a int, b map<string, decimal(3, 1)>"))
    ['a int', ' b map<string, decimal(3, 1)>']
    """
    depth, is_quoted, start = 0, False, 0
    for at, sign in enumerate(schema):
        if sign in "`'\"":
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (sign in "(<") - (sign in ")>")
            if sign == "," and not depth:
                yield schema[start:at]
                start = at + 1
    if schema.strip():
        yield schema[start:]


def _local(source: str) -> Path | None:
    """Return a path on this machine; None if the source is elsewhere, or a pattern."""
    parts = urlsplit(source)
    if _PATTERN.search(source) or parts.scheme not in {"", "file"}:
        return None
    return Path(unquote(parts.path) if parts.scheme else source)
