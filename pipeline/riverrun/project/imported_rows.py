"""Rows of Parquet files for a store: columns are those of frames (`spark.store_rows`), and become keys and values in bytes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from riverrun.decoders import converter, json_decoder
from riverrun.errors import USER_ERRORS, ConfigError, RegistryError, StateError, as_exception
from riverrun.serde.exact_values import in_microseconds
from riverrun.spark.columns import TIME
from riverrun.spark.store_files import PARQUET, check_sums
from riverrun.spark.store_rows import store_columns
from riverrun.state.api import StoreKind
from riverrun.windows import Window, Windowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from riverrun.spark.columns import Columns
    from riverrun.state.api import StoreBuilder

_BATCH = 10_000
_MISFITS = (pa.ArrowException, OverflowError, ValueError)
_MILLIS = 1000
"""Microseconds of a millisecond."""
_NEEDED: dict[StoreKind, tuple[str, ...]] = {
    StoreKind.WINDOW: ("window_start",),
    StoreKind.TIMESTAMPED_WINDOW: ("window_start",),
    StoreKind.SESSION: ("window_start", "window_end"),
    StoreKind.VERSIONED: ("valid_from",),
}
"""Columns of times without which rows have no place in a store."""
_HINT = "riverrun state export writes files of this form; docs/how-to/state.md lists the columns."


def parquet_files(source: Path) -> list[Path]:
    """Return a file, or those of a directory whose names end with `.parquet`."""
    found = sorted(source.glob(f"*{PARQUET}")) if source.is_dir() else [source]
    if not found:
        message = f"{source} has no files that end with {PARQUET}"
        raise ConfigError(message, hint=_HINT)
    for path in found:
        if path.exists() and not path.is_file():
            message = f"{path} is not a regular file"
            raise ConfigError(message, hint=_HINT)
    check_sums(source, found)
    return found


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        message = f"{path} cannot be read as Parquet: {error}"
        raise ConfigError(message, hint=f"Is the file complete? {_HINT}") from error


def check_columns(builder: StoreBuilder, path: Path) -> None:
    """Make sure that a file has the columns of a store."""
    with _opened(path) as file:
        names, kinds = file.schema_arrow.names, file.schema_arrow
    known = {column.name: column.kind for column in store_columns(builder).all}
    missing = [name for name in ("key", "value", *_NEEDED.get(builder.kind, ())) if name not in names]
    unknown = [name for name in names if name not in known]
    if missing or unknown:
        said = " and ".join(
            f"{what} {', '.join(some)}" for what, some in (("lacks", missing), ("has unknown", unknown)) if some
        )
        message = f"{path} does not have the columns of the {builder.kind.value} store {builder.name}: it {said}"
        raise ConfigError(message, hint=f"The store has: {', '.join(known)}. {_HINT}")
    for name in names:
        if known[name] == TIME and not pa.types.is_timestamp(kinds.field(name).type):
            message = f"{path}: column {name} has {kinds.field(name).type}, not timestamps"
            raise ConfigError(message, hint="Times are timestamps of Parquet, in UTC.")


def batches_of_file(builder: StoreBuilder, path: Path) -> Iterator[RowsOfFile]:
    """Yield the rows of a file for a store."""
    columns, done = store_columns(builder), 0
    with _opened(path) as file:
        readers = [
            _Reader.of(columns.key, builder.key_serde, file),
            _Reader.of(columns.value, builder.value_serde, file),
        ]
        for batch in file.iter_batches(_BATCH):
            yield RowsOfFile(batch, readers, path, done)
            done += batch.num_rows


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes the bytes of a serde from the columns of a row."""

    names: tuple[str, ...]
    make: Callable[[Sequence[Any]], bytes]

    @classmethod
    def of(cls, columns: Columns, serde: Any, file: pq.ParquetFile) -> _Reader:
        first = columns.columns[0]
        kind = file.schema_arrow.field(first.name).type
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        if is_bytes and (first.kind != pa.binary() or serde.value_type is None):

            def checked(parts: Sequence[Any]) -> bytes:
                serde.deserialize(parts[0])
                found: bytes = parts[0]
                return found

            return cls((first.name,), checked)
        if serde.plain is not None or serde.value_type is None:
            message = f"Column {first.name} has values that serde {serde.name} shows, but cannot write"
            raise ConfigError(message, hint="Export the store with --raw: columns then hold bytes.")
        is_windowed = get_origin(serde.value_type) is Windowed
        inner = get_args(serde.value_type)[0] if is_windowed else serde.value_type
        if first.is_variant:
            convert: Callable[[Any], Any] = json_decoder(inner).decode
        else:
            convert = _converted(inner, kind)

        def made(parts: Sequence[Any]) -> bytes:
            value = convert(parts[0])
            if is_windowed:
                value = Windowed(value, Window(parts[1], parts[2]))
            data: bytes = serde.serialize(value)
            return data

        return cls(tuple(column.name for column in columns.columns), made)


def _converted(type_: Any, kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that makes a value of a type from a value of a column."""
    convert = converter(type_)
    plain = _unmapped(kind)

    def converted(value: Any) -> Any:
        try:
            return convert(plain(value))
        except msgspec.ValidationError:
            # A column has null where a field is missing, and a type may accept one but not the other.
            return convert(_without_nulls(plain(value)))

    return converted


def _unmapped(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that turns maps into dicts; Arrow reads maps as lists of pairs."""
    if pa.types.is_map(kind):
        item = _unmapped(kind.item_type)
        return lambda pairs: None if pairs is None else {key: item(value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _unmapped(kind.value_type)
        return lambda values: None if values is None else [item(value) for value in values]
    if pa.types.is_struct(kind):
        fields = {part.name: _unmapped(part.type) for part in kind}
        return lambda row: None if row is None else {name: of(row[name]) for name, of in fields.items()}
    return lambda value: value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _values(column: pa.Array) -> list[Any]:
    return in_microseconds(column).to_pylist()  # type: ignore[no-any-return]


def _millis(column: pa.Array) -> list[int | None]:
    """Return times in ms, without rounding."""
    found = _micros(column)
    if any(each is not None and each % _MILLIS for each in found):
        message = "it has microseconds, and bounds of windows and versions are ms: select it by date_trunc('MILLISECOND', ...)"
        raise ValueError(message)
    return _whole_millis(found)


def _floored_millis(column: pa.Array) -> list[int | None]:
    """Return times of updates in ms; queries such as Spark's current_timestamp() return microseconds."""
    if column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return _whole_millis(_micros(column))


def _micros(column: pa.Array) -> list[int | None]:
    return in_microseconds(column).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def _whole_millis(times: list[int | None]) -> list[int | None]:
    return [None if each is None else each // _MILLIS for each in times]


@dataclass(slots=True)
class RowsOfFile:
    """A batch of rows of a file.

    Args:
        batch: The rows.
        readers: Make keys and values.
        path: The file.
        before: Number of rows in the file before these.
    """

    batch: pa.RecordBatch
    readers: list[_Reader]
    path: Path
    before: int
    _columns: dict[str, list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._columns = {}
        for name in self.batch.schema.names:
            column = self.batch.column(name)
            # Times of windows, versions and updates are ms; a value may be a time as well.
            is_own = pa.types.is_timestamp(column.type) and name not in {"key", "value"}
            own = _floored_millis if name == "timestamp" else _millis
            read = own if is_own else _values
            try:
                self._columns[name] = read(column)
            except _MISFITS:
                for number in range(len(column)):
                    try:
                        read(column.slice(number, 1))
                    except _MISFITS as error:
                        raise self.error(number, f"{name} does not fit: {error}") from error
                raise

    def time(self, name: str, number: int) -> int | None:
        """Return a time of a row, ms; None if it has none."""
        found: int | None = self._columns[name][number] if name in self._columns else None
        return found

    def needed(self, name: str, number: int) -> int:
        """Return a time that a row must have, ms."""
        found = self.time(name, number)
        if found is None or found < 0:
            raise self.error(number, f"{name} is {'missing' if found is None else 'before 1970'}")
        return found

    def bytes_at(self, number: int) -> tuple[bytes, bytes]:
        """Return key and value of a row."""
        found = []
        for reader in self.readers:
            parts = [self._columns[name][number] for name in reader.names]
            if parts[0] is None:
                raise self.error(number, f"{reader.names[0]} is null")
            try:
                found.append(reader.make(parts))
            # The row is not to blame for a schema registry that does not answer.
            except RegistryError:
                raise
            # A serde may raise anything.
            except USER_ERRORS as error:
                raise self.error(number, f"{reader.names[0]} does not fit: {as_exception(error)}") from error
        return found[0], found[1]

    def error(self, number: int, why: str, hint: str = _HINT) -> StateError:
        """Make the error about a row; rows count from 1."""
        return StateError(f"Row {self.before + number + 1} of {self.path} cannot be imported: {why}", hint=hint)
