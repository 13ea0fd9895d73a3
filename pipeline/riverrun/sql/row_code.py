"""Functions of rows as lines for generated functions: rows are unpacked there, and no expression is a call.

The code of expressions has only generated names (`riverrun.sql.expressions`). Here each gets one that no other
operator uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from riverrun.processor.operator import Row, block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from riverrun.processor.operator import Site
    from riverrun.sql.functions import Aggregate
    from riverrun.state.folds import Named

_NAME = re.compile(r"\brow\[(?P<place>\d+)\]|\b(?P<constant>c\d+)\b|\b(?P<variable>[lrtps]\d+(_\d+)?)\b")
SIMPLE = re.compile(r"(row\[\d+\]|[clpt]?\d+(_\d+)?|None|True|False)")
"""Code that cannot fail."""


@dataclass(frozen=True, slots=True)
class Expressions:
    """Expressions over a row, as `Compiler` writes them, one for each item of the new row (`WritesRow`).

    Args:
        texts: Code of the expressions.
        names: Objects behind the names of constants.
    """

    texts: Sequence[str]
    names: Mapping[str, Any]

    def row(self, at: Site) -> Row:
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
        return Row(tuple(items), "\n".join(lines))

    def test(self, at: Site) -> Row:
        """Return whether the only expression is TRUE; one that cannot be computed is not."""
        shown = self._placed(self.texts[0], at)
        if SIMPLE.fullmatch(self.texts[0]):
            return Row((f"{shown} is True",))
        passes = at.own("passes")
        tried, failed = block("try:", f"{passes} = {shown}"), block("except Exception:", f"{passes} = None")
        return Row((f"{passes} is True",), f"{tried}\n{failed}")

    def _placed(self, text: str, at: Site) -> str:
        """Return the code with its names replaced by those of a place."""

        def name(found: re.Match[str]) -> str:
            place, constant = found["place"], found["constant"]
            if place is not None:
                return at.item(int(place))
            return at.own(found["variable"]) if constant is None else at.named(constant, self.names[constant])

        return _NAME.sub(name, text)


@dataclass(frozen=True, slots=True)
class WithKey:
    """A row, followed by the columns of its key, which is a tuple or None (`WritesRow`).

    Args:
        values: Number of items of the row.
        keys: Number of columns of the key.
    """

    values: int
    keys: int

    def row(self, at: Site) -> Row:
        """Return the row and the key's columns."""
        items = tuple(at.item(number) for number in range(self.values))
        if not self.keys:
            return Row(items)
        if at.key_items is not None:
            return Row((*items, *at.key_items))
        columns = tuple(at.own(f"k{number}") for number in range(self.keys))
        missing = at.named("missing", (None,) * self.keys)
        names = "".join(f"{each}, " for each in columns)
        return Row((*items, *columns), f"{names}= {missing} if {at.lacks_key} else {at.key}")


@dataclass(frozen=True, slots=True)
class First:
    """The first items of a row, which name its group (`WritesRow`), and the test that none is missing (`WritesTest`).

    Args:
        width: Number of items.
    """

    width: int

    def row(self, at: Site) -> Row:
        """Return these items."""
        return Row(tuple(at.item(number) for number in range(self.width)))

    def test(self, at: Site) -> Row:
        """Return whether none of them is NULL."""
        return Row((" and ".join(f"{at.item(number)} is not None" for number in range(self.width)) or "True",))


@dataclass(frozen=True, slots=True)
class Beside:
    """A row, followed by the items of another one (`WritesJoin`).

    Args:
        own: Number of items of the row.
        width: Number of items of the other.
    """

    own: int
    width: int

    def joined(self, at: Site, other: Callable[[int], str]) -> Row:
        """Return both rows."""
        return Row((*map(at.item, range(self.own)), *map(other, range(self.width))))


@dataclass(frozen=True, slots=True)
class AggregateCall:
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
    """Aggregates of a group as expressions (`riverrun.state.folds.FoldCode`)."""

    calls: tuple[AggregateCall, ...]
    kind: ClassVar[type] = tuple

    @property
    def reads_records(self) -> bool:
        """Return whether an aggregate has arguments."""
        return any(each.places for each in self.calls)

    def expressions(self, named: Named, item: Callable[[int], str]) -> tuple[str, str]:
        """Return the states of the first row of a group, and states with a row added."""
        first, more = [], []
        for number, each in enumerate(self.calls):

            def own(thing: Any, number: int = number) -> str:
                return named(f"{getattr(thing, '__name__', 'value').strip('<>')}{number}", thing)

            initial = named(f"initial{number}", each.function.initial)
            first.append(each.adding(f"{initial}()", own, item))
            more.append(each.adding(f"aggregate[{number}]", own, item))
        return Row(tuple(first)).whole, Row(tuple(more)).whole


@dataclass(frozen=True, slots=True)
class Results:
    """The row of a group: its key, the results of its states, and the bounds of its window if there is one (`WritesRow`)."""

    calls: tuple[AggregateCall, ...]
    width: int
    is_windowed: bool

    def row(self, at: Site) -> Row:
        """Return the group's row, made from a tuple of states."""
        columns = tuple(at.own(f"k{number}") for number in range(self.width))
        key = f"{at.key}.key" if self.is_windowed else at.key
        results = tuple(self._result(at, number) for number in range(len(self.calls)))
        bounds = (f"{at.key}.window.start", f"{at.key}.window.end") if self.is_windowed else ()
        return Row((*columns, *results, *bounds), f"{''.join(f'{each}, ' for each in columns)}= {key}")

    def _result(self, at: Site, number: int) -> str:
        function = self.calls[number].function
        if function.is_state:
            return at.item(number)
        return f"{at.named(f'result{number}', function.result)}({at.item(number)})"
