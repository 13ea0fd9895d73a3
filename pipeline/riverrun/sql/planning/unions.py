"""Rows of queries as rows with the columns of others: for UNION ALL and INSERT INTO."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from riverrun.sql.coercion import IncompatibleTypes, is_widening, united
from riverrun.sql.operators import cast, value_or_null
from riverrun.sql.statements import SqlError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from riverrun.dsl.kstream import KStream
    from riverrun.sql.catalog import RecordLayout
    from riverrun.sql.planning.queries import QueryResult
    from riverrun.sql.statements import Query
    from riverrun.sql.types import Columns, SqlType


def united_rows(query: Query, results: Sequence[QueryResult]) -> QueryResult:
    """Return the rows of all SELECTs in one stream; columns correspond by their places, and have the first names."""
    first = results[0]
    for select, result in zip(query.selects, results, strict=True):
        if result.is_table:
            message = "UNION ALL takes streams, and this SELECT makes a table"
            hint = "Unite the streams first, and make a table of them in a later statement."
            raise SqlError(message, select.source.start, hint=hint)
        if len(result.shown) != len(first.shown):
            message = f"The SELECTs of UNION ALL have {len(first.shown)} and {len(result.shown)} columns"
            raise SqlError(message, select.items[0].start, hint="Each has a column for each column of the first.")
        if _key_of(result) != _key_of(first):
            message = f"The SELECTs of UNION ALL have other keys: {_key_text(first)}, and {_key_text(result)}"
            hint = "Keys stand in the same columns, with the same types and windows. PARTITION BY makes other keys."
            raise SqlError(message, select.items[0].start, hint=hint)
    types = [_united(query, results, place) for place in range(len(first.value))]
    value = tuple((name, type_) for (name, _), type_ in zip(first.value, types, strict=True))
    streams = [_converted(each, value) for each in results]
    return replace(first, stream=reduce(lambda one, other: one.merge(other), streams), value=value)


def _key_of(result: QueryResult) -> Any:
    """Return the types of the key's columns with their places in the projection, and the windows."""
    columns = [(result.shown.index(name), type_) for name, type_ in result.key]
    return columns, result.window, result.window_size


def _key_text(result: QueryResult) -> str:
    return f"{result.window or ''}{columns_text(result.key)}"


def _united(query: Query, results: Sequence[QueryResult], place: int) -> SqlType:
    """Return the type of a column of the value that has the values of all SELECTs."""
    found = results[0].value[place][1]
    for select, result in zip(query.selects, results, strict=True):
        name, type_ = result.value[place]
        try:
            found = united(found, type_)
        except IncompatibleTypes as error:
            message = f"Column {results[0].value[place][0]} of UNION ALL has values of incompatible types: {error}"
            # Columns of a star have no place in the text.
            has_star = any(item.expression is None for item in select.items)
            item = select.items[0 if has_star else result.shown.index(name)]
            raise SqlError(message, item.start, hint="CAST(... AS ...) makes them of one type.") from None
    return found


def widened_to(result: QueryResult, layout: RecordLayout) -> QueryResult | None:
    """Return the rows of a result with the types of a sink's columns; None if they do not fit."""
    names = [[name for name, _ in columns] for columns in (result.value, layout.value)]
    if result.key != layout.key or names[0] != names[1]:
        return None
    pairs = zip(result.value, layout.value, strict=True)
    if not all(is_widening(given, wanted) for (_, given), (_, wanted) in pairs):
        return None
    return replace(result, stream=_converted(result, layout.value), value=layout.value)


def _converted(result: QueryResult, value: Columns) -> KStream[Any, Any]:
    """Return a stream of rows whose columns have other types."""
    types = [(given, wanted) for (_, given), (_, wanted) in zip(result.value, value, strict=True)]
    if all(given == wanted for given, wanted in types):
        return result.stream
    casts = [cast(given, wanted) for given, wanted in types]
    # Types that widen or unite have casts.
    return result.stream.map_values(_casting(tuple(each for each in casts if each is not None)))


def _casting(casts: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    """Return a function that casts the values of a row; values that the new type cannot hold become NULL."""

    def cast_row(row: Any) -> Any:
        if row is None:
            return None
        return tuple(value_or_null(partial(convert, value)) for convert, value in zip(casts, row, strict=True))

    return cast_row


def columns_text(*columns: Any) -> str:
    return "[" + ", ".join(f"`{name}` {type_}" for part in columns for name, type_ in part) + "]"
