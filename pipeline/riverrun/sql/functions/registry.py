"""Functions by name: decorators declare them, and the types of arguments select them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from riverrun.sql.functions.signatures import (
    Argument,
    Bound,
    LambdaOf,
    LambdaType,
    Pattern,
    Signature,
    fits,
    parse_signature,
    resolved,
)
from riverrun.sql.functions.values import (
    MOST_CHARACTERS,
    MOST_ITEMS,
    UnknownFunction,
    WrongArguments,
    conversion,
    within,
)
from riverrun.sql.types import Array, Map, Primitive, SqlType
from riverrun.sql.values import checked

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[Any], object]
"""Raises ValueError for a value."""
Literals = Mapping[int, Any] | Sequence[Any]
"""Constant arguments by position; None, or no entry, for other arguments."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A function of the values of one row.

    `apply` takes and returns Python values, with None for NULL. It raises if values allow no result, such as a text that is no
    date; ksqlDB logs that and continues with NULL.
    """

    name: str
    returns: SqlType
    apply: Callable[..., Any]
    checks: tuple[Check | None, ...] = ()
    """For each argument, the function that refuses constants that never have a result; None for none."""
    is_late: bool = False
    """True if planning never computes it, even with constants only: it may be slow, random, a user's, or have large results."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of the values of many rows, folded into a state that a serde of `intermediate` can write.

    `undo` subtracts a row from the state, as tables require; None if the function cannot do that. No function changes its
    arguments: stores and caches may hold the state. With `is_state`, the state is the result; with `is_exact`, states have
    exactly the type `intermediate`. `code` writes `add` as an expression.
    """

    returns: SqlType
    intermediate: SqlType
    initial: Callable[[], Any]
    add: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    undo: Callable[..., Any] | None = None
    code: Callable[..., str] | None = None
    is_state: bool = False
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A function that makes rows; `apply` returns a list with a value for each."""

    returns: SqlType
    apply: Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """The facts about one call from which an aggregate is made."""

    types: tuple[SqlType, ...]
    returns: SqlType
    literals: Literals
    settings: Mapping[str, Any]

    def literal(self, position: int, default: Any = None) -> Any:
        if isinstance(self.literals, Mapping):
            found = self.literals.get(position)
        else:
            found = self.literals[position] if position < len(self.literals) else None
        return default if found is None else found


@dataclass(frozen=True, slots=True)
class Overload:
    """A signature with the function that implements it."""

    kind: str
    theme: str
    description: str
    signature: Signature
    run: Callable[..., Any]
    returns: Callable[[tuple[Argument, ...]], SqlType] | None = None
    nulls: frozenset[int] | bool = False
    typed: bool = False
    own: bool = True
    constants: Mapping[str, Check] = field(default_factory=dict)
    is_late: bool = False

    def returned(self, bound: Bound, given: tuple[Argument, ...]) -> SqlType | None:
        """Return the type of the result; None if the arguments do not determine it."""
        return resolved(self.signature.returns, bound) if self.returns is None else self.returns(given)

    def checks(self, count: int) -> tuple[Check | None, ...]:
        """Return the check of each of `count` arguments."""
        return tuple(self.constants.get(name) for name in self.signature.names(count))


@dataclass(frozen=True, slots=True)
class FittingOverload:
    """An overload that takes the given arguments."""

    overload: Overload
    distance: int
    bound: Bound
    given: tuple[Argument, ...]
    returns: SqlType

    def wanted(self) -> tuple[Argument, ...]:
        """Return the type that each argument must have; None if it is not determined."""
        patterns = self.overload.signature.patterns(len(self.given)) or ()
        return tuple(map(self._wanted, patterns, self.given))

    def _wanted(self, pattern: Pattern, given: Argument) -> Argument:
        if not isinstance(pattern, LambdaOf) or not isinstance(given, LambdaType):
            return resolved(pattern, self.bound)
        return LambdaType(given.parameters, resolved(pattern.returns, self.bound) or given.returns)

    def converted(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its arguments widened first."""
        pairs = zip(self.given, self.wanted(), strict=True)
        steps = [_step(given, wanted) for given, wanted in pairs]
        if not any(steps):
            return run
        return lambda *values: run(
            *(value if step is None else step(value) for value, step in zip(values, steps, strict=True))
        )


def _step(given: Argument, wanted: Argument) -> Callable[[Any], Any] | None:
    """Return the function that widens a value, or the results of a lambda."""
    if isinstance(given, LambdaType) and isinstance(wanted, LambdaType):
        convert = conversion(given.returns, wanted.returns)
        return convert and (lambda function: lambda *values: convert(function(*values)))
    return conversion(given, wanted) if isinstance(given, SqlType) and isinstance(wanted, SqlType) else None


@dataclass(slots=True)
class FunctionRegistry:
    """All known functions."""

    overloads: dict[tuple[str, str], list[Overload]] = field(default_factory=dict)

    def add(self, overload: Overload) -> None:
        """Add an overload; a user's function may be declared again, as in notebooks."""
        known = self.overloads.setdefault((overload.kind, overload.signature.name.upper()), [])
        alike = [each for each in known if _parameters(each) == _parameters(overload)]
        for each in alike:
            if each.own:
                raise WrongArguments(f"{each.signature} is a function of ksqlDB's", hint="Choose another name.")
            known.remove(each)
        known.append(overload)

    def find(self, kind: str, name: str, types: tuple[Argument, ...]) -> FittingOverload:
        """Return the overload that takes these arguments with the least widening."""
        found: list[FittingOverload] = []
        for overload in self.named(kind, name):
            patterns = overload.signature.patterns(len(types))
            fit = None if patterns is None else fits(patterns, types)
            returns = None if fit is None else overload.returned(fit[1], types)
            # With bare NULLs only, nothing determines a type such as T.
            if fit is not None and returns is not None:
                # More than any sum of steps: a signature with a fixed number of parameters is preferred.
                repeats = 1000 if overload.signature.repeated is not None else 0
                found.append(FittingOverload(overload, fit[0] + repeats, fit[1], types, returns))
        if not found:
            raise self.refusal(kind, name, types)
        return min(found, key=lambda match: match.distance)

    def named(self, kind: str, name: str) -> list[Overload]:
        overloads = self.overloads.get((kind, name.upper()))
        if overloads is None:
            names = [each for of_kind, each in self.overloads if of_kind == kind]
            nearest = difflib.get_close_matches(name.upper(), names, n=1)
            raise UnknownFunction(name, nearest[0] if nearest else None)
        return overloads

    def refusal(self, kind: str, name: str, types: tuple[Argument, ...]) -> WrongArguments:
        """Return the error for arguments that no overload takes."""
        given = ", ".join("NULL" if type_ is None else str(type_) for type_ in types)
        known = "\n".join(f"  {overload.signature}" for overload in self.named(kind, name))
        return WrongArguments(f"Function '{name}' does not accept parameters ({given}). It takes:\n{known}")

    def has(self, kind: str, name: str) -> bool:
        return (kind, name.upper()) in self.overloads


def _parameters(overload: Overload) -> tuple[str, ...]:
    return tuple(str(parameter.pattern) for parameter in overload.signature.parameters)


REGISTRY = FunctionRegistry()
"""Functions of ksqlDB, and those of users whose modules are imported."""


def scalar(signature: str, *, theme: str, description: str = "", **how: Any) -> Callable[[F], F]:
    """Declare a function of the values of one row; `how` has further fields of its `Overload`."""
    return _declare("scalar", signature, theme, description, **how)


def aggregate(signature: str, *, theme: str = "Aggregates", description: str = "") -> Callable[[F], F]:
    """Declare a factory of aggregates: it takes an `AggregateCall` and returns an `Aggregate`."""
    return _declare("aggregate", signature, theme, description, nulls=True)


def table_function(signature: str, *, theme: str = "Table functions", description: str = "") -> Callable[[F], F]:
    """Declare a function that returns a list, with a row for each item."""
    return _declare("table", signature, theme, description, nulls=True)


def _declare(kind: str, signature: str, theme: str, description: str, **how: Any) -> Callable[[F], F]:
    def declared(run: F) -> F:
        said = " ".join((description or run.__doc__ or "").split())
        REGISTRY.add(Overload(kind, theme, said, parse_signature(signature), run, **how))
        return run

    return declared


def is_aggregate(name: str) -> bool:
    return REGISTRY.has("aggregate", name)


def is_table_function(name: str) -> bool:
    return REGISTRY.has("table", name)


def find_scalar(name: str, argument_types: Sequence[Argument]) -> Scalar:
    """Return the function that takes arguments of these types.

    >>> from riverrun.sql.types import Primitive
    >>> find_scalar("ucase", [Primitive.STRING]).apply("abc")
    'ABC'
    """
    match = REGISTRY.find("scalar", name, tuple(argument_types))
    returns = match.returns
    overload = match.overload
    made = overload.run(*argument_types) if overload.typed else overload.run
    run = match.converted(_guarded(made, nulls=overload.nulls, most=_most(returns)))
    if not overload.own:
        run = in_type(run, returns)
    checks = overload.checks(len(argument_types))
    return Scalar(overload.signature.name, returns, run, checks, overload.is_late or not overload.own)


def in_type(run: Callable[..., Any], returns: SqlType) -> Callable[..., Any]:
    """Return a user's function with results that have their type; it raises for others."""
    fit = checked(returns)
    return lambda *values: fit(run(*values))


def _most(returns: SqlType) -> int | None:
    """Return the greatest size of results of a type; None if they have none."""
    if isinstance(returns, Array | Map):
        return MOST_ITEMS
    return MOST_CHARACTERS if returns in {Primitive.STRING, Primitive.BYTES} else None


def _guarded(run: Callable[..., Any], *, nulls: frozenset[int] | bool, most: int | None = None) -> Callable[..., Any]:
    """Wrap a function: its results have limits, and a NULL that it does not accept makes the result NULL."""
    # Calls are made for each row, so each kind has a wrapper with only the tests that it needs.
    if nulls is False:
        if most is None:
            return lambda *values: None if None in values else run(*values)

        def limited(*values: Any) -> Any:
            found = None if None in values else run(*values)
            return found if found is None or len(found) <= most else within(found, most)

        return limited

    def guarded(*values: Any) -> Any:
        if nulls is not True and any(value is None and at not in nulls for at, value in enumerate(values)):
            return None
        found = run(*values)
        return found if found is None or most is None or len(found) <= most else within(found, most)

    return run if nulls is True and most is None else guarded


def lambda_parameters(name: str, other_types: Sequence[Argument]) -> tuple[tuple[SqlType, ...], ...]:
    """Return the types of each lambda's parameters.

    >>> from riverrun.sql.types import Array, Primitive
    >>> lambda_parameters("FILTER", [Array(Primitive.BIGINT)])
    ((<Primitive.BIGINT: 'BIGINT'>,),)
    """
    given = tuple(other_types)
    for overload in REGISTRY.named("scalar", name):
        patterns = [parameter.pattern for parameter in overload.signature.parameters]
        lambdas = [pattern for pattern in patterns if isinstance(pattern, LambdaOf)]
        others = tuple(pattern for pattern in patterns if not isinstance(pattern, LambdaOf))
        fit = fits(others, given) if lambdas and len(others) == len(given) else None
        if fit is not None:
            types = [[resolved(part, fit[1]) for part in each.parameters] for each in lambdas]
            return tuple(tuple(type_ for type_ in each if type_ is not None) for each in types)
    raise REGISTRY.refusal("scalar", name, given)


def find_aggregate(
    name: str,
    argument_types: Sequence[Argument],
    literals: Literals = (),
    settings: Mapping[str, Any] | None = None,
) -> Aggregate:
    match = REGISTRY.find("aggregate", name, tuple(argument_types))
    returns = match.returns
    wanted = tuple(
        given if asked is None else asked for given, asked in zip(argument_types, match.wanted(), strict=True)
    )
    known = tuple(type_ if isinstance(type_, SqlType) else Primitive.STRING for type_ in wanted)
    made: Aggregate = match.overload.run(AggregateCall(known, returns, literals, settings or {}))
    steps = [_step(given, type_) for given, type_ in zip(argument_types, wanted, strict=True)]
    made = replace(made, is_exact=match.overload.own)
    if not any(steps):
        return made
    # `code` would add the values as they are: without it, tasks call `add`, which widens them.
    undo = None if made.undo is None else _widening_values(made.undo, steps)
    return replace(made, add=_widening_values(made.add, steps), undo=undo, code=None)


def _widening_values(run: Callable[..., Any], steps: list[Callable[[Any], Any] | None]) -> Callable[..., Any]:
    """Return a function of a state and values that widens the values first."""
    return lambda state, *values: run(
        state, *(value if step is None else step(value) for value, step in zip(values, steps, strict=False))
    )


def find_table_function(name: str, argument_types: Sequence[Argument]) -> TableFunction:
    match = REGISTRY.find("table", name, tuple(argument_types))
    returns = match.returns
    run = match.converted(match.overload.run)
    return TableFunction(returns, run if match.overload.own else in_type(run, Array(returns)))
