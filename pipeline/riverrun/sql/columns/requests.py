"""Requests for the columns that statements leave to a registry, and the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.sql.errors import SqlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.sql.columns.written_schemas import WrittenSchema
    from riverrun.sql.grammar.statements import CreateSource
    from riverrun.sql.types import Columns

SCHEMA_TYPES: Mapping[str, str] = {"AVRO": "AVRO", "JSON_SR": "JSON", "PROTOBUF": "PROTOBUF"}
"""Formats whose columns a registry knows, with the types of their schemas."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns of the keys or values of a source, which its statement does not list.

    Args:
        source: The source.
        is_key: Whether they are those of keys.
        topic: Its topic.
        format: `AVRO`, `JSON_SR` or `PROTOBUF`.
        schema_id: The schema; the latest of the topic's subject if left out.
        full_name: The message among several of a Protobuf schema.
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
        """Return the subject that has the schemas."""
        return f"{self.topic}-{self.part}"


@dataclass(frozen=True, slots=True)
class Found:
    """Columns, with the id of their schema; with the schema itself if the statement names the id."""

    columns: Columns
    schema_id: int
    schema: WrittenSchema | None = None


class Resolver(Protocol):
    """Finds columns."""

    def found(self, wanted: Wanted) -> Found:
        """Return the columns.

        Raises:
            SqlError: If they are not known, or SQL has no types for them.
        """
        ...


def wanted_columns(statement: CreateSource, given: Mapping[str, Any], *, topic: str, is_key: bool) -> Wanted | None:
    """Return the columns that a statement leaves to a registry; None if it lists them, or its format has no schemas.

    Args:
        statement: CREATE STREAM or TABLE. One with a query has columns; a schema's id makes them those of a schema as well.
        given: Its properties.
        topic: Its topic.
        is_key: Whether to look at keys.

    Raises:
        SqlError: If the statement has both columns and a schema's id, or a format without schemas.
    """
    part = "KEY" if is_key else "VALUE"
    format_, schema_id = given.get(f"{part}_FORMAT", "KAFKA"), given.get(f"{part}_SCHEMA_ID")
    has_columns = any(each.is_key == is_key and each.header is None for each in statement.columns)
    if schema_id is None and (has_columns or format_ not in SCHEMA_TYPES or statement.query is not None):
        return None
    if schema_id is not None:
        _check_id(part, format_, schema_id, statement.start, has_columns=has_columns)
    is_wrapped = format_ == "PROTOBUF" if is_key else bool(given.get("WRAP_SINGLE_VALUE", True))
    full_name = given.get(f"{part}_SCHEMA_FULL_NAME") if format_ == "PROTOBUF" else None
    return Wanted(
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
        message = f"{part}_SCHEMA_ID is the number of a schema, not {schema_id!r}"
        raise SqlError(message, start)
    if format_ not in SCHEMA_TYPES:
        message = (
            f"{part}_FORMAT should support schema inference when {part}_SCHEMA_ID is provided. "
            f"Current format is {format_}."
        )
        raise SqlError(message, start, hint=f"There are {', '.join(SCHEMA_TYPES)}.")
    if has_columns:
        message = f"Table elements and {part}_SCHEMA_ID cannot both exist for create statement."
        raise SqlError(message, start, hint=f"Leave out the columns, or {part}_SCHEMA_ID.")
