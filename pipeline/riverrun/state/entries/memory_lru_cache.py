"""Orders the keys of a store by their last use, for stores with a maximum number of entries."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.state.api import Puts, StateBackend

_NUMBER = struct.Struct(">q")


class MemoryLRUCache:
    """The keys of a store, least recently used first.

    The order survives a restart: the table `<store>.order` holds the number of each key's last use. A restore from the
    changelog knows of writes only.
    """

    def __init__(self, store: str, max_entries: int, backend: StateBackend) -> None:
        """Read the order from the backend."""
        self._table = f"{store}.order"
        self._max_entries = max_entries
        numbers = {key: _NUMBER.unpack(data)[0] for key, data in backend.table(self._table).scan(None, None)}
        self._numbers: dict[bytes, int] = dict(sorted(numbers.items(), key=lambda entry: entry[1]))
        self._next = max(numbers.values(), default=-1) + 1
        self._changed: dict[bytes, bytes | None] = {}

    def used(self, key: bytes) -> None:
        """Note that a key was read, if the store has it."""
        if key in self._numbers:
            self._move_to_end(key)

    def written(self, key: bytes, data: bytes | None) -> Iterator[bytes]:
        """Note that a key was written or deleted, and yield the keys to evict."""
        if data is None:
            self._forget(key)
            return
        self._move_to_end(key)
        while len(self._numbers) > self._max_entries:
            eldest = next(iter(self._numbers))
            self._forget(eldest)
            yield eldest

    def puts(self) -> Puts:
        """Return the changes since the last commit in the backend's form."""
        return {self._table: self._changed} if self._changed else {}

    def committed(self) -> None:
        """Forget the changes, which are in the backend."""
        self._changed = {}

    def _move_to_end(self, key: bytes) -> None:
        self._numbers.pop(key, None)
        self._numbers[key] = self._next
        self._changed[key] = _NUMBER.pack(self._next)
        self._next += 1

    def _forget(self, key: bytes) -> None:
        if self._numbers.pop(key, None) is not None:
            self._changed[key] = None
