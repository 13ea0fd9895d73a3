"""Functions that take lambdas."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from riverrun.sql.functions.registry import scalar

if TYPE_CHECKING:
    from collections.abc import Callable

THEME = "Lambdas"


@scalar("TRANSFORM(items ARRAY<T>, change (T) => U) -> ARRAY<U>", theme=THEME)
def transformed(items: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    """The results of a lambda for each item."""
    return [change(item) for item in items]


@scalar("TRANSFORM(entries MAP<K, V>, key (K, V) => T, value (K, V) => U) -> MAP<T, U>", theme=THEME)
def transformed_map(
    entries: dict[Any, Any], key: Callable[[Any, Any], Any], value: Callable[[Any, Any], Any]
) -> dict[Any, Any]:
    """A map with keys and values that lambdas make of each entry."""
    return {key(*entry): value(*entry) for entry in entries.items()}


@scalar("FILTER(items ARRAY<T>, keep (T) => BOOLEAN) -> ARRAY<T>", theme=THEME)
def filtered(items: list[Any], keep: Callable[[Any], bool]) -> list[Any]:
    """The items for which a lambda is true."""
    return [item for item in items if keep(item)]


@scalar("FILTER(entries MAP<K, V>, keep (K, V) => BOOLEAN) -> MAP<K, V>", theme=THEME)
def filtered_map(entries: dict[Any, Any], keep: Callable[[Any, Any], bool]) -> dict[Any, Any]:
    """The entries for which a lambda is true."""
    return {key: value for key, value in entries.items() if keep(key, value)}


@scalar("REDUCE(items ARRAY<T>, state S, change (S, T) => S) -> S", theme=THEME, nulls=True)
def reduced(items: list[Any] | None, state: Any, change: Callable[[Any, Any], Any]) -> Any:
    """The state after a lambda has taken in each item; the state itself if the array is NULL."""
    return None if state is None else reduce(change, items or (), state)


@scalar("REDUCE(entries MAP<K, V>, state S, change (S, K, V) => S) -> S", theme=THEME, nulls=True)
def reduced_map(entries: dict[Any, Any] | None, state: Any, change: Callable[[Any, Any, Any], Any]) -> Any:
    """The state after a lambda has taken in each entry; the state itself if the map is NULL."""
    return (
        None if state is None else reduce(lambda so_far, entry: change(so_far, *entry), (entries or {}).items(), state)
    )
