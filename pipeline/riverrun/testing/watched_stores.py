"""Lets an observer see the values that leave and enter a store, without a wrapper class per kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.operators.aggregations import COUNT
from riverrun.records import ValueAndTimestamp, VersionedRecord
from riverrun.state.values import is_atom

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.access import CachedLookup
    from riverrun.state.api import StateStore, StoreBuilder
    from riverrun.state.folds import Fold

_READING = (
    *("get", "delete", "range", "reverse_range", "all", "reverse_all", "backward_all", "prefix_scan"),
    *("fetch", "backward_fetch", "fetch_session", "find_sessions", "backward_find_sessions"),
    *("find_sessions_of_keys", "backward_find_sessions_of_keys", "fetch_keys", "backward_fetch_keys"),
    *("fetch_range", "backward_fetch_range", "fetch_all", "backward_fetch_all"),
)
"""Methods that return a value, or an iterator whose items end with one."""
_OF_ONE_KEY = ("fetch_range", "backward_fetch_range")
"""Methods whose items do not contain the requested key."""


class Observer(Protocol):
    """Receives the values."""

    def was_read(self, store: str, value: Any, encode: Callable[[Any], bytes | None], words: str) -> None:
        """Handle a value that was read from a store; `encode` returns its bytes, `words` describes it."""
        ...

    def was_found(self, store: str, key: Any, words: str) -> None:
        """Handle a key that was found in a store; `words` describes it."""
        ...

    def was_put(self, value: Any) -> None:
        """Handle a value that was put."""
        ...

    def was_left(self, store: str, words: str, before: bytes | None, now: bytes | None) -> None:
        """Handle an aggregator that changed an aggregate but returned something else."""
        ...


@dataclass(frozen=True, slots=True)
class WatchedStore:
    """Replaces methods of one store by methods that notify an observer."""

    observer: Observer
    builder: StoreBuilder

    def attach(self, store: StateStore) -> None:
        """Replace those methods that the store has."""
        makers: dict[str, Callable[[Any], Any]] = dict.fromkeys(_READING, self._reading)
        makers |= dict.fromkeys(_OF_ONE_KEY, self._reading_one_key)
        makers |= {"put": self._putting, "cached_lookup": self._looking_up}
        makers |= {"cached_fold": self._folding, "writing_fold": self._folding}
        for name, make in makers.items():
            method = getattr(store, name, None)
            if method is not None:
                setattr(store, name, make(method))

    def encode(self, value: Any) -> bytes | None:
        """Return the value as the store would hold it; None if its serde refuses it."""
        with suppress(Exception):
            return self.builder.value_serde.serialize(value)
        return None

    def words(self, *key: Any) -> str:
        """Describe the value of a key."""
        return f"the value of key {', '.join(map(repr, key))} from store {self.builder.name}"

    def _reading(self, method: Callable[..., Any], *, names_key: bool = True) -> Callable[..., Any]:
        @wraps(method)
        def read(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            if isinstance(found, Iterator):
                return self._each(found, () if names_key else args[:1])
            self._was_read(args, found)
            return found

        return read

    def _reading_one_key(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return self._reading(method, names_key=False)

    def _putting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def put(key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(key, value, *args, **kwargs)
            self.observer.was_put(_inner(value))
            return result

        return put

    def _looking_up(self, method: Callable[[], CachedLookup | None]) -> Callable[[], CachedLookup | None]:
        @wraps(method)
        def cached_lookup() -> CachedLookup | None:
            lookup = method()
            if lookup is None:
                return None
            plain = lookup.find

            def find(key_as_bytes: bytes, key: Any) -> Any:
                found = plain(key_as_bytes, key)
                self._was_read((key,), found)
                return found

            return replace(lookup, find=find)

        return cached_lookup

    def _folding(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def take(fold: Fold, **kwargs: Any) -> Any:
            return method(fold if fold is COUNT else _WatchedFold(fold, self), **kwargs)

        return take

    def _each(self, items: Iterator[tuple[Any, ...]], asked: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        for item in items:
            self._was_read((*asked, *item[:-1]), item[-1])
            for key in item[:-1]:
                self.observer.was_found(self.builder.name, key, f"the key {key!r} from store {self.builder.name}")
            yield item

    def _was_read(self, key: tuple[Any, ...], value: Any) -> None:
        self.observer.was_read(self.builder.name, _inner(value), self.encode, self.words(*key))


@dataclass(frozen=True, slots=True)
class _WatchedFold:
    """Compares aggregates before and after an aggregation: a changed aggregate must be the returned one."""

    inner: Fold
    store: WatchedStore
    code: None = None

    def first(self, key: Any, value: Any) -> Any:
        """Aggregate without an earlier aggregate."""
        return self.inner.first(key, value)

    def add(self, key: Any, value: Any, aggregate: Any) -> Any:
        """Add a value to an aggregate."""
        if is_atom(aggregate):
            return self.inner.add(key, value, aggregate)
        before = self.store.encode(aggregate)
        result = self.inner.add(key, value, aggregate)
        if result is not aggregate and (now := self.store.encode(aggregate)) != before:
            store = self.store
            store.observer.was_left(store.builder.name, store.words(key), before, now)
        return result


def _inner(value: Any) -> Any:
    """Return a value without its timestamp."""
    return value.value if isinstance(value, ValueAndTimestamp | VersionedRecord) else value
