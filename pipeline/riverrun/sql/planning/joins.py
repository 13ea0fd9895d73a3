"""Joins of a query, from the first source to the last, each with the result of the earlier joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.codegen.functions import written
from riverrun.dsl.options import Joined, Materialized, StreamJoined
from riverrun.sql.durations import size_text
from riverrun.sql.expressions import Compiler, Field, find_field
from riverrun.sql.formats import row_serde
from riverrun.sql.planning.relations import Relation, rows_of
from riverrun.sql.row_code import Beside, Code, function_of
from riverrun.sql.statements import SqlError, nearest, start_of
from riverrun.windows import JoinWindows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.dsl.kstream import KStream
    from riverrun.serde.api import Serde
    from riverrun.sql.statements import Join, LateInto
    from riverrun.sql.types import SqlType

# A day, as `JoinWindows.of` has without GRACE PERIOD.
_GRACE_MS = 24 * 3_600_000
_KEY = "ROWKEY"


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a join's condition; `place` is the index of its column, or None if it is not a plain column."""

    relation: Relation
    node: exp.Expr
    code: Code
    place: int | None
    compiler: Compiler

    @property
    def is_key(self) -> bool:
        """Return whether the expression is the key of the rows already."""
        keys = self.relation.viable or self.relation.key
        return self.place in keys and len(self.relation.key) <= 1

    def value_of(self) -> Callable[[Any], Any]:
        """Return a function that returns a row's join key; None if it is NULL."""
        made = function_of(self.compiler.names, [self.code])
        return lambda row: None if row is None or (key := made(row)) == (None,) else key


LateOfJoin = Callable[["LateInto", Relation], None]
"""Receives the late rows of one side of a join, to make the stream of a LATE INTO."""


def joined_all(relations: Sequence[Relation], joins: Sequence[Join], late: LateOfJoin) -> Relation:
    done = relations[0]
    for other, join in zip(relations[1:], joins, strict=True):
        done = _joined(done, other, join, late)
    return done


def _joined(left: Relation, right: Relation, join: Join, late: LateOfJoin) -> Relation:
    start = join.source.start
    if any(each.source == right.name for each in left.fields):
        message = f"Each source of a join needs its own name: there are two {right.name}"
        raise SqlError(message, start, hint="Give one of them an alias: JOIN ... AS other.")
    mine, theirs = _sides(left, right, join)
    _check_windowed(mine, theirs, start)
    if mine.code.type != theirs.code.type:
        message = (
            f"Invalid join condition: types don't match. Got {mine.node.sql()}{{{mine.code.type}}}"
            f" = {theirs.node.sql()}{{{theirs.code.type}}}."
        )
        raise SqlError(message, start)
    key_type: SqlType = mine.code.type
    _check_windows(left, right, join)
    if left.stream is not None and right.stream is not None:
        return _of_streams(mine, theirs, join, key_type, late)
    if left.stream is not None:
        return _with_table(mine, theirs, join, key_type)
    return _of_tables(mine, theirs, join, key_type)


def _check_windowed(mine: _Side, theirs: _Side, start: int) -> None:
    """Refuse sources with different windows, whose keys would never match (ksqlDB's `JoinNode`)."""
    left, right = mine.relation, theirs.relation
    problem = None
    if (left.window is None) != (right.window is None):
        problem = "Can not join windowed source to non-windowed source."
    elif left.window is not None and "SESSION" in {left.window, right.window} and left.window != right.window:
        problem = (
            f"Incompatible windowed sources: {left.name} has {left.window}, and {right.name} {right.window} windows."
        )
    elif left.window_size != right.window_size:
        sizes = f"{size_text(left.window_size)} and of {size_text(right.window_size)}"
        problem = f"Incompatible windowed sources: windows of {sizes}."
    elif left.window is not None and not (mine.is_key and theirs.is_key):
        problem = "Implicit repartitioning of windowed sources is not supported: join them by their keys."
    if problem:
        raise SqlError(problem, start)


def _check_windows(left: Relation, right: Relation, join: Join) -> None:
    are_streams = left.stream is not None and right.stream is not None
    if are_streams and join.before is None:
        raise SqlError("Stream-Stream joins must have a WITHIN clause specified. None was provided.", join.source.start)
    if not are_streams and join.before is not None:
        message = "Specify the WITHIN clause for stream-stream joins only: one side is a table."
        raise SqlError(message, join.source.start)
    if left.table is not None and right.stream is not None:
        message = "Invalid join order: a table comes before a stream."
        raise SqlError(message, join.source.start, hint="Put the stream first.")


def _sides(left: Relation, right: Relation, join: Join) -> tuple[_Side, _Side]:
    """Split the condition into its two sides."""
    condition = join.on.this if isinstance(join.on, exp.Paren) else join.on
    if not isinstance(condition, exp.EQ):
        raise SqlError("The condition of a join must have the form a = b", start_of(join.on) or join.source.start)
    one, other = condition.this, condition.expression
    # `a.id = b.id` and `b.id = a.id` are the same join. If neither way resolves, the mistake is reported as for the order
    # in which the condition is written.
    try:
        return _side(left, one), _side(right, other)
    except SqlError as error:
        try:
            return _side(left, other), _side(right, one)
        except SqlError:
            raise error from None


def _side(relation: Relation, node: exp.Expr) -> _Side:
    compiler = Compiler(relation.fields)
    code = compiler.code(node)
    if not list(node.find_all(exp.Column)):
        raise SqlError("Each side of a join's condition must refer to columns of one source", start_of(node))
    place = find_field(relation.fields, node) if isinstance(node, exp.Column) else None
    return _Side(relation, node, code, place, compiler)


def _of_streams(mine: _Side, theirs: _Side, join: Join, key_type: SqlType, late: LateOfJoin) -> Relation:
    keys = _key_serde(mine, theirs, key_type)
    left, right = _keyed(mine), _keyed(theirs)
    grace = timedelta(milliseconds=_GRACE_MS if join.grace is None else join.grace)
    windows = _sized(JoinWindows.of(timedelta(0), grace=grace), join.before, join.after)
    left_rows, right_rows = (row_serde([each.type for each in side.relation.fields]) for side in (mine, theirs))
    late_left, late_right = _late_sides(mine, theirs, join, late)
    options: StreamJoined[Any, Any, Any] = StreamJoined(
        keys, left_rows, right_rows, late=late_left, other_late=late_right
    )
    joiner = _joiner(mine.relation, theirs.relation)
    stream: Any
    if join.kind == "INNER":
        stream = left.join(right, joiner, windows=windows, joined=options)
    elif join.kind == "LEFT":
        stream = left.left_join(right, joiner, windows=windows, joined=options)
    elif join.kind == "FULL":
        stream = left.outer_join(right, joiner, windows=windows, joined=options)
    else:
        # The DSL has no right join: it is the left join of the other side, so serdes, late rows and the window's two
        # bounds change sides as well.
        turned = replace(
            options, value_serde=right_rows, other_value_serde=left_rows, late=late_right, other_late=late_left
        )
        backwards = _sized(windows, join.after, join.before)
        stream = right.left_join(left, _swapped(joiner), windows=backwards, joined=turned)
    return _result(mine, theirs, join, keys, stream=stream)


def _late_sides(
    mine: _Side, theirs: _Side, join: Join, late: LateOfJoin
) -> tuple[Callable[[Any], None] | None, Callable[[Any], None] | None]:
    """Return the consumers of late records of the left and the right side."""
    found: dict[str, Callable[[Any], None]] = {}
    aliases = list(dict.fromkeys(each.source for each in mine.relation.fields))
    for into in join.late:
        side = theirs if into.source == theirs.relation.name else mine if into.source in aliases else None
        if side is None:
            message = f"LATE {into.source}: this join has no source of that name"
            raise SqlError(message, into.start, hint=nearest(str(into.source), [*aliases, theirs.relation.name]))
        which = "right" if side is theirs else "left"
        if which in found:
            raise SqlError(f"LATE {into.source}: the late rows of a side go to one stream", into.start)
        found[which] = _late_of(side, into, late)
    return found.get("left"), found.get("right")


def _late_of(side: _Side, into: LateInto, late: LateOfJoin) -> Callable[[KStream[Any, Any]], None]:
    def consume(stream: KStream[Any, Any]) -> None:
        late(into, replace(side.relation, stream=stream) if side.is_key else side.relation.rekeyed(stream))

    return consume


def _sized(windows: JoinWindows, before_ms: int | None, after_ms: int | None) -> JoinWindows:
    return windows.before(timedelta(milliseconds=before_ms or 0)).after(timedelta(milliseconds=after_ms or 0))


def _swapped(joiner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda row, other: joiner(other, row)


def _with_table(mine: _Side, theirs: _Side, join: Join, key_type: SqlType) -> Relation:
    table = theirs.relation.table
    assert table is not None  # noqa: S101 - checked by the caller
    _require_primary(theirs, join)
    if join.kind not in {"INNER", "LEFT"}:
        raise SqlError(f"{join.kind} OUTER joins of a stream and a table are not supported", join.source.start)
    keys = _key_serde(mine, theirs, key_type)
    options: Joined[Any, Any, Any] = Joined(keys, row_serde([each.type for each in mine.relation.fields]))
    left, joiner = _keyed(mine), _joiner(mine.relation, theirs.relation)
    call: Any = left.join if join.kind == "INNER" else left.left_join
    stream = call(table, joiner, joined=options)
    return _result(mine, theirs, join, keys, stream=stream)


def _of_tables(mine: _Side, theirs: _Side, join: Join, key_type: SqlType) -> Relation:
    _require_primary(theirs, join)
    left, right = mine.relation.table, theirs.relation.table
    assert left is not None  # noqa: S101 - checked by the caller
    assert right is not None  # noqa: S101 - checked by the caller
    joiner = _joiner(mine.relation, theirs.relation)
    if not mine.is_key:
        return _by_foreign_key(mine, theirs, join)
    # Both sides would read one store, so a deletion would reach both at once and leave the joined row.
    if both := mine.relation.tables & theirs.relation.tables:
        message = f"A table cannot be joined with itself: both sides read topic {min(both)}"
        raise SqlError(message, join.source.start, hint="One SELECT from the table has all its columns.")
    table: Any
    if join.kind == "INNER":
        table = left.join(right, joiner)
    elif join.kind == "LEFT":
        table = left.left_join(right, joiner)
    elif join.kind == "FULL":
        table = left.outer_join(right, joiner)
    else:
        table = right.left_join(left, _swapped(joiner))
    return _result(mine, theirs, join, _key_serde(mine, theirs, key_type), table=table)


def _by_foreign_key(mine: _Side, theirs: _Side, join: Join) -> Relation:
    if join.kind not in {"INNER", "LEFT"}:
        raise SqlError(f"{join.kind} OUTER joins by a foreign key are not supported", join.source.start)
    left, right = (_stored(side.relation) for side in (mine, theirs))
    value_of, joiner = mine.value_of(), _joiner(mine.relation, theirs.relation)
    table = (left.join if join.kind == "INNER" else left.left_join)(
        right,
        joiner,
        Materialized(value_serde=rows_of((*mine.relation.fields, *theirs.relation.fields))),
        foreign_key_extractor=value_of,
    )
    fields = (*mine.relation.fields, *(replace(each, is_key=False) for each in theirs.relation.fields))
    tables = mine.relation.tables | theirs.relation.tables
    return replace(mine.relation, fields=fields, table=table, is_joined=True, tables=tables)


def _stored(relation: Relation) -> Any:
    # The mapping changes nothing, but gives the table serdes: rows are sent to the tasks of the other table and back.
    assert relation.table is not None  # noqa: S101 - checked by the caller
    stored: Materialized[Any, Any] = Materialized(key_serde=relation.key_serde, value_serde=rows_of(relation.fields))
    return relation.table.map_values(_same, stored)


def _same(row: Any) -> Any:
    return row


def _require_primary(theirs: _Side, join: Join) -> None:
    if not theirs.is_key:
        message = (
            f"Invalid join condition: a table is joined by its primary key, and {theirs.node.sql()} is not that of"
            f" {theirs.relation.name}."
        )
        raise SqlError(message, start_of(theirs.node) or join.source.start)


def _key_serde(mine: _Side, theirs: _Side, key_type: SqlType) -> Serde[Any]:
    # A side that is not repartitioned keeps the bytes of its keys. The other side must write the same ones, or equal keys
    # would be in different partitions.
    for side in (theirs, mine):
        if side.is_key:
            return side.relation.key_serde
    return row_serde([key_type])


def _keyed(side: _Side) -> KStream[Any, Any]:
    stream = side.relation.stream
    assert stream is not None  # noqa: S101 - checked by the caller
    if side.is_key:
        return stream
    value_of = side.value_of()
    return stream.select_key(lambda _key, row: value_of(row))


def _joiner(left: Relation, right: Relation) -> Callable[[Any, Any], Any]:
    no_left, no_right = (None,) * len(left.fields), (None,) * len(right.fields)

    def joined(row: Any, other: Any) -> Any:
        return (*(no_left if row is None else row), *(no_right if other is None else other))

    return written(joined, Beside(len(no_left), len(no_right)))


def _result(
    mine: _Side, theirs: _Side, join: Join, keys: Serde[Any], *, stream: Any = None, table: Any = None
) -> Relation:
    """Return the joined rows with the columns of both sides, and the columns that may represent their key."""
    width = len(mine.relation.fields)
    fields = tuple(replace(each, is_key=False) for each in (*mine.relation.fields, *theirs.relation.fields))
    # Of a full outer join either side may be missing, so none of its columns always has the key.
    viable = []
    if join.kind != "FULL":
        viable += [] if mine.place is None else _same_keys(mine)
        viable += [] if theirs.place is None else [width + theirs.place]
    if not viable:
        fields, viable = (*fields, Field(_KEY, mine.code.type, is_key=True)), [len(fields)]
        rows = stream if stream is not None else table
        keyed = rows.map_values(_with_key)
        stream, table = (keyed, None) if stream is not None else (None, keyed)
    fields = tuple(replace(each, is_key=number == viable[0]) for number, each in enumerate(fields))
    made = replace(mine.relation, fields=fields, key_serde=keys, stream=stream, table=table)
    tables = mine.relation.tables | theirs.relation.tables
    return replace(made, is_joined=True, viable=tuple(viable), tables=tables)


def _same_keys(side: _Side) -> list[int]:
    """Return the indexes of columns that hold equal values, including those of earlier joins."""
    assert side.place is not None  # noqa: S101 - checked by the caller
    earlier = side.relation.viable
    return [side.place, *(each for each in earlier if each != side.place)] if side.place in earlier else [side.place]


def _with_key(key: Any, row: Any) -> Any:
    return None if row is None else (*row, None if key is None else getattr(key, "key", key)[0])
