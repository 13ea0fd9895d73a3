"""Resolves the columns that statements leave to a schema registry, once, into a file next to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.sql.answering.inspection import Statements
from riverrun.sql.columns.columns_file import ColumnsFile, Recorder, changes
from riverrun.sql.columns.registry_columns import RegistryColumns
from riverrun.sql.errors import SqlError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from riverrun.sql.columns.columns_file import Entry


def resolve(text: str, file: str, schema_registry: Mapping[str, Any]) -> tuple[Path, list[str]]:
    """Ask the registry for all columns that statements do not list, and write the file of columns.

    Args:
        text: The statements.
        file: Their file.
        schema_registry: Settings of `[schema_registry]`.

    Returns:
        The file, and lines that say which columns there are and what has changed.

    Raises:
        SqlError: If the registry does not have them, or a statement does not fit them. The file stays as it is.
    """
    recorder, columns = Recorder(RegistryColumns(schema_registry)), ColumnsFile.next_to(file)
    Statements.of(text, file, columns=recorder)
    before = _known(columns)
    columns.write(recorder.entries)
    return columns.path, changes(before, recorder.entries)


def _known(columns: ColumnsFile) -> tuple[Entry, ...]:
    """Return the entries so far; none if the file cannot be read, since it is written again."""
    try:
        return columns.entries()
    except SqlError:
        return ()
