"""Writes the code of operators: of operands whose code is written, with constants that have generated names."""

from __future__ import annotations

import decimal
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.sql import operators
from riverrun.sql.coercion import (
    TIMES,
    IncompatibleTypes,
    Operand,
    arithmetic_type,
    common_type,
    comparable,
    constant_of,
    rank,
)
from riverrun.sql.functions.values import MOST_CHARACTERS, within
from riverrun.sql.row_code import SIMPLE, Code
from riverrun.sql.statements import SqlError, start_of
from riverrun.sql.types import Decimal, Primitive, SqlType
from riverrun.sql.values import RANGES, rounded_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot import exp

NEVER = "It would be NULL in every row."
# Code of columns and of lambdas' parameters.
_DEPENDS = re.compile(r"\brow\[|\bp\d+_\d+\b")
_OBJECT = re.compile(r"\bc\d+\b")
# `a + b + c` is joined and checked at once; longer sums in steps of this many texts, so that none grows unchecked.
_MOST_PARTS = 8


class UnknownValue(Exception):  # noqa: N818 - named after what it reports
    """The value of an expression is not known before there is a row."""


@dataclass(slots=True)
class Operators:
    """Writes operators between expressions, checks the types of operands, and names the constants in the code.

    Mistakes have no place unless it is that of an operand: `Compiler.code` adds the place of the operator.
    """

    names: dict[str, Any] = field(default_factory=dict)
    """Objects by their names in the code."""
    late: set[str] = field(default_factory=set)
    """Names of functions that are never computed in advance."""

    def constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    # Values known in advance

    def value(self, code: Code) -> Any:
        """Return the value of an expression of constants."""
        if _DEPENDS.search(code.text):
            raise UnknownValue
        used = {name: self.names[name] for name in _OBJECT.findall(code.text)}
        if not self.late.isdisjoint(used):
            raise UnknownValue
        try:
            return eval(code.text, used)  # noqa: S307 - generated names of our own only
        except (SyntaxError, MemoryError, RecursionError):  # nested too deeply for Python
            raise UnknownValue from None

    def possible(self, code: Code, node: exp.Expr | None = None) -> Code:
        """Return the code of an operation, unless it has constants only and no result: it would be NULL in every row."""
        try:
            self.value(code)
        except UnknownValue:
            return code
        except Exception as error:  # noqa: BLE001 - whatever would make it NULL
            message = f"This expression can never be computed: {operators.reason(error)}"
            raise SqlError(message, None if node is None else start_of(node), hint=NEVER) from None
        return code

    # Arithmetic

    def arithmetic(self, sign: str, left: Code, right: Code) -> Code:
        if sign == "+" and left.type == right.type == Primitive.STRING:
            return self._joined(left, right)
        result = arithmetic_type(sign, left.type, right.type)
        if result is None:
            raise SqlError(f"Unsupported arithmetic types. {left.type} {right.type}")
        if sign in "/%" and result is not Primitive.DOUBLE:
            self._check_divisor(right)
        if isinstance(result, Decimal):
            code = self._decimal(sign, left, right, result)
        elif result is Primitive.DOUBLE:
            code = self._double(sign, left, right)
        else:
            code = Code(self._whole(sign, left, right, 32 if result is Primitive.INTEGER else 64), result)
        return self.possible(code) if sign in "/%" or isinstance(result, Decimal) else code

    def _check_divisor(self, divisor: Code) -> None:
        with suppress(UnknownValue):
            if self.value(divisor) == 0:
                raise SqlError("This expression can never be computed: division by zero", hint=NEVER)

    def _joined(self, left: Code, right: Code) -> Code:
        # The size is limited, because a text that a lambda doubles for each item would fill the memory.
        held, refuse = f"t{len(self.names)}", self.constant(within)
        parts = (*(left.parts or (left.text,)), right.text)
        text = (
            f"({held} if len({held} := {' + '.join(parts)}) <= {MOST_CHARACTERS}"
            f" else {refuse}({held}, {MOST_CHARACTERS}))"
        )
        return Code(text, Primitive.STRING, parts if len(parts) < _MOST_PARTS else ())

    def _whole(self, sign: str, left: Code, right: Code, bits: int) -> str:
        # A call costs more than the operation: only overflows, and divisors that may be 0 or negative, go to a function.
        # `constant(None)` uses up the number in the variable's name, so no other variable gets it.
        divisor = self.names.get(right.text)
        if sign == "/" and isinstance(divisor, int) and divisor > 0:
            held = f"t{len(self.names)}"
            self.constant(None)
            return f"({held} // {right.text} if ({held} := {left.text}) >= 0 else -(-{held} // {right.text}))"
        wrap = self.constant(operators.wrapped(bits))
        if sign in "/%":
            function = operators.whole_division if sign == "/" else operators.whole_remainder
            return f"{wrap}({self.constant(function)}({left.text}, {right.text}))"
        held, limit = f"t{len(self.names)}", 1 << (bits - 1)
        self.constant(None)
        return f"({held} if {-limit} <= ({held} := {left.text} {sign} {right.text}) < {limit} else {wrap}({held}))"

    def _decimal(self, sign: str, left: Code, right: Code, result: Decimal) -> Code:
        # The context has more digits than any DECIMAL: rounding to the scale of the result comes last.
        to_scale, number = self.constant(rounded_to(result)), self.constant(decimal.Decimal)
        context = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder"}[sign]
        function = self.constant(getattr(operators.CONTEXT, context))
        return Code(f"{to_scale}({function}({number}({left.text}), {number}({right.text})))", result)

    def _double(self, sign: str, left: Code, right: Code) -> Code:
        to_float = self.constant(float)
        first, second = f"{to_float}({left.text})", f"{to_float}({right.text})"
        if sign in "/%":
            function = operators.double_division if sign == "/" else operators.double_remainder
            return Code(f"{self.constant(function)}({first}, {second})", Primitive.DOUBLE)
        return Code(f"({first} {sign} {second})", Primitive.DOUBLE)

    def negation(self, value: Code) -> Code:
        """Write a minus sign; the least whole number is its own opposite, as in Java."""
        if rank(value.type) is None:
            raise SqlError(f"A minus sign needs a number, not {value.type}")
        if value.type is Primitive.DOUBLE:
            return Code(f"(-({value.text}))", value.type)
        if isinstance(value.type, Decimal):
            return Code(f"{self.constant(operators.CONTEXT.minus)}({value.text})", value.type)
        wrap, held = (
            self.constant(operators.wrapped(32 if value.type is Primitive.INTEGER else 64)),
            f"t{len(self.names)}",
        )
        self.constant(None)
        greatest = RANGES[value.type][1]
        return Code(f"({held} if ({held} := -({value.text})) <= {greatest} else {wrap}({held}))", value.type)

    # Comparisons

    def comparison(self, left: Code, right: Code, sign: str, *sides: exp.Expr) -> Code:
        """Write a comparison, which is false if a side is NULL. `sides` are the expressions of both operands."""
        left, right = self._alike(left, right, *sides)
        if not comparable(left.type, right.type, sign):
            message = f"Cannot compare {left.type or 'NULL'} with {right.type or 'NULL'} with {sign.replace('==', '=')}"
            raise SqlError(message)
        one, present = self._operand(left, "l")
        two, other_present = self._operand(right, "r")
        tests = [*present, *other_present, f"{one} {sign} {two}"]
        return Code(f"({' and '.join(tests)})", Primitive.BOOLEAN)

    def distinction(self, left: Code, right: Code, *sides: exp.Expr) -> str:
        """Return the code of IS DISTINCT FROM, which treats NULL as a value like others."""
        left, right = self._alike(left, right, *sides)
        if None not in {left.type, right.type} and not comparable(left.type, right.type, "=="):
            raise SqlError(f"Cannot compare {left.type} with {right.type}")
        return f"{self.constant(operators.is_distinct)}({left.text}, {right.text})"

    def _operand(self, code: Code, letter: str) -> tuple[str, list[str]]:
        """Return a side of a comparison as a name, and the tests that it is not NULL."""
        if self.names.get(code.text) is not None:
            return code.text, []
        if SIMPLE.fullmatch(code.text):
            return code.text, [f"{code.text} is not None"]
        held = f"{letter}{len(self.names)}"
        self.constant(None)
        return held, [f"({held} := {code.text}) is not None"]

    def _alike(self, left: Code, right: Code, *sides: exp.Expr) -> tuple[Code, Code]:
        """Convert operands that are compared as another type: texts and dates with times, DOUBLEs with DECIMALs."""
        first, second = sides
        if {left.type, right.type} == {Primitive.DATE, Primitive.TIMESTAMP}:
            to = Primitive.TIMESTAMP
            return self._converted(left, to, first), self._converted(right, to, second)
        if left.type in TIMES and right.type is Primitive.STRING:
            return left, self._converted(right, left.type, second)
        if right.type in TIMES and left.type is Primitive.STRING:
            return self._converted(left, right.type, first), right
        # Python compares the exact binary value, so 1.1 as a DOUBLE would not equal 1.1 as a DECIMAL.
        if isinstance(left.type, Decimal) and right.type is Primitive.DOUBLE:
            return left, self._exact(right)
        if isinstance(right.type, Decimal) and left.type is Primitive.DOUBLE:
            return self._exact(left), right
        return left, right

    def _exact(self, code: Code) -> Code:
        return Code(f"{self.constant(operators.exact)}({code.text})", code.type)

    # Types

    def cast(self, value: Code, target: SqlType) -> Code:
        function = operators.cast(value.type, target)
        if function is None:
            raise SqlError(f"Cast of {value.type} to {target} is not supported")
        return self.possible(Code(f"{self.constant(function)}({value.text})", target))

    def unified(self, codes: Sequence[Code], constants: Sequence[str | None], what: str) -> list[Code]:
        """Return values of one type, decided by the first that is not NULL (ksqlDB's `CoercionUtil`)."""
        operands = [Operand(code.type, constant) for code, constant in zip(codes, constants, strict=True)]
        try:
            target = common_type(operands)
        except IncompatibleTypes as error:
            message = f"{what} has values of incompatible types: {error}"
            raise SqlError(message, hint="CAST(... AS ...) makes them of one type.") from None
        return [self._fitted(code, each, target) for code, each in zip(codes, operands, strict=True)]

    def _fitted(self, code: Code, operand: Operand, target: SqlType | None) -> Code:
        if target is None or code.type == target:
            return code
        if operand.constant is not None:
            return Code(self.constant(constant_of(operand, target)), target)
        return Code(self._converted(code, target).text, target)

    def _converted(self, code: Code, to: SqlType | None, node: exp.Expr | None = None) -> Code:
        if to is None or code.type in {None, to}:
            return code
        function = operators.cast(code.type, to)
        if function is None:
            raise SqlError(f"{code.type} cannot become {to}")
        return self.possible(Code(f"{self.constant(function)}({code.text})", to), node)
