"""Expressions become Python: types are checked here, and the code of a function is written.

Names and constants of users never stand in the code: it refers to them by names of its own.
"""

from __future__ import annotations

import decimal
import difflib
import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from pipeline.sql import operators
from pipeline.sql.errors import SqlError, nearest
from pipeline.sql.functions import (
    LambdaType,
    UnknownFunction,
    WrongArguments,
    find_scalar,
    is_aggregate,
    is_table_function,
    lambda_parameters,
)
from pipeline.sql.types import Array, Decimal, Map, Primitive, SqlType, Struct
from pipeline.topology.fingerprint import GENERATED_FROM, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ARITHMETIC = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_COMPARISONS = {exp.EQ: "==", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_ORDER = (Primitive.INTEGER, Primitive.BIGINT, None, Primitive.DOUBLE)
_DIGITS: dict[SqlType, Decimal] = {Primitive.INTEGER: Decimal(10, 0), Primitive.BIGINT: Decimal(19, 0)}
_MOST_DIGITS = 64
_DECIMAL_RANK, _DOUBLE_RANK = 2, 3
_CONSTANTS = (str, int, float, decimal.Decimal)
_TIMES = {Primitive.DATE, Primitive.TIME, Primitive.TIMESTAMP}


@dataclass(frozen=True, slots=True)
class Field:
    """A column that expressions can refer to, at its place in the row.

    Args:
        name: Its name.
        type: Its type.
        source: Name or alias of its source; empty if it has none.
        is_key: Whether it is in the key of the rows.
        is_pseudo: Whether stars leave it out.
        is_source_key: Whether it is in the key of its source; such columns lead where stars are written out.
    """

    name: str
    type: SqlType
    source: str = ""
    is_key: bool = False
    is_pseudo: bool = False
    is_source_key: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Python code of an expression, and the type of its value; None is the type of NULL."""

    text: str
    type: Any


def start_of(node: exp.Expr) -> int | None:
    """Return the place of an expression in the text, if one of its parts knows it."""
    for part in node.walk():
        if "start" in part.meta:
            return int(part.meta["start"])
    return None


def find_field(fields: Sequence[Field], node: exp.Column) -> int:
    """Return the place of the column that an expression names.

    Raises:
        SqlError: If there is none, or more than one.
    """
    name, source = node.name, node.table
    found = [number for number, each in enumerate(fields) if each.name == name and source in {"", each.source}]
    shown = f"{source}.{name}" if source else name
    if not found:
        near = difflib.get_close_matches(name, [each.name for each in fields], 1)
        close = nearest(name, near or [each.name for each in fields if not each.is_pseudo])
        message = f"Column '{shown}' cannot be resolved."
        raise SqlError(message, start_of(node), hint=close)
    if len(found) > 1:
        message = f"Column '{shown}' is ambiguous."
        hint = "Could be: " + ", ".join(f"{fields[number].source}.{name}" for number in found)
        raise SqlError(message, start_of(node), hint=hint)
    return found[0]


@dataclass(slots=True)
class Compiler:
    """Writes the code of expressions over one kind of rows."""

    fields: Sequence[Field]
    names: dict[str, Any] = field(default_factory=dict)
    lambdas: dict[str, Code] = field(default_factory=dict)

    def constant(self, value: Any) -> str:
        """Return a name of the code for a value."""
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def code(self, node: exp.Expr) -> Code:
        """Return the code of an expression.

        Raises:
            SqlError: If it names what does not exist, or its types do not fit.
        """
        for kind, write in _WRITERS.items():
            if isinstance(node, kind):
                try:
                    return write(self, node)
                except SqlError as error:
                    if error.start is None:
                        error.start = start_of(node)
                    raise
        message = f"{type(node).__name__.upper()} is not supported"
        raise SqlError(message, start_of(node))

    def typed(self, node: exp.Expr, wanted: SqlType, what: str) -> str:
        """Return the code of an expression that has to have a type; NULL has any."""
        code = self.code(node)
        if code.type not in {wanted, None}:
            message = f"{what} must be {wanted}, not {code.type}"
            raise SqlError(message, start_of(node))
        return code.text

    # Operands

    def column(self, node: exp.Column) -> Code:
        """Write a column, or the parameter of a lambda."""
        if not node.table and node.name in self.lambdas:
            return self.lambdas[node.name]
        place = find_field(self.fields, node)
        return Code(f"row[{place}]", self.fields[place].type)

    def literal(self, node: exp.Literal) -> Code:
        """Write a constant."""
        text = str(node.this)
        if node.is_string:
            return Code(self.constant(text), Primitive.STRING)
        if text.isdigit():
            number = int(text)
            if number < 1 << 31:
                return Code(self.constant(number), Primitive.INTEGER)
            if number < 1 << 63:
                return Code(self.constant(number), Primitive.BIGINT)
            message = f"Number {text} is too large"
            raise SqlError(message)
        if "e" in text.lower():
            return Code(self.constant(float(text)), Primitive.DOUBLE)
        value = decimal.Decimal(text)
        digits, scale = len(value.as_tuple().digits), -int(value.as_tuple().exponent)
        return Code(self.constant(value), Decimal(max(digits, scale), scale))

    def null(self, _node: exp.Expr) -> Code:
        """Write NULL."""
        return Code("None", None)

    def boolean(self, node: exp.Boolean) -> Code:
        """Write TRUE or FALSE."""
        return Code("True" if node.this else "False", Primitive.BOOLEAN)

    def paren(self, node: exp.Paren) -> Code:
        """Write what stands in brackets."""
        return self.code(node.this)

    def dot(self, node: exp.Dot) -> Code:
        """Write the field of a struct."""
        value, name = self.code(node.this), node.expression.name
        if not isinstance(value.type, Struct):
            message = f"Only a STRUCT has fields, and this is {value.type}"
            raise SqlError(message, start_of(node))
        type_ = value.type.field(name)
        if type_ is None:
            message = f"Could not find field '{name}' in {value.type}"
            raise SqlError(message, start_of(node), hint=nearest(name, [each for each, _ in value.type.fields]))
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
            message = f"{value.type} has no item of type {index.type}"
            raise SqlError(message, start_of(node))
        return Code(f"{self.constant(operators.subscript)}({value.text}, {index.text})", found)

    # Operators

    def arithmetic(self, node: exp.Binary) -> Code:
        """Write + - * / and %."""
        left, right, sign = self.code(node.this), self.code(node.expression), _ARITHMETIC[type(node)]
        if sign == "+" and left.type == right.type == Primitive.STRING:
            return Code(f"({left.text} + {right.text})", Primitive.STRING)
        result = _arithmetic_type(sign, left.type, right.type)
        if result is None:
            message = f"Unsupported arithmetic types. {left.type} {right.type}"
            raise SqlError(message, start_of(node))
        if isinstance(result, Decimal):
            return self._decimal(sign, left, right, result)
        if result is Primitive.DOUBLE:
            return self._double(sign, left, right)
        wrap = self.constant(operators.wrapped(32 if result is Primitive.INTEGER else 64))
        if sign in "/%":
            function = operators.whole_division if sign == "/" else operators.whole_remainder
            return Code(f"{wrap}({self.constant(function)}({left.text}, {right.text}))", result)
        return Code(f"{wrap}({left.text} {sign} {right.text})", result)

    def _decimal(self, sign: str, left: Code, right: Code, result: Decimal) -> Code:
        to_scale, number = self.constant(operators.scaled(result.scale)), self.constant(decimal.Decimal)
        context = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder"}[sign]
        function = self.constant(getattr(operators.CONTEXT, context))
        return Code(f"{to_scale}({function}({number}({left.text}), {number}({right.text})))", result)

    def _double(self, sign: str, left: Code, right: Code) -> Code:
        to_float = self.constant(float)
        first, second = f"{to_float}({left.text})", f"{to_float}({right.text})"
        if sign in "/%":
            function = operators.double_division if sign == "/" else math.fmod
            return Code(f"{self.constant(function)}({first}, {second})", Primitive.DOUBLE)
        return Code(f"({first} {sign} {second})", Primitive.DOUBLE)

    def negation(self, node: exp.Neg) -> Code:
        """Write a minus sign."""
        value = self.code(node.this)
        if _rank(value.type) is None:
            message = f"A minus sign stands before numbers, and this is {value.type}"
            raise SqlError(message)
        return Code(f"(-({value.text}))", value.type)

    def comparison(self, node: exp.Binary) -> Code:
        """Write a comparison; it is false if a side is NULL."""
        left, right = self.code(node.this), self.code(node.expression)
        return self._compared(left, right, _COMPARISONS[type(node)], node)

    def _compared(self, left: Code, right: Code, sign: str, node: exp.Expr) -> Code:
        left, right = self._alike(left, right)
        if not _comparable(left.type, right.type, sign):
            message = f"Cannot compare {left.type or 'NULL'} with {right.type or 'NULL'} with {sign.replace('==', '=')}"
            raise SqlError(message, start_of(node))
        one, two = f"l{len(self.names)}", f"r{len(self.names)}"
        self.constant(None)
        return Code(
            f"(({one} := {left.text}) is not None and ({two} := {right.text}) is not None and {one} {sign} {two})",
            Primitive.BOOLEAN,
        )

    def _alike(self, left: Code, right: Code) -> tuple[Code, Code]:
        """Convert texts that are compared with times."""
        if left.type in _TIMES and right.type is Primitive.STRING:
            return left, self._converted(right, left.type)
        if right.type in _TIMES and left.type is Primitive.STRING:
            return self._converted(left, right.type), right
        return left, right

    def _converted(self, code: Code, to: SqlType | None) -> Code:
        if to is None or code.type in {None, to}:
            return code
        function = operators.cast(code.type, to)
        if function is None:
            message = f"{code.type} cannot become {to}"
            raise SqlError(message)
        return Code(f"{self.constant(function)}({code.text})", to)

    def logic(self, node: exp.Binary) -> Code:
        """Write AND and OR."""
        word = "and" if isinstance(node, exp.And) else "or"
        left = self.typed(node.this, Primitive.BOOLEAN, f"What stands before {word.upper()}")
        right = self.typed(node.expression, Primitive.BOOLEAN, f"What stands behind {word.upper()}")
        return Code(f"({left} {word} {right})", Primitive.BOOLEAN)

    def negated(self, node: exp.Not) -> Code:
        """Write NOT."""
        return Code(f"(not {self.typed(node.this, Primitive.BOOLEAN, 'What stands behind NOT')})", Primitive.BOOLEAN)

    def is_null(self, node: exp.Is) -> Code:
        """Write IS NULL."""
        if not isinstance(node.expression, exp.Null):
            message = "IS takes NULL or NOT NULL"
            raise SqlError(message, start_of(node))
        return Code(f"({self.code(node.this).text} is None)", Primitive.BOOLEAN)

    def between(self, node: exp.Between) -> Code:
        """Write BETWEEN."""
        value, low, high = (self.code(node.args[name]) for name in ("this", "low", "high"))
        first = self._compared(value, low, ">=", node)
        second = self._compared(value, high, "<=", node)
        return Code(f"({first.text} and {second.text})", Primitive.BOOLEAN)

    def member(self, node: exp.In) -> Code:
        """Write IN."""
        value = self.code(node.this)
        tests = [self._compared(value, self._fitting(each, value.type), "==", node).text for each in node.expressions]
        return Code(f"({' or '.join(tests) or 'False'})", Primitive.BOOLEAN)

    def _fitting(self, node: exp.Expr, wanted: SqlType | None) -> Code:
        """Return an item of IN; a constant text stands for the number that it holds."""
        code = self.code(node)
        if code.type is not Primitive.STRING or wanted is None or _rank(wanted) is None:
            return code
        convert = operators.cast(Primitive.STRING, wanted)
        try:
            value = convert(str(node.this)) if isinstance(node, exp.Literal) and convert else None
        except (ValueError, ArithmeticError):
            value = None
        if value is None:
            message = f"Invalid predicate: {node.this if isinstance(node, exp.Literal) else 'a STRING'} is no {wanted}"
            raise SqlError(message, start_of(node))
        return Code(self.constant(value), wanted)

    def like(self, node: exp.Like) -> Code:
        """Write LIKE."""
        return self._like(node, "")

    def escaped(self, node: exp.Escape) -> Code:
        """Write LIKE with ESCAPE."""
        sign = str(node.expression.this)
        if not isinstance(node.this, exp.Like) or len(sign) != 1:
            message = "ESCAPE takes one character"
            raise SqlError(message, start_of(node))
        return self._like(node.this, sign)

    def _like(self, node: exp.Like, escape: str) -> Code:
        text = self.typed(node.this, Primitive.STRING, "What LIKE looks at")
        pattern = self.typed(node.expression, Primitive.STRING, "The pattern of LIKE")
        sign = self.constant(escape)
        return Code(f"{self.constant(operators.like)}({text}, {pattern}, {sign})", Primitive.BOOLEAN)

    def case(self, node: exp.Case) -> Code:
        """Write CASE."""
        subject = node.this
        branches = []
        for each in node.args["ifs"]:
            if subject is None:
                test = self.typed(each.this, Primitive.BOOLEAN, "What stands behind WHEN")
            else:
                test = self._compared(self.code(subject), self.code(each.this), "==", each.this).text
            branches.append((test, self.code(each.args["true"])))
        default = self.code(node.args["default"]) if node.args.get("default") is not None else Code("None", None)
        found = self._unified([*(value for _, value in branches), default], "CASE", node)
        text = found[-1].text
        for (test, _), value in reversed(list(zip(branches, found[:-1], strict=True))):
            text = f"({value.text} if {test} else {text})"
        return Code(text, found[0].type)

    def _unified(self, codes: Sequence[Code], what: str, node: exp.Expr) -> list[Code]:
        """Return values of one type: that of the widest number, or of all others."""
        types = [code.type for code in codes if code.type is not None]
        target = _widest(types)
        if types and target is None:
            message = f"{what} has values of different types: " + ", ".join(dict.fromkeys(map(str, types)))
            raise SqlError(message, start_of(node))
        return [Code(self._converted(code, target).text, target) for code in codes]

    def cast(self, node: exp.Cast) -> Code:
        """Write CAST."""
        value, target = self.code(node.this), node.meta["type"]
        function = operators.cast(value.type, target)
        if function is None:
            message = f"Cast of {value.type} to {target} is not supported"
            raise SqlError(message, start_of(node))
        return Code(f"{self.constant(function)}({value.text})", target)

    # Constructors and calls

    def array(self, node: exp.Array) -> Code:
        """Write ARRAY[...]."""
        items = self._unified([self.code(each) for each in node.expressions], "ARRAY", node)
        if not items or items[0].type is None:
            message = (
                "Array constructor cannot be empty, or of NULL alone. Please supply at least one value with a type"
            )
            raise SqlError(message, start_of(node))
        return Code(f"[{', '.join(each.text for each in items)}]", Array(items[0].type))

    def map(self, node: exp.Map) -> Code:
        """Write MAP(...)."""
        pairs = node.args["keys"]
        keys = self._unified([self.code(each.this) for each in pairs], "MAP", node)
        values = self._unified([self.code(each.expression) for each in pairs], "MAP", node)
        if not pairs or keys[0].type is None or values[0].type is None:
            message = "Map constructor cannot be empty, or of NULL alone. Please supply at least one entry with types"
            raise SqlError(message, start_of(node))
        entries = ", ".join(f"{key.text}: {value.text}" for key, value in zip(keys, values, strict=True))
        return Code(f"{{{entries}}}", Map(keys[0].type, values[0].type))

    def struct(self, node: exp.Struct) -> Code:
        """Write STRUCT(...)."""
        fields, parts = [], []
        for each in node.expressions:
            code = self.code(each.expression)
            fields.append((each.this.name, code.type or Primitive.STRING))
            parts.append(f"{self.constant(each.this.name)}: {code.text}")
        return Code(f"{{{', '.join(parts)}}}", Struct(tuple(fields)))

    def call(self, node: exp.Anonymous) -> Code:
        """Write a call of a function."""
        name = str(node.this)
        if is_aggregate(name) or is_table_function(name):
            message = f"{name} cannot stand here, or is not supported"
            raise SqlError(
                message, start_of(node), hint="Aggregates stand in the SELECT of an aggregation, or in HAVING."
            )
        given = node.expressions
        others = {number: self.code(each) for number, each in enumerate(given) if not isinstance(each, exp.Lambda)}
        try:
            codes = [others.get(number) for number in range(len(given))]
            if None in codes:
                codes = self._with_lambdas(name, given, others)
            function = find_scalar(name, [each.type for each in codes if each is not None])
        except (UnknownFunction, WrongArguments) as error:
            raise SqlError(error.message, start_of(node), hint=error.hint) from None
        texts = ", ".join(each.text for each in codes if each is not None)
        return Code(f"{self.constant(function.apply)}({texts})", function.returns)

    def _with_lambdas(self, name: str, given: Sequence[exp.Expr], others: Mapping[int, Code]) -> list[Code | None]:
        parameters = iter(lambda_parameters(name, [each.type for each in others.values()]))
        return [others.get(n) or self._lambda(each, next(parameters, ())) for n, each in enumerate(given)]

    def _lambda(self, node: exp.Expr, types: tuple[SqlType, ...]) -> Code:
        names = [each.name for each in node.expressions]
        if len(names) != len(types):
            message = f"This lambda has {len(types)} parameters, not {len(names)}"
            raise SqlError(message, start_of(node))
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
}


def _rank(of: SqlType | None) -> int | None:
    """Return the place of a type among the numbers; None for others."""
    if isinstance(of, Decimal):
        return _DECIMAL_RANK
    return None if of is None or of not in _ORDER else _ORDER.index(of)


def _widest(types: Sequence[SqlType]) -> SqlType | None:
    if len(set(types)) == 1:
        return types[0]
    ranks = [_rank(each) for each in types]
    if not types or None in ranks:
        return None
    decimals = [each if isinstance(each, Decimal) else _DIGITS.get(each) for each in types]
    if max(rank for rank in ranks if rank is not None) != _DECIMAL_RANK:
        return max(types, key=lambda each: _rank(each) or 0)
    whole = max(each.precision - each.scale for each in decimals if each is not None)
    scale = max(each.scale for each in decimals if each is not None)
    return Decimal(min(whole + scale, _MOST_DIGITS), scale)


def _arithmetic_type(sign: str, left: SqlType | None, right: SqlType | None) -> SqlType | None:
    one, two = _rank(left), _rank(right)
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
    return Decimal(min(precision, _MOST_DIGITS), min(scale, _MOST_DIGITS))


def _comparable(left: SqlType | None, right: SqlType | None, sign: str) -> bool:
    if left is None or right is None:
        return False
    if _rank(left) is not None and _rank(right) is not None:
        return True
    if {left, right} == {Primitive.DATE, Primitive.TIMESTAMP}:
        return False
    ordered = isinstance(left, Primitive) and left is not Primitive.BOOLEAN
    return left == right and (ordered or sign in {"==", "!="})


def check_known(node: exp.Anonymous) -> None:
    """Make sure that there is a function of the name, whatever it is called with.

    Raises:
        SqlError: If there is none.
    """
    try:
        find_scalar(str(node.this), [])
    except UnknownFunction as error:
        raise SqlError(error.message, start_of(node), hint=error.hint) from None
    except WrongArguments:
        return


def function_of(compiler: Compiler, codes: Sequence[Code], note: str = "") -> Callable[[Any], Any]:
    """Return a function that makes a row of another; a value that cannot be computed is NULL.

    Args:
        compiler: Which wrote the code.
        codes: One for each value of the row.
        note: What else the digest of the topology depends on.
    """
    lines = ["    if row is None:", "        return None"]
    for number, code in enumerate(codes):
        lines += ["    try:", f"        v{number} = {code.text}", "    except Exception:", f"        v{number} = None"]
    made = "".join(f"v{number}, " for number in range(len(codes)))
    return _defined([*lines, f"    return ({made})"], compiler.names, note)


def predicate_of(compiler: Compiler, code: Code) -> Callable[[Any], bool]:
    """Return a function that tells whether a row passes; one that cannot be tested does not."""
    lines = [
        "    try:",
        f"        return row is not None and ({code.text}) is True",
        "    except Exception:",
        "        return False",
    ]
    return _defined(lines, compiler.names, "")


def _defined(lines: Sequence[str], names: Mapping[str, Any], note: str) -> Callable[[Any], Any]:
    """Define a function. Its digest covers its lines and the values behind their names."""
    namespace = dict(names)
    exec("\n".join(["def made(row):", *lines]), namespace)  # noqa: S102 - names of our own only
    made: Callable[[Any], Any] = namespace["made"]
    setattr(made, GENERATED_FROM, ([*lines], {name: digest_of(value) for name, value in names.items()}, note))
    return made


def digest_of(value: Any) -> object:
    """Return what stands for a value in digests: of functions of ours the name, of users' what they do."""
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if isinstance(value, functools.partial):
        return [digest_of(each) for each in (value.func, *value.args, *value.keywords.values())]
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if callable(value) and not name.startswith("pipeline."):
        return code_of(value)
    cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    return [name, [digest_of(each) for each in cells if callable(each)]]
