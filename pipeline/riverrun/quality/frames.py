"""Frames of any length: rows are written to files in batches, and read with pandas, or with Spark if memory is short."""

from __future__ import annotations

import decimal
import fcntl
import json
import re
import shutil
import uuid
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotation
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from riverrun.config.secrets import make_directory
from riverrun.errors import StateError
from riverrun.extras import require_extra
from riverrun.foreign_files import make_directories, store_at
from riverrun.hosting.process import SystemClock
from riverrun.quality.sharing import make_shared_directory, share_with_group
from riverrun.serde.serdes import without_odd_numbers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import IO

TIME = pa.timestamp("us", "UTC")
# Digits of 64-bit integers, and of the longest decimals that Spark has.
_INT_DIGITS, _MAX_DIGITS = 19, 38
# Floats have each whole number up to this one.
_MOST_EXACT = 2**53
# Whole numbers of frames are below it.
_MOST = 2**63
# Decimals with larger exponents keep them in their texts.
_MOST_ZEROS = 1000
# `bool` comes first, as it is one of the integers of Python.
_KINDS = bool, int, float, decimal.Decimal, datetime, str, bytes
BATCH_ROWS = 20_000
# The lowest 1,024 of all 64-bit hashes estimate the number of distinct values with an error of about 3 %.
_HASHES, _ALL_HASHES = 1024, 2.0**64
# Columns with statistics, so that records of checks stay small. These records list all that is expected anyway.
_MOST_COLUMNS = 100
# Directories that do not have the name of a check's rows are not Riverrun's, and are never deleted.
_ROWS_OF_CHECK = re.compile(r"\d{8}T\d{6}\.\d{6}Z-.+")


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column.

    Args:
        nulls: Number of rows without a value.
        distinct: Number of distinct values, exact up to 1,023, else an estimate.
        lowest: The lowest number; None, like the two below, for columns without numbers.
        nans: Number of rows with NaN, which count as rows without a value.
    """

    nulls: int = 0
    distinct: int = 0
    lowest: float | None = None
    highest: float | None = None
    mean: float | None = None
    nans: int = 0

    def __str__(self) -> str:
        """Describe it on one line.

        >>> print(ColumnStatistics(2, 3, 1, 1200.5, 4.25)), print(ColumnStatistics(0, 1))
        1 to 1,200.5, mean 4.25; 3 distinct, 2 missing
        1 distinct, 0 missing
        (None, None)
        """
        told = f"{self.distinct:,} distinct, {self.nulls:,} missing"
        if self.lowest is None or self.highest is None or self.mean is None:
            return told
        return f"{self.lowest:,.10g} to {self.highest:,.10g}, mean {self.mean:,.6g}; {told}"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a frame, and by name of the columns that are judged, with others up to 100 columns."""

    rows: int
    columns: Mapping[str, ColumnStatistics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows in the files of a directory; columns are in the order of their first occurrence."""

    directory: Path
    rows: int
    columns: tuple[str, ...]

    def pandas(self, columns: Collection[str] | None = None) -> Any:
        """Return a pandas DataFrame of some columns; defaults to all."""
        import pandas as pd

        # By default, pandas makes floats of integers with missing values.
        types = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
        chosen = None if columns is None else [each for each in self.columns if each in columns]
        return _parquet().read_table(self.directory, columns=chosen).to_pandas(types_mapper=types.get)

    def kinds(self) -> dict[str, str]:
        """Return the columns with the names of their Arrow types."""
        schema = _parquet().read_schema(next(iter(sorted(self.directory.glob("*.parquet")))))
        return {field.name: str(field.type) for field in schema}

    def table(self) -> Any:
        return _parquet().read_table(self.directory)

    def spark(self, session: Any) -> Any:
        from pyspark.sql import functions

        found = session.read.parquet(str(self.directory))
        # NaN is a missing value in pandas, and a number in Spark: a verdict must not depend on which of them judges.
        for name, kind in found.dtypes:
            if kind == "double":
                column = functions.col(f"`{name}`")
                found = found.withColumn(name, functions.when(~functions.isnan(column), column))
        return found

    def statistics(self, judged: Iterable[str] = ()) -> Statistics:
        """Return statistics of its rows, with only one file of them in memory."""
        wanted = set(judged)
        first = [name for name in self.columns if name in wanted]
        others = [name for name in self.columns if name not in wanted]
        columns = {name: _Counted() for name in first + others[: max(0, _MOST_COLUMNS - len(first))]}
        for path in sorted(self.directory.glob("*.parquet")) if self.rows else ():
            table = _parquet().read_table(path)
            for name, counted in columns.items():
                counted.add(table.column(name))
        return Statistics(self.rows, {name: counted.statistics() for name, counted in columns.items()})


def write_frame(directory: Path, rows: Iterable[Mapping[str, Any]]) -> Frame:
    """Write rows to files, with only one batch of rows in memory.

    A column has the type of its values: integers, decimals, floats, booleans, times, bytes or text. Other types, and mixtures,
    become text. Values that a row does not have are missing.
    """
    try:
        make_directory(directory)
        return _Writer(directory).write(rows)
    except OSError as error:
        raise _unwritable(directory, error) from error


@contextmanager
def passing_frame(parent: Path, rows: Iterable[Mapping[str, Any]]) -> Iterator[Frame]:
    """Write rows to a directory of this check alone, below one that other processes share, and delete it afterwards."""
    with ExitStack() as lock:
        try:
            directory = _new_directory(parent, lock)
        except OSError as error:
            raise _unwritable(parent, error) from error
        try:
            yield write_frame(directory, rows)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _new_directory(parent: Path, lock: ExitStack) -> Path:
    """Create a directory and lock it, after deleting those that processes have left which died."""
    make_shared_directory(parent)
    directory = parent / uuid.uuid4().hex
    with ExitStack() as shared:
        # Not all file systems have locks, and another user may own this one: then nothing is deleted.
        with suppress(OSError):
            shared.enter_context(_locked(parent, fcntl.LOCK_EX))
            for left in parent.iterdir():
                with suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(left)
        make_shared_directory(directory)
        with suppress(OSError):
            lock.enter_context(_locked(directory, fcntl.LOCK_EX))
    return directory


def _locked(directory: Path, how: int) -> IO[str]:
    """Return a file whose lock lasts until it is closed, or its process ends."""
    path = directory / ".lock"
    file = path.open("w")
    try:
        share_with_group(path)
        fcntl.flock(file, how)
    except OSError:
        file.close()
        raise
    return file


def _unwritable(directory: Path, error: OSError) -> StateError:
    message = f"The rows to judge cannot be written to {directory}: {error}"
    return StateError(message, hint="Is the disk full, or the directory read-only?")


def write_lines(url: str, name: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows as JSON lines to a file below a directory or URL, and return its path or URL.

    Raises whatever the file store raises: each kind has errors of its own.
    """
    place, lines = f"{url}/{name}", b"".join(msgspec.json.encode(_plain_row(row)) + b"\n" for row in rows)
    directory = place.rpartition("/")[0]
    if "://" not in url:
        make_shared_directory(Path(directory))
        Path(place).write_bytes(lines)
        share_with_group(Path(place))
        return place
    require_extra("snapshots")
    files, root = store_at(directory)
    make_directories(files, root)
    with files.open(f"{root}/{place.rpartition('/')[2]}", "wb") as file:
        file.write(lines)
    return place


def rows_of_check(check: str) -> str:
    """Return the name of a directory for a check's rows."""
    # The time comes first, so that names sort by age.
    return f"{datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC):%Y%m%dT%H%M%S.%fZ}-{check}"


def keep_newest(url: str, count: int) -> None:
    """Delete the rows of all checks but the newest ones."""
    if "://" not in url:
        for name in _older(count, [each.name for each in Path(url).iterdir()]):
            # Another check may delete it at the same time.
            shutil.rmtree(Path(url, name), ignore_errors=True)
        return
    files, root = store_at(url)
    # fsspec caches listings, and other processes write there as well.
    files.invalidate_cache(root)
    for name in _older(count, [each.rstrip("/").rpartition("/")[2] for each in files.ls(root, detail=False)]):
        files.rm(f"{root}/{name}", recursive=True)


def _older(count: int, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if _ROWS_OF_CHECK.fullmatch(name))[:-count]


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of pandas with built-in values."""
    import pandas as pd

    found: dict[str, Any] = {}
    for name, value in row.items():
        if value is pd.NaT or value is pd.NA:
            found[name] = None
        elif isinstance(value, pd.Timestamp):
            found[name] = value.to_pydatetime()
        else:
            found[name] = value.item() if hasattr(value, "item") else value
    return found


class _Writer:
    """Writes batches as they come, and rewrites those whose columns turn out to have other types."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._types: dict[str, pa.DataType] = {}
        self._largest: dict[str, int] = {}
        self._files: list[Path] = []

    def write(self, rows: Iterable[Mapping[str, Any]]) -> Frame:
        batch: list[Mapping[str, Any]] = []
        count = 0
        for row in rows:
            batch.append(row)
            if len(batch) == BATCH_ROWS:
                count += self._write_batch(batch)
                batch = []
        # An empty frame has a file as well, for its readers.
        count += self._write_batch(batch) if batch or not count else 0
        self._make_alike()
        return Frame(self._directory, count, tuple(self._types))

    def _write_batch(self, batch: list[Mapping[str, Any]]) -> int:
        names = dict.fromkeys(self._types)
        for row in batch:
            names.update(dict.fromkeys(row))
        arrays = {_encodable(name): _array([row.get(name) for row in batch]) for name in names}
        for name, each in arrays.items():
            if pa.types.is_int64(each.type):
                self._largest[name] = max(self._largest.get(name, 0), _largest(each))
            self._types[name] = _common(self._types.get(name, pa.null()), each.type, self._largest.get(name, 0))
        path = self._directory / f"{len(self._files):06}.parquet"
        _parquet().write_table(pa.table(arrays), path)
        self._files.append(path)
        return len(batch)

    def _make_alike(self) -> None:
        """Give all files the columns and types of the whole frame."""
        # Engines have no common type of columns without any value.
        for name, kind in self._types.items():
            if pa.types.is_null(kind):
                self._types[name] = pa.string()
        schema = pa.schema(list(self._types.items()))
        for path in self._files:
            if not _parquet().read_schema(path).equals(schema):
                table = _parquet().read_table(path)
                _parquet().write_table(pa.table([_cast(table, field) for field in schema], schema=schema), path)


class _Counted:
    """Counts the values of a column, file by file."""

    def __init__(self) -> None:
        self._nulls = self._nans = self._numbers = 0
        self._lowest: float | None = None
        self._highest: float | None = None
        self._sum = 0.0
        self._hashes: Any = None

    def add(self, values: pa.ChunkedArray) -> None:
        compute = array_compute()
        present = values.filter(compute.invert(compute.is_null(values, nan_is_null=True)))
        self._nulls += len(values) - len(present)
        self._nans += len(values) - len(present) - values.null_count
        if not len(present):
            return
        self._add_hashes(present.unique())
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
            numbers = present.cast(pa.float64(), safe=False)
            found = compute.min_max(numbers).as_py()
            self._lowest = found["min"] if self._lowest is None else min(self._lowest, found["min"])
            self._highest = found["max"] if self._highest is None else max(self._highest, found["max"])
            self._sum += compute.sum(numbers).as_py()
            self._numbers += len(present)

    def _add_hashes(self, values: pa.Array) -> None:
        """Keep the lowest hashes of all values: their density shows how many distinct values there are."""
        import numpy as np  # noqa: PLC0415 - pandas loads it
        import pandas as pd

        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            values = values.cast(pa.binary() if pa.types.is_binary(values.type) else pa.string())
        hashes = pd.util.hash_array(values.to_numpy(zero_copy_only=False), categorize=False)
        known = hashes if self._hashes is None else np.concatenate([self._hashes, hashes])
        self._hashes = np.unique(known)[:_HASHES]

    def statistics(self) -> ColumnStatistics:
        mean = self._sum / self._numbers if self._numbers else None
        return ColumnStatistics(self._nulls, self._distinct(), self._lowest, self._highest, mean, self._nans)

    def _distinct(self) -> int:
        if self._hashes is None:
            return 0
        # Fewer hashes than are kept: all of them were kept, so this is the exact number.
        if len(self._hashes) < _HASHES:
            return len(self._hashes)
        # Hashes are spread evenly: the kept share of all values is the share of the hash range below the highest kept one.
        return round((_HASHES - 1) / (float(self._hashes[-1]) / _ALL_HASHES))


def _parquet() -> Any:
    """Import and return the library's module for files, which loads pandas."""
    from pyarrow import parquet  # noqa: PLC0415 - as it says

    return parquet


def array_compute() -> Any:
    """Import and return the library's module of functions of arrays, which takes a tenth of a second."""
    import pyarrow.compute  # noqa: PLC0415 - as it says

    return pyarrow.compute


def _array(values: list[Any]) -> pa.Array:
    """Return values with their type, or as text if they have no common one."""
    kinds = {_kind(each) for each in {*map(type, values)}} - {type(None)}
    try:
        found = _of_one_type(values, kinds)
    # Texts that no encoding has are a `ValueError`, and infinite decimals a `TypeError`.
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        found = None
    return found if found is not None and _is_plain(found.type) else _texts(values)


def _kind(kind: type) -> type:
    return next((each for each in _KINDS if issubclass(kind, each)), kind)


def _of_one_type(values: list[Any], kinds: set[type]) -> pa.Array | None:
    # Left alone, the library makes times of numbers, numbers of booleans, and bytes of texts.
    if kinds == {datetime}:
        has_zones = all(each is None or each.utcoffset() is not None for each in values)
        return (
            pa.array([None if each is None else each.astimezone(UTC) for each in values], TIME) if has_zones else None
        )
    if kinds == {int, decimal.Decimal}:
        is_short = all(-_MOST <= each < _MOST for each in values if isinstance(each, int))
        return pa.array([None if each is None else decimal.Decimal(each) for each in values]) if is_short else None
    # It refuses whole numbers that a float would round.
    return pa.array(values) if len(kinds) <= 1 or kinds == {int, float} else None


def _largest(values: pa.Array) -> int:
    """Return the largest absolute value of whole numbers."""
    found = array_compute().min_max(values).as_py()
    return max(-(found["min"] or 0), found["max"] or 0)


def _is_plain(kind: pa.DataType) -> bool:
    kinds = {pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary(), TIME}
    return kind in kinds or (pa.types.is_decimal128(kind) and kind.scale >= 0)


def _common(one: pa.DataType, other: pa.DataType, largest: int) -> pa.DataType:
    """Return the type that can represent the values of both types; `largest` is the largest whole number among them."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64() if largest <= _MOST_EXACT else pa.string()
    if {True} == {pa.types.is_decimal128(each) or each == pa.int64() for each in (one, other)}:
        return _decimal(one, other, len(str(largest)))
    return pa.string()


def _decimal(one: pa.DataType, other: pa.DataType, whole_digits: int) -> pa.DataType:
    """Return the type of numbers with the digits of both, or text if they are too many."""
    digits = [(whole_digits, 0) if kind == pa.int64() else (kind.precision, kind.scale) for kind in (one, other)]
    scale = max(scale for _, scale in digits)
    precision = scale + max(precision - scale for precision, scale in digits)
    return pa.decimal128(precision, scale) if precision <= _MAX_DIGITS else pa.string()


def _cast(table: pa.Table, field: pa.Field) -> Any:
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    column = table.column(field.name)
    if pa.types.is_string(field.type) and not (pa.types.is_string(column.type) or pa.types.is_null(column.type)):
        return _texts(column.to_pylist())
    if pa.types.is_decimal128(field.type) and pa.types.is_int64(column.type):
        # Directly, it would need room for the digits of the longest whole number, which need not be there.
        column = column.cast(pa.decimal128(_INT_DIGITS, 0))
    return column.cast(field.type, safe=False)


def _texts(values: list[Any]) -> pa.Array:
    return pa.array([None if value is None else text_of(value) for value in values], pa.string())


def text_of(value: Any) -> str:
    """Return the text of a value, which is one for all types that its batch may have had."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MOST_EXACT:
        value = int(value)
    if isinstance(value, decimal.Decimal):
        return _digits(value)
    # A time at the end of all times may have no form in UTC.
    if isinstance(value, datetime) and value.utcoffset() is not None:
        with suppress(OverflowError):
            value = value.astimezone(UTC)
    plain = without_odd_numbers(msgspec.to_builtins(value))
    if isinstance(plain, str):
        return _encodable(plain)
    try:
        return msgspec.json.encode(plain).decode()
    except UnicodeEncodeError:
        return json.dumps(plain, separators=(",", ":"))


def _digits(number: decimal.Decimal) -> str:
    """Return all digits of a number, or an exponent if they would be mostly zeros that fill the memory."""
    if not number:
        return "0"
    if abs(number.adjusted()) > _MOST_ZEROS:
        return str(number)
    digits = f"{number:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _encodable(text: str) -> str:
    """Return a text without halves of characters, which Python's texts may have, and files may not."""
    return text.encode(errors="backslashreplace").decode()
