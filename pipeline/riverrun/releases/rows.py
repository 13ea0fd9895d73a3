"""Rows of the frames that a gate judges: the records of an output with their keys and fields as columns.

In the frame of a table or a log, fields have their own names, and Riverrun's columns begin with an underscore. In the frame
of a difference all fields have a prefix, so Riverrun's columns need none.

A key with named fields also has one column for each of them: `key_NAME` in a difference. In a table or a log it is `_key_NAME`;
it is `NAME` if the type of values shows that they have no such field, as in SQL.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, get_args, get_origin

import msgspec

from riverrun.errors import USER_ERRORS, DeserializationError, RegistryError, ReleaseError, as_exception
from riverrun.quality.frames import text_of
from riverrun.records import EPOCH, TopicPartition
from riverrun.releases.differ import Differ
from riverrun.releases.difference import Side
from riverrun.releases.topology import tables
from riverrun.serde.api import field_names, plain_reader
from riverrun.serde.exact_values import LAST_MS, micros
from riverrun.serde.windowed import of_any_size
from riverrun.windows import Windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from riverrun.hosting.connected import ConnectedApplication
    from riverrun.records import RawFields
    from riverrun.releases.difference import Pair
    from riverrun.serde.api import Serde
    from riverrun.topology.nodes import SinkNode
    from riverrun.windows import Window


class Serdes(Protocol):
    """The serdes of a topic: those of a source or a sink."""

    @property
    def key_serde(self) -> Serde[Any]:
        """Return the serde of keys."""

    @property
    def value_serde(self) -> Serde[Any]:
        """Return the serde of values."""


# These identify a row; the window's columns exist only for windowed keys.
KEY_COLUMNS = "key", "window_start", "window_end"
_OWN = frozenset(f"_{name}" for name in (*KEY_COLUMNS, "partition", "offset", "time", "change", "late_ms"))


def table_rows(pairs: Iterable[Pair], sink: SinkNode, topic: str) -> Iterator[dict[str, Any]]:
    """Return the new rows of a table, each with its comparison to the old one."""
    keys, read = KeyColumns.of_table(sink), plain_reader(sink.value_serde)
    for pair in pairs:
        if pair.new is not None:
            place = TopicPartition(topic, pair.partition)
            own = _own(place, pair.new.timestamp) | {"_change": pair.change.value}
            yield keys.of(place, pair.key) | own | _columns_of_value(topic, _read(place, read, pair.new.value))


def log_rows(batches: Iterable[tuple[TopicPartition, list[RawFields]]], sink: Serdes) -> Iterator[dict[str, Any]]:
    """Return the records of a log, each with how far its time lies behind the latest one before it in its partition."""
    latest: dict[TopicPartition, int] = {}
    # A record without a value gets the columns of the others if the type of values names them, else `value`.
    nothing = dict.fromkeys(field_names(sink.value_serde.value_type) or ["value"])
    keys, read = KeyColumns.of_table(sink), plain_reader(sink.value_serde)
    for tp, records in batches:
        for key, value, timestamp, offset, _ in records:
            latest[tp] = max(timestamp, latest.get(tp, timestamp))
            own = _own(tp, timestamp, offset=offset) | {"_offset": offset, "_late_ms": latest[tp] - timestamp}
            found = nothing if value is None else _columns_of_value(tp.topic, _read(tp, read, value))
            yield keys.of(tp, key) | own | found


def difference_rows(
    pairs: Iterable[Pair], old: SinkNode, new: SinkNode, topics: Mapping[Side, str], unreadable: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """Return the rows of both versions side by side: fields of the old one as `old_NAME`, and of the new one as `new_NAME`.

    Values without fields are `old` and `new`. Fields that a version does not have are missing.
    """
    of_old, of_new = (KeyColumns.of_difference(sink) for sink in (old, new))
    read_old, read_new = plain_reader(old.value_serde), plain_reader(new.value_serde)
    for pair in pairs:
        place = TopicPartition(topics[Side.OLD if pair.new is None else Side.NEW], pair.partition)
        row = pair.new or pair.old
        own = (of_old if pair.new is None else of_new).of(place, pair.key)
        own |= {
            "partition": place.partition,
            "time": _time(place, row.timestamp if row else 0),
            "change": pair.change.value,
        }
        before: dict[str, Any] = {}
        if pair.old is not None:
            try:
                before = _fields(read_old(pair.old.value))
            except RegistryError:  # a registry that does not answer is no unreadable row
                raise
            except USER_ERRORS as error:  # a serde may raise anything
                as_exception(error)
                # Only new rows have to be readable: old ones that are not are counted, and their fields are missing.
                unreadable()
        after = {} if pair.new is None else _fields(_read(place, read_new, pair.new.value))
        for name in before.keys() | after.keys():
            own[f"old_{name}" if name else "old"] = before.get(name)
            own[f"new_{name}" if name else "new"] = after.get(name)
        yield own


def key_of(place: TopicPartition, sink: SinkNode, key: bytes) -> tuple[Any, Window | None]:
    """Return a row's key as a column holds it, and its window if it is windowed."""
    columns = KeyColumns.of_difference(sink)
    found, window = columns.read(place, key)
    return columns.whole(found), window


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Makes the columns of keys: the whole key, its window, and one for each of its named fields.

    Args:
        prefix: Prefix of the names of Riverrun's own columns.
    """

    reader: Callable[[bytes], Any]
    prefix: str
    names: Mapping[str, str]

    @classmethod
    def of_table(cls, sink: Serdes) -> KeyColumns:
        """Return the key columns of a frame whose values have columns with names of their own."""
        names = _names_of_key(sink)
        fields = field_names(sink.value_serde.value_type)
        taken = names if fields is None or sink.value_serde.value_type is None else (*fields, *_OWN, "value")
        return cls(_key_reader(sink), "_", {name: f"_key_{name}" if name in taken else name for name in names})

    @classmethod
    def of_difference(cls, sink: Serdes) -> KeyColumns:
        """Return the key columns of a difference, whose values have columns with prefixes."""
        return cls(_key_reader(sink), "", {name: f"key_{name}" for name in _names_of_key(sink)})

    def read(self, place: TopicPartition, key: bytes) -> tuple[Any, Window | None]:
        """Return a key as built-in values, and its window if it is windowed."""
        read = _read(place, self.reader, key)
        found, window = (read.key, read.window) if isinstance(read, Windowed) else (read, None)
        return _builtin(found), window

    def whole(self, key: Any) -> Any:
        """Return a key that has been read as one column."""
        return whole_key(key, self.names)

    def of(self, place: TopicPartition, key: bytes | None) -> dict[str, Any]:
        """Return the columns of a key; one without a key has no window."""
        if key is None:
            return {f"{self.prefix}key": None}
        found, window = self.read(place, key)
        row = {f"{self.prefix}key": self.whole(found)}
        if window is not None:
            row[f"{self.prefix}window_start"] = _time(place, window.start)
            row[f"{self.prefix}window_end"] = None if window.end > LAST_MS else _time(place, window.end)
        if self.names and isinstance(found, dict):
            row |= {column: _column(found.get(name)) for name, column in self.names.items()}
        return row


def whole_key(key: Any, names: Collection[str]) -> Any:
    """Return a key as one column: the only field of keys that have one (`names`); text, unless it is a single value.

    >>> whole_key({"ID": 7}, ["ID"]), whole_key({"ID": 7}, []), whole_key({"ID": 7, "N": 1}, ["ID", "N"])
    (7, '{"ID":7}', '{"ID":7,"N":1}')
    """
    if isinstance(key, dict) and len(names) == 1:
        key = next(iter(key.values()), None)
    found = _column(key)
    if found is None or isinstance(found, str | bytes | bool | int | float | decimal.Decimal | datetime):
        return found
    return text_of(found)


def _key_reader(sink: Serdes) -> Callable[[bytes], Any]:
    return plain_reader(of_any_size(sink.key_serde))


def _names_of_key(sink: Serdes) -> tuple[str, ...]:
    found = of_any_size(sink.key_serde).value_type
    inner = get_args(found)[0] if get_origin(found) is Windowed else found
    return field_names(inner) or ()


def _own(place: TopicPartition, timestamp: int, **more: int) -> dict[str, Any]:
    return {"_partition": place.partition, "_time": _time(place, timestamp, **more)}


def _columns_of_value(topic: str, value: Any) -> dict[str, Any]:
    """Return a value's fields as columns; refuse the names of Riverrun's own."""
    fields = _fields(value)
    taken = sorted(_OWN & fields.keys())
    if taken:
        message = f"Values of {topic} have a field {taken[0]}, which is the name of a column of Riverrun's own"
        raise ReleaseError(message, hint="Rename the field; its serde may write it under the old name.")
    return {name or "value": each for name, each in fields.items()}


def _fields(value: Any) -> dict[str, Any]:
    """Return a value's fields by name; a value without fields becomes one field with the name `""`."""
    plain = _builtin(value)
    return (
        {str(name): _column(each) for name, each in plain.items()} if isinstance(plain, dict) else {"": _column(plain)}
    )


def _column(value: Any) -> Any:
    """Return a value as a column holds it: times in UTC."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


def _builtin(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes, datetime, decimal.Decimal))
    # msgspec refuses types that it does not know.
    except TypeError:
        return str(value)


def _time(place: TopicPartition, ms: int, **more: int) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=micros(ms))
    except ValueError as error:
        message = f"A record to be judged has a time that frames do not have: {error}"
        raise DeserializationError(message).at(topic=place.topic, partition=place.partition, **more) from error


def _read(place: TopicPartition, deserialize: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserialize(data)
    except RegistryError:  # as above
        raise
    except USER_ERRORS as error:  # a serde may raise anything
        message = f"A record to be judged cannot be read: {as_exception(error)}"
        raise DeserializationError(message).at(topic=place.topic, partition=place.partition) from error


@dataclass(frozen=True, slots=True)
class DifferentRow:
    """A row of a table that differs between the two versions.

    Args:
        change: `changed`, `new` or `gone`.
        old: The live version's value, by field; the field is `""` if the value has none; empty if there is no such row.
        new: The candidate's value, in the same form.
    """

    topic: str
    change: str
    key: Mapping[str, Any] = field(default_factory=dict)
    old: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        key = " ".join(str(each) for name, each in self.key.items() if not (name == "window_end" and each is None))
        return f"{self.topic} {key} is {self.change}: {_text(self.old)} -> {_text(self.new)}"


def different_rows(live: ConnectedApplication, candidate: ConnectedApplication, limit: int) -> list[DifferentRow]:
    """Return rows that differ in what both versions have written so far, sorted by topic, partition and key."""
    return list(islice(_all(live, candidate), limit))


def _all(live: ConnectedApplication, candidate: ConnectedApplication) -> Iterator[DifferentRow]:
    for topic in tables(candidate.application):
        new = candidate.topology.sink_of(topic)
        if new is None:
            continue
        old = live.topology.sink_of(topic) or new
        with Differ.of(candidate, topic) as differ:
            differ.advance(*differ.stable_ends())
            for row in difference_rows(differ.differences(), old, new, differ.topics, lambda: None):
                yield row_of(topic, row)


def row_of(topic: str, row: Mapping[str, Any]) -> DifferentRow:
    """Return a row of a difference's frame, with fields by version."""
    key = {name: row[name] for name in ("key", "window_start", "window_end") if name in row}
    change = row["change"]
    old, new = (
        {} if change == missing else _side_fields(row, side) for side, missing in (("old", "new"), ("new", "gone"))
    )
    return DifferentRow(topic, change, key, old, new)


def _side_fields(row: Mapping[str, Any], side: str) -> dict[str, Any]:
    prefix = f"{side}_"
    alone = {"": row[side]} if side in row else {}
    return alone | {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def _text(fields: Mapping[str, Any]) -> str:
    if not fields:
        return "nothing"
    if fields.keys() == {""}:
        return str(fields[""])
    return ", ".join(f"{name} {value}" for name, value in sorted(fields.items()))
