"""INSERT INTO ... VALUES: converts a row of constants to a record of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.sql.compiling.coercion import TIMES, is_widening
from riverrun.sql.compiling.expressions import Compiler, function_of, start_of
from riverrun.sql.compiling.operators import cast
from riverrun.sql.errors import SqlError, nearest
from riverrun.sql.types import Primitive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlglot import exp

    from riverrun.sql.answering.commands import InsertValues
    from riverrun.sql.catalog import Catalog, Source
    from riverrun.sql.types import Columns, SqlType


@dataclass(frozen=True, slots=True)
class InsertedRow:
    """A row for the topic of a source.

    Args:
        source: The source.
        key: The values of the key's columns; None without a key.
        value: The other values.
        timestamp: Event time, ms; None for the present.
    """

    source: Source
    key: tuple[Any, ...] | None
    value: tuple[Any, ...] | None
    timestamp: int | None


def inserted_row(command: InsertValues, catalog: Catalog) -> InsertedRow:
    """Return the row of a command.

    Raises:
        SqlError: If a name does not exist, a value has a wrong type, or the source takes no values.
    """
    source = catalog.find(command.name, command.start)
    _check(source, command.start)
    layout = source.layout
    columns: dict[str, SqlType] = dict((*layout.key, *layout.value))
    names = [name for name, _ in command.columns] or list(columns)
    if len(names) != len(command.values):
        message = f"Expected a value for each column. Expected: {', '.join(names)}. Got {len(command.values)} values"
        raise SqlError(message, command.start)
    for name, start in command.columns:
        if name not in {*columns, "ROWTIME"}:
            message = f"Column '{name}' cannot be resolved."
            raise SqlError(message, start, hint=nearest(name, columns))
    types = {**columns, "ROWTIME": Primitive.BIGINT}
    given = {name: _value(node, name, types[name]) for name, node in zip(names, command.values, strict=True)}
    key = _part(layout.key, given)
    if source.is_table and (key is None or None in key):
        message = f"A value for the primary key of table {source.name} is needed"
        raise SqlError(message, command.start)
    value = _part(layout.value, given)
    stands_alone = not layout.wrapped or layout.value_format == "KAFKA"
    return InsertedRow(source, key, None if stands_alone and value == (None,) else value, given.get("ROWTIME"))


def _check(source: Source, start: int) -> None:
    kind = "table" if source.is_table else "stream"
    problem = None
    if source.is_read_only:
        problem = f"Cannot insert values into read-only {kind}: {source.name}"
    elif source.layout.window is not None:
        problem = f"Cannot insert values into windowed {kind}: {source.name}"
    elif source.layout.headers:
        problem = f"Cannot insert into {source.name} because it has header columns"
    if problem:
        raise SqlError(problem, start)


def _part(columns: Columns, given: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the values of columns; None if there are no columns, or a key has no values at all."""
    return tuple(given.get(name) for name, _ in columns) if columns else None


def _value(node: exp.Expr, name: str, type_: SqlType) -> Any:
    compiler = Compiler(())
    code = compiler.code(node)
    if code.type is None:
        return None
    convert = cast(code.type, type_)
    is_text_of_time = code.type is Primitive.STRING and type_ in TIMES
    if convert is None or not (code.type == type_ or is_widening(code.type, type_) or is_text_of_time):
        message = f"Expected type {type_} for field {name} but got {code.type}"
        raise SqlError(message, start_of(node))
    (value,) = function_of(compiler, [code])(())
    try:
        return convert(value)
    except (ValueError, ArithmeticError) as error:
        message = f"{name} cannot be {value!r}: {error}"
        raise SqlError(message, start_of(node)) from None
