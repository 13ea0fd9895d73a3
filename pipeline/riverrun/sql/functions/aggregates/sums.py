"""Counts, sums and averages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.conversions import DIGITS
from riverrun.sql.functions.registry import Aggregate, AggregateCall, aggregate
from riverrun.sql.types import Decimal, Primitive, SqlType, Struct

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
        message = f"a sum of {total} is too large for {type_}"
        raise OverflowError(message)
    return total


@aggregate("SUM(value N) -> N")
def total(call: AggregateCall) -> Aggregate:
    """The sum of the values that are not NULL; 0 without any. A sum that its type cannot hold is an error."""
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
    """The average of the values that are not NULL; 0 without any. A DECIMAL counts as DOUBLE."""
    type_ = call.types[0]
    zero: Any = 0.0 if type_ == Primitive.DOUBLE else 0

    def add(state: dict[str, Any], value: Any, *_: Any) -> dict[str, Any]:
        return state if value is None else averaged(state["SUM"] + value, state["COUNT"] + 1)

    def undo(state: dict[str, Any], value: Any, *_: Any) -> dict[str, Any]:
        return state if value is None else averaged(state["SUM"] - value, state["COUNT"] - 1)

    def averaged(total: Any, count: int) -> dict[str, Any]:
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
