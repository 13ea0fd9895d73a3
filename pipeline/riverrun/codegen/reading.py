"""Writes the lines with which a loop reads a record's key and value, without a Python call where that is possible.

Tuples that serdes read are not made: a key is its only item, a value an object with the items as attributes
(`riverrun.serde.api.ReadsFields`). The plain functions, which need the whole, get a tuple on demand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from riverrun.codegen.values import TupleValue
from riverrun.serde.api import fields_of, frame_of, item_of
from riverrun.serde.json_columns import columns_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from riverrun.serde.api import ReadsFields
    from riverrun.topology.nodes import SourceNode

_READ = """\
try:
    {key} = None if raw_key is None else {read_key}
    value = None if raw_value is None else {read_value}
except user_errors:  # serdes are the user's: `decode` tries again, and asks the handler
    timestamp = -1
"""
_AGAIN = "{targets}, timestamp, offset, headers = decoded"
_EXTRACT = "else: queue.partition_time = partition_time; timestamp = event_time(raw, key, value)"


@dataclass(frozen=True, slots=True)
class RecordVars:
    """The record that reaches a node, as expressions.

    Args:
        items: Expressions of the items of a value that was unpacked: a tuple, never None.
        new: The new value of an update of a table; the update itself is made only on demand.
        latest: Whether that update is one of the latest value of its key.
        key_items: Expressions of the items of a key that was unpacked, None for those of a null key.
        lacks_key: Test whether the key is null; empty for a comparison with None.
        columns: Expressions of the columns that are read of a value, which is never None; None if it is not taken apart.
    """

    key: str
    value: str
    items: tuple[str, ...] | None = None
    new: str | None = None
    latest: str = "True"
    key_items: tuple[str, ...] | None = None
    lacks_key: str = ""
    columns: Mapping[str, str] | None = None


RECORD = RecordVars("key", "value")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a loop reads a record.

    Args:
        lines: The lines. Afterwards a time of -1 stands for a record that they cannot read, and a `value` of None for null.
        again: Lines for a record that was decoded by the plain function.
        bound: Lines that bind what may change between records: at the beginning, and after the plain function.
        given: What reaches the source's children; a value that was taken apart only unless `is_plain` holds.
        names: Objects that the lines name.
        reads_key: Name of the function that reads a key from its bytes, where `given` has these; None otherwise.
    """

    lines: str
    again: str
    bound: str
    given: RecordVars
    names: dict[str, Any]
    reads_key: str | None = None
    is_plain: str = "value is None"
    """Test whether `value` is null, or has been read by the plain function and is not taken apart."""


def unread(source: SourceNode) -> Reading:
    """Return the lines for records that are only counted, not decoded."""
    names = {"key_of": source.key_serde.deserialize}
    return Reading("key, value = raw_key, raw_value", _AGAIN.format(targets="_, _"), "", RECORD, names, "key_of")


def whole(source: SourceNode, *, has_extractor: bool) -> Reading:
    """Return the lines that read keys and values as they are; an extractor gets both."""
    key, value = _part("key", source.key_serde.deserialize), _part("value", source.value_serde.deserialize)
    lines = _READ.format(key="key", read_key=key.read, read_value=value.read) + (_EXTRACT if has_extractor else "")
    return Reading(
        lines, _AGAIN.format(targets="key, value"), joined(key.bound, value.bound), RECORD, key.names | value.names
    )


def apart(source: SourceNode) -> Reading | None:
    """Return the lines that read values as objects, and keys of one item as that item; None if values have no objects."""
    key, value = _part("key", source.key_serde.deserialize), _part("value", source.value_serde.deserialize)
    fields = fields_of(source.value_serde.deserialize)
    if fields is None:
        return None
    items = tuple("None" if each is None else f"value.{each}" for each in fields.fields)
    given, own, read_key = replace(RECORD, value=TupleValue(items).whole, items=items), "key", key.read
    # Lines below expect an object, so the tuple of the plain function is wrapped in one.
    again = [_AGAIN.format(targets="key, value"), "value = value_of_fields.holding(value)"]
    if item_of(source.key_serde.deserialize) is not None:
        own, read_key = "key_item", "key_of(raw_key)"
        given = replace(
            given, key=f"(None if raw_key is None else ({own},))", key_items=(own,), lacks_key="raw_key is None"
        )
        again.append(f"{own} = None if key is None else key[0]")
    lines = _READ.format(key=own, read_key=read_key, read_value="value_of_known(raw_value)")
    return Reading(lines, joined(*again), joined(key.bound, value.bound), given, key.names | value.names)


def columns(source: SourceNode, names: tuple[str, ...]) -> Reading | None:
    """Return the lines that read columns alone; None if the serde reads whole values.

    Values that lack a column, or are no objects, are read by the plain function and go to the plain functions of nodes.
    """
    key, reader = _part("key", source.key_serde.deserialize), columns_reader(source.value_serde, names)
    if reader is None:
        return None
    bound = "value_of_known, columns_class = value_columns.known"
    again = joined(_AGAIN.format(targets="key, value"), "value_columns.learn(value)")
    expressions = {name: f"value.{attribute}" for name, attribute in reader.attributes.items()}
    given = replace(RECORD, value="value_of(raw_value)", columns=expressions)
    lines = _READ.format(key="key", read_key=key.read, read_value="value_of_known(raw_value)")
    named = key.names | {"value_columns": reader, "value_of": source.value_serde.deserialize}
    is_plain = "value.__class__ is not columns_class"
    return Reading(lines, again, joined(key.bound, bound), given, named, is_plain=is_plain)


@dataclass(frozen=True, slots=True)
class _Part:
    """How a key or a value is read: an expression, a line that binds what it names and may change, and other names."""

    read: str
    bound: str
    names: dict[str, Any]


def _part(part: str, deserialize: Callable[[bytes], Any]) -> _Part:
    name, data = f"{part}_of", f"raw_{part}"
    item, fields, frame = item_of(deserialize), fields_of(deserialize), frame_of(deserialize)
    if fields is not None:
        return _Part(_row(name, data, fields), f"{name}_known = {name}_fields.known", {f"{name}_fields": fields})
    if frame is not None:
        compared, any_head = frame.compared_bytes, f"{name}({data})"
        read = f"({any_head} if {data}[0] else {name}_body({data}.removeprefix({name}_head)))"
        if compared is not None:
            read = f"({name}_body({data}) if {data}[:{compared}] == {name}_head else {any_head})"
        names = {name: deserialize, f"{name}_frame": frame}
        return _Part(read, f"{name}_head, {name}_body = {name}_frame.known", names)
    read = f"{name}({data})"
    return _Part(read, "", {name: deserialize}) if item is None else _Part(f"({read},)", "", {name: item})


def _row(name: str, data: str, fields: ReadsFields) -> str:
    items = ["None" if each is None else f"{name}_row.{each}" for each in fields.fields]
    # Items are evaluated in order, so the first one that is read has to decode the row.
    first = next((n for n, each in enumerate(fields.fields) if each is not None), None)
    read = f"({name}_row := {name}_known({data}))"
    # Without any, the row is still decoded: bytes that are no row must be refused.
    items[first or 0] = f"{read} and None" if first is None else f"{read}.{fields.fields[first]}"
    return TupleValue(tuple(items)).whole


def joined(*lines: str) -> str:
    """Return lines as one text, without those that are empty."""
    return "\n".join(line for line in lines if line)
