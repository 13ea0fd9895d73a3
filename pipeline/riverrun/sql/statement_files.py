"""Files of statements as a whole: columns that a schema registry has for them, and digests of what they say."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from sqlglot.tokenizer_core import TokenType

from riverrun.sql.columns_file import ColumnsFile, Recorder, changes
from riverrun.sql.commands import Statements
from riverrun.sql.registry_columns import RegistryColumns
from riverrun.sql.statements import CreateSource, DropSource, InsertInto, SqlError, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sqlglot.tokenizer_core import Token

    from riverrun.sql.catalog import Catalog
    from riverrun.sql.columns_file import Entry
    from riverrun.sql.statements import Statement


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


_AS_WRITTEN = frozenset({TokenType.STRING, TokenType.IDENTIFIER})
"""Words whose case is significant."""


def statement_digests(text: str, file: str) -> dict[str, str]:
    """Return a digest per statement, 16 hex digits, under names such as `CREATE TABLE TOTALS`.

    Spaces, comments and the case of words do not count. The columns and formats of created sources do: those of a `SELECT *`
    change with its source. `SET`, `UNSET` and types have no digests: types are part of the columns.

    Raises:
        SqlError: If a statement has a mistake.
    """
    found = Statements.of(text, file)
    digests: dict[str, str] = {}
    for statement, tokens in zip(found.statements, _parted(text), strict=True):
        name = _name_of(statement)
        if name is None:
            continue
        count = sum(each.partition(" #")[0] == name for each in digests)
        digests[f"{name} #{count + 1}" if count else name] = _digest(statement, tokens, found.catalog)
    return digests


def _parted(text: str) -> Iterator[list[Token]]:
    """Yield the words of each statement."""
    tokens: list[Token] = []
    for token in words(text):
        if token.text != ";" or token.token_type in _AS_WRITTEN:
            tokens.append(token)
        elif tokens:
            yield tokens
            tokens = []
    if tokens:
        yield tokens


def _name_of(statement: Statement) -> str | None:
    match statement:
        case CreateSource():
            return f"CREATE {'TABLE' if statement.is_table else 'STREAM'} {statement.name}"
        case InsertInto():
            return f"INSERT INTO {statement.name}"
        case DropSource():
            return f"DROP {'TABLE' if statement.is_table else 'STREAM'} {statement.name}"
        case _:
            return None


def _digest(statement: Statement, tokens: list[Token], catalog: Catalog) -> str:
    said = [each.text if each.token_type in _AS_WRITTEN else each.text.upper() for each in tokens]
    source = catalog.sources.get(getattr(statement, "name", ""))
    made = None if source is None else source.layout
    return hashlib.sha256(repr((said, made)).encode()).hexdigest()[:16]
