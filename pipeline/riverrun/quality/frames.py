"""Frames of any length: rows are written to files in batches, and read with pandas, or with Spark if memory is short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from riverrun.config.secrets import make_directory
from riverrun.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

TIME = pa.timestamp("us", "UTC")
_INT_DIGITS, _MAX_DIGITS = 19, 38
"""Numbers of digits of integers of 64 bits, and of the longest decimals that Spark has."""
BATCH_ROWS = 20_000
"""Rows in memory at a time."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows in files.

    Args:
        directory: The directory of the files.
        rows: The number of rows.
        columns: Names of the columns, in the order of their first occurrence.
    """

    directory: Path
    rows: int
    columns: tuple[str, ...]

    def pandas(self) -> Any:
        """Return a pandas DataFrame with nullable types: integers stay integers."""
        import pandas as pd

        types = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
        return self.table().to_pandas(types_mapper=types.get)

    def table(self) -> Any:
        """Return a table of Arrow."""
        return _parquet().read_table(self.directory)

    def spark(self, session: Any) -> Any:
        """Return a Spark DataFrame."""
        return session.read.parquet(str(self.directory))


def write_frame(directory: Path, rows: Iterable[Mapping[str, Any]]) -> Frame:
    """Write rows to files, with only one batch of rows in memory.

    Args:
        directory: The directory to write to; it is created.
        rows: The rows by column name; values that a row does not have are missing. A column has the type of its values:
            integers, decimals, floats, booleans, times, bytes or text. Other types, and mixtures, become text.

    Returns:
        The frame.

    Raises:
        StateError: If the files cannot be written because the disk is full.
    """
    try:
        make_directory(directory)
        return _Writer(directory).write(rows)
    except OSError as error:
        message = f"The rows to judge cannot be written to {directory}: {error}"
        raise StateError(message, hint="Is the disk full, or the directory read-only?") from error


class _Writer:
    """Writes batches as they come, and rewrites those whose columns turn out to have other types.

    Args:
        directory: The directory to write to.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._types: dict[str, pa.DataType] = {}
        self._files: list[Path] = []

    def write(self, rows: Iterable[Mapping[str, Any]]) -> Frame:
        batch: list[Mapping[str, Any]] = []
        count = 0
        for row in rows:
            batch.append(row)
            if len(batch) == BATCH_ROWS:
                count += self._write_batch(batch)
                batch = []
        count += self._write_batch(batch) if batch or not count else 0
        self._make_alike()
        return Frame(self._directory, count, tuple(self._types))

    def _write_batch(self, batch: list[Mapping[str, Any]]) -> int:
        names = dict.fromkeys(self._types)
        for row in batch:
            names.update(dict.fromkeys(row))
        arrays = {name: _array([row.get(name) for row in batch]) for name in names}
        for name, each in arrays.items():
            self._types[name] = _common(self._types.get(name, pa.null()), each.type)
        path = self._directory / f"{len(self._files):06}.parquet"
        _parquet().write_table(pa.table(arrays), path)
        self._files.append(path)
        return len(batch)

    def _make_alike(self) -> None:
        """Give all files the columns and types of the whole frame."""
        for name, kind in self._types.items():
            if pa.types.is_null(kind):
                self._types[name] = pa.string()
        schema = pa.schema(list(self._types.items()))
        for path in self._files:
            if not _parquet().read_schema(path).equals(schema):
                table = _parquet().read_table(path)
                _parquet().write_table(pa.table([_cast(table, field) for field in schema], schema=schema), path)


def _parquet() -> Any:
    """Import and return the library's module for files, which loads pandas."""
    from pyarrow import parquet  # noqa: PLC0415 - as it says

    return parquet


def array_compute() -> Any:
    """Import and return the library's module of functions of arrays, which takes a tenth of a second."""
    import pyarrow.compute  # noqa: PLC0415 - as it says

    return pyarrow.compute


def _array(values: list[Any]) -> pa.Array:
    try:
        found = pa.array(values)
    except (pa.ArrowException, OverflowError):
        found = None
    if found is None or not _is_plain(found.type):
        return pa.array([None if value is None else _text(value) for value in values], pa.string())
    return found


def _is_plain(kind: pa.DataType) -> bool:
    kinds = {pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary(), TIME}
    return kind in kinds or (pa.types.is_decimal128(kind) and kind.scale >= 0)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that can represent the values of both types."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if {True} == {pa.types.is_decimal128(each) or each == pa.int64() for each in (one, other)}:
        return _decimal(one, other)
    return pa.string()


def _decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type of numbers with the digits of both, or text if they are too many."""
    digits = [(_INT_DIGITS, 0) if kind == pa.int64() else (kind.precision, kind.scale) for kind in (one, other)]
    scale = max(scale for _, scale in digits)
    precision = scale + max(precision - scale for precision, scale in digits)
    return pa.decimal128(precision, scale) if precision <= _MAX_DIGITS else pa.string()


def _cast(table: pa.Table, field: pa.Field) -> Any:
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    column = table.column(field.name)
    if pa.types.is_string(field.type) and not (pa.types.is_string(column.type) or pa.types.is_null(column.type)):
        return pa.array([None if value is None else _text(value) for value in column.to_pylist()], pa.string())
    return column.cast(field.type, safe=False)


def _text(value: Any) -> str:
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
