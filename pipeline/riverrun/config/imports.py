"""`[imports.NAME]` of `streams.toml`: tables and files, and the topics that polling keeps up to date with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.config.checks import check_keys, check_name, check_type, check_values, not_empty
from riverrun.config.exports import METRICS, NUMBERS, below, metrics_of
from riverrun.config.links import Links
from riverrun.config.parsing import as_written
from riverrun.config.secrets import expanded
from riverrun.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

POLLING = {
    "poll_seconds": (1, 86_400),
    "lag_seconds": (0, 86_400),
    "commit_records": NUMBERS["commit_records"],
    "commit_bytes": NUMBERS["commit_bytes"],
    "retry_seconds": NUMBERS["retry_seconds"],
}
"""Numbers with their lowest and highest values."""
CHOICES = {
    "format": ("json", "csv", "parquet"),
    "complete": ("unchanged", "at_once"),
    "backwards": ("stop", "ignore"),
    "missing_timestamp": ("fail", "now"),
    "not_a_number": ("fail", "null"),
    "deserialization_exception_handler": ("fail", "continue"),
}
"""Keys that have one of a few values; the first one is the default, but of `format`."""
OPTIONS = {
    "json": ("encoding", "charset", "multiLine"),
    "csv": (
        "encoding",
        "charset",
        "header",
        "sep",
        "delimiter",
        "quote",
        "escape",
        "comment",
        "nullValue",
        "ignoreLeadingWhiteSpace",
        "ignoreTrailingWhiteSpace",
    ),
    "parquet": (),
}
"""Options of formats, by the names that Spark's readers have for them."""
_TEXTS = ("topic", "source", "table", "query", "pattern", "app", "key_serde", "value_serde", "value", "timestamp")
_LISTS = ("incremental", "key")
_OF_TABLES = ("table", "query", "incremental", "lag_seconds", "backwards")
_OF_FILES = ("format", "pattern", "complete", "options")
_LETTERS = "errors_dead_letter_queue_topic_name"
_MOST_COLUMNS = 2


@dataclass(frozen=True, slots=True)
class ImportConfig:
    """One import that polls.

    Args:
        name: Its name, and that of its progress.
        topic: The topic, which must exist.
        source: URL of a database (SQLAlchemy), or directory, pattern or URL of files (fsspec). Never printed: it may hold a
            password.
        table: Table of a database, with its schema if need be; none for a query, and for files.
        query: A query of a database, instead of a table.
        format: Format of files: `json` (an object on each line), `csv` or `parquet`; none for tables.
        options: Options of the format, by the names that Spark's readers have for them.
        pattern: Pattern that names of files must match, such as `*.json`; none for all but those that begin with `.` or `_`.
        complete: When files are complete: `unchanged`, if size and time are those of the look before, or `at_once`. The latter
            suits writers that rename files into place, and stores that show only complete files.
        incremental: Column of a table whose values only rise, or two: the time of the last change, and the key.
        lag_seconds: How long rows of a table may appear after rows with a higher value. Rows are taken when the table has had
            their value, or a higher one, for this long.
        backwards: What to do if all values of a table are below the last one that was taken: `stop`, or `ignore` it.
            Also decides about times that are more than a day ahead.
        app: The application that reads or writes the topic, and has its serdes; none for text and JSON.
        key_serde: Serde of keys by name; none for that of the application, or text.
        value_serde: Serde of values by name; none for that of the application, or JSON.
        key: Columns of keys. Several make a JSON object; without one, records have no key.
        value: Column of values; none to make a JSON object of each row.
        timestamp: Column of event times; none for the time of the import.
        missing_timestamp: What to do with rows without an event time: `fail`, or take the time of the import (`now`).
        not_a_number: What to do with NaN and infinity, which JSON does not have: `fail`, or write `null`.
        deserialization_exception_handler: What to do with rows that cannot become records: `fail`, or `continue` without them.
        errors_dead_letter_queue_topic_name: Topic to which `continue` copies such rows, in one transaction with the records; it
            has to exist. None if left out.
        poll_seconds: Time between two looks at a source that had nothing new.
        commit_records: Number of records after which they are committed.
        commit_bytes: Size of keys and values after which they are committed.
        retry_seconds: How long to wait for a source, or for brokers, that do not answer.
        metrics_server: Address at which the import serves metrics to Prometheus, `host:port`; none if left out.
        metrics_token: The token that readers of metrics send; needed unless only this machine reaches the address.
    """

    name: str
    topic: str
    source: str = field(default="", repr=False)
    table: str = ""
    query: str = ""
    format: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    pattern: str = ""
    complete: str = "unchanged"
    incremental: tuple[str, ...] = ()
    lag_seconds: int = 5
    backwards: str = "stop"
    app: str = ""
    key_serde: str = ""
    value_serde: str = ""
    key: tuple[str, ...] = ()
    value: str = ""
    timestamp: str = ""
    missing_timestamp: str = "fail"
    not_a_number: str = "fail"
    deserialization_exception_handler: str = "fail"
    errors_dead_letter_queue_topic_name: str = ""
    poll_seconds: int = 5
    commit_records: int = 10_000
    commit_bytes: int = 16_000_000
    retry_seconds: int = 300
    metrics_server: str = ""
    metrics_token: str = field(default="", repr=False)

    @property
    def links(self) -> Links:
        """Its place in the graph of the project."""
        letters = self.errors_dead_letter_queue_topic_name
        return Links(writes=(self.topic,), letters=letters, writes_keys=bool(self.key))

    @property
    def place(self) -> str:
        """The identity of the source, without the address of a database."""
        return self.table or self.query or self.source


def import_config(path: Path, name: str, table: Any, environ: Mapping[str, str]) -> ImportConfig:
    """Check `[imports.NAME]`; `environ` replaces `${NAME}` in the source, and paths are relative to the file."""
    where = f"imports.{name}"
    check_type(path, where, table, dict, hint="Write [imports.NAME], a table for each import.")
    check_name(path, "import", name)
    check_keys(path, where, table, (*_TEXTS, *_LISTS, *CHOICES, *POLLING, *METRICS, "options", _LETTERS))
    _check_values(path, where, table)
    _check_together(path, where, table)
    found = dict(table)
    source = not_empty(f"{path}: {where}.source", expanded(f"{path}: {where}.source", table["source"], environ))
    found["source"] = below(path, source, has_files="format" in table)
    found["options"] = _options(path, where, table)
    found |= {key: tuple(table.get(key, ())) for key in _LISTS}
    return ImportConfig(name, **found | metrics_of(path, where, table, environ))


def _check_values(path: Path, where: str, table: Mapping[str, Any]) -> None:
    check_values(path, where, table, texts=(*_TEXTS, _LETTERS), choices=CHOICES, numbers=POLLING, lists=_LISTS)
    for key in _LISTS:
        if len(set(table.get(key, []))) < len(table.get(key, [])):
            raise ConfigError(f"{path}: {where}.{key} names a column twice")


def _check_together(path: Path, where: str, table: Mapping[str, Any]) -> None:
    """Check that there is one kind of source, and everything that it needs."""
    for key, example in (("topic", "orders"), ("source", "postgresql+psycopg2://user@db/shop")):
        if not table.get(key):
            raise ConfigError(f"{path}: [{where}] needs {key}", hint=f'For example {key} = "{example}".')
    kinds = [key for key in ("table", "query", "format") if table.get(key)]
    if len(kinds) != 1:
        message = f"{path}: [{where}] has {' and '.join(kinds) or 'no kind of source'}"
        raise ConfigError(message, hint="Write table or query (of a database), or format (of files): one of them.")
    others = _OF_TABLES if kinds == ["format"] else _OF_FILES
    if wrong := [key for key in others if key in table]:
        kind, other = ("files", "a database") if kinds == ["format"] else ("a database", "files")
        raise ConfigError(f"{path}: {where}.{wrong[0]} is of {other}, but the source is {kind}", hint="Leave it out.")
    if kinds != ["format"]:
        _check_incremental(path, where, table.get("incremental", []))
    _check_letters(path, where, table)


def _check_letters(path: Path, where: str, table: Mapping[str, Any]) -> None:
    letters = table.get(_LETTERS)
    if letters and letters == table["topic"]:
        message = f"{path}: {where}.{_LETTERS} is the topic of the records as well"
        raise ConfigError(message, hint="Rows that cannot become records need their own topic.")
    if letters and table.get("deserialization_exception_handler") != "continue":
        message = f"{path}: {where}.{_LETTERS} has no effect, as the import ends at such a row"
        raise ConfigError(message, hint='Write deserialization_exception_handler = "continue".')


def _check_incremental(path: Path, where: str, columns: list[str]) -> None:
    if not columns:
        message = f"{path}: [{where}] needs incremental, a column whose values only rise"
        raise ConfigError(message, hint='For example incremental = ["id"], or ["updated_at", "id"].')
    if len(columns) > _MOST_COLUMNS:
        message = f"{path}: {where}.incremental has {len(columns)} columns"
        raise ConfigError(message, hint='Write one, or two: ["updated_at", "id"], a time and the key.')


def _options(path: Path, where: str, table: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a format as texts, as commands have them."""
    options = table.get("options", {})
    check_type(path, f"{where}.options", options, dict)
    check_keys(path, f"{where}.options", options, OPTIONS.get(table.get("format", ""), ()))
    for key, value in options.items():
        if not isinstance(value, str | int | float):
            message = f"{path}: {where}.options.{key} is not one value"
            raise ConfigError(message, hint=f"Write {as_written(key, 'text')}, for example.")
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
