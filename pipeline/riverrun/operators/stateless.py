"""Operators without state, which leave timestamps and headers unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.arguments import is_true, refuse_unstarted
from riverrun.errors import TopologyError
from riverrun.processor.expressions import decision_of
from riverrun.records import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import TextIO

    from riverrun.processor.operator import Forward, OperatorContext
    from riverrun.records import Headers


@dataclass(frozen=True, slots=True)
class OfValue:
    """Adapts a mapper of the value alone to key and value."""

    mapper: Callable[[Any], Any]

    def __call__(self, _key: Any, value: Any) -> Any:
        return self.mapper(value)


@dataclass(frozen=True, slots=True)
class OfValues:
    """Adapts a joiner of two values to a key and two values."""

    joiner: Callable[[Any, Any], Any]

    def __call__(self, _key: Any, value: Any, other: Any) -> Any:
        return self.joiner(value, other)


def pair_of(given: Any) -> tuple[Any, Any]:
    """Return the result of a mapper of keys and values, if it is a pair."""
    # Not whatever can be unpacked: a text or a dict of length two would be taken apart into something else.
    if isinstance(given, tuple):
        return given
    message = f"a mapper of keys and values must return pairs (key, value), not {given!r} ({type(given).__name__})"
    raise TypeError(message)


def has_key(key: object, _value: object) -> bool:
    """Return whether there is a key: the usual predicate of the filter before a repartition topic."""
    return key is not None


@dataclass(slots=True)
class Filter:
    """Forwards records for which the predicate holds, or, negated, does not (`KStreamFilter`)."""

    predicate: Callable[[Any, Any], bool]
    negated: bool = False
    _holds: Callable[[Any, Any], bool] = field(init=False)
    _forward: Forward = field(init=False)

    def init(self, context: OperatorContext) -> None:
        self._holds, self._forward = decision_of(self.predicate), context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if is_true(self._holds(key, value)) is not self.negated:
            self._forward(key, value, timestamp, headers)


@dataclass(slots=True)
class MapPair:
    """Forwards the pair that the mapper makes of key and value (`KStreamMap`)."""

    mapper: Callable[[Any, Any], tuple[Any, Any]]
    _forward: Forward = field(init=False)

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        key, value = pair_of(self.mapper(key, value))
        self._forward(key, value, timestamp, headers)


@dataclass(slots=True)
class MapKey:
    """Forwards records under the key that the mapper returns (`KStreamImpl.internalSelectKey`)."""

    mapper: Callable[[Any, Any], Any]
    _forward: Forward = field(init=False)

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self._forward(self.mapper(key, value), value, timestamp, headers)


@dataclass(slots=True)
class MapValues:
    """Forwards records with the value that the mapper returns (`KStreamMapValues`)."""

    mapper: Callable[[Any, Any], Any]
    _forward: Forward = field(init=False)

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self._forward(key, self.mapper(key, value), timestamp, headers)


@dataclass(slots=True)
class FlatMap:
    """Forwards every pair that the mapper returns (`KStreamFlatMap`)."""

    mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]]
    _forward: Forward = field(init=False)

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for pair in self.mapper(key, value):
            new_key, new_value = pair_of(pair)
            self._forward(new_key, new_value, timestamp, headers)


@dataclass(slots=True)
class FlatMapValues:
    """Forwards every value that the mapper returns (`KStreamFlatMapValues`)."""

    mapper: Callable[[Any, Any], Iterable[Any]]
    _forward: Forward = field(init=False)

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for each in self.mapper(key, value):
            self._forward(key, each, timestamp, headers)


@dataclass(slots=True)
class Peek:
    """Calls the action, then forwards the record unchanged (`KStreamPeek`)."""

    action: Callable[[Any, Any], object]
    _forward: Forward = field(init=False)

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        result = self.action(key, value)
        if result is not None:
            refuse_unstarted(result, "The action")
        self._forward(key, value, timestamp, headers)


class PassThrough:
    """Forwards everything (`PassThrough`): at the node where streams merge, and at each branch."""

    def init(self, context: OperatorContext) -> None:
        self._forward = context.forward

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self._forward(key, value, timestamp, headers)


class Branch:
    """Forwards a record to the child of the first predicate that holds, or to the default child; drops it if there is none.

    Args:
        children: Names of the nodes of the branches, in the order of the predicates; one more is the default branch.
    """

    def __init__(self, predicates: Sequence[Callable[[Any, Any], bool]], children: Sequence[str]) -> None:
        self.predicates = predicates
        self.children = children

    def init(self, context: OperatorContext) -> None:
        branches = [context.forward_to(child) for child in self.children]
        self._ways = list(zip(map(decision_of, self.predicates), branches, strict=False))
        self._default = branches[len(self.predicates) :]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for holds, forward in self._ways:
            if is_true(holds(key, value)):
                forward(key, value, timestamp, headers)
                return
        for forward in self._default:
            forward(key, value, timestamp, headers)


class Print:
    """Writes a line `[label]: text` per record, to standard output or to the end of a file."""

    def __init__(self, label: str, mapper: Callable[[Any, Any], str], path: Path | None) -> None:
        self._label = label
        self._mapper = mapper
        self._path = path
        self._file: TextIO | None = None

    def init(self, context: OperatorContext) -> None:  # noqa: ARG002 - forwards nothing
        if self._path is None:
            return
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise TopologyError(f"Unable to write stream to file at [{self._path}]: {error}") from error

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:  # noqa: ARG002 - an operator
        text = self._mapper(key, value)
        refuse_unstarted(text, "The mapper of print()")
        line = f"[{self._label}]: {text}"
        if self._file is None:
            # The standard output may be a terminal, which records must not control.
            print(visible(line), flush=True)  # noqa: T201 - the operator prints
        else:
            print(line, file=self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
