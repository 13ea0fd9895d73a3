"""The aggregate functions of `aggregate(n=Count(), total=Sum("amount"))`, and what users implement for their own.

A function reads a field of each record: by name, from a mapping or an attribute, or by a function of the value. Without a field
it takes the value itself. Null values are ignored, and a field that a mapping lacks is null: a warning says so, and that a
name is probably misspelt. Only `Count()` counts all records.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from riverrun.arguments import NUMBER, Kind, function, instance, takes_fields
from riverrun.errors import ProcessingError, TopologyError
from riverrun.processor.quantile_sketch import Buckets, Sketch, merged
from riverrun.serde.api import PLAIN

log = logging.getLogger(__name__)

# A field's name, or a function of the value; None for the value itself.
Field: TypeAlias = "str | Callable[[Any], Any] | None"

FIELD = Kind(
    "the name of a field, or a function of (value)",
    lambda given: None if given is None or isinstance(given, str) else function("value").complaint(given),
)
_missing: Counter[str] = Counter()
"""How often aggregates have missed a field in this process, by field: a record counts once per aggregate and window."""
_MANY = 100
_SHARE = instance(int, float, wanted="a number")


@runtime_checkable
class AggregateFunction(Protocol):
    """Combines the values of many records. All named aggregates have these methods, and so may your own.

    A state is what the store keeps between two records: values of JSON, or of the type that `initial` is annotated to return,
    which JSON can write. A frozen `msgspec.Struct` with immutable fields is not encoded for each record.

    >>> from riverrun import JSON, STRING, Consumed, StreamsBuilder
    >>> from riverrun.testing import TopologyTestDriver
    >>> class Product:
    ...     def initial(self) -> float:
    ...         return 1.0
    ...
    ...     def add(self, state, value):
    ...         return state * value
    ...
    ...     def merge(self, first, second):
    ...         return first * second
    ...
    ...     def result(self, state):
    ...         return round(state, 2)
    >>> builder = StreamsBuilder()
    >>> growth = builder.stream("in", Consumed(STRING, JSON)).group_by_key().aggregate(total=Product())
    >>> growth.to_stream().to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("in", STRING, JSON).pipe_key_value_list([("a", 1.1), ("a", 1.1)])
    ...     driver.output_topic("out", STRING, JSON).read_key_values_to_list()
    [('a', {'total': 1.1}), ('a', {'total': 1.21})]
    """

    def initial(self) -> Any:
        """Return the state without records."""

    def add(self, state: Any, value: Any, /) -> Any:
        """Return the state with a record added. In windows and sessions, values may be None."""

    def merge(self, first: Any, second: Any, /) -> Any:
        """Return the state of two merged sessions, of which the second ends later."""

    def result(self, state: Any, /) -> Any:
        """Return what rows show of a state."""


@runtime_checkable
class SubtractableAggregateFunction(AggregateFunction, Protocol):
    """An aggregate function that grouped tables can use as well, since an update takes out the row that it replaces."""

    def undo(self, state: Any, value: Any, /) -> Any:
        """Return the state with a record taken out that was added before."""


def read(of: Field, value: Any) -> Any:
    """Return a field of a value; None if the value, or the mapping's field, is missing."""
    if value is None or of is None:
        return value
    if not isinstance(of, str):
        return of(value)
    if value.__class__ is not dict and not isinstance(value, Mapping):
        return getattr(value, of)
    found = value.get(of)
    if found is None and of not in value:
        _note_missing(of, value)
    return found


def fields_of(function: AggregateFunction) -> tuple[str, ...]:
    """Return the fields that one of the aggregates below reads by name."""
    of = getattr(function, "field", None) if type(function).__module__ == __name__ else None
    return (of,) if isinstance(of, str) else ()


def _note_missing(of: str, value: Mapping[Any, Any]) -> None:
    """Count a missing field, and warn of a probable misspelling at once, of others when they are missing often."""
    _missing[of] += 1
    count = _missing[of]
    near = get_close_matches(of, [name for name in value if isinstance(name, str)], 1) if count == 1 else ()
    if near:
        log.warning("a record lacks the field %r, which an aggregate reads as null. Did you mean %r?", of, near[0])
    elif count >= _MANY and count == 10 ** (len(str(count)) - 1):
        log.warning("the field %r was missing %s times, and aggregates have read it as null", of, f"{count:,}")


def _number(name: str, of: Field, found: Any) -> Any:
    kind = type(found)
    if found is None or kind is int:
        return found
    if isinstance(found, int):
        return int(found)
    if isinstance(found, float) and math.isfinite(found):
        return float(found)
    message = f"{_shown(name, of)} takes finite numbers (int or float), not {found!r} ({kind.__qualname__})"
    raise ProcessingError(message, hint="Convert it: a function of the value may stand for the field.")


def _shown(name: str, of: Field) -> str:
    return f"{name}({of!r})" if isinstance(of, str) else name


def _finite(name: str, of: Field, total: Any) -> Any:
    if isinstance(total, float) and not math.isfinite(total):
        raise ProcessingError(f"{_shown(name, of)} overflows a 64-bit float")
    return total


def _json(value: Any) -> Any:
    # A copy: the record's own objects may be changed by others after this call.
    return value if type(value) in PLAIN else msgspec.to_builtins(value)


@takes_fields(field=FIELD)
@dataclass(frozen=True, slots=True)
class Count:
    """Counts records; with a field, those in which it is not null. Works on tables, too.

    Args:
        field: The field. Default: all records count, whatever their values.
    """

    field: Field = None

    def initial(self) -> int:
        """Return 0."""
        return 0

    def add(self, state: int, value: Any) -> int:
        """Count a record."""
        return state + (self.field is None or read(self.field, value) is not None)

    def undo(self, state: int, value: Any) -> int:
        """Take a counted record out."""
        return state - (self.field is None or read(self.field, value) is not None)

    def merge(self, first: int, second: int) -> int:
        """Return both counts together."""
        return first + second

    def result(self, state: int) -> int:
        """Return the count."""
        return state


@takes_fields(field=FIELD)
@dataclass(frozen=True, slots=True)
class Sum:
    """Adds numbers; 0 without any. Works on tables, too, where a sum of floats may be off by rounding errors.

    Args:
        field: The field with the numbers. Default: the value. Whole numbers are exact. Floats are added to one float: a table
            that had 1e16 and 1.0, and has 1.0 left, has the sum 0.0. Cents instead of euros, or `Decimal` in SQL, are exact.
    """

    field: Field = None

    def initial(self) -> int | float:
        """Return 0."""
        return 0

    def add(self, state: float, value: Any) -> float:
        """Add a number."""
        number = _number("Sum", self.field, read(self.field, value))
        total: float = state if number is None else _finite("Sum", self.field, state + number)
        return total

    def undo(self, state: float, value: Any) -> float:
        """Subtract a number."""
        number = _number("Sum", self.field, read(self.field, value))
        total: float = state if number is None else _finite("Sum", self.field, state - number)
        return total

    def merge(self, first: float, second: float) -> float:
        """Return both sums together."""
        total: float = _finite("Sum", self.field, first + second)
        return total

    def result(self, state: float) -> float:
        """Return the sum."""
        return state


class Average(msgspec.Struct, frozen=True):
    """The state of a mean."""

    sum: int | float = 0
    count: int = 0


@takes_fields(field=FIELD)
@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of numbers; None without any. Works on tables, too, where that of floats may be off as `Sum` may.

    Args:
        field: The field with the numbers. Default: the value.
    """

    field: Field = None

    def initial(self) -> Average:
        """Return the mean of no numbers."""
        return Average()

    def add(self, state: Average, value: Any) -> Average:
        """Add a number."""
        return self._moved(state, value, 1)

    def undo(self, state: Average, value: Any) -> Average:
        """Take a number out."""
        return self._moved(state, value, -1)

    def _moved(self, state: Average, value: Any, by: int) -> Average:
        number = _number("Mean", self.field, read(self.field, value))
        if number is None:
            return state
        return Average(_finite("Mean", self.field, state.sum + by * number), state.count + by)

    def merge(self, first: Average, second: Average) -> Average:
        """Return the mean of the numbers of both."""
        return Average(_finite("Mean", self.field, first.sum + second.sum), first.count + second.count)

    def result(self, state: Average) -> float | None:
        """Return the mean."""
        return state.sum / state.count if state.count else None


def _chosen(name: str, of: Field, state: Any, found: Any, choose: Callable[[Any, Any], Any]) -> Any:
    """Return the smaller or larger one of two; the other one if one is None."""
    if found is None:
        return state
    if not isinstance(found, str):
        found = _number(name, of, found)
    try:
        return found if state is None else choose(state, found)
    except TypeError:
        raise ProcessingError(f"{_shown(name, of)} cannot compare {state!r} and {found!r}") from None


@takes_fields(field=FIELD)
@dataclass(frozen=True, slots=True)
class Min:
    """The smallest of numbers, or of texts; None without any. Not supported on tables: a minimum cannot be undone.

    Args:
        field: The field. Default: the value.
    """

    field: Field = None

    def initial(self) -> int | float | str | None:
        """Return None."""
        return None

    def add(self, state: Any, value: Any) -> Any:
        """Compare with one more."""
        return _chosen("Min", self.field, state, read(self.field, value), min)

    def merge(self, first: Any, second: Any) -> Any:
        """Return the smaller one."""
        return _chosen("Min", self.field, first, second, min)

    def result(self, state: Any) -> Any:
        """Return the smallest one."""
        return state


@takes_fields(field=FIELD)
@dataclass(frozen=True, slots=True)
class Max:
    """The largest of numbers, or of texts; None without any. Not supported on tables.

    Args:
        field: The field. Default: the value.
    """

    field: Field = None

    def initial(self) -> int | float | str | None:
        """Return None."""
        return None

    def add(self, state: Any, value: Any) -> Any:
        """Compare with one more."""
        return _chosen("Max", self.field, state, read(self.field, value), max)

    def merge(self, first: Any, second: Any) -> Any:
        """Return the larger one."""
        return _chosen("Max", self.field, first, second, max)

    def result(self, state: Any) -> Any:
        """Return the largest one."""
        return state


@takes_fields(field=FIELD)
@dataclass(frozen=True, slots=True)
class Earliest:
    """The value that arrived first, as JSON has it; None without any. Of merged sessions, that of the first. Not for tables.

    Args:
        field: The field. Default: the value.
    """

    field: Field = None

    def initial(self) -> Any:
        """Return None."""
        return None

    def add(self, state: Any, value: Any) -> Any:
        """Take the first one."""
        return _json(read(self.field, value)) if state is None else state

    def merge(self, first: Any, second: Any) -> Any:
        """Return that of the first session."""
        return second if first is None else first

    def result(self, state: Any) -> Any:
        """Return it."""
        return state


@takes_fields(field=FIELD)
@dataclass(frozen=True, slots=True)
class Latest:
    """The value that arrived last, as JSON has it; None without any. Of merged sessions, that of the last. Not for tables.

    Args:
        field: The field. Default: the value.
    """

    field: Field = None

    def initial(self) -> Any:
        """Return None."""
        return None

    def add(self, state: Any, value: Any) -> Any:
        """Take one that is not null."""
        found = read(self.field, value)
        return state if found is None else _json(found)

    def merge(self, first: Any, second: Any) -> Any:
        """Return that of the second session."""
        return first if second is None else second

    def result(self, state: Any) -> Any:
        """Return it."""
        return state


def _check_limit(name: str, limit: int) -> None:
    if limit < 1:
        raise TopologyError(f"{name}: limit must be at least 1, not {limit}")


@takes_fields(field=FIELD, limit=NUMBER)
@dataclass(frozen=True, slots=True)
class CollectList:
    """All values in the order of arrival, as JSON has them. Not supported on tables.

    Args:
        field: The field. Default: the value.
        limit: Number of values to keep, from 1; later ones are ignored.

    Raises:
        TopologyError: If the limit is below 1.
    """

    field: Field = None
    _: KW_ONLY
    limit: int

    def __post_init__(self) -> None:
        _check_limit("CollectList", self.limit)

    def initial(self) -> list[Any]:
        """Return an empty list."""
        return []

    def add(self, state: list[Any], value: Any) -> list[Any]:
        """Add one that is not null."""
        found = read(self.field, value)
        return state if found is None or len(state) >= self.limit else [*state, _json(found)]

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        """Return the values of both."""
        return [*first, *second][: self.limit]

    def result(self, state: list[Any]) -> list[Any]:
        """Return the values."""
        return state


@takes_fields(field=FIELD, limit=NUMBER)
@dataclass(frozen=True, slots=True)
class CollectSet:
    """Each value once in the order of arrival, as JSON has it: a list. Not supported on tables.

    Args:
        field: The field. Default: the value.
        limit: Number of values to keep, from 1; later ones are ignored.

    Raises:
        TopologyError: If the limit is below 1.
    """

    field: Field = None
    _: KW_ONLY
    limit: int

    def __post_init__(self) -> None:
        _check_limit("CollectSet", self.limit)

    def initial(self) -> list[Any]:
        """Return an empty list."""
        return []

    def add(self, state: list[Any], value: Any) -> list[Any]:
        """Add one that is new, and not null."""
        if len(state) >= self.limit:
            return state
        found = _json(read(self.field, value))
        return state if found is None or found in state else [*state, found]

    def merge(self, first: list[Any], second: list[Any]) -> list[Any]:
        """Return the values of both."""
        return [*first, *(each for each in second if each not in first)][: self.limit]

    def result(self, state: list[Any]) -> list[Any]:
        """Return the values."""
        return state


@takes_fields(field=FIELD, share=_SHARE, accuracy=_SHARE)
@dataclass(frozen=True, slots=True)
class Quantile:
    """The number below which a share of all numbers lies, approximately; None without any. Works on tables, too.

    The state is a count per bucket of near numbers, for at most 1,024 buckets. If numbers differ more widely, the lowest
    ones share a bucket.

    >>> Quantile("ms", 1.5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    riverrun.errors.TopologyError: Quantile: share must be at least 0 and at most 1, not 1.5 ...

    Args:
        field: The field with the numbers; None for the value.
        share: The share, from 0 to 1: 0.99 for the 99th percentile.
        accuracy: Greatest relative error, from 0.0001 to 0.5.

    Raises:
        TopologyError: If share or accuracy are out of range.
    """

    field: Field
    share: float
    accuracy: float = 0.01
    _buckets: Buckets = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, given, (least, most) in (
            ("share", self.share, (0, 1)),
            ("accuracy", self.accuracy, (0.0001, 0.5)),
        ):
            if not least <= given <= most:
                raise TopologyError(f"Quantile: {name} must be at least {least} and at most {most}, not {given}")
        object.__setattr__(self, "_buckets", Buckets(self.accuracy))

    def initial(self) -> Sketch:
        """Return the sketch of no numbers."""
        return Sketch()

    def add(self, state: Sketch, value: Any) -> Sketch:
        """Add a number."""
        return self._moved(state, value, 1)

    def undo(self, state: Sketch, value: Any) -> Sketch:
        """Take a number out."""
        return self._moved(state, value, -1)

    def _moved(self, state: Sketch, value: Any, by: int) -> Sketch:
        number = _number("Quantile", self.field, read(self.field, value))
        return state if number is None else self._buckets.moved(state, number, by)

    def merge(self, first: Sketch, second: Sketch) -> Sketch:
        """Return the sketch of the numbers of both."""
        return merged(first, second)

    def result(self, state: Sketch) -> float | None:
        """Return the quantile."""
        return self._buckets.quantile(state, self.share)
