"""Functions of arrays and maps, with lambdas, of rows made of them, and of NULLs."""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.registry import scalar, table_function
from riverrun.sql.functions.values import MOST_ITEMS, check_size, distinct, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

THEME = "Collections"


@scalar("ARRAY_CONCAT(first ARRAY<T>, second ARRAY<T>) -> ARRAY<T>", theme=THEME, nulls=True)
def concatenated(first: list[Any] | None, second: list[Any] | None) -> list[Any] | None:
    """Both arrays one after the other; NULL only if both are."""
    return None if first is None and second is None else [*(first or ()), *(second or ())]


@scalar("ARRAY_CONTAINS(items ARRAY<T>, item T) -> BOOLEAN", theme=THEME, nulls=frozenset({1}))
def contains(items: list[Any], item: Any) -> bool:
    """Whether an item is in the array."""
    return item in items


@scalar("ARRAY_DISTINCT(items ARRAY<T>) -> ARRAY<T>", theme=THEME)
def unique(items: list[Any]) -> list[Any]:
    """Each item once, in the order they come."""
    return distinct(items)


@scalar("ARRAY_EXCEPT(items ARRAY<T>, others ARRAY<T>) -> ARRAY<T>", theme=THEME)
def without(items: list[Any], others: list[Any]) -> list[Any]:
    """Each item once that is not in the other array."""
    known = {key_of(item) for item in others}
    return [item for item in distinct(items) if key_of(item) not in known]


@scalar("ARRAY_INTERSECT(items ARRAY<T>, others ARRAY<T>) -> ARRAY<T>", theme=THEME)
def in_both(items: list[Any], others: list[Any]) -> list[Any]:
    """Each item once that is in the other array, too."""
    known = {key_of(item) for item in others}
    return [item for item in distinct(items) if key_of(item) in known]


@scalar("ARRAY_UNION(items ARRAY<T>, others ARRAY<T>) -> ARRAY<T>", theme=THEME)
def in_any(items: list[Any], others: list[Any]) -> list[Any]:
    """Each item of both arrays once."""
    return distinct([*items, *others])


@scalar("ARRAY_JOIN(items ARRAY<C>, [delimiter STRING]) -> STRING", theme=THEME, nulls=frozenset({1}))
def joined(items: list[Any], delimiter: str | None = ",") -> str:
    """The items as one text with a delimiter between them, a comma unless another is given."""
    between = delimiter or ""
    texts = list(map(_as_text, items))
    check_size(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


def _as_text(item: Any) -> str:
    if item is None:
        return "null"
    return str(item).lower() if isinstance(item, bool) else str(item)


@scalar("ARRAY_LENGTH(items ARRAY<T>) -> INTEGER", theme=THEME)
def array_length(items: list[Any]) -> int:
    """The number of items."""
    return len(items)


@scalar("ARRAY_MAX(items ARRAY<C>) -> C", theme=THEME)
def array_maximum(items: list[Any]) -> Any:
    """The largest item; NULL if all are."""
    return max((item for item in items if item is not None), default=None)


@scalar("ARRAY_MIN(items ARRAY<C>) -> C", theme=THEME)
def array_minimum(items: list[Any]) -> Any:
    """The smallest item; NULL if all are."""
    return min((item for item in items if item is not None), default=None)


@scalar("ARRAY_REMOVE(items ARRAY<T>, item T) -> ARRAY<T>", theme=THEME, nulls=frozenset({1}))
def removed(items: list[Any], item: Any) -> list[Any]:
    """The array without an item."""
    return [each for each in items if each != item]


def _is_descending(direction: str) -> bool:
    if direction.upper() not in {"ASC", "ASCENDING", "DESC", "DESCENDING"}:
        raise ValueError(f"direction {direction} is neither ASC nor DESC")
    return direction.upper().startswith("DESC")


@scalar(
    "ARRAY_SORT(items ARRAY<C>, [direction STRING]) -> ARRAY<C>", theme=THEME, constants={"direction": _is_descending}
)
def in_order(items: list[Any], direction: str = "ASC") -> list[Any]:
    """The items in order, `ASC` (as they are by default) or `DESC`, with NULLs at the end."""
    known = sorted((item for item in items if item is not None), reverse=_is_descending(direction))
    return known + [None] * (len(items) - len(known))


@scalar("AS_MAP(keys ARRAY<STRING>, items ARRAY<T>) -> MAP<STRING, T>", theme=THEME)
def as_map(keys: list[Any], items: list[Any]) -> dict[Any, Any]:
    """A map of keys and items at equal places."""
    return dict(zip(keys, items + [None] * (len(keys) - len(items)), strict=False))


@scalar("MAP_KEYS(entries MAP<K, V>) -> ARRAY<K>", theme=THEME)
def map_keys(entries: dict[Any, Any]) -> list[Any]:
    """The keys."""
    return list(entries)


@scalar("MAP_VALUES(entries MAP<K, V>) -> ARRAY<V>", theme=THEME)
def map_values(entries: dict[Any, Any]) -> list[Any]:
    """The values."""
    return list(entries.values())


@scalar("MAP_UNION(first MAP<K, V>, second MAP<K, V>) -> MAP<K, V>", theme=THEME, nulls=True)
def united(first: dict[Any, Any] | None, second: dict[Any, Any] | None) -> dict[Any, Any] | None:
    """The entries of both maps; the second one's win. NULL only if both are."""
    return None if first is None and second is None else {**(first or {}), **(second or {})}


@scalar("ENTRIES(entries MAP<STRING, T>, sorted BOOLEAN) -> ARRAY<STRUCT<K STRING, V T>>", theme=THEME)
def entries_of(entries: dict[str, Any], in_order_of_keys: bool) -> list[dict[str, Any]]:  # noqa: FBT001 - SQL's arguments have positions
    """The entries as structs of `K` and `V`, sorted by key if that is true."""
    pairs = sorted(entries.items(), key=lambda pair: pair[0]) if in_order_of_keys else entries.items()
    return [{"K": key, "V": value} for key, value in pairs]


@scalar("SLICE(items ARRAY<T>, from INTEGER, to INTEGER) -> ARRAY<T>", theme=THEME, nulls=frozenset({1, 2}))
def sliced(items: list[Any], start: int | None, end: int | None) -> list[Any] | None:
    """The items from one position to another, both counted from 1 and included; NULL if there are no such positions."""
    first = 0 if start is None else start - 1
    last = len(items) if end is None else end
    return items[first:last] if 0 <= first <= last <= len(items) else None


@scalar("GENERATE_SERIES(start INTEGER, end INTEGER, [step INTEGER]) -> ARRAY<INTEGER>", theme=THEME, is_late=True)
@scalar("GENERATE_SERIES(start BIGINT, end BIGINT, [step INTEGER]) -> ARRAY<BIGINT>", theme=THEME, is_late=True)
def series(start: int, end: int, step: int | None = None) -> list[int]:
    """The numbers from one to another, both included, with a step that is 1 or -1 unless another is given."""
    by = step if step is not None else (1 if end >= start else -1)
    if by == 0 or (end - start) * by < 0:
        raise ValueError(f"steps of {by} do not lead from {start} to {end}")
    numbers = range(start, end + (1 if by > 0 else -1), by)
    check_size(abs(end - start) // abs(by) + 1, MOST_ITEMS)
    return list(numbers)


LAMBDAS = "Lambdas"


@scalar("TRANSFORM(items ARRAY<T>, change (T) => U) -> ARRAY<U>", theme=LAMBDAS)
def transformed(items: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    """The results of a lambda for each item."""
    return [change(item) for item in items]


@scalar("TRANSFORM(entries MAP<K, V>, key (K, V) => T, value (K, V) => U) -> MAP<T, U>", theme=LAMBDAS)
def transformed_map(
    entries: dict[Any, Any], key: Callable[[Any, Any], Any], value: Callable[[Any, Any], Any]
) -> dict[Any, Any]:
    """A map with keys and values that lambdas make of each entry."""
    return {key(*entry): value(*entry) for entry in entries.items()}


@scalar("FILTER(items ARRAY<T>, keep (T) => BOOLEAN) -> ARRAY<T>", theme=LAMBDAS)
def filtered(items: list[Any], keep: Callable[[Any], bool]) -> list[Any]:
    """The items for which a lambda is true."""
    return [item for item in items if keep(item)]


@scalar("FILTER(entries MAP<K, V>, keep (K, V) => BOOLEAN) -> MAP<K, V>", theme=LAMBDAS)
def filtered_map(entries: dict[Any, Any], keep: Callable[[Any, Any], bool]) -> dict[Any, Any]:
    """The entries for which a lambda is true."""
    return {key: value for key, value in entries.items() if keep(key, value)}


@scalar("REDUCE(items ARRAY<T>, state S, change (S, T) => S) -> S", theme=LAMBDAS, nulls=True)
def reduced(items: list[Any] | None, state: Any, change: Callable[[Any, Any], Any]) -> Any:
    """The state after a lambda has taken in each item; the state itself if the array is NULL."""
    return None if state is None else reduce(change, items or (), state)


@scalar("REDUCE(entries MAP<K, V>, state S, change (S, K, V) => S) -> S", theme=LAMBDAS, nulls=True)
def reduced_map(entries: dict[Any, Any] | None, state: Any, change: Callable[[Any, Any, Any], Any]) -> Any:
    """The state after a lambda has taken in each entry; the state itself if the map is NULL."""
    return (
        None if state is None else reduce(lambda so_far, entry: change(so_far, *entry), (entries or {}).items(), state)
    )


@table_function("EXPLODE(items ARRAY<T>) -> T")
def explode(items: list[Any] | None) -> list[Any]:
    """A row for each item of an array; none if it is NULL."""
    return list(items or ())


@table_function("CUBE_EXPLODE(columns ARRAY<T>) -> ARRAY<T>")
def cube_explode(columns: list[Any] | None) -> list[list[Any]]:
    """A row for each combination of columns, with NULL in place of those that are left out."""
    known = sum(column is not None for column in columns or ())
    check_size(len(columns or ()) << min(known, 64), MOST_ITEMS)
    choices = [(None,) if column is None else (None, column) for column in columns or ()]
    return [] if columns is None else [list(chosen) for chosen in product(*choices)]


NULLS = "NULLs"


@scalar("COALESCE(first T, [more T...]) -> T", theme=NULLS, nulls=True)
def coalesce(*values: Any) -> Any:
    """The first value that is not NULL."""
    return next((value for value in values if value is not None), None)


@scalar("IFNULL(value T, instead T) -> T", theme=NULLS, nulls=True)
def if_null(value: Any, instead: Any) -> Any:
    """The value, or another one if it is NULL."""
    return instead if value is None else value


@scalar("NULLIF(value T, other T) -> T", theme=NULLS, nulls=True)
def null_if(value: Any, other: Any) -> Any:
    """NULL if both are equal, the first value otherwise."""
    return None if value == other else value


@scalar("AS_VALUE(key T) -> T", theme=NULLS, nulls=True)
def as_value(key: Any) -> Any:
    """A copy of a column of the key, for the value."""
    return key
