"""The lines of a generated function that aggregate a record into a cached store, without a call into operator or store.

They do what `process` of the operators does with a store that has a cache. What is out of the ordinary - no key, a window that
is late or that the store does not know to be kept - is handed to the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any

from pipeline.operators.aggregations import COUNT, StreamAggregate, StreamWindowAggregate
from pipeline.operators.table_aggregations import TableAggregate
from pipeline.state.cache import ENCODED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.state.cache import CachedFold

FOLDING = (StreamAggregate, StreamWindowAggregate, TableAggregate)
"""Operators that may be written as such lines."""

_BY_KEY = """\
if {key} is None or {value} is None:
    {name}({key}, {value}, timestamp, headers)
else:
{key_as_bytes}
    entry = {name}_known(key_as_bytes)
    if entry is None:
        entry = {name}_find(key_as_bytes, {key_as_read})
{fold}"""
_BY_WINDOW = """\
if {key} is None:
    {name}({key}, {value}, timestamp, headers)
else:
    observed = {name}_operator.observed_ms
    if timestamp > observed:
        {name}_operator.observed_ms = observed = timestamp
{key_as_bytes}
{windows}"""
_BYTES = """\
try:
    key_as_bytes = {name}_bytes({key})
except Exception as error:
    raise {name}_refused({key}, error) from error"""
_WINDOW = """\
if start <= observed - {kept_ms} or not {name}_kept.first <= start < {name}_kept.end:
    {name}_operator.update({key_as_read}, {value}, timestamp, headers, start)
else:
    entry = {name}_known(start, {name}_none).get(key_as_bytes)
    if entry is None:
        entry = {name}_find(key_as_bytes, {key_as_read}, start)
{fold}"""
_COUNT = """\
if entry.value is None:
    entry.value, entry.time = 1, timestamp
else:
    entry.value += 1
    if timestamp > entry.time:
        entry.time = timestamp
{update}"""
_FOLD = """\
value_now = entry.value
if value_now is None:
    value_now = {name}_first({key}, {value})
    if value_now.__class__ in {name}_shared:
        entry.value = value_now
    else:
        {name}_hold(entry, value_now)
    entry.time = timestamp
else:
    if value_now is encoded:
        value_now = {name}_value(entry)
    value_now = {name}_add({key}, {value}, value_now)
    if value_now.__class__ in {name}_shared:
        entry.value = value_now
    else:
        {name}_hold(entry, value_now)
    if timestamp > entry.time:
        entry.time = timestamp
{update}"""
_UPDATE = """\
entry.whole = None
entry.timestamp, entry.headers, entry.place = timestamp, headers, {place}
if not entry.order:
    {name}_mark(entry)
entry.order = next({name}_updates)"""


def is_counting(fold: CachedFold) -> bool:
    """Whether it counts, in numbers that are kept as they are: values do not matter then, and keys only once for each."""
    return fold.fold is COUNT and int in fold.cache.codec.values.serde.immutable_types


@dataclass(frozen=True, slots=True)
class Origin:
    """The record that a generated function aggregates, as far as it knows it.

    Args:
        key: Names its key.
        value: Names its value.
        place: Gives the topic, partition and offset it is made of.
        raw_key: Names the bytes that stand for the key, those it was read from; None if it was not read.
        key_of: Reads the key; None if `key` names it as it was read already, rather than those bytes.
    """

    key: str
    value: str
    place: str = "(context.topic, context.partition, context.offset)"
    raw_key: str | None = None
    key_of: Callable[[bytes], Any] | None = None


def _bytes_lines(name: str, origin: Origin) -> str:
    """The lines for the bytes that stand for a key."""
    if origin.raw_key is not None:
        return f"key_as_bytes = {origin.raw_key}"
    return _BYTES.format(name=name, key=origin.key)


def fold_lines(name: str, operator: Any, fold: CachedFold, origin: Origin) -> tuple[list[str], dict[str, Any]]:
    """The lines, and the things they name besides `context`, `timestamp` and `headers`.

    Args:
        name: Names the operator's plain function in the generated one.
        operator: One of `FOLDING`.
        fold: What it does to its store.
        origin: What is aggregated.
    """
    names: dict[str, Any] = {
        f"{name}_bytes": fold.keys.serialize,
        f"{name}_refused": fold.keys.refused,
        f"{name}_known": fold.index.get,
        f"{name}_find": fold.find,
        f"{name}_mark": fold.mark,
        f"{name}_updates": fold.cache.updates,
        f"{name}_shared": fold.cache.codec.values.shared,
        f"{name}_hold": fold.cache.hold,
        f"{name}_value": fold.cache.value_of,
        "encoded": ENCODED,
        f"{name}_first": fold.fold.first,
        f"{name}_add": fold.fold.add,
        f"{name}_key_of": origin.key_of,
    }
    key, value, is_count = origin.key, origin.value, is_counting(fold)
    given = {
        "name": name,
        "key": key,
        "value": value,
        "key_as_bytes": indent(_bytes_lines(name, origin), " " * 4),
        "key_as_read": key if origin.key_of is None else f"{name}_key_of({key})",
    }
    update = _UPDATE.format(name=name, place=origin.place)
    adding = (_COUNT if is_count else _FOLD).format(**given, update=update)
    if not isinstance(operator, StreamWindowAggregate):
        return _BY_KEY.format(**given, fold=indent(adding, " " * 4)).splitlines(), names
    names |= {
        f"{name}_operator": operator,
        f"{name}_kept": fold.kept,
        f"{name}_starts": operator.starts_for,
        f"{name}_none": {},
    }
    window = _WINDOW.format(**given, kept_ms=operator.kept_ms, fold=indent(adding, " " * 4))
    size_ms = operator.tumbling_ms
    if size_ms is None:
        windows = f"for start in {name}_starts(timestamp):\n{indent(window, ' ' * 4)}"
    else:
        windows = f"start = timestamp - timestamp % {size_ms}\n{window}"
    return _BY_WINDOW.format(**given, windows=indent(windows, " " * 4)).splitlines(), names
