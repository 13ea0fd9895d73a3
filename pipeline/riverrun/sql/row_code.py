"""Functions of rows, made from the code of expressions, and their lines for the generated functions of tasks.

In generated functions rows are unpacked and no expression is a call. Names in the code (`riverrun.sql.expressions`) are
replaced by names that no other operator of the task uses.
"""

from __future__ import annotations

import decimal
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from riverrun.codegen.functions import written
from riverrun.codegen.values import TupleValue
from riverrun.generated import block, placed
from riverrun.sql.statements import SqlError
from riverrun.topology.digests import GENERATED_FROM
from riverrun.topology.fingerprint import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.codegen.function_writer import EmitContext
    from riverrun.codegen.values import Named
    from riverrun.sql.functions import Aggregate

# Code that cannot fail, so it needs no `try`.
SIMPLE = re.compile(r"(row\[\d+\]|[clpt]?\d+(_\d+)?|None|True|False)")
_CONSTANTS = (str, int, float, decimal.Decimal)
_BRACKET = re.compile(r"[][(){}]")
# Python's tokenizer refuses more than 200 nested brackets, and functions of tasks add some.
_MOST_BRACKETS = 150
_TOO_DEEP = "The operators of an expression are nested too deeply: compute a part of it in an earlier statement"


@dataclass(frozen=True, slots=True)
class Code:
    """Python code of an expression, and the type of its value; None is the type of NULL.

    `parts` has the code of the texts, if it is a sum of texts to which more can be added.
    """

    text: str
    type: Any
    parts: tuple[str, ...] = ()


def function_of(names: Mapping[str, Any], codes: Sequence[Code], note: str = "") -> Callable[[Any], Any]:
    """Return a function that makes a row from another one; values that cannot be computed are NULL."""
    _check_depth(codes)
    lines = ["    if row is None:", "        return None"]
    for number, code in enumerate(codes):
        lines += ["    try:", f"        v{number} = {code.text}", "    except Exception:", f"        v{number} = None"]
    made = "".join(f"v{number}, " for number in range(len(codes)))
    function: Callable[[Any], Any] = _defined("row", [*lines, f"    return ({made})"], names, note)
    return written(function, Expressions([code.text for code in codes], names))


def predicate_of(names: Mapping[str, Any], code: Code) -> Callable[[Any, Any], bool]:
    """Return a predicate of key and row; a row that cannot be tested does not pass."""
    _check_depth([code])
    lines = [
        "    try:",
        f"        return row is not None and ({code.text}) is True",
        "    except Exception:",
        "        return False",
    ]
    function: Callable[[Any, Any], bool] = _defined("_key, row", lines, names, "")
    return written(function, Expressions([code.text], names))


def _check_depth(codes: Sequence[Code]) -> None:
    for code in codes:
        depth = 0
        for sign in _BRACKET.findall(code.text):
            depth += 1 if sign in "([{" else -1
            if depth > _MOST_BRACKETS:
                raise SqlError(_TOO_DEEP)


def _defined(parameters: str, lines: Sequence[str], names: Mapping[str, Any], note: str) -> Any:
    namespace = dict(names)
    try:
        exec("\n".join([f"def made({parameters}):", *lines]), namespace)  # noqa: S102 - names of our own only
    except (SyntaxError, MemoryError, RecursionError):
        raise SqlError(_TOO_DEEP) from None
    made = namespace["made"]
    # The digest must not depend on bytecode, which differs between versions of Python.
    setattr(made, GENERATED_FROM, ([*lines], {name: digest_of(value) for name, value in names.items()}, note))
    return made


def digest_of(value: Any) -> object:
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if isinstance(value, functools.partial):
        return [digest_of(each) for each in (value.func, *value.args, *value.keywords.values())]
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    # Riverrun's own functions count by their names: their code changes with releases of Riverrun, not of the application.
    if callable(value) and not name.startswith("riverrun."):
        return code_of(value)
    cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    return [name, [digest_of(each) for each in cells if callable(each) or isinstance(each, _CONSTANTS)]]


@dataclass(frozen=True, slots=True)
class Expressions:
    """Expressions over a row, as `Compiler` writes them, one for each item of the new row (`WritesRow`)."""

    texts: Sequence[str]
    names: Mapping[str, Any]

    def row(self, at: EmitContext) -> TupleValue:
        """Return the row; values that cannot be computed are NULL."""
        items, lines = [], []
        for number, text in enumerate(self.texts):
            shown = self._placed(text, at)
            if SIMPLE.fullmatch(text):
                items.append(shown)
                continue
            item = at.own(f"v{number}")
            lines += [block("try:", f"{item} = {shown}"), block("except Exception:", f"{item} = None")]
            items.append(item)
        return TupleValue(tuple(items), "\n".join(lines))

    def test(self, at: EmitContext) -> TupleValue:
        """Return whether the only expression is TRUE; one that cannot be computed is not."""
        shown = self._placed(self.texts[0], at)
        if SIMPLE.fullmatch(self.texts[0]):
            return TupleValue((f"{shown} is True",))
        passes = at.own("passes")
        tried, failed = block("try:", f"{passes} = {shown}"), block("except Exception:", f"{passes} = None")
        return TupleValue((f"{passes} is True",), f"{tried}\n{failed}")

    def _placed(self, text: str, at: EmitContext) -> str:
        return placed(text, item=at.item, constant=lambda name: at.named(name, self.names[name]), own=at.own)


@dataclass(frozen=True, slots=True)
class WithKey:
    """A row of `values` items, followed by the columns of its key, which is a tuple or None (`WritesRow`)."""

    values: int
    keys: int

    def row(self, at: EmitContext) -> TupleValue:
        """Return the row and the key's columns."""
        items = tuple(at.item(number) for number in range(self.values))
        if not self.keys:
            return TupleValue(items)
        if at.key_items is not None:
            return TupleValue((*items, *at.key_items))
        columns = tuple(at.own(f"k{number}") for number in range(self.keys))
        missing = at.named("missing", (None,) * self.keys)
        names = "".join(f"{each}, " for each in columns)
        return TupleValue((*items, *columns), f"{names}= {missing} if {at.lacks_key} else {at.key}")


@dataclass(frozen=True, slots=True)
class First:
    """The first items of a row, which name its group (`WritesRow`), and the test that none is missing (`WritesTest`)."""

    width: int

    def row(self, at: EmitContext) -> TupleValue:
        return TupleValue(tuple(at.item(number) for number in range(self.width)))

    def test(self, at: EmitContext) -> TupleValue:
        return TupleValue((" and ".join(f"{at.item(number)} is not None" for number in range(self.width)) or "True",))


@dataclass(frozen=True, slots=True)
class Beside:
    """A row of `own` items, followed by the `width` items of another one (`WritesJoin`)."""

    own: int
    width: int

    def joined(self, at: EmitContext, other: Callable[[int], str]) -> TupleValue:
        return TupleValue((*map(at.item, range(self.own)), *map(other, range(self.width))))


@dataclass(frozen=True, slots=True)
class GroupedAggregate:
    """One call of an aggregate, and the indexes of its arguments in a grouped row."""

    function: Aggregate
    places: tuple[int, ...]

    def adding(self, state: str, named: Callable[[Any], str], item: Callable[[int], str]) -> str:
        """Return an expression for a state with a row added."""
        arguments = [item(place) for place in self.places]
        if self.function.code is not None:
            return self.function.code(state, named, *arguments)
        return f"{named(self.function.add)}({', '.join([state, *arguments])})"


@dataclass(frozen=True, slots=True)
class States:
    """Aggregates of a group as expressions (`WritesFold`)."""

    calls: tuple[GroupedAggregate, ...]
    kind: ClassVar[type] = tuple

    @property
    def reads_records(self) -> bool:
        return any(each.places for each in self.calls)

    def expressions(self, named: Named, item: Callable[[int], str]) -> tuple[str, str]:
        """Return the states of the first row of a group, and states with a row added."""
        first, more = [], []
        for number, each in enumerate(self.calls):
            # A default binds the number of this call, and the name keeps functions of two calls apart.
            def own(thing: Any, number: int = number) -> str:
                return named(f"{getattr(thing, '__name__', 'value').strip('<>')}{number}", thing)

            initial = named(f"initial{number}", each.function.initial)
            first.append(each.adding(f"{initial}()", own, item))
            more.append(each.adding(f"aggregate[{number}]", own, item))
        return TupleValue(tuple(first)).whole, TupleValue(tuple(more)).whole


@dataclass(frozen=True, slots=True)
class Results:
    """The row of a group: its key, the results of its states, and the bounds of its window if there is one (`WritesRow`)."""

    calls: tuple[GroupedAggregate, ...]
    width: int
    is_windowed: bool

    def row(self, at: EmitContext) -> TupleValue:
        """Return the group's row, made from a tuple of states."""
        columns = tuple(at.own(f"k{number}") for number in range(self.width))
        key = f"{at.key}.key" if self.is_windowed else at.key
        results = tuple(self._result(at, number) for number in range(len(self.calls)))
        bounds = (f"{at.key}.window.start", f"{at.key}.window.end") if self.is_windowed else ()
        return TupleValue((*columns, *results, *bounds), f"{''.join(f'{each}, ' for each in columns)}= {key}")

    def _result(self, at: EmitContext, number: int) -> str:
        function = self.calls[number].function
        if function.is_state:
            return at.item(number)
        return f"{at.named(f'result{number}', function.result)}({at.item(number)})"
