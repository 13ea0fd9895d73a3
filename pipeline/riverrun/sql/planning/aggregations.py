"""GROUP BY: groups rows, folds them into states, and makes rows of groups and results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.codegen.functions import written
from riverrun.dsl.options import EmitStrategy, Grouped, Materialized
from riverrun.sql.expression_parser import CHAINS
from riverrun.sql.expressions import Compiler, Field, check_known, find_field, misplaced
from riverrun.sql.formats import named, row_serde
from riverrun.sql.functions import UnknownFunction, WrongArguments, find_aggregate, is_aggregate
from riverrun.sql.planning.relations import column_of
from riverrun.sql.row_code import Code, First, GroupedAggregate, Results, States, digest_of, function_of, predicate_of
from riverrun.sql.statements import SqlError, start_of
from riverrun.sql.types import Primitive
from riverrun.windows import CalendarWindows, SessionWindows, TimeWindows, millis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.dsl.grouped_streams import KGroupedStream
    from riverrun.dsl.kstream import KStream
    from riverrun.dsl.ktable import KTable
    from riverrun.sql.durations import WindowSize
    from riverrun.sql.functions import Aggregate
    from riverrun.sql.planning.relations import LateRows, Relation
    from riverrun.sql.statements import WindowClause
    from riverrun.sql.types import Columns, SqlType

# A day, as in ksqlDB, for windows without GRACE PERIOD.
_GRACE_MS = 86_400_000
TTL_PLACES = "TTL is for tables of topics, and for GROUP BY without WINDOW"
_BOUNDS = ("WINDOWSTART", "WINDOWEND")


@dataclass(frozen=True, slots=True)
class Aggregated:
    """A table of groups and results, and the projection over it."""

    table: KTable[Any, Any]
    fields: tuple[Field, ...]
    nodes: tuple[exp.Expr, ...]
    window: str | None
    window_size: WindowSize | None
    steps: tuple[Callable[[Any, Any], Any], ...]
    """Each makes a row from a key and the value of the step before; the first gets the state."""


class Calls:
    """The calls of aggregates in a query; equal calls are computed once."""

    def __init__(
        self, relation: Relation, groups: Sequence[exp.Expr], settings: Mapping[str, Any], *, is_windowed: bool
    ) -> None:
        self.compiler = Compiler(relation.fields)
        self.groups = list(groups)
        self.inputs = [self.compiler.code(each) for each in groups]
        self.known: list[exp.Expr] = []
        self.calls: list[GroupedAggregate] = []
        self._settings = settings
        self._is_windowed = is_windowed

    @property
    def note(self) -> str:
        """Return text for the digest of the topology."""
        # Generated code contains neither the aggregates nor the code of users: without both, a changed `udaf` would leave
        # the digest as it was.
        functions = [
            [digest_of(each) for each in (used.initial, used.add, used.merge, used.result, used.undo)]
            for used in (call.function for call in self.calls)
        ]
        return f"{'; '.join(map(repr, self.known))}; {functions}"

    def rewritten(self, node: exp.Expr) -> exp.Expr:
        """Return an expression over groups and results."""
        # A chain of AND or OR may be longer than Python's stack is high.
        chain = [node]
        while isinstance(chain[-1], CHAINS) and chain[-1] not in self.groups:
            chain.append(chain[-1].this)
        found = self._rewritten(chain.pop())
        for each in reversed(chain):
            found = type(each)(this=found, expression=self.rewritten(each.expression))
            found.meta.update(each.meta)
        return found

    def _rewritten(self, node: exp.Expr) -> exp.Expr:
        if node in self.groups:
            return _named(f"G{self.groups.index(node)}", node)
        call = node.this if isinstance(node, exp.Filter) else node
        if isinstance(call, exp.Anonymous) and is_aggregate(str(call.this)):
            return _named(f"A{self._place(node, call)}", node)
        if isinstance(node, exp.Filter | exp.Window):
            raise misplaced(node)
        if isinstance(node, exp.Anonymous):
            check_known(node)
        if isinstance(node, exp.Column):
            if self._is_windowed and node.name in _BOUNDS:
                return _named(node.name, node)
            message = f"Non-aggregate SELECT expression(s) not part of GROUP BY: {node.name}"
            raise SqlError(message, start_of(node), hint="Add the column to GROUP BY, or aggregate it.")
        found = type(node)(**{name: self._rewritten_part(value) for name, value in node.args.items()})
        found.meta.update(node.meta)
        return found

    def _rewritten_part(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self._rewritten_part(each) for each in part]
        if isinstance(part, exp.Identifier):
            return part.copy()
        return self.rewritten(part) if isinstance(part, exp.Expr) else part

    def keeping(self, relation: Relation, late: LateRows) -> _KeptRows:
        """Append the whole row to grouped rows, and return how to find it there."""
        first = self.keep(relation)
        codes = (Code(f"row[{first + number}]", each.type) for number, each in enumerate(relation.fields))
        return _KeptRows(relation, tuple(codes), late)

    def keep(self, relation: Relation) -> int:
        """Append the whole row to grouped rows, which otherwise have only groups and arguments; return where it begins."""
        first = len(self.inputs)
        self.inputs += [self.compiler.code(column_of(each)) for each in relation.fields]
        return first

    def _place(self, node: exp.Expr, call: exp.Anonymous) -> int:
        """Return the number of a call, which is within `node` if FILTER follows it."""
        if node in self.known:
            return self.known.index(node)
        for inner in node.find_all(exp.Anonymous):
            if inner is not call and is_aggregate(str(inner.this)):
                message = f"Aggregate functions can not be nested: {call.this}({inner.this}())"
                raise SqlError(message, start_of(node))
        arguments = [each for each in call.expressions if not isinstance(each, exp.Star)]
        codes = [self.compiler.code(each) for each in arguments]
        try:
            function = find_aggregate(
                str(call.this), [each.type for each in codes], _literals(arguments), self._settings
            )
        except (UnknownFunction, WrongArguments) as error:
            raise SqlError(error.message, start_of(node), hint=error.hint) from None
        if isinstance(node, exp.Filter):
            function = _filtering(function)
            codes.append(self.compiler.condition(node.expression.this, "FILTER"))
        first = len(self.inputs)
        self.inputs += codes
        self.known.append(node)
        self.calls.append(GroupedAggregate(function, tuple(range(first, first + len(codes)))))
        return len(self.known) - 1


def _filtering(function: Aggregate) -> Aggregate:
    """Return the aggregate of the rows whose last value, the condition of FILTER, is TRUE."""
    code = function.code

    def filtering(run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda state, *values: run(state, *values[:-1]) if values[-1] is True else state

    def written_add(state: str, named: Callable[[Any], str], *values: str) -> str:
        assert code is not None  # noqa: S101 - it is used only then
        return f"({code(state, named, *values[:-1])} if {values[-1]} is True else {state})"

    return replace(
        function,
        add=filtering(function.add),
        undo=None if function.undo is None else filtering(function.undo),
        code=None if code is None else written_add,
    )


@dataclass(frozen=True, slots=True)
class _KeptRows:
    """Grouped rows that hold the whole rows of a relation, which LATE INTO needs."""

    relation: Relation
    codes: tuple[Code, ...]
    late: LateRows

    def consumer(self, *, is_keyed: bool) -> Callable[[KStream[Any, Any]], None]:
        """Return the function that takes the stream of late records: whole rows under their own keys."""

        def consume(stream: KStream[Any, Any]) -> None:
            rows = stream.map_values(function_of({}, self.codes))
            self.late(replace(self.relation, stream=rows) if is_keyed else self.relation.rekeyed(rows))

        return consume


def _literals(arguments: Sequence[exp.Expr]) -> dict[int, Any]:
    """Return the constants among the arguments, by position."""
    found: dict[int, Any] = {}
    for number, each in enumerate(arguments):
        if isinstance(each, exp.Boolean):
            found[number] = bool(each.this)
        elif isinstance(each, exp.Literal):
            text = str(each.this)
            found[number] = int(text) if not each.is_string and text.isdecimal() else text
    return found


def _named(name: str, node: exp.Expr) -> exp.Expr:
    column = exp.Column(this=exp.Identifier(this=name))
    column.meta.update(node.meta)
    return column


def aggregated(
    window: WindowClause | None,
    relation: Relation,
    groups: Sequence[exp.Expr],
    projection: Mapping[str, exp.Expr],
    having: exp.Expr | None,
    *,
    is_final: bool = False,
    kept: Materialized[Any, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    late: LateRows | None = None,
) -> Aggregated:
    calls = Calls(relation, groups, settings or {}, is_windowed=window is not None)
    rewritten = tuple(calls.rewritten(each) for each in projection.values())
    test = None if having is None else calls.rewritten(having)
    if not calls.calls:
        message = "GROUP BY requires aggregate functions in either the SELECT or HAVING clause."
        raise SqlError(message, start_of(groups[0]))
    late_rows = None if late is None else calls.keeping(relation, late)
    types = [each.type or Primitive.STRING for each in calls.inputs]
    row_of = function_of(calls.compiler.names, calls.inputs, calls.note)
    # Stores have a key per group, and states in place of rows: both get names that pull queries and displays show.
    keys = named(row_serde(types[: len(groups)]), _named_columns(groups, types[: len(groups)], projection))
    rows = row_serde(types)
    is_exact = all(each.function.is_exact for each in calls.calls)
    kinds = [each.function.intermediate for each in calls.calls]
    alone = {name: node for name, node in projection.items() if _is_state(node, calls)}
    states = named(row_serde(kinds, is_exact=is_exact), _named_columns(calls.known, kinds, alone))
    fold = GroupFold(tuple(calls.calls), len(groups))
    stored = replace(kept or Materialized(), value_serde=states)
    _check_source(relation, window, groups[0], expires=stored.ttl is not None)
    if relation.table is not None:
        table = _of_table(relation, row_of, fold, Grouped(keys, rows), groups, stored)
    else:
        # Rows that stay in their partitions must keep the bytes of their keys, so those keep their serde.
        is_keyed = is_key(groups, relation)
        options = Grouped(relation.key_serde if is_keyed else keys, rows)
        grouped = grouped_rows(relation, row_of, fold, options, is_keyed=is_keyed)
        consumer = None if late_rows is None else late_rows.consumer(is_keyed=is_keyed)
        table = _of_stream(grouped, fold, stored, window, late=consumer, is_final=is_final)
    fields = fields_of(types[: len(groups)], calls.calls, is_windowed=window is not None)
    to_row = fold.results(is_windowed=window is not None)
    results = table.map_values(to_row)
    steps: tuple[Callable[[Any, Any], Any], ...] = (to_row,)
    if test is not None:
        compiler = Compiler(fields)
        passes = predicate_of(compiler.names, compiler.condition(test, "HAVING"))
        results, steps = results.filter(passes), (to_row, _passing(passes))
    kind = None if window is None else window.kind
    window_size = None if window is None or kind == "SESSION" else window.size
    return Aggregated(results, fields, rewritten, kind, window_size, steps)


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Groups of rows that do not change: no window closes, and no row leaves its group.

    Args:
        fields: The columns of groups and results.
        nodes: Expressions over these columns.
        passes: The test of HAVING.
    """

    fields: tuple[Field, ...]
    nodes: tuple[exp.Expr, ...]
    row_of: Callable[[Any], Any]
    fold: GroupFold
    key_bytes: Callable[[Any], bytes]
    passes: Callable[[Any, Any], bool] | None


def row_groups(
    relation: Relation,
    groups: Sequence[exp.Expr],
    nodes: Sequence[exp.Expr],
    having: exp.Expr | None,
    settings: Mapping[str, Any],
) -> RowGroups:
    """Return how rows make groups; without groups, all rows are one."""
    calls = Calls(relation, groups, settings, is_windowed=False)
    rewritten = tuple(calls.rewritten(each) for each in nodes)
    test = None if having is None else calls.rewritten(having)
    types = [each.type or Primitive.STRING for each in calls.inputs[: len(groups)]]
    fields = fields_of(types, calls.calls, is_windowed=False)
    passes = None
    if test is not None:
        compiler = Compiler(fields)
        passes = predicate_of(compiler.names, compiler.condition(test, "HAVING"))
    row_of = function_of(calls.compiler.names, calls.inputs)
    fold = GroupFold(tuple(calls.calls), len(groups))
    return RowGroups(fields, rewritten, row_of, fold, row_serde(types).serialize, passes)


def has_aggregate(node: exp.Expr) -> bool:
    return any(is_aggregate(str(each.this)) for each in node.find_all(exp.Anonymous))


def _check_source(relation: Relation, window: WindowClause | None, group: exp.Expr, *, expires: bool) -> None:
    """Make sure that the rows of a source can be put into windows, and that those of a result can expire."""
    if relation.table is not None and window is not None:
        raise SqlError("WINDOW clause is only supported for streams.", start_of(group))
    if expires and window is not None:
        raise SqlError(TTL_PLACES, start_of(group))


def _is_state(node: exp.Expr, calls: Calls) -> bool:
    """Return whether an expression is a call whose state is its result, and may have its name."""
    return node in calls.known and calls.calls[calls.known.index(node)].function.is_state


def _named_columns(nodes: Sequence[exp.Expr], types: Sequence[SqlType], projection: Mapping[str, exp.Expr]) -> Columns:
    """Return columns of a store, named like their column of the projection, otherwise as they are written."""
    names: list[str] = []
    for node in nodes:
        own = node.name if isinstance(node, exp.Column) else _unqualified(node)
        named_so = (name for name, each in projection.items() if each == node)
        name = next(named_so, own)
        names.append(name if name not in names else f"{name} {len(names)}")
    return tuple(zip(names, types, strict=True))


def _unqualified(node: exp.Expr) -> str:
    found = node.copy()
    for column in found.find_all(exp.Column):
        column.set("table", None)
    return found.sql()


def _passing(passes: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    return lambda key, row: row if passes(key, row) else None


def fields_of(groups: Sequence[SqlType], calls: Sequence[GroupedAggregate], *, is_windowed: bool) -> tuple[Field, ...]:
    fields = [Field(f"G{number}", type_) for number, type_ in enumerate(groups)]
    fields += [Field(f"A{number}", each.function.returns) for number, each in enumerate(calls)]
    if is_windowed:
        fields += [Field(name, Primitive.BIGINT) for name in _BOUNDS]
    return tuple(fields)


@dataclass(frozen=True, slots=True)
class GroupFold:
    """Functions of one DSL aggregation that computes several calls at once."""

    calls: tuple[GroupedAggregate, ...]
    width: int

    def initial(self) -> Any:
        """Return the states of a group without rows."""
        return tuple(each.function.initial() for each in self.calls)

    def adder(self) -> Callable[[Any, Any, Any], Any]:
        """Return the function that adds a row to states."""
        steps = tuple((each.function.add, each.places) for each in self.calls)

        def add(_key: Any, row: Any, states: Any) -> Any:
            return tuple(
                [
                    one(state, *[row[place] for place in places])
                    for (one, places), state in zip(steps, states, strict=True)
                ]
            )

        return written(add, States(self.calls))

    def undo(self, _key: Any, row: Any, states: Any) -> Any:
        return tuple(
            (each.function.undo or _kept)(state, *(row[place] for place in each.places))
            for each, state in zip(self.calls, states, strict=True)
        )

    def merge(self, _key: Any, left: Any, right: Any) -> Any:
        """Return the states of two merged sessions."""
        return tuple(each.function.merge(one, two) for each, one, two in zip(self.calls, left, right, strict=True))

    def results(self, *, is_windowed: bool) -> Callable[[Any, Any], Any]:
        """Return the function that makes a group's row from its key and states."""
        results = tuple(each.function.result for each in self.calls)

        def row(key: Any, states: Any) -> Any:
            return (*key, *[result(state) for result, state in zip(results, states, strict=True)])

        def windowed_row(key: Any, states: Any) -> Any:
            return (*row(key.key, states), key.window.start, key.window.end)

        made = windowed_row if is_windowed else row
        return written(made, Results(self.calls, self.width, is_windowed))

    def grouped(self) -> Callable[[Any, Any], bool]:
        """Return the predicate for rows that belong to a group: no grouping value is NULL."""
        width = self.width

        def is_grouped(_key: Any, row: Any) -> bool:
            return row is not None and None not in row[:width]

        return written(is_grouped, First(width))

    def group(self) -> Callable[[Any, Any], Any]:
        """Return the function that makes the key of a row's group."""
        width = self.width

        def group(_key: Any, row: Any) -> Any:
            return row[:width]

        return written(group, First(width))


def _kept(state: Any, *_values: Any) -> Any:
    return state


def is_key(groups: Sequence[exp.Expr], relation: Relation) -> bool:
    """Return whether rows are grouped by just their key, and so need no repartitioning (ksqlDB's `StreamGroupByKey`)."""
    if relation.window is not None or not all(isinstance(each, exp.Column) for each in groups):
        return False
    places = tuple(find_field(relation.fields, each) for each in groups if isinstance(each, exp.Column))
    return places == relation.key


def grouped_rows(
    relation: Relation, row_of: Callable[[Any], Any], fold: GroupFold, options: Grouped[Any, Any], *, is_keyed: bool
) -> KGroupedStream[Any, Any]:
    assert relation.stream is not None  # noqa: S101 - checked by the caller
    stream = relation.stream.map_values(row_of).filter(fold.grouped())
    return stream.group_by_key(options) if is_keyed else stream.group_by(fold.group(), options)


def _of_stream(
    grouped: KGroupedStream[Any, Any],
    fold: GroupFold,
    stored: Materialized[Any, Any],
    window: WindowClause | None,
    *,
    late: Callable[[KStream[Any, Any]], None] | None,
    is_final: bool,
) -> KTable[Any, Any]:
    if window is None:
        return grouped.aggregate(fold.initial, fold.adder(), stored)
    if window.retention is not None:
        stored = replace(stored, retention=timedelta(milliseconds=window.retention))
    emit = EmitStrategy.on_window_close() if is_final else EmitStrategy.on_window_update()
    grace = timedelta(milliseconds=_grace_ms(window, is_final=is_final))
    windows = _windows(window, grace)
    if isinstance(windows, SessionWindows):
        sessions = grouped.windowed_by(windows)
        sessions = sessions if late is None else sessions.late(late)
        return sessions.emit_strategy(emit).aggregate(fold.initial, fold.adder(), fold.merge, stored)
    timed = grouped.windowed_by(windows)
    timed = timed if late is None else timed.late(late)
    return timed.emit_strategy(emit).aggregate(fold.initial, fold.adder(), stored)


def _windows(window: WindowClause, grace: timedelta) -> TimeWindows | SessionWindows | CalendarWindows:
    if isinstance(window.size, CalendarWindows):
        return replace(window.size, grace_ms=millis(grace))
    size = timedelta(milliseconds=window.size)
    if window.kind == "SESSION":
        return SessionWindows.of(size, grace=grace)
    windows = TimeWindows.of(size, grace=grace)
    return windows if window.advance is None else windows.advance_by(timedelta(milliseconds=window.advance))


def _grace_ms(window: WindowClause, *, is_final: bool) -> int:
    """Return the grace period; final results have none unless the statement has one (ksqlDB's `RewrittenAnalysis`)."""
    if window.grace is not None:
        return window.grace
    return 0 if is_final else _GRACE_MS


def _of_table(
    relation: Relation,
    row_of: Callable[[Any], Any],
    fold: GroupFold,
    options: Grouped[Any, Any],
    groups: Sequence[exp.Expr],
    stored: Materialized[Any, Any],
) -> KTable[Any, Any]:
    for each in fold.calls:
        if each.function.undo is None:
            message = "The aggregation function(s) cannot be applied to a table source, only to a stream source."
            raise SqlError(message, start_of(groups[0]))
    assert relation.table is not None  # noqa: S101 - checked by the caller

    is_grouped = fold.grouped()

    def grouped(key: Any, row: Any) -> Any:
        made = row_of(row)
        return (made[: fold.width], made) if is_grouped(key, made) else None

    table = relation.table.group_by(grouped, options)
    return table.aggregate(fold.initial, fold.adder(), fold.undo, stored)
