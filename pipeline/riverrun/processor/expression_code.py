"""Writes the code of expressions of columns (`riverrun.processor.expressions`), and reads the columns of values.

Columns are entries of mappings, or attributes of objects. The values of dicts and of classes that were seen before are read in
place; others by a call.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from inspect import getattr_static
from itertools import count
from typing import Any, Protocol

from riverrun.errors import ProcessingError, TopologyError
from riverrun.generated import block, generated, placed
from riverrun.records import shortened
from riverrun.serde.json_columns import is_attribute

# Replaces the generated names in the code of an expression with those of a place.
Place = Callable[[str], str]
_SHOWN = 60
# Python's parser reads 200 nested brackets, of which an operation writes up to three.
_DEEPEST = 60
_MOST = 5000
_LOGIC = {"&": ("and", "False", "True"), "|": ("or", "True", "False")}
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_CONSTANTS = frozenset({"column", "literal"})
_HASHABLE = frozenset({bool, int, float, str, bytes, decimal.Decimal, dt.date, dt.datetime, uuid.UUID})
# Only the first of their operands is an expression.
_OF_ONE = frozenset({"isin", "item"})


class Operation(Protocol):
    """An expression."""

    @property
    def kind(self) -> str:
        """The operation."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """The operands."""


def columns_of(expression: Operation) -> tuple[str, ...]:
    """Return the columns that an expression reads, in their order."""
    found, seen, waiting = dict[str, None](), set[int](), [expression]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if each.kind not in _CONSTANTS:
            waiting += reversed(each.parts[:1] if each.kind in _OF_ONE else each.parts)
        elif each.kind == "column":
            found[each.parts[0]] = None
    return tuple(found)


@dataclass(slots=True)
class Reader:
    """Reads columns of values that are no dicts."""

    columns: tuple[str, ...]
    # Seen to have the columns as attributes: generated code then reads these without a call.
    classes: set[type] = field(default_factory=set)

    def __call__(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, Mapping):
            return tuple(value[name] for name in self.columns)
        found = tuple(getattr(value, name) for name in self.columns)
        self.classes.add(value.__class__)
        return found

    def refused(self, value: Any) -> ProcessingError:
        """Return the error for a value that lacks a column."""
        names, where = _names_of(value), f"The value, of type {type(value).__name__},"
        for name in self.columns:
            try:
                _ = value[name] if isinstance(value, Mapping) else getattr(value, name)
            except (KeyError, AttributeError) as error:
                if name not in names:
                    return missing(name, where, names)
                message = f"{where[:-1]}: the column {name!r} cannot be read ({type(error).__name__}: {error})"
                return ProcessingError(message)
        return missing(self.columns[0], where, names)


def missing(name: str, where: str, names: Iterable[str]) -> ProcessingError:
    """Return the error for a column that does not exist."""
    known = [*map(str, names)]
    near = get_close_matches(name, known, 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has {shortened(', '.join(known) or 'none', 2 * _SHOWN)}."
    return ProcessingError(f"{where} has no column {name!r}", hint=hint)


def _names_of(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return tuple(value)
    return tuple(name for name in dir(value) if not name.startswith("_") and not callable(getattr_static(value, name)))


def _field_of(value: Any, name: str) -> Any:
    """Return a field of a column; None for None."""
    if value is None:
        return None
    try:
        return value[name] if isinstance(value, Mapping) else getattr(value, name)
    except (KeyError, AttributeError):
        raise missing(name, f"The column {shortened(value, _SHOWN)}", _names_of(value)) from None


def _truth(value: Any) -> Any:
    """Return an operand of & | ~ or a test; refuse what is not True, False or None."""
    if value is True or value is False or value is None:
        return value
    message = f"A test must be True, False or null, not {shortened(value, _SHOWN)} ({type(value).__name__})"
    raise ProcessingError(message, hint="Compare it: col('n') != 0.")


# Writing code


def function_of(
    label: str, expressions: tuple[Operation, ...], text: Callable[[ExpressionCode, Place], str]
) -> Callable[[Any], Any]:
    """Return a function of the value, which returns None for None.

    `label` names it in tracebacks. `text` returns its code, of which generated parts are put into their place.
    """
    try:
        code = ExpressionCode.of(*expressions)
        shown = text(code, partial(placed, item="v{}".format, constant=str, own=str))
    except RecursionError:
        raise _too_deep() from None
    reader, names = Reader(code.columns), [f"v{number}" for number in range(len(code.columns))]
    lines = code.read("value", names, "read", "classes")
    body = block("def made(value):", block("if value is None:", "return None"), lines, f"return {shown}")
    given = {**code.names, "read": reader, "classes": reader.classes, "refused": reader.refused}
    return generated(f"{label} of columns", f"{body}\n", given)


def _too_deep() -> TopologyError:
    message = f"An expression has more than {_DEEPEST} operations within each other"
    return TopologyError(message, hint="isin() tests for many values; an earlier map_values() may compute a part.")


@dataclass(frozen=True, slots=True)
class _Part:
    """Code of an expression.

    Args:
        raw: The code, valid unless an operand is None.
        nullable: Expressions of these operands, to be tested in this order; the names that they assign are in `raw`.
        is_test: Whether it is True or False unless it is None.
        test: Code that is true if it is True, where that is shorter.
    """

    raw: str
    nullable: tuple[str, ...] = ()
    is_test: bool = False
    test: str = ""

    @property
    def lacks(self) -> str:
        """The test whether an operand is None."""
        return " or ".join(f"{each} is None" for each in self.nullable)

    @property
    def value(self) -> str:
        return self.raw if self.nullable in ((), (self.raw,)) else f"(None if {self.lacks} else {self.raw})"


@dataclass(slots=True)
class ExpressionCode:
    """Writes the code of expressions over one value. Columns are `row[n]`, constants `cN`, variables `tN` (`placed`)."""

    columns: tuple[str, ...]
    names: dict[str, Any] = field(default_factory=dict)
    _numbers: Any = field(default_factory=count)
    _depth: int = 0
    _count: int = 0

    @classmethod
    def of(cls, *expressions: Operation) -> ExpressionCode:
        return cls(tuple(dict.fromkeys(name for each in expressions for name in columns_of(each))))

    def value(self, expression: Operation) -> str:
        return self.part(expression).value

    def test(self, expression: Operation) -> str:
        return self.holds(self.part(expression))

    def read(self, value: str, names: list[str], read: str, classes: str, refused: str = "refused") -> str:
        """Return the lines that read the columns of a value, which is not None, into variables of these names."""
        if not names:
            return ""
        pairs = list(zip(names, self.columns, strict=True))
        ways = [block(f"if {value}.__class__ is dict:", *(f"{name} = {value}[{column!r}]" for name, column in pairs))]
        if all(map(is_attribute, self.columns)):
            ways.append(
                block(
                    f"elif {value}.__class__ in {classes}:", *(f"{name} = {value}.{column}" for name, column in pairs)
                )
            )
        ways.append(block("else:", f"{', '.join(names)}, = {read}({value})"))
        failed = block("except (KeyError, AttributeError):", f"raise {refused}({value}) from None")
        return f"{block('try:', *ways)}\n{failed}"

    # Parts

    def part(self, expression: Operation) -> _Part:
        """Return the code of an expression; refuse one that is nested too deeply, or too long."""
        self._depth += 1
        self._count += 1
        if self._depth > _DEEPEST:
            raise _too_deep()
        if self._count > _MOST:
            message = f"An expression has more than {_MOST} operations in all, as often as each is used"
            raise TopologyError(message, hint="An earlier map_values() may compute a part.")
        made = _WRITERS.get(expression.kind, ExpressionCode.write_strict)(self, expression)
        self._depth -= 1
        return made

    def holds(self, part: _Part) -> str:
        if part.test:
            return part.test
        present = [f"{each} is not None" for each in part.nullable]
        return f"({' and '.join([*present, self._truth(part)])})"

    def _truth(self, part: _Part) -> str:
        return part.raw if part.is_test else f"{self._constant(_truth)}({part.raw})"

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def _held(self, text: str, *, is_test: bool = False, test: str = "") -> _Part:
        """Return the part of code that may itself be None."""
        name = f"t{next(self._numbers)}"
        return _Part(name, (f"({name} := {text})",), is_test, test)

    def write_column(self, expression: Operation) -> _Part:
        own = f"row[{self.columns.index(expression.parts[0])}]"
        return _Part(own, (own,))

    def write_literal(self, expression: Operation) -> _Part:
        value = expression.parts[0]
        if value is None:
            return _Part("None", ("None",))
        # A new object for each record: users may change the one that they get.
        if isinstance(value, list | dict | set):
            return _Part(f"{self._constant(partial(deepcopy, value))}()")
        return _Part(self._constant(value), (), isinstance(value, bool))

    def write_strict(self, expression: Operation) -> _Part:
        """Write an operator that results in None if an operand is None."""
        parts = [self.part(each) for each in expression.parts]
        nullable = tuple(dict.fromkeys(each for part in parts for each in part.nullable))
        sign = expression.kind
        if sign == "~":
            return _Part(f"(not {self._truth(parts[0])})", nullable, is_test=True)
        if len(parts) == 1:
            return _Part(f"({sign}{parts[0].raw})", nullable)
        return _Part(f"({parts[0].raw} {sign} {parts[1].raw})", nullable, sign in _COMPARISONS)

    def write_logic(self, expression: Operation) -> _Part:
        """Write & or |; one operand may decide although the other one is None."""
        word, deciding, other = _LOGIC[expression.kind]
        left, right = (self.part(each) for each in expression.parts)
        test = f"({self.holds(left)} {word} {self.holds(right)})"
        if not left.nullable and not right.nullable:
            return _Part(f"({self._truth(left)} {word} {self._truth(right)})", (), is_test=True)
        one, two = (self._held(self._checked(each)) for each in (left, right))
        decided = f"{one.nullable[0]} is {deciding} or {two.nullable[0]} is {deciding}"
        unknown = f"None if {one.raw} is None or {two.raw} is None else {other}"
        return self._held(f"({deciding} if {decided} else {unknown})", is_test=True, test=test)

    def _checked(self, part: _Part) -> str:
        return part.value if part.is_test else f"{self._constant(_truth)}({part.value})"

    def write_is_null(self, expression: Operation) -> _Part:
        part = self.part(expression.parts[0])
        return _Part(f"({part.lacks})" if part.nullable else "False", (), is_test=True)

    def write_if_null(self, expression: Operation) -> _Part:
        """Write a value, or another one in place of null."""
        part, other = (self.part(each) for each in expression.parts)
        if not part.nullable:
            return part
        text = f"({other.value} if {part.lacks} else {part.raw})"
        is_test = part.is_test and other.is_test
        return self._held(text, is_test=is_test) if other.nullable else _Part(text, (), is_test)

    def write_isin(self, expression: Operation) -> _Part:
        """Write the test for one of several values."""
        part, values = self.part(expression.parts[0]), expression.parts[1]
        # A set finds values faster, but only those of classes whose equal values have equal hashes.
        listed = self._constant(values)
        try:
            known = self._constant(frozenset(values))
        # A value is unhashable.
        except TypeError:
            return _Part(f"({part.raw} in {listed})", part.nullable, is_test=True)
        held, classes = f"t{next(self._numbers)}", self._constant(_HASHABLE)
        text = f"({held} in {known} if ({held} := {part.raw}).__class__ in {classes} else {held} in {listed})"
        return _Part(text, part.nullable, is_test=True)

    def write_item(self, expression: Operation) -> _Part:
        part, name = self.part(expression.parts[0]), expression.parts[1]
        return self._held(f"{self._constant(partial(_field_of, name=name))}({part.value})")


_WRITERS: Mapping[str, Callable[[ExpressionCode, Operation], _Part]] = {
    "column": ExpressionCode.write_column,
    "literal": ExpressionCode.write_literal,
    "&": ExpressionCode.write_logic,
    "|": ExpressionCode.write_logic,
    "is_null": ExpressionCode.write_is_null,
    "if_null": ExpressionCode.write_if_null,
    "isin": ExpressionCode.write_isin,
    "item": ExpressionCode.write_item,
}
