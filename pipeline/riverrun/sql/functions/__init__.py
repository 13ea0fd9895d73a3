"""ksqlDB's functions, and those of users, found by name and by the types of their arguments."""

from __future__ import annotations

from riverrun.sql.functions import (
    aggregates,
    arrays_and_maps,
    encodings,
    gathered,
    json_texts,
    numbers,
    patterns,
    strings,
    times,
)
from riverrun.sql.functions.registry import (
    Aggregate,
    Scalar,
    TableFunction,
    find_aggregate,
    find_scalar,
    find_table_function,
    is_aggregate,
    is_table_function,
    lambda_parameters,
)
from riverrun.sql.functions.signatures import LambdaType
from riverrun.sql.functions.user_functions import udaf, udf, udtf
from riverrun.sql.functions.values import UnknownFunction, WrongArguments

DECLARED = (aggregates, arrays_and_maps, encodings, gathered, json_texts, numbers, patterns, strings, times)
"""Modules that declare functions when they are imported."""

__all__ = [
    "Aggregate",
    "LambdaType",
    "Scalar",
    "TableFunction",
    "UnknownFunction",
    "WrongArguments",
    "find_aggregate",
    "find_scalar",
    "find_table_function",
    "is_aggregate",
    "is_table_function",
    "lambda_parameters",
    "udaf",
    "udf",
    "udtf",
]
