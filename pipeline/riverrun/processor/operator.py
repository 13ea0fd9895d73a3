"""The interface of built-in operators: no object per record, one call per hop.

An operator gets key, value, timestamp and headers as arguments and calls `context.forward` with the same four. The
task binds `forward` to the children once, so a chain of operators is a chain of plain calls.

Operators without state are lines of Python. `riverrun.runtime.fusion` puts these into one generated function, without a call
per hop. The same lines are made a function of the operator alone, where records go from one call to the next.

Operators with state define `process`. They may also write lines for stores that allow it, in addition: tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from riverrun.processor.api import ProcessingContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from riverrun.processor.handlers import DropReason
    from riverrun.records import Headers
    from riverrun.state.access import CachedFold
    from riverrun.state.api import CachedUpdate, Place
    from riverrun.state.folds import Fold

T = TypeVar("T")


class OperatorContext(ProcessingContext, Protocol):
    """An operator's view of its task. The attributes of the current record change with every record."""

    @property
    def forward(self) -> Callable[[Any, Any, int, Headers], None]:
        """Sends key, value, timestamp (ms) and headers to all children."""
        ...

    @property
    def headers(self) -> Headers:
        """Headers of the current record; empty within a punctuation."""
        ...

    @property
    def timestamp(self) -> int:
        """Event time of the current record, or the time of the punctuation, ms."""
        ...

    def forward_to(self, child: str) -> Callable[[Any, Any, int, Headers], None]:
        """Return the function that forwards to one child; raise `TopologyError` if there is no child of that name."""
        ...

    def forward_as(
        self,
        metadata: Place | None,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Forward a held-back update as if its original record were the current one."""
        ...

    def by_time(self) -> AbstractContextManager[None]:
        """Process, in this context, what time has brought out and not the current record."""
        ...

    def acting_at(self, time_ms: int, act: Callable[[], None]) -> None:
        """Act as if the current record had another time, ms, and no headers."""
        ...

    def forward_flushed(self, updates: Sequence[CachedUpdate], key_of: Callable[[Any], Any]) -> None:
        """Forward updates that a cache held back, as `Change`s; `key_of` converts a store's key to the forwarded one."""
        ...

    def processor_metadata(self, key: str) -> int | None:
        """Return a time (ms) stored with the committed offsets (`InternalProcessorContext.processorMetadataForKey`)."""
        ...

    def set_processor_metadata(self, key: str, time_ms: int) -> None:
        """Store a time with the offsets of the next commit. `key`, the name of a store, is unique within the task."""
        ...

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return an object that operators of one task share. The first caller creates it; it lives as long as the task."""
        ...

    def close_with(self, close: Callable[[], None]) -> None:
        """Register a function to call when the operator closes, to close what it opened (`KTableValueGetter.close`)."""
        ...

    def drop(self, reason: DropReason) -> None:
        """Count a record that is dropped."""
        ...


class Operator(Protocol):
    """One node of a running task."""

    def init(self, context: OperatorContext) -> None:
        """Called once, before the first record."""
        ...

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Process one record."""
        ...

    def close(self) -> None:
        """Called once, after the last record."""
        ...


@runtime_checkable
class FollowsStreamTime(Protocol):
    """An operator that holds back results until stream time reaches a point. Hosts may advance its time without a record."""

    def advance_stream_time(self, time_ms: int) -> None:
        """Advance as if a record with this event time (ms) had been seen; earlier times have no effect."""
        ...


@runtime_checkable
class MaySchedule(Protocol):
    """An operator that can schedule punctuations; its task checks for due ones after every record."""

    may_schedule: ClassVar[bool]


@runtime_checkable
class ForwardsRows(Protocol):
    """An operator that forwards the updates of a table, and may keep its rows in a store."""

    # The store that has the last update of each key; None if the rows are looked up elsewhere.
    rows_in: str | None


@runtime_checkable
class TakesRows(Protocol):
    """An operator whose results for a table's rows depend on these alone, in whatever order they come."""

    def for_rows(self) -> Operator | Fused:
        """Return an operator for rows that come without the values that they replace."""
        ...


class NotFused(Exception):  # noqa: N818 - it is not an error
    """An operator has no lines and is called; the text says why."""


@dataclass(frozen=True, slots=True)
class TupleValue:
    """A value that is a tuple, taken apart: a generated function makes it only where it is needed as a whole.

    Args:
        items: Expressions for its items, which may be written several times.
        lines: The lines that these need before them.
    """

    items: tuple[str, ...]
    lines: str = ""

    @property
    def whole(self) -> str:
        """An expression for all of it."""
        return f"({' '.join(f'{item},' for item in self.items)})"


@dataclass(frozen=True, slots=True)
class OneValue:
    """A value that lines make as a whole.

    Args:
        whole: An expression for it, which may be written once.
        lines: The lines that it needs before it.
    """

    whole: str
    lines: str = ""


@dataclass(frozen=True, slots=True)
class DictValue:
    """A value that is a dict, taken apart: a generated function makes it only where it is needed as a whole.

    Args:
        names: Its keys.
        items: Expressions for its items, which may be written several times.
        lines: The lines that these need before them.
    """

    names: tuple[str, ...]
    items: tuple[str, ...]
    lines: str = ""

    @property
    def whole(self) -> str:
        """An expression for all of it."""
        return f"{{{', '.join(f'{name!r}: {item}' for name, item in zip(self.names, self.items, strict=True))}}}"


class EmitContext(Protocol):
    """The place in a generated function where the lines of an operator go.

    Lines may name `timestamp`, `headers` and `context` of the current record, and whatever `named` and `own` return.
    """

    @property
    def key(self) -> str:
        """The name of the record's key."""
        ...

    @property
    def key_items(self) -> tuple[str, ...] | None:
        """Expressions for the items of a key that is a tuple, None for those of a null key; None if it is not taken apart."""
        ...

    @property
    def lacks_key(self) -> str:
        """A test: whether the key is null."""
        ...

    @property
    def value(self) -> str:
        """An expression: its value."""
        ...

    @property
    def is_row(self) -> bool:
        """True if the value is taken apart, and never None."""
        ...

    @property
    def columns(self) -> Mapping[str, str] | None:
        """Expressions for columns of a value that is taken apart: all that operators read; None if it is not."""
        ...

    @property
    def new(self) -> str:
        """An expression: the new value, where the value is the update of a table."""
        ...

    @property
    def raw_key(self) -> str | None:
        """The name of the bytes that the key was read from; None if they are not known."""
        ...

    def raw_value(self, deserialize: Callable[[bytes], Any]) -> str | None:
        """Return the name of the bytes that a serde has read the value from; None if others may have had the value since."""
        ...

    @property
    def key_as_read(self) -> str:
        """An expression: the key. Where keys are only counted, `key` names its bytes."""
        ...

    @property
    def place(self) -> str:
        """An expression: the topic, partition and offset of the current record."""
        ...

    @property
    def process(self) -> str:
        """A statement: the call of the operator with the record."""
        ...

    @property
    def is_alone(self) -> bool:
        """True if the function has this operator alone: it is called, calls what is below, and takes no value apart."""
        ...

    @property
    def stores(self) -> Mapping[str, Any]:
        """The task's stores by name; they are open."""
        ...

    def named(self, name: str, thing: Any) -> str:
        """Return the name in the function for an object of the operator's."""
        ...

    def own(self, name: str) -> str:
        """Return the name of a variable that no other operator has."""
        ...

    def folding(self, store: str, fold: Fold) -> CachedFold:
        """Return the aggregation into a store in parts, one for all functions; raise `NotFused` if the store must be called."""
        ...

    def on(self, value: str | TupleValue) -> EmitContext:
        """Return a copy of this context with another value, and its own namespace."""
        ...

    def item(self, number: int) -> str:
        """Return an expression for an item of the value, which is a tuple."""
        ...

    def below(self, key: str | None = None, value: str | TupleValue | DictValue | OneValue | None = None) -> str:
        """Return the lines of the operator's children, given expressions for key and value where these are others."""
        ...

    def updated(self, new: str) -> str:
        """Return the lines of the children of a table's operator, which get an update: a new value, and no old one."""
        ...

    def to(self, child: str) -> str:
        """Return the lines of one child."""
        ...


@runtime_checkable
class Fused(Protocol):
    """An operator that has lines; one that is an `Operator` as well is called where it has none."""

    def lines(self, at: EmitContext) -> str:
        """Return the lines that process a record; raise `NotFused` if it has to be called, here or anywhere."""
        ...


@runtime_checkable
class ReadsColumns(Protocol):
    """An operator that may need no more of a value than some columns."""

    @property
    def passes_values(self) -> bool:
        """True if it forwards the values that it gets."""
        ...

    def columns_read(self) -> tuple[str, ...] | None:
        """Return the columns that its lines read; None if they need the whole value."""
        ...


@runtime_checkable
class Counting(Protocol):
    """An operator that may only need the number of records, not the records."""

    def reads_records(self, folding: Callable[[str, Fold], CachedFold]) -> bool:
        """Return whether keys and values matter to its lines, given `EmitContext.folding`."""
        ...


WRITTEN_AS = "riverrun_written_as"
"""The attribute of a function that is one of the following, or of an aggregation's a `FoldCode`.

Functions of a class whose attribute is True write their own lines.
"""


def written(function: Callable[..., Any], how: Any) -> Any:
    """Attach source lines that generated code can inline instead of calling the function; return the function."""
    setattr(function, WRITTEN_AS, how)
    return function


def lines_of(function: Any) -> Any:
    """Return the lines that `written` attached to a function, or its own; None if it has to be called."""
    if getattr(type(function), WRITTEN_AS, None) is True:
        return function
    # Not `getattr`: mocks have any attribute.
    return getattr(function, "__dict__", {}).get(WRITTEN_AS)


class WritesRow(Protocol):
    """Inlines a mapper whose result may be a tuple."""

    def row(self, at: EmitContext) -> TupleValue | DictValue | OneValue:
        """Return what it makes of the value at a place, which is not None."""
        ...


class WritesTest(Protocol):
    """Inlines a predicate on tuples."""

    def test(self, at: EmitContext) -> TupleValue:
        """Return one item: whether the value at a place, which is not None, passes."""
        ...


class WritesJoin(Protocol):
    """Inlines a joiner whose result is a tuple of items of two tuples."""

    @property
    def width(self) -> int:
        """Number of items of the other value; without one, each is None."""
        ...

    def joined(self, at: EmitContext, other: Callable[[int], str]) -> TupleValue:
        """Return the tuple made of the value at a place, which is not None, and of expressions for items of another."""
        ...


def lacking(at: EmitContext, *others: str) -> str:
    """Return the test whether the value is None, which a row never is, or one of other tests is true."""
    return " or ".join((*(() if at.is_row else (f"{at.value} is None",)), *others)) or "False"


def block(head: str, *lines: str) -> str:
    """Return a compound statement: its head, and the lines within it.

    >>> print(block("if a:", block("if b:", ""), "c = 1"))
    if a:
        if b:
            pass
        c = 1
    """
    body = "\n".join(line for line in lines if line) or "pass"
    return f"{head}\n{indent(body, '    ')}"
