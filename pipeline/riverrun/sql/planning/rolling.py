"""OVER: aggregates of the rows up to each row, as columns that replace the calls."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.dsl.options import Grouped, Materialized
from riverrun.sql.expressions import Field
from riverrun.sql.formats import row_serde
from riverrun.sql.functions import is_aggregate
from riverrun.sql.planning.aggregations import Calls, GroupFold, grouped_rows, is_key
from riverrun.sql.planning.relations import rows_of, with_columns
from riverrun.sql.row_code import function_of
from riverrun.sql.statements import SqlError, start_of
from riverrun.sql.types import Primitive
from riverrun.windows import RollingWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.records import ValueAndTimestamp
    from riverrun.sql.planning.relations import Relation
    from riverrun.sql.statements import OverFrame

_MADE = "KSQL_OVER_"
_OTHERS = {
    "FIRST_VALUE": "EARLIEST_BY_OFFSET(value, FALSE) is the first value of a window.",
    "LAST_VALUE": "LATEST_BY_OFFSET(value, FALSE) is the last value of a window.",
    "LEAD": "Results are as of each row, before later ones are known. LAG looks back.",
    "ROW_NUMBER": "COUNT(*) is the number of a row in its window.",
}


def windows_in(nodes: Sequence[exp.Expr]) -> list[exp.Window]:
    """Return the calls with OVER within expressions, equal ones once."""
    found: list[exp.Window] = []
    for node in nodes:
        found += [each for each in node.find_all(exp.Window) if each not in found]
    return found


def rolled(
    nodes: Sequence[exp.Expr], relation: Relation, settings: Mapping[str, Any]
) -> tuple[list[exp.Expr], Relation]:
    """Return expressions without OVER, and a relation with columns that replace it; columns must name their sources."""
    found = windows_in(nodes)
    frame, groups = _shared(found)
    if relation.stream is None:
        message = "OVER takes the rows of a stream: those of a table replace each other"
        raise SqlError(message, start_of(found[0]), hint="GROUP BY aggregates the rows of a table.")
    calls = Calls(relation, groups, settings, is_windowed=False)
    for each in found:
        _add(each, calls)
    first = calls.keep(relation)
    types = [each.type or Primitive.STRING for each in calls.inputs]
    row_of = function_of(calls.compiler.names, calls.inputs, calls.note)
    is_keyed = is_key(groups, relation)
    keys = relation.key_serde if is_keyed else row_serde(types[: len(groups)])
    fold = GroupFold(tuple(calls.calls), len(groups))
    made = (Field(f"{_MADE}{n}", each.function.returns, is_pseudo=True) for n, each in enumerate(fold.calls))
    fields = (*relation.fields, *made)
    grouped = grouped_rows(relation, row_of, fold, Grouped(keys, row_serde(types)), is_keyed=is_keyed)
    make = _row_with_results(fold, slice(first, first + len(relation.fields)))
    stream = grouped.windowed_by(_windows(frame)).apply(make, Materialized(value_serde=rows_of(fields)))
    with_own_keys = replace(relation, stream=stream) if is_keyed else relation.rekeyed(stream)
    return [with_columns(each, found, _MADE) for each in nodes], replace(with_own_keys, fields=fields)


def _shared(found: Sequence[exp.Window]) -> tuple[OverFrame, Sequence[exp.Expr]]:
    """Return the rows and the groups of calls with OVER, which must be equal."""
    first = found[0]
    for each in found[1:]:
        if (each.args["spec"], each.args["partition_by"]) != (first.args["spec"], first.args["partition_by"]):
            message = "All calls with OVER in a SELECT take equal PARTITION BY, and equal rows"
            raise SqlError(message, start_of(each), hint="Compute the others in a further statement.")
    return first.meta["frame"], first.args["partition_by"]


def _add(window: exp.Window, calls: Calls) -> None:
    call = window.this.this if isinstance(window.this, exp.Filter) else window.this
    name = str(call.this)
    if not is_aggregate(name):
        message = f"{name} is not an aggregate function, and OVER follows one"
        raise SqlError(message, start_of(window), hint=_OTHERS.get(name))
    calls.rewritten(window.this)


def _windows(frame: OverFrame) -> RollingWindows:
    grace = None if frame.grace is None else timedelta(milliseconds=frame.grace)
    return RollingWindows.of(timedelta(milliseconds=frame.size), records=frame.rows, grace=grace)


def _row_with_results(
    fold: GroupFold, own: slice
) -> Callable[[Any, Sequence[ValueAndTimestamp[Any]]], tuple[Any, ...]]:
    """Return the function that makes the row of a record, followed by the results of its window."""
    add, results = fold.adder(), tuple(each.function.result for each in fold.calls)

    def row(key: Any, records: Sequence[ValueAndTimestamp[Any]]) -> tuple[Any, ...]:
        states = fold.initial()
        for record in records:
            states = add(key, record.value, states)
        return (*records[-1].value[own], *[result(state) for result, state in zip(results, states, strict=True)])

    return row
