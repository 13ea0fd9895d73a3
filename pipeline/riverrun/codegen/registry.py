"""The writers by the class of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.codegen import aggregations, joins, stateless, tables
from riverrun.generated import NotGenerated

if TYPE_CHECKING:
    from riverrun.codegen.function_writer import Writer

WRITERS: dict[type, Writer] = stateless.WRITERS | aggregations.WRITERS | joins.WRITERS | tables.WRITERS


def writer_of(operator: object) -> Writer:
    """Return the writer of an operator; raise `NotGenerated` if there is none."""
    found = WRITERS.get(type(operator))
    if found is None:
        raise NotGenerated(f"{type(operator).__name__} does not write lines")
    return found
