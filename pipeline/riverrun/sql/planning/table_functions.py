"""Table functions of a projection: a row becomes several rows, one for each item of the longest list."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.sql.expressions import Code, Compiler, Field, digest_of, function_of, start_of
from riverrun.sql.functions import (
    TableFunction,
    UnknownFunction,
    WrongArguments,
    find_table_function,
    is_table_function,
)
from riverrun.sql.statements import SqlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from riverrun.sql.planning.relations import Relation

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
    """Return expressions without table functions, and a relation with columns that replace them.

    A shorter list is padded with NULLs (ksqlDB's `KudtfFlatMapper`). A function that fails makes no rows.

    Raises:
        SqlError: If the relation is a table, or a function does not take its arguments.
    """
    calls = table_calls(nodes)
    if not calls:
        return list(nodes), relation
    if relation.stream is None:
        message = "Table source is not supported with table functions"
        raise SqlError(message, start_of(calls[0]))
    compiler, arguments = Compiler(relation.fields), list[Code]()
    explosion = _Explosion(tuple(_made(call, compiler, arguments) for call in calls))
    note = repr([digest_of(each.function.apply) for each in explosion.calls])
    rows = explosion.rows_by(function_of(compiler, arguments, note))
    made = [Field(f"{_MADE}{n}", each.function.returns, is_pseudo=True) for n, each in enumerate(explosion.calls)]
    stream = relation.stream.flat_map_values(rows)
    return [_rewritten(each, calls) for each in nodes], replace(
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


def _rewritten(node: exp.Expr, calls: Sequence[exp.Anonymous]) -> exp.Expr:
    def column(each: exp.Expr) -> exp.Expr:
        if not isinstance(each, exp.Anonymous) or each not in calls:
            return each
        made = exp.Column(this=exp.Identifier(this=f"{_MADE}{calls.index(each)}"))
        made.meta.update(each.meta)
        return made

    return node.transform(column)
