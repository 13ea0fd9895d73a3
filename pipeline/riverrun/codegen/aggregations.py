"""Aggregations into cached stores as lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from riverrun.codegen.function_writer import Writer
from riverrun.codegen.functions import lines_of, written
from riverrun.generated import NotGenerated, block
from riverrun.operators.aggregations import COUNT, StreamAggregate, StreamWindowAggregate
from riverrun.operators.table_aggregations import TableAggregate
from riverrun.state.cache import ENCODED

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.codegen.function_writer import EmitContext, Folding
    from riverrun.codegen.functions import WritesFold
    from riverrun.codegen.values import Named
    from riverrun.state.access import CachedFold

_KEY_AS_BYTES = "key_as_bytes"
_FIND = """\
entry = {known}({key_as_bytes})
if entry is None:
    entry = {find}({key_as_bytes}, {key})"""
_FIND_WINDOW = """\
entry = {known}({start}, {none}).get({key_as_bytes})
if entry is None:
    entry = {find}({key_as_bytes}, {key}, {start})"""
_DECODED = """\
    if aggregate is {encoded}:
        aggregate = {value_of}(entry)
"""
_SHARED = "entry.value, entry.time = aggregate, time"
_HELD = """\
if aggregate.__class__ in {shared}:
    entry.value = aggregate
else:
    {hold}(entry, aggregate)
entry.time = time"""
# The step is `riverrun.state.folds.step`.
_UPDATE = """\
aggregate, time = entry.value, entry.time
if aggregate is None:
    aggregate, time = {first}, timestamp
else:
{decoded}    aggregate = {add}
    if timestamp > time:
        time = timestamp
{stored}
entry.whole = None
entry.timestamp, entry.headers, entry.place = timestamp, headers, {place}
if not entry.order:
    {mark}(entry)
entry.order = next({updates})"""


@dataclass(frozen=True, slots=True)
class Constantly:
    """Expressions that do not depend on the record, with the class of both (`WritesFold`)."""

    first: str
    add: str
    kind: type
    reads_records: ClassVar[bool] = False

    def expressions(self, _named: Named, _item: Callable[[int], str]) -> tuple[str, str]:
        return self.first, self.add


written(COUNT.add, Constantly("1", "aggregate + 1", int))


def _code(fold: CachedFold) -> WritesFold | None:
    """Return the functions of an aggregation as expressions; None if they have to be called."""
    found: WritesFold | None = lines_of(fold.fold.add)
    return found


def _is_shared(fold: CachedFold) -> bool:
    """Return whether aggregates are of a class that is kept without encoding, whatever the record."""
    code = _code(fold)
    return code is not None and code.kind in fold.cache.codec.values.serde.immutable_types


def _reads_records(fold: CachedFold) -> bool:
    """Return whether it needs keys and values of records; if not, it needs each key once, as that of its entry."""
    code = _code(fold)
    return code is None or code.reads_records or not _is_shared(fold)


def _bytes_lines(at: EmitContext, fold: CachedFold) -> str:
    """Return the lines that find a key's bytes: those that it was read from, or those that the store writes."""
    if at.raw_key is not None:
        return f"{_KEY_AS_BYTES} = {at.raw_key}"
    serialized = f"{_KEY_AS_BYTES} = {at.named('bytes', fold.keys.serialize)}({at.key})"
    refused = f"raise {at.named('refused', fold.keys.refused)}({at.key}, error) from error"
    return f"{block('try:', serialized)}\n{block('except Exception as error:', refused)}"


def _entry_lines(at: EmitContext, fold: CachedFold, start: str | None = None) -> str:
    """Return the lines that add the record to the entry of a key; `start` names the variable of a window's start."""
    found = {"known": at.named("known", fold.index.get), "find": at.named("find", fold.find)}
    form = _FIND
    if start is not None:
        form, found["none"] = _FIND_WINDOW, at.named("none", {})
    return f"{form.format(**found, key_as_bytes=_KEY_AS_BYTES, key=at.key_as_read, start=start)}\n{_update_lines(at, fold)}"


def _update_lines(at: EmitContext, fold: CachedFold) -> str:
    cache, code = fold.cache, _code(fold)
    if code is None:
        first = f"{at.named('first', fold.fold.first)}({at.key}, {at.value})"
        add = f"{at.named('add', fold.fold.add)}({at.key}, {at.value}, aggregate)"
    else:
        first, add = code.expressions(at.named, at.item)
    decoded, stored = "", _SHARED
    if not _is_shared(fold):
        decoded = _DECODED.format(encoded=at.named("encoded", ENCODED), value_of=at.named("value_of", cache.value_of))
        stored = _HELD.format(shared=at.named("shared", cache.codec.values.shared), hold=at.named("hold", cache.hold))
    return _UPDATE.format(
        first=first,
        add=add,
        decoded=decoded,
        stored=stored,
        place=at.place,
        mark=at.named("mark", fold.mark),
        updates=at.named("updates", cache.updates),
    )


def _by_key(at: EmitContext, fold: CachedFold) -> str:
    """Return the lines of an aggregation without windows; the operator handles records without a key or value."""
    refused = block(f"if {at.lacking(at.lacks_key)}:", at.process)
    return f"{refused}\n{block('else:', _bytes_lines(at, fold), _entry_lines(at, fold))}"


def _stream(operator: StreamAggregate, at: EmitContext) -> str:
    return _by_key(at, at.folding(operator.rows_in, operator.aggregator))


def _stream_reads_records(operator: StreamAggregate, folding: Folding) -> bool:
    return _reads_records(folding(operator.rows_in, operator.aggregator))


def _table(operator: TableAggregate, at: EmitContext) -> str:
    return _by_key(at, at.folding(operator.rows_in, operator.update))


def _windows(operator: StreamWindowAggregate, at: EmitContext) -> str:
    fold, name = _window_fold(operator, at.folding), at.named("operator", operator)
    window = _window_lines(operator, at, fold, name)
    if operator.stretch_of is not None:
        windows = f"start, end = {at.named('stretch_of', operator.stretch_of)}(timestamp)\n{window}"
    elif operator.tumbling_ms is None:
        windows = block(f"for start in {at.named('starts', operator.starts_for)}(timestamp):", window)
    else:
        windows = f"start = timestamp - timestamp % {operator.tumbling_ms}\n{window}"
    observed = block("if timestamp > observed:", f"{name}.observed_ms = observed = timestamp")
    aggregated = block("else:", f"observed = {name}.observed_ms", observed, _bytes_lines(at, fold), windows)
    return f"{block(f'if {at.lacks_key}:', at.process)}\n{aggregated}"


def _window_lines(operator: StreamWindowAggregate, at: EmitContext, fold: CachedFold, name: str) -> str:
    """Return the lines for the window that begins at `start`; the operator handles late records."""
    kept = at.named("kept", fold.kept)
    end, is_closed = "end", f"end <= observed - {operator.grace_ms}"
    if operator.stretch_of is None:
        end, is_closed = (
            f"start + {operator.longest_ms}",
            f"start <= observed - {operator.grace_ms + operator.longest_ms}",
        )
    is_late = f"{is_closed} or not {kept}.first <= start < {kept}.end"
    late = f"{name}.update({at.key_as_read}, {at.value}, timestamp, headers, start, {end})"
    return f"{block(f'if {is_late}:', late)}\n{block('else:', _entry_lines(at, fold, 'start'))}"


def _window_fold(operator: StreamWindowAggregate, folding: Folding) -> CachedFold:
    if operator.closing is not None:
        raise NotGenerated("it forwards windows when they close")
    if operator.own_end_of is not None and operator.stretch_of is None:
        raise NotGenerated("its windows say themselves where they end")
    return folding(operator.store_name, operator.aggregator)


def _window_reads_records(operator: StreamWindowAggregate, folding: Folding) -> bool:
    return _reads_records(_window_fold(operator, folding))


WRITERS: dict[type, Writer] = {
    StreamAggregate: Writer(_stream, reads_records=_stream_reads_records),
    StreamWindowAggregate: Writer(_windows, reads_records=_window_reads_records),
    TableAggregate: Writer(_table),
}
