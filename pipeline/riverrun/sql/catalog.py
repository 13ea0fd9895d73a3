"""Sources that statements have declared or created.

Tables that workers keep in stores, and the way their rows are made from store entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from riverrun.serde.windowed import session_windowed, windowed
from riverrun.sql.formats import key_serde, value_serde
from riverrun.sql.statements import SqlError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.serde.api import Serde
    from riverrun.sql.schema_types import WrittenSchema
    from riverrun.sql.statements import CreateSource, DropSource
    from riverrun.sql.types import Columns


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table in a store.

    Args:
        store: Name of the store.
        row_of: Makes the values of a row from a key of the store and its value; None if the row is not in the table. Keys of
            windows are `Windowed`.
    """

    store: str
    row_of: Callable[[Any, Any], Any]


def chained(*steps: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function of key and value that chains steps: each gets the value of the one before, until a value is None."""

    def made(key: Any, value: Any) -> Any:
        for step in steps:
            if value is None:
                return None
            value = step(key, value)
        return value

    return made


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
    "WINDOW_SIZE",
)

PREFIX = "ksql.output.topic.name.prefix"
"""Property with the prefix of topics that statements do not name."""
UNWRAPPED = "wrap.single.values is false"
"""Property that tells whether single values stand alone, for statements whose WITH does not."""
_FORMATS = {
    "KEY_FORMAT": "ksql.persistence.default.format.key",
    "VALUE_FORMAT": "ksql.persistence.default.format.value",
}


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The form of a topic's records: columns, formats, windows.

    `headers` maps names of columns to the headers that they hold; an empty text stands for all headers. `schema` and
    `key_schema` are the schemas that the statement names by their ids.
    """

    key: Columns
    value: Columns
    key_format: str
    value_format: str
    wrapped: bool = True
    delimiter: str = ","
    key_delimiter: str = ","
    window: str | None = None
    window_ms: int | None = None
    timestamp: str | None = None
    timestamp_format: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    schema_name: str | None = None
    key_schema_name: str | None = None
    nullable: str | None = None
    key_nullable: str | None = None
    schema: WrittenSchema | None = None
    key_schema: WrittenSchema | None = None

    def serdes(self, used: frozenset[str] | None = None) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes of keys, without their windows, and of values.

        Args:
            used: Columns of the value that are read; others may be None. All of them if left out.

        Raises:
            SqlError: If a format cannot hold the columns.
        """
        keys = key_serde(
            self.key,
            self.key_format,
            delimiter=self.key_delimiter,
            schema_name=self.key_schema_name,
            nullable=self.key_nullable,
            schema=self.key_schema,
        )
        values = value_serde(
            self.value,
            self.value_format,
            wrapped=self.wrapped,
            delimiter=self.delimiter,
            schema_name=self.schema_name,
            nullable=self.nullable,
            schema=self.schema,
            used=None if used is None else used | {str(self.timestamp)},
        )
        return keys, values


@dataclass(frozen=True, slots=True)
class Source:
    """A stream or a table, and the topic that holds it.

    Workers answer queries of a table that they keep in a store.
    """

    name: str
    is_table: bool
    topic: str
    layout: RecordLayout
    is_read_only: bool = False
    stored: StoredTable | None = None

    def serdes(self, used: frozenset[str] | None = None) -> tuple[Serde[Any], Serde[Any]]:
        """Return the serdes of its keys, windowed or not, and of its values, as `RecordLayout.serdes` does."""
        (keys, values), window = self.layout.serdes(used), self.layout.window
        if window == "SESSION":
            return session_windowed(keys), values
        if window is not None:
            size = None if self.layout.window_ms is None else timedelta(milliseconds=self.layout.window_ms)
            return windowed(keys, size), values
        return keys, values


@dataclass(slots=True)
class Catalog:
    """All sources by name."""

    sources: dict[str, Source] = field(default_factory=dict)

    def find(self, name: str, start: int | None) -> Source:
        """Return a source.

        Raises:
            SqlError: If no source has the name.
        """
        if name not in self.sources:
            message = f"{name} does not exist."
            raise SqlError(message, start, hint=nearest(name, self.sources))
        return self.sources[name]

    def drop(self, statement: DropSource) -> None:
        """Forget a source.

        Raises:
            SqlError: If no source of this kind has the name, or its topic belongs to others.
        """
        name, start = statement.name, statement.start
        if name not in self.sources and statement.if_exists:
            return
        source = self.find(name, start)
        if source.is_table != statement.is_table:
            message = f"{name} is not a {'table' if statement.is_table else 'stream'}"
            raise SqlError(message, start)
        if source.is_read_only and statement.deletes:
            message = f"Cannot delete topic for read-only source: {name}"
            raise SqlError(message, start)
        del self.sources[name]


def checked_properties(statement: CreateSource, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of WITH, with those of SET as defaults.

    Args:
        statement: The statement.
        properties: The properties of SET.

    Raises:
        SqlError: If a property or value does not exist.
    """
    for name in statement.properties:
        if name not in _KNOWN:
            message = f"WITH has no property {name}"
            raise SqlError(message, statement.start, hint=nearest(name, _KNOWN))
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
    if statement.query is None:
        given = {name: properties[each].upper() for name, each in _FORMATS.items() if each in properties} | given
    given[UNWRAPPED] = properties.get("ksql.persistence.wrap.single.values", "true").lower() == "false"
    return given
