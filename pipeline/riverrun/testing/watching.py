"""Detects user code that changes keys and values in place, although it only borrowed them or they belong to a store.

No store holds such a change, and other nodes that share the value see it. In most cases that is a mistake, which a test
should reveal.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.records import Change
from riverrun.state.values import is_atom
from riverrun.testing.watched_stores import WatchedStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.runtime.ports import Watch
    from riverrun.state.api import StateStore, StoreBuilder

_SHOWN = 200
"""Number of characters of a value's bytes to show."""
_GIVEN_HINT = "Change a copy: other nodes may receive this value."
_READ_HINT = "Put the changed value, or change a copy: the store holds the value that was put last."
_FOUND_HINT = "Change a copy: the store holds its rows by their original keys."
_SENT_HINT = "Forward a copy: other nodes may receive the record, and see the change."
_FOLDED_HINT = "Return the changed aggregate, or change a copy."


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
                self.was_put(seen.value)  # the calls around it are not to blame

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
            seen = all_seen.get(id(value))  # each entry keeps its value alive, so ids are unique
            if seen is not None:
                seen.before = seen.encode(value)

    def was_left(self, store: str, words: str, before: bytes | None, now: bytes | None) -> None:
        """Record that an aggregator changed an aggregate but returned something else."""
        node = self._calls[-1][0] if self._calls else "An aggregator"
        self._changed(node, store, f"{words}: {_became(before, now)}", _FOLDED_HINT)

    def forget_calls(self) -> None:
        """Forget the current calls: the last one may have failed."""
        self._calls.clear()

    def tell_of_keys(self, message: str) -> None:
        """Record that a serde does not reproduce the bytes of a topic's keys."""
        self._keys.append(message)

    def tell(self) -> None:
        """Warn of the findings, at the responsible line of the test."""
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
        with suppress(Exception):
            return encode(value)
    return None


def _became(before: bytes | None, now: bytes | None) -> str:
    return f"{_shown(before)} has become {_shown(now)}"


def _shown(data: bytes | None) -> str:
    shown = repr(data)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def _depth_of_test() -> int:
    """Return the number of calls between the warning and the test's line."""
    depth, frame = 1, sys._getframe(1)  # noqa: SLF001 - the only way to the caller
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "riverrun":
        depth, frame = depth + 1, frame.f_back
    return depth


if TYPE_CHECKING:
    _watch: type[Watch] = ValueWatch
