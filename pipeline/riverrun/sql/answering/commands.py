"""Commands that inspect an application's statements and topics, as in ksqlDB's shell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from sqlglot.errors import ParseError

from riverrun.sql.errors import SqlError, nearest
from riverrun.sql.grammar.statement_parser import KsqlParser
from riverrun.sql.grammar.tokens import Ksql, words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot import exp

    from riverrun.sql.grammar.statements import Query, SetProperty

PROPERTIES: Mapping[str, tuple[str, ...]] = {"auto.offset.reset": ("earliest", "latest")}
"""The properties of SET, with their values."""
KINDS = ("STREAMS", "TABLES", "TOPICS", "QUERIES", "FUNCTIONS", "TYPES")

_HINT = (
    "There are SHOW, DESCRIBE, EXPLAIN, PRINT, SELECT, INSERT INTO ... VALUES and SET; statements stand in the file."
)


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW: lists everything of one kind."""

    kind: str


@dataclass(frozen=True, slots=True)
class Describe:
    """DESCRIBE: a stream or a table."""

    name: str
    start: int


@dataclass(frozen=True, slots=True)
class DescribeFunction:
    """DESCRIBE FUNCTION."""

    name: str
    start: int


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN: a query, or the stream or table that a statement creates."""

    query: Query | None
    name: str | None
    start: int


@dataclass(frozen=True, slots=True)
class Print:
    """PRINT: records of a topic, from the beginning or new ones only, each `interval`th one, up to a `limit`."""

    topic: str
    from_beginning: bool
    interval: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT: the current rows, or with EMIT CHANGES the changes as they happen, up to a `limit`; with its `text`."""

    query: Query
    follows: bool
    limit: int | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class InsertValues:
    """INSERT INTO ... VALUES, with names of columns and their places in the text; without names, all columns in order."""

    name: str
    columns: tuple[tuple[str, int], ...]
    values: tuple[exp.Expr, ...]
    start: int


Command: TypeAlias = "Show | Describe | DescribeFunction | Explain | Print | Select | SetProperty | InsertValues"


def parse_commands(text: str) -> list[Command]:
    """Return the commands of a text, each with a semicolon at its end; the last one may lack it.

    Raises:
        SqlError: If a command has a mistake.
    """
    return _CommandParser(dialect=Ksql()).commands(text)


class _CommandParser(KsqlParser):
    def commands(self, text: str) -> list[Command]:
        self.begin(text, words(text))
        found: list[Command] = []
        try:
            while self._curr:
                found.append(self._command())
                if self._curr and not self.word(";"):
                    message = f"Unexpected {self._curr.text!r}"
                    raise self.fail(message)
        except (ParseError, RecursionError) as error:
            raise self.fail(str(error), self._prev) from None
        return found

    def _command(self) -> Command:
        if self.word("SHOW") or self.word("LIST"):
            return self._show()
        if self.word("DESCRIBE"):
            is_function = self.word("FUNCTION")
            name, start = self.name()
            self.word("EXTENDED")
            return DescribeFunction(name, start) if is_function else Describe(name, start)
        if self.word("EXPLAIN"):
            return self._explain()
        if self.word("PRINT"):
            return self._print()
        if self.is_next("SELECT"):
            return self._select()
        if self.word("INSERT", "INTO"):
            return self._insert()
        if self.is_next("SET", "UNSET"):
            return _known(self.property_set())
        message = f"A command begins with {self._curr.text!r}, which is not supported"
        raise self.fail(
            message,
            hint=_HINT,
        )

    def _show(self) -> Show:
        self.word("ALL")
        kind, start = self.name()
        if kind not in KINDS:
            message = f"There is no SHOW {kind}"
            raise SqlError(message, start, hint=nearest(kind, KINDS) or f"There are {', '.join(KINDS)}.")
        self.word("EXTENDED")
        return Show(kind)

    def _explain(self) -> Explain:
        start = self._curr.start if self._curr else len(self.sql)
        if self.is_next("SELECT"):
            return Explain(replace(self.query(), needs_key=False), None, start)
        return Explain(None, self.name()[0], start)

    def _print(self) -> Print:
        token = self._curr
        if token and token.token_type.name == "STRING":
            topic = str(token.text)
            self._advance()
        else:
            self.name()
            topic = str(token.text)
        from_beginning = self.word("FROM", "BEGINNING")
        interval = self.number() if self.word("INTERVAL") or self.word("SAMPLE") else 1
        limit = self.number() if self.word("LIMIT") else None
        return Print(topic, from_beginning, max(interval, 1), limit)

    def _insert(self) -> InsertValues:
        name, start = self.name()
        columns = self.listed(self.name) if self.word("(") else ()
        if not self.word("VALUES"):
            message = "INSERT INTO takes VALUES here"
            raise self.fail(message, hint="INSERT INTO ... SELECT stands in the file.")
        self.expect("(")
        return InsertValues(name, tuple(columns), tuple(self.listed(self.expression_of)), start)

    def _select(self) -> Select:
        begin, start = self._index, self._curr.start
        query = self.query()
        follows = not query.is_final and any(each.text.upper() == "EMIT" for each in self._tokens[begin : self._index])
        limit = self.number() if self.word("LIMIT") else None
        return Select(query, follows or query.is_final, limit, self.sql[start : self._prev.end + 1])


def _known(command: SetProperty) -> SetProperty:
    """Return the command, if the property exists and has this value.

    Raises:
        SqlError: If it does not.
    """
    if command.name not in PROPERTIES:
        message = f"There is no property '{command.name}' here"
        raise SqlError(message, command.start, hint=nearest(command.name, PROPERTIES))
    if command.value not in {None, *PROPERTIES[command.name]}:
        message = f"'{command.name}' cannot be '{command.value}'"
        raise SqlError(message, command.start, hint=f"It is {' or '.join(PROPERTIES[command.name])}.")
    return command
