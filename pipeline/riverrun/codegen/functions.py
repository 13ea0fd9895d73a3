"""Functions of users, and of SQL, as lines: those of expressions, and those that were registered."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from riverrun.codegen.expressions import ExpressionLines, RowLines
from riverrun.operators.stateless import OfValue, OfValues
from riverrun.processor.expression_code import columns_of
from riverrun.processor.expressions import Expression, Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.codegen.function_writer import EmitContext
    from riverrun.codegen.values import DictValue, Named, OneValue, TupleValue

F = TypeVar("F", bound="Callable[..., Any]")

# An attribute travels with a pickled function. Fingerprints cover it: a new name would refuse the state of applications.
_LINES = "riverrun_written_as"


class WritesRow(Protocol):
    """Inlines a mapper whose result may be a tuple."""

    def row(self, at: EmitContext) -> TupleValue | DictValue | OneValue:
        """Return what it makes of the value at a place, which is not None."""


class WritesTest(Protocol):
    """Inlines a predicate on tuples."""

    def test(self, at: EmitContext) -> TupleValue:
        """Return one item: whether the value at a place, which is not None, passes."""


class WritesJoin(Protocol):
    """Inlines a joiner whose result is a tuple of items of two tuples."""

    @property
    def width(self) -> int:
        """Number of items of the other value; without one, each is None."""

    def joined(self, at: EmitContext, other: Callable[[int], str]) -> TupleValue:
        """Return the tuple made of the value at a place, which is not None, and of expressions for items of another."""


class WritesFold(Protocol):
    """Inlines the functions of an aggregation; it is registered for the one that adds."""

    @property
    def kind(self) -> type:
        """The class of all aggregates; none of them is None."""

    @property
    def reads_records(self) -> bool:
        """True if the result depends on keys or values."""

    def expressions(self, named: Named, item: Callable[[int], str]) -> tuple[str, str]:
        """Return two expressions: the aggregate of a key's first value, and `aggregate` with a further value."""


def written(function: F, how: WritesRow | WritesTest | WritesJoin | WritesFold) -> F:
    """Register what inlines a function instead of calling it; return the function."""
    setattr(function, _LINES, how)
    return function


def lines_of(function: Any) -> Any:
    """Return what inlines a function of a value, of a key and a value, or of two values; None if it has to be called."""
    match function:
        case OfValue(mapper=inner) | OfValues(joiner=inner):
            return lines_of(inner)
        case Expression():
            return ExpressionLines(function)
        case Row():
            return RowLines(function)
        case FunctionType():
            return vars(function).get(_LINES)
        case _:
            return None


def columns_read_by(function: Any) -> tuple[str, ...] | None:
    """Return the columns that a function of the value reads; None if it needs the whole value."""
    given = function.mapper if isinstance(function, OfValue) else function
    return columns_of(given) if isinstance(given, Expression | Row) else None


def call_of(at: EmitContext, name: str, function: Callable[[Any, Any], Any]) -> str:
    """Return the call of a user's function of key and value."""
    if isinstance(function, OfValue):
        return f"{at.named(name, function.mapper)}({at.value})"
    return f"{at.named(name, function)}({at.key}, {at.value})"
