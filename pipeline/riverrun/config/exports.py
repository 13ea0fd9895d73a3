"""`[exports.NAME]` of `streams.toml`: topics, and the targets that followers keep up to date with them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.config.address import checked_address
from riverrun.config.checks import check_keys, check_name, check_path, check_type, check_values, choices, not_empty
from riverrun.config.links import Links
from riverrun.config.parsing import as_written, check_property, checked_setting
from riverrun.config.secrets import expanded
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TEXTS = ("app", "topic", "key_serde", "value_serde", "window", "target", "table", "format", "sink", "continues")
NUMBERS = {
    "commit_seconds": (1, 86_400),
    "commit_records": (1, 10_000_000),
    "commit_bytes": (1, 2_000_000_000),
    "retry_seconds": (0, 86_400),
}
"""Numbers with their lowest and highest values."""
UNREADABLE = {
    "deserialization_exception_handler": "deserialization.exception.handler",
    "errors_dead_letter_queue_topic_name": "errors.dead.letter.queue.topic.name",
}
"""Keys about records that cannot be read, with the settings of applications that they are like."""
METRICS = ("metrics_server", "metrics_token")
"""Keys of followers' metrics."""
OF_FILES = {"commit_seconds": 60, "commit_records": 1_000_000, "commit_bytes": 64_000_000}
"""Files are cut later than transactions: many small ones are slow to read."""
COLUMN_TYPES = ("boolean", "bigint", "double", "string", "timestamp", "date", "json")
"""Types of declared columns."""
_CHOICES = {
    "mode": ("append", "upsert"),
    "new_columns": ("add", "refuse"),
    "lost_deletions": ("remove", "refuse", "ignore"),
    "absent_fields": ("null", "keep"),
    "format": ("parquet", "json"),
}
_LISTS = ("key", "partition_by")
_CONSUMER = "consumer."
_FILE = re.compile(r"((?:sqlite|duckdb)(?:\+\w+)?:///)([^/?:].*)")
"""The URL of a file of SQLite or DuckDB with a relative path."""


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """One export that is followed.

    Args:
        name: Its name, under which targets store offsets.
        topic: The topic to follow from its first record, or from the end of `continues`.
        target: URL of a database (SQLAlchemy), or directory or URL of files (fsspec). Never printed: it may hold a password.
        table: Table of a database, with its schema if need be, or of Iceberg, with its namespace; none for files.
        catalog: Properties of the catalogue of a table of Iceberg, as pyiceberg takes them. Never printed: it may hold secrets.
        format: Format of files, `parquet` or `json` (an object on each line); none for tables.
        sink: Function that returns a sink of the user's own, as `module:attribute`; none for tables and files.
        app: The application that reads or writes the topic, and has its serdes; none if serdes are named.
        key_serde: Serde of keys by name; none for that of the application, or text.
        value_serde: Serde of values by name; none for that of the application, or JSON.
        window: Size of the windows of windowed keys, such as `5m`, if the application does not define it.
        mode: `upsert` replaces and deletes rows by key, `append` makes each record a row.
        key: Names of the columns of the key; none for those of the serde.
        columns: Types of columns of JSON values without a type, by name.
        new_columns: What to do if the table lacks columns: `add` them, or `refuse`.
        lost_deletions: What to do if the follower was away for so long that brokers may have removed tombstones that it has not
            read: `remove` the rows that the topic no longer has, `refuse` to follow, or `ignore` it. If left out, `remove` with
            `mode = "upsert"` where the target can, or else `refuse`. Of topics that are not compacted nothing is lost.
        partition_by: Levels of directories of files, or partitions of a table of Iceberg that the follower makes: columns, and
            `year`, `month`, `day` or `hour` of a time in UTC, such as `day(_timestamp)`. A table that exists keeps its own.
        absent_fields: What an upsert does with columns that the JSON of a record has no field for: `null` sets them to null,
            `keep` leaves them as they are in the row. A new row has the database's default there.
        continues: The batch export of the topic by Spark whose end is the beginning; none for the first record.
        commit_seconds: Time after which records are committed.
        commit_records: Number of records after which they are committed.
        commit_bytes: Size of keys and values after which they are committed.
        retry_seconds: How long to wait for a target that does not answer.
        deserialization_exception_handler: Treatment of records that the serdes cannot read, whose values do not fit their
            columns, or that the target refuses: `fail`, `continue`, or a handler as `module:attribute`.
        errors_dead_letter_queue_topic_name: Topic to which `fail` and `continue` copy such records; it has to exist. None if
            left out.
        metrics_server: Address at which a follower serves metrics to Prometheus, `host:port`; none if left out.
        metrics_token: The token that readers of metrics send; needed unless only this machine reaches the address.
        consumer: Properties of the consumer by librdkafka's names.
    """

    name: str
    topic: str
    target: str = field(default="", repr=False)
    table: str = ""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    format: str = ""
    sink: str = ""
    app: str = ""
    key_serde: str = ""
    value_serde: str = ""
    window: str = ""
    mode: str = "append"
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    new_columns: str = "add"
    lost_deletions: str = ""
    absent_fields: str = "null"
    continues: str = ""
    commit_seconds: int = 1
    commit_records: int = 10_000
    commit_bytes: int = 16_000_000
    retry_seconds: int = 300
    deserialization_exception_handler: str = "fail"
    errors_dead_letter_queue_topic_name: str = ""
    metrics_server: str = ""
    metrics_token: str = field(default="", repr=False)
    consumer: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def links(self) -> Links:
        """Its place in the graph of the project."""
        return Links((self.topic,), letters=self.errors_dead_letter_queue_topic_name, keeps_rows=self.mode == "upsert")


def export_config(path: Path, name: str, table: Any, environ: Mapping[str, str]) -> ExportConfig:
    """Check `[exports.NAME]`; `environ` replaces `${NAME}` in the target, and paths are relative to the file."""
    where = f"exports.{name}"
    check_type(path, where, table, dict, hint="Write [exports.NAME], a table for each export.")
    check_name(path, "export", name)
    consumer, own = properties_of_consumer(path, where, table, environ)
    others = ("mode", "new_columns", "lost_deletions", "absent_fields", "key", "partition_by", "columns", "catalog")
    check_keys(path, where, own, (*_TEXTS, *NUMBERS, *UNREADABLE, *METRICS, *others))
    _check_values(path, where, own)
    found: dict[str, Any] = {**(OF_FILES if "format" in own or "catalog" in own else {}), **own}
    target = expanded(f"{path}: {where}.target", own.get("target", ""), environ)
    found["target"] = _located(path, not_empty(f"{path}: {where}.target", target) if own.get("target") else "", found)
    found |= {key: tuple(own.get(key, ())) for key in _LISTS}
    found |= metrics_of(path, where, own, environ)
    found |= {
        key: checked_setting(path, f"{where}.{key}", setting, own[key])
        for key, setting in UNREADABLE.items()
        if key in own
    }
    found["consumer"] = consumer
    found["catalog"] = catalog_of(path, f"{where}.catalog", own.get("catalog", {}), environ)
    return ExportConfig(name, **found)


def _check_values(path: Path, where: str, table: Mapping[str, Any]) -> None:
    check_values(path, where, table, texts=_TEXTS, choices=_CHOICES, numbers=NUMBERS, lists=_LISTS)
    check_type(path, f"{where}.columns", table.get("columns", {}), dict)
    for name, kind in table.get("columns", {}).items():
        if kind not in COLUMN_TYPES:
            raise ConfigError(f"{path}: {where}.columns.{name} is {kind!r}", hint=choices(str(kind), COLUMN_TYPES))
    _check_together(path, where, table)


def _check_together(path: Path, where: str, table: Mapping[str, Any]) -> None:
    """Check that there is one kind of target, and everything that it needs."""
    if not table.get("topic"):
        raise ConfigError(f"{path}: [{where}] needs topic", hint='For example topic = "totals".')
    kinds = [key for key in ("table", "format", "sink") if table.get(key)]
    if len(kinds) != 1:
        message = f"{path}: [{where}] has {' and '.join(kinds) or 'no kind of target'}"
        hint = "Write table (of a database), format (of files) or sink (of your own): one of them."
        raise ConfigError(message, hint=hint)
    if table.get("catalog") is not None:
        _check_iceberg(path, where, table)
    elif kinds != ["sink"] and not table.get("target"):
        message = f"{path}: [{where}] needs target"
        raise ConfigError(message, hint='For example target = "postgresql+psycopg2://user@db/shop", or a directory.')
    if table.get("partition_by") and table.get("catalog") is None and kinds != ["format"]:
        message = f"{path}: {where}.partition_by is for files and tables of Iceberg"
        raise ConfigError(message, hint="Leave it out: a database partitions its tables itself.")
    if table.get("lost_deletions") == "remove" and table.get("mode") != "upsert":
        message = f'{path}: {where}.lost_deletions is "remove", but the target keeps each record as a row'
        raise ConfigError(message, hint='Write mode = "upsert", or lost_deletions = "refuse" or "ignore".')
    if table.get("absent_fields") == "keep" and table.get("mode") != "upsert":
        message = f'{path}: {where}.absent_fields is "keep", but the target keeps each record as a row'
        raise ConfigError(message, hint='Write mode = "upsert", or leave absent_fields out.')
    if kinds == ["format"] and table.get("mode") == "upsert":
        message = f'{path}: {where}.mode is "upsert", but files only grow'
        raise ConfigError(message, hint='Write mode = "append", or choose a table.')


def _check_iceberg(path: Path, where: str, table: Mapping[str, Any]) -> None:
    if "." not in table.get("table", ""):
        message = f"{path}: [{where}] has a catalog, and needs table with a namespace"
        raise ConfigError(message, hint='For example table = "shop.orders".')
    if table.get("target"):
        message = f"{path}: [{where}] has target and catalog"
        raise ConfigError(message, hint="The catalogue knows where its tables are: leave out target.")
    if table.get("mode") == "upsert":
        message = f'{path}: {where}.mode is "upsert", but tables of Iceberg only grow here'
        raise ConfigError(message, hint='Write mode = "append", and read the last row of each key.')


def catalog_of(path: Path, where: str, table: Any, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a catalogue; relative paths in them are below the directory of `streams.toml`."""
    check_type(path, where, table, dict)
    found = {}
    for key, value in table.items():
        if not isinstance(value, str | int | float):
            message = f"{path}: {where}.{key} is not one value"
            raise ConfigError(message, hint=f'Names with dots are quoted: "{as_written(key, value)}".')
        check_path(f"{path}: {where}.{key}", value)
        found[key] = expanded(f"{path}: {where}.{key}", str(value), environ)
    if relative := _FILE.fullmatch(found.get("uri", "")):
        found["uri"] = f"{relative[1]}{(path.parent / relative[2]).resolve()}"
    if "warehouse" in found and "://" not in found["warehouse"] and found.get("type") != "rest":
        # Not escaped: pyiceberg would take %20 for a part of the name.
        found["warehouse"] = f"file://{(path.parent / found['warehouse']).resolve()}"
    return found


def _located(path: Path, target: str, table: Mapping[str, Any]) -> str:
    """Return a target with its relative path below the directory of `streams.toml`."""
    return below(path, target, has_files=bool(table.get("format"))) if not table.get("sink") else target


def below(path: Path, url: str, *, has_files: bool) -> str:
    """Return a URL, or a path, with its relative path below the directory of `streams.toml`."""
    if has_files:
        return url if "://" in url else str((path.parent / url).resolve())
    relative = _FILE.fullmatch(url)
    return f"{relative[1]}{(path.parent / relative[2]).resolve()}" if relative else url


def metrics_of(path: Path, where: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return where a follower serves its metrics, and the token for them, with `${NAME}` replaced from `environ`."""
    found = {}
    for key in METRICS:
        check_type(path, f"{where}.{key}", table.get(key, ""), str)
        found[key] = expanded(f"{path}: {where}.{key}", table.get(key, ""), environ)
    server, token = found.values()
    if server and not checked_address(f"{path}: {where}.{METRICS[0]}", server).is_loopback and not token:
        message = f"{path}: {where}.{METRICS[0]} is {server}, which other machines reach, without a token"
        raise ConfigError(message, hint=f'Set {METRICS[1]} = "${{NAME}}", or listen on 127.0.0.1.')
    return found


def properties_of_consumer(
    path: Path, where: str, table: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the consumer's properties in a table, without their prefix, and the rest of the table."""
    found = {}
    for key in [key for key in table if key.startswith(_CONSUMER)]:
        value = table[key]
        if not isinstance(value, str | int | float):
            raise ConfigError(f'{path}: {where}."{key}" is not one value')
        name = key.removeprefix(_CONSUMER)
        check_property(path, name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found[name] = expanded(f"{path}: {where}.{key}", text, environ)
    return found, {key: value for key, value in table.items() if not key.startswith(_CONSUMER)}
