"""Expressions of columns, for places that take a function of the value: `filter(col("amount") > 100)`.

An expression is data: it is pickled, shown and digested as it was written. It becomes Python code, which generated functions of
tasks contain instead of a call; called, it does what a lambda does.

Null is SQL's: an operation with None results in None, and a test that results in None does not hold. Everything else is
Python's, including errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from riverrun.arguments import STANDS_FOR
from riverrun.errors import TopologyError
from riverrun.processor.expression_code import function_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.processor.expression_code import ExpressionCode, Place

_ONLY = object()
_USES = "Combine tests by & | ~, each in parentheses: (col('a') > 1) & (col('b') == 2)."
_LOGIC = frozenset("&|")
_ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%"})
_NULL = "Nothing equals null: use col(...).is_null()."


@dataclass(frozen=True, eq=False, repr=False)
class Expression:
    """An expression of a value's columns, as `col` and `lit` begin it.

    Operators: `+ - * / // %`, `== != < <= > >=`, and `& | ~` of tests. A place that takes a function of the value, or of key
    and value, takes an expression; so do named aggregates.

    >>> large = (col("price") * col("n") > 100) & ~col("country").isin("NO", "SE")
    >>> large
    (((col('price') * col('n')) > 100) & (~col('country').isin('NO', 'SE')))
    >>> large({"price": 60, "n": 2, "country": "DK"}), large({"price": None, "n": 2, "country": "DK"})
    (True, None)

    Args:
        kind: Name or sign of the operation: `column`, `literal`, `isin`, `+`.
        parts: Its operands: expressions, or the constants that some operations take.
    """

    kind: str
    parts: tuple[Any, ...]

    def __call__(self, first: Any, value: Any = _ONLY, /) -> Any:
        """Compute the expression of a value, or of a key and a value; None for None.

        Raises:
            ProcessingError: If the value has no such column, or a test is not True, False or None.
        """
        return self._made(first if value is _ONLY else value)

    def holds(self, first: Any, value: Any = _ONLY, /) -> Any:
        """Return whether it is True for a value, or for a key and a value; None for None.

        Raises:
            ProcessingError: If the value has no such column, or the expression is not True, False or None.
        """
        return self._test(first if value is _ONLY else value)

    def check(self) -> None:
        """Make sure that it can be computed.

        Raises:
            TopologyError: If it is nested too deeply, or too long.
        """
        _ = self._made

    @cached_property
    def _made(self) -> Callable[[Any], Any]:
        return function_of("expression", (self,), self._text)

    @cached_property
    def _test(self) -> Callable[[Any], Any]:
        return function_of("test", (self,), lambda code, place: place(code.test(self)))

    def _text(self, code: ExpressionCode, place: Place) -> str:
        return place(code.value(self))

    def is_null(self) -> Expression:
        """Return the test whether it is None."""
        return Expression("is_null", (self,))

    def if_null(self, other: Any) -> Expression:
        """Return the expression with a value, or another expression, in place of None."""
        return Expression("if_null", (self, _operand(other)))

    def isin(self, *values: Any) -> Expression:
        """Return the test whether it is one of these values, which may be passed as one list, set or other iterable.

        Raises:
            TopologyError: If one of them is None, or an expression.
        """
        given: Any = values[0] if len(values) == 1 and _is_many(values[0]) else values
        found = tuple(sorted(given, key=repr) if isinstance(given, set | frozenset) else given)
        if any(each is None or isinstance(each, Expression) for each in found):
            message = "isin() takes values, neither null nor expressions"
            raise TopologyError(message, hint="Combine tests by |, and test for null by is_null().")
        return Expression("isin", (self, found))

    def __getitem__(self, name: str) -> Expression:
        """Return a field of a column that is itself a mapping or an object."""
        return Expression("item", (self, _name(name)))

    def __add__(self, other: Any) -> Expression:
        return _binary("+", self, other)

    def __radd__(self, other: Any) -> Expression:
        return _binary("+", other, self)

    def __sub__(self, other: Any) -> Expression:
        return _binary("-", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _binary("-", other, self)

    def __mul__(self, other: Any) -> Expression:
        return _binary("*", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _binary("*", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _binary("/", other, self)

    def __floordiv__(self, other: Any) -> Expression:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Any) -> Expression:
        return _binary("//", other, self)

    def __mod__(self, other: Any) -> Expression:
        return _binary("%", self, other)

    def __rmod__(self, other: Any) -> Expression:
        return _binary("%", other, self)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("==", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("!=", self, other)

    def __lt__(self, other: Any) -> Expression:
        return _binary("<", self, other)

    def __le__(self, other: Any) -> Expression:
        return _binary("<=", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _binary(">", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _binary(">=", self, other)

    def __and__(self, other: Any) -> Expression:
        return _binary("&", self, other)

    def __rand__(self, other: Any) -> Expression:
        return _binary("&", other, self)

    def __or__(self, other: Any) -> Expression:
        return _binary("|", self, other)

    def __ror__(self, other: Any) -> Expression:
        return _binary("|", other, self)

    def __invert__(self) -> Expression:
        return Expression("~", (_test(self),))

    def __neg__(self) -> Expression:
        return Expression("-", (self,))

    def __bool__(self) -> bool:
        raise TopologyError(f"{self!r} is neither true nor false before there is a record", hint=_USES)

    def __iter__(self) -> Any:
        raise TopologyError(f"{self!r} cannot be iterated over", hint="col('a')['b'] is the field b of column a.")

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.kind, self.parts)

    def __repr__(self) -> str:
        one, *more = self.parts
        match self.kind:
            case "column":
                return f"col({one!r})"
            case "literal":
                return f"lit({one!r})"
            case "item":
                return f"{one!r}[{more[0]!r}]"
            case "isin":
                return f"{one!r}.isin({', '.join(map(repr, more[0]))})"
            case "is_null" | "if_null":
                return f"{one!r}.{self.kind}({', '.join(map(repr, more))})"
        if not more:
            return f"({self.kind}{one!r})"
        left, right = (_plainly(one), repr(more[0])) if more[0].kind != "literal" else (repr(one), _plainly(more[0]))
        return f"({left} {self.kind} {right})"


setattr(Expression, STANDS_FOR, ("value", "key, value"))


def decision_of(predicate: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that tests a predicate; of an expression, that is `holds`."""
    return predicate.holds if isinstance(predicate, Expression) else predicate


def col(name: str) -> Expression:
    """Return the expression of a column: an entry of a mapping, or an attribute of an object.

    >>> from riverrun import JSON, STRING, Consumed, Produced, StreamsBuilder, col
    >>> from riverrun.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", Consumed(STRING, JSON)).filter(col("amount") > 1)
    >>> orders.map_values(item=col("item"), total=col("price") * col("amount")).to("large", Produced(STRING, JSON))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     pipe = driver.input_topic("orders", STRING, JSON).pipe_input
    ...     pipe("ann", {"item": "chair", "price": 40, "amount": 2})
    ...     pipe("bob", {"item": "table", "price": 90, "amount": 1})
    ...     driver.output_topic("large", STRING, JSON).read_key_values_to_list()
    [('ann', {'item': 'chair', 'total': 80})]

    Args:
        name: The column. A value without it is an error, which `processing.exception.handler` decides about.

    Raises:
        TopologyError: If the name is no text.
    """
    return Expression("column", (_name(name),))


def lit(value: Any) -> Expression:
    """Return the expression of a constant, where no other operand makes it one.

    >>> lit(1) / col("n")
    (1 / col('n'))
    """
    return Expression("literal", (value,))


@dataclass(frozen=True, eq=False, repr=False)
class Row:
    """Makes a dict of named expressions of a value; None of None.

    Args:
        columns: The expressions by name.
    """

    columns: tuple[tuple[str, Expression], ...]

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Row:
        """Return the row of the named expressions of a call; refuse anything else."""
        for name, given in columns.items():
            if not isinstance(given, Expression):
                message = f"{name} must be an expression of columns, not {given!r} ({type(given).__name__})"
                raise TopologyError(
                    message, hint=f"{name}=col({given!r}) is a column, {name}=lit({given!r}) a constant."
                )
        return cls(tuple(columns.items()))

    def __call__(self, value: Any) -> Any:
        return self._made(value)

    def check(self) -> None:
        """Make sure that it can be computed."""
        _ = self._made

    @cached_property
    def _made(self) -> Callable[[Any], Any]:
        return function_of("row", self.parts, self._text)

    def _text(self, code: ExpressionCode, place: Place) -> str:
        return f"{{{', '.join(f'{name!r}: {place(code.value(each))}' for name, each in self.columns)}}}"

    @property
    def kind(self) -> str:
        """Return the kind of operation, as expressions have it."""
        return "row"

    @property
    def parts(self) -> tuple[Expression, ...]:
        return tuple(each for _, each in self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Row, (self.columns,)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={each!r}' for name, each in self.columns)})"


def _plainly(operand: Expression) -> str:
    value = operand.parts[0]
    return repr(value) if operand.kind == "literal" and value is not None else repr(operand)


def _name(name: Any) -> str:
    if isinstance(name, str):
        return name
    raise TopologyError(f"The name of a column must be a str, not {name!r} ({type(name).__name__})")


def _operand(given: Any) -> Expression:
    return given if isinstance(given, Expression) else lit(given)


def _is_many(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | Expression)


def _test(operand: Expression) -> Expression:
    """Return an operand of & | ~; refuse what can be no test."""
    is_odd = operand.kind == "literal" and operand.parts[0] is not None and not isinstance(operand.parts[0], bool)
    if is_odd or operand.kind in _ARITHMETIC:
        raise TopologyError(f"{_plainly(operand) if is_odd else repr(operand)} is not a test", hint=_USES)
    return operand


def _binary(sign: str, left: Any, right: Any) -> Expression:
    if sign not in _LOGIC and (left is None or right is None):
        raise TopologyError(f"{sign} None is null in every row", hint=_NULL if sign in {"==", "!="} else None)
    one, two = _operand(left), _operand(right)
    return Expression(sign, (_test(one), _test(two)) if sign in _LOGIC else (one, two))
