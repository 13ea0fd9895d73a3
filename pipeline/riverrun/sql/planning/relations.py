"""Rows of the sources of a query: tuples of all columns, in which expressions find a column by its index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.codegen.functions import written
from riverrun.sql.expressions import Compiler, Field, find_field
from riverrun.sql.formats import named, row_serde
from riverrun.sql.functions import (
    TableFunction,
    UnknownFunction,
    WrongArguments,
    find_table_function,
    is_table_function,
)
from riverrun.sql.functions.times import parse_timestamp
from riverrun.sql.row_code import Code, WithKey, digest_of, function_of
from riverrun.sql.statements import CreateSource, InsertInto, SqlError, start_of
from riverrun.sql.types import HEADERS, Primitive
from riverrun.windows import Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.ktable import KTable
    from riverrun.dsl.options import Materialized
    from riverrun.serde.api import Serde
    from riverrun.sql.catalog import Source
    from riverrun.sql.durations import WindowSize
    from riverrun.sql.statements import Query, Statement
    from riverrun.sql.types import SqlType


def names_of(query: Query) -> set[str]:
    """Return the names of all columns in a SELECT's expressions, without those that stars stand for."""
    roots = [item.expression for item in query.items]
    roots += [query.where, query.having, *query.partition_by, *query.group_by, *(join.on for join in query.joins)]
    roots += () if query.distinct is None else query.distinct.nodes
    roots += () if query.match is None else query.match.nodes
    return {column.name for root in roots if root is not None for column in root.find_all(exp.Column)}


def used_columns(statements: Sequence[Statement]) -> Mapping[str, frozenset[str]]:
    """Return the names of the columns that statements use, by source; a source without an entry is read whole."""
    # A name counts for every source of its query: too many columns cost time, a missing one would be NULL. A topic is read
    # once for all statements, so a topic or name that occurs twice is read whole, like the source of a star.
    used: dict[str, set[str]] = {}
    whole = _shared(statements)
    for statement in statements:
        query = statement.query if isinstance(statement, CreateSource | InsertInto) else None
        for select in () if query is None else query.selects:
            names = names_of(select)
            # LATE INTO sends whole rows, like a star.
            has_star = bool(select.late) or any(item.expression is None for item in select.items)
            for source in select.sources:
                used.setdefault(source.name, set()).update(names)
                if has_star:
                    whole.add(source.name)
    return {name: frozenset(names) for name, names in used.items() if name not in whole}


def _shared(statements: Sequence[Statement]) -> set[str]:
    """Return the sources whose name or topic is that of several statements."""
    made = [each for each in statements if isinstance(each, CreateSource)]
    names = Counter(each.name for each in made)
    topics = Counter(each.topic for each in made)
    return {each.name for each in made if names[each.name] > 1 or topics[each.topic] > 1}


LateRows = Callable[["Relation"], None]
"""Receives a stream of late rows."""


def column_of(field: Field) -> exp.Column:
    """Return the expression of a column, with its source."""
    return exp.Column(this=exp.Identifier(this=field.name), table=exp.Identifier(this=field.source))


@dataclass(frozen=True, slots=True)
class Relation:
    """A stream or table of rows. Keys are tuples of the values of the key's columns, windowed or not.

    For joined sources, `viable` holds the indexes of columns that contain the key: any of them may represent it. `tables` holds
    the topics of the tables in it. Rows that `moves` are in other partitions than their keys say, until they are repartitioned.
    """

    name: str
    fields: tuple[Field, ...]
    key_serde: Serde[Any]
    window: str | None = None
    window_size: WindowSize | None = None
    stream: KStream[Any, Any] | None = None
    table: KTable[Any, Any] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    is_joined: bool = False
    viable: tuple[int, ...] = ()
    tables: frozenset[str] = frozenset()
    moves: bool = False

    @classmethod
    def of(cls, source: Source, alias: str, keys: Serde[Any]) -> Relation:
        """Return a relation of a source's columns, without rows yet."""
        # Values come first: generated code appends the key to the unpacked row (`WithKey`).
        layout = source.layout
        values = [Field(name, type_, alias) for name, type_ in layout.value]
        fields = (*values, *(Field(name, type_, alias, is_key=True, is_source_key=True) for name, type_ in layout.key))
        tables = frozenset({source.topic} if source.is_table else ())
        moves = layout.changes is not None and not source.is_table
        return cls(
            alias, fields, keys, layout.window, layout.window_size, headers=layout.headers, tables=tables, moves=moves
        )

    @property
    def key(self) -> tuple[int, ...]:
        """Return the indexes of the key's columns."""
        return tuple(number for number, each in enumerate(self.fields) if each.is_key)

    def with_stream(self, stream: KStream[Any, Any], used: Collection[str]) -> Relation:
        """Return the relation with the rows of a stream, its headers, and the pseudo columns that are used."""
        columns = [*self._headers, *(_Place(name) for name in PLACES if name in used)]
        rows = stream.map_values(self._row_of())
        if columns:
            rows = rows.process_values(_supplier(columns))
        return replace(self, fields=self._with_columns(columns), stream=rows)

    def with_table(self, table: KTable[Any, Any]) -> Relation:
        return replace(self, fields=self._with_bounds(), table=table.map_values(self._row_of()))

    def placed_table(self, stream: KStream[Any, Any], kept: Materialized[Any, Any]) -> KTable[Any, Any]:
        """Return the rows of a table, each with its headers and all pseudo columns."""
        relation = self.with_stream(stream, PLACES)
        assert relation.stream is not None  # noqa: S101 - it has just been set
        return relation.stream.to_table(replace(kept, key_serde=self.key_serde, value_serde=rows_of(relation.fields)))

    def with_placed_table(self, table: KTable[Any, Any]) -> Relation:
        """Return the relation with the rows of a table from `placed_table`."""
        return replace(self, fields=self.placed_fields, table=table)

    @property
    def placed_fields(self) -> tuple[Field, ...]:
        """Return the columns of rows from `placed_table`."""
        return self._with_columns([*self._headers, *map(_Place, PLACES)])

    def rekeyed(self, stream: KStream[Any, Any]) -> Relation:
        """Return the relation with rows that a repartitioning has moved, under their own keys again."""
        return replace(self, stream=stream.select_key(_own_key(self)))

    @property
    def _headers(self) -> list[_Place]:
        return [_Place(name, header) for name, header in self.headers]

    def _with_columns(self, columns: Sequence[_Place]) -> tuple[Field, ...]:
        return (*self._with_bounds(), *map(self._placed, columns))

    def _with_bounds(self) -> tuple[Field, ...]:
        bounds = _BOUNDS if self.window else ()
        return (*self.fields, *(self._placed(_Place(name)) for name in bounds))

    def _row_of(self) -> Callable[[Any, Any], Any]:
        values = len(self.fields) - len(self.key)
        return _row_of(values, len(self.key), is_windowed=self.window is not None)

    def _placed(self, place: _Place) -> Field:
        return Field(place.name, place.type, self.name, is_pseudo=place.header is None)


def _own_key(relation: Relation) -> Callable[[Any, Any], Any]:
    """Return the function that makes the key of a row from its columns."""
    places, bounds = relation.key, tuple(n for n, each in enumerate(relation.fields) if each.name in _BOUNDS)
    is_windowed = relation.window is not None

    def key(_key: Any, row: Any) -> Any:
        made = tuple(row[place] for place in places)
        # A row without a key was written with NULLs in the key's columns.
        if not any(each is not None for each in made):
            return None
        return Windowed(made, Window(*(row[place] for place in bounds))) if is_windowed else made

    return key


def rows_of(fields: Sequence[Field]) -> Serde[Any]:
    """Return the serde of rows in stores, with their names; names that several sources have begin with the source's name."""
    names = [each.name for each in fields]
    unique = [f"{each.source}_{each.name}" if names.count(each.name) > 1 else each.name for each in fields]
    rows = row_serde([each.type for each in fields])
    return named(rows, tuple(zip(unique, (each.type for each in fields), strict=True)))


_BOUNDS = ("WINDOWSTART", "WINDOWEND")
PLACES = ("ROWTIME", "ROWPARTITION", "ROWOFFSET")


def qualified(node: exp.Expr, relation: Relation) -> exp.Expr:
    """Return an expression whose columns all name their source, so that equal expressions compare equal."""
    found = node.copy()
    # A parameter of a lambda looks like a column, and hides one with its name unless that is qualified.
    bound = {name.name for each in found.find_all(exp.Lambda) for name in each.expressions}
    for column in list(found.find_all(exp.Column)):
        if column.name not in bound or column.table:
            place = find_field(relation.fields, column)
            column.set("table", exp.Identifier(this=relation.fields[place].source))
    return found.this if isinstance(found, exp.Paren) else found


@dataclass(frozen=True, slots=True)
class ProjectedColumn:
    """A column of a result, with its expression."""

    name: str
    node: exp.Expr


def checked(compiler: Compiler, output: ProjectedColumn) -> Code:
    """Return the code of a column, which must have a type."""
    code = compiler.code(output.node)
    if code.type is None:
        message = f"Column {output.name} is NULL, and has no type"
        raise SqlError(message, start_of(output.node), hint="CAST(NULL AS ...) has one.")
    return code


@dataclass(frozen=True, slots=True)
class _Place:
    """A column outside key and value: a pseudo column, or one of headers."""

    name: str
    header: str | None = None

    @property
    def type(self) -> SqlType:
        if self.header is not None:
            return Primitive.BYTES if self.header else HEADERS
        return Primitive.INTEGER if self.name == "ROWPARTITION" else Primitive.BIGINT

    def value_of(self, record: Any, metadata: Any) -> Any:
        # Of several headers with one name, the last one counts. An empty name is the column of all headers.
        if self.header:
            return next((value for name, value in reversed(record.headers) if name == self.header), None)
        if self.header is not None:
            return [{"KEY": name, "VALUE": value} for name, value in record.headers]
        if self.name == "ROWTIME":
            return record.timestamp
        # Records of punctuations have no place in a topic: metadata is None.
        return metadata and (metadata.partition if self.name == "ROWPARTITION" else metadata.offset)


def _row_of(values: int, width: int, *, is_windowed: bool) -> Callable[[Any, Any], Any]:
    missing = (None,) * width

    def plain(key: Any, row: Any) -> Any:
        return None if row is None else (*row, *(missing if key is None else key))

    def windows(key: Any, row: Any) -> Any:
        return None if row is None else (*row, *key.key, key.window.start, key.window.end)

    return windows if is_windowed else written(plain, WithKey(values, width))


class _Places:
    """Adds the columns outside their values to the rows of records."""

    def __init__(self, columns: Sequence[_Place]) -> None:
        self._columns = columns
        self._context: Any = None

    def init(self, context: Any) -> None:
        self._context = context

    def process(self, record: Any) -> None:
        """Forward the row with these columns added."""
        if record.value is not None:
            metadata = self._context.record_metadata
            made = (each.value_of(record, metadata) for each in self._columns)
            record = record.with_value((*record.value, *made))
        self._context.forward(record)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _supplier(columns: Sequence[_Place]) -> Callable[[], _Places]:
    # Plain values, which the digest of the topology can see in the closure.
    note = [(each.name, each.header) for each in columns]
    return lambda: _Places([_Place(name, header) for name, header in note])


class _Timed:
    """Sets the event time of records to a column's value."""

    def __init__(self, place: int, values: int, time_of: Callable[[Any], int]) -> None:
        self._place = place
        self._values = values
        self._time_of = time_of
        self._context: Any = None

    def init(self, context: Any) -> None:
        self._context = context

    def process(self, record: Any) -> None:
        """Forward the record at its new time; drop it if it has none."""
        # A deletion has no columns, and must not be lost: it keeps its record's time.
        if record.value is None:
            self._context.forward(record)
            return
        row = record.value
        values = row if self._place < self._values else (*row, *getattr(record.key, "key", record.key))
        time_ms = self._time_of(values[self._place])
        if time_ms >= 0:
            self._context.forward(record.with_timestamp(time_ms))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def time_by(pattern: str | None) -> Callable[[Any], int]:
    """Return a function that converts a column's value to ms since 1970; -1 if there is no time."""

    def time_of(value: Any) -> int:
        try:
            return -1 if value is None else (value if pattern is None else parse_timestamp(value, pattern))
        except ValueError:
            return -1

    return time_of


def timed_stream(
    stream: KStream[Any, Any], place: int, values: int, time_of: Callable[[Any], int]
) -> KStream[Any, Any]:
    """Return a stream whose records have a column's values as their times."""
    return stream.process_values(lambda: _Timed(place, values, time_of))


# ksqlDB's prefix for the columns that replace table functions.
_MADE = "KSQL_SYNTH_"


def table_calls(nodes: Sequence[exp.Expr | None]) -> list[exp.Anonymous]:
    """Return the calls of table functions within expressions, outermost first, equal ones once."""
    found: list[exp.Anonymous] = []
    for node in nodes:
        for call in node.find_all(exp.Anonymous) if node is not None else ():
            if is_table_function(str(call.this)) and call not in found:
                found.append(call)
    return found


def exploded(nodes: Sequence[exp.Expr], relation: Relation) -> tuple[list[exp.Expr], Relation]:
    """Return expressions without table functions, and a relation with columns that replace them."""
    calls = table_calls(nodes)
    if not calls:
        return list(nodes), relation
    if relation.stream is None:
        raise SqlError("Table source is not supported with table functions", start_of(calls[0]))
    compiler, arguments = Compiler(relation.fields), list[Code]()
    explosion = _Explosion(tuple(_made(call, compiler, arguments) for call in calls))
    note = repr([digest_of(each.function.apply) for each in explosion.calls])
    rows = explosion.rows_by(function_of(compiler.names, arguments, note))
    made = [Field(f"{_MADE}{n}", each.function.returns, is_pseudo=True) for n, each in enumerate(explosion.calls)]
    stream = relation.stream.flat_map_values(rows)
    return [with_columns(each, calls, _MADE) for each in nodes], replace(
        relation, fields=(*relation.fields, *made), stream=stream
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """A call, and the indexes of its arguments among those of all calls."""

    function: TableFunction
    first: int
    end: int

    def items(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the values of the new column."""
        try:
            return self.function.apply(*arguments[self.first : self.end]) or []
        except Exception:  # noqa: BLE001 - what cannot be computed makes no rows
            return []


@dataclass(frozen=True, slots=True)
class _Explosion:
    calls: tuple[_Call, ...]

    def rows_by(self, arguments_of: Callable[[Any], Any]) -> Callable[[Any], Iterator[Any]]:
        """Return a function that makes rows from a row."""
        calls = self.calls

        def rows(row: Any) -> Iterator[Any]:
            if row is None:
                return
            arguments = arguments_of(row)
            # Shorter lists are padded with NULLs, as by ksqlDB's `KudtfFlatMapper`.
            for items in zip_longest(*(each.items(arguments) for each in calls)):
                yield (*row, *items)

        return rows


def _made(call: exp.Anonymous, compiler: Compiler, arguments: list[Code]) -> _Call:
    codes = [compiler.code(each) for each in call.expressions]
    try:
        function = find_table_function(str(call.this), [each.type for each in codes])
    except (UnknownFunction, WrongArguments) as error:
        raise SqlError(error.message, start_of(call), hint=error.hint) from None
    arguments += codes
    return _Call(function, len(arguments) - len(codes), len(arguments))


def with_columns(node: exp.Expr, calls: Sequence[exp.Expr], prefix: str) -> exp.Expr:
    """Return an expression with columns in place of calls: the prefix, and the number of the call."""

    def column(each: exp.Expr) -> exp.Expr:
        if not isinstance(each, exp.Anonymous | exp.Window) or each not in calls:
            return each
        made = exp.Column(this=exp.Identifier(this=f"{prefix}{calls.index(each)}"))
        made.meta.update(each.meta)
        return made

    return node.transform(column)
