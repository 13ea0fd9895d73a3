"""Splits ksqlDB's words and signs for sqlglot."""

from __future__ import annotations

from typing import ClassVar

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from riverrun.sql.errors import SqlError

RESERVED = frozenset(
    """SELECT FROM WHERE GROUP HAVING PARTITION EMIT JOIN LEFT RIGHT INNER OUTER FULL ON WITHIN WINDOW AND OR NOT IN IS LIKE
    BETWEEN CASE WHEN THEN ELSE END CREATE INSERT DROP AS BY GRACE LIMIT""".split()  # noqa: SIM905 - a list of words
)
"""Reserved words, which are names only in backquotes."""


class KsqlTokenizer(Tokenizer):
    """ksqlDB's words and signs; words that are not operators are names."""

    QUOTES: ClassVar = ["'"]
    IDENTIFIERS: ClassVar = ["`", '"']
    COMMENTS: ClassVar = ["--", ("/*", "*/")]
    KEYWORDS: ClassVar = {
        "AND": TokenType.AND,
        "OR": TokenType.OR,
        "NOT": TokenType.NOT,
        "IN": TokenType.IN,
        "IS": TokenType.IS,
        "LIKE": TokenType.LIKE,
        "ESCAPE": TokenType.ESCAPE,
        "BETWEEN": TokenType.BETWEEN,
        "CASE": TokenType.CASE,
        "WHEN": TokenType.WHEN,
        "THEN": TokenType.THEN,
        "ELSE": TokenType.ELSE,
        "END": TokenType.END,
        "DISTINCT": TokenType.DISTINCT,
        "NULL": TokenType.NULL,
        "TRUE": TokenType.TRUE,
        "FALSE": TokenType.FALSE,
        "->": TokenType.ARROW,
        "=>": TokenType.FARROW,
        ":=": TokenType.COLON_EQ,
        "<>": TokenType.NEQ,
        "!=": TokenType.NEQ,
        "<=": TokenType.LTE,
        ">=": TokenType.GTE,
    }


class Ksql(Dialect):
    """sqlglot's dialect with ksqlDB's words and signs."""

    Tokenizer = KsqlTokenizer


def words(text: str) -> list[Token]:
    """Return the words and signs of a text.

    Raises:
        SqlError: If it cannot be split into them.
    """
    try:
        return Ksql().tokenize(text)
    except TokenError as error:
        message = f"The text cannot be read: {error}"
        raise SqlError(message, 0) from None
