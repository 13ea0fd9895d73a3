"""The vocabulary of statements: their words and signs, the objects that the parser makes of them, and their errors."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from riverrun.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlglot import exp

    from riverrun.sql.types import SqlType
    from riverrun.windows import CalendarWindows


class SqlError(TopologyError):
    """A statement that cannot become a topology.

    Args:
        message: What is wrong.
        start: Offset of the mistake in the text; None until a caller knows it.
        hint: What to do about it.
    """

    def __init__(self, message: str, start: int | None = None, *, hint: str | None = None) -> None:
        """Keep the offset until `place` adds file, line and column to the message."""
        super().__init__(message, hint=hint)
        self.start = start

    def place(self, text: str, file: str) -> None:
        """Add file, line and column to the message, unless it has them."""
        if self.line is None and self.start is not None:
            before = text[: self.start]
            self.locate(f"{file}:{before.count(chr(10)) + 1}:{self.start - before.rfind(chr(10))}")


def start_of(node: exp.Expr) -> int | None:
    """Return the offset of an expression in the text; None if none of its parts has one, as in generated expressions."""
    for part in node.walk():
        if "start" in part.meta:
            return int(part.meta["start"])
    return None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the most similar name, or with all names if none is similar.

    >>> nearest("AMUONT", ["AMOUNT", "ID"])
    'Did you mean AMOUNT?'
    """
    names = list(known)
    close = difflib.get_close_matches(name.upper(), names, 1)
    if close:
        return f"Did you mean {close[0]}?"
    return f"There are: {', '.join(names)}" if names else None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source.

    Args:
        name: The name as statements compare it: in upper case, unless it has backquotes.
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
class LateInto:
    """LATE INTO: the stream for rows of a source that come too late.

    `source` is the alias of the source, in joins; None in windows, which have only one.
    """

    name: str
    start: int
    properties: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True, slots=True)
class DistinctOn:
    """DISTINCT ON: rows with equal values within a time are repetitions, of which the first remains. Times are in ms."""

    nodes: tuple[exp.Expr, ...]
    within: int
    grace: int | None
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
    late: tuple[LateInto, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowClause:
    """Windows of an aggregation, in ms; the size may be the windows of a calendar."""

    kind: str
    size: int | CalendarWindows
    advance: int | None = None
    grace: int | None = None
    retention: int | None = None
    late: LateInto | None = None


@dataclass(frozen=True, slots=True)
class OverFrame:
    """The rows of OVER up to each row: the time that they reach back, and the most of them. Times are in ms."""

    size: int
    rows: int | None = None
    grace: int | None = None


@dataclass(frozen=True, slots=True)
class PatternPart:
    """A variable of a pattern, with how often it is repeated; `most` is None without a limit."""

    name: str
    least: int
    most: int | None
    is_optional: bool
    start: int


@dataclass(frozen=True, slots=True)
class MatchRecognize:
    """MATCH_RECOGNIZE: rows of matches in place of those of a source, under an alias. Times are in ms."""

    partition_by: tuple[exp.Expr, ...]
    measures: tuple[tuple[str, exp.Expr], ...]
    parts: tuple[PatternPart, ...]
    definitions: Mapping[str, exp.Expr]
    within: int
    grace: int
    start: int
    alias: str

    @property
    def nodes(self) -> tuple[exp.Expr, ...]:
        return (*self.partition_by, *(node for _, node in self.measures), *self.definitions.values())


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT; with `needs_key`, the projection must contain the key of its rows, as it must in a file.

    With `drops_key`, columns of the key are columns like others: keys of united rows may differ if they are only shown.
    `unions` holds the SELECTs that follow it behind UNION ALL, which have none themselves.
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
    drops_key: bool = False
    distinct: DistinctOn | None = None
    match: MatchRecognize | None = None
    unions: tuple[Query, ...] = ()

    @property
    def selects(self) -> tuple[Query, ...]:
        return (self, *self.unions)

    def without_key(self) -> Query:
        """Return the query of the same rows for display, which may leave out their key."""
        unions = tuple(replace(each, needs_key=False, drops_key=True) for each in self.unions)
        return replace(self, needs_key=False, drops_key=bool(unions), unions=unions)

    @property
    def sources(self) -> tuple[From, ...]:
        return (self.source, *(join.source for join in self.joins))

    @property
    def late(self) -> tuple[LateInto, ...]:
        of_joins = tuple(each for join in self.joins for each in join.late)
        of_window = None if self.window is None else self.window.late
        return of_joins if of_window is None else (*of_joins, of_window)


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
        """Return the topic that WITH names; otherwise one with the source's name, without the prefix of SET."""
        return str(self.properties.get("KAFKA_TOPIC", self.name))


@dataclass(frozen=True, slots=True)
class InsertInto:
    """INSERT INTO a stream, from a query."""

    name: str
    query: Query
    start: int


@dataclass(frozen=True, slots=True)
class DropSource:
    """DROP STREAM or TABLE; `deletes` stands for DELETE TOPIC."""

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


# The parser and the compiler call themselves for each level: Python's stack must not be the limit.
MOST_LEVELS = 32
"""Greatest number of levels in which brackets, types, CASE, lambdas, NOT and signs stand within each other."""
# A DOUBLE has at most 309 digits before its point; converting longer texts takes quadratic time.
_MOST_NUMBER = 400
# Texts and names in quotes, comments, and all other characters.
_CLOSED = re.compile(r"""'[^']*'|`[^`]*`|"[^"]*"|--[^\n]*|/\*.*?\*/|(?!/\*)[^'`"]""", re.DOTALL)
_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END})
# Operators before one operand, which can stand before each other: each of them is a level as well.
_BEFORE = frozenset({TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE})
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
    try:
        found = Ksql().tokenize(text)
    except TokenError as error:
        raise _unreadable(text, error) from None
    # Of the tokens, because the parser itself would already have called itself too often.
    _check_levels(found)
    for token in found:
        if token.token_type == TokenType.NUMBER and len(token.text) > _MOST_NUMBER:
            message = f"A number of {len(token.text)} characters is too long: the most is {_MOST_NUMBER}"
            raise SqlError(message, token.start)
    return found


def _unreadable(text: str, error: TokenError) -> SqlError:
    # sqlglot's error has the place where the text ends, not the place where a quote or a comment begins.
    at = 0
    while found := _CLOSED.match(text, at):
        at = found.end()
    if at < len(text):
        return SqlError(f"This {'comment' if text[at] == '/' else 'quote'} is not closed", at)
    # sqlglot's message may quote the text.
    return SqlError(f"The text cannot be read: {str(error)[:_MOST_NUMBER]}", at)


def _check_levels(tokens: Sequence[Token]) -> None:
    # Each level has the sign that opened it, and the number of lambdas around it: a lambda has no closing sign, and ends
    # at a comma or with the brackets around it.
    levels: list[tuple[str, int]] = []
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
            raise SqlError(message, token.start, hint="Compute a part of it in an earlier statement.")
