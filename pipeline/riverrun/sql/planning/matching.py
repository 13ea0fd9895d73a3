"""MATCH_RECOGNIZE: finds a pattern in the rows of each partition, and makes a row of measures of each match."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.dsl.options import Grouped
from riverrun.dsl.patterns import Pattern
from riverrun.sql.expressions import Compiler, Field, find_field
from riverrun.sql.formats import row_serde
from riverrun.sql.functions import is_aggregate
from riverrun.sql.planning.aggregations import Calls, GroupFold, fields_of, is_key
from riverrun.sql.planning.relations import ProjectedColumn, Relation, checked, qualified, rows_of
from riverrun.sql.row_code import function_of, predicate_of
from riverrun.sql.statements import SqlError, start_of
from riverrun.sql.types import Primitive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from riverrun.dsl.kstream import KStream
    from riverrun.sql.statements import MatchRecognize, PatternPart
    from riverrun.sql.types import SqlType

_VARIABLE = "`variable`"
"""The column with the name of the variable that a row of a match belongs to. Statements cannot write this name."""
_TIME = "ROWTIME"
_OFFSETS = {"FIRST": "EARLIEST_BY_OFFSET", "LAST": "LATEST_BY_OFFSET"}


def matched(
    clause: MatchRecognize, relation: Relation, settings: Mapping[str, Any], *, used: Collection[str]
) -> Relation:
    """Return the matches of a relation's rows; `used` are the names of columns that the query uses."""
    if relation.stream is None:
        raise SqlError("MATCH_RECOGNIZE takes the rows of a stream: those of a table replace each other", clause.start)
    groups = [_group(each, relation) for each in clause.partition_by]
    _check_names(clause, groups)
    measures = _Measures.of(clause, relation, groups, settings)
    types = [each.type or Primitive.STRING for each in measures.calls.inputs[: len(groups)]]
    is_keyed = is_key(groups, relation)
    keys = relation.key_serde if is_keyed else row_serde(types)
    found = _by_group(relation.stream, groups, relation, is_keyed=is_keyed).match(
        _pattern(clause, relation),
        within=timedelta(milliseconds=clause.within),
        grace=timedelta(milliseconds=clause.grace),
        grouped=Grouped(keys, rows_of(relation.fields)),
    )
    rows, columns = measures.made(types)
    name = clause.alias
    values = (Field(measure, type_, name) for (measure, _), type_ in zip(clause.measures, columns, strict=True))
    of_key = (
        Field(str(each.name), type_, name, is_key=True, is_source_key=True)
        for each, type_ in zip(groups, types, strict=True)
    )
    # A match waits for later records, whose places in their topics are not its own.
    return Relation(name, (*values, *of_key), keys).with_stream(found.map_values(rows), {_TIME}.intersection(used))


def _check_names(clause: MatchRecognize, groups: Sequence[exp.Column]) -> None:
    taken = {_TIME}
    for name, node in (*((each.name, each) for each in groups), *clause.measures):
        if name in taken:
            message = f"Matches have two columns {name}"
            raise SqlError(message, start_of(node) or clause.start, hint="A measure has its name behind AS.")
        taken.add(name)


def _group(node: exp.Expr, relation: Relation) -> exp.Column:
    found = qualified(node, relation)
    if not isinstance(found, exp.Column):
        message = "PARTITION BY of MATCH_RECOGNIZE takes columns"
        raise SqlError(message, start_of(node), hint="Compute the column in an earlier statement.")
    return found


def _by_group(
    stream: KStream[Any, Any], groups: Sequence[exp.Expr], relation: Relation, *, is_keyed: bool
) -> KStream[Any, Any]:
    """Return a stream by groups, without the rows in which one of their columns is NULL."""
    compiler = Compiler(relation.fields)
    group_of = function_of(compiler.names, [compiler.code(each) for each in groups])
    grouped = stream.filter(lambda _key, row: row is not None and None not in group_of(row))
    return grouped if is_keyed else grouped.select_key(lambda _key, row: group_of(row))


def _pattern(clause: MatchRecognize, relation: Relation) -> Pattern[Any]:
    names = [each.name for each in clause.parts]
    for name, node in clause.definitions.items():
        if name not in names:
            raise SqlError(f"DEFINE has {name}, which is not in PATTERN", start_of(node))
    found: Pattern[Any] | None = None
    for part in clause.parts:
        if names.count(part.name) > 1:
            raise SqlError(f"PATTERN has {part.name} twice", part.start, hint="Give each its own name and definition.")
        test = _test(part.name, names, clause.definitions.get(part.name), relation)
        element = Pattern.begin(part.name, test) if found is None else found.next(part.name, test)
        found = _repeated(element, part)
    assert found is not None  # noqa: S101 - the parser requires a variable
    return found


def _repeated(pattern: Pattern[Any], part: PatternPart) -> Pattern[Any]:
    # SQL's matches have rows that follow each other.
    found = pattern.times_or_more(part.least) if part.most is None else pattern.times(part.least, part.most)
    found = found.consecutive()
    return found.optional() if part.is_optional else found


def _test(
    name: str, variables: Collection[str], node: exp.Expr | None, relation: Relation
) -> Callable[[Any, Any], bool]:
    """Return the predicate of a variable; every row satisfies one without a definition."""
    if node is None:
        return lambda _key, _row: True
    for column in node.find_all(exp.Column):
        if column.table in variables and column.table != name:
            message = f"The definition of {name} takes columns of that row, not of {column.table}"
            hint = "LAG(...) OVER (...) in an earlier statement makes columns of rows before."
            raise SqlError(message, start_of(column), hint=hint)
    compiler = Compiler(relation.fields)
    condition = qualified(_of_source(relation, variables, node), relation)
    return predicate_of(compiler.names, compiler.condition(condition, "DEFINE"))


def _of_source(relation: Relation, variables: Collection[str], node: exp.Expr) -> exp.Expr:
    """Return an expression whose columns name the source in place of variables."""
    # Without any name before them, parameters of lambdas could hide them.
    found = node.copy()
    for column in found.find_all(exp.Column):
        if column.table in variables:
            column.set("table", None)
            place = find_field(relation.fields, column)
            column.set("table", exp.Identifier(this=relation.fields[place].source))
    return found


class _Measures:
    """The measures of matches: expressions over groups and aggregates, as of GROUP BY."""

    def __init__(self, calls: Calls, columns: Sequence[ProjectedColumn]) -> None:
        self.calls = calls
        self._columns = columns

    @classmethod
    def of(
        cls, clause: MatchRecognize, relation: Relation, groups: Sequence[exp.Expr], settings: Mapping[str, Any]
    ) -> _Measures:
        variable = Field(_VARIABLE, Primitive.STRING, relation.name, is_pseudo=True)
        rows = replace(relation, fields=(*relation.fields, variable))
        calls = Calls(rows, groups, settings, is_windowed=False)
        variables = [each.name for each in clause.parts]
        columns = []
        for name, node in clause.measures:
            over_rows = node.transform(lambda each: _over_rows(each, variables, rows, groups))
            columns.append(ProjectedColumn(name, calls.rewritten(over_rows)))
        return cls(calls, columns)

    def made(self, groups: Sequence[SqlType]) -> tuple[Callable[[Any, Any], Any], list[SqlType]]:
        """Return the function that makes the measures of a match, and their types."""
        calls = self.calls
        fold = GroupFold(tuple(calls.calls), len(groups))
        compiler = Compiler(fields_of(groups, calls.calls, is_windowed=False))
        codes = [checked(compiler, each) for each in self._columns]
        values_of, make = (
            function_of(calls.compiler.names, calls.inputs, calls.note),
            function_of(compiler.names, codes),
        )
        add, results = fold.adder(), fold.results(is_windowed=False)

        def measures(key: Any, match: Mapping[str, Sequence[Any]]) -> Any:
            states = fold.initial()
            for variable, rows in match.items():
                for row in rows:
                    states = add(key, values_of((*row, variable)), states)
            return make(results(key, states))

        return measures, [each.type or Primitive.STRING for each in codes]


def _over_rows(node: exp.Expr, variables: Collection[str], rows: Relation, groups: Collection[exp.Expr]) -> exp.Expr:
    """Return a measure's part over the rows of a match: an aggregate of a variable is one of the rows that are its own."""
    if isinstance(node, exp.Column):
        if node.table in variables:
            return _of_variable(_offset("LAST", node), node, variables, rows)
        column = qualified(node, rows)
        if column in groups:
            return column
        message = f"A measure has columns of a variable, or of PARTITION BY, and {node.name} is neither"
        raise SqlError(message, start_of(node), hint=f"LAST(A.{node.name}) is that of the last row of A.")
    call = node.this if isinstance(node, exp.Filter) else node
    if not isinstance(call, exp.Anonymous) or not (call.this in _OFFSETS or is_aggregate(str(call.this))):
        return node
    if call.this not in _OFFSETS:
        return _of_variable(node, node, variables, rows)
    if isinstance(node, exp.Filter) or len(call.expressions) != 1 or isinstance(call.expressions[0], exp.Star):
        raise SqlError(f"{call.this} takes one column, without FILTER", start_of(node))
    return _of_variable(_offset(str(call.this), call.expressions[0]), node, variables, rows)


def _offset(name: str, value: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=_OFFSETS[name], expressions=[value.copy(), exp.Boolean(this=False)])


def _of_variable(aggregate: exp.Expr, node: exp.Expr, variables: Collection[str], rows: Relation) -> exp.Expr:
    """Return an aggregate of the rows of the variable that its columns name; of all rows if they name none."""
    named = {column.table for column in aggregate.find_all(exp.Column) if column.table in variables}
    if len(named) > 1:
        raise SqlError(f"An aggregate takes columns of one variable, not of {', '.join(sorted(named))}", start_of(node))
    found = _of_source(rows, variables, aggregate)
    if named:
        column = exp.Column(this=exp.Identifier(this=_VARIABLE))
        condition: exp.Expr = exp.EQ(this=column, expression=exp.Literal.string(named.pop()))
        if isinstance(found, exp.Filter):
            condition = exp.And(this=found.expression.this, expression=condition)
            found = found.this
        found = exp.Filter(this=found, expression=exp.Where(this=condition))
    found = qualified(found, rows)
    found.meta.update(node.meta)
    return found
