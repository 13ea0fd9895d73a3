"""The place in a generated function where lines go, and what writers of lines return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.state.access import CachedFold
    from riverrun.state.folds import Fold

Named: TypeAlias = "Callable[[str, Any], str]"
"""Names an object in a generated function, with a prefix for each operator; returns that name."""
Folding: TypeAlias = "Callable[[str, Fold], CachedFold]"
"""`EmitContext.folding`."""


@dataclass(frozen=True, slots=True)
class TupleValue:
    """A value that is a tuple, taken apart: a generated function makes it only where it is needed as a whole.

    Args:
        items: Expressions for its items, which may be written several times.
        lines: The lines that these need before them.
    """

    items: tuple[str, ...]
    lines: str = ""

    @property
    def whole(self) -> str:
        """An expression for all of it."""
        return f"({' '.join(f'{item},' for item in self.items)})"


@dataclass(frozen=True, slots=True)
class OneValue:
    """A value that lines make as a whole.

    Args:
        whole: An expression for it, which may be written once.
        lines: The lines that it needs before it.
    """

    whole: str
    lines: str = ""


@dataclass(frozen=True, slots=True)
class DictValue:
    """A value that is a dict, taken apart: a generated function makes it only where it is needed as a whole.

    Args:
        names: Its keys.
        items: Expressions for its items, which may be written several times.
        lines: The lines that these need before them.
    """

    names: tuple[str, ...]
    items: tuple[str, ...]
    lines: str = ""

    @property
    def whole(self) -> str:
        """An expression for all of it."""
        return f"{{{', '.join(f'{name!r}: {item}' for name, item in zip(self.names, self.items, strict=True))}}}"


class EmitContext(Protocol):
    """The place in a generated function where the lines of an operator go.

    Lines may name `timestamp`, `headers` and `context` of the current record, and whatever `named` and `own` return.
    """

    @property
    def key(self) -> str:
        """The name of the record's key."""
        ...

    @property
    def key_items(self) -> tuple[str, ...] | None:
        """Expressions for the items of a key that is a tuple, None for those of a null key; None if it is not taken apart."""
        ...

    @property
    def lacks_key(self) -> str:
        """A test: whether the key is null."""
        ...

    @property
    def value(self) -> str:
        """An expression: its value."""
        ...

    @property
    def is_row(self) -> bool:
        """True if the value is taken apart, and never None."""
        ...

    @property
    def columns(self) -> Mapping[str, str] | None:
        """Expressions for columns of a value that is taken apart: all that operators read; None if it is not."""
        ...

    @property
    def new(self) -> str:
        """An expression: the new value, where the value is the update of a table."""
        ...

    @property
    def raw_key(self) -> str | None:
        """The name of the bytes that the key was read from; None if they are not known."""
        ...

    def raw_value(self, deserialize: Callable[[bytes], Any]) -> str | None:
        """Return the name of the bytes that a serde has read the value from; None if others may have had the value since."""
        ...

    @property
    def key_as_read(self) -> str:
        """An expression: the key. Where keys are only counted, `key` names its bytes."""
        ...

    @property
    def place(self) -> str:
        """An expression: the topic, partition and offset of the current record."""
        ...

    @property
    def process(self) -> str:
        """A statement: the call of the operator with the record."""
        ...

    @property
    def stores(self) -> Mapping[str, Any]:
        """The task's stores by name; they are open."""
        ...

    def named(self, name: str, thing: Any) -> str:
        """Return the name in the function for an object of the operator's."""
        ...

    def own(self, name: str) -> str:
        """Return the name of a variable that no other operator has."""
        ...

    def folding(self, store: str, fold: Fold) -> CachedFold:
        """Return the aggregation into a store in parts, one for all functions; raise `NotGenerated` if it must be called."""
        ...

    def on(self, value: str | TupleValue) -> EmitContext:
        """Return a copy of this context with another value, and its own namespace."""
        ...

    def item(self, number: int) -> str:
        """Return an expression for an item of the value, which is a tuple."""
        ...

    def below(self, key: str | None = None, value: str | TupleValue | DictValue | OneValue | None = None) -> str:
        """Return the lines of the operator's children, given expressions for key and value where these are others."""
        ...

    def updated(self, new: str) -> str:
        """Return the lines of the children of a table's operator, which get an update: a new value, and no old one."""
        ...

    def to(self, child: str) -> str:
        """Return the lines of one child."""
        ...


def lacking(at: EmitContext, *others: str) -> str:
    """Return the test whether the value is None, which a row never is, or one of other tests is true."""
    return " or ".join((*(() if at.is_row else (f"{at.value} is None",)), *others)) or "False"
