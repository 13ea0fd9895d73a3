"""Aggregates of the values of many rows: counts, sums, averages, deviations, extremes, and the first and last values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.registry import Aggregate, AggregateCall, aggregate
from riverrun.sql.functions.values import DIGITS, WrongArguments, distinct
from riverrun.sql.types import Array, Decimal, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = {Primitive.INTEGER: 2**31 - 1, Primitive.BIGINT: 2**63 - 1}


@aggregate("COUNT([value X]) -> BIGINT")
def count(call: AggregateCall) -> Aggregate:
    """The number of rows; with a value, of those in which it is not NULL. `COUNT(*)` is `COUNT()`."""
    if not call.types:
        return Aggregate(
            call.returns,
            Primitive.BIGINT,
            initial=int,
            add=lambda state, *_: state + 1,
            undo=lambda state, *_: state - 1,
            merge=lambda first, second: first + second,
            result=lambda state: state,
            code=lambda state, _named: f"{state} + 1",
            is_state=True,
        )
    return Aggregate(
        call.returns,
        Primitive.BIGINT,
        initial=int,
        add=lambda state, value=None, *_: state + (value is not None),
        undo=lambda state, value=None, *_: state - (value is not None),
        merge=lambda first, second: first + second,
        result=lambda state: state,
        code=lambda state, _named, value, *_: f"{state} + ({value} is not None)",
        is_state=True,
    )


def _checked(total: Any, type_: SqlType) -> Any:
    """Return a sum; raise if its type cannot hold it."""
    if isinstance(type_, Decimal):
        too_large = total.adjusted() >= type_.precision - type_.scale and bool(total)
    else:
        too_large = type_ in _LARGEST and not -_LARGEST[type_] - 1 <= total <= _LARGEST[type_]
    if too_large:
        raise OverflowError(f"a sum of {total} is too large for {type_}")
    return total


@aggregate("SUM(value N) -> N")
def total(call: AggregateCall) -> Aggregate:
    """The sum of the values that are not NULL; 0 without any. A sum that its type cannot hold is an error.

    Of a table, a sum of DOUBLE may be off by rounding: after 1e16 and 1, without 1e16, it is 0. Other types are exact.
    """
    type_ = call.returns
    zero: Any = 0.0 if type_ == Primitive.DOUBLE else 0
    if isinstance(type_, Decimal):
        zero = DIGITS.create_decimal(0).scaleb(-type_.scale)
        plus, minus = DIGITS.add, DIGITS.subtract
    else:
        plus, minus = _plus, _minus
    return Aggregate(
        type_,
        type_,
        initial=lambda: zero,
        add=lambda state, value, *_: state if value is None else _checked(plus(state, value), type_),
        undo=lambda state, value, *_: state if value is None else _checked(minus(state, value), type_),
        merge=lambda first, second: _checked(plus(first, second), type_),
        result=lambda state: state,
        code=None if isinstance(type_, Decimal) else _sum_code(type_),
        is_state=True,
    )


def _sum_code(type_: SqlType) -> Callable[..., str]:
    """Return the writer of an addition; a sum that is too large goes to a function that refuses it."""

    def code(state: str, named: Callable[[Any], str], value: str, *_: str) -> str:
        if type_ not in _LARGEST:
            return f"({state} if {value} is None else {state} + {value})"
        largest, checked = _LARGEST[type_], named(refused)
        total = f"(total if {-largest - 1} <= (total := {state} + {value}) <= {largest} else {checked}(total))"
        return f"({state} if {value} is None else {total})"

    def refused(total: int) -> int:
        checked: int = _checked(total, type_)
        return checked

    return code


def _plus(first: Any, second: Any) -> Any:
    return first + second


def _minus(first: Any, second: Any) -> Any:
    return first - second


@aggregate("SUM_LIST(items ARRAY<N>) -> N")
def total_of_lists(call: AggregateCall) -> Aggregate:
    """The sum of all items of all arrays that are not NULL."""
    inner = total(call)

    def fold(step: Any) -> Any:
        def folded(state: Any, items: list[Any] | None, *_: Any) -> Any:
            for item in items or ():
                state = step(state, item)
            return state

        return folded

    return Aggregate(
        returns=call.returns,
        intermediate=call.returns,
        initial=inner.initial,
        add=fold(inner.add),
        merge=inner.merge,
        result=inner.result,
        undo=fold(inner.undo),
    )


@aggregate("AVG(value BIGINT) -> DOUBLE")
@aggregate("AVG(value DOUBLE) -> DOUBLE")
def average(call: AggregateCall) -> Aggregate:
    """The average of the values that are not NULL; 0 without any. A DECIMAL counts as DOUBLE.

    Of a table, an average of DOUBLE may be off by rounding, as `SUM` may.
    """
    type_ = call.types[0]
    zero: Any = 0.0 if type_ == Primitive.DOUBLE else 0

    def add(state: dict[str, Any], value: Any, *_: Any) -> dict[str, Any]:
        return state if value is None else averaged(state["SUM"] + value, state["COUNT"] + 1)

    def undo(state: dict[str, Any], value: Any, *_: Any) -> dict[str, Any]:
        return state if value is None else averaged(state["SUM"] - value, state["COUNT"] - 1)

    def averaged(total: Any, count: int) -> dict[str, Any]:
        # A sum that BIGINT cannot hold continues as a DOUBLE: the average has a result even if the sum has none.
        is_large = type_ in _LARGEST and abs(total) > _LARGEST[type_]
        return {"SUM": float(total) if is_large else total, "COUNT": count}

    return Aggregate(
        call.returns,
        Struct((("SUM", type_), ("COUNT", Primitive.BIGINT))),
        initial=lambda: {"SUM": zero, "COUNT": 0},
        add=add,
        undo=undo,
        merge=lambda one, other: averaged(one["SUM"] + other["SUM"], one["COUNT"] + other["COUNT"]),
        result=lambda state: state["SUM"] / state["COUNT"] if state["COUNT"] else 0.0,
    )


State = dict[str, Any]
_SPREAD = Struct((("COUNT", Primitive.BIGINT), ("SUM", Primitive.DOUBLE), ("M2", Primitive.DOUBLE)))
_SUMS = ("SUM_X", "SUM_Y", "SUM_XX", "SUM_YY", "SUM_XY")


def _square(value: float) -> float:
    # `**` raises for a square that is too large, and a product is infinite, as in Java.
    return value * value


def _add(state: State, value: float | None, *_: Any) -> State:
    if value is None:
        return state
    count, total = state["COUNT"] + 1, state["SUM"] + value
    spread = state["M2"] + (_square(count * value - total) / (count * (count - 1)) if count > 1 else 0.0)
    return {"COUNT": count, "SUM": total, "M2": spread}


def _undo(state: State, value: float | None, *_: Any) -> State:
    if value is None:
        return state
    count, total = state["COUNT"], state["SUM"]
    # A group that has become empty starts again without rounding errors.
    if count <= 1:
        return {"COUNT": 0, "SUM": 0.0, "M2": 0.0}
    spread = state["M2"] - _square(count * value - total) / (count * (count - 1))
    return {"COUNT": count - 1, "SUM": total - value, "M2": 0.0 if spread < 0 else spread}


def _merge(first: State, second: State) -> State:
    if not first["COUNT"] or not second["COUNT"]:
        return first if first["COUNT"] else second
    one, other = first["COUNT"], second["COUNT"]
    apart = second["SUM"] / other - first["SUM"] / one
    return {
        "COUNT": one + other,
        "SUM": first["SUM"] + second["SUM"],
        "M2": first["M2"] + second["M2"] + apart * apart * one * other / (one + other),
    }


def _variance(state: State) -> float:
    return float(state["M2"] / (state["COUNT"] - 1)) if state["COUNT"] > 1 else 0.0


def _deviation(call: AggregateCall, result: Callable[[State], float]) -> Aggregate:
    return Aggregate(
        call.returns,
        _SPREAD,
        initial=lambda: {"COUNT": 0, "SUM": 0.0, "M2": 0.0},
        add=_add,
        undo=_undo,
        merge=_merge,
        result=result,
    )


@aggregate("STDDEV_SAMP(value DOUBLE) -> DOUBLE")
def sample_variance(call: AggregateCall) -> Aggregate:
    """The square of the standard deviation of the sample, as ksqlDB has it under this name; 0 for fewer than two values."""
    return _deviation(call, _variance)


@aggregate("STDDEV_SAMPLE(value DOUBLE) -> DOUBLE")
def sample_deviation(call: AggregateCall) -> Aggregate:
    """The standard deviation of the sample; 0 for fewer than two values."""
    return _deviation(call, lambda state: math.sqrt(_variance(state)))


def _moved(state: State, x: float | None, y: float | None, sign: int) -> State:
    """Add a pair to the sums, or subtract it."""
    if x is None or y is None:
        return state
    parts = (x, y, x * x, y * y, x * y)
    moved = {name: state[name] + sign * part for name, part in zip(_SUMS, parts, strict=True)}
    return {"COUNT": state["COUNT"] + sign, **moved}


def _correlated(state: State) -> float:
    count = state["COUNT"]
    across = count * state["SUM_XX"] - _square(state["SUM_X"])
    up = count * state["SUM_YY"] - _square(state["SUM_Y"])
    if count <= 1 or across <= 0 or up <= 0:
        return math.nan
    both = count * state["SUM_XY"] - state["SUM_X"] * state["SUM_Y"]
    # Two roots, because the product of both may overflow. Rounding may lead just beyond 1.
    found = both / (math.sqrt(across) * math.sqrt(up))
    return found if math.isnan(found) else float(max(-1.0, min(1.0, found)))


@aggregate("CORRELATION(x DOUBLE, y DOUBLE) -> DOUBLE")
def correlation(call: AggregateCall) -> Aggregate:
    """Pearson's coefficient of correlation of the pairs without NULL; NaN if a column does not vary."""
    fields = (("COUNT", Primitive.BIGINT), *((name, Primitive.DOUBLE) for name in _SUMS))
    return Aggregate(
        call.returns,
        Struct(fields),
        initial=lambda: {"COUNT": 0, **dict.fromkeys(_SUMS, 0.0)},
        add=lambda state, x, y, *_: _moved(state, x, y, 1),
        undo=lambda state, x, y, *_: _moved(state, x, y, -1),
        merge=lambda first, second: {name: first[name] + second[name] for name in first},
        result=_correlated,
    )


_LIMIT = "limit INTEGER"
_NULLS = "[ignore_nulls BOOLEAN]"


def _limit(call: AggregateCall) -> int | None:
    """Return how many values are requested; None for a single one."""
    if len(call.types) == 1 or call.types[1] == Primitive.BOOLEAN:
        return None
    limit = call.literal(1)
    if not isinstance(limit, int) or limit < 1:
        raise WrongArguments(f"the number of values by offset is a whole number above 0, not {limit}")
    return limit


def _ignores_nulls(call: AggregateCall) -> bool:
    last = len(call.types) - 1
    return bool(call.literal(last, default=True)) if last and call.types[last] == Primitive.BOOLEAN else True


@aggregate(f"LATEST_BY_OFFSET(value T, {_LIMIT}, {_NULLS}) -> ARRAY<T>")
@aggregate(f"LATEST_BY_OFFSET(value T, {_NULLS}) -> T")
def latest(call: AggregateCall) -> Aggregate:
    """The last value, or an array of the last ones. NULLs count only if `ignore_nulls` is false."""
    limit, ignores = _limit(call), _ignores_nulls(call)
    count = limit or 1

    def add(state: list[Any], value: Any, *_: Any) -> list[Any]:
        return state if value is None and ignores else [*state, value][-count:]

    return Aggregate(
        call.returns,
        Array(call.types[0]),
        initial=list,
        add=add,
        merge=lambda first, second: [*first, *second][-count:],
        result=_single if limit is None else list,
    )


@aggregate(f"EARLIEST_BY_OFFSET(value T, {_LIMIT}, {_NULLS}) -> ARRAY<T>")
@aggregate(f"EARLIEST_BY_OFFSET(value T, {_NULLS}) -> T")
def earliest(call: AggregateCall) -> Aggregate:
    """The first value, or an array of the first ones. NULLs count only if `ignore_nulls` is false."""
    limit, ignores = _limit(call), _ignores_nulls(call)
    count = limit or 1

    def add(state: list[Any], value: Any, *_: Any) -> list[Any]:
        return state if len(state) >= count or (value is None and ignores) else [*state, value]

    return Aggregate(
        call.returns,
        Array(call.types[0]),
        initial=list,
        add=add,
        merge=lambda first, second: [*first, *second][:count],
        result=_single if limit is None else list,
    )


@aggregate("LAG(value T, [offset INTEGER]) -> T")
def lagged(call: AggregateCall) -> Aggregate:
    """The value so many rows before the last one, 1 by default; NULL without such a row. NULLs count as values."""
    offset = 1 if len(call.types) == 1 else call.literal(1)
    if not isinstance(offset, int) or offset < 0:
        raise WrongArguments(f"LAG looks back by a whole number of rows, not {offset}")
    width = offset + 1
    return Aggregate(
        call.returns,
        Array(call.types[0]),
        initial=list,
        add=lambda state, value, *_: [*state, value][-width:],
        merge=lambda first, second: [*first, *second][-width:],
        result=lambda state: state[0] if len(state) == width else None,
    )


def _single(state: list[Any]) -> Any:
    return state[0] if state else None


def _extreme(call: AggregateCall, choose: Callable[[Any, Any], Any]) -> Aggregate:
    def add(state: Any, value: Any, *_: Any) -> Any:
        if state is None or value is None:
            return value if state is None else state
        return choose(state, value)

    return Aggregate(call.returns, call.returns, initial=lambda: None, add=add, merge=add, result=lambda state: state)


@aggregate("MIN(value C) -> C")
def smallest(call: AggregateCall) -> Aggregate:
    """The smallest value; NULL without any. Rows of a table cannot be taken out of it."""
    return _extreme(call, min)


@aggregate("MAX(value C) -> C")
def largest(call: AggregateCall) -> Aggregate:
    """The largest value; NULL without any. Rows of a table cannot be taken out of it."""
    return _extreme(call, max)


def _number_of_extremes(call: AggregateCall, name: str) -> int:
    limit = call.literal(len(call.types) - 1)
    if not isinstance(limit, int) or limit < 1:
        raise WrongArguments(f"{name} takes a whole number above 0 as its last argument, not {limit}")
    return limit


@aggregate("TOPK(value C, [others X...], k INTEGER) -> ARRAY<C>")
def top(call: AggregateCall) -> Aggregate:
    """The `k` largest values; with other columns, structs of `sort_col`, `col0`, `col1` and so on."""
    return _extremes(call, "TOPK", largest=True)


@aggregate("BOTTOMK(value C, [others X...], k INTEGER) -> ARRAY<C>")
def bottom(call: AggregateCall) -> Aggregate:
    """The `k` smallest values; with other columns, structs as of TOPK. ksqlDB has no such function."""
    return _extremes(call, "BOTTOMK", largest=False)


def _extremes(call: AggregateCall, name: str, *, largest: bool) -> Aggregate:
    limit = _number_of_extremes(call, name)
    others = call.types[1:-1]
    if not others:
        return _ranking(call.returns, limit, lambda value, *_: value, lambda item: item, largest=largest)
    names = [f"col{number}" for number in range(len(others))]
    row = Struct((("sort_col", call.types[0]), *zip(names, others, strict=True)))

    def item(value: Any, *values: Any) -> dict[str, Any]:
        return {"sort_col": value, **dict(zip(names, values, strict=False))}

    return _ranking(Array(row), limit, item, lambda each: each["sort_col"], largest=largest)


@aggregate("TOPKDISTINCT(value C, k INTEGER) -> ARRAY<C>")
def top_distinct(call: AggregateCall) -> Aggregate:
    """The `k` largest values, each once."""
    limit = _number_of_extremes(call, "TOPKDISTINCT")
    return _ranking(call.returns, limit, lambda value, *_: value, lambda item: item, distinct)


def _ranking(
    returns: SqlType,
    limit: int,
    item: Callable[..., Any],
    rank: Callable[[Any], Any],
    once: Callable[[list[Any]], list[Any]] = list,
    *,
    largest: bool = True,
) -> Aggregate:
    # Sorting is stable: of equal ranks, the row that came first is ahead.
    def ranked(items: list[Any]) -> list[Any]:
        return once(sorted(items, key=rank, reverse=largest))[:limit]

    def is_behind(value: Any, last: Any) -> bool:
        return bool(value <= last if largest else value >= last)

    def add(state: list[Any], value: Any, *values: Any) -> list[Any]:
        if value is None or (len(state) == limit and is_behind(value, rank(state[-1]))):
            return state
        return ranked([*state, item(value, *values)])

    return Aggregate(
        returns,
        returns,
        initial=list,
        add=add,
        merge=lambda first, second: ranked([*first, *second]),
        result=lambda state: state,
    )
