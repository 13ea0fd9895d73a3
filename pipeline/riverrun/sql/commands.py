"""Commands that inspect an application's statements and topics, as in ksqlDB's shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlglot import exp
from sqlglot.errors import ParseError

from riverrun.dsl.builder import StreamsBuilder
from riverrun.sql.functions.registry import REGISTRY
from riverrun.sql.planning.planner import StatementPlan, columns_next_to
from riverrun.sql.statement_parser import KsqlParser, parse
from riverrun.sql.statements import (
    CreateSource,
    CustomType,
    InsertInto,
    Ksql,
    SetProperty,
    SqlError,
    nearest,
    start_of,
)
from riverrun.sql.variables import spelled, statement_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    from sqlglot.tokenizer_core import Token

    from riverrun.sql.catalog import Catalog, Source
    from riverrun.sql.columns_file import Resolver
    from riverrun.sql.functions.registry import Overload
    from riverrun.sql.statements import LateInto, Query, Statement

PROPERTIES: Mapping[str, tuple[str, ...]] = {"auto.offset.reset": ("earliest", "latest")}
"""The properties of SET at the prompt, with their values."""
KINDS = ("STREAMS", "TABLES", "TOPICS", "QUERIES", "FUNCTIONS", "TYPES", "VARIABLES")

_HINT = (
    "Commands are SHOW, DESCRIBE, EXPLAIN, PRINT, SELECT, INSERT INTO ... VALUES, DELETE FROM, SET and DEFINE. "
    "Statements belong in the file."
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
class PrintTopic:
    """PRINT: records of a topic, from the beginning or new ones only, each `interval`th one, up to a `limit`."""

    topic: str
    from_beginning: bool
    interval: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class Order:
    """An expression of ORDER BY."""

    node: exp.Expr
    is_descending: bool
    is_null_first: bool


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT: the current rows, or with EMIT CHANGES (`follows`) the changes as they happen, up to a `limit`."""

    query: Query
    follows: bool
    limit: int | None
    text: str = ""
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class InsertValues:
    """INSERT INTO ... VALUES, with names of columns and their places in the text; without names, all columns in order."""

    name: str
    columns: tuple[tuple[str, int], ...]
    values: tuple[exp.Expr, ...]
    start: int


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """DELETE FROM a table WHERE its key is one of some constants."""

    name: str
    where: exp.Expr
    start: int


Command: TypeAlias = (
    "Show | Describe | DescribeFunction | Explain | PrintTopic | Select | SetProperty | InsertValues | DeleteRows"
)


def parse_commands(text: str, variables: MutableMapping[str, str] | None = None) -> list[Command]:
    """Return the commands of a text, each with a semicolon at its end; the last one may lack it.

    `variables` are those defined before; definitions of the text are added.
    """
    return _CommandParser(dialect=Ksql()).commands(text, statement_words(text, variables))


class _CommandParser(KsqlParser):
    def commands(self, text: str, tokens: list[Token]) -> list[Command]:
        self.begin(text, tokens)
        found: list[Command] = []
        try:
            while self._curr:
                found.append(self._command())
                if self._curr and not self.word(";"):
                    raise self.fail(f"Unexpected {self._curr.text!r}")
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
        if self.word("DELETE", "FROM"):
            return self._delete()
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
            return Explain(self.query().without_key(), None, start)
        return Explain(None, self.name()[0], start)

    def _print(self) -> PrintTopic:
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
        return PrintTopic(topic, from_beginning, max(interval, 1), limit)

    def _insert(self) -> InsertValues:
        name, start = self.name()
        columns = self.listed(self.name) if self.word("(") else ()
        if not self.word("VALUES"):
            raise self.fail("INSERT INTO takes VALUES here", hint="INSERT INTO ... SELECT belongs in the file.")
        self.expect("(")
        return InsertValues(name, tuple(columns), tuple(self.listed(self.expression_of)), start)

    def _delete(self) -> DeleteRows:
        name, start = self.name()
        if not self.word("WHERE"):
            raise self.fail("DELETE FROM takes WHERE and the key here", hint="DELETE FROM customers WHERE id = 7")
        return DeleteRows(name, self.expression_of(), start)

    def _select(self) -> Select:
        begin, start = self._index, self._curr.start
        query = self.query()
        # In a file every query has its changes, so the parser does not keep whether EMIT CHANGES was written.
        follows = not query.is_final and any(each.text.upper() == "EMIT" for each in self._tokens[begin : self._index])
        follows = follows or query.is_final
        orders: tuple[Order, ...] = ()
        if self.is_next("ORDER"):
            if follows:
                raise self.fail("ORDER BY needs the current rows: without EMIT, a query has them")
            self.expect("ORDER", "BY")
            orders = self._orders()
        limit = self.number() if self.word("LIMIT") else None
        text = self.sql[start : self._prev.end + 1]
        # An instance that answers the query does not know the variables.
        text = spelled(self._tokens[begin : self._index]) if "${" in text else text
        return Select(query, follows, limit, text, orders)

    def _orders(self) -> tuple[Order, ...]:
        found = [self._order()]
        while self.word(","):
            found.append(self._order())
        return tuple(found)

    def _order(self) -> Order:
        node = self.expression_of()
        if isinstance(node, exp.Literal | exp.Null):
            raise SqlError("ORDER BY takes columns and expressions, and no constant", start_of(node))
        is_descending = self.word("DESC")
        if not is_descending:
            self.word("ASC")
        # As in Flink: NULL is less than all values.
        is_null_first = not is_descending
        if self.word("NULLS"):
            is_null_first = self.word("FIRST")
            if not is_null_first:
                self.expect("LAST")
        return Order(node, is_descending, is_null_first)


def _known(command: SetProperty) -> SetProperty:
    """Return the command, if the property exists and has this value."""
    if command.name not in PROPERTIES:
        message = f"There is no property '{command.name}' here"
        raise SqlError(message, command.start, hint=nearest(command.name, PROPERTIES))
    if command.value not in {None, *PROPERTIES[command.name]}:
        message = f"'{command.name}' cannot be '{command.value}'"
        raise SqlError(message, command.start, hint=f"It can be {' or '.join(PROPERTIES[command.name])}.")
    return command


@dataclass(frozen=True, slots=True)
class ResultSet:
    """Rows, with the names of their columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of a file, and the sources that they declare and create."""

    text: str
    statements: tuple[Statement, ...]
    catalog: Catalog
    columns: Resolver

    @classmethod
    def of(
        cls, text: str, file: str, builder: StreamsBuilder | None = None, columns: Resolver | None = None
    ) -> Statements:
        """Plan statements; `file` is for messages, and for the file of columns next to it."""
        plan = StatementPlan(builder or StreamsBuilder(), columns=columns or columns_next_to(file))
        try:
            found = parse(text)
            plan.add_all(found)
        except SqlError as error:
            error.place(text, file)
            raise
        return cls(text, tuple(found), plan.catalog, plan.columns)

    def answer(
        self, command: Show | Describe | DescribeFunction | Explain, variables: Mapping[str, str] | None = None
    ) -> ResultSet:
        match command:
            case Show("VARIABLES"):
                return ResultSet(("Variable Name", "Value"), tuple(sorted((variables or {}).items())))
            case Show():
                return self._shown(command.kind)
            case Describe():
                return _described(self.catalog.find(command.name, command.start))
            case DescribeFunction():
                return _described_function(command)
            case Explain():
                return self._explained(command)

    def _shown(self, kind: str) -> ResultSet:
        sources = self.catalog.sources.values()
        if kind == "TYPES":
            return ResultSet(("Type Name", "Schema"), tuple(self._types()))
        if kind == "QUERIES":
            return ResultSet(("Statement", "Sink", "Sink Kafka Topic"), tuple(self._queries()))
        if kind == "TOPICS":
            return ResultSet(("Kafka Topic", "Sources"), tuple(_topics(sources)))
        if kind == "FUNCTIONS":
            return ResultSet(("Function Name", "Category"), tuple(_functions()))
        rows = (
            (
                each.name,
                each.topic,
                each.layout.key_form.name,
                each.layout.value_form.name,
                each.layout.window is not None,
            )
            for each in sources
            if each.is_table == (kind == "TABLES")
        )
        title = "Table Name" if kind == "TABLES" else "Stream Name"
        return ResultSet((title, "Kafka Topic", "Key Format", "Value Format", "Windowed"), tuple(rows))

    def _types(self) -> Iterable[tuple[Any, ...]]:
        """Return the custom types that remain after the last statement."""
        # DROP TYPE is a statement whose type is None.
        found = {each.name: each.type for each in self.statements if isinstance(each, CustomType)}
        return ((name, str(type_)) for name, type_ in sorted(found.items()) if type_ is not None)

    def _queries(self) -> Iterable[tuple[Any, ...]]:
        for each in self.statements:
            if isinstance(each, InsertInto):
                yield "INSERT INTO", each.name, self.catalog.sources[each.name].topic
            elif isinstance(each, CreateSource) and each.query is not None and each.name in self.catalog.sources:
                yield "CREATE AS SELECT", each.name, self.catalog.sources[each.name].topic
            query = each.query if isinstance(each, CreateSource | InsertInto) else None
            for into in () if query is None else _late_of(query):
                if into.name in self.catalog.sources:
                    yield "LATE INTO", into.name, self.catalog.sources[into.name].topic

    def _explained(self, command: Explain) -> ResultSet:
        if command.query is not None:
            plan = StatementPlan(StreamsBuilder(), self.catalog, columns=self.columns)
            plan.select(command.query, "shown")
        else:
            # What the statement finds: the sources and properties of those before it.
            number = self._making(command)
            before = StatementPlan(StreamsBuilder(), columns=self.columns)
            before.add_all(self.statements[:number])
            plan = StatementPlan(StreamsBuilder(), before.catalog, properties=before.properties, columns=self.columns)
            plan.add_all([self.statements[number]])
        return ResultSet(("Topology",), tuple((line,) for line in str(plan.builder.build().describe()).splitlines()))

    def _making(self, command: Explain) -> int:
        """Return the number of the statement that creates a source."""
        name = command.name or ""
        numbers = {
            made: number
            for number, each in enumerate(self.statements)
            if isinstance(each, CreateSource) and each.query is not None
            for made in (each.name, *(late.name for late in _late_of(each.query)))
        }
        if name not in numbers:
            raise SqlError(f"No statement creates {name} from a query", command.start, hint=nearest(name, numbers))
        return numbers[name]


def _late_of(query: Query) -> list[LateInto]:
    return [each for select in query.selects for each in select.late]


def _topics(sources: Iterable[Source]) -> Iterable[tuple[Any, ...]]:
    by_topic: dict[str, list[str]] = {}
    for each in sources:
        by_topic.setdefault(each.topic, []).append(each.name)
    return ((topic, ", ".join(names)) for topic, names in sorted(by_topic.items()))


def _functions() -> Iterable[tuple[str, str]]:
    return sorted({(each.signature.name, each.theme) for each in _overloads()})


def _overloads() -> list[Overload]:
    return [each for overloads in REGISTRY.overloads.values() for each in overloads]


def _described(source: Source) -> ResultSet:
    role = "primary key" if source.is_table else "key"
    rows: list[tuple[Any, ...]] = [(name, str(type_), role) for name, type_ in source.layout.key]
    rows += [(name, str(type_), "") for name, type_ in source.layout.value]
    rows += [(name, "", f"header {header}" if header else "headers") for name, header in source.layout.headers]
    return ResultSet(("Field", "Type", "Role"), tuple(rows))


def _described_function(command: DescribeFunction) -> ResultSet:
    overloads = [each for each in _overloads() if each.signature.name == command.name]
    if not overloads:
        names: Sequence[str] = [name for name, _ in _functions()]
        message = f"Can't find any functions with the name '{command.name}'"
        raise SqlError(message, command.start, hint=nearest(command.name, names))
    rows = tuple((each.signature.text, " ".join(each.description.split())) for each in overloads)
    return ResultSet(("Variation", "Description"), rows)
