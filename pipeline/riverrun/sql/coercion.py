"""Common types of several values: in arithmetic, comparisons, arrays, branches and constructors."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.sql import operators
from riverrun.sql.types import MOST_DIGITS, Array, Decimal, Map, Primitive, SqlType, Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMES = frozenset({Primitive.DATE, Primitive.TIME, Primitive.TIMESTAMP})
_ORDER = (Primitive.INTEGER, Primitive.BIGINT, None, Primitive.DOUBLE)
_DIGITS: dict[SqlType, Decimal] = {Primitive.INTEGER: Decimal(10, 0), Primitive.BIGINT: Decimal(19, 0)}
# Ranks in `_ORDER`; None stands for every DECIMAL, as each has a type of its own.
_DECIMAL_RANK, _DOUBLE_RANK = 2, 3


class IncompatibleTypes(Exception):  # noqa: N818 - named after what it reports
    """Values that have no type in common."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One of several values: its type, None for NULL, and its text if it is a constant."""

    type: SqlType | None
    constant: str | None = None


def common_type(operands: Sequence[Operand]) -> SqlType | None:
    """Return the common type of several values; None if all are NULL."""
    # In order, as in ksqlDB's `CoercionUtil`: the first value that is not NULL decides. Next to a number, a constant text
    # becomes a number; next to a text, a constant becomes a text.
    found: SqlType | None = None
    for each in operands:
        found = _both(found, each)
    return found


def _both(known: SqlType | None, operand: Operand) -> SqlType | None:
    type_ = operand.type
    if known is None or type_ is None:
        return known or type_
    if operand.constant is not None and known is Primitive.STRING:
        return known
    if operand.constant is not None and type_ is Primitive.STRING:
        if rank(known) is not None:
            return _numbers(known, _number_type(operand.constant, known))
        constant_of(operand, known)
        return known
    return united(known, type_)


def united(one: SqlType, other: SqlType) -> SqlType:
    """Return the type that values of both types can become; for structs, the one with all fields."""
    if one == other:
        return one
    if rank(one) is not None and rank(other) is not None:
        return _numbers(one, other)
    if isinstance(one, Array) and isinstance(other, Array):
        return Array(united(one.item, other.item))
    if isinstance(one, Map) and isinstance(other, Map):
        return Map(united(one.key, other.key), united(one.value, other.value))
    if isinstance(one, Struct) and isinstance(other, Struct):
        mine, theirs = dict(one.fields), dict(other.fields)
        shared = {name: united(mine[name], theirs[name]) for name in mine if name in theirs}
        return Struct(tuple((mine | theirs | shared).items()))
    raise IncompatibleTypes(f"{one} and {other}")


def is_widening(given: SqlType, wanted: SqlType) -> bool:
    """Return whether values are converted implicitly: numbers to a wider type of numbers, whatever its digits."""
    one, other = rank(given), rank(wanted)
    return given == wanted or (one is not None and other is not None and one <= other)


def constant_of(operand: Operand, target: SqlType) -> Any:
    text = operand.constant or ""
    try:
        if target is Primitive.STRING:
            return text
        if target is Primitive.BOOLEAN:
            return operators.parsed_boolean(text)
        convert = operators.cast(Primitive.STRING, target)
        # Other constants than texts only become numbers: 1 is not parsed as a date.
        if operand.type not in {Primitive.STRING, None} and rank(target) is None:
            convert = None
        if convert is not None:
            return convert(text)
    except (ValueError, ArithmeticError):
        pass
    raise IncompatibleTypes(f'invalid input syntax for type {target}: "{text}"')


def _number_type(text: str, known: SqlType) -> SqlType:
    try:
        value = decimal.Decimal(text.strip())
        digits = value.as_tuple()
        exponent = int(digits.exponent)
    except (ValueError, ArithmeticError):
        raise IncompatibleTypes(f'invalid input syntax for type {known}: "{text}"') from None
    # The bounds are those of ksqlDB's `CoercionUtil.getStringNumericType`.
    if not set(text) & set(".eE") and abs(value) < 1 << 63:
        return Primitive.INTEGER if abs(value) < (1 << 31) - 1 else Primitive.BIGINT
    scale = max(0, -exponent)
    return Decimal(max(len(digits.digits) + max(exponent, 0), scale), scale)


def _numbers(one: SqlType, other: SqlType) -> SqlType:
    found = widest([one, other])
    assert found is not None  # noqa: S101 - both are numbers
    return found


def rank(of: SqlType | None) -> int | None:
    """Return the rank of a type among the types of numbers; None for other types."""
    if isinstance(of, Decimal):
        return _DECIMAL_RANK
    return None if of is None or of not in _ORDER else _ORDER.index(of)


def widest(types: Sequence[SqlType]) -> SqlType | None:
    """Return the type that holds all values; None if types differ and are not all numbers."""
    if len(set(types)) == 1:
        return types[0]
    ranks = [rank(each) for each in types]
    if not types or None in ranks:
        return None
    decimals = [each if isinstance(each, Decimal) else _DIGITS.get(each) for each in types]
    if max(rank for rank in ranks if rank is not None) != _DECIMAL_RANK:
        return max(types, key=lambda each: rank(each) or 0)
    whole = max(each.precision - each.scale for each in decimals if each is not None)
    scale = max(each.scale for each in decimals if each is not None)
    return Decimal(min(whole + scale, MOST_DIGITS), scale)


def arithmetic_type(sign: str, left: SqlType | None, right: SqlType | None) -> SqlType | None:
    """Return the type of a result; None if an operand is not a number."""
    one, two = rank(left), rank(right)
    if one is None or two is None or left is None or right is None:
        return None
    if _DECIMAL_RANK not in {one, two} or _DOUBLE_RANK in {one, two}:
        return left if one >= two else right
    first = left if isinstance(left, Decimal) else _DIGITS[left]
    second = right if isinstance(right, Decimal) else _DIGITS[right]
    return _decimal_type(sign, first, second)


def _decimal_type(sign: str, left: Decimal, right: Decimal) -> Decimal:
    scale = max(left.scale, right.scale)
    if sign == "*":
        precision, scale = left.precision + right.precision + 1, left.scale + right.scale
    elif sign == "/":
        scale = max(6, left.scale + right.precision + 1)
        precision = left.precision - left.scale + right.scale + scale
    elif sign == "%":
        precision = min(left.precision - left.scale, right.precision - right.scale) + scale
    else:
        precision = max(left.precision - left.scale, right.precision - right.scale) + scale + 1
    return Decimal(min(precision, MOST_DIGITS), min(scale, MOST_DIGITS))


def comparable(left: SqlType | None, right: SqlType | None, sign: str) -> bool:
    """Return whether an operator can compare values of two types; NULL cannot be compared."""
    if left is None or right is None:
        return False
    if rank(left) is not None and rank(right) is not None:
        return True
    ordered = isinstance(left, Primitive) and left is not Primitive.BOOLEAN
    return left == right and (ordered or sign in {"==", "!="})
