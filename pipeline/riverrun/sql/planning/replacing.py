"""CREATE OR REPLACE: adds columns to a declared source, which must not change otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.sql.errors import SqlError

if TYPE_CHECKING:
    from riverrun.sql.catalog import Source
    from riverrun.sql.grammar.statements import CreateSource

_HINT = "A file has one statement for each result: edit that, and release the file as a version."


def check_replacement(statement: CreateSource, known: Source | None) -> None:
    """Make sure that a statement can create or replace a source.

    Args:
        statement: The statement.
        known: The source that has the name already; None if there is none.

    Raises:
        SqlError: If it cannot.
    """
    kind = "table" if statement.is_table else "stream"
    if statement.replaces and (statement.is_read_only or (known is not None and known.is_read_only)):
        message = f"Cannot add {kind} '{statement.name}': CREATE OR REPLACE is not supported on source {kind}s."
        raise SqlError(message, statement.start)
    if known is not None and not statement.replaces:
        message = f"Cannot add {kind} '{statement.name}': it already exists."
        raise SqlError(message, statement.start)
    if known is not None and statement.query is not None:
        message = f"Cannot replace {kind} '{statement.name}': it is the result of a query."
        raise SqlError(message, statement.start, hint=_HINT)


def check_columns(known: Source, source: Source, start: int) -> None:
    """Make sure that a source only adds columns to the one that it replaces.

    Raises:
        SqlError: If there is any other difference.
    """
    before, after = known.layout, source.layout
    problem = None
    if known.stored is not None or known.is_table != source.is_table:
        problem = "it is the result of a query" if known.stored is not None else "one is a stream, the other a table"
    elif known.topic != source.topic:
        problem = f"its topic is {known.topic}, not {source.topic}"
    elif after.value[: len(before.value)] != before.value:
        problem = "columns can be added behind those that there are, and not be changed"
    elif replace(after, value=before.value) != before:
        problem = "its key, formats and properties have to stay"
    if problem:
        message = f"Cannot replace {source.name}: {problem}"
        raise SqlError(message, start)
