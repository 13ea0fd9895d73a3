"""The protocol by which an operator is written as lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.codegen.place import EmitContext, Folding


def whole_value(_operator: Any) -> None:
    """Return that lines need the whole value."""


def all_records(_operator: Any, _folding: Folding) -> bool:
    """Return that keys and values matter."""
    return True


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the operators of a class.

    Args:
        lines: Returns the lines that process a record; raises `NotGenerated` if the operator has to be called, here or
            anywhere.
        columns_read: Returns the columns that the lines read; None if they need the whole value.
        passes_values: Whether the operators forward the values that they get.
        reads_records: Returns whether keys and values matter to the lines, rather than only the number of records.
    """

    lines: Callable[[Any, EmitContext], str]
    columns_read: Callable[[Any], tuple[str, ...] | None] = whole_value
    passes_values: bool = True
    reads_records: Callable[[Any, Folding], bool] = all_records
