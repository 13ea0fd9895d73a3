"""Finds the records that a database refuses among changes that it refuses together: errors of many rows name none of them."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import StatementError

from riverrun.processor.sinks import OFFSET, PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    import sqlalchemy as sa

    Change: TypeAlias = tuple[bool, dict[str, Any]]
    """True for a deletion, and the columns that the record has."""
    Place: TypeAlias = tuple[int, int]
    """A partition and an offset."""

# Drivers raise these for values that they cannot send, such as texts with U+0000.
UNBOUND = (ValueError, OverflowError)
_SEARCH_SECONDS = 5.0
"""Seconds after which the search ends if something was found: a follower hears of a stop between two commits only."""


@dataclass(slots=True)
class RefusedChanges:
    """Applies changes in order, many at once, and then the halves of those that are refused.

    Args:
        connection: Its transaction has everything that is not refused.
        begin: Begins a transaction, if the database has no savepoints and loses all of it with an error.
        apply: Applies changes.
        key_of: Returns the key of a row, or its place if each record is a row.
        is_passing: Returns whether the database may do later what it cannot do now.
        has_savepoints: Whether a part of a transaction can be undone.
    """

    connection: sa.Connection
    begin: Callable[[], None]
    apply: Callable[[Sequence[Change]], None]
    key_of: Callable[[dict[str, Any]], Any]
    is_passing: Callable[[Exception], bool]
    has_savepoints: bool
    refused: dict[Place, Exception] = field(default_factory=dict)
    """Errors by place."""
    _held: dict[Any, tuple[dict[str, Any], list[Place]]] = field(default_factory=dict)
    """By key, the parts of a row that are refused so far, and their places."""
    _taken: list[Sequence[Change]] = field(default_factory=list)

    def search(self, changes: Sequence[Change]) -> None:
        """Apply changes that were refused together, and note those that are refused."""
        until = time.monotonic() + _SEARCH_SECONDS
        left = _halves(changes)
        while left and not (self.refused and time.monotonic() > until):
            run = left.pop()
            if len(run) == 1:
                self._judge(run[0])
            elif not self._is_taken(run):
                left += _halves(run)

    def _is_taken(self, run: Sequence[Change]) -> bool:
        keys = {self.key_of(row) for _, row in run}
        earlier = [(False, row) for key, (row, _) in self._held.items() if key in keys]
        if self._refusal([*earlier, *run]) is not None:
            return False
        for key in keys & self._held.keys():
            self._forgive(self._held.pop(key)[1])
        return True

    def _judge(self, change: Change) -> None:
        is_deletion, row = change
        place, key = (row[PARTITION], row[OFFSET]), self.key_of(row)
        # A part of a row that is refused alone may fit together with the next part.
        earlier, places = self._held.pop(key, ({}, []))
        whole = row if is_deletion else {**earlier, **row}
        error = self._refusal([(is_deletion, whole)])
        if error is None:
            self._forgive(places)
        elif whole == row or self._refusal([change]) is not None:
            self.refused[place] = error
            if not is_deletion:
                self._held[key] = whole, [*places, place]

    def _forgive(self, places: Sequence[Place]) -> None:
        for place in places:
            del self.refused[place]

    def _refusal(self, run: Sequence[Change]) -> Exception | None:
        """Apply changes, and note them as taken; undo them, and return the error, if the database refuses them."""
        try:
            with self.connection.begin_nested() if self.has_savepoints else nullcontext():
                self.apply(run)
        except (StatementError, *UNBOUND) as error:
            if self.is_passing(error):
                raise
            if not self.has_savepoints:
                self.connection.rollback()
                self.begin()
                for each in self._taken:
                    self.apply(each)
            return error
        self._taken.append(run)
        return None


def _halves(changes: Sequence[Change]) -> list[Sequence[Change]]:
    """Return the later half, and then the earlier one, which is tried first; one change alone is not cut."""
    middle = len(changes) // 2
    return [half for half in (changes[middle:], changes[:middle]) if half]
