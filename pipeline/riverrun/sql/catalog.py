"""The streams and tables that statements have declared or created, with their topics, formats and stores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from riverrun.records import is_legal_topic
from riverrun.serde.unlogged import UNAVAILABLE
from riverrun.sql.durations import key_serde_of_windows, millis_of, window_size_of
from riverrun.sql.formats import (
    FORMATS_OF_CHANGES,
    Changes,
    Form,
    key_serde,
    named,
    plain_key_format,
    row_serde,
    types_of_text,
    value_serde,
)
from riverrun.sql.functions.date_formats import date_format
from riverrun.sql.statements import SqlError, nearest
from riverrun.sql.types import HEADERS, Primitive
from riverrun.windows import CalendarWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.serde.api import Serde
    from riverrun.sql.columns_file import FoundColumns
    from riverrun.sql.durations import WindowSize
    from riverrun.sql.schema_types import WrittenSchema
    from riverrun.sql.statements import Column, CreateSource, DropSource
    from riverrun.sql.types import Columns


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table in a store.

    Args:
        row_of: Makes the values of a row from a key of the store and its value; None if the row is not in the table. Keys of
            windows are `Windowed`.
    """

    store: str
    row_of: Callable[[Any, Any], Any]


def chained(*steps: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function of key and value that chains steps: each gets the value of the step before, until one is None."""

    def made(key: Any, value: Any) -> Any:
        for step in steps:
            if value is None:
                return None
            value = step(key, value)
        return value

    return made


_OF_CHANGES = ("DEBEZIUM_TYPES", "DEBEZIUM_PLACEHOLDER")
"""Properties that only a source with a format of changes has."""
_SIZES = ("WINDOW_SIZE", "WINDOW_TIMEZONE", "WINDOW_OFFSET")
_KNOWN = (
    "KAFKA_TOPIC",
    "VALUE_FORMAT",
    "KEY_FORMAT",
    "FORMAT",
    "PARTITIONS",
    "REPLICAS",
    "RETENTION_MS",
    "TIMESTAMP",
    "TIMESTAMP_FORMAT",
    "WRAP_SINGLE_VALUE",
    "VALUE_DELIMITER",
    "KEY_DELIMITER",
    "VALUE_SCHEMA_ID",
    "KEY_SCHEMA_ID",
    "VALUE_SCHEMA_FULL_NAME",
    "VALUE_AVRO_SCHEMA_FULL_NAME",
    "KEY_SCHEMA_FULL_NAME",
    "VALUE_PROTOBUF_NULLABLE_REPRESENTATION",
    "KEY_PROTOBUF_NULLABLE_REPRESENTATION",
    "WINDOW_TYPE",
    *_SIZES,
    "TTL",
    *_OF_CHANGES,
)

PREFIX = "ksql.output.topic.name.prefix"
"""Property of SET: the prefix of topics that statements do not name."""
PSEUDO = frozenset({"ROWTIME", "ROWPARTITION", "ROWOFFSET", "WINDOWSTART", "WINDOWEND"})
"""Columns that every source has; the last two only sources with windows."""
# SET's default travels among the properties of WITH. Names there are in upper case, so none can be this one.
UNWRAPPED = "wrap.single.values is false"
_NOT_OF_CHANGES = (
    "WINDOW_TYPE",
    *_SIZES,
    "WRAP_SINGLE_VALUE",
    "VALUE_DELIMITER",
    "KEY_DELIMITER",
    "VALUE_SCHEMA_ID",
    "KEY_SCHEMA_ID",
    "VALUE_SCHEMA_FULL_NAME",
    "KEY_SCHEMA_FULL_NAME",
)
"""Properties that a source with a format of changes cannot have."""
_FORMATS = {
    "KEY_FORMAT": "ksql.persistence.default.format.key",
    "VALUE_FORMAT": "ksql.persistence.default.format.value",
}


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The form of a topic's records: columns, formats, windows.

    `headers` maps names of columns to the headers that they hold; an empty text stands for all headers. `changes` describes
    how Debezium's changes are read.
    """

    key: Columns
    value: Columns
    key_form: Form
    value_form: Form
    wrapped: bool = True
    window: str | None = None
    window_size: WindowSize | None = None
    timestamp: str | None = None
    timestamp_format: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    changes: Changes | None = None

    def serdes(self, used: frozenset[str] | None = None) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes of keys, without their windows, and of values."""
        if self.changes is not None:
            return self.changes.serdes(self.key, self.value)
        # The timestamp extractor reads its column, which no expression may name.
        read = None if used is None else used | {str(self.timestamp)}
        values = value_serde(self.value, self.value_form, wrapped=self.wrapped, used=read)
        return key_serde(self.key, self.key_form), values

    def inner_serdes(self) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes of keys and rows of a topology that reads changes, in its own topics and stores."""
        rows = named(row_serde([type_ for _, type_ in self.value]), self.value)
        return key_serde(self.key, Form(plain_key_format(self.key))), rows


@dataclass(frozen=True, slots=True)
class Source:
    """A stream or a table, and the topic that holds it. Workers answer pull queries of a table with a store (`stored`)."""

    name: str
    is_table: bool
    topic: str
    layout: RecordLayout
    is_read_only: bool = False
    stored: StoredTable | None = None
    ttl: timedelta | None = None

    def __post_init__(self) -> None:
        # The builder would find it only when no statement is known any more.
        if not is_legal_topic(self.topic):
            raise SqlError(f"{self.topic!r} is not a legal topic name")

    def serdes(self, used: frozenset[str] | None = None) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes of its keys, windowed or not, and of its values, as `RecordLayout.serdes` does."""
        (keys, values), window = self.layout.serdes(used), self.layout.window
        if window is not None:
            keys = key_serde_of_windows(keys, window, self.layout.window_size)
        return keys, values


@dataclass(slots=True)
class Catalog:
    """All sources by name."""

    sources: dict[str, Source] = field(default_factory=dict)

    def find(self, name: str, start: int | None) -> Source:
        if name not in self.sources:
            raise SqlError(f"{name} does not exist.", start, hint=nearest(name, self.sources))
        return self.sources[name]

    def drop(self, statement: DropSource) -> None:
        name, start = statement.name, statement.start
        if name not in self.sources and statement.if_exists:
            return
        source = self.find(name, start)
        if source.is_table != statement.is_table:
            raise SqlError(f"{name} is not a {'table' if statement.is_table else 'stream'}", start)
        if source.is_read_only and statement.deletes:
            raise SqlError(f"Cannot delete topic for read-only source: {name}", start)
        del self.sources[name]


def checked_properties(statement: CreateSource, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of WITH, with those of SET as defaults."""
    for name in statement.properties:
        if name not in _KNOWN:
            raise SqlError(f"WITH has no property {name}", statement.start, hint=nearest(name, _KNOWN))
    given = dict(statement.properties)
    if "FORMAT" in given:
        if "KEY_FORMAT" in given or "VALUE_FORMAT" in given:
            other = "KEY_FORMAT" if "KEY_FORMAT" in given else "VALUE_FORMAT"
            message = f"Cannot supply both '{other}' and 'FORMAT' properties, as 'FORMAT' sets both."
            raise SqlError(message, statement.start)
        given["KEY_FORMAT"] = given["VALUE_FORMAT"] = given.pop("FORMAT")
    for name in ("KEY_FORMAT", "VALUE_FORMAT", "WINDOW_TYPE"):
        if name in given:
            given[name] = str(given[name]).upper()
    if "VALUE_AVRO_SCHEMA_FULL_NAME" in given:
        given.setdefault("VALUE_SCHEMA_FULL_NAME", given.pop("VALUE_AVRO_SCHEMA_FULL_NAME"))
    # Results of queries take their formats from the source that they read, and not from SET.
    if statement.query is None:
        given = {name: properties[each].upper() for name, each in _FORMATS.items() if each in properties} | given
    if "TTL" in given:
        given["TTL"] = _time_to_live(statement, given["TTL"])
    _check_changes(statement, given)
    given[UNWRAPPED] = properties.get("ksql.persistence.wrap.single.values", "true").lower() == "false"
    return given


def _time_to_live(statement: CreateSource, value: Any) -> timedelta:
    if not statement.is_table:
        raise SqlError("TTL is a property of tables: rows of a stream do not stay", statement.start)
    ttl_ms = millis_of("TTL", str(value), statement.start)
    if ttl_ms == 0:
        raise SqlError("TTL must be more than 0", statement.start)
    return timedelta(milliseconds=ttl_ms)


def _check_changes(statement: CreateSource, given: dict[str, Any]) -> None:
    """Make sure that properties fit a format of changes, and make it the default format of keys."""
    format_ = given.get("VALUE_FORMAT")
    problem = hint = None
    if format_ not in FORMATS_OF_CHANGES:
        if own := [name for name in _OF_CHANGES if name in given]:
            problem = f"{own[0]} needs a format of changes: {' or '.join(FORMATS_OF_CHANGES)}"
    elif statement.query is not None:
        problem, hint = f"Format {format_} is only read", "VALUE_FORMAT = 'JSON' or 'AVRO' writes rows."
    elif given.setdefault("KEY_FORMAT", format_) != format_:
        problem, hint = f"Keys and values of changes have one format: {format_}", f"FORMAT = '{format_}'"
    elif wrong := [name for name in _NOT_OF_CHANGES if name in given]:
        problem = f"{wrong[0]} does not fit changes of rows"
    elif statement.is_table and "TIMESTAMP" in given:
        problem = "A table of changes has the times of its records: its deletions have no columns"
    if problem:
        raise SqlError(problem, statement.start, hint=hint)


def check_required(statement: CreateSource, given: Mapping[str, Any]) -> None:
    """Make sure that a declared source has a topic and a format."""
    for name in ("KAFKA_TOPIC", "VALUE_FORMAT"):
        if name not in given:
            raise SqlError(f'Missing required property "{name}" which has no default value.', statement.start)


def declared(statement: CreateSource, given: Mapping[str, Any], found: FoundColumns) -> Source:
    """Return the source that CREATE STREAM or TABLE declares, with all its columns."""
    keys = tuple((each.name, each.type) for each in statement.columns if each.is_key)
    values = tuple((each.name, each.type) for each in statement.columns if not each.is_key and each.header is None)
    _check_columns(statement, bool(keys))
    window = given.get("WINDOW_TYPE")
    if window not in {None, "SESSION", "TUMBLING", "HOPPING"}:
        message = f"There is no window type {window}"
        raise SqlError(message, statement.start, hint="There are SESSION, HOPPING and TUMBLING.")
    layout = replace(
        layout_of(keys, values, given, found, statement.start),
        window=window,
        window_size=_window_size(statement, given),
        changes=_changes(statement, keys, values, given),
        headers=tuple((each.name, each.header) for each in statement.columns if each.header is not None),
    )
    topic = str(given["KAFKA_TOPIC"])
    return Source(statement.name, statement.is_table, topic, layout, statement.is_read_only, ttl=given.get("TTL"))


def _window_size(statement: CreateSource, given: Mapping[str, Any]) -> WindowSize | None:
    size, zone, offset = (None if name not in given else str(given[name]) for name in _SIZES)
    if size is not None:
        made, kind = window_size_of(size, zone, offset, statement.start), given.get("WINDOW_TYPE")
        if isinstance(made, CalendarWindows) and kind != "TUMBLING":
            message = f"Windows of {made} have the WINDOW_TYPE TUMBLING, not {kind}"
            raise SqlError(message, statement.start)
        return made
    if zone is not None or offset is not None:
        raise SqlError(f"{_SIZES[1]} and {_SIZES[2]} take {_SIZES[0]} as well", statement.start)
    return None


def _changes(statement: CreateSource, key: Columns, columns: Columns, given: Mapping[str, Any]) -> Changes | None:
    if given["VALUE_FORMAT"] not in FORMATS_OF_CHANGES:
        return None
    try:
        types = types_of_text(str(given["DEBEZIUM_TYPES"])) if "DEBEZIUM_TYPES" in given else ()
    except ValueError as error:
        raise SqlError(str(error), statement.start, hint="'born io.debezium.time.Date, ...'") from None
    placeholder = str(given.get("DEBEZIUM_PLACEHOLDER", UNAVAILABLE))
    found = Changes(given["VALUE_FORMAT"], statement.is_table, types, placeholder)
    found.check(key, columns)
    return found


def layout_of(key: Columns, value: Columns, given: Mapping[str, Any], found: FoundColumns, start: int) -> RecordLayout:
    """Return the form of records with these columns that properties describe: without windows and headers."""
    return RecordLayout(
        key=key,
        value=value,
        key_form=_form("KEY", given, found.key_schema),
        value_form=_form("VALUE", given, found.value_schema),
        wrapped=_wrapping(given, value, start),
        timestamp=_timestamp(given, (*key, *value), start),
        timestamp_format=given.get("TIMESTAMP_FORMAT"),
    )


def _form(of: str, given: Mapping[str, Any], schema: WrittenSchema | None) -> Form:
    return Form(
        given.get(f"{of}_FORMAT", "KAFKA"),
        given.get(f"{of}_DELIMITER", ","),
        given.get(f"{of}_SCHEMA_FULL_NAME"),
        given.get(f"{of}_PROTOBUF_NULLABLE_REPRESENTATION"),
        schema,
    )


def _check_columns(statement: CreateSource, has_key: bool) -> None:  # noqa: FBT001 - private
    names = [each.name for each in statement.columns]
    problem = None
    if not names:
        problem = "The statement does not define any columns."
    elif len(set(names)) < len(names):
        problem = f"Duplicate column names: {next(name for name in names if names.count(name) > 1)}"
    elif PSEUDO & set(names):
        problem = f"'{next(iter(PSEUDO & set(names)))}' is a reserved column name."
    elif wrong_header := next(filter(None, map(_header_problem, statement.columns)), None):
        problem = wrong_header
    elif statement.is_table and not has_key:
        problem = "Tables require a PRIMARY KEY. Please define the PRIMARY KEY."
    elif any(each.is_primary != statement.is_table for each in statement.columns if each.is_key):
        right, wrong = ("PRIMARY KEY", "KEY") if statement.is_table else ("KEY", "PRIMARY KEY")
        problem = f"Column is a {wrong} column: a {'table' if statement.is_table else 'stream'} has {right} columns."
    if problem:
        raise SqlError(problem, statement.start)


def _header_problem(column: Column) -> str | None:
    if column.header == "" and column.type != HEADERS:
        return f"Invalid type for HEADERS column: expected {HEADERS}, got {column.type}"
    if column.header and column.type is not Primitive.BYTES:
        return f"Invalid type for HEADER('{column.header}') column: expected BYTES, got {column.type}"
    return None


def _wrapping(given: Mapping[str, Any], values: Any, start: int) -> bool:
    if "WRAP_SINGLE_VALUE" not in given:
        return len(values) != 1 or not given.get(UNWRAPPED)
    if len(values) != 1:
        raise SqlError("'WRAP_SINGLE_VALUE' is only valid for single-field value schemas", start)
    wraps, format_ = bool(given["WRAP_SINGLE_VALUE"]), str(given.get("VALUE_FORMAT", ""))
    if not wraps and format_.startswith("PROTOBUF"):
        raise SqlError(f"Format '{format_}' does not support 'WRAP_SINGLE_VALUE' set to 'false'.", start)
    return wraps


def _timestamp(given: Mapping[str, Any], columns: Any, start: int) -> str | None:
    if "TIMESTAMP" not in given:
        return None
    types, name = dict(columns), str(given["TIMESTAMP"])
    name = name[1:-1] if name.startswith("`") else name.upper()
    if name not in types:
        message = f"The TIMESTAMP column set in the WITH clause does not exist in the schema: '{name}'"
        raise SqlError(message, start, hint=nearest(name, types))
    fitting = {Primitive.STRING} if "TIMESTAMP_FORMAT" in given else {Primitive.BIGINT, Primitive.TIMESTAMP}
    if "TIMESTAMP_FORMAT" in given:
        try:
            date_format(str(given["TIMESTAMP_FORMAT"]))
        except ValueError as error:
            raise SqlError(str(error), start, hint="No record would have a time.") from None
    if types[name] not in fitting:
        message = (
            f"Timestamp column, `{name}`, should be BIGINT, TIMESTAMP, or a STRING with a timestamp_format specified"
        )
        raise SqlError(message, start)
    return name
