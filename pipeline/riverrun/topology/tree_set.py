"""Java's `TreeSet` of names whose order changes while it is filled; Kafka Streams prints children and parents in this order.

A red-black tree compares a new name only with those on its way down, by their ranks at that moment. So the resulting order
depends on the earlier shape of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(eq=False, slots=True)
class _Entry:
    name: str
    parent: _Entry | None
    is_black: bool = True
    children: list[_Entry | None] = field(default_factory=lambda: [None, None])

    @property
    def side(self) -> int:
        """Return the position of the child under its parent: 0 or 1."""
        return int(self.parent is not None and self.parent.children[1] is self)


class TreeSet:
    """Names in the order of their ranks.

    >>> names = TreeSet(lambda name: name)
    >>> for name in ["b", "a", "b", "c"]:
    ...     names.add(name)
    >>> list(names)
    ['a', 'b', 'c']

    Args:
        rank: Returns the current rank of a name.
    """

    def __init__(self, rank: Callable[[str], Any]) -> None:
        """Start with an empty set."""
        self._rank = rank
        self._root: _Entry | None = None

    def __iter__(self) -> Iterator[str]:
        """Iterate in order."""
        return _names_below(self._root)

    def add(self, name: str) -> None:
        """Add a name, unless the search for its place meets an equal one (`TreeMap.put`)."""
        rank, parent, entry, side = self._rank(name), None, self._root, 0
        while entry is not None:
            if entry.name == name:
                return
            parent, side = entry, int(rank > self._rank(entry.name))
            entry = entry.children[side]
        added = _Entry(name, parent)
        if parent is None:
            self._root = added
            return
        parent.children[side] = added
        self._balance(added)

    def _balance(self, entry: _Entry) -> None:
        """Restore the balance (`TreeMap.fixAfterInsertion`)."""
        entry.is_black = False
        while (parent := entry.parent) is not None and not parent.is_black:
            grandparent = parent.parent
            if grandparent is None:
                break
            side = parent.side
            uncle = grandparent.children[1 - side]
            if uncle is not None and not uncle.is_black:
                parent.is_black = uncle.is_black = True
                grandparent.is_black = False
                entry = grandparent
                continue
            if entry.side != side:
                entry = parent
                self._rotate(entry, side)
            top = entry.parent
            if top is not None and top.parent is not None:
                top.is_black, top.parent.is_black = True, False
                self._rotate(top.parent, 1 - side)
        if self._root is not None:
            self._root.is_black = True

    def _rotate(self, entry: _Entry, side: int) -> None:
        """Let the child on the other side take its place; the entry moves down to this side."""
        child, parent, own_side = entry.children[1 - side], entry.parent, entry.side
        if child is None:
            return
        moved = child.children[side]
        entry.children[1 - side] = moved
        if moved is not None:
            moved.parent = entry
        child.parent = parent
        if parent is None:
            self._root = child
        else:
            parent.children[own_side] = child
        child.children[side] = entry
        entry.parent = child


def _names_below(entry: _Entry | None) -> Iterator[str]:
    if entry is not None:
        yield from _names_below(entry.children[0])
        yield entry.name
        yield from _names_below(entry.children[1])
