"""Whether values are in their declared types, decided without the code that makes them so; and values at the types' edges."""

from __future__ import annotations

import decimal
import math
from functools import cache
from typing import Any

from hypothesis import strategies as st

from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct

Number = decimal.Decimal
WHOLE = {
    Primitive.INTEGER: (-(2**31), 2**31 - 1),
    Primitive.BIGINT: (-(2**63), 2**63 - 1),
    Primitive.DATE: (-(2**31), 2**31 - 1),
    Primitive.TIME: (0, 86_399_999),
    Primitive.TIMESTAMP: (-(2**63), 2**63 - 1),
}
CLASSES: dict[SqlType, type] = {
    Primitive.BOOLEAN: bool,
    Primitive.DOUBLE: float,
    Primitive.STRING: str,
    Primitive.BYTES: bytes,
}
PRIMITIVES: list[SqlType] = [*Primitive, Decimal(4, 2), Decimal(1, 0), Decimal(3, 3), Decimal(64, 30)]


def is_of(value: Any, type_: SqlType) -> bool:
    """Whether a value is NULL or exactly one of its type's."""
    match type_:
        case _ if value is None:
            return True
        case Array():
            return type(value) is list and all(is_of(each, type_.item) for each in value)
        case Map():
            return type(value) is dict and all(is_of(k, type_.key) and is_of(v, type_.value) for k, v in value.items())
        case Struct():
            fields = dict(type_.fields)
            return (
                type(value) is dict and list(value) == list(fields) and all(is_of(value[n], fields[n]) for n in value)
            )
        case Decimal():
            if type(value) is not Number or not value.is_finite():
                return False
            is_zero_without_sign = bool(value) or not value.is_signed()
            fits = len(value.as_tuple().digits) <= type_.precision or not value
            return fits and value.as_tuple().exponent == -type_.scale and is_zero_without_sign
        case _ if type_ in WHOLE:
            low, high = WHOLE[type_]
            return type(value) is int and low <= value <= high
    if type(value) is str:
        value.encode()  # whole characters only
    return type(value) is CLASSES[type_]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, where NaN equals NaN."""
    return repr(one) == repr(other)


@cache  # a strategy is examined when it is first drawn from, for longer than a draw takes
def edges(type_: SqlType) -> st.SearchStrategy[Any]:
    """Values of a type, many at its edges, and NULL."""
    return st.none() | values(type_)


@cache
def values(type_: SqlType) -> st.SearchStrategy[Any]:
    match type_:
        case Array():
            return st.lists(edges(type_.item), max_size=4)
        case Map():
            return st.dictionaries(values(type_.key), edges(type_.value), max_size=3)
        case Struct():
            names = [name for name, _ in type_.fields]
            parts = st.tuples(*(edges(each) for _, each in type_.fields))
            return parts.map(lambda found: dict(zip(names, found, strict=True)))
        case Decimal():
            most = 10**type_.precision - 1
            digits = st.sampled_from([0, 1, -1, 5, most, -most, most // 2, 995 % (most + 1)]) | st.integers(-most, most)
            return digits.map(lambda each: decimal_of(each, type_.scale))
        case _ if type_ in WHOLE:
            low, high = WHOLE[type_]
            near = {low, low + 1, high, high - 1, *(each for each in (-1, 0, 1, 7, 100, 10**12) if low <= each <= high)}
            return st.sampled_from(sorted(near)) | st.integers(low, high)
    return {
        Primitive.BOOLEAN: st.booleans(),
        Primitive.DOUBLE: st.sampled_from([0.0, -0.0, 0.5, -2.5, 4e19, -4e19, 1e308, -1e308, 5e-324, 2.0**31, 2.0**63])
        | st.sampled_from([math.nan, math.inf, -math.inf, 90.0, 180.0, 1.0, -1.0])
        | st.floats(),
        Primitive.BYTES: st.binary(max_size=9),
    }.get(type_, TEXTS)


EDGE_TEXTS = [
    *(
        "",
        "a",
        "é𝄞",
        "1",
        "-2147483649",
        "DAYS",
        "MONTHS",
        "yyyy-MM-dd",
        "HH:mm",
        "UTC",
        "+19:99",
        "hex",
        "utf8",
        "base64",
    ),
    *(
        "$",
        "$.a[0]",
        "[NaN]",
        "[1e400, -0.0]",
        '{"a": [1.50, "\\ud800"]}',
        "2024-02-29",
        "http://h:99/p?q=%41#f",
        "AAE=",
    ),
    *(
        "AA=",
        "(",
        "1e999999999",
        "1" + "0" * 5000,
        "[" * 3000,
        "23:59",
        "DESC",
        "BIG_ENDIAN",
        "0x1F",
        r"\u004b",
        r"\ud800",
    ),
]
TEXTS: st.SearchStrategy[str] = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    EDGE_TEXTS
)


def decimal_of(digits: int, scale: int) -> decimal.Decimal:
    return Number(f"{digits}E-{scale}")
