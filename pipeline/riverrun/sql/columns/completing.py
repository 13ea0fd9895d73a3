"""Completes statements by the columns that a resolver finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.sql.columns.requests import wanted_columns
from riverrun.sql.errors import SqlError
from riverrun.sql.grammar.statements import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from riverrun.sql.columns.requests import Found, Resolver, Wanted
    from riverrun.sql.columns.written_schemas import WrittenSchema
    from riverrun.sql.grammar.statements import CreateSource
    from riverrun.sql.types import Columns


class Unknown:
    """Knows no columns (`Resolver`): for statements that are no file."""

    def found(self, wanted: Wanted) -> Found:
        """Refuse.

        Raises:
            SqlError: In every case.
        """
        message = (
            f"The columns of {wanted.source} ({wanted.part}) come from the schema registry, and nothing says which"
        )
        raise SqlError(message, hint="List the columns in the statement, or put it into a file.")


@dataclass(frozen=True, slots=True)
class FoundColumns:
    """The columns of a statement that a registry has."""

    key: Found | None
    value: Found | None

    @classmethod
    def of(cls, statement: CreateSource, given: Mapping[str, Any], topic: str, resolver: Resolver) -> FoundColumns:
        """Find the columns that a statement does not list.

        Raises:
            SqlError: If they cannot be found.
        """
        wanted = [wanted_columns(statement, given, topic=topic, is_key=is_key) for is_key in (True, False)]
        key, value = (None if each is None else resolver.found(each) for each in wanted)
        return cls(key, value)

    @property
    def key_schema(self) -> WrittenSchema | None:
        """Return the schema that keys are written with, if the statement names it."""
        return None if self.key is None else self.key.schema

    @property
    def value_schema(self) -> WrittenSchema | None:
        """Return the schema that values are written with, if the statement names it."""
        return None if self.value is None else self.value.schema

    def completed(self, statement: CreateSource) -> CreateSource:
        """Return a statement with all columns: those of headers first, then those of the key."""
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
        """Make sure that the columns of a query begin those of the schemas that its statement names.

        Raises:
            SqlError: If they do not.
        """
        for part, columns, found in (("key", key, self.key), ("value", value, self.value)):
            known = columns if found is None else found.columns
            others = [each for number, each in enumerate(columns) if known[number : number + 1] != (each,)]
            if others:
                message = (
                    f"The following {part} columns are changed, missing or reordered: {_listed(others)}. "
                    f"Schema from schema registry is {_listed(known)}"
                )
                raise SqlError(message)


def _listed(columns: Any) -> str:
    return "[" + ", ".join(f"`{name}` {type_}" for name, type_ in columns) + "]"
