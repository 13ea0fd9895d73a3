"""Functions of numbers, and of places on the Earth."""

from __future__ import annotations

import decimal
import math
import random
from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.registry import scalar
from riverrun.sql.functions.values import DIGITS
from riverrun.sql.types import Decimal, Primitive, SqlType
from riverrun.sql.values import in_range, rounded_to, saturated

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.sql.functions.signatures import Argument

THEME = "Numbers"
_INTEGERS = ("INTEGER", "BIGINT")
# No number has so many digits before the point, so rounding to them is 0; quantizing would raise.
_MOST_PLACES = 400


def _overloads(name: str, parameters: str, types: tuple[str, ...]) -> list[str]:
    return [f"{name}({parameters.replace('?', type_)}) -> {type_}" for type_ in types]


def _declare_all(signatures: list[str], run: Callable[..., Any], description: str) -> None:
    for signature in signatures:
        scalar(signature, theme=THEME, description=description)(run)


def _absolute(bits: int) -> Callable[[int], int]:
    """Return Java's `Math.abs`, by which the least number is its own absolute value."""
    least = -(1 << (bits - 1))
    return lambda value: value if value == least else abs(value)


def _declare_of_decimals(signature: str, run: Callable[..., decimal.Decimal], description: str) -> None:
    """Declare a function whose results have the type of its first argument; it raises for those that do not fit."""

    def made(type_: Argument, *_others: Argument) -> Callable[..., decimal.Decimal]:
        assert isinstance(type_, Decimal)  # noqa: S101 - the signature says so
        rounded = rounded_to(type_)
        return lambda *values: rounded(run(*values))

    scalar(signature, theme=THEME, description=description, typed=True)(made)


_ABS = "The number without its sign."
for _type, _bits in zip(_INTEGERS, (32, 64), strict=True):
    _declare_all(_overloads("ABS", "number ?", (_type,)), _absolute(_bits), _ABS)
_declare_all(_overloads("ABS", "number ?", ("DOUBLE",)), abs, _ABS)
_declare_all(_overloads("ABS", "number ?", ("D",)), decimal.Decimal.copy_abs, _ABS)


def _whole(rounding: str) -> Callable[[decimal.Decimal], decimal.Decimal]:
    return lambda value: value.to_integral_value(rounding, DIGITS)


_FLOOR = "The largest whole number that is not above the number."
_CEIL = "The smallest whole number that is not below the number."
_declare_all(_overloads("FLOOR", "number ?", _INTEGERS), lambda value: value, _FLOOR)
_declare_all(_overloads("FLOOR", "number ?", ("DOUBLE",)), lambda value: _finite(value, math.floor), _FLOOR)
_declare_of_decimals("FLOOR(number D) -> D", _whole(decimal.ROUND_FLOOR), _FLOOR)
_declare_all(_overloads("CEIL", "number ?", _INTEGERS), lambda value: value, _CEIL)
_declare_all(_overloads("CEIL", "number ?", ("DOUBLE",)), lambda value: _finite(value, math.ceil), _CEIL)
_declare_of_decimals("CEIL(number D) -> D", _whole(decimal.ROUND_CEILING), _CEIL)


def _finite(value: float, run: Callable[[float], int]) -> float:
    return float(run(value)) if math.isfinite(value) else value


def _without_scale(types: tuple[Argument, ...]) -> SqlType:
    given = types[0]
    return Decimal(max(given.precision - given.scale, 1), 0) if isinstance(given, Decimal) else Decimal(1, 0)


_ROUND = "The number with so many digits behind the point, halves upwards; without digits a whole number."
_TRUNC = "The number cut off behind so many digits, towards zero; without digits a whole number."


def _rounded(value: decimal.Decimal, digits: int, rounding: str | None) -> decimal.Decimal:
    """Round a number; without a rounding mode, halves go towards positive infinity."""
    if digits >= -int(value.as_tuple().exponent):
        return value
    if digits < -_MOST_PLACES:
        return decimal.Decimal(0)
    chosen = rounding or (decimal.ROUND_HALF_DOWN if value < 0 else decimal.ROUND_HALF_UP)
    return value.quantize(decimal.Decimal(1).scaleb(-digits), chosen, DIGITS)


def _rounded_double(rounding: str | None) -> Callable[..., float]:
    def run(value: float, digits: int = 0) -> float:
        # `repr`: the digits that users see, and not the binary value. `+ 0.0` makes -0.0 plain 0.0.
        return float(_rounded(decimal.Decimal(repr(value)), digits, rounding)) + 0.0 if math.isfinite(value) else value

    return run


def _declare_rounding(name: str, rounding: str | None, description: str) -> None:
    of_double = _rounded_double(rounding)

    def of_whole(type_: Primitive) -> Callable[..., int]:
        return lambda value, digits=0: in_range(int(_rounded(decimal.Decimal(value), digits, rounding)), type_)

    for type_ in (Primitive.INTEGER, Primitive.BIGINT):
        signature = f"{name}(number {type_}, [digits INTEGER]) -> {type_}"
        scalar(signature, theme=THEME, description=description)(of_whole(type_))
    scalar(f"{name}(number DOUBLE) -> BIGINT", theme=THEME, description=description)(
        lambda value: saturated(of_double(value), Primitive.BIGINT)
    )
    scalar(f"{name}(number DOUBLE, digits INTEGER) -> DOUBLE", theme=THEME, description=description)(of_double)
    scalar(f"{name}(number D) -> D", theme=THEME, description=description, returns=_without_scale, typed=True)(
        lambda type_: _to_whole(type_, rounding)
    )
    _declare_of_decimals(
        f"{name}(number D, digits INTEGER) -> D",
        lambda value, digits: _rounded(value, digits, rounding),
        description,
    )


def _to_whole(type_: Argument, rounding: str | None) -> Callable[[decimal.Decimal], decimal.Decimal]:
    returns = _without_scale((type_,))
    assert isinstance(returns, Decimal)  # noqa: S101 - it has just been made
    rounded = rounded_to(returns)
    return lambda value: rounded(_rounded(value, 0, rounding))


_declare_rounding("ROUND", None, _ROUND)
_declare_rounding("TRUNC", decimal.ROUND_DOWN, _TRUNC)


@scalar("SIGN(number DOUBLE) -> INTEGER", theme=THEME)
def sign(value: float) -> int:
    """Minus one, zero or one."""
    return (value > 0) - (value < 0)


@scalar("SQRT(number DOUBLE) -> DOUBLE", theme=THEME)
def sqrt(value: float) -> float:
    """The square root; NaN for negative numbers."""
    return math.sqrt(value) if value >= 0 else math.nan


@scalar("LN(number DOUBLE) -> DOUBLE", theme=THEME)
def natural_logarithm(value: float) -> float:
    """The natural logarithm; NaN for negative numbers, minus infinity for zero."""
    if value == 0:
        return -math.inf
    return math.log(value) if value > 0 else math.nan


@scalar("LOG(number DOUBLE) -> DOUBLE", theme=THEME)
def logarithm(value: float) -> float:
    """The natural logarithm, as in ksqlDB, whose documentation says base 10; NaN for negative numbers."""
    return natural_logarithm(value)


@scalar("LOG(base DOUBLE, number DOUBLE) -> DOUBLE", theme=THEME)
def logarithm_to_base(base: float, value: float) -> float:
    """The logarithm to a base; NaN for bases that are negative, 0 or 1."""
    if base <= 0 or base == 1 or value < 0:
        return math.nan
    return -math.inf if value == 0 else math.log(value) / math.log(base)


@scalar("POWER(base DOUBLE, exponent DOUBLE) -> DOUBLE", theme=THEME)
def power(base: float, exponent: float) -> float:
    """The base raised to the exponent; infinity if that is too large."""
    # Python raises where IEEE 754, and so Java, has an infinity or NaN.
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 == 1 else math.inf
    except ValueError:
        return math.inf if base == 0 else math.nan


@scalar("CBRT(number DOUBLE) -> DOUBLE", theme=THEME)
def cube_root(value: float) -> float:
    """The cube root."""
    return math.cbrt(value)


@scalar("EXP(number DOUBLE) -> DOUBLE", theme=THEME)
def exponential(value: float) -> float:
    """The number e raised to the number."""
    return _or_infinite(math.exp, value, math.inf)


@scalar("COT(angle DOUBLE) -> DOUBLE", theme=THEME)
def cotangent(value: float) -> float:
    """The cotangent of an angle in radians."""
    return math.copysign(math.inf, value) if value == 0 else 1 / math.tan(value)


@scalar("PI() -> DOUBLE", theme=THEME)
def pi() -> float:
    """The number pi."""
    return math.pi


@scalar("RANDOM() -> DOUBLE", theme=THEME, is_late=True)
def random_number() -> float:
    """A random number in [0, 1). Not deterministic: reprocessing a record yields a different one."""
    return random.random()  # noqa: S311 - no secret


@scalar("ATAN2(y DOUBLE, x DOUBLE) -> DOUBLE", theme=THEME)
def arc_tangent(y: float, x: float) -> float:
    """The angle of the point (x, y), in radians."""
    return math.atan2(y, x)


def _or_infinite(run: Callable[[float], float], value: float, infinite: float) -> float:
    try:
        return run(value)
    except OverflowError:
        return infinite


def _or_nan(run: Callable[[float], float]) -> Callable[[float], float]:
    def guarded(value: float) -> float:
        try:
            return run(value)
        except ValueError:
            return math.nan

    return guarded


_OF_ANGLES: dict[str, tuple[Callable[[float], float], str]] = {
    "ACOS": (_or_nan(math.acos), "The arc cosine in radians; NaN outside -1 to 1."),
    "ASIN": (_or_nan(math.asin), "The arc sine in radians; NaN outside -1 to 1."),
    "ATAN": (math.atan, "The arc tangent in radians."),
    "COS": (_or_nan(math.cos), "The cosine of an angle in radians."),
    "COSH": (lambda value: _or_infinite(math.cosh, value, math.inf), "The hyperbolic cosine."),
    "DEGREES": (math.degrees, "Radians as degrees."),
    "RADIANS": (math.radians, "Degrees as radians."),
    "SIN": (_or_nan(math.sin), "The sine of an angle in radians."),
    "SINH": (lambda value: _or_infinite(math.sinh, value, math.copysign(math.inf, value)), "The hyperbolic sine."),
    "TAN": (_or_nan(math.tan), "The tangent of an angle in radians."),
    "TANH": (math.tanh, "The hyperbolic tangent."),
}
for _name, (_run, _description) in _OF_ANGLES.items():
    scalar(f"{_name}(number DOUBLE) -> DOUBLE", theme=THEME, description=_description)(_run)


@scalar("GREATEST(first C, [more C...]) -> C", theme=THEME, nulls=True)
def greatest(*values: Any) -> Any:
    """The largest of the values that are not NULL."""
    return max((value for value in values if value is not None), default=None)


@scalar("LEAST(first C, [more C...]) -> C", theme=THEME, nulls=True)
def least(*values: Any) -> Any:
    """The smallest of the values that are not NULL."""
    return min((value for value in values if value is not None), default=None)


_NORTH, _EAST = 90, 180
_RADII = {"KM": 6371.0, "KILOMETER": 6371.0, "KILOMETERS": 6371.0, "KILOMETRE": 6371.0, "KILOMETRES": 6371.0}
_RADII |= dict.fromkeys(("MI", "MILE", "MILES"), 3959.0)


def _radius(unit: str | None) -> float:
    found = _RADII.get((unit or "").strip().upper() or "KM")
    if found is None:
        raise ValueError(f"{unit} is not a unit of distances; there are KM and MI")
    return found


@scalar(
    "GEO_DISTANCE(latitude DOUBLE, longitude DOUBLE, other_latitude DOUBLE, other_longitude DOUBLE, [unit STRING]) -> DOUBLE",
    theme="Places",
    nulls=frozenset({4}),
    constants={"unit": _radius},
)
def distance(
    latitude: float, longitude: float, other_latitude: float, other_longitude: float, unit: str | None = "KM"
) -> float:
    """The distance of two points in degrees along a great circle, in `KM` (as it is by default, for NULL too) or `MI`."""
    radius = _radius(unit)
    if max(abs(latitude), abs(other_latitude)) > _NORTH or max(abs(longitude), abs(other_longitude)) > _EAST:
        raise ValueError(f"({latitude}, {longitude}) or ({other_latitude}, {other_longitude}) is not a place on Earth")
    one, other = math.radians(latitude), math.radians(other_latitude)
    up, across = math.radians(other_latitude - latitude), math.radians(other_longitude - longitude)
    chord = math.sin(up / 2) ** 2 + math.sin(across / 2) ** 2 * math.cos(one) * math.cos(other)
    return 2 * math.asin(math.sqrt(chord)) * radius
