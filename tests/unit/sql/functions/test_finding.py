"""Functions are found by name and types, and widen what they are given."""

from __future__ import annotations

from decimal import Decimal as Exact
from operator import add, gt
from typing import Any

import pytest

from riverrun.errors import StreamsError
from riverrun.sql.functions import (
    LambdaType,
    UnknownFunction,
    WrongArguments,
    find_aggregate,
    find_scalar,
    find_table_function,
    lambda_parameters,
)
from riverrun.sql.types import Array, Decimal, Map, Primitive
from tests.unit.sql.functions.calls import TYPES, types

INT, BIGINT, STRING, BOOLEAN = Primitive.INTEGER, Primitive.BIGINT, Primitive.STRING, Primitive.BOOLEAN


@pytest.mark.parametrize(
    ("name", "argument_types", "returns"),
    [
        ("ABS", "INT", "INTEGER"),
        ("ABS", "DECIMAL", "DECIMAL(6, 2)"),
        ("ROUND", "DECIMAL", "DECIMAL(4, 0)"),
        ("ROUND", "DECIMAL INT", "DECIMAL(6, 2)"),
        ("ROUND", "DOUBLE", "BIGINT"),
        ("COALESCE", "INT BIGINT", "BIGINT"),
        ("COALESCE", "NULL INT", "INTEGER"),
        ("COALESCE", "INT DECIMAL", "DECIMAL(12, 2)"),
        ("IFNULL", "DECIMAL DOUBLE", "DOUBLE"),
        ("SPLIT", "BYTES BYTES", "ARRAY<BYTES>"),
        ("GENERATE_SERIES", "INT BIGINT", "ARRAY<BIGINT>"),
        ("ENTRIES", "MAP BOOLEAN", "ARRAY<STRUCT<K STRING, V INTEGER>>"),
        ("ARRAY_CONCAT", "INTS DOUBLES", "ARRAY<DOUBLE>"),
        ("AS_MAP", "STRINGS INTS", "MAP<STRING, INTEGER>"),
    ],
)
def test_arguments_decide_the_type_of_the_result(name: str, argument_types: str, returns: str) -> None:
    assert str(find_scalar(name, types(argument_types)).returns) == returns


def test_numbers_are_widened_to_the_type_they_share() -> None:
    assert repr(find_scalar("COALESCE", types("NULL INT DOUBLE")).apply(None, 1, None)) == "1.0"
    assert find_scalar("IFNULL", types("DECIMAL INT")).apply(None, 1) == Exact("1.00")
    assert repr(find_scalar("ARRAY_CONCAT", types("INTS DOUBLES")).apply([1], [2.0])) == "[1.0, 2.0]"


def test_a_number_is_never_narrowed() -> None:
    with pytest.raises(WrongArguments):
        find_scalar("SUBSTRING", types("STRING BIGINT"))


def test_names_that_are_unknown_bring_the_nearest() -> None:
    with pytest.raises(
        UnknownFunction, match=r"functions with the name 'SUBSTRNG'\nHint: Did you mean SUBSTRING\?"
    ) as caught:
        find_scalar("SUBSTRNG", [STRING])
    assert (caught.value.name, caught.value.nearest) == ("SUBSTRNG", "SUBSTRING")
    with pytest.raises(UnknownFunction) as caught:
        find_aggregate("QQQQQQ", [STRING])
    assert caught.value.nearest is None
    with pytest.raises(UnknownFunction, match="EXPLODE"):
        find_table_function("EXPLODES", [])


def test_wrong_arguments_bring_the_overloads() -> None:
    with pytest.raises(WrongArguments) as caught:
        find_scalar("len", [INT])
    assert isinstance(caught.value, StreamsError)
    assert str(caught.value).splitlines() == [
        "Function 'len' does not accept parameters (INTEGER). It takes:",
        "  LEN(data BYTES) -> INTEGER",
        "  LEN(text STRING) -> INTEGER",
    ]


@pytest.mark.parametrize("name", ["COALESCE", "EXPLODE"])
def test_nulls_alone_have_no_type(name: str) -> None:
    find: Any = find_table_function if name == "EXPLODE" else find_scalar
    with pytest.raises(WrongArguments):
        find(name, [None])


@pytest.mark.parametrize(
    ("name", "others", "expected"),
    [
        ("TRANSFORM", [TYPES["INTS"]], ((INT,),)),
        ("TRANSFORM", [TYPES["MAP"]], ((STRING, INT), (STRING, INT))),
        ("FILTER", [TYPES["MAP"]], ((STRING, INT),)),
        ("REDUCE", [TYPES["INTS"], BIGINT], ((BIGINT, INT),)),
        ("REDUCE", [TYPES["MAP"], STRING], ((STRING, STRING, INT),)),
    ],
)
def test_lambdas_learn_the_types_of_their_parameters(name: str, others: list[Any], expected: Any) -> None:
    assert lambda_parameters(name, others) == expected


def test_functions_without_lambdas_have_no_parameters_of_lambdas() -> None:
    with pytest.raises(WrongArguments):
        lambda_parameters("LEN", [STRING])


@pytest.mark.parametrize(
    ("name", "given", "returns", "values", "expected"),
    [
        ("TRANSFORM", [TYPES["INTS"], LambdaType((INT,), STRING)], "ARRAY<STRING>", ([1, 2], str), ["1", "2"]),
        (
            "TRANSFORM",
            [TYPES["MAP"], LambdaType((STRING, INT), STRING), LambdaType((STRING, INT), BIGINT)],
            "MAP<STRING, BIGINT>",
            ({"a": 1}, lambda key, _: key * 2, lambda _, value: value + 1),
            {"aa": 2},
        ),
        ("FILTER", [TYPES["INTS"], LambdaType((INT,), BOOLEAN)], "ARRAY<INTEGER>", ([1, 2], lambda x: gt(x, 1)), [2]),
        (
            "FILTER",
            [TYPES["MAP"], LambdaType((STRING, INT), BOOLEAN)],
            "MAP<STRING, INTEGER>",
            ({"a": 1, "b": 2}, lambda _, value: value > 1),
            {"b": 2},
        ),
        ("REDUCE", [TYPES["INTS"], INT, LambdaType((INT, INT), INT)], "INTEGER", ([1, 2], 3, add), 6),
        ("REDUCE", [TYPES["INTS"], INT, LambdaType((INT, INT), INT)], "INTEGER", (None, 3, add), 3),
        ("REDUCE", [TYPES["INTS"], INT, LambdaType((INT, INT), INT)], "INTEGER", ([1], None, add), None),
        (
            "REDUCE",
            [TYPES["MAP"], INT, LambdaType((INT, STRING, INT), INT)],
            "INTEGER",
            ({"a": 1, "b": 2}, 0, lambda state, _, value: state + value),
            3,
        ),
    ],
)
def test_lambdas_are_applied(name: str, given: list[Any], returns: str, values: tuple[Any, ...], expected: Any) -> None:
    function = find_scalar(name, given)
    assert (str(function.returns), function.apply(*values)) == (returns, expected)


def test_a_lambda_must_have_as_many_parameters_as_are_passed() -> None:
    with pytest.raises(WrongArguments):
        find_scalar("FILTER", [Array(INT), LambdaType((INT, INT), BOOLEAN)])
    with pytest.raises(WrongArguments):
        find_scalar("FILTER", [Map(STRING, INT), LambdaType((STRING, INT), STRING)])


def test_decimals_of_aggregates_keep_their_type() -> None:
    assert find_aggregate("SUM", [Decimal(6, 2)]).returns == Decimal(6, 2)
