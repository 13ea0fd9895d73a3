"""The file of columns next to a file of statements: `orders.columns.json` next to `orders.sql`.

It belongs under version control, like a lock file: every process builds the same topology from it, whatever the registry
holds by then. Statements that leave columns to a registry are completed from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from riverrun.decoders import json_decoder
from riverrun.sql.schema_types import WrittenSchema  # noqa: TC001 - msgspec reads the annotation
from riverrun.sql.statement_parser import KsqlParser
from riverrun.sql.statements import RESERVED, Column, Ksql, SqlError, words
from riverrun.sql.types import Array, Map, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from riverrun.sql.statements import CreateSource
    from riverrun.sql.types import Columns

SCHEMA_TYPES: Mapping[str, str] = {"AVRO": "AVRO", "JSON_SR": "JSON", "PROTOBUF": "PROTOBUF"}
"""Formats whose columns a registry knows, with the types of their schemas."""


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """The columns of the keys or values of a source, which its statement does not list.

    Args:
        format: `AVRO`, `JSON_SR` or `PROTOBUF`.
        schema_id: The schema; None for the latest one of the topic's subject.
        full_name: The message, if a Protobuf schema has several.
        is_wrapped: Whether the fields of a record are columns; otherwise the whole is one column.
    """

    source: str
    is_key: bool
    topic: str
    format: str
    schema_id: int | None = None
    full_name: str | None = None
    is_wrapped: bool = True

    @property
    def part(self) -> str:
        """Return `key` or `value`."""
        return "key" if self.is_key else "value"

    @property
    def subject(self) -> str:
        return f"{self.topic}-{self.part}"


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """Columns, with the id of their schema; with the schema itself if the statement names the id."""

    columns: Columns
    schema_id: int
    schema: WrittenSchema | None = None


class Resolver(Protocol):
    """Finds columns."""

    def found(self, wanted: WantedColumns) -> ReadColumns:
        """Return the columns."""


def wanted_columns(
    statement: CreateSource, given: Mapping[str, Any], *, topic: str, is_key: bool
) -> WantedColumns | None:
    """Return the columns that a statement leaves to a registry; None if it lists them, or its format has no schemas."""
    part = "KEY" if is_key else "VALUE"
    format_, schema_id = given.get(f"{part}_FORMAT", "KAFKA"), given.get(f"{part}_SCHEMA_ID")
    has_columns = any(each.is_key == is_key and each.header is None for each in statement.columns)
    if schema_id is None and (has_columns or format_ not in SCHEMA_TYPES or statement.query is not None):
        return None
    if schema_id is not None:
        _check_id(part, format_, schema_id, statement.start, has_columns=has_columns)
    # Keys are a single unwrapped value, except in Protobuf, which has none outside of a message.
    is_wrapped = format_ == "PROTOBUF" if is_key else bool(given.get("WRAP_SINGLE_VALUE", True))
    full_name = given.get(f"{part}_SCHEMA_FULL_NAME") if format_ == "PROTOBUF" else None
    return WantedColumns(
        source=statement.name,
        is_key=is_key,
        topic=topic,
        format=format_,
        schema_id=schema_id,
        full_name=full_name,
        is_wrapped=is_wrapped,
    )


def _check_id(part: str, format_: str, schema_id: Any, start: int, *, has_columns: bool) -> None:
    if not isinstance(schema_id, int) or isinstance(schema_id, bool):
        raise SqlError(f"{part}_SCHEMA_ID is the number of a schema, not {schema_id!r}", start)
    if format_ not in SCHEMA_TYPES:
        message = (
            f"{part}_FORMAT should support schema inference when {part}_SCHEMA_ID is provided. "
            f"Current format is {format_}."
        )
        raise SqlError(message, start, hint=f"There are {', '.join(SCHEMA_TYPES)}.")
    if has_columns:
        message = f"Table elements and {part}_SCHEMA_ID cannot both exist for create statement."
        raise SqlError(message, start, hint=f"Leave out the columns, or {part}_SCHEMA_ID.")


_PLAIN_NAME = re.compile("[A-Z_][A-Z0-9_]*")


class KnownColumns(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The columns of the keys or values of a source, and what its statement said when they were resolved."""

    source: str
    part: Literal["key", "value"]
    topic: str
    format: str
    columns: dict[str, str]
    schema_id: int
    is_by_id: bool = False
    full_name: str | None = None
    is_wrapped: bool = True
    schema: WrittenSchema | None = None

    @property
    def said(self) -> tuple[object, ...]:
        """Return what the statement said; if it says something else now, the columns are out of date."""
        # Without an id in the statement, the file's id is only the registry's answer.
        schema_id = self.schema_id if self.is_by_id else None
        return self.topic, self.format, schema_id, self.full_name, self.is_wrapped


@dataclass(frozen=True, slots=True)
class ColumnsFile:
    """Finds columns in a file (`Resolver`), which is read when the first ones are wanted."""

    path: Path

    @classmethod
    def next_to(cls, statements: str) -> ColumnsFile:
        return cls(Path(statements).with_suffix(".columns.json"))

    def found(self, wanted: WantedColumns) -> ReadColumns:
        named = [each for each in self.entries() if (each.source, each.part) == (wanted.source, wanted.part)]
        said = _said(wanted)
        for each in named:
            if each.said == said:
                return _found(each)
        message = f"The columns of {wanted.source} ({wanted.part}) come from the schema registry, and {self.path.name} has none"
        if named:
            message = (
                f"{self.path.name} has columns of {wanted.source} ({wanted.part}) for {_text(named[-1].said)}, "
                f"and the statement says {_text(said)}"
            )
        hint = f"`riverrun sql APP --resolve` asks the registry for them and writes {self.path.name}."
        raise SqlError(message, hint=hint)

    def entries(self) -> tuple[KnownColumns, ...]:
        """Return all entries; none if there is no file."""
        try:
            return json_decoder(tuple[KnownColumns, ...]).decode(self.path.read_bytes())
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            message = f"{self.path} is not a file of columns: {error}"
            raise SqlError(message, hint=f"`riverrun sql APP --resolve` writes {self.path.name}.") from error

    def write(self, entries: Sequence[KnownColumns]) -> None:
        """Write the file; delete it if there are no entries."""
        try:
            if entries:
                self.path.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n")
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise SqlError(f"{self.path} cannot be written: {error}") from error


class Recorder:
    """Finds columns by another resolver, and keeps an entry of each."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self.entries: list[KnownColumns] = []

    def found(self, wanted: WantedColumns) -> ReadColumns:
        """Return the columns, and add them to the entries."""
        found = self._resolver.found(wanted)
        entry = KnownColumns(
            source=wanted.source,
            part="key" if wanted.is_key else "value",
            topic=wanted.topic,
            format=wanted.format,
            columns={name: _type_text(type_) for name, type_ in found.columns},
            schema_id=found.schema_id,
            is_by_id=wanted.schema_id is not None,
            full_name=wanted.full_name,
            is_wrapped=wanted.is_wrapped,
            schema=found.schema,
        )
        # A statement may ask more than once: planning looks ahead.
        if entry not in self.entries:
            self.entries.append(entry)
        return found


def changes(before: Iterable[KnownColumns], after: Iterable[KnownColumns]) -> list[str]:
    """Return a line for each entry: what it has, and what is new about it."""
    known = {(each.source, each.part): each for each in before}
    lines = []
    for each in after:
        columns = ", ".join(f"{name} {type_}" for name, type_ in each.columns.items())
        line = f"{each.source} {each.part}: {columns} (schema {each.schema_id}, topic {each.topic}, {each.format})"
        lines += [line, *(f"  {change}" for change in _differences(known.pop((each.source, each.part), None), each))]
    return lines + [f"{source} {part}: removed" for source, part in known]


def _differences(old: KnownColumns | None, new: KnownColumns) -> list[str]:
    if old is None:
        return ["new"]
    found = [f"removed {name} {type_}" for name, type_ in old.columns.items() if name not in new.columns]
    for name, type_ in new.columns.items():
        if name not in old.columns:
            found.append(f"added {name} {type_}")
        elif old.columns[name] != type_:
            found.append(f"changed {name} from {old.columns[name]} to {type_}")
    if old.schema_id != new.schema_id:
        found.append(f"schema {new.schema_id} instead of {old.schema_id}")
    if old.said[0] != new.said[0] or old.said[1] != new.said[1]:
        found.append(f"topic {new.topic} as {new.format} instead of {old.topic} as {old.format}")
    return found or ["unchanged"]


def _said(wanted: WantedColumns) -> tuple[object, ...]:
    return wanted.topic, wanted.format, wanted.schema_id, wanted.full_name, wanted.is_wrapped


def _text(said: tuple[object, ...]) -> str:
    topic, format_, schema_id, full_name, is_wrapped = said
    parts = [f"topic {topic}", str(format_)]
    parts += [f"schema {schema_id}"] if schema_id is not None else []
    parts += [f"message {full_name}"] if full_name is not None else []
    return ", ".join([*parts, *([] if is_wrapped else ["one column"])])


def _found(entry: KnownColumns) -> ReadColumns:
    columns = tuple((name, _type_of(text)) for name, text in entry.columns.items())
    return ReadColumns(columns, entry.schema_id, entry.schema)


def _type_of(text: str) -> SqlType:
    parser = KsqlParser(dialect=Ksql())
    parser.begin(text, words(text))
    return parser.sql_type()


def _type_text(type_: SqlType) -> str:
    # Backquotes keep names in lower case, and reserved words, when the type is parsed again.
    match type_:
        case Array():
            return f"ARRAY<{_type_text(type_.item)}>"
        case Map():
            return f"MAP<{_type_text(type_.key)}, {_type_text(type_.value)}>"
        case Struct():
            return f"STRUCT<{', '.join(f'{_quoted(name)} {_type_text(each)}' for name, each in type_.fields)}>"
    return str(type_)


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) and name not in RESERVED else f"`{name}`"


class Unknown:
    """Knows no columns (`Resolver`): for statements without a file."""

    def found(self, wanted: WantedColumns) -> ReadColumns:
        """Refuse with a hint: without a file, nothing says which columns there are."""
        message = (
            f"The columns of {wanted.source} ({wanted.part}) come from the schema registry, and nothing says which"
        )
        raise SqlError(message, hint="List the columns in the statement, or put it into a file.")


@dataclass(frozen=True, slots=True)
class FoundColumns:
    """The columns of a statement that a registry has."""

    key: ReadColumns | None
    value: ReadColumns | None

    @classmethod
    def of(cls, statement: CreateSource, given: Mapping[str, Any], topic: str, resolver: Resolver) -> FoundColumns:
        """Find the columns that a statement does not list."""
        wanted = [wanted_columns(statement, given, topic=topic, is_key=is_key) for is_key in (True, False)]
        key, value = (None if each is None else resolver.found(each) for each in wanted)
        return cls(key, value)

    @property
    def key_schema(self) -> WrittenSchema | None:
        return None if self.key is None else self.key.schema

    @property
    def value_schema(self) -> WrittenSchema | None:
        return None if self.value is None else self.value.schema

    def completed(self, statement: CreateSource) -> CreateSource:
        """Return the statement with all columns: those of headers first, then those of the key."""
        own = statement.columns
        headers = tuple(each for each in own if each.header is not None)
        keys = tuple(each for each in own if each.is_key)
        values = tuple(each for each in own if not each.is_key and each.header is None)
        if self.key is not None:
            is_primary = statement.is_table
            keys = tuple(Column(name, type_, is_key=True, is_primary=is_primary) for name, type_ in self.key.columns)
        if self.value is not None:
            values = tuple(Column(name, type_) for name, type_ in self.value.columns)
        if self.key is None and self.value is None:
            return statement
        return replace(statement, columns=(*headers, *keys, *values))

    def check(self, key: Columns, value: Columns) -> None:
        """Make sure that a query has the first columns of the schema that its statement names, in order."""
        for part, columns, found in (("key", key, self.key), ("value", value, self.value)):
            known = columns if found is None else found.columns
            others = [each for number, each in enumerate(columns) if known[number : number + 1] != (each,)]
            if others:
                raise SqlError(
                    f"The following {part} columns are changed, missing or reordered: {_listed(others)}. "
                    f"Schema from schema registry is {_listed(known)}"
                )


def _listed(columns: Any) -> str:
    return "[" + ", ".join(f"`{name}` {type_}" for name, type_ in columns) + "]"
