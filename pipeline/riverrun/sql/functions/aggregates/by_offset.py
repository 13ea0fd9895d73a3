"""Earliest and latest values."""

from __future__ import annotations

from typing import Any

from riverrun.sql.functions.failures import WrongArguments
from riverrun.sql.functions.registry import Aggregate, AggregateCall, aggregate
from riverrun.sql.types import Array, Primitive

_LIMIT = "limit INTEGER"
_NULLS = "[ignore_nulls BOOLEAN]"


def _limit(call: AggregateCall) -> int | None:
    """Return how many values are requested; None for a single one."""
    if len(call.types) == 1 or call.types[1] == Primitive.BOOLEAN:
        return None
    limit = call.literal(1)
    if not isinstance(limit, int) or limit < 1:
        message = f"the number of values by offset is a whole number above 0, not {limit}"
        raise WrongArguments(message)
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


def _single(state: list[Any]) -> Any:
    return state[0] if state else None
