"""Deviation and correlation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.registry import Aggregate, AggregateCall, aggregate
from riverrun.sql.types import Primitive, Struct

if TYPE_CHECKING:
    from collections.abc import Callable

State = dict[str, Any]
_SPREAD = Struct((("COUNT", Primitive.BIGINT), ("SUM", Primitive.DOUBLE), ("M2", Primitive.DOUBLE)))
_SUMS = ("SUM_X", "SUM_Y", "SUM_XX", "SUM_YY", "SUM_XY")


def _square(value: float) -> float:
    """Return the square, which may be infinite: `**` raises for that."""
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
