"""Translates a SELECT into calls of the DSL: filters, keys, aggregations and the projection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.dsl.options import Materialized, Repartitioned
from riverrun.sql.catalog import StoredTable, chained
from riverrun.sql.expressions import Compiler, Field, find_field
from riverrun.sql.formats import named, row_serde
from riverrun.sql.functions import is_aggregate
from riverrun.sql.planning.aggregations import TTL_PLACES, aggregated
from riverrun.sql.planning.joins import joined_all
from riverrun.sql.planning.matching import matched
from riverrun.sql.planning.relations import exploded, names_of, qualified, rows_of, table_calls
from riverrun.sql.planning.rolling import rolled, windows_in
from riverrun.sql.row_code import Code, function_of, predicate_of
from riverrun.sql.statements import From, Item, Query, SqlError, start_of
from riverrun.sql.types import Map, Primitive

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from riverrun.dsl.kstream import KStream
    from riverrun.sql.durations import WindowSize
    from riverrun.sql.planning.relations import Relation
    from riverrun.sql.statements import DistinctOn, LateInto
    from riverrun.sql.types import Columns, SqlType


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query: values under keys that are tuples, as a stream of records or of updates.

    `shown` holds the names of all columns in the order of the projection; `stored` describes the table's store for queries.
    """

    stream: KStream[Any, Any]
    is_table: bool
    key: Columns
    value: Columns
    shown: tuple[str, ...]
    window: str | None = None
    window_size: WindowSize | None = None
    stored: StoredTable | None = None


@dataclass(frozen=True, slots=True)
class ProjectedColumn:
    """A column of the projection, with its expression."""

    name: str
    node: exp.Expr


_WHOLE = Query((Item(None),), From("", "", 0))
"""SELECT * from one source."""
_BOUNDS = {"WINDOWSTART", "WINDOWEND"}
_RESERVED = {"ROWTIME", "ROWPARTITION", "ROWOFFSET", *_BOUNDS}


LateConsumer = Callable[["LateInto", QueryResult], None]
"""Receives the late rows of a LATE INTO, to make its stream."""


def planned(
    query: Query,
    relations: Sequence[Relation],
    kept: Materialized[Any, Any] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    late: LateConsumer | None = None,
) -> QueryResult:
    _check_clauses(query)
    check_functions(query)
    if query.late and late is None:
        raise SqlError("LATE INTO makes a stream, as statements of a file do", query.late[0].start)

    def sent(into: LateInto, rows: Relation) -> None:
        assert late is not None  # noqa: S101 - only a LATE INTO has late rows
        late(into, _plain(_WHOLE, rows, Materialized(), {}))

    given = relations
    if query.match is not None:
        given = [matched(query.match, relations[0], settings or {}, used=names_of(query))]
    relation = _filtered(query, joined_all(given, query.joins, sent))
    stored: Materialized[Any, Any] = kept or Materialized()
    if query.group_by:
        return _aggregate_result(query, relation, stored, settings or {}, sent)
    if stored.ttl is not None:
        raise SqlError(TTL_PLACES, query.source.start)
    return _plain(query, relation, stored, settings or {})


def _check_clauses(query: Query) -> None:
    problem = None
    if not query.group_by and (query.having is not None or query.window is not None):
        problem = "HAVING and WINDOW need GROUP BY"
    elif query.is_final and query.window is None:
        problem = "EMIT FINAL is only supported for windowed aggregations."
    if problem:
        raise SqlError(problem, query.source.start)
    if query.distinct is not None and (query.group_by or not query.distinct.nodes):
        message = "SELECT DISTINCT ON takes at least one column"
        if query.group_by:
            message = "SELECT DISTINCT ON drops repetitions of rows, and GROUP BY makes groups of them"
        hint = "Drop repetitions in an earlier statement, and group its result." if query.group_by else None
        raise SqlError(message, query.distinct.start, hint=hint)


def check_functions(query: Query) -> None:
    nodes = () if query.distinct is None else query.distinct.nodes
    for call in table_calls([query.where, query.having, *query.group_by, *query.partition_by, *nodes]):
        raise SqlError(f"Table function {call.this} can only be used in the projection", start_of(call))
    for group in query.group_by:
        for inner in group.find_all(exp.Anonymous):
            if is_aggregate(str(inner.this)):
                message = f"GROUP BY does not support aggregate functions: {inner.this} is an aggregate function."
                raise SqlError(message, start_of(inner))
    for call in table_calls([item.expression for item in query.items] if query.group_by else ()):
        raise SqlError("Table functions cannot be used with aggregations.", start_of(call))


def _filtered(query: Query, relation: Relation) -> Relation:
    if query.where is None:
        return relation
    compiler = Compiler(relation.fields)
    passes = predicate_of(compiler.names, compiler.condition(query.where, "WHERE"))
    if relation.table is not None:
        return replace(relation, table=relation.table.filter(passes))
    assert relation.stream is not None  # noqa: S101 - a relation has one of both
    return replace(relation, stream=relation.stream.filter(passes))


def outputs_of(query: Query, relation: Relation) -> list[ProjectedColumn]:
    """Return the columns of the projection, with stars expanded."""
    found: list[ProjectedColumn] = []
    names = _NewNames({each.name for each in relation.fields})
    for item in query.items:
        if item.expression is None:
            found += _star(item, relation, has_new_key=bool(query.partition_by))
        elif isinstance(item.expression, exp.Dot) and item.expression.expression.name == "*":
            found += _fields_of(item.expression, relation)
        else:
            name = item.alias or _shared_name(item.expression, relation) or names.of(item.expression)
            found.append(ProjectedColumn(name, item.expression))
    shown = Counter(each.name for each in found)
    for each in found:
        if shown[each.name] > 1:
            message = f"The projection contains a duplicate column name: `{each.name}`"
            raise SqlError(message, start_of(each.node) or query.items[0].start)
    return found


class _NewNames:
    """Generates names for columns without one, different from those of the sources (ksqlDB's `ColumnNames`)."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._last = 0

    def of(self, node: exp.Expr) -> str:
        """Return the name of a column or of a field of a struct, or a generated name."""
        if isinstance(node, exp.Column):
            return str(node.name)
        if isinstance(node, exp.Dot):
            own = str(node.expression.name)
            return self._take(chain([own], (f"{own}_{number}" for number in count(1))))
        self._last = next(number for number in count(self._last) if f"KSQL_COL_{number}" not in self._taken)
        return self._take([f"KSQL_COL_{self._last}"])

    def _take(self, names: Iterable[str]) -> str:
        found = next(each for each in names if each not in self._taken)
        self._taken.add(found)
        return found


def _star(item: Item, relation: Relation, *, has_new_key: bool) -> list[ProjectedColumn]:
    if item.source not in {None, *(each.source for each in relation.fields)}:
        raise SqlError(f"'{item.source}' is not a valid stream/table name or alias.", item.start)
    if relation.is_joined:
        return _joined_star(item, relation)
    # Rows hold the key's columns last, but ksqlDB's star lists them first. After PARTITION BY the old key is a value like
    # others, and stays last.
    shown = (each for each in relation.fields if not each.is_pseudo)
    ordered = sorted(shown, key=lambda each: not each.is_key or has_new_key)
    return [ProjectedColumn(each.name, _column(each.source, each.name)) for each in ordered]


def _joined_star(item: Item, relation: Relation) -> list[ProjectedColumn]:
    """Return the columns of joined sources; a star prefixes each with its source's name, with or without a qualifier."""
    shown = [each for each in relation.fields if item.source in {None, each.source} and _is_shown(each)]
    sources = list(dict.fromkeys(each.source for each in shown))
    shown.sort(key=lambda each: (sources.index(each.source), not each.is_source_key))
    return [ProjectedColumn(_joined_name(each), _column(each.source, each.name)) for each in shown]


def _is_shown(field: Field) -> bool:
    return not field.is_pseudo or field.name in _BOUNDS


def _joined_name(field: Field) -> str:
    return f"{field.source}_{field.name}" if field.source else field.name


def _column(source: str, name: str) -> exp.Column:
    return exp.Column(this=exp.Identifier(this=name), table=exp.Identifier(this=source))


def _fields_of(node: exp.Dot, relation: Relation) -> list[ProjectedColumn]:
    struct = Compiler(relation.fields).code(node.this).type
    names = [name for name, _ in getattr(struct, "fields", ())]
    if not names:
        raise SqlError(f"->* needs a STRUCT, not {struct}", start_of(node))
    return [
        ProjectedColumn(name, exp.Dot(this=node.this.copy(), expression=exp.Identifier(this=name))) for name in names
    ]


def _shared_name(node: exp.Expr, relation: Relation) -> str | None:
    """Return the name of a column that several joined sources have, which begins with its source's name."""
    if not relation.is_joined or not isinstance(node, exp.Column):
        return None
    field = relation.fields[find_field(relation.fields, node)]
    return _joined_name(field) if sum(each.name == field.name for each in relation.fields) > 1 else None


def _own_name(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Column):
        return str(node.name)
    return str(node.expression.name) if isinstance(node, exp.Dot) else None


def _distinct(distinct: DistinctOn, query: Query, relation: Relation) -> Relation:
    """Return a stream without repetitions."""
    if relation.stream is None:
        raise SqlError("SELECT DISTINCT ON drops repetitions of a stream: a table has each row once", distinct.start)
    stream, keys, rows = relation.stream, _keys(query, relation), rows_of(relation.fields)
    # Repetitions are found within a partition. So PARTITION BY has to repartition before them, not after.
    if query.partition_by and keys:
        key_serde = row_serde(_types(keys, relation))
        stream = stream.select_key(_key_of(keys, relation)).repartition(Repartitioned(key_serde, rows))
    elif relation.moves:
        stream = stream.repartition(Repartitioned(relation.key_serde, rows))
    nodes = [qualified(each, relation) for each in distinct.nodes]
    once = stream.deduplicate(
        timedelta(milliseconds=distinct.within),
        by=_key_of(nodes, relation),
        grace=None if distinct.grace is None else timedelta(milliseconds=distinct.grace),
        materialized=Materialized(key_serde=row_serde(_types(nodes, relation))),
    )
    return replace(relation, stream=once)


def _types(nodes: Sequence[exp.Expr], relation: Relation) -> list[SqlType]:
    compiler = Compiler(relation.fields)
    return [compiler.code(each).type or Primitive.STRING for each in nodes]


def _plain(query: Query, relation: Relation, kept: Materialized[Any, Any], settings: Mapping[str, Any]) -> QueryResult:
    """Return the result of a query without an aggregation."""
    store = kept.name
    if query.distinct is not None:
        relation = _distinct(query.distinct, query, relation)
    outputs = outputs_of(query, relation)
    if query.partition_by and relation.table is not None:
        raise SqlError("PARTITION BY clause is not supported for tables.", start_of(query.partition_by[0]))
    keys = _keys(query, relation)
    # A star includes the key that PARTITION BY makes, though no source has that column. A qualified star of a join only
    # lists its source.
    has_star = any(item.expression is None and not (relation.is_joined and item.source) for item in query.items)
    if has_star:
        known = {qualified(each.node, relation) for each in outputs}
        for number, node in enumerate(keys):
            if node not in known:
                outputs.append(ProjectedColumn(_own_name(node) or f"KSQL_COL_{number}", node))
    nodes = [each.node for each in outputs]
    if windows_in(nodes):
        nodes, relation = rolled([qualified(each, relation) for each in nodes], relation, settings)
    nodes, relation = exploded(nodes, relation)
    outputs = [replace(each, node=node) for each, node in zip(outputs, nodes, strict=True)]
    compiler = Compiler(relation.fields)
    nodes = [qualified(each.node, relation) for each in outputs]
    key_columns, values = ([], outputs) if query.drops_key else split(outputs, nodes, keys, is_needed=query.needs_key)
    shown = tuple(each.name for each in outputs)
    codes = [checked(compiler, each) for each in values]
    make = function_of(compiler.names, codes)
    value = tuple((each.name, code.type or Primitive.STRING) for each, code in zip(values, codes, strict=True))
    key_types = [compiler.code(each).type for each in keys[: len(key_columns)]]
    key = tuple((name, key_type(type_)) for name, type_ in zip(key_columns, key_types, strict=True))
    if relation.table is not None:
        table = relation.table.map_values(make, _materialized(relation, value, store))
        return QueryResult(
            table.to_stream(),
            is_table=True,
            key=key,
            value=value,
            shown=shown,
            window=relation.window,
            window_size=relation.window_size,
            stored=StoredTable(store, lambda _key, row: row) if store else None,
        )
    stream = relation.stream
    assert stream is not None  # noqa: S101 - a relation has one of both
    window, window_size = relation.window, relation.window_size
    if query.partition_by:
        # A new key has no window. `_distinct` has already selected it, unless it is NULL.
        window = window_size = None
        if query.distinct is None or not keys:
            stream = stream.select_key(_key_of(keys, relation))
    return QueryResult(
        stream.map_values(make),
        is_table=False,
        key=key,
        value=value,
        shown=shown,
        window=window,
        window_size=window_size,
    )


def _materialized(relation: Relation, value: Columns, store: str | None) -> Materialized[Any, Any] | None:
    """Return how to store a table for pull queries; None without a store."""
    if store is None:
        return None
    rows = named(row_serde([type_ for _, type_ in value]), value)
    # A cache would merge updates: the table's topic must get the same records whether or not queries read the table.
    return Materialized(relation.key_serde, rows, name=store, caching=False)


def _key_of(keys: Sequence[exp.Expr], relation: Relation) -> Callable[[Any, Any], Any]:
    """Return a function of key and row that makes a new key."""
    # A record without a value has only the columns of its key. An expression of other columns is NULL there, as a whole:
    # `COALESCE(item, 'none')` must not make a key of its default.
    compiler, key_compiler = Compiler(relation.fields), Compiler(relation.fields)
    key_of = function_of(compiler.names, [compiler.code(each) for each in keys])
    known = [key_compiler.code(each if _is_of_key(each, relation) else exp.Null()) for each in keys]
    key_of_key, whole = function_of(key_compiler.names, known), _row_of_key(relation)
    return lambda key, row: _key_or_none(key_of_key(whole(key)) if row is None else key_of(row))


def _is_of_key(node: exp.Expr, relation: Relation) -> bool:
    return all(find_field(relation.fields, column) in relation.key for column in node.find_all(exp.Column))


def _row_of_key(relation: Relation) -> Callable[[Any], Any]:
    """Return a function that makes a row from the key of a record without a value: only the key's columns are not NULL."""
    places, width = relation.key, len(relation.fields)

    def row_of(key: Any) -> Any:
        row = [None] * width
        for place, value in zip(places, getattr(key, "key", key) or (), strict=False):
            row[place] = value
        return tuple(row)

    return row_of


def _key_or_none(key: Any) -> Any:
    # A single NULL is no key. Of several columns, a tuple of NULLs is one.
    return key if key != (None,) and key else None


def key_type(type_: SqlType | None, start: int | None = None) -> SqlType:
    """Return the type of a column of a key, of which equal values must have equal bytes."""
    if isinstance(type_, Map) or (type_ is not None and "MAP<" in str(type_)):
        message = (
            "Map keys, including types that contain maps, are not supported as they may lead to unexpected behavior"
        )
        raise SqlError(message, start)
    return type_ or Primitive.STRING


def _keys(query: Query, relation: Relation) -> list[exp.Expr]:
    if not query.partition_by and relation.viable:
        return [_viable(query, relation)]
    if not query.partition_by:
        return [_column(relation.fields[place].source, relation.fields[place].name) for place in relation.key]
    if any(isinstance(each, exp.Null) for each in query.partition_by):
        if len(query.partition_by) > 1:
            raise SqlError("Cannot PARTITION BY multiple columns including NULL", start_of(query.partition_by[0]))
        return []
    return [qualified(each, relation) for each in query.partition_by]


def _viable(query: Query, relation: Relation) -> exp.Expr:
    """Return the column that represents the key of joined sources: the first candidate in the projection."""
    columns = [_column(relation.fields[place].source, relation.fields[place].name) for place in relation.viable]
    if any(item.expression is None and item.source is None for item in query.items):
        return columns[0]
    sources = {item.source for item in query.items if item.expression is None}
    shown = [qualified(item.expression, relation) for item in query.items if isinstance(item.expression, exp.Column)]
    found = [each for each in columns if each in shown or each.table in sources]
    return found[0] if found else columns[0]


def checked(compiler: Compiler, output: ProjectedColumn) -> Code:
    code = compiler.code(output.node)
    if code.type is None:
        message = f"Column {output.name} is NULL, and has no type"
        raise SqlError(message, start_of(output.node), hint="CAST(NULL AS ...) has one.")
    return code


def split(
    outputs: Sequence[ProjectedColumn], nodes: Sequence[exp.Expr], keys: Sequence[exp.Expr], *, is_needed: bool = True
) -> tuple[list[str], list[ProjectedColumn]]:
    """Split the projection into the names of the key's columns and the value's columns.

    If no key is needed, columns of the key that are missing get names that are not shown.
    """
    names, taken = [], set()
    places_of: dict[exp.Expr, list[int]] = {}
    for number, node in enumerate(nodes):
        places_of.setdefault(node, []).append(number)
    for number, key in enumerate(keys):
        places = places_of.get(key, [])
        if is_needed:
            _check_key(key, [outputs[place].name for place in places])
        taken.update(places[:1])
        names.append(outputs[places[0]].name if places else f"KSQL_HIDDEN_{number}")
    values = [each for number, each in enumerate(outputs) if number not in taken]
    for each in values if is_needed else ():
        if each.name in _RESERVED:
            message = f"Reserved column name in select: `{each.name}`. Please remove or alias the column."
            raise SqlError(message, start_of(each.node))
    return names, values


def _check_key(key: exp.Expr, copies: Sequence[str]) -> None:
    """Make sure that the projection has a column of the key exactly once."""
    shown = _own_name(key) or "its key"
    if not copies:
        raise SqlError(f"Key missing from projection. The query must include {shown} in its SELECT.", start_of(key))
    if len(copies) > 1:
        message = f"The projection contains a key column ({shown}) more than once: {', '.join(copies)}."
        raise SqlError(message, start_of(key), hint="AS_VALUE(...) copies a key into the value.")


def _aggregate_result(
    query: Query,
    relation: Relation,
    kept: Materialized[Any, Any],
    settings: Mapping[str, Any],
    late: Callable[[LateInto, Relation], None],
) -> QueryResult:
    store, into = kept.name, None if query.window is None else query.window.late
    outputs = outputs_of(query, relation)
    groups = [qualified(each, relation) for each in query.group_by]
    nodes = [qualified(each.node, _with_windows(query, relation)) for each in outputs]
    having = None if query.having is None else qualified(query.having, relation)
    done = aggregated(
        query.window,
        relation,
        groups,
        {each.name: node for each, node in zip(outputs, nodes, strict=True)},
        having,
        is_final=query.is_final,
        kept=kept,
        settings=settings,
        late=None if into is None else partial(late, into),
    )
    key_names, values = split(outputs, nodes, groups, is_needed=query.needs_key)
    rewritten = dict(zip((each.name for each in outputs), done.nodes, strict=True))
    compiler = Compiler(done.fields)
    codes = [checked(compiler, ProjectedColumn(each.name, rewritten[each.name])) for each in values]
    make = function_of(compiler.names, codes)
    value = tuple((each.name, code.type or Primitive.STRING) for each, code in zip(values, codes, strict=True))
    key = tuple((name, key_type(done.fields[n].type)) for n, name in enumerate(key_names))
    return QueryResult(
        done.table.map_values(make).to_stream(),
        is_table=True,
        key=key,
        value=value,
        shown=tuple(each.name for each in outputs),
        window=done.window,
        window_size=done.window_size,
        stored=StoredTable(store, chained(*done.steps, lambda _key, row: make(row))) if store else None,
    )


def _with_windows(query: Query, relation: Relation) -> Relation:
    if query.window is None:
        return relation
    bounds = (Field(name, Primitive.BIGINT, relation.name, is_pseudo=True) for name in ("WINDOWSTART", "WINDOWEND"))
    return replace(relation, fields=(*relation.fields, *bounds))
