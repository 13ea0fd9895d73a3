"""Functions of arrays and maps."""

from __future__ import annotations

from typing import Any

from riverrun.sql.functions.registry import scalar
from riverrun.sql.functions.values import MOST_ITEMS, check_size, distinct, key_of

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
        message = f"direction {direction} is neither ASC nor DESC"
        raise ValueError(message)
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
        message = f"a series from {start} to {end} with steps of {by}"
        raise ValueError(message)
    numbers = range(start, end + (1 if by > 0 else -1), by)
    check_size(abs(end - start) // abs(by) + 1, MOST_ITEMS)
    return list(numbers)
