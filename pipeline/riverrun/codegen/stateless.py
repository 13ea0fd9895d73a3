"""Operators without state as lines."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from riverrun.arguments import is_true, refuse_unstarted
from riverrun.codegen.expressions import tests_of
from riverrun.codegen.function_writer import Writer
from riverrun.codegen.functions import call_of, columns_read_by, lines_of
from riverrun.generated import block
from riverrun.operators.stateless import (
    Branch,
    Filter,
    FlatMap,
    FlatMapValues,
    MapKey,
    MapPair,
    MapValues,
    PassThrough,
    Peek,
    has_key,
    pair_of,
)
from riverrun.processor.expressions import Expression, decision_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from riverrun.codegen.function_writer import EmitContext


def _test_of(at: EmitContext, name: str, predicate: Callable[[Any, Any], bool]) -> str:
    """Return the test of a user's predicate."""
    # Nearly all results are True or False, which two comparisons find out without a call.
    kept, otherwise = at.own("kept"), at.named("is_true", is_true)
    return f"({kept} := {call_of(at, name, decision_of(predicate))}) is True or ({kept} is not False and {otherwise}({kept}))"


def _of_rows(at: EmitContext, lines: str) -> str:
    """Return lines that take a value apart; for None, they call the operator instead."""
    if at.is_row:
        return lines
    return f"{block(f'if {at.value} is None:', at.process)}\n{block('else:', lines)}"


def _pair_lines(at: EmitContext, given: str, name: str) -> str:
    """Return the lines that unpack a mapper's pair."""
    # A check of the class costs less than a call.
    whole = f"{name} if {given}.__class__ is tuple else {at.named('pair_of', pair_of)}({name})"
    return f"{at.own('key')}, {at.own('value')} = {whole}"


def _filter(operator: Filter, at: EmitContext) -> str:
    def passing(test: str) -> str:
        return f"if not ({test}):" if operator.negated else f"if {test}:"

    if operator.predicate is has_key:
        return block(f"if not ({at.lacks_key}):", at.below())
    written = lines_of(operator.predicate)
    if written is not None:
        test = written.test(at)
        return _of_rows(at, f"{test.lines}\n{block(passing(test.items[0]), at.below())}")
    return block(passing(_test_of(at, "predicate", operator.predicate)), at.below())


def _filter_columns(operator: Filter) -> tuple[str, ...] | None:
    return () if operator.predicate is has_key else columns_read_by(operator.predicate)


def _map_pair(operator: MapPair, at: EmitContext) -> str:
    pair = _pair_lines(at, f"(pair := {call_of(at, 'mapper', operator.mapper)})", "pair")
    return f"{pair}\n{at.below(at.own('key'), at.own('value'))}"


def _map_key(operator: MapKey, at: EmitContext) -> str:
    written = lines_of(operator.mapper)
    if written is not None:
        made = written.row(at)
        key = f"{made.lines}\n{at.own('key')} = {made.whole}"
        return _of_rows(at, f"{key}\n{at.below(key=at.own('key'))}")
    return f"{at.own('key')} = {call_of(at, 'mapper', operator.mapper)}\n{at.below(key=at.own('key'))}"


def _map_values(operator: MapValues, at: EmitContext) -> str:
    written = lines_of(operator.mapper)
    if written is not None:
        return _of_rows(at, at.below(value=written.row(at)))
    return f"{at.own('value')} = {call_of(at, 'mapper', operator.mapper)}\n{at.below(value=at.own('value'))}"


def _mapper_columns(operator: MapKey | MapValues) -> tuple[str, ...] | None:
    return columns_read_by(operator.mapper)


def _flat_map(operator: FlatMap, at: EmitContext) -> str:
    each = at.below(at.own("key"), at.own("value"))
    return block(f"for pair in {call_of(at, 'mapper', operator.mapper)}:", _pair_lines(at, "pair", "pair"), each)


def _flat_map_values(operator: FlatMapValues, at: EmitContext) -> str:
    values = call_of(at, "mapper", operator.mapper)
    return block(f"for {at.own('value')} in {values}:", at.below(value=at.own("value")))


def _peek(operator: Peek, at: EmitContext) -> str:
    result, refuse = at.own("result"), at.named("refuse", refuse_unstarted)
    called = f"({result} := {call_of(at, 'action', operator.action)})"
    refused = block(f"if {called} is not None:", f"{refuse}({result}, 'The action')")
    return f"{refused}\n{at.below()}"


def _pass_through(_operator: PassThrough, at: EmitContext) -> str:
    return at.below()


def _no_columns(_operator: PassThrough) -> tuple[str, ...]:
    return ()


def _branch(operator: Branch, at: EmitContext) -> str:
    ways, word = [], "if"
    for test, child in zip(_branch_tests(operator, at), operator.children, strict=False):
        ways.append(block(f"{word} {test}:", at.to(child)))
        word = "elif"
    if len(operator.children) > len(operator.predicates):
        default = at.to(operator.children[-1])
        ways.append(block("else:", default) if ways else default)
    return "\n".join(ways)


def _branch_tests(operator: Branch, at: EmitContext) -> list[str]:
    expressions = [each for each in operator.predicates if isinstance(each, Expression)]
    if at.columns is not None and len(expressions) == len(operator.predicates):
        return tests_of(at, expressions)
    return [_test_of(at, f"predicate_{number}", predicate) for number, predicate in enumerate(operator.predicates)]


def _branch_columns(operator: Branch) -> tuple[str, ...] | None:
    read = [columns_read_by(each) for each in operator.predicates]
    found = [each for each in read if each is not None]
    return tuple(dict.fromkeys(chain.from_iterable(found))) if len(found) == len(read) else None


WRITERS: dict[type, Writer] = {
    Filter: Writer(_filter, _filter_columns),
    MapPair: Writer(_map_pair),
    MapKey: Writer(_map_key, _mapper_columns),
    MapValues: Writer(_map_values, _mapper_columns, passes_values=False),
    FlatMap: Writer(_flat_map),
    FlatMapValues: Writer(_flat_map_values),
    Peek: Writer(_peek),
    PassThrough: Writer(_pass_through, _no_columns),
    Branch: Writer(_branch, _branch_columns),
}
