"""Commands on rows: pull queries over stored tables, and INSERT INTO ... VALUES and DELETE FROM, which write records."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.sql.coercion import TIMES, is_widening
from riverrun.sql.expressions import Compiler, Field
from riverrun.sql.gathering import MOST_HELD, Gathered, Gathering
from riverrun.sql.operators import cast, partial_timestamp, value_or_null
from riverrun.sql.planning.aggregations import has_aggregate, row_groups
from riverrun.sql.planning.queries import check_functions, checked, key_type, outputs_of
from riverrun.sql.planning.relations import Relation, exploded, qualified
from riverrun.sql.row_code import Code, function_of, predicate_of
from riverrun.sql.statements import From, Item, Query, SqlError, nearest, start_of
from riverrun.sql.types import Array, Map, Primitive, Struct
from riverrun.sql.values import shown
from riverrun.windows import MAX_TIME_MS, CalendarWindows, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from riverrun.sql.catalog import Catalog, Source, StoredTable
    from riverrun.sql.commands import DeleteRows, InsertValues, Select
    from riverrun.sql.durations import WindowSize
    from riverrun.sql.types import Columns, SqlType
    from riverrun.windows import Window


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """A row for the topic of a source.

    Args:
        key: The values of the key's columns; None without a key.
        value: The other values; None deletes the row of the key.
        timestamp: Event time, ms; None for the present.
    """

    source: Source
    key: tuple[Any, ...] | None
    value: tuple[Any, ...] | None
    timestamp: int | None


def inserted_row(command: InsertValues, catalog: Catalog) -> WrittenRow:
    source = catalog.find(command.name, command.start)
    _check(source, command.start, "insert values into")
    layout = source.layout
    columns: dict[str, SqlType] = dict((*layout.key, *layout.value))
    names = [name for name, _ in command.columns] or list(columns)
    if len(names) != len(command.values):
        message = f"Expected a value for each column. Expected: {', '.join(names)}. Got {len(command.values)} values"
        raise SqlError(message, command.start)
    for name, start in command.columns:
        if name not in {*columns, "ROWTIME"}:
            raise SqlError(f"Column '{name}' cannot be resolved.", start, hint=nearest(name, columns))
    types = {**columns, "ROWTIME": Primitive.BIGINT}
    given = {name: _value(node, name, types[name]) for name, node in zip(names, command.values, strict=True)}
    key = _part(layout.key, given)
    if source.is_table and (key is None or None in key):
        raise SqlError(f"A value for the primary key of table {source.name} is needed", command.start)
    value = _part(layout.value, given)
    # Outside of a record, a single NULL is a null value.
    stands_alone = not layout.wrapped or layout.value_form.name == "KAFKA"
    return WrittenRow(source, key, None if stands_alone and value == (None,) else value, given.get("ROWTIME"))


def deleted_rows(command: DeleteRows, catalog: Catalog) -> list[WrittenRow]:
    """Return the deletions of a command, one for each key."""
    source = catalog.find(command.name, command.start)
    if not source.is_table:
        raise SqlError(f"{source.name} is a stream: rows are deleted from tables", command.start)
    _check(source, command.start, "delete from")
    types = dict(source.layout.key)
    given: dict[str, list[Any]] = {}
    for column, constants in _equalities(command.where, source):
        if column in given:
            message = f"{column} can have one value only"
            raise SqlError(message, start_of(command.where), hint=f"{column} IN (...) deletes several rows.")
        given[column] = [_value(each, column, types[column]) for each in constants]
    missing = [name for name in types if None in given.get(name, [None])]
    if missing:
        message = f"A value for the primary key of table {source.name} is needed: {', '.join(missing)}"
        raise SqlError(message, command.start)
    keys = itertools.product(*(dict.fromkeys(given[name]) for name in types))
    return [WrittenRow(source, key, None, None) for key in keys]


def _equalities(node: exp.Expr, source: Source) -> Iterator[tuple[str, tuple[exp.Expr, ...]]]:
    """Yield the columns of the key that a condition compares, with the constants of each."""
    if isinstance(node, exp.Paren):
        yield from _equalities(node.this, source)
    elif isinstance(node, exp.And):
        yield from _equalities(node.this, source)
        yield from _equalities(node.expression, source)
    else:
        keys = [name for name, _ in source.layout.key]
        tests = [test for test in _tests(node) if test.sign is exp.EQ and test.column in keys]
        if len(tests) != 1:
            values = " AND ".join(f"{name} = ..." for name in keys)
            message = f"A deletion takes values of the key alone: {values}"
            raise SqlError(message, start_of(node), hint="Look for the keys first: SELECT ... FROM the table WHERE ...")
        yield tests[0].column, tests[0].constants


def _check(source: Source, start: int, act: str) -> None:
    kind = "table" if source.is_table else "stream"
    problem = None
    if source.is_read_only:
        problem = f"Cannot {act} read-only {kind}: {source.name}"
    elif source.layout.changes is not None:
        problem = f"Cannot {act} {source.name}: {source.layout.value_form.name} is only read"
    elif source.layout.window is not None:
        problem = f"Cannot {act} windowed {kind}: {source.name}"
    elif source.layout.headers:
        problem = f"Cannot {act.replace(' values', '')} {source.name} because it has header columns"
    if problem:
        raise SqlError(problem, start)


def _part(columns: Columns, given: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the values of columns; None if there are no columns."""
    return tuple(given.get(name) for name, _ in columns) if columns else None


def _value(node: exp.Expr, name: str, type_: SqlType) -> Any:
    compiler = Compiler(())
    code = compiler.code(node)
    if code.type is None:
        return None
    convert = cast(code.type, type_)
    is_text_of_time = code.type is Primitive.STRING and type_ in TIMES
    if convert is None or not (code.type == type_ or is_widening(code.type, type_) or is_text_of_time):
        raise SqlError(f"Expected type {type_} for field {name} but got {code.type}", start_of(node))
    # The expression has constants only, so an empty row will do.
    (value,) = function_of(compiler.names, [code])(())
    try:
        return convert(value)
    except (ValueError, ArithmeticError) as error:
        raise SqlError(f"{name} cannot be {value!r}: {error}", start_of(node)) from None


# No row writes the states of groups here, so they may have more values.
_SETTINGS = {"ksql.functions.count.limit": MOST_HELD}
# `a IN (...) AND b IN (...)` multiplies keys: beyond this number, one scan is cheaper than so many look-ups.
_MAX_KEYS = 1000
_MIRRORED: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}


@dataclass(frozen=True, slots=True)
class Sought:
    """The part of a store that can contain rows of a query.

    Args:
        keys: The keys; None for all keys between the bounds.
        lower: First key, for keys that are texts; None if there is no lower bound.
        upper: Last key, for keys that are texts; None if there is no upper bound.
        time_from: Earliest start of a window, ms.
        time_to: Latest start of a window, ms.
    """

    keys: tuple[tuple[Any, ...], ...] | None = None
    lower: str | None = None
    upper: str | None = None
    time_from: int = 0
    time_to: int = MAX_TIME_MS


@dataclass(frozen=True, slots=True)
class PullQuery:
    """A SELECT over the rows of a table.

    Args:
        table: The stored table; None for rows that are computed from topics.
        columns: The columns of the result.
        limit: Greatest number of rows of the result; None for all.
        gathering: How all rows make the result; None if each row makes one of the result.
        passes: The test of WHERE for a row of the table.
        make: Makes a row of the result from one of the table.
    """

    table: StoredTable | None
    columns: Columns
    sought: Sought
    limit: int | None
    gathering: Gathering | None
    passes: Callable[[Any], bool] = field(repr=False)
    make: Callable[[Any], Any] = field(repr=False)

    def entry(self, key: Any, value: Any, timestamp: int | None, window: Window | None) -> Any:
        """Return a row of the table from an entry of its store; None if the query leaves it out."""
        assert self.table is not None  # noqa: S101 - other tables have no entries
        # Stores of windows pass the window, and a table read from a windowed topic has it in its keys.
        if isinstance(key, Windowed):
            key, window = key
        row = self.table.row_of(key if window is None else Windowed(key, window), value)
        if row is None:
            return None
        # Stores of sessions have no times: that of a session is its end.
        if timestamp is None and window is not None:
            timestamp = window.end
        whole = (*row, *key, *(window or ()), timestamp)
        return whole if self.passes(whole) else None

    def row(self, whole: Any) -> tuple[Any, ...]:
        """Return a row of the result, as JSON shows it, from a row of the table."""
        return self.shown(self.make(whole))

    def results(self, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Return the result, as JSON shows it, from all rows of the table."""
        rows = filter(self.passes, rows)
        if self.gathering is None:
            return map(self.row, itertools.islice(rows, self.limit))
        gathered = Gathered(self.gathering)
        for row in rows:
            gathered.add(row)
        return map(self.shown, gathered.results())

    def shown(self, row: Any) -> tuple[Any, ...]:
        return tuple(shown(each, type_) for each, (_, type_) in zip(row, self.columns, strict=True))


def reads_rows(query: Query, catalog: Catalog) -> bool:
    """Return whether a SELECT reads the current rows of one table."""
    clauses = (query.joins, query.match, query.partition_by, query.window, query.distinct, query.unions)
    return not any(clauses) and catalog.find(query.source.name, query.source.start).is_table


def is_pull(select: Select, catalog: Catalog) -> bool:
    """Return whether workers can answer a SELECT: it reads the current rows of one stored table."""
    query = select.query
    is_stored = catalog.find(query.source.name, query.source.start).stored is not None
    return is_stored and not select.follows and reads_rows(query, catalog)


def pull_query(select: Select, catalog: Catalog) -> PullQuery:
    query = select.query
    source = catalog.find(query.source.name, query.source.start)
    if not is_pull(select, catalog):
        message = f"Workers answer a SELECT of one stored table, without joins, and not this one of {source.name}"
        hint = "CREATE TABLE ... AS SELECT and CREATE SOURCE TABLE store a table; riverrun sql computes other queries."
        raise SqlError(message, query.source.start, hint=hint)
    return _row_query(select, source, columns_of(source, query.source.alias))


def row_query(select: Select, catalog: Catalog) -> PullQuery:
    """Return how the rows of `whole_table` make the result of a SELECT for which `reads_rows` holds."""
    query = select.query
    source = catalog.find(query.source.name, query.source.start)
    return _row_query(select, source, _placed_columns(source, query.source.alias))


def _row_query(select: Select, source: Source, fields: tuple[Field, ...]) -> PullQuery:
    query = select.query
    check_functions(query)
    relation = Relation(query.source.alias, fields, source.serdes()[0])
    outputs = outputs_of(query, relation)
    # Refuses table functions: rows of a table have one of the result.
    exploded([each.node for each in outputs], relation)
    names = {each.name: each.node for each in outputs}
    nodes: Sequence[exp.Expr] = [qualified(each.node, relation) for each in outputs]
    orders: Sequence[exp.Expr] = [qualified(_ordered(each.node, names), relation) for each in select.orders]
    passes, sought = _condition(query, fields, source)
    groups = None
    if query.group_by or query.having is not None or any(map(has_aggregate, [*nodes, *orders])):
        having = None if query.having is None else qualified(query.having, relation)
        grouping = [qualified(each, relation) for each in query.group_by]
        groups = row_groups(relation, grouping, [*nodes, *orders], having, _SETTINGS)
        for node, each in zip(grouping, groups.fields, strict=False):
            key_type(each.type, start_of(node))
        fields, nodes, orders = groups.fields, groups.nodes[: len(outputs)], groups.nodes[len(outputs) :]
    compiler = Compiler(fields)
    codes = [checked(compiler, replace(each, node=node)) for each, node in zip(outputs, nodes, strict=True)]
    columns = tuple((each.name, code.type or Primitive.STRING) for each, code in zip(outputs, codes, strict=True))
    make = function_of(compiler.names, [*codes, *(_sortable(compiler, each) for each in orders)])
    gathering = None
    if groups is not None or orders:
        gathering = Gathering(groups, make, len(columns), select.orders, select.limit)
    return PullQuery(source.stored, columns, sought, select.limit, gathering=gathering, passes=passes, make=make)


def result_query(select: Select, columns: Columns) -> PullQuery:
    """Return how the rows of a computed result come in the order of a SELECT, up to its limit."""
    fields = [Field(name, type_) for name, type_ in columns]
    compiler = Compiler(fields)
    codes = [Code(f"row[{number}]", each.type) for number, each in enumerate(fields)]
    make = function_of(compiler.names, [*codes, *(_sortable(compiler, each.node) for each in select.orders)])
    gathering = Gathering(None, make, len(columns), select.orders, select.limit) if select.orders else None
    return PullQuery(None, columns, Sought(), select.limit, gathering=gathering, passes=lambda _row: True, make=make)


def whole_table(source: Source, start: int) -> Query:
    """Return the query of all columns of a table, also those of headers and places."""
    columns = [exp.Column(this=exp.Identifier(this=each.name)) for each in _placed_columns(source, source.name)]
    # Generated names, as pseudo columns cannot keep theirs.
    items = [Item(column, f"C{number}") for number, column in enumerate(columns)]
    return Query(tuple(items), From(source.name, source.name, start))


def _ordered(node: exp.Expr, names: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return an expression of ORDER BY; columns of the result come before those of the source with their names."""
    # A parameter of a lambda looks like a column.
    bound = {name.name for each in node.find_all(exp.Lambda) for name in each.expressions}

    def shown(each: exp.Expr) -> exp.Expr:
        is_free = isinstance(each, exp.Column) and not each.table and each.name not in bound
        return names[each.name].copy() if is_free and each.name in names else each

    return node.transform(shown)


def _sortable(compiler: Compiler, node: exp.Expr) -> Code:
    code = compiler.code(node)
    if isinstance(code.type, Array | Map | Struct):
        raise SqlError(f"ORDER BY takes values with an order, and not {code.type}", start_of(node))
    return code


def columns_of(source: Source, alias: str) -> tuple[Field, ...]:
    """Return the columns of a table's rows, in the order of `PullQuery.entry`."""
    layout = source.layout
    values = [Field(name, type_, alias) for name, type_ in layout.value]
    keys = [Field(name, type_, alias, is_key=True) for name, type_ in layout.key]
    names = ("WINDOWSTART", "WINDOWEND") if layout.window else ()
    bounds = [Field(name, Primitive.BIGINT, alias, is_key=True) for name in names]
    return (*values, *keys, *bounds, Field("ROWTIME", Primitive.BIGINT, alias, is_pseudo=True))


def _placed_columns(source: Source, alias: str) -> tuple[Field, ...]:
    """Return the columns of a table whose rows come from its topic: those of its stored rows, headers and places."""
    stored = columns_of(source, alias)
    names = {each.name for each in stored}
    read = Relation.of(source, alias, source.serdes()[0]).placed_fields
    return (*stored, *(each for each in read if each.name not in names))


def _condition(query: Query, fields: Sequence[Field], source: Source) -> tuple[Callable[[Any], bool], Sought]:
    if query.where is None:
        return lambda _row: True, Sought()
    compiler = Compiler(fields)
    passes = predicate_of(compiler.names, compiler.condition(query.where, "WHERE"))
    return lambda row: passes(None, row), _sought(list(_tests(query.where)), source)


@dataclass(frozen=True, slots=True)
class _Test:
    """A comparison of a column with constants: with any of them for `exp.EQ`, with one for other operators."""

    column: str
    sign: type[exp.Expr]
    constants: tuple[exp.Expr, ...]


def _tests(node: exp.Expr) -> Iterator[_Test]:
    """Yield tests that all rows of the result pass."""
    # They only narrow what is read. OR and other operators yield nothing: every row is tested by the predicate as well.
    if isinstance(node, exp.Paren):
        yield from _tests(node.this)
    elif isinstance(node, exp.And):
        # A loop, since a chain of AND may have any length.
        while isinstance(node, exp.And):
            yield from _tests(node.expression)
            node = node.this
        yield from _tests(node)
    elif isinstance(node, exp.Between):
        yield from _compared(node.this, exp.GTE, node.args["low"])
        yield from _compared(node.this, exp.LTE, node.args["high"])
    elif isinstance(node, exp.In):
        yield from _compared(node.this, exp.EQ, *node.expressions)
    elif type(node) in _MIRRORED:
        yield from _compared(node.this, type(node), node.expression)
        yield from _compared(node.expression, _MIRRORED[type(node)], node.this)


def _compared(column: exp.Expr, sign: type[exp.Expr], *others: exp.Expr) -> Iterator[_Test]:
    if isinstance(column, exp.Column) and not any(each.find(exp.Column) for each in others):
        yield _Test(str(column.name), sign, others)


def _sought(tests: Sequence[_Test], source: Source) -> Sought:
    found = _keys(tests, source.layout.key)
    lower, upper = _bounds(tests, source) if found is None else (None, None)
    sought = Sought(found, lower, upper)
    for test in tests:
        sought = _within(sought, test, source.layout.window_size)
    return sought


def _keys(tests: Sequence[_Test], columns: Columns) -> tuple[tuple[Any, ...], ...] | None:
    """Return the keys that tests allow; None if they leave a column of the key open, or allow too many."""
    choices = []
    for name, type_ in columns:
        equal = next((test for test in tests if test.column == name and test.sign is exp.EQ), None)
        values = [] if equal is None else [_constant(each, type_) for each in equal.constants]
        if not values or None in values:
            return None
        choices.append(list(dict.fromkeys(values)))
    keys = tuple(itertools.islice(itertools.product(*choices), _MAX_KEYS + 1))
    return keys if len(keys) <= _MAX_KEYS else None


def _constant(node: exp.Expr, type_: SqlType) -> Any:
    """Return a constant as a value of the column's type; None if it does not become an equal key."""
    compiler = Compiler(())
    code = compiler.code(node)
    convert = cast(code.type, type_)
    if code.type is None or convert is None:
        return None
    (value,) = function_of(compiler.names, [code])(())
    converted = value_or_null(lambda: convert(value))
    # 1.5 becomes the INTEGER 1, whose row the comparison does not mean. Texts become equal times only by conversion.
    is_alike = converted == value or type_ in TIMES
    return converted if is_alike and converted.__hash__ is not None else None


def _bounds(tests: Sequence[_Test], source: Source) -> tuple[str | None, str | None]:
    # Stores are in the order of the keys' bytes, which only the format KAFKA has in the order of the texts.
    layout = source.layout
    if layout.key_form.name != "KAFKA" or [type_ for _, type_ in layout.key] != [Primitive.STRING]:
        return None, None
    name = layout.key[0][0]
    lower, upper = None, None
    for test in tests:
        value = _constant(test.constants[0], Primitive.STRING) if test.column == name else None
        if value is not None and test.sign in {exp.GT, exp.GTE}:
            lower = value if lower is None else max(lower, value)
        elif value is not None and test.sign in {exp.LT, exp.LTE}:
            upper = value if upper is None else min(upper, value)
    return lower, upper


def _within(sought: Sought, test: _Test, size: WindowSize | None) -> Sought:
    """Return the sought part within a test's bounds on windows."""
    # Bounds are starts of windows, so an end is moved back by the size. Sessions have no size: their stores compare the
    # lower bound with the end and the upper one with the start, which only reads more than the predicate lets pass. So do
    # windows of a calendar, the longest of which bounds them.
    most_ms = size.size_ms if isinstance(size, CalendarWindows) else size or 0
    least_ms = 0 if isinstance(size, CalendarWindows) else most_ms
    back = {"WINDOWSTART": (0, 0), "WINDOWEND": (most_ms, least_ms)}.get(test.column)
    times = [time for each in test.constants if (time := _time(each)) is not None]
    if back is None or len(times) < len(test.constants):
        return sought
    first, last = min(times) - back[0], max(times) - back[1]
    if test.sign in {exp.EQ, exp.GT, exp.GTE}:
        sought = replace(sought, time_from=max(sought.time_from, first))
    if test.sign in {exp.EQ, exp.LT, exp.LTE}:
        sought = replace(sought, time_to=min(sought.time_to, max(last, 0)))
    return sought


def _time(node: exp.Expr) -> int | None:
    if isinstance(node, exp.Literal) and node.is_string:
        found: int | None = value_or_null(lambda: partial_timestamp(str(node.this)))
        return found
    value = _constant(node, Primitive.BIGINT)
    return value if isinstance(value, int) else None
