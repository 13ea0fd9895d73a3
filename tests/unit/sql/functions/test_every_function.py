"""Every function, with values at the edges of its arguments' types: its result has its declared type, or it fails."""

from __future__ import annotations

import decimal
import re
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.sql import udaf, udf, udtf
from riverrun.sql.formats import row_serde
from riverrun.sql.functions import LambdaType, find_aggregate, find_scalar, find_table_function
from riverrun.sql.functions.registry import REGISTRY
from riverrun.sql.functions.signatures import LambdaOf, Variable, resolved
from riverrun.sql.types import Array, Decimal, Primitive, SqlType, Struct
from tests.unit.sql.declared import edges, is_of, same, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.sql.functions.registry import Overload
    from riverrun.sql.functions.signatures import Pattern, Signature

NUMBERS: list[SqlType] = [Primitive.INTEGER, Primitive.BIGINT, Primitive.DOUBLE, Decimal(4, 2)]
CHOICES: dict[str, list[SqlType]] = {
    "N": NUMBERS,
    "D": [Decimal(4, 2), Decimal(3, 3), Decimal(64, 30), Decimal(19, 0)],
    "C": [*Primitive, *NUMBERS],
    "K": [*Primitive, *NUMBERS],
}
ANY: list[SqlType] = [
    *Primitive,
    Decimal(4, 2),
    Array(Primitive.DOUBLE),
    Struct((("A", Primitive.INTEGER), ("B", Decimal(4, 2)))),
]
SMALL = {"length", "end", "start", "step"}
"""Parameters that decide how large a result is."""
OWN = {
    kind: [each for (of, _), found in REGISTRY.overloads.items() if of == kind for each in found if each.own]
    for kind in ("scalar", "aggregate", "table")
}


def bindings(draw: Any, signature: Signature) -> dict[str, SqlType]:
    """Types for the variables of a signature, which may differ where they stand."""
    letters = sorted(set(re.findall(r"\b[NDCTUKVSX]\b", str(signature))))
    return {letter: draw(st.sampled_from(CHOICES.get(letter, ANY))) for letter in letters}


def argument(draw: Any, pattern: Pattern, bound: dict[str, SqlType], name: str) -> tuple[Any, st.SearchStrategy[Any]]:
    """The type of an argument, and its values."""
    if isinstance(pattern, LambdaOf):
        parameters = [resolved(each, bound) for each in pattern.parameters]
        returns = resolved(pattern.returns, bound)
        assert returns is not None
        made = edges(returns).map(lambda value: lambda *_: value)
        return LambdaType(tuple(each for each in parameters if each is not None), returns), made
    if isinstance(pattern, Variable) and pattern.name in {"N", "T", "C", "X"} and draw(st.integers(0, 3)) == 0:
        choices = NUMBERS if bound[pattern.name] in NUMBERS else CHOICES.get(pattern.name, [bound[pattern.name]])
        pattern = draw(st.sampled_from(choices))  # numbers of different types are widened
    type_ = resolved(pattern, bound)
    assert type_ is not None
    if name in SMALL and type_ in {Primitive.INTEGER, Primitive.BIGINT}:
        return type_, st.sampled_from([None, -2, -1, 0, 1, 3, 40])
    return type_, edges(type_)


def arguments(draw: Any, overload: Overload) -> tuple[list[Any], list[st.SearchStrategy[Any]]]:
    signature, bound = overload.signature, bindings(draw, overload.signature)
    most = len(signature.parameters) + (2 if signature.repeated is not None else 0)
    count = draw(st.integers(signature.required, most))
    patterns, names = signature.patterns(count), signature.names(count)
    assert patterns is not None
    found = [argument(draw, pattern, bound, name) for pattern, name in zip(patterns, names, strict=True)]
    return [type_ for type_, _ in found], [each for _, each in found]


@pytest.mark.parametrize("overload", OWN["scalar"], ids=lambda each: str(each.signature)[:60])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_scalar_returns_its_type_or_fails(overload: Overload, data: Any) -> None:
    types, strategies = arguments(data.draw, overload)
    try:
        function = find_scalar(overload.signature.name, types)
    except Exception:  # noqa: BLE001 - these types do not go together
        return
    for _ in range(3):
        given_values = [data.draw(each) for each in strategies]
        try:
            found = function.apply(*given_values)
        except (MemoryError, RecursionError):
            raise
        except Exception:  # noqa: BLE001, S112 - a NULL, as of every function that fails
            continue
        assert is_of(found, function.returns), (types, given_values, function.returns, found)


@pytest.mark.parametrize("overload", OWN["table"], ids=lambda each: str(each.signature))
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_table_function_returns_rows_of_its_type(overload: Overload, data: Any) -> None:
    types, strategies = arguments(data.draw, overload)
    function = find_table_function(overload.signature.name, types)
    rows = function.apply(*[data.draw(each) for each in strategies])
    assert all(is_of(each, function.returns) for each in rows)


@pytest.mark.parametrize("overload", OWN["aggregate"], ids=lambda each: str(each.signature))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_aggregate_returns_its_type_or_fails(overload: Overload, data: Any) -> None:
    types, strategies = arguments(data.draw, overload)
    names = overload.signature.names(len(types))
    constants = {"k": 2, "limit": 3, "ignore_nulls": data.draw(st.booleans())}
    literals = {at: constants[name] for at, name in enumerate(names) if name in constants}
    try:
        aggregate = find_aggregate(overload.signature.name, types, literals)
    except Exception:  # noqa: BLE001 - these types do not go together
        return
    serde = row_serde([aggregate.intermediate])

    def checked(state: Any) -> Any:
        (again,) = serde.deserialize(serde.serialize((state,)))
        assert same(again, state)
        assert is_of(aggregate.result(state), aggregate.returns), (types, state, aggregate.result(state))
        return again

    states = [aggregate.initial(), aggregate.initial()]
    rows = [
        tuple(literals.get(at) if at in literals else data.draw(each) for at, each in enumerate(strategies))
        for _ in range(data.draw(st.integers(0, 5)))
    ]
    try:
        for number, row in enumerate(rows):
            states[number % 2] = checked(aggregate.add(states[number % 2], *row))
        merged = checked(aggregate.merge(*states))
        for row in rows if aggregate.undo is not None else ():
            assert aggregate.undo is not None
            merged = checked(aggregate.undo(merged, *row))
    except OverflowError:
        assert "SUM" in overload.signature.name  # a sum that is too large


# Functions of users


@pytest.fixture
def own_registry() -> Iterator[None]:
    before = {key: list(overloads) for key, overloads in REGISTRY.overloads.items()}
    yield
    REGISTRY.overloads.clear()
    REGISTRY.overloads.update(before)


Money = Annotated[decimal.Decimal, Decimal(4, 2)]
Day = Annotated[int, Primitive.DATE]
Hour = Annotated[int, Primitive.TIME]
Pair = Annotated[dict[str, Any], Struct((("A", Primitive.INTEGER), ("B", Primitive.STRING)))]
HINTS: list[Any] = [bool, int, float, str, bytes, Money, Day, Hour, Pair, list[float], dict[str, int], list[Money]]
RETURNED: list[Any] = [
    *(None, True, 1, 2**31, 2**63, -(2**63) - 1, 1.5, float("nan"), "text", "\ud800", b"x", bytearray(b"x"), object()),
    *(
        decimal.Decimal("1.5"),
        decimal.Decimal("1.005"),
        decimal.Decimal("NaN"),
        decimal.Decimal(100),
        [1],
        (1.5, None),
        [[]],
        {},
    ),
    *(
        {"a": 1},
        {"a": 2**63},
        {1: 1},
        {"A": 1},
        {"A": 2**31, "B": "x"},
        {"A": 1, "B": None, "C": 2},
        [decimal.Decimal(1)],
        -1,
    ),
]


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_functions_of_users_return_their_types_or_fail(hint: Any) -> None:
    def given_back(number: int) -> Any:
        return RETURNED[number]

    given_back.__annotations__["return"] = hint
    udf(given_back)

    def rows_of(number: int) -> Any:
        return [RETURNED[number], None]

    rows_of.__annotations__["return"] = list[hint]
    udtf(rows_of)

    class Kept:
        def initial(self) -> Any:
            return None

        def add(self, state: Any, number: int) -> Any:  # noqa: ARG002 - a state there must be
            return RETURNED[number]

        def merge(self, first: Any, second: Any) -> Any:
            return first or second

    Kept.add.__annotations__ |= {"state": hint, "return": hint}
    udaf(Kept)
    scalar, table = find_scalar("given_back", [Primitive.BIGINT]), find_table_function("rows_of", [Primitive.BIGINT])
    aggregate = find_aggregate("kept", [Primitive.BIGINT])
    passed = 0
    for number, value in enumerate(RETURNED):
        outcomes = []
        runs: list[Callable[[int], Any]] = [
            scalar.apply,
            lambda n: table.apply(n)[0],
            lambda n: aggregate.add(aggregate.initial(), n),
        ]
        for run in runs:
            try:
                outcomes.append(run(number))
            except (ValueError, TypeError, ArithmeticError):
                outcomes.append(ValueError)
        assert same(outcomes[0], outcomes[1])
        assert same(outcomes[0], outcomes[2])
        if outcomes[0] is not ValueError:
            assert is_of(outcomes[0], scalar.returns), (value, outcomes[0])
            passed += 1
    assert 1 < passed < len(RETURNED)


@pytest.mark.parametrize("type_", [*Primitive, Decimal(4, 2)], ids=str)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_lambdas_return_the_types_of_their_calls(type_: SqlType, data: Any) -> None:
    given_type = data.draw(st.sampled_from([each for each in NUMBERS if type_ in NUMBERS] or [type_]))
    made = LambdaType((type_, given_type), given_type)
    try:
        function = find_scalar("REDUCE", [Array(given_type), type_, made])
    except Exception:  # noqa: BLE001 - a lambda narrower than its state
        return
    found = function.apply(
        data.draw(st.lists(values(given_type), max_size=2)), data.draw(values(type_)), lambda _state, each: each
    )
    assert is_of(found, function.returns)
