"""Timestamped stores without their timestamps, for tests (`KeyValueStoreFacade`, `WindowStoreFacade`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from riverrun.records import ValueAndTimestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from riverrun.state.store_types import KeyValueStore, WindowStore

# What Kafka Streams' driver stores for a value that is put without a timestamp (`ConsumerRecord.NO_TIMESTAMP`).
_UNKNOWN_MS = -1


def _plain(stored: ValueAndTimestamp[Any] | None) -> Any:
    return None if stored is None else stored.value


def _timed(value: Any) -> ValueAndTimestamp[Any] | None:
    return None if value is None else ValueAndTimestamp(value, _UNKNOWN_MS)


class PlainKeyValueStore:
    """The values of a timestamped key-value store."""

    def __init__(self, inner: KeyValueStore[Any, ValueAndTimestamp[Any]]) -> None:
        self.name = inner.name
        self._inner = inner

    def get(self, key: Any) -> Any:
        """Return the value, or None."""
        return _plain(self._inner.get(key))

    def put(self, key: Any, value: Any) -> None:
        """Set the value, without a timestamp; None deletes."""
        self._inner.put(key, _timed(value))

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Set the value if there is none; return the previous value."""
        return _plain(self._inner.put_if_absent(key, ValueAndTimestamp(value, _UNKNOWN_MS)))

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Set several values."""
        self._inner.put_all((key, _timed(value)) for key, value in entries)

    def delete(self, key: Any) -> Any:
        """Delete the value, and return it."""
        return _plain(self._inner.delete(key))

    def range(self, from_key: Any = None, to_key: Any = None) -> Iterator[tuple[Any, Any]]:
        """Return entries from `from_key` to `to_key`, both inclusive."""
        return _pairs(self._inner.range(from_key, to_key))

    def reverse_range(self, from_key: Any = None, to_key: Any = None) -> Iterator[tuple[Any, Any]]:
        """Return the entries of a range in reverse order."""
        return _pairs(self._inner.reverse_range(from_key, to_key))

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Return all entries."""
        return _pairs(self._inner.all())

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        """Return all entries in reverse order."""
        return _pairs(self._inner.reverse_all())

    def prefix_scan(self, prefix: bytes) -> Iterator[tuple[Any, Any]]:
        """Return entries whose serialized key starts with `prefix`."""
        return _pairs(self._inner.prefix_scan(prefix))

    def approximate_num_entries(self) -> int:
        """Return the number of entries."""
        return self._inner.approximate_num_entries()


class PlainWindowStore:
    """The values of a timestamped window store."""

    def __init__(self, inner: WindowStore[Any, ValueAndTimestamp[Any]]) -> None:
        self.name = inner.name
        self._inner = inner

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """Set the value of a window, without a timestamp; None deletes."""
        self._inner.put(key, _timed(value), window_start)

    def fetch(self, key: Any, time: int) -> Any:
        """Return the value of the window that starts at `time`."""
        return _plain(self._inner.fetch(key, time))

    def fetch_range(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        """Return `(start, value)` of the key's windows that start in `[time_from, time_to]`, ascending."""
        return _pairs(self._inner.fetch_range(key, time_from, time_to))

    def backward_fetch_range(self, key: Any, time_from: int, time_to: int) -> Iterator[tuple[int, Any]]:
        """Return a key's windows in descending order."""
        return _pairs(self._inner.backward_fetch_range(key, time_from, time_to))

    def fetch_keys(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Iterator[tuple[Any, int, Any]]:
        """Return `(key, start, value)` of a range of keys and of times, all bounds inclusive."""
        return _triples(self._inner.fetch_keys(key_from, key_to, time_from, time_to))

    def backward_fetch_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int
    ) -> Iterator[tuple[Any, int, Any]]:
        """Return a range of keys in reverse order."""
        return _triples(self._inner.backward_fetch_keys(key_from, key_to, time_from, time_to))

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Any, int, Any]]:
        """Return `(key, start, value)` of all keys within a range of times."""
        return _triples(self._inner.fetch_all(time_from, time_to))

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Any, int, Any]]:
        """Return all keys within a range of times in reverse order."""
        return _triples(self._inner.backward_fetch_all(time_from, time_to))

    def all(self) -> Iterator[tuple[Any, int, Any]]:
        """Return `(key, start, value)` of all windows that have not expired."""
        return _triples(self._inner.all())

    def backward_all(self) -> Iterator[tuple[Any, int, Any]]:
        """Return all windows in reverse order."""
        return _triples(self._inner.backward_all())


def _triples(entries: Iterator[tuple[Any, int, ValueAndTimestamp[Any]]]) -> Iterator[tuple[Any, int, Any]]:
    return ((key, start, stored.value) for key, start, stored in entries)


def _pairs(entries: Iterator[tuple[Any, ValueAndTimestamp[Any]]]) -> Iterator[tuple[Any, Any]]:
    return ((key, stored.value) for key, stored in entries)


_key_value: type[KeyValueStore[Any, Any]] = PlainKeyValueStore
_window: type[WindowStore[Any, Any]] = PlainWindowStore
