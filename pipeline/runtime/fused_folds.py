"""The lines of a generated function that aggregate a record into a cached store, without a call into operator or store.

They do what `process` of the operators does with a store that has a cache. What is out of the ordinary - no key, a window that
is late or that the store does not know to be kept - is handed to the operator.
"""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING, Any

from pipeline.operators.aggregations import StreamAggregate, StreamWindowAggregate
from pipeline.operators.table_aggregations import TableAggregate
from pipeline.records import ValueAndTimestamp
from pipeline.state.window import WINDOW_SUFFIX

if TYPE_CHECKING:
    from pipeline.state.cache import CachedFold

FOLDING = (StreamAggregate, StreamWindowAggregate, TableAggregate)
"""Operators that may be written as such lines."""

_BY_KEY = """\
if {key} is None or {value} is None:
    {name}({key}, {value}, timestamp, headers)
else:
    at, own_key = {name}_bytes({key}), {key}
{fold}"""
_BY_WINDOW = """\
if {key} is None:
    {name}({key}, {value}, timestamp, headers)
else:
    observed = {name}_operator.observed_ms
    if timestamp > observed:
        {name}_operator.observed_ms = observed = timestamp
    for start in {starts}:
        if start <= observed - {kept_ms} or not {name}_kept.first <= start < {name}_kept.end:
            {name}_operator.update({key}, {value}, timestamp, headers, start)
            continue
        first_part = {name}_bytes({key})
        at, own_key = first_part + window_suffix(start, 0), ({key}, start)
        if {name}_changed.is_kept:
            {name}_changed.add(first_part, at)
{fold}"""
_FOLD = """\
try:
    known = {name}_values[at]
except KeyError:
    known = {name}_load(at)
if known is None:
    new, time = {name}_first({key}, {value}), timestamp
else:
    new, time = known
    if timestamp > time:
        time = timestamp
    new = {name}_add({key}, {value}, new)
{name}_values[at] = None if new is None else made(ValueAndTimestamp, (new, time))
{name}_dirty[at] = own_key, timestamp, headers, (context.topic, context.partition, context.offset)"""


def fold_lines(name: str, operator: Any, fold: CachedFold, key: str, value: str) -> tuple[list[str], dict[str, Any]]:
    """The lines, and the things they name besides `context`, `timestamp` and `headers`.

    Args:
        name: Names the operator's plain function in the generated one.
        operator: One of `FOLDING`.
        fold: What it does to its store.
        key: Names the key.
        value: Names the value.
    """
    names = {
        "made": tuple.__new__,
        "ValueAndTimestamp": ValueAndTimestamp,
        f"{name}_bytes": fold.key_bytes,
        f"{name}_values": fold.cache.values,
        f"{name}_dirty": fold.cache.dirty,
        f"{name}_load": fold.cache.load,
        f"{name}_first": fold.fold.first,
        f"{name}_add": fold.fold.add,
    }
    adding = _FOLD.format(name=name, key=key, value=value)
    if not isinstance(operator, StreamWindowAggregate):
        text = _BY_KEY.format(name=name, key=key, value=value, fold=indent(adding, " " * 4))
        return text.splitlines(), names
    names |= {
        "window_suffix": WINDOW_SUFFIX.pack,
        f"{name}_operator": operator,
        f"{name}_kept": fold.kept,
        f"{name}_changed": fold.changed,
        f"{name}_starts": operator.starts_for,
    }
    size_ms = operator.tumbling_ms
    starts = f"{name}_starts(timestamp)" if size_ms is None else f"(timestamp - timestamp % {size_ms},)"
    return _BY_WINDOW.format(
        name=name, key=key, value=value, starts=starts, kept_ms=operator.kept_ms, fold=indent(adding, " " * 8)
    ).splitlines(), names
