"""Several aggregates of one grouping by name: `aggregate(n=Count(), total=Sum("amount"))`.

The store has a row of their states, as a JSON object with a field for each name. The table has a row of their results, which
queries of the store show as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from riverrun import arguments
from riverrun.decoders import converter
from riverrun.dsl.kinds import refuse_unknown
from riverrun.dsl.options import Materialized, Named
from riverrun.errors import TopologyError
from riverrun.operators.aggregations import Aggregator
from riverrun.operators.table_aggregations import TableAggregator
from riverrun.processor.aggregates import AggregateFunction, SubtractableAggregateFunction, fields_of
from riverrun.serde.api import field_names
from riverrun.serde.serdes import JSON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.dsl.ktable import KTable
    from riverrun.serde.api import Serde

_OWN = "Pass initializer and aggregator, or named aggregates: aggregate(n=Count(), total=Sum('amount'))."
_METHODS = {
    "add": arguments.function("state, value"),
    "initial": arguments.function(""),
    "merge": arguments.function("first, second"),
    "result": arguments.function("state"),
    "undo": arguments.function("state, value"),
}
Functions = tuple[tuple[str, AggregateFunction], ...]
_to_row = cache(converter)


@dataclass(frozen=True, slots=True)
class NamedAggregates:
    """The aggregates of one call.

    Args:
        rows: The class of rows of results; None for dicts.
    """

    functions: Functions
    rows: type | None = None

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any],
        own: tuple[Any, ...],
        materialized: Materialized[Any, Any] | None,
        values: Serde[Any] | None,
    ) -> NamedAggregates:
        """Check the arguments of a call.

        Each of `own`, the functions of an unnamed aggregate, must be None. `values` is the serde of the values, if known.
        """
        if any(each is not None for each in own):
            message = f"aggregate() takes an aggregator or named aggregates, not both: {', '.join(given)}"
            raise TopologyError(message, hint=_OWN)
        for name, function in given.items():
            _check(name, function)
            refuse_unknown(fields_of(function), values, f"{name}={function!r}")
        return cls(tuple(given.items()), _rows_of(materialized, tuple(given)))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names, in the order of the call."""
        return tuple(name for name, _ in self.functions)

    @property
    def initial(self) -> Callable[[], Any]:
        """Return the function that makes the states without records."""
        row, made = _row_of(self.functions), [each.initial for _, each in self.functions]
        return lambda: row(*[initial() for initial in made])

    def aggregator(self) -> Aggregator:
        """Return the functions of an aggregation of a stream."""
        return Aggregator(self.initial, self._step([each.add for _, each in self.functions]))

    def merger(self) -> Callable[[Any, Any, Any], Any]:
        """Return the function that merges the states of two sessions."""
        row, parts, merges = (
            _row_of(self.functions),
            msgspec.structs.astuple,
            [each.merge for _, each in self.functions],
        )
        return lambda _key, one, two: row(
            *[merge(first, second) for merge, first, second in zip(merges, parts(one), parts(two), strict=True)]
        )

    def table_aggregator(self) -> TableAggregator:
        """Return the functions of an aggregation of a table."""
        undos = []
        for name, function in self.functions:
            if not isinstance(function, SubtractableAggregateFunction):
                message = (
                    f"{name}: {type(function).__name__} cannot aggregate a table: an update would take its old row out"
                )
                raise TopologyError(message, hint="Its class needs a method undo(state, value), or aggregate a stream.")
            undos.append(function.undo)
        return TableAggregator(self.initial, self._step([each.add for _, each in self.functions]), self._step(undos))

    def _step(self, steps: list[Callable[[Any, Any], Any]]) -> Callable[[Any, Any, Any], Any]:
        """Return `(key, value, states) -> states`, of functions of a state and the value."""
        row, parts = _row_of(self.functions), msgspec.structs.astuple
        return lambda _key, value, states: row(
            *[step(state, value) for step, state in zip(steps, parts(states), strict=True)]
        )

    def result(self, states: Any) -> Any:
        found = shown_states(self.functions, states)
        return found if self.rows is None else _to_row(self.rows)(found)

    def stored(self, materialized: Materialized[Any, Any] | None) -> Materialized[Any, Any]:
        return replace(materialized or Materialized(), value_serde=states_serde(self.functions))

    def results(
        self, table: KTable[Any, Any], materialized: Materialized[Any, Any] | None, named: Named | None
    ) -> KTable[Any, Any]:
        serde = JSON if materialized is None or materialized.value_serde is None else materialized.value_serde
        name = None if named is None else Named(f"{named.name}-results")
        return table.map_values(self.result, Materialized(value_serde=serde), named=name)


def unnamed(*functions: Any) -> None:
    """Refuse an aggregation that lacks functions."""
    if None in functions:
        raise TopologyError("aggregate() has nothing to aggregate by", hint=_OWN)


def states_serde(functions: Functions) -> Serde[Any]:
    """Return the serde of rows of states: JSON objects.

    >>> from riverrun.processor.aggregates import Count, Mean
    >>> rows = states_serde((("n", Count()), ("mean", Mean())))
    >>> rows.plain(rows.deserialize(b'{"n":2,"mean":{"sum":5,"count":2}}'))
    {'n': 2, 'mean': 2.5}
    """
    return replace(
        JSON(_row_of(functions)),
        name=f"aggregates[{','.join(name for name, _ in functions)}]",
        remake=(states_serde, (functions,)),
        value_type=Any,
        plain=_Shown(functions),
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """Shows rows of states as rows of results."""

    functions: Functions

    def __call__(self, states: Any) -> Any:
        return shown_states(self.functions, states)


def shown_states(functions: Functions, states: Any) -> dict[str, Any]:
    parts = msgspec.structs.astuple(states)
    return {name: function.result(state) for (name, function), state in zip(functions, parts, strict=True)}


def _row_of(functions: Functions) -> type[msgspec.Struct]:
    # One class in a process for equal fields: stores compare what they read with what they wrote.
    return _row_class(tuple((name, _state_type(function)) for name, function in functions))


@cache
def _row_class(fields: tuple[tuple[str, Any], ...]) -> type[msgspec.Struct]:
    return msgspec.defstruct("States", list(fields), frozen=True)


def _state_type(function: AggregateFunction) -> Any:
    """Return the type of an aggregate's states, to which `initial` is annotated."""
    try:
        return get_type_hints(function.initial, include_extras=True).get("return", Any)
    # Annotations may have names that only type checkers import; then the state is decoded without a type.
    except Exception:  # noqa: BLE001 - names that only type checkers know
        return Any


def _check(name: str, function: Any) -> None:
    if name.startswith("_") or not name.isidentifier():
        message = f"aggregate() cannot name a field {name!r}"
        raise TopologyError(message, hint="Names of aggregates are identifiers that do not begin with _.")
    if isinstance(function, type):
        message = f"{name} must be an aggregate, not the class {function.__name__}"
        raise TopologyError(message, hint=f"{name}={function.__name__}(...)")
    if not isinstance(function, AggregateFunction):
        message = f"{name} must be an aggregate, not {function!r} ({type(function).__name__})"
        raise TopologyError(
            message, hint="Count(), Sum(...) and their like, or an object with initial, add, merge and result."
        )
    for method, kind in _METHODS.items():
        complaint = kind.complaint(getattr(function, method)) if hasattr(function, method) else None
        if complaint is not None:
            raise TopologyError(f"{name}: {type(function).__name__}.{method} {complaint}")


def _rows_of(materialized: Materialized[Any, Any] | None, names: tuple[str, ...]) -> type | None:
    """Return the class to make of results, given the value serde; None for dicts."""
    serde = None if materialized is None else materialized.value_serde
    if serde is None:
        return None
    fields = field_names(serde.value_type)
    if serde.value_type is not None and fields is not None and set(fields) != set(names):
        message = (
            f"serde {serde.name} has the fields {', '.join(fields) or '(none)'}, the aggregates are {', '.join(names)}"
        )
        raise TopologyError(
            message, hint="Materialized(value_serde=JSON(Type)) with a field for each aggregate, or none."
        )
    return serde.value_type if fields and isinstance(serde.value_type, type) else None
