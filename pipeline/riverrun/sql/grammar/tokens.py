"""Splits ksqlDB's words and signs for sqlglot."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from riverrun.sql.errors import SqlError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_LEVELS = 32
"""Greatest number of levels in which brackets, types, CASE, lambdas, NOT and signs stand within each other."""
_MOST_NUMBER = 400
"""Greatest number of characters of a number: more than a DOUBLE has digits before or behind its point."""
_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END})
_BEFORE = frozenset({TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE})
"""Operators before one operand, which can stand before each other."""
_TYPES = frozenset({"ARRAY", "MAP", "STRUCT"})
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
        SqlError: If it cannot be split into them, or has more levels or longer numbers than can be read.
    """
    try:
        found = Ksql().tokenize(text)
    except TokenError as error:
        message = f"The text cannot be read: {str(error)[:_MOST_NUMBER]}"
        raise SqlError(message, 0) from None
    _check_levels(found)
    for token in found:
        if token.token_type == TokenType.NUMBER and len(token.text) > _MOST_NUMBER:
            message = f"A number of {len(token.text)} characters: there may be {_MOST_NUMBER}"
            raise SqlError(message, token.start)
    return found


def _check_levels(tokens: Sequence[Token]) -> None:
    """Make sure that the parser, which calls itself for each level, comes to an end.

    Raises:
        SqlError: If there are more than `MOST_LEVELS` levels.
    """
    levels: list[tuple[str, int]] = []  # how each was opened, and the lambdas around it
    before = lambdas = 0
    for number, token in enumerate(tokens):
        kind = token.token_type
        before = before + 1 if kind in _BEFORE else 0
        if kind in _OPENING or (kind == TokenType.LT and number and tokens[number - 1].text.upper() in _TYPES):
            levels.append((token.text, lambdas))
        elif levels and (kind in _CLOSING or (kind == TokenType.GT and levels[-1][0] == "<")):
            _, lambdas = levels.pop()
        elif kind == TokenType.FARROW:
            lambdas += 1
        elif kind in {TokenType.COMMA, TokenType.SEMICOLON}:
            lambdas = levels[-1][1] if levels else 0
        if len(levels) + lambdas + before > MOST_LEVELS:
            message = (
                f"Statements are nested in at most {MOST_LEVELS} levels of brackets, types, CASE, lambdas and signs"
            )
            raise SqlError(message, token.start, hint="Compute a part of it in a statement before.")
