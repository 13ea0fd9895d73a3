"""Answers commands about statements: which sources and types there are, their columns, and their queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.dsl.builder import StreamsBuilder
from riverrun.sql.answering.commands import Describe, DescribeFunction, Explain, Show
from riverrun.sql.errors import SqlError, nearest
from riverrun.sql.functions.registry import REGISTRY
from riverrun.sql.grammar.statement_parser import parse
from riverrun.sql.grammar.statements import CreateSource, CustomType, InsertInto
from riverrun.sql.planning.planner import Plan, columns_next_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from riverrun.sql.catalog import Catalog, Source
    from riverrun.sql.columns import Resolver
    from riverrun.sql.functions.registry import Overload
    from riverrun.sql.grammar.statements import Statement


@dataclass(frozen=True, slots=True)
class Answer:
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
        """Read statements.

        Args:
            text: The statements.
            file: The file of the statements: for errors, and for the file of columns next to it.
            builder: An empty builder; one without settings if left out.
            columns: Finds the columns that statements leave to a schema registry; by default the file of columns.

        Raises:
            SqlError: If a statement has a mistake.
        """
        plan = Plan(builder or StreamsBuilder(), columns=columns or columns_next_to(file))
        try:
            found = parse(text)
            plan.add_all(found)
        except SqlError as error:
            error.place(text, file)
            raise
        return cls(text, tuple(found), plan.catalog, plan.columns)

    def answer(self, command: Show | Describe | DescribeFunction | Explain) -> Answer:
        """Return the answer to a command.

        Raises:
            SqlError: If it names something that does not exist.
        """
        match command:
            case Show():
                return self._shown(command.kind)
            case Describe():
                return _described(self.catalog.find(command.name, command.start))
            case DescribeFunction():
                return _described_function(command)
            case Explain():
                return self._explained(command)

    def _shown(self, kind: str) -> Answer:
        sources = self.catalog.sources.values()
        if kind == "TYPES":
            return Answer(("Type Name", "Schema"), tuple(self._types()))
        if kind == "QUERIES":
            return Answer(("Statement", "Sink", "Sink Kafka Topic"), tuple(self._queries()))
        if kind == "TOPICS":
            return Answer(("Kafka Topic", "Sources"), tuple(_topics(sources)))
        if kind == "FUNCTIONS":
            return Answer(("Function Name", "Category"), tuple(_functions()))
        rows = (
            (each.name, each.topic, each.layout.key_format, each.layout.value_format, each.layout.window is not None)
            for each in sources
            if each.is_table == (kind == "TABLES")
        )
        title = "Table Name" if kind == "TABLES" else "Stream Name"
        return Answer((title, "Kafka Topic", "Key Format", "Value Format", "Windowed"), tuple(rows))

    def _types(self) -> Iterable[tuple[Any, ...]]:
        """Return the custom types that remain after the last statement."""
        found = {each.name: each.type for each in self.statements if isinstance(each, CustomType)}
        return ((name, str(type_)) for name, type_ in sorted(found.items()) if type_ is not None)

    def _queries(self) -> Iterable[tuple[Any, ...]]:
        for each in self.statements:
            if isinstance(each, InsertInto):
                yield "INSERT INTO", each.name, self.catalog.sources[each.name].topic
            elif isinstance(each, CreateSource) and each.query is not None and each.name in self.catalog.sources:
                yield "CREATE AS SELECT", each.name, self.catalog.sources[each.name].topic

    def _explained(self, command: Explain) -> Answer:
        plan = Plan(StreamsBuilder(), self.catalog, columns=self.columns)
        if command.query is not None:
            plan.select(command.query, "shown")
        else:
            plan.add_all([self._making(command)])
        return Answer(("Topology",), tuple((line,) for line in str(plan.builder.build().describe()).splitlines()))

    def _making(self, command: Explain) -> Statement:
        """Return the statement that creates a source; the source is forgotten, so that it can be created again."""
        name = command.name or ""
        made = [each for each in self.statements if isinstance(each, CreateSource) and each.query is not None]
        found = [each for each in made if each.name == name]
        if not found:
            message = f"No statement makes {name} of a query"
            raise SqlError(message, command.start, hint=nearest(name, [each.name for each in made]))
        self.catalog.sources.pop(name, None)
        return found[-1]


def _topics(sources: Iterable[Source]) -> Iterable[tuple[Any, ...]]:
    by_topic: dict[str, list[str]] = {}
    for each in sources:
        by_topic.setdefault(each.topic, []).append(each.name)
    return ((topic, ", ".join(names)) for topic, names in sorted(by_topic.items()))


def _functions() -> Iterable[tuple[str, str]]:
    return sorted({(each.signature.name, each.theme) for each in _overloads()})


def _overloads() -> list[Overload]:
    return [each for overloads in REGISTRY.overloads.values() for each in overloads]


def _described(source: Source) -> Answer:
    role = "primary key" if source.is_table else "key"
    rows: list[tuple[Any, ...]] = [(name, str(type_), role) for name, type_ in source.layout.key]
    rows += [(name, str(type_), "") for name, type_ in source.layout.value]
    rows += [(name, "", f"header {header}" if header else "headers") for name, header in source.layout.headers]
    return Answer(("Field", "Type", "Role"), tuple(rows))


def _described_function(command: DescribeFunction) -> Answer:
    overloads = [each for each in _overloads() if each.signature.name == command.name]
    if not overloads:
        names: Sequence[str] = [name for name, _ in _functions()]
        message = f"Can't find any functions with the name '{command.name}'"
        raise SqlError(message, command.start, hint=nearest(command.name, names))
    rows = tuple((each.signature.text, " ".join(each.description.split())) for each in overloads)
    return Answer(("Variation", "Description"), rows)
