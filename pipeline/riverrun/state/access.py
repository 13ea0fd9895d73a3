"""Cached stores in parts: generated functions aggregate into them, put into them and look up there without a call for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.cache import CacheEntry, NamedCache
    from riverrun.state.codec import StoredKeys
    from riverrun.state.folds import Fold
    from riverrun.state.segments import Retention


@dataclass(frozen=True, slots=True)
class CachedPut:
    """Puts into a cached store with timestamps, in parts: without a call for each, where the cache has the key already.

    Args:
        index: Entries that were found, by the bytes of the key in the record.
        find: `(bytes, key) -> entry`, for keys that are not in `index`; the entry is None if the store has to be called.
    """

    index: dict[bytes, CacheEntry]
    find: Callable[[bytes, Any], CacheEntry | None]
    cache: NamedCache


@dataclass(frozen=True, slots=True)
class CachedGet:
    """Look-ups of values in a cached store with timestamps, in parts: without a call for each.

    Args:
        values: Immutable values that were read (None for a missing one), by the bytes of the key in the record.
        find: `(bytes, key) -> value`, for keys that are not in `values`.
    """

    values: dict[bytes, Any]
    find: Callable[[bytes, Any], Any]


@dataclass(frozen=True, slots=True)
class CachedFold:
    """An aggregation into a cached store of timestamped values, in parts: get, add and put without a call for each.

    Its user looks up the entry in `index` (of a window store in `index[start]`). The bytes that stand for the key are those in
    the record, or those in the store. It calls `find` for missing entries, and `mark` for clean ones that it updates.

    Args:
        find: `(bytes, key) -> entry`, of a window store `(bytes, key, start) -> entry`; adds the entry to the index.
        mark: `(entry)`, called when a clean entry is updated.
        kept: Of a window store, the starts that this applies to: from `first` up to `end`. For others, call the store.
    """

    fold: Fold
    keys: StoredKeys
    index: dict[Any, Any]
    find: Callable[..., CacheEntry]
    cache: NamedCache
    mark: Callable[[CacheEntry], None]
    kept: Retention | None = None


@runtime_checkable
class FoldsInParts(Protocol):
    """A store that lets generated functions aggregate into its cache."""

    def cached_fold(self, fold: Fold) -> CachedFold | None:
        """Return an aggregation in parts; None if the store has to be called."""


@runtime_checkable
class KeepsForwarded(Protocol):
    """A store that knows the value of a key as its last flush forwarded it, while an update waits for the next one."""

    def get_forwarded(self, key: Any, *_as_of: int) -> Any:
        """Return the value that listeners know, or None."""


@runtime_checkable
class LooksUpInParts(Protocol):
    """A store that lets generated functions look values up in its cache."""

    def cached_get(self) -> CachedGet | None:
        """Return look-ups in parts; None if the store has to be called."""


@runtime_checkable
class PutsInParts(Protocol):
    """A store that lets generated functions put values into its cache."""

    def cached_put(self) -> CachedPut | None:
        """Return puts in parts; None if the store has to be called."""
