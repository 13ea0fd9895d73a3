"""The contract of operators that generated functions have as lines, where others are called (`pipeline.runtime.fusion`).

An operator writes these lines beside its `process`, and they do just that. Tests compare the two.
"""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.state.access import CachedFold
    from pipeline.state.folds import Fold


class NotFused(Exception):  # noqa: N818 - it is no error
    """An operator has no lines and is called; the text says why."""


class Site(Protocol):
    """The place in a generated function where the lines of an operator go.

    Lines may name `timestamp`, `headers` and `context` of the current record, and whatever `named` and `own` return.
    """

    @property
    def key(self) -> str:
        """The name of the record's key."""
        ...

    @property
    def value(self) -> str:
        """The name of its value."""
        ...

    @property
    def new(self) -> str:
        """An expression: the new value, where the value is the update of a table."""
        ...

    @property
    def raw_key(self) -> str | None:
        """The name of the bytes that the key was read from; None if they are not known."""
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
        """Return the name in the function for a thing of the operator's."""
        ...

    def own(self, name: str) -> str:
        """Return the name of a variable that no other operator has."""
        ...

    def folding(self, store: str, fold: Fold) -> CachedFold:
        """Return the aggregation into a store in parts, one for all functions.

        Raises:
            NotFused: If the store has to be called.
        """
        ...

    def below(self, key: str | None = None, value: str | None = None) -> str:
        """Return the lines of the operator's children, given the names of key and value where these are others."""
        ...

    def to(self, child: str) -> str:
        """Return the lines of one child."""
        ...


@runtime_checkable
class Fused(Protocol):
    """An operator that has lines."""

    def lines(self, at: Site) -> str:
        """Return the lines that do with a record what `process` does with it.

        Raises:
            NotFused: If it has to be called, here or anywhere.
        """
        ...


@runtime_checkable
class Counting(Protocol):
    """An operator that may have nothing to do with records but to count them."""

    def reads_records(self, folding: Callable[[str, Fold], CachedFold]) -> bool:
        """Tell whether keys and values matter to its lines.

        Args:
            folding: That of a `Site`.
        """
        ...


def block(head: str, *lines: str) -> str:
    """Return a compound statement: its head, and the lines within it.

    >>> print(block("if a:", block("if b:", ""), "c = 1"))
    if a:
        if b:
            pass
        c = 1
    """
    body = "\n".join(line for line in lines if line) or "pass"
    return f"{head}\n{indent(body, '    ')}"
