"""Operators of tables as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.codegen.function_writer import Writer
from riverrun.codegen.functions import call_of, lines_of
from riverrun.generated import NotGenerated, block
from riverrun.operators.table_transforms import TableMapValues
from riverrun.operators.tables import TableSource, ToStream
from riverrun.state.access import PutsInParts

if TYPE_CHECKING:
    from riverrun.codegen.function_writer import EmitContext

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


def _source(operator: TableSource, at: EmitContext) -> str:
    """Return the lines for a store that holds updates back, where the bytes of keys are known."""
    store = None if operator.rows_in is None or at.raw_key is None else at.stores[operator.rows_in]
    puts = store.cached_put() if isinstance(store, PutsInParts) else None
    if puts is None:
        raise NotGenerated(
            "its table has no store with a cache that it may change in place, or the bytes of its keys are not known"
        )
    value, cache = at.own("given"), puts.cache
    put = _PUT.format(
        known=at.named("known", puts.index.get),
        find=at.named("find", puts.find),
        shared=at.named("shared", cache.codec.values.shared),
        hold=at.named("hold", cache.hold),
        mark=at.named("mark", cache.mark),
        updates=at.named("updates", cache.updates),
        key_as_bytes=at.raw_key,
        key=at.key_as_read,
        value=value,
        raw_value=at.raw_value(cache.codec.values.deserialize),
        place=at.place,
        otherwise=at.process,
    )
    return f"{block(f'if {at.lacks_key}:', at.process)}\n{block('else:', f'{value} = {at.value}', put)}"


def _to_stream(_operator: ToStream, at: EmitContext) -> str:
    return f"{at.own('value')} = {at.new}\n{at.below(value=at.own('value'))}"


def _map_values(operator: TableMapValues, at: EmitContext) -> str:
    if operator.rows_in is not None or operator.send_old_values:
        raise NotGenerated("its table is kept, or forwards what an update replaced")
    given, new, written = at.own("given"), at.own("new"), lines_of(operator.mapper)
    if written is None:
        mapped = f"{new} = {call_of(at.on(given), 'mapper', operator.mapper)}"
    else:
        row = written.row(at.on(given))
        mapped = f"{row.lines}\n{new} = {row.whole}"
    present = block("else:", mapped)
    return f"{given} = {at.new}\n{block(f'if {given} is None:', f'{new} = None')}\n{present}\n{at.updated(new)}"


WRITERS: dict[type, Writer] = {
    TableSource: Writer(_source),
    ToStream: Writer(_to_stream),
    TableMapValues: Writer(_map_values),
}
