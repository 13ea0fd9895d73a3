"""Statements, as returned by the parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot import exp

    from riverrun.sql.types import SqlType


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source.

    Args:
        name: The column's name in the form used for comparisons.
        type: The column's type.
        is_key: Whether it is in the key of records.
        is_primary: Whether it is declared as a table's key.
        header: Name of the header it holds; an empty text for all of them; None for other columns.
    """

    name: str
    type: SqlType
    is_key: bool = False
    is_primary: bool = False
    header: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a projection; a star has no expression."""

    expression: exp.Expr | None
    alias: str | None = None
    source: str | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class From:
    """A source that a query reads, with its alias."""

    name: str
    alias: str
    start: int


@dataclass(frozen=True, slots=True)
class Join:
    """A join with one more source. Times are in ms."""

    kind: str
    source: From
    on: exp.Expr
    before: int | None = None
    after: int | None = None
    grace: int | None = None


@dataclass(frozen=True, slots=True)
class WindowClause:
    """Windows of an aggregation, in ms."""

    kind: str
    size: int
    advance: int | None = None
    grace: int | None = None
    retention: int | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT.

    `needs_key` tells whether the projection must contain the key of its rows, as it must when they are written.
    """

    items: tuple[Item, ...]
    source: From
    joins: tuple[Join, ...] = ()
    window: WindowClause | None = None
    where: exp.Expr | None = None
    partition_by: tuple[exp.Expr, ...] = ()
    group_by: tuple[exp.Expr, ...] = ()
    having: exp.Expr | None = None
    is_final: bool = False
    needs_key: bool = True


@dataclass(frozen=True, slots=True)
class CreateSource:
    """CREATE STREAM or TABLE, either declared or created from a query."""

    name: str
    is_table: bool
    start: int
    columns: tuple[Column, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    query: Query | None = None
    replaces: bool = False
    if_not_exists: bool = False
    is_read_only: bool = False

    @property
    def topic(self) -> str:
        """Return the topic that the properties name, or that has the name of the source, without a prefix."""
        return str(self.properties.get("KAFKA_TOPIC", self.name))


@dataclass(frozen=True, slots=True)
class InsertInto:
    """INSERT INTO a stream, from a query."""

    name: str
    query: Query
    start: int


@dataclass(frozen=True, slots=True)
class DropSource:
    """DROP STREAM or TABLE; `deletes` tells whether its topic is deleted, too."""

    name: str
    if_exists: bool
    start: int
    is_table: bool
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class SetProperty:
    """SET of a property for later statements, or UNSET, whose value is None."""

    name: str
    value: str | None
    start: int


@dataclass(frozen=True, slots=True)
class CustomType:
    """CREATE TYPE, or DROP TYPE, whose type is None. Only the parser needs it."""

    name: str
    type: SqlType | None


Statement = CreateSource | InsertInto | DropSource | SetProperty | CustomType
