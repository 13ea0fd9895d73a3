"""Joins of a stream with a table as lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.codegen.function_writer import Writer
from riverrun.codegen.functions import call_of, lines_of
from riverrun.generated import block
from riverrun.operators.joins import StreamTableJoin, StreamTableLeftJoin
from riverrun.operators.stateless import OfValues
from riverrun.operators.table_transforms import MappedGetter
from riverrun.operators.tables import StoreGetter
from riverrun.processor.handlers import DropReason
from riverrun.state.access import LooksUpInParts
from riverrun.state.cache import UNREAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.codegen.function_writer import EmitContext
    from riverrun.codegen.values import TupleValue
    from riverrun.state.access import CachedGet


def _inner(operator: StreamTableJoin, at: EmitContext) -> str:
    lookup, found, dropped = _lookup(at, operator), at.own("found"), _dropped(at, DropReason.NULL_KEY_OR_VALUE)
    if lookup is not None:
        refused = block(f"if {at.lacking(at.lacks_key)}:", dropped)
        looked_up, row = lookup.lines(at, found, is_left=False)
        joined = _joined_lines(at, operator.joiner, found, is_left=False, row=row)
        return f"{refused}\n{block('else:', looked_up, block(f'if {found} is not None:', joined))}"
    table_key, key = _table_key(at, operator), at.own("table_key")
    if operator.key_of is not None and not at.is_row:
        table_key = f"None if {at.value} is None else {table_key}"
    refused = block(f"if {at.lacking(f'{key} is None')}:", dropped)
    looked_up = f"{found} = {at.named('operator', operator)}.lookup({key})"
    other = f"{found} = {found}.value\n{_joined_lines(at, operator.joiner, found, is_left=False)}"
    return f"{key} = {table_key}\n{refused}\n{block('else:', looked_up, block(f'if {found} is not None:', other))}"


def _left(operator: StreamTableLeftJoin, at: EmitContext) -> str:
    lookup, found = _lookup(at, operator), at.own("found")
    refused = block(f"if {at.lacking()}:", _dropped(at, DropReason.NULL_VALUE))
    joined = _joined_lines(at, operator.joiner, found, is_left=True)
    if lookup is not None:
        return f"{refused}\n{block('else:', lookup.lines(at, found, is_left=True)[0], joined)}"
    key = at.own("table_key")
    looked_up = (
        f"{key} = {_table_key(at, operator)}\n"
        f"{found} = None if {key} is None else {at.named('operator', operator)}.lookup({key})\n"
        f"{found} = None if {found} is None else {found}.value"
    )
    return f"{refused}\n{block('else:', looked_up, joined)}"


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Looks up records' own keys in the cache of a table's store, and processes the values it finds."""

    cached: CachedGet
    steps: tuple[Callable[[Any, Any], Any], ...]

    def lines(self, at: EmitContext, found: str, *, is_left: bool) -> tuple[str, TupleValue | None]:
        """Return the lines that find a value by the bytes that the key was read from, and the row that the last step makes.

        If there is such a row, the lines leave out that step.
        """
        unread = at.named("unread", UNREAD)
        known = f"{at.named('known', self.cached.values.get)}({at.raw_key}, {unread})"
        find = f"{found} = {at.named('find', self.cached.find)}({at.raw_key}, {at.key})"
        first = f"{found} = None if {at.lacks_key} else {known}" if is_left else f"{found} = {known}"
        lines = [first, block(f"if {found} is {unread}:", find)]
        last = lines_of(self.steps[-1]) if self.steps and not is_left else None
        for number, step in enumerate(self.steps if last is None else self.steps[:-1]):
            lines.append(block(f"if {found} is not None:", self._step(at, step, f"step_{number}", found)))
        return "\n".join(lines), None if last is None else last.row(at.on(found))

    @staticmethod
    def _step(at: EmitContext, step: Callable[[Any, Any], Any], name: str, found: str) -> str:
        written = lines_of(step)
        if written is None:
            return f"{found} = {call_of(at.on(found), name, step)}"
        row = written.row(at.on(found))
        return f"{row.lines}\n{found} = {row.whole}"


def _lookup(at: EmitContext, join: StreamTableJoin | StreamTableLeftJoin) -> _Lookup | None:
    """Return the lookup in the cache of the table's store; None if the operator's own function has to be called."""
    if at.raw_key is None or join.key_of is not None:
        return None
    getter, steps = join.open_table, list[Any]()
    while isinstance(getter, MappedGetter):
        steps.insert(0, getter.compute)
        getter = getter.open_parent
    store = at.stores.get(getter.store) if isinstance(getter, StoreGetter) else None
    cached = store.cached_get() if isinstance(store, LooksUpInParts) else None
    return None if cached is None else _Lookup(cached, tuple(steps))


def _dropped(at: EmitContext, reason: DropReason) -> str:
    return f"context.drop({at.named('reason', reason)})"


def _table_key(at: EmitContext, join: StreamTableJoin | StreamTableLeftJoin) -> str:
    return at.key if join.key_of is None else f"{at.named('key_of', join.key_of)}({at.key}, {at.value})"


def _joined_lines(
    at: EmitContext, joiner: Callable[[Any, Any, Any], Any], other: str, *, is_left: bool, row: TupleValue | None = None
) -> str:
    """Return the lines that join a record with the value `other`, which they first make of `row`, and forward the result."""
    written, made = lines_of(joiner), ""
    if row is not None:
        made = f"{row.lines}\n" if row.lines else ""
        if written is None:
            made += f"{other} = {row.whole}\n"
    if written is not None:
        missing = (
            f"if {other} is None:\n    {other} = {at.named('missing', (None,) * written.width)}\n" if is_left else ""
        )
        items = (lambda number: f"{other}[{number}]") if row is None else (lambda number: row.items[number])
        return f"{missing}{made}{at.below(value=written.joined(at, items))}"
    inner: Any = joiner
    arguments = f"{at.key}, {at.value}, {other}"
    if isinstance(joiner, OfValues):
        inner, arguments = joiner.joiner, f"{at.value}, {other}"
    return f"{made}{at.own('value')} = {at.named('joiner', inner)}({arguments})\n{at.below(value=at.own('value'))}"


WRITERS: dict[type, Writer] = {StreamTableJoin: Writer(_inner), StreamTableLeftJoin: Writer(_left)}
