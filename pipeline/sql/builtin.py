"""Functions and aggregates of the language, found by name and by the types of their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.sql.errors import SqlError, nearest
from pipeline.sql.types import Array, Decimal, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NUMBERS = (Primitive.INTEGER, Primitive.BIGINT, Primitive.DOUBLE)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A function of the values of one row; None is NULL."""

    name: str
    returns: SqlType | None
    apply: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of the values of many rows; `undo` takes a row out of its state again, where it can."""

    returns: SqlType
    intermediate: SqlType
    initial: Callable[[], Any]
    add: Callable[..., Any]
    result: Callable[[Any], Any]
    merge: Callable[[Any, Any], Any]
    undo: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A function that makes rows: `apply` returns a value for each."""

    returns: SqlType
    apply: Callable[..., list[Any]]


def _text(function: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else function(value)


def _concat(*values: Any) -> Any:
    return "".join(value for value in values if value is not None)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


_TEXTS: dict[str, tuple[SqlType, Callable[[str], Any]]] = {
    "UCASE": (Primitive.STRING, str.upper),
    "LCASE": (Primitive.STRING, str.lower),
    "TRIM": (Primitive.STRING, str.strip),
    "LEN": (Primitive.INTEGER, len),
}
_GENERAL = {"COALESCE": _first, "IFNULL": _first, "AS_VALUE": lambda value: value}
_SCALARS = [*_TEXTS, *_GENERAL, "ABS", "CONCAT"]


def find_scalar(name: str, types: Sequence[SqlType | None]) -> Scalar:
    """Return the function that takes arguments of these types; None is the type of NULL.

    Raises:
        SqlError: If there is no such function, or it does not take them.
    """
    given = ", ".join("NULL" if each is None else str(each) for each in types)
    if name in _TEXTS and len(types) == 1 and types[0] in {Primitive.STRING, None}:
        returns, function = _TEXTS[name]
        return Scalar(name, returns, _text(function))
    if name in _GENERAL and types and len({each for each in types if each is not None}) <= 1:
        return Scalar(name, next((each for each in types if each is not None), None), _GENERAL[name])
    if name == "ABS" and len(types) == 1 and (types[0] in _NUMBERS or isinstance(types[0], Decimal)):
        return Scalar(name, types[0], lambda value: None if value is None else abs(value))
    if name == "CONCAT" and len(types) > 1 and set(types) <= {Primitive.STRING, None}:
        return Scalar(name, Primitive.STRING, _concat)
    if name in _SCALARS:
        message = f"Function '{name}' does not accept parameters ({given})."
        raise SqlError(message)
    message = f"Can't find any functions with the name '{name}'"
    raise SqlError(message, hint=nearest(name, [*_SCALARS, *AGGREGATES, *TABLE_FUNCTIONS]))


def _plus(state: Any, value: Any) -> Any:
    return state if value is None else state + value


def _minus(state: Any, value: Any) -> Any:
    return state if value is None else state - value


def _same(value: Any) -> Any:
    return value


def _count(types: Sequence[SqlType | None]) -> Aggregate | None:
    if len(types) > 1:
        return None
    return Aggregate(
        Primitive.BIGINT,
        Primitive.BIGINT,
        lambda: 0,
        lambda state, value: state + (value is not None),
        _same,
        lambda left, right: left + right,
        lambda state, value: state - (value is not None),
    )


def _number(types: Sequence[SqlType | None]) -> SqlType | None:
    found = types[0] if len(types) == 1 else None
    return found if found in _NUMBERS or isinstance(found, Decimal) else None


def _sum(types: Sequence[SqlType | None]) -> Aggregate | None:
    found = _number(types)
    if found is None:
        return None
    return Aggregate(found, found, lambda: 0, _plus, _same, lambda left, right: left + right, _minus)


def _avg(types: Sequence[SqlType | None]) -> Aggregate | None:
    found = _number(types)
    if found is None:
        return None
    state = Struct((("SUM", Primitive.DOUBLE), ("COUNT", Primitive.BIGINT)))

    def changed(sign: int) -> Callable[[Any, Any], Any]:
        return lambda held, value: (
            held if value is None else {"SUM": held["SUM"] + sign * float(value), "COUNT": held["COUNT"] + sign}
        )

    return Aggregate(
        Primitive.DOUBLE,
        state,
        lambda: {"SUM": 0.0, "COUNT": 0},
        changed(1),
        lambda held: held["SUM"] / held["COUNT"] if held["COUNT"] else 0.0,
        lambda left, right: {"SUM": left["SUM"] + right["SUM"], "COUNT": left["COUNT"] + right["COUNT"]},
        changed(-1),
    )


def _extreme(choose: Callable[..., Any]) -> Callable[[Sequence[SqlType | None]], Aggregate | None]:
    def of(types: Sequence[SqlType | None]) -> Aggregate | None:
        found = types[0] if len(types) == 1 else None
        if found is None or isinstance(found, Array | Struct) or found is Primitive.BOOLEAN:
            return None

        def better(state: Any, value: Any) -> Any:
            if state is None or value is None:
                return value if state is None else state
            return choose(state, value)

        return Aggregate(found, found, lambda: None, better, _same, better)

    return of


def _collect(types: Sequence[SqlType | None]) -> Aggregate | None:
    if len(types) != 1 or types[0] is None:
        return None
    array = Array(types[0])

    def without(state: list[Any], value: Any) -> list[Any]:
        left = list(state)
        if value in left:
            del left[len(left) - 1 - left[::-1].index(value)]
        return left

    return Aggregate(
        array,
        array,
        list,
        lambda state, value: [*state, value],
        _same,
        lambda left, right: [*left, *right],
        without,
    )


def _latest(types: Sequence[SqlType | None]) -> Aggregate | None:
    if len(types) != 1 or types[0] is None:
        return None
    return Aggregate(
        types[0],
        types[0],
        lambda: None,
        lambda state, value: state if value is None else value,
        _same,
        lambda left, right: left if right is None else right,
    )


def _earliest(types: Sequence[SqlType | None]) -> Aggregate | None:
    if len(types) != 1 or types[0] is None:
        return None
    return Aggregate(
        types[0],
        types[0],
        lambda: None,
        lambda state, value: value if state is None else state,
        _same,
        lambda left, right: right if left is None else left,
    )


AGGREGATES: dict[str, Callable[[Sequence[SqlType | None]], Aggregate | None]] = {
    "COUNT": _count,
    "SUM": _sum,
    "AVG": _avg,
    "MIN": _extreme(min),
    "MAX": _extreme(max),
    "COLLECT_LIST": _collect,
    "LATEST_BY_OFFSET": _latest,
    "EARLIEST_BY_OFFSET": _earliest,
}
TABLE_FUNCTIONS = ("EXPLODE",)


def find_aggregate(name: str, types: Sequence[SqlType | None]) -> Aggregate:
    """Return the aggregate of arguments of these types.

    Raises:
        SqlError: If it does not take them.
    """
    found = AGGREGATES[name](types)
    if found is None:
        given = ", ".join("NULL" if each is None else str(each) for each in types)
        message = f"Function '{name}' does not accept parameters ({given})."
        raise SqlError(message)
    return found


def find_table_function(name: str, types: Sequence[SqlType | None]) -> TableFunction:
    """Return the table function of arguments of these types.

    Raises:
        SqlError: If it does not take them.
    """
    array = types[0] if len(types) == 1 else None
    if not isinstance(array, Array):
        message = f"Function '{name}' takes one array."
        raise SqlError(message)
    return TableFunction(array.item, lambda value: value or [])
