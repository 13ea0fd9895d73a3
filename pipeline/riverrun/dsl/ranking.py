"""The first values of each group in an order: `top(3, by="amount")` of grouped streams, windows, sessions and tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.dsl.kinds import refuse_unknown
from riverrun.dsl.options import Materialized
from riverrun.dsl.plan import serde_of
from riverrun.errors import ProcessingError, TopologyError
from riverrun.operators.aggregations import Aggregator
from riverrun.operators.table_aggregations import TableAggregator
from riverrun.processor.aggregates import read
from riverrun.serde.serdes import JSON

if TYPE_CHECKING:
    from riverrun.processor.aggregates import Field
    from riverrun.serde.api import Serde


@dataclass(frozen=True, slots=True)
class Ranking:
    """Lists of values in order. Values without a rank are left out.

    Of values with equal ranks, the one that arrived first is ahead; of merged sessions those of the first session.
    """

    count: int
    by: Field
    largest: bool

    @classmethod
    def of(cls, count: int, by: Field, *, largest: bool, values: Serde[Any] | None) -> Ranking:
        """Check the arguments of a call; `values` is the serde of the values, if known."""
        if count < 1:
            raise TopologyError(f"top() takes the first 1 or more values, not {count}")
        refuse_unknown([by] if isinstance(by, str) else [], values, f"top(by={by!r})")
        return cls(count, by, largest)

    @property
    def functions(self) -> tuple[Any, ...]:
        return "top", self.count, self.by, self.largest

    @property
    def of_stream(self) -> Aggregator:
        """Return the functions of an aggregation that keeps the first values."""
        return Aggregator(list, lambda _key, value, values: self._with(values, value)[: self.count])

    @property
    def of_table(self) -> TableAggregator:
        """Return the functions of an aggregation that keeps all values: one of the first may go."""
        return TableAggregator(
            list,
            lambda _key, value, values: self._with(values, value),
            # None deletes a group without rows.
            lambda _key, value, values: _without(values, value) or None,
        )

    def merged(self, _key: Any, first: list[Any], second: list[Any]) -> list[Any]:
        """Return the first values of two sessions."""
        for value in second:
            first = self._with(first, value)
        return first[: self.count]

    def first(self, values: list[Any]) -> list[Any]:
        """Return the first of all values of a group; None if there are none."""
        return values[: self.count]

    def _with(self, values: list[Any], value: Any) -> list[Any]:
        rank = read(self.by, value)
        if rank is None:
            return values
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            # Strictly ahead: of equal ranks, the value that arrived first stays first.
            if self._is_ahead(rank, read(self.by, values[middle])):
                high = middle
            else:
                low = middle + 1
        return [*values[:low], value, *values[low:]]

    def _is_ahead(self, rank: Any, other: Any) -> bool:
        try:
            return bool(rank > other if self.largest else rank < other)
        except TypeError:
            message = f"top() cannot compare the ranks {rank!r} and {other!r}"
            raise ProcessingError(message, hint="Return numbers, texts, or tuples of these from `by`.") from None

    def stored(
        self, materialized: Materialized[Any, Any] | None, value_serde: Serde[Any] | None
    ) -> Materialized[Any, Any]:
        options: Materialized[Any, Any] = materialized or Materialized()
        if options.value_serde is not None:
            return options
        # JSON if that is known to have such values: no list serde follows from other serdes.
        kind = None if value_serde is None or value_serde.plain is not None else value_serde.value_type
        lists: Serde[Any] | None = None if kind is None else JSON(list[kind])  # type: ignore[valid-type]
        return replace(options, value_serde=serde_of(lists, "lists of values", "top()", "Materialized"))


def _without(values: list[Any], value: Any) -> list[Any]:
    """Return the values without one that equals `value`, if there is one: it may have had no rank."""
    # The last of equal values: they cannot be distinguished, and the order of the others stays.
    for at in range(len(values) - 1, -1, -1):
        if values[at] == value:
            return values[:at] + values[at + 1 :]
    return values
