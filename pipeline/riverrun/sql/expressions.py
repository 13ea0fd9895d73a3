"""Compiles expressions to Python: checks their types and writes the code of a function.

Names and constants of users never appear in the code, which refers to them by generated names.
"""

from __future__ import annotations

import contextlib
import decimal
import difflib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from riverrun.sql.coercion import TIMES
from riverrun.sql.functions import (
    LambdaType,
    UnknownFunction,
    WrongArguments,
    find_scalar,
    is_aggregate,
    is_table_function,
    lambda_parameters,
)
from riverrun.sql.functions.patterns import like, like_test
from riverrun.sql.operator_code import NEVER, Operators, UnknownValue
from riverrun.sql.operators import partial_timestamp, reason, subscript, value_or_null
from riverrun.sql.row_code import SIMPLE, Code
from riverrun.sql.statements import SqlError, nearest, start_of
from riverrun.sql.types import MOST_DIGITS, Array, Decimal, Map, Primitive, SqlType, Struct
from riverrun.sql.values import whole_of_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ARITHMETIC = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_COMPARISONS = {exp.EQ: "==", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
# A number in a statement may have 400 characters, a message should not.
_SHOWN = 60
# Columns of times that are BIGINTs, and may nevertheless be compared with texts.
_MOMENTS = {"ROWTIME", "WINDOWSTART", "WINDOWEND"}
# Functions that read texts among times as times.
_OF_ONE_TYPE = frozenset({"GREATEST", "LEAST"})


@dataclass(frozen=True, slots=True)
class Field:
    """A column that expressions can refer to, at its place in the row.

    Args:
        source: Name or alias of its source; empty if it has none.
        is_source_key: Whether it is in the key of its source; such columns come first when stars are expanded.
    """

    name: str
    type: SqlType
    source: str = ""
    is_key: bool = False
    is_pseudo: bool = False
    is_source_key: bool = False


def _negated_if(node: exp.Expr, code: Code) -> Code:
    # sqlglot keeps the NOT of `NOT LIKE` within the node, and that of other tests around it.
    return Code(f"(not {code.text})", code.type) if node.args.get("negate") else code


def _is_moment(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and node.name in _MOMENTS


def _constant(node: exp.Expr) -> str | None:
    """Return the text of a constant, with a number as it is written; None for other expressions."""
    if isinstance(node, exp.Boolean):
        return "true" if node.this else "false"
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal):
        return f"-{node.this.this}"
    return str(node.this) if isinstance(node, exp.Literal) else None


def find_field(fields: Sequence[Field], node: exp.Column) -> int:
    """Return the index of the column that an expression names."""
    name, source = node.name, node.table
    found = [number for number, each in enumerate(fields) if each.name == name and source in {"", each.source}]
    shown = f"{source}.{name}" if source else name
    if not found:
        near = difflib.get_close_matches(name, [each.name for each in fields], 1)
        close = nearest(name, near or [each.name for each in fields if not each.is_pseudo])
        raise SqlError(f"Column '{shown}' cannot be resolved.", start_of(node), hint=close)
    if len(found) > 1:
        message = f"Column '{shown}' is ambiguous."
        hint = "Could be: " + ", ".join(f"{fields[number].source}.{name}" for number in found)
        raise SqlError(message, start_of(node), hint=hint)
    return found[0]


@dataclass(slots=True)
class Compiler:
    """Writes the code of expressions over one kind of rows."""

    fields: Sequence[Field]
    operators: Operators = field(default_factory=Operators)
    lambdas: dict[str, Code] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, Any]:
        """Return the objects by their names in the code."""
        return self.operators.names

    def constant(self, value: Any) -> str:
        return self.operators.constant(value)

    def condition(self, node: exp.Expr, clause: str) -> Code:
        """Return the code of a clause's condition, which must be a BOOLEAN."""
        code = self.code(node)
        if code.type is not Primitive.BOOLEAN:
            message = f"Type error in {clause} expression: Should evaluate to boolean but is {code.type}."
            raise SqlError(message, start_of(node))
        return code

    def code(self, node: exp.Expr) -> Code:
        for kind, write in _WRITERS.items():
            if isinstance(node, kind):
                try:
                    return write(self, node)
                except SqlError as error:
                    if error.start is None:
                        error.start = start_of(node)
                    raise
        raise SqlError(f"{type(node).__name__.upper()} is not supported", start_of(node))

    def typed(self, node: exp.Expr, wanted: SqlType, what: str) -> str:
        """Return the code of an expression that must have a type; NULL fits every type."""
        code = self.code(node)
        if code.type not in {wanted, None}:
            raise SqlError(f"{what} must be {wanted}, not {code.type}", start_of(node))
        return code.text

    # Operands

    def column(self, node: exp.Column) -> Code:
        """Write a column, or the parameter of a lambda."""
        if not node.table and node.name in self.lambdas:
            return self.lambdas[node.name]
        place = find_field(self.fields, node)
        return Code(f"row[{place}]", self.fields[place].type)

    def literal(self, node: exp.Literal) -> Code:
        text = str(node.this)
        return Code(self.constant(text), Primitive.STRING) if node.is_string else self._number(text)

    def _number(self, text: str, sign: str = "") -> Code:
        # With its sign: -2147483648 is an INTEGER, and 2147483648 is not.
        if text.isdigit():
            return self._whole_number(text, sign)
        if "e" in text.lower():
            if math.isinf(float(text)):
                raise SqlError(f"Number overflows DOUBLE: {sign}{text[:_SHOWN]}")
            return Code(self.constant(float(f"{sign}{text}")), Primitive.DOUBLE)
        value = decimal.Decimal(f"{sign}{text}")
        digits, scale = len(value.as_tuple().digits), -int(value.as_tuple().exponent)
        if max(digits, scale) > MOST_DIGITS:
            message = f"Number {sign}{text[:_SHOWN]} has more than {MOST_DIGITS} digits"
            raise SqlError(message, hint="Without a point and with an exponent, as in 1E0, it is a DOUBLE.")
        # `abs` of a zero, since a DECIMAL has no -0.0.
        return Code(self.constant(value or abs(value)), Decimal(max(digits, scale), scale))

    def _whole_number(self, text: str, sign: str) -> Code:
        for type_ in (Primitive.INTEGER, Primitive.BIGINT):
            with contextlib.suppress(ValueError):
                return Code(self.constant(whole_of_text(f"{sign}{text}", type_)), type_)
        message = f"Number {sign}{text[:_SHOWN]} is too large"
        raise SqlError(message, hint="With an exponent, as in 1E0, it is a DOUBLE.")

    def null(self, _node: exp.Expr) -> Code:
        return Code("None", None)

    def boolean(self, node: exp.Boolean) -> Code:
        """Write TRUE or FALSE."""
        return Code("True" if node.this else "False", Primitive.BOOLEAN)

    def paren(self, node: exp.Paren) -> Code:
        """Write an expression in brackets."""
        return self.code(node.this)

    def dot(self, node: exp.Dot) -> Code:
        """Write the field of a struct."""
        value, name = self.code(node.this), node.expression.name
        if not isinstance(value.type, Struct):
            raise SqlError(f"Only a STRUCT has fields, but this is {value.type}", start_of(node))
        type_ = value.type.field(name)
        if type_ is None:
            message = f"Could not find field '{name}' in {value.type}"
            raise SqlError(message, start_of(node), hint=nearest(name, [each for each, _ in value.type.fields]))
        # The next constant takes the number that is in the variable's name, so no other variable gets it.
        held, key = f"t{len(self.names)}", self.constant(name)
        return Code(f"(None if ({held} := {value.text}) is None else {held}.get({key}))", type_)

    def bracket(self, node: exp.Bracket) -> Code:
        """Write the item of an array or a map."""
        value, index = self.code(node.this), self.code(node.expressions[0])
        if isinstance(value.type, Array) and index.type in {Primitive.INTEGER, Primitive.BIGINT}:
            found: SqlType = value.type.item
        elif isinstance(value.type, Map) and index.type == value.type.key:
            found = value.type.value
        else:
            raise SqlError(f"{value.type} has no item of type {index.type}", start_of(node))
        return Code(f"{self.constant(subscript)}({value.text}, {index.text})", found)

    # Operators

    def arithmetic(self, node: exp.Binary) -> Code:
        left, right = self.code(node.this), self.code(node.expression)
        return self.operators.arithmetic(_ARITHMETIC[type(node)], left, right)

    def negation(self, node: exp.Neg) -> Code:
        """Write a minus sign."""
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return self._number(str(node.this.this), "-")
        return self.operators.negation(self.code(node.this))

    def comparison(self, node: exp.Binary) -> Code:
        """Write a comparison, which is false if a side is NULL."""
        left, right = self._with_moments(node.this, node.expression)
        return self.operators.comparison(left, right, _COMPARISONS[type(node)], node.this, node.expression)

    def distinction(self, node: exp.Binary) -> Code:
        """Write IS DISTINCT FROM, which treats NULL as a value like others."""
        left, right = self._with_moments(node.this, node.expression)
        distinct = self.operators.distinction(left, right, node.this, node.expression)
        negation = "not " if isinstance(node, exp.NullSafeEQ) else ""
        return Code(f"({negation}{distinct})", Primitive.BOOLEAN)

    def _with_moments(self, left: exp.Expr, right: exp.Expr) -> tuple[Code, Code]:
        # As ksqlDB's `StatementRewriter` does: a text next to a column of times in ms becomes such a time.
        return (
            self._moment(left) if _is_moment(right) else self.code(left),
            self._moment(right) if _is_moment(left) else self.code(right),
        )

    def _moment(self, node: exp.Expr) -> Code:
        if not isinstance(node, exp.Literal) or not node.is_string:
            return self.code(node)
        try:
            return Code(self.constant(partial_timestamp(str(node.this))), Primitive.BIGINT)
        except ValueError:
            message = f"Failed to parse timestamp '{node.this}'"
            hint = "Write a timestamp as in 2020-05-26T23:59:58.000+0200; its end may be left out, as in 2020-05-26."
            raise SqlError(message, start_of(node), hint=hint) from None

    def logic(self, node: exp.Binary) -> Code:
        word, operands, first = "and" if isinstance(node, exp.And) else "or", [node.expression], node.this
        # A loop, and one flat text: a chain of any number of operands must neither recurse nor nest brackets.
        while type(first) is type(node):
            operands.append(first.expression)
            first = first.this
        texts = [self.typed(first, Primitive.BOOLEAN, f"The operand before {word.upper()}")]
        texts += [
            self.typed(each, Primitive.BOOLEAN, f"The operand after {word.upper()}") for each in reversed(operands)
        ]
        return Code(f"({f' {word} '.join(texts)})", Primitive.BOOLEAN)

    def negated(self, node: exp.Not) -> Code:
        return Code(f"(not {self.typed(node.this, Primitive.BOOLEAN, 'The operand of NOT')})", Primitive.BOOLEAN)

    def is_null(self, node: exp.Is) -> Code:
        if not isinstance(node.expression, exp.Null):
            raise SqlError("IS takes NULL or NOT NULL", start_of(node))
        return _negated_if(node, Code(f"({self.code(node.this).text} is None)", Primitive.BOOLEAN))

    def between(self, node: exp.Between) -> Code:
        value, low = self._with_moments(node.this, node.args["low"])
        _, high = self._with_moments(node.this, node.args["high"])
        first = self.operators.comparison(value, low, ">=", node.this, node.args["low"])
        second = self.operators.comparison(value, high, "<=", node.this, node.args["high"])
        return Code(f"({first.text} and {second.text})", Primitive.BOOLEAN)

    def member(self, node: exp.In) -> Code:
        """Write IN: all items get one type, and NULL equals none of them."""
        value, *items = self._unified([node.this, *node.expressions], "IN")
        tests = [
            self._equal(value, item, node.this, each).text
            for item, each in zip(items, node.expressions, strict=True)
            if not isinstance(each, exp.Null)
        ]
        return Code(f"({' or '.join(tests) or 'False'})", Primitive.BOOLEAN)

    def like(self, node: exp.Like) -> Code:
        return self._like(node, "")

    def escaped(self, node: exp.Escape) -> Code:
        sign = str(node.expression.this)
        if not isinstance(node.this, exp.Like) or len(sign) != 1:
            raise SqlError("ESCAPE takes one character", start_of(node))
        return self._like(node.this, sign)

    def _like(self, node: exp.Like, escape: str) -> Code:
        text = self.typed(node.this, Primitive.STRING, "The text before LIKE")
        pattern = self.typed(node.expression, Primitive.STRING, "The pattern of LIKE")
        # Both become constants even if the test below replaces them: the digest of the topology covers constants.
        known, sign = self.names.get(pattern), self.constant(escape)
        if not isinstance(known, str):
            called = f"{self.constant(like)}({text}, {pattern}, {sign})"
        else:
            try:
                called = f"{self.constant(like_test(known, escape))}({text})"
            except ValueError as error:
                raise SqlError(str(error), start_of(node.expression)) from None
        return _negated_if(node, Code(called, Primitive.BOOLEAN))

    def case(self, node: exp.Case) -> Code:
        subject = node.this
        tests = []
        for each in node.args["ifs"]:
            if subject is None:
                tests.append(self.typed(each.this, Primitive.BOOLEAN, "The condition after WHEN"))
            else:
                tests.append(self._equal(self.code(subject), self.code(each.this), subject, each.this).text)
        values = [each.args["true"] for each in node.args["ifs"]]
        found = self._unified([*values, node.args.get("default") or exp.Null()], "CASE")
        choices = (f"{value.text} if {test} else " for test, value in zip(tests, found[:-1], strict=True))
        return Code(f"({''.join(choices)}{found[-1].text})", found[0].type)

    def _equal(self, value: Code, other: Code, *sides: exp.Expr) -> Code:
        # A mistake is at the value, not at the CASE or IN around it.
        try:
            return self.operators.comparison(value, other, "==", *sides)
        except SqlError as error:
            if error.start is None:
                error.start = start_of(sides[1])
            raise

    def _unified(self, nodes: Sequence[exp.Expr], what: str) -> list[Code]:
        return self.operators.unified([self.code(each) for each in nodes], [_constant(each) for each in nodes], what)

    def cast(self, node: exp.Cast) -> Code:
        return self.operators.cast(self.code(node.this), node.meta["type"])

    # Constructors and calls

    def _part(self, code: Code) -> str:
        # A part that cannot be computed is NULL, and the other parts remain. Python has no `try` within an expression.
        if SIMPLE.fullmatch(code.text):
            return code.text
        return f"{self.constant(value_or_null)}(lambda: {code.text})"

    def array(self, node: exp.Array) -> Code:
        items = self._unified(node.expressions, "ARRAY")
        if not items or items[0].type is None:
            message = (
                "Array constructor cannot be empty, or of NULL alone. Please supply at least one value with a type"
            )
            raise SqlError(message, start_of(node))
        return Code(f"[{', '.join(self._part(each) for each in items)}]", Array(items[0].type))

    def map(self, node: exp.Map) -> Code:
        """Write MAP(...)."""
        pairs = node.args["keys"]
        keys = self._unified([each.this for each in pairs], "MAP")
        values = self._unified([each.expression for each in pairs], "MAP")
        if not pairs or keys[0].type is None or values[0].type is None:
            message = "Map constructor cannot be empty, or of NULL alone. Please supply at least one entry with types"
            raise SqlError(message, start_of(node))
        entries = ", ".join(f"{key.text}: {self._part(value)}" for key, value in zip(keys, values, strict=True))
        return Code(f"{{{entries}}}", Map(keys[0].type, values[0].type))

    def struct(self, node: exp.Struct) -> Code:
        """Write STRUCT(...)."""
        fields: list[tuple[str, SqlType]] = []
        parts = []
        for each in node.expressions:
            code = self.code(each.expression)
            if each.this.name in dict(fields):
                raise SqlError(f"Duplicate field names found in STRUCT: {each.this.name}", start_of(node))
            fields.append((each.this.name, code.type or Primitive.STRING))
            parts.append(f"{self.constant(each.this.name)}: {self._part(code)}")
        return Code(f"{{{', '.join(parts)}}}", Struct(tuple(fields)))

    def call(self, node: exp.Anonymous) -> Code:
        name = str(node.this)
        if is_aggregate(name) or is_table_function(name):
            message = f"{name} cannot be used here, or is not supported"
            raise SqlError(
                message, start_of(node), hint="Use aggregates in the SELECT of an aggregation, or in HAVING."
            )
        given = node.expressions
        others = {number: self.code(each) for number, each in enumerate(given) if not isinstance(each, exp.Lambda)}
        try:
            codes = [others.get(number) for number in range(len(given))]
            if name.upper() in _OF_ONE_TYPE and any(each.type in TIMES for each in others.values()):
                codes = [*self._unified(given, name)]
            if None in codes:
                codes = self._with_lambdas(name, given, others)
            function = find_scalar(name, [each.type for each in codes if each is not None])
        except (UnknownFunction, WrongArguments) as error:
            raise SqlError(error.message, start_of(node), hint=error.hint) from None
        # It only marks a column as a value for the planner: as a call it would cost time for each row.
        if function.name == "AS_VALUE":
            return Code(others[0].text, function.returns)
        for argument, code, check in zip(given, codes, function.checks, strict=False):
            if code is not None and check is not None:
                self._check_constant(code, argument, check)
        texts = ", ".join(self._argument(each) for each in codes if each is not None)
        applied = self.constant(function.apply)
        if function.is_late:
            self.operators.late.add(applied)
        return self.operators.possible(Code(f"{applied}({texts})", function.returns))

    def filtered(self, node: exp.Filter) -> Code:
        """Refuse FILTER, which the planner takes from aggregates."""
        # An aggregate is refused for its place.
        self.code(node.this)
        raise misplaced(node)

    def rolled(self, node: exp.Window) -> Code:
        """Refuse OVER, which the planner takes from the projection."""
        raise misplaced(node)

    def _check_constant(self, code: Code, node: exp.Expr, check: Callable[[Any], object]) -> None:
        try:
            value = self.operators.value(code)
        except UnknownValue:
            return
        try:
            _ = None if value is None else check(value)
        except (ValueError, ArithmeticError) as error:
            raise SqlError(reason(error), start_of(node), hint=NEVER) from None

    def _argument(self, code: Code) -> str:
        return code.text if isinstance(code.type, LambdaType) else self._part(code)

    def _with_lambdas(self, name: str, given: Sequence[exp.Expr], others: Mapping[int, Code]) -> list[Code | None]:
        parameters = iter(lambda_parameters(name, [each.type for each in others.values()]))
        return [others.get(n) or self._lambda(each, next(parameters, ())) for n, each in enumerate(given)]

    def _lambda(self, node: exp.Expr, types: tuple[SqlType, ...]) -> Code:
        names = [each.name for each in node.expressions]
        if len(names) != len(types):
            raise SqlError(f"This lambda has {len(types)} parameters, not {len(names)}", start_of(node))
        # Parameters are numbered by depth: an inner lambda's must not hide those of the lambda around it.
        outer, depth = dict(self.lambdas), len(self.lambdas)
        own = {name: Code(f"p{depth}_{n}", type_) for n, (name, type_) in enumerate(zip(names, types, strict=True))}
        self.lambdas.update(own)
        body = self.code(node.this)
        self.lambdas = outer
        texts = ", ".join(each.text for each in own.values())
        return Code(f"(lambda {texts}: {body.text})", LambdaType(types, body.type or Primitive.STRING))


_WRITERS: Mapping[type[exp.Expr], Callable[[Compiler, Any], Code]] = {
    exp.Column: Compiler.column,
    exp.Literal: Compiler.literal,
    exp.Null: Compiler.null,
    exp.Boolean: Compiler.boolean,
    exp.Paren: Compiler.paren,
    exp.Dot: Compiler.dot,
    exp.Bracket: Compiler.bracket,
    **dict.fromkeys(_ARITHMETIC, Compiler.arithmetic),
    exp.Neg: Compiler.negation,
    **dict.fromkeys(_COMPARISONS, Compiler.comparison),
    exp.And: Compiler.logic,
    exp.Or: Compiler.logic,
    exp.NullSafeEQ: Compiler.distinction,
    exp.NullSafeNEQ: Compiler.distinction,
    exp.Not: Compiler.negated,
    exp.Is: Compiler.is_null,
    exp.Between: Compiler.between,
    exp.In: Compiler.member,
    exp.Like: Compiler.like,
    exp.Escape: Compiler.escaped,
    exp.Case: Compiler.case,
    exp.Cast: Compiler.cast,
    exp.Array: Compiler.array,
    exp.Map: Compiler.map,
    exp.Struct: Compiler.struct,
    exp.Anonymous: Compiler.call,
    exp.Filter: Compiler.filtered,
    exp.Window: Compiler.rolled,
}


def check_known(node: exp.Anonymous) -> None:
    """Make sure that a function of the name exists, whatever its arguments."""
    try:
        find_scalar(str(node.this), [])
    except UnknownFunction as error:
        raise SqlError(error.message, start_of(node), hint=error.hint) from None
    except WrongArguments:
        return


def misplaced(node: exp.Filter | exp.Window) -> SqlError:
    """Return the error of a FILTER or OVER in another place than the planner takes it from."""
    if isinstance(node, exp.Filter):
        return SqlError("FILTER (WHERE ...) follows aggregate functions only", start_of(node))
    message = "OVER stands in the SELECT of a statement, without GROUP BY and outside of other calls with OVER"
    return SqlError(message, start_of(node), hint="Compute it in an earlier statement, and use its column.")
