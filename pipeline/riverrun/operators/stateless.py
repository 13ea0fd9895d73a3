"""Operators without state, which leave timestamps and headers unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from riverrun.arguments import is_true, refuse_unstarted
from riverrun.errors import TopologyError
from riverrun.processor.expressions import Expression, decision_of, tests_of
from riverrun.processor.operator import block, lines_of
from riverrun.records import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import TextIO

    from riverrun.processor.operator import EmitContext, OperatorContext
    from riverrun.records import Headers


@dataclass(frozen=True, slots=True)
class OfValue:
    """Adapts a mapper of the value alone to key and value."""

    mapper: Callable[[Any], Any]

    def __call__(self, _key: Any, value: Any) -> Any:
        """Map the value."""
        return self.mapper(value)


@dataclass(frozen=True, slots=True)
class OfValues:
    """Adapts a joiner of two values to a key and two values."""

    joiner: Callable[[Any, Any], Any]

    def __call__(self, _key: Any, value: Any, other: Any) -> Any:
        """Join the values."""
        return self.joiner(value, other)


def pair_of(given: Any) -> tuple[Any, Any]:
    """Return the result of a mapper of keys and values, if it is a pair."""
    # Not whatever can be unpacked: a text or a dict of length two would be taken apart into something else.
    if isinstance(given, tuple):
        return given
    message = f"a mapper of keys and values must return pairs (key, value), not {given!r} ({type(given).__name__})"
    raise TypeError(message)


def call_of(at: EmitContext, name: str, function: Callable[[Any, Any], Any]) -> str:
    """Return the call of a user's function of key and value."""
    if isinstance(function, OfValue):
        return f"{at.named(name, function.mapper)}({at.value})"
    return f"{at.named(name, function)}({at.key}, {at.value})"


def test_of(at: EmitContext, name: str, predicate: Callable[[Any, Any], bool]) -> str:
    """Return the test of a user's predicate."""
    # Nearly all results are True or False, which two comparisons find out without a call.
    kept, otherwise = at.own("kept"), at.named("is_true", is_true)
    return f"({kept} := {call_of(at, name, decision_of(predicate))}) is True or ({kept} is not False and {otherwise}({kept}))"


def written_as(at: EmitContext, function: Any) -> Any:
    """Return a function of the value, or of key and value, as lines; None if it has to be called."""
    return None if at.is_alone else lines_of(function.mapper if isinstance(function, OfValue) else function)


def columns_read_by(function: Any) -> tuple[str, ...] | None:
    """Return the columns that a function of the value reads; None if it needs the whole value."""
    written = lines_of(function.mapper if isinstance(function, OfValue) else function)
    read = getattr(written, "columns_read", None)
    return None if read is None else tuple(read())


def of_rows(at: EmitContext, lines: str) -> str:
    """Return lines that take a value apart; for None, they call the operator instead."""
    if at.is_row:
        return lines
    return f"{block(f'if {at.value} is None:', at.process)}\n{block('else:', lines)}"


def pair_lines(at: EmitContext, given: str, name: str) -> str:
    """Return the lines that unpack a mapper's pair."""
    # A check of the class costs less than a call.
    whole = f"{name} if {given}.__class__ is tuple else {at.named('pair_of', pair_of)}({name})"
    return f"{at.own('key')}, {at.own('value')} = {whole}"


def has_key(key: object, _value: object) -> bool:
    """Return whether there is a key: the usual predicate of the filter before a repartition topic."""
    return key is not None


@dataclass(slots=True)
class Filter:
    """Forwards records for which the predicate holds, or, negated, does not (`KStreamFilter`)."""

    passes_values: ClassVar[bool] = True
    predicate: Callable[[Any, Any], bool]
    negated: bool = False

    def columns_read(self) -> tuple[str, ...] | None:
        """Return the columns that the predicate reads; None if it needs the whole value."""
        return () if self.predicate is has_key else columns_read_by(self.predicate)

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        if self.predicate is has_key:
            return block(f"if not ({at.lacks_key}):", at.below())
        written = written_as(at, self.predicate)
        if written is not None:
            test = written.test(at)
            return of_rows(at, f"{test.lines}\n{block(self._passing(test.items[0]), at.below())}")
        return block(self._passing(test_of(at, "predicate", self.predicate)), at.below())

    def _passing(self, test: str) -> str:
        return f"if not ({test}):" if self.negated else f"if {test}:"


@dataclass(slots=True)
class MapPair:
    """Forwards the pair that the mapper makes of key and value (`KStreamMap`)."""

    mapper: Callable[[Any, Any], tuple[Any, Any]]

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        pair = pair_lines(at, f"(pair := {call_of(at, 'mapper', self.mapper)})", "pair")
        return f"{pair}\n{at.below(at.own('key'), at.own('value'))}"


@dataclass(slots=True)
class MapKey:
    """Forwards records under the key that the mapper returns (`KStreamImpl.internalSelectKey`)."""

    passes_values: ClassVar[bool] = True
    mapper: Callable[[Any, Any], Any]

    def columns_read(self) -> tuple[str, ...] | None:
        """Return the columns that the mapper reads; None if it needs the whole value."""
        return columns_read_by(self.mapper)

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        written = written_as(at, self.mapper)
        if written is not None:
            made = written.row(at)
            key = f"{made.lines}\n{at.own('key')} = {made.whole}"
            return of_rows(at, f"{key}\n{at.below(key=at.own('key'))}")
        return f"{at.own('key')} = {call_of(at, 'mapper', self.mapper)}\n{at.below(key=at.own('key'))}"


@dataclass(slots=True)
class MapValues:
    """Forwards records with the value that the mapper returns (`KStreamMapValues`)."""

    passes_values: ClassVar[bool] = False
    mapper: Callable[[Any, Any], Any]

    def columns_read(self) -> tuple[str, ...] | None:
        """Return the columns that the mapper reads; None if it needs the whole value."""
        return columns_read_by(self.mapper)

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        written = written_as(at, self.mapper)
        if written is not None:
            return of_rows(at, at.below(value=written.row(at)))
        return f"{at.own('value')} = {call_of(at, 'mapper', self.mapper)}\n{at.below(value=at.own('value'))}"


@dataclass(slots=True)
class FlatMap:
    """Forwards every pair that the mapper returns (`KStreamFlatMap`)."""

    mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]]

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        each = at.below(at.own("key"), at.own("value"))
        return block(f"for pair in {call_of(at, 'mapper', self.mapper)}:", pair_lines(at, "pair", "pair"), each)


@dataclass(slots=True)
class FlatMapValues:
    """Forwards every value that the mapper returns (`KStreamFlatMapValues`)."""

    mapper: Callable[[Any, Any], Iterable[Any]]

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        values = call_of(at, "mapper", self.mapper)
        return block(f"for {at.own('value')} in {values}:", at.below(value=at.own("value")))


@dataclass(slots=True)
class Peek:
    """Calls the action, then forwards the record unchanged (`KStreamPeek`)."""

    action: Callable[[Any, Any], object]

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        result, refuse = at.own("result"), at.named("refuse", refuse_unstarted)
        called = f"({result} := {call_of(at, 'action', self.action)})"
        refused = block(f"if {called} is not None:", f"{refuse}({result}, 'The action')")
        return f"{refused}\n{at.below()}"


class PassThrough:
    """Forwards everything (`PassThrough`): at the node where streams merge, and at each branch."""

    passes_values: ClassVar[bool] = True

    def columns_read(self) -> tuple[str, ...]:
        """Return no columns."""
        return ()

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        return at.below()


class Branch:
    """Forwards a record to the child of the first predicate that holds, or to the default child; drops it if there is none.

    Args:
        children: Names of the nodes of the branches, in the order of the predicates; one more is the default branch.
    """

    passes_values: ClassVar[bool] = True

    def __init__(self, predicates: Sequence[Callable[[Any, Any], bool]], children: Sequence[str]) -> None:
        self.predicates = predicates
        self.children = children

    def columns_read(self) -> tuple[str, ...] | None:
        """Return the columns that the predicates read; None if one of them needs the whole value."""
        read = [columns_read_by(each) for each in self.predicates]
        found = [each for each in read if each is not None]
        return tuple(dict.fromkeys(chain.from_iterable(found))) if len(found) == len(read) else None

    def lines(self, at: EmitContext) -> str:
        """Return the lines for one record."""
        ways, word = [], "if"
        for test, child in zip(self._tests(at), self.children, strict=False):
            ways.append(block(f"{word} {test}:", at.to(child)))
            word = "elif"
        if len(self.children) > len(self.predicates):
            default = at.to(self.children[-1])
            ways.append(block("else:", default) if ways else default)
        return "\n".join(ways)

    def _tests(self, at: EmitContext) -> list[str]:
        expressions = [each for each in self.predicates if isinstance(each, Expression)]
        if at.columns is not None and len(expressions) == len(self.predicates):
            return tests_of(at, expressions)
        return [test_of(at, f"predicate_{number}", predicate) for number, predicate in enumerate(self.predicates)]


class Print:
    """Writes a line `[label]: text` per record, to standard output or to the end of a file."""

    def __init__(self, label: str, mapper: Callable[[Any, Any], str], path: Path | None) -> None:
        self._label = label
        self._mapper = mapper
        self._path = path
        self._file: TextIO | None = None

    def init(self, context: OperatorContext) -> None:  # noqa: ARG002 - forwards nothing
        """Open the file."""
        if self._path is None:
            return
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            message = f"Unable to write stream to file at [{self._path}]: {error}"
            raise TopologyError(message) from error

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:  # noqa: ARG002 - an operator
        """Write one line."""
        text = self._mapper(key, value)
        refuse_unstarted(text, "The mapper of print()")
        line = f"[{self._label}]: {text}"
        if self._file is None:
            # The standard output may be a terminal, which records must not control.
            print(visible(line), flush=True)  # noqa: T201 - the operator prints
        else:
            print(line, file=self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
