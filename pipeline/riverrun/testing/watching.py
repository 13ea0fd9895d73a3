"""Detects user code that changes keys and values in place, although it only borrowed them or they belong to a store.

No store holds such a change, and other nodes that share the value see it. In most cases that is a mistake, which a test
should reveal.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from riverrun.operators.aggregations import COUNT
from riverrun.records import Change, ValueAndTimestamp, VersionedRecord
from riverrun.state.values import is_atom

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.runtime.ports import Watch
    from riverrun.state.access import CachedGet
    from riverrun.state.api import StateStore, StoreBuilder
    from riverrun.state.folds import Fold

_SHOWN = 200
_GIVEN_HINT = "Change a copy: other nodes may receive this value."
_READ_HINT = "Put the changed value, or change a copy: the store holds the value that was put last."
_FOUND_HINT = "Change a copy: the store holds its rows by their original keys."
_SENT_HINT = "Forward a copy: other nodes may receive the record, and see the change."
_FOLDED_HINT = "Return the changed aggregate, or change a copy."
# Methods that return a value, or an iterator whose items end with one.
_READING = (
    *("get", "delete", "range", "reverse_range", "all", "reverse_all", "backward_all", "prefix_scan"),
    *("fetch", "backward_fetch", "fetch_session", "find_sessions", "backward_find_sessions"),
    *("find_sessions_of_keys", "backward_find_sessions_of_keys", "fetch_keys", "backward_fetch_keys"),
    *("fetch_range", "backward_fetch_range", "fetch_all", "backward_fetch_all"),
)
# The items of these do not contain the key, which is an argument.
_OF_ONE_KEY = ("fetch_range", "backward_fetch_range")


class ChangedValueWarning(UserWarning):
    """User code changed a key or value in place that it only borrowed, or that came from a store and was not put back."""


class KeyBytesWarning(UserWarning):
    """A serde does not reproduce the bytes of a topic's keys, so that joins and queries miss rows in other partitions."""


@dataclass(slots=True)
class _Seen:
    """A value that a node may read but not change: its origin, a description, and its bytes."""

    value: Any
    encode: Callable[[Any], bytes | None]
    origin: str
    words: str
    hint: str
    before: bytes | None


@dataclass(slots=True)
class ValueWatch:
    """Compares values before and after each call of a node; a change is attributed to the innermost call around it.

    It reports one change per node and origin, as others are alike.
    """

    _found: list[str] = field(default_factory=list)
    _keys: list[str] = field(default_factory=list)
    _known: set[tuple[str, str]] = field(default_factory=set)
    _calls: list[tuple[str, dict[int, _Seen]]] = field(default_factory=list)
    """The current calls: the node, and the values it has seen, by id."""

    def opened(self, builder: StoreBuilder, store: StateStore) -> None:
        """Observe the values that nodes read from a store and put into it."""
        WatchedStore(self, builder).attach(store)

    def enter(self, node: str, key: Any, value: Any, topic: str | None) -> int:
        """Start a node's call for a record of a topic, and return the number of the call."""
        seen: dict[int, _Seen] = {}
        self._calls.append((node, seen))
        sides = (("value", value.new), ("old value", value.old)) if type(value) is Change else (("value", value),)
        for side, given in (("key", key), *sides):
            if not is_atom(given):
                subject = f"the key {key!r}" if side == "key" else f"the {side} of key {key!r}"
                words = f"{subject} of its input" + (f" (topic {topic})" if topic else "")
                seen[id(given)] = _Seen(given, _any_bytes, side, words, _GIVEN_HINT, _any_bytes(given))
        return len(self._calls) - 1

    def leave(self, number: int) -> None:
        """End a call, with all calls within it."""
        node, all_seen = self._calls[number]
        del self._calls[number:]
        for seen in all_seen.values():
            now = seen.encode(seen.value)
            if now != seen.before:
                self._changed(node, seen.origin, f"{seen.words}: {_became(seen.before, now)}", seen.hint)
                # The calls around it have seen the same value, and are not to blame.
                self.was_put(seen.value)

    def was_read(self, store: str, value: Any, encode: Callable[[Any], bytes | None], words: str) -> None:
        """Record that the current node read a value from a store."""
        if self._calls and not is_atom(value) and id(value) not in (seen := self._calls[-1][1]):
            seen[id(value)] = _Seen(value, encode, store, words, _READ_HINT, encode(value))

    def was_found(self, store: str, key: Any, words: str) -> None:
        """Record that the current node found a key in a store."""
        if self._calls and not is_atom(key) and id(key) not in (seen := self._calls[-1][1]):
            seen[id(key)] = _Seen(key, _any_bytes, f"keys of {store}", words, _FOUND_HINT, _any_bytes(key))

    def was_forwarded(self, key: Any, value: Any) -> None:
        """Record that the current node forwarded a record, which others may read later."""
        seen = self._calls[-1][1]
        for side, given in (("key", key), ("value", value)):
            if not is_atom(given) and id(given) not in seen:
                words, origin = f"the {side} {given!r} after it was forwarded", f"forwarded {side}"
                seen[id(given)] = _Seen(given, _any_bytes, origin, words, _SENT_HINT, _any_bytes(given))

    def was_put(self, value: Any) -> None:
        """Accept the changes of a value that was put."""
        for _, all_seen in self._calls:
            # Each entry keeps its value alive, so ids are unique.
            seen = all_seen.get(id(value))
            if seen is not None:
                seen.before = seen.encode(value)

    def was_left(self, store: str, words: str, before: bytes | None, now: bytes | None) -> None:
        """Record that an aggregator changed an aggregate but returned something else."""
        node = self._calls[-1][0] if self._calls else "An aggregator"
        self._changed(node, store, f"{words}: {_became(before, now)}", _FOLDED_HINT)

    def forget_calls(self) -> None:
        """Forget the current calls."""
        # The last one may have failed, and never left.
        self._calls.clear()

    def tell_of_keys(self, message: str) -> None:
        """Record that a serde does not reproduce the bytes of a topic's keys."""
        self._keys.append(message)

    def tell(self) -> None:
        """Warn of the findings, at the responsible line of the test."""
        # Emptied first: a warning may be an error in tests, and would be raised again with each later record.
        found, self._found = self._found, []
        keys, self._keys = self._keys, []
        for message in found:
            warnings.warn(message, ChangedValueWarning, stacklevel=_depth_of_test())
        for message in keys:
            warnings.warn(message, KeyBytesWarning, stacklevel=_depth_of_test())

    def _changed(self, node: str, origin: str, change: str, hint: str) -> None:
        if (node, origin) not in self._known:
            self._known.add((node, origin))
            self._found.append(f"{node} changed in place: {change}\nHint: {hint}")


def _any_bytes(value: Any) -> bytes | None:
    """Return bytes by which to detect changes of a value, as JSON if possible; None if it has none."""
    for encode in (msgspec.json.encode, pickle.dumps):
        with suppress(Exception):  # values of users may raise anything
            return encode(value)
    return None


def _became(before: bytes | None, now: bytes | None) -> str:
    return f"{_shown(before)} has become {_shown(now)}"


def _shown(data: bytes | None) -> str:
    shown = repr(data)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def _depth_of_test() -> int:
    """Return the number of calls between the warning and the test's line."""
    # The first frame outside of Riverrun: how deep it lies depends on the method that was called.
    depth, frame = 1, sys._getframe(1)  # noqa: SLF001 - the only way to the caller
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "riverrun":
        depth, frame = depth + 1, frame.f_back
    return depth


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
    """Replaces methods of one store by methods that notify an observer, so that no kind of store needs a wrapper class."""

    observer: Observer
    builder: StoreBuilder

    def attach(self, store: StateStore) -> None:
        """Replace those methods that the store has."""
        makers: dict[str, Callable[[Any], Any]] = dict.fromkeys(_READING, self._reading)
        makers |= dict.fromkeys(_OF_ONE_KEY, self._reading_one_key)
        makers |= {"put": self._putting, "cached_get": self._looking_up}
        # Without this short cut, each value is put by a call of `put`, which is observed.
        makers |= {"cached_put": lambda _method: lambda: None}
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

    def _looking_up(self, method: Callable[[], CachedGet | None]) -> Callable[[], CachedGet | None]:
        @wraps(method)
        def cached_get() -> CachedGet | None:
            lookup = method()
            if lookup is None:
                return None
            plain = lookup.find

            def find(key_as_bytes: bytes, key: Any) -> Any:
                found = plain(key_as_bytes, key)
                self._was_read((key,), found)
                return found

            return replace(lookup, find=find)

        return cached_get

    def _folding(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def take(fold: Fold, **kwargs: Any) -> Any:
            # Counts are numbers, which nobody can change in place.
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
    # Without expressions, the functions have to be called, and are observed.
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


_watch: type[Watch] = ValueWatch
