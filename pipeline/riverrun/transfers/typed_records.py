"""Columns of exported records, made by the serdes with which an application reads or writes their topic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from riverrun.spark.columns import (
    KEY,
    TIME,
    Columns,
    FrameColumn,
    builtin,
    columns_of,
    exact_reader,
    field_columns,
    spark_schema,
)
from riverrun.transfers.jdbc import TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from riverrun.serde.api import Serde

_PLACE = (
    FrameColumn("_timestamp", TIME),
    FrameColumn("_partition", pa.int32()),
    FrameColumn("_offset", pa.int64()),
)
_DELETED = FrameColumn(TOMBSTONE, pa.int32())


@dataclass(frozen=True, slots=True)
class TypedRecords:
    """Makes rows of records: the fields of values, or the value, then key and windows, time and place.

    Args:
        marks_deletions: Whether a column says which records have no value.
    """

    key_serde: Serde[Any]
    value_serde: Serde[Any]
    marks_deletions: bool

    def __reduce__(self) -> tuple[Callable[[bytes], TypedRecords], tuple[bytes]]:
        """Travel to executors with the classes of scripts, of which msgspec keeps what cannot be pickled."""
        from riverrun.config.by_value import dumps  # noqa: PLC0415 - loads cloudpickle

        return _loaded, (dumps((self.key_serde, self.value_serde, self.marks_deletions)),)

    @property
    def _key(self) -> Columns:
        found = columns_of(KEY, self.key_serde)
        return replace(found, columns=tuple(replace(column, name=f"_{column.name}") for column in found.columns))

    @property
    def _value(self) -> Columns:
        fields = field_columns(self.value_serde.value_type)
        if not fields:
            return columns_of("value", self.value_serde)
        read = exact_reader(self.value_serde)
        return Columns(fields, lambda data: builtin(read(data)), "value")

    @property
    def _columns(self) -> tuple[FrameColumn, ...]:
        deleted = (_DELETED,) if self.marks_deletions else ()
        return (*self._value.columns, *self._key.columns, *_PLACE, *deleted)

    @property
    def schema(self) -> Any:
        """Return Spark's schema of the rows."""
        return spark_schema(self._columns)

    @property
    def binary(self) -> tuple[str, ...]:
        """Return the columns that hold bytes."""
        return tuple(column.name for column in self._columns if pa.types.is_binary(column.kind))

    @property
    def nested(self) -> tuple[str, ...]:
        """Return the columns that hold lists, objects or maps."""
        return tuple(column.name for column in self._columns if pa.types.is_nested(column.kind))

    def rows(
        self, batches: Iterator[pa.RecordBatch], place: Callable[[pa.RecordBatch, int], dict[str, str | int]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows for batches of serialized records; `place` returns the place of a record, for messages."""
        value, key, names = self._value, self._key, [column.name for column in self._columns]
        for batch in batches:
            values, keys = batch["value"].to_pylist(), batch["_key"].to_pylist()

            def place_of(number: int, batch: pa.RecordBatch = batch) -> dict[str, str | int]:
                return place(batch, number)

            arrays = [*value.arrays(values, place_of), *key.arrays(keys, place_of)]
            arrays += [batch[column.name] for column in _PLACE]
            if self.marks_deletions:
                arrays.append(pa.array([int(each is None) for each in values], _DELETED.kind))
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def _loaded(code: bytes) -> TypedRecords:
    import cloudpickle  # noqa: PLC0415 - executors have it

    key, value, marks_deletions = cloudpickle.loads(code)
    return TypedRecords(key, value, marks_deletions=marks_deletions)
