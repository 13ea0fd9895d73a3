"""The step of an aggregation: as a function, and as lines of a generated function that need no call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable


Named: TypeAlias = "Callable[[str, Any], str]"
"""Names an object in a generated function, with a prefix for each operator; returns that name."""


class FoldCode(Protocol):
    """The functions of an aggregation as expressions."""

    @property
    def kind(self) -> type:
        """The class of all aggregates; none of them is None."""
        ...

    @property
    def reads_records(self) -> bool:
        """True if the result depends on keys or values."""
        ...

    def expressions(self, named: Named, item: Callable[[int], str]) -> tuple[str, str]:
        """Return two expressions: the aggregate of a key's first value, and `aggregate` with a further value."""
        ...


@dataclass(frozen=True, slots=True)
class Constantly:
    """Expressions that do not depend on the record, with the class of both (`FoldCode`)."""

    first: str
    add: str
    kind: type
    reads_records: ClassVar[bool] = False

    def expressions(self, _named: Named, _item: Callable[[int], str]) -> tuple[str, str]:
        """Return both expressions."""
        return self.first, self.add


class Fold(Protocol):
    """The functions of an aggregation, for a store."""

    @property
    def add(self) -> Callable[[Any, Any, Any], Any]:
        """`(key, value, aggregate) -> aggregate`; None deletes."""
        ...

    @property
    def code(self) -> FoldCode | None:
        """Both functions as expressions; None if they have to be called."""
        ...

    def first(self, key: Any, value: Any) -> Any:
        """Return the aggregate of a key's first value."""
        ...


def step(fold: Fold, key: Any, value: Any, timestamp: int, aggregate: Any, time: int) -> tuple[Any, int]:
    """Add a value to an aggregate, None if there is none; return the new one, and the highest time so far, ms."""
    if aggregate is None:
        return fold.first(key, value), timestamp
    return fold.add(key, value, aggregate), max(timestamp, time)


STEP = """\
if aggregate is None:
    aggregate, time = {first}, timestamp
else:
{decoded}    aggregate = {add}
    if timestamp > time:
        time = timestamp"""
"""`step` as lines; `{decoded}` stands for lines that decode an aggregate kept as bytes."""
