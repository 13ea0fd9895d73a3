"""Digests of statements: equal for statements with equal words and columns, whatever their layout."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from riverrun.sql.answering.inspection import Statements
from riverrun.sql.grammar.statements import CreateSource, DropSource, InsertInto
from riverrun.sql.grammar.tokens import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlglot.tokenizer_core import Token

    from riverrun.sql.catalog import Catalog
    from riverrun.sql.grammar.statements import Statement

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
