"""ksqlDB's functions, and those of users, found by name and by the types of their arguments."""

from __future__ import annotations

from riverrun.sql.functions import (
    arrays_and_maps,
    encodings,
    geo,
    json_texts,
    lambdas,
    masks,
    nulls,
    numbers,
    patterns,
    strings,
    tables,
    times,
    urls,
)
from riverrun.sql.functions.aggregates import by_offset, distinct_counts, extremes, gathered, statistics, sums
from riverrun.sql.functions.failures import UnknownFunction, WrongArguments
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

DECLARED = (
    arrays_and_maps,
    by_offset,
    distinct_counts,
    encodings,
    extremes,
    gathered,
    geo,
    json_texts,
    lambdas,
    masks,
    nulls,
    numbers,
    patterns,
    statistics,
    strings,
    sums,
    tables,
    times,
    urls,
)
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
