"""Rows of the sources of a query: all columns at once, so that expressions find them by their places."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.sql.expressions import Field
from pipeline.sql.types import Primitive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pipeline.dsl.kstream import KStream
    from pipeline.dsl.ktable import KTable
    from pipeline.serde.api import Serde
    from pipeline.sql.catalog import Source


@dataclass(frozen=True, slots=True)
class Relation:
    """A stream or table of rows. Keys are tuples of the values of the key's columns, windowed or not.

    Of joined sources, `viable` are the places of columns that hold the key: any of them may stand for it.
    """

    name: str
    fields: tuple[Field, ...]
    key_serde: Serde[Any]
    window: str | None = None
    window_ms: int | None = None
    stream: KStream[Any, Any] | None = None
    table: KTable[Any, Any] | None = None
    is_joined: bool = False
    viable: tuple[int, ...] = ()

    @classmethod
    def of(cls, source: Source, alias: str, keys: Serde[Any]) -> Relation:
        """Return a relation of a source's columns, without rows yet."""
        layout = source.layout
        values = [Field(name, type_, alias) for name, type_ in layout.value]
        fields = (*values, *(Field(name, type_, alias, is_key=True, is_source_key=True) for name, type_ in layout.key))
        return cls(alias, fields, keys, layout.window, layout.window_ms)

    @property
    def key(self) -> tuple[int, ...]:
        """Places of the key's columns."""
        return tuple(number for number, each in enumerate(self.fields) if each.is_key)

    def with_stream(self, stream: KStream[Any, Any], used: Collection[str]) -> Relation:
        """Return the relation with the rows of a stream, and the pseudo columns that are used."""
        width = len(self.key)
        pseudo = ["WINDOWSTART", "WINDOWEND"] if self.window else []
        fields = (*self.fields, *(self._pseudo(name) for name in pseudo))
        rows = stream.map_values(_row_of(width, is_windowed=self.window is not None))
        places = [name for name in ("ROWTIME", "ROWPARTITION", "ROWOFFSET") if name in used]
        if places:
            fields = (*fields, *(self._pseudo(name) for name in places))
            rows = rows.process_values(_supplier(places))
        return replace(self, fields=fields, stream=rows)

    def with_table(self, table: KTable[Any, Any]) -> Relation:
        """Return the relation with the rows of a table."""
        pseudo = ["WINDOWSTART", "WINDOWEND"] if self.window else []
        fields = (*self.fields, *(self._pseudo(name) for name in pseudo))
        rows = table.map_values(_row_of(len(self.key), is_windowed=self.window is not None))
        return replace(self, fields=fields, table=rows)

    def _pseudo(self, name: str) -> Field:
        type_ = Primitive.INTEGER if name == "ROWPARTITION" else Primitive.BIGINT
        return Field(name, type_, self.name, is_pseudo=True)


def _row_of(width: int, *, is_windowed: bool) -> Callable[[Any, Any], Any]:
    missing = (None,) * width

    def plain(key: Any, row: Any) -> Any:
        return None if row is None else (*row, *(missing if key is None else key))

    def windows(key: Any, row: Any) -> Any:
        return None if row is None else (*row, *key.key, key.window.start, key.window.end)

    return windows if is_windowed else plain


class _Places:
    """Adds the time and the place of records to their rows."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._context: Any = None

    def init(self, context: Any) -> None:
        """Keep the context."""
        self._context = context

    def process(self, record: Any) -> None:
        """Send the row on with what it lacks."""
        if record.value is not None:
            metadata = self._context.record_metadata
            values = {
                "ROWTIME": record.timestamp,
                "ROWPARTITION": metadata and metadata.partition,
                "ROWOFFSET": metadata and metadata.offset,
            }
            record = record.with_value((*record.value, *(values[name] for name in self._names)))
        self._context.forward(record)

    def close(self) -> None:
        """Nothing is held."""


def _supplier(names: list[str]) -> Callable[[], _Places]:
    return lambda: _Places(names)


class _Timed:
    """Sets the event time of records to that of a column."""

    def __init__(self, place: int, values: int) -> None:
        self._place = place
        self._values = values
        self._context: Any = None

    def init(self, context: Any) -> None:
        """Keep the context."""
        self._context = context

    def process(self, record: Any) -> None:
        """Send the record on at its new time; one without a time is dropped."""
        if record.value is None:
            self._context.forward(record)
            return
        row = record.value
        time_ms = row[self._place] if self._place < self._values else record.key[self._place - self._values]
        if time_ms is not None and time_ms >= 0:
            self._context.forward(record.with_timestamp(time_ms))

    def close(self) -> None:
        """Nothing is held."""


def timed_stream(stream: KStream[Any, Any], place: int, values: int) -> KStream[Any, Any]:
    """Return a stream whose records have the time of a column.

    Args:
        stream: Rows of values.
        place: Of the column, in values and then keys.
        values: Number of columns of values.
    """
    return stream.process_values(lambda: _Timed(place, values))
