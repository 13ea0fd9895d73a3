"""Results that need all rows of a query first: groups, and rows in an order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import USER_ERRORS, StreamsError, as_exception
from riverrun.sql.functions.gathered import TooManyValuesError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.sql.commands import Order
    from riverrun.sql.planning.aggregations import RowGroups

MOST_HELD = 100_000
"""Greatest number of rows or groups that a query holds at a time."""
# Rows are sorted again once they are this many times as many as LIMIT lets pass.
_SORTED_AT = 2


class TooManyRowsError(StreamsError):
    """A query would have to hold more rows, or more values of a group, than it may."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """How rows become results.

    Args:
        groups: How rows make groups; None if each row is one of the result.
        make: Returns the columns of the result, and behind them the values of ORDER BY.
        width: The number of columns of the result.
    """

    groups: RowGroups | None
    make: Callable[[Any], Any]
    width: int
    orders: tuple[Order, ...]
    limit: int | None

    def sort(self, rows: list[Any]) -> None:
        """Sort rows that `make` has made, and keep those that LIMIT lets pass."""
        # Sorting is stable, so the last expression comes first.
        for number, order in reversed(list(enumerate(self.orders, self.width))):
            rank = _rank(number, is_null_low=order.is_null_first is not order.is_descending)
            rows.sort(key=rank, reverse=order.is_descending)
        if self.limit is not None:
            del rows[self.limit :]


def _rank(place: int, *, is_null_low: bool) -> Callable[[Any], Any]:
    null = 0 if is_null_low else 2

    def rank(row: Any) -> Any:
        value = row[place]
        if value is None:
            return (null,)
        # NaN is greater than all other numbers, as in Java. It compares with none in Python.
        return (1, True, 0.0) if isinstance(value, float) and math.isnan(value) else (1, False, value)

    return rank


class Gathered:
    """The rows or groups of a query so far."""

    def __init__(self, how: Gathering) -> None:
        self._how = how
        self._rows: list[Any] = []
        self._groups: dict[bytes, tuple[Any, Any]] = {}
        if how.groups is not None:
            self._row_of, self._add = how.groups.row_of, how.groups.fold.adder()
            # Without GROUP BY there is a result even of no rows.
            if not how.groups.fold.width:
                self._groups[how.groups.key_bytes(())] = (), how.groups.fold.initial()

    def add(self, row: Any) -> None:
        """Add a row of the source."""
        if self._how.groups is None:
            self._hold(self._how.make(row))
            return
        made = self._row_of(row)
        key = made[: self._how.groups.fold.width]
        # Equal keys of groups have equal bytes, also those that have no hash, and NaN.
        data = self._how.groups.key_bytes(key)
        _, states = self._groups.get(data) or (key, self._how.groups.fold.initial())
        try:
            self._groups[data] = key, self._add(key, made, states)
        except USER_ERRORS as error:
            raise _failed(error) from error
        self._check(len(self._groups))

    def results(self) -> Sequence[Any]:
        """Return the rows of the result, in their order."""
        groups = self._how.groups
        if groups is not None:
            to_row = groups.fold.results(is_windowed=False)
            try:
                rows = [to_row(key, states) for key, states in self._groups.values()]
            except USER_ERRORS as error:
                raise _failed(error) from error
            passes = groups.passes
            self._rows = [self._how.make(row) for row in rows if passes is None or passes(None, row)]
        self._how.sort(self._rows)
        return [row[: self._how.width] for row in self._rows]

    def _hold(self, row: Any) -> None:
        self._rows.append(row)
        limit = self._how.limit
        if limit is not None and len(self._rows) >= max(_SORTED_AT * limit, 1000):
            self._how.sort(self._rows)
        self._check(len(self._rows))

    def _check(self, held: int) -> None:
        if held > MOST_HELD:
            message = f"The query has to hold more than {MOST_HELD} rows or groups at a time"
            raise TooManyRowsError(message, hint="Conditions let fewer rows pass, and ORDER BY with LIMIT holds few.")


def _failed(error: BaseException) -> StreamsError:
    kind = TooManyRowsError if isinstance(error, TooManyValuesError) else StreamsError
    return kind(f"The rows cannot be aggregated: {as_exception(error)}")
