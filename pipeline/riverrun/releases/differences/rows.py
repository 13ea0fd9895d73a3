"""Rows of the frames that a gate judges: the records of an output with their keys and fields as columns.

In the frame of a table or a log, fields have their own names, and Riverrun's columns begin with an underscore. In the frame
of
a difference all fields have a prefix, so Riverrun's columns need none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import DeserializationError, ReleaseError
from riverrun.records import TopicPartition
from riverrun.serde.api import plain_reader
from riverrun.serde.windowed import of_any_size
from riverrun.windows import Windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from riverrun.records import RawFields
    from riverrun.releases.differences.difference import Pair
    from riverrun.topology.nodes import SinkNode
    from riverrun.windows import Window

KEY_COLUMNS = "key", "window_start", "window_end"
"""Columns that identify a row; the window's columns exist only for windowed keys."""
_OWN = frozenset(f"_{name}" for name in (*KEY_COLUMNS, "partition", "time", "change", "late_ms"))
_LAST_MS = 253_402_300_799_999
"""The last ms of the year 9999: Python has no later times."""


def table_rows(pairs: Iterable[Pair], sink: SinkNode, topic: str) -> Iterator[dict[str, Any]]:
    """Return the new rows of a table, each with its comparison to the old one.

    Raises:
        DeserializationError: If a row cannot be read.
        ReleaseError: If a field has the name of a column of Riverrun's own.
    """
    for pair in pairs:
        if pair.new is not None:
            place = TopicPartition(topic, pair.partition)
            own = _own(place, sink, pair.key, pair.new.timestamp) | {"change": pair.change.value}
            yield _with_fields(topic, own, _read(place, plain_reader(sink.value_serde), pair.new.value))


def log_rows(batches: Iterable[tuple[TopicPartition, list[RawFields]]], sink: SinkNode) -> Iterator[dict[str, Any]]:
    """Return the records of a log, each with how far its time lies behind the latest one before it in its partition.

    Raises:
        DeserializationError: If a record cannot be read.
        ReleaseError: If a field has the name of a column of Riverrun's own.
    """
    latest: dict[TopicPartition, int] = {}
    for tp, records in batches:
        for key, value, timestamp, _, _ in records:
            found = None if value is None else _read(tp, plain_reader(sink.value_serde), value)
            latest[tp] = max(timestamp, latest.get(tp, timestamp))
            own = _own(tp, sink, key, timestamp) | {"late_ms": latest[tp] - timestamp}
            yield _with_fields(tp.topic, own, found)


def difference_rows(
    pairs: Iterable[Pair], old: SinkNode, new: SinkNode, topic: str, unreadable: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """Return the rows of both versions side by side: fields of the old one as `old_NAME`, and of the new one as `new_NAME`.

    Values without fields are `old` and `new`. Fields that a version does not have are missing.

    Args:
        pairs: The rows.
        old: The sink of the live version.
        new: The sink of the candidate.
        topic: The topic that they write, for messages.
        unreadable: Called for each old row that cannot be read; its fields are missing.

    Raises:
        DeserializationError: If a new row cannot be read.
    """
    for pair in pairs:
        place = TopicPartition(topic, pair.partition)
        row = pair.new or pair.old
        sink = old if pair.new is None else new
        own = _own(place, sink, pair.key, row.timestamp if row else 0) | {"change": pair.change.value}
        before: dict[str, Any] = {}
        if pair.old is not None:
            try:
                before = _fields(plain_reader(old.value_serde)(pair.old.value))
            except Exception:  # noqa: BLE001 - a serde may raise anything
                unreadable()
        after = {} if pair.new is None else _fields(_read(place, plain_reader(new.value_serde), pair.new.value))
        for name in before.keys() | after.keys():
            own[f"old_{name}" if name else "old"] = before.get(name)
            own[f"new_{name}" if name else "new"] = after.get(name)
        yield own


def key_of(place: TopicPartition, sink: SinkNode, key: bytes) -> tuple[Any, Window | None]:
    """Return a row's key as a column holds it, and its window if it is windowed.

    Raises:
        DeserializationError: If it cannot be read.
    """
    read = _read(place, of_any_size(sink.key_serde).deserialize, key)
    return (_plain(read.key), read.window) if isinstance(read, Windowed) else (_plain(read), None)


def _own(place: TopicPartition, sink: SinkNode, key: bytes | None, timestamp: int) -> dict[str, Any]:
    """Return the columns that every row has."""
    found: dict[str, Any] = {"key": None}
    if key is not None:
        found["key"], window = key_of(place, sink, key)
        if window is not None:
            found |= {"window_start": _time(window.start), "window_end": _time(window.end)}
    return found | {"partition": place.partition, "time": _time(timestamp)}


def _with_fields(topic: str, own: Mapping[str, Any], value: Any) -> dict[str, Any]:
    fields = _fields(value)
    taken = sorted(_OWN & fields.keys())
    if taken:
        message = f"Values of {topic} have a field {taken[0]}, which is the name of a column of Riverrun's own"
        raise ReleaseError(message, hint="Rename the field; its serde may write it under the old name.")
    return {f"_{name}": each for name, each in own.items()} | {name or "value": each for name, each in fields.items()}


def _fields(value: Any) -> dict[str, Any]:
    """Return a value's fields by name; a value without fields becomes one field with an empty name."""
    plain = _builtin(value)
    return {str(name): each for name, each in plain.items()} if isinstance(plain, dict) else {"": plain}


def _plain(key: Any) -> Any:
    """Return a key as one column: text, unless it is a number, bytes or a truth value."""
    found = _builtin(key)
    if found is None or isinstance(found, str | bytes | bool | int | float):
        return found
    return msgspec.json.encode(found).decode()


def _builtin(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,))
    except TypeError:
        return str(value)


def _time(ms: int) -> datetime | None:
    """Return a time in ms as columns hold it; None for a window without an end."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms <= _LAST_MS else None


def _read(place: TopicPartition, deserialize: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserialize(data)
    except Exception as error:  # a serde may raise anything
        message = f"A record to be judged cannot be read: {error}"
        raise DeserializationError(message).at(topic=place.topic, partition=place.partition) from error
