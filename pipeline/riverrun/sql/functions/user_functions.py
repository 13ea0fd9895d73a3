"""Users' functions in Python, typed by their annotations."""

from __future__ import annotations

import decimal
import inspect
import types as python_types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin

from riverrun.errors import TopologyError
from riverrun.sql.functions.registry import REGISTRY, Aggregate, AggregateCall, Overload, in_type
from riverrun.sql.functions.signatures import ArrayOf, MapOf, Parameter, Pattern, Signature, StructOf
from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

C = TypeVar("C", bound=type)

THEME = "User functions"
F = TypeVar("F", bound=Callable[..., Any])
_TYPES: dict[Any, SqlType] = {
    bool: Primitive.BOOLEAN,
    int: Primitive.BIGINT,
    float: Primitive.DOUBLE,
    str: Primitive.STRING,
    bytes: Primitive.BYTES,
}
_HINT = (
    "There are int, float, str, bool, bytes, list[X], dict[str, X], X | None,"
    " and Annotated[decimal.Decimal, Decimal(precision, scale)] with Decimal of riverrun.sql.types."
)


def udf(function: F) -> F:
    """Let statements call a function by its name, in any case.

    Parameters and result have annotations: int for BIGINT, float for DOUBLE, str, bool, bytes, list[X], dict[str, X], or
    `Annotated[decimal.Decimal, Decimal(precision, scale)]`. `Annotated` may contain any type of `riverrun.sql.types`.

    A NULL makes the result NULL, except for parameters annotated `X | None`, which get None. A result that its type does not
    have is an error, so NULL: an int counts as a DOUBLE, and a Decimal gets its scale.

    Args:
        function: The function. It must have no side effects, because it may run again for a record.

    Returns:
        The function itself.

    Raises:
        TopologyError: If an annotation is missing or has no type in SQL.
    """
    hints = _hints(function, function.__name__)
    parameters = _parameters(function, hints)
    nulls = frozenset(number for number, (_, hint) in enumerate(parameters) if _is_optional(hint))
    _declare("scalar", function, parameters, hints["return"], function, nulls=nulls)
    return function


def udtf(function: F) -> F:
    """Let statements call a function that makes a row for each item of the list it returns.

    Args:
        function: The function, with annotations as for `udf`; it returns list[X]. NULLs are passed as None.

    Returns:
        The function itself.

    Raises:
        TopologyError: If an annotation is missing or has no type in SQL, or the function does not return a list.
    """
    hints = _hints(function, function.__name__)
    if get_origin(hints["return"]) is not list:
        message = f"{function.__name__} is a table function and must return a list"
        raise TopologyError(message, hint="Annotate its result as list[X].")
    _declare("table", function, _parameters(function, hints), get_args(hints["return"])[0], function, nulls=True)
    return function


def udaf(kind: C) -> C:
    """Let statements call an aggregate by the name of its class, in any case.

    The class has methods, with annotations as for `udf`:

    * `initial(self)` returns the state of no rows.
    * `add(self, state, *values)` returns the state with a row added; it does not change its arguments.
    * `merge(self, first, second)` returns the combined state, for session windows.
    * `result(self, state)` returns the value; without it, the state is the value.
    * `undo(self, state, *values)` returns the state with a row subtracted; without it, tables cannot use the aggregate.

    Args:
        kind: The class; instances are created without arguments.

    Returns:
        The class itself.

    Raises:
        TopologyError: If a method or an annotation is missing, or a type is not in SQL.
    """
    name = kind.__name__
    missing = [each for each in ("initial", "add", "merge") if not hasattr(kind, each)]
    if missing:
        message = f"aggregate {name} has no {' and no '.join(missing)}"
        raise TopologyError(message, hint="An aggregate has the methods initial, add and merge.")
    made = kind()
    hints = _hints(made.add, f"{name}.add")
    (_, state), *values = _parameters(made.add, hints)
    result = getattr(made, "result", None)
    returned = state if result is None else _hints(result, f"{name}.result")["return"]
    intermediate = _type(state, name)
    undo = getattr(made, "undo", None)

    def aggregate(call: AggregateCall) -> Aggregate:
        return Aggregate(
            call.returns,
            intermediate,
            initial=in_type(made.initial, intermediate),
            add=in_type(made.add, intermediate),
            merge=in_type(made.merge, intermediate),
            result=_unchanged if result is None else in_type(result, call.returns),
            undo=undo and in_type(undo, intermediate),
        )

    _declare("aggregate", kind, values, returned, aggregate, nulls=True)
    return kind


def _unchanged(state: Any) -> Any:
    return state


def _declare(
    kind: str,
    named: Any,
    parameters: list[tuple[str, Any]],
    returned: Any,
    run: Callable[..., Any],
    *,
    nulls: bool | frozenset[int],
) -> None:
    name = named.__name__.upper()
    typed = tuple(Parameter(each, _pattern(_type(hint, name))) for each, hint in parameters)
    returns = _pattern(_type(returned, name))
    text = f"{name}({', '.join(f'{each.name} {each.pattern}' for each in typed)}) -> {returns}"
    signature = Signature(name, typed, len(typed), None, returns, text)
    description = inspect.getdoc(named) or ""
    REGISTRY.add(Overload(kind, THEME, description, signature, run, nulls=nulls, own=False))


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    hints = typing.get_type_hints(function, include_extras=True)
    missing = [each for each in [*inspect.signature(function).parameters, "return"] if each not in hints]
    if missing:
        raise TopologyError(f"{name} has no annotation for {', '.join(missing)}", hint=_HINT)
    return hints


def _parameters(function: Callable[..., Any], hints: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, hints[name]) for name in inspect.signature(function).parameters]


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in {typing.Union, python_types.UnionType} and type(None) in get_args(hint)


def _type(hint: Any, name: str) -> SqlType:
    if hint in _TYPES:
        return _TYPES[hint]
    arguments = get_args(hint)
    if _is_optional(hint) and len(arguments) == 2:  # noqa: PLR2004 - a type and None
        return _type(next(each for each in arguments if each is not type(None)), name)
    if get_origin(hint) is typing.Annotated:
        found = next((each for each in arguments[1:] if isinstance(each, SqlType)), None)
        return _type(arguments[0], name) if found is None else found
    if get_origin(hint) is list:
        return Array(_type(arguments[0], name))
    if get_origin(hint) is dict and arguments[0] is str:
        return Map(Primitive.STRING, _type(arguments[1], name))
    shown = "decimal.Decimal without precision" if hint is decimal.Decimal else hint
    raise TopologyError(f"{name}: SQL has no type for {shown}", hint=_HINT)


def _pattern(type_: SqlType) -> Pattern:
    match type_:
        case Array():
            return ArrayOf(_pattern(type_.item))
        case Map():
            return MapOf(_pattern(type_.key), _pattern(type_.value))
        case Struct():
            return StructOf(tuple((name, _pattern(field)) for name, field in type_.fields))
        case Decimal() | Primitive():
            return type_
