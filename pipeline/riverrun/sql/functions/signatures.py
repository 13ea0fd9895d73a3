"""Signatures of functions as text, and their matching with arguments.

An example is `SUBSTRING(text STRING, position INTEGER, [length INTEGER]) -> STRING`. Square brackets enclose optional
parameters, and `...` after a parameter lets it repeat. `(K, V) => T` is a lambda.

Single letters are types that the arguments determine:

- `N` is a number, `D` a DECIMAL, `C` a type with an order.
- `X` may be another type each time.
- Any other letter is any one type.

`COUNT(DISTINCT value X)` is the signature of a function whose name is `COUNT DISTINCT`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from riverrun.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct


@dataclass(frozen=True, slots=True)
class LambdaType:
    """Type of a lambda, with the types of its parameters and of its result."""

    parameters: tuple[SqlType, ...]
    returns: SqlType

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parameters))}) => {self.returns}"


@dataclass(frozen=True, slots=True)
class Variable:
    """A type that the arguments determine."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array in a signature."""

    item: Pattern

    def __str__(self) -> str:
        return f"ARRAY<{self.item}>"


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map in a signature."""

    key: Pattern
    value: Pattern

    def __str__(self) -> str:
        return f"MAP<{self.key}, {self.value}>"


@dataclass(frozen=True, slots=True)
class StructOf:
    """A struct in a signature."""

    fields: tuple[tuple[str, Pattern], ...]

    def __str__(self) -> str:
        return "STRUCT<" + ", ".join(f"{name} {type_}" for name, type_ in self.fields) + ">"


@dataclass(frozen=True, slots=True)
class LambdaOf:
    """A lambda in a signature."""

    parameters: tuple[Pattern, ...]
    returns: Pattern

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parameters))}) => {self.returns}"


Pattern = Primitive | Decimal | Variable | ArrayOf | MapOf | StructOf | LambdaOf
Argument = SqlType | LambdaType | None
Bound = dict[str, SqlType]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function."""

    name: str
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Signature:
    """A name, typed parameters, and the type of the result."""

    name: str
    parameters: tuple[Parameter, ...]
    required: int
    repeated: int | None
    returns: Pattern
    text: str

    def __str__(self) -> str:
        return self.text

    def patterns(self, count: int) -> tuple[Pattern, ...] | None:
        """Return a pattern for each of `count` arguments; None if there are too few or too many."""
        if count < self.required or (self.repeated is None and count > len(self.parameters)):
            return None
        return tuple(each.pattern for each in self._repeated(count))

    def names(self, count: int) -> tuple[str, ...]:
        """Return the name of the parameter for each of `count` arguments."""
        return tuple(each.name for each in self._repeated(count))

    def _repeated(self, count: int) -> tuple[Parameter, ...]:
        if self.repeated is None:
            return self.parameters[:count]
        before, after = self.parameters[: self.repeated], self.parameters[self.repeated + 1 :]
        repeated = self.parameters[self.repeated : self.repeated + 1]
        return before + repeated * (count - len(before) - len(after)) + after


_SIGNATURE = re.compile(r"(?P<name>\w+)\((?P<distinct>DISTINCT )?(?P<parameters>.*)\) -> (?P<returns>.*)", re.DOTALL)
_TOKEN = re.compile(r"\s*(=>|->|\.\.\.|[A-Za-z_]\w*|\d+|[<>(),\[\]])")
_WHOLE = {Primitive.INTEGER: Decimal(10, 0), Primitive.BIGINT: Decimal(19, 0)}
_NUMBERS = (Primitive.INTEGER, Primitive.BIGINT, Primitive.DOUBLE)


def parse_signature(text: str) -> Signature:
    """Parse a signature.

    >>> str(parse_signature("LEN(text STRING) -> INTEGER"))
    'LEN(text STRING) -> INTEGER'
    """
    found = _SIGNATURE.fullmatch(text)
    if found is None:
        raise ValueError(f"not a signature: {text}")
    tokens = _Tokens(found["parameters"])
    parameters: list[Parameter] = []
    required, repeated = 0, None
    while tokens.next is not None:
        optional = tokens.skip("[")
        parameters.append(Parameter(tokens.take(), tokens.pattern()))
        if tokens.skip("..."):
            repeated = len(parameters) - 1
        required += not optional
        if optional:
            tokens.skip("]")
        tokens.skip(",")
    returns = _Tokens(found["returns"]).pattern()
    name = f"{found['name']} DISTINCT" if found["distinct"] else found["name"]
    return Signature(name, tuple(parameters), required, repeated, returns, text)


class _Tokens:
    """Words and signs of a signature, in order."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    @property
    def next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def take(self) -> str:
        """Take and return the next word or sign."""
        self._at += 1
        return self._tokens[self._at - 1]  # type: ignore[no-any-return]

    def skip(self, sign: str) -> bool:
        """Take the next sign if it is this one, and return whether it was."""
        ahead = self.next == sign
        self._at += ahead
        return ahead

    def pattern(self) -> Pattern:
        if self.skip("("):
            parameters = self._until(")")
            self.take()
            return LambdaOf(parameters, self.pattern())
        word = self.take()
        if word == "DECIMAL":
            _, precision, _, scale, _ = (self.take() for _ in range(5))
            return Decimal(int(precision), int(scale))
        if word in {"ARRAY", "MAP"}:
            self.take()
            inner = self._until(">")
            return ArrayOf(*inner) if word == "ARRAY" else MapOf(*inner)
        if word == "STRUCT":
            return self._struct()
        return Variable(word) if len(word) == 1 else Primitive(word)

    def _struct(self) -> StructOf:
        self.take()
        fields = []
        while not self.skip(">"):
            fields.append((self.take(), self.pattern()))
            self.skip(",")
        return StructOf(tuple(fields))

    def _until(self, end: str) -> tuple[Pattern, ...]:
        found = []
        while not self.skip(end):
            found.append(self.pattern())
            self.skip(",")
        return tuple(found)


def widened(first: SqlType, second: SqlType) -> SqlType | None:
    """Return the type that holds values of both; None if there is none.

    >>> print(widened(Primitive.BIGINT, Decimal(4, 2)))
    DECIMAL(21, 2)
    """
    if first == second:
        return first
    if Primitive.DOUBLE in {first, second} and is_number(first) and is_number(second):
        return Primitive.DOUBLE
    one, other = as_decimal(first), as_decimal(second)
    if one is None or other is None:
        return None
    if {first, second} == {Primitive.INTEGER, Primitive.BIGINT}:
        return Primitive.BIGINT
    scale = max(one.scale, other.scale)
    return Decimal(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)


def as_decimal(type_: SqlType) -> Decimal | None:
    """Return the DECIMAL that holds all values of an exact type of numbers."""
    if isinstance(type_, Decimal):
        return type_
    return _WHOLE.get(type_) if isinstance(type_, Primitive) else None


def is_number(type_: Argument) -> bool:
    return isinstance(type_, Decimal) or type_ in _NUMBERS


def allows(variable: str, type_: SqlType) -> bool:
    """Return whether a variable of a signature may stand for a type."""
    match variable:
        case "N":
            return is_number(type_)
        case "D":
            return isinstance(type_, Decimal)
        case "C":
            return isinstance(type_, Decimal | Primitive)
    return True


def fits(patterns: tuple[Pattern, ...], arguments: tuple[Argument, ...]) -> tuple[int, Bound] | None:
    """Match arguments with patterns: return how far they must be widened, and the types of variables; None without a match."""
    bound: Bound = {}
    distance = 0
    for pattern, argument in zip(patterns, arguments, strict=True):
        step = _match(pattern, argument, bound)
        if step is None:
            return None
        distance += step
    return distance, bound


def _match(pattern: Pattern, argument: Argument, bound: Bound) -> int | None:
    if argument is None:
        return None if isinstance(pattern, LambdaOf) else 0
    if isinstance(pattern, LambdaOf) or isinstance(argument, LambdaType):
        return _match_lambda(pattern, argument, bound)
    if isinstance(pattern, Variable):
        return _bind(pattern.name, argument, bound)
    inner = _inner(pattern, argument)
    if inner is None:
        return _widening(pattern, argument)
    steps = [_match(part, type_, bound) for part, type_ in inner]
    return None if None in steps else sum(step for step in steps if step is not None)


def _inner(pattern: Pattern, argument: SqlType) -> list[tuple[Pattern, SqlType]] | None:
    """Pair the parts of a collection's pattern with those of a type."""
    match pattern, argument:
        case ArrayOf(), Array():
            return [(pattern.item, argument.item)]
        case MapOf(), Map():
            return [(pattern.key, argument.key), (pattern.value, argument.value)]
        case StructOf(), Struct() if [name for name, _ in pattern.fields] == [name for name, _ in argument.fields]:
            return [(part, type_) for (_, part), (_, type_) in zip(pattern.fields, argument.fields, strict=True)]
    return None


def _match_lambda(pattern: Pattern, argument: Argument, bound: Bound) -> int | None:
    if not isinstance(pattern, LambdaOf) or not isinstance(argument, LambdaType):
        return None
    if len(pattern.parameters) != len(argument.parameters):
        return None
    return _match(pattern.returns, argument.returns, bound)


def _bind(variable: str, argument: SqlType, bound: Bound) -> int | None:
    # Steps only have to rank overloads: an exact type (0), a variable (1), any type (5), then each widening (10).
    if variable == "X":
        return 5
    known = bound.get(variable)
    both = argument if known is None else widened(known, argument)
    if variable == "D" and both is not None:
        both = as_decimal(both)
    if both is None or not allows(variable, both):
        return None
    bound[variable] = both
    return 1 if both == argument else 10


_LADDER = (Primitive.INTEGER, Primitive.BIGINT, Decimal, Primitive.DOUBLE)


def _widening(pattern: Pattern, argument: SqlType) -> int | None:
    if pattern == argument:
        return 0
    if not is_number(argument) or not (isinstance(pattern, Primitive | Decimal) and is_number(pattern)):
        return None
    # A DECIMAL with fewer digits than the argument would round it.
    if isinstance(pattern, Decimal) and argument != Primitive.DOUBLE and widened(pattern, argument) != pattern:
        return None
    steps = _rung(pattern) - _rung(argument)
    return 10 * steps if steps >= 0 else None


def _rung(type_: SqlType) -> int:
    return _LADDER.index(Decimal if isinstance(type_, Decimal) else type_)


def resolved(pattern: Pattern, bound: Bound) -> SqlType | None:
    """Return the type of a pattern; None if the arguments do not determine it."""
    match pattern:
        case Variable():
            return bound.get(pattern.name)
        case ArrayOf():
            item = resolved(pattern.item, bound)
            return None if item is None else Array(item)
        case MapOf():
            key, value = resolved(pattern.key, bound), resolved(pattern.value, bound)
            return None if key is None or value is None else Map(key, value)
        case StructOf():
            fields = [(name, resolved(part, bound)) for name, part in pattern.fields]
            return Struct(tuple((name, type_) for name, type_ in fields if type_ is not None))
        case LambdaOf():
            return None
    return pattern
