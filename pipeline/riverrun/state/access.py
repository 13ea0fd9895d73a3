"""Aggregations into a cached store, and look-ups there, as lines of generated functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from riverrun.state.cache import ENCODED
from riverrun.state.folds import STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.state.cache import CacheEntry, NamedCache
    from riverrun.state.codec import StoredKeys
    from riverrun.state.folds import Fold, Named
    from riverrun.state.segments import Retention

_FIND = """\
entry = {known}({key_as_bytes})
if entry is None:
    entry = {find}({key_as_bytes}, {key})"""
_FIND_WINDOW = """\
entry = {known}({start}, {none}).get({key_as_bytes})
if entry is None:
    entry = {find}({key_as_bytes}, {key}, {start})"""
_DECODED = """\
    if aggregate is {encoded}:
        aggregate = {value_of}(entry)
"""
_SHARED = "entry.value, entry.time = aggregate, time"
_HELD = """\
if aggregate.__class__ in {shared}:
    entry.value = aggregate
else:
    {hold}(entry, aggregate)
entry.time = time"""
_UPDATE = """\
aggregate, time = entry.value, entry.time
{step}
{stored}
entry.whole = None
entry.timestamp, entry.headers, entry.place = timestamp, headers, {place}
if not entry.order:
    {mark}(entry)
entry.order = next({updates})"""


_PUT = """\
entry = {known}({key_as_bytes})
if entry is None:
    entry = {find}({key_as_bytes}, {key})
if entry is None:
    {otherwise}
else:
    if {value}.__class__ in {shared}:
        entry.value = {value}
    else:
        {hold}(entry, {value}, {raw_value})
    entry.time, entry.whole = timestamp, None
    entry.timestamp, entry.headers, entry.place = timestamp, headers, {place}
    if not entry.order:
        {mark}(entry)
    entry.order = next({updates})"""


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

    def lines(
        self,
        named: Named,
        key_as_bytes: str,
        key: str,
        value: str,
        *,
        raw_value: str | None,
        place: str,
        otherwise: str,
    ) -> str:
        """Return the lines that put a value; they also refer to `timestamp` and `headers`.

        `key` and `place` are expressions, all others are names. `key_as_bytes` names the bytes that stand for the key.
        `raw_value` names those that the store's serde has read the value from; None if there are none. `otherwise` is the
        statement that calls the store.
        """
        cache = self.cache
        return _PUT.format(
            known=named("known", self.index.get),
            find=named("find", self.find),
            shared=named("shared", cache.codec.values.shared),
            hold=named("hold", cache.hold),
            mark=named("mark", cache.mark),
            updates=named("updates", cache.updates),
            key_as_bytes=key_as_bytes,
            key=key,
            value=value,
            raw_value=raw_value,
            place=place,
            otherwise=otherwise,
        )


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
        index: Entries that were found.
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

    @property
    def is_shared(self) -> bool:
        """True if aggregates are of a class that is kept without encoding, whatever the record."""
        code = self.fold.code
        return code is not None and code.kind in self.cache.codec.values.serde.immutable_types

    @property
    def reads_records(self) -> bool:
        """True if it needs keys and values of records; if not, it needs each key once, as that of its entry."""
        code = self.fold.code
        return code is None or code.reads_records or not self.is_shared

    def finding(self, named: Named, key_as_bytes: str, key: str, start: str | None = None) -> str:
        """Return the lines that find an `entry`; `start` names the window's start, None without windows."""
        found = {"known": named("known", self.index.get), "find": named("find", self.find)}
        form = _FIND
        if start is not None:
            form, found["none"] = _FIND_WINDOW, named("none", {})
        return form.format(**found, key_as_bytes=key_as_bytes, key=key, start=start)

    def updating(self, named: Named, key: str, value: str, item: Callable[[int], str], place: str) -> str:
        """Return the lines that add a record to the `entry`; they also refer to `timestamp` and `headers`.

        `key` is a name, `value` and `place` are expressions; `item` returns one for an item of the value, if that is a tuple.
        """
        cache, code = self.cache, self.fold.code
        if code is None:
            first, add = named("first", self.fold.first), named("add", self.fold.add)
            first, add = f"{first}({key}, {value})", f"{add}({key}, {value}, aggregate)"
        else:
            first, add = code.expressions(named, item)
        decoded, stored = "", _SHARED
        if not self.is_shared:
            decoded = _DECODED.format(encoded=named("encoded", ENCODED), value_of=named("value_of", cache.value_of))
            shared, hold = named("shared", cache.codec.values.shared), named("hold", cache.hold)
            stored = _HELD.format(shared=shared, hold=hold)
        return _UPDATE.format(
            step=STEP.format(first=first, add=add, decoded=decoded),
            stored=stored,
            place=place,
            mark=named("mark", self.mark),
            updates=named("updates", cache.updates),
        )


@runtime_checkable
class FoldsInParts(Protocol):
    """A store that lets generated functions aggregate into its cache."""

    def cached_fold(self, fold: Fold) -> CachedFold | None:
        """Return an aggregation in parts; None if the store has to be called."""
        ...


@runtime_checkable
class KeepsForwarded(Protocol):
    """A store that knows the value of a key as its last flush forwarded it, while an update waits for the next one."""

    def get_forwarded(self, key: Any, *_as_of: int) -> Any:
        """Return the value that listeners know, or None."""
        ...


@runtime_checkable
class LooksUpInParts(Protocol):
    """A store that lets generated functions look values up in its cache."""

    def cached_get(self) -> CachedGet | None:
        """Return look-ups in parts; None if the store has to be called."""
        ...


@runtime_checkable
class PutsInParts(Protocol):
    """A store that lets generated functions put values into its cache."""

    def cached_put(self) -> CachedPut | None:
        """Return puts in parts; None if the store has to be called."""
        ...
