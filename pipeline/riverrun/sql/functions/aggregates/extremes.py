"""Smallest and largest values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.failures import WrongArguments
from riverrun.sql.functions.registry import Aggregate, AggregateCall, aggregate
from riverrun.sql.functions.values import distinct
from riverrun.sql.types import Array, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable


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


def _limit(call: AggregateCall, name: str) -> int:
    limit = call.literal(len(call.types) - 1)
    if not isinstance(limit, int) or limit < 1:
        message = f"{name} takes a whole number above 0 as its last argument, not {limit}"
        raise WrongArguments(message)
    return limit


@aggregate("TOPK(value C, [others X...], k INTEGER) -> ARRAY<C>")
def top(call: AggregateCall) -> Aggregate:
    """The `k` largest values; with other columns, structs of `sort_col`, `col0`, `col1` and so on."""
    limit = _limit(call, "TOPK")
    others = call.types[1:-1]
    if not others:
        return _ranking(call.returns, limit, lambda value, *_: value, lambda item: item, list)
    names = [f"col{number}" for number in range(len(others))]
    row = Struct((("sort_col", call.types[0]), *zip(names, others, strict=True)))

    def item(value: Any, *values: Any) -> dict[str, Any]:
        return {"sort_col": value, **dict(zip(names, values, strict=False))}

    return _ranking(Array(row), limit, item, lambda each: each["sort_col"], list)


@aggregate("TOPKDISTINCT(value C, k INTEGER) -> ARRAY<C>")
def top_distinct(call: AggregateCall) -> Aggregate:
    """The `k` largest values, each once."""
    return _ranking(call.returns, _limit(call, "TOPKDISTINCT"), lambda value, *_: value, lambda item: item, distinct)


def _ranking(
    returns: SqlType,
    limit: int,
    item: Callable[..., Any],
    rank: Callable[[Any], Any],
    once: Callable[[list[Any]], list[Any]],
) -> Aggregate:
    def ranked(items: list[Any]) -> list[Any]:
        return once(sorted(items, key=rank, reverse=True))[:limit]

    def add(state: list[Any], value: Any, *values: Any) -> list[Any]:
        if value is None or (len(state) == limit and value <= rank(state[-1])):
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
