"""Expressions of columns as lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from riverrun.codegen.values import DictValue, OneValue, TupleValue
from riverrun.generated import placed
from riverrun.processor.expression_code import ExpressionCode, Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from riverrun.codegen.function_writer import EmitContext
    from riverrun.processor.expression_code import Place
    from riverrun.processor.expressions import Expression, Row

# Names and attributes: such code may be repeated, as it computes nothing.
_SIMPLE = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True)
class ExpressionLines:
    """Inlines an expression, as a mapper and as a predicate."""

    expression: Expression

    def row(self, at: EmitContext) -> OneValue:
        """Return the lines that compute it of the value at a place."""
        code = ExpressionCode.of(self.expression)
        place, read = _placed_at(code, at)
        return OneValue(place(code.value(self.expression)), read)

    def test(self, at: EmitContext) -> TupleValue:
        """Return the lines that test whether it holds for the value at a place."""
        code = ExpressionCode.of(self.expression)
        place, read = _placed_at(code, at)
        return TupleValue((place(code.test(self.expression)),), read)


@dataclass(frozen=True, slots=True)
class RowLines:
    """Inlines a row of named expressions, as a mapper."""

    made: Row

    def row(self, at: EmitContext) -> DictValue:
        code = ExpressionCode.of(*self.made.parts)
        place, read = _placed_at(code, at)
        items, lines = list[str](), [read]
        for number, expression in enumerate(self.made.parts):
            item = place(code.value(expression))
            if not _SIMPLE.fullmatch(item):
                own = at.own(f"i{number}")
                lines.append(f"{own} = {item}")
                item = own
            items.append(item)
        names = tuple(name for name, _ in self.made.columns)
        return DictValue(names, tuple(items), "\n".join(each for each in lines if each))


def tests_of(at: EmitContext, expressions: Sequence[Expression]) -> list[str]:
    """Return the code that tests each expression, at a place whose value is taken apart into columns."""
    code = ExpressionCode.of(*expressions)
    place, _ = _placed_at(code, at)
    return [place(code.test(each)) for each in expressions]


def _placed_at(code: ExpressionCode, at: EmitContext) -> tuple[Place, str]:
    """Return the function that puts code into a place, and the lines that read the columns there."""

    def constant(name: str) -> str:
        return at.named(name, code.names[name])

    if at.columns is not None:
        known = [at.columns[each] for each in code.columns]
        return partial(placed, item=known.__getitem__, constant=constant, own=at.own), ""
    reader = Reader(code.columns)
    names = [at.own(f"v{number}") for number in range(len(code.columns))]
    read, classes = at.named("read", reader), at.named("classes", reader.classes)
    lines = code.read(at.value, names, read, classes, at.named("refused", reader.refused))
    return partial(placed, item=names.__getitem__, constant=constant, own=at.own), lines
