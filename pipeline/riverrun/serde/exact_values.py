"""One rule for values that JSON, columns or Python lack: NaN, infinity, nanoseconds, and times outside the years 1 to 9999.

They are errors, to which callers add the column and the place of the record. They never become null, and are never rounded.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.decoders import converter, plain_json
from riverrun.serde.serdes import refuse_odd_numbers

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last ms of the years 1 to 9999: neither Python nor Spark's functions have other times."""
_moment = converter(dt.datetime)
_NANOS = re.compile(r"(:\d\d|T[\dHM]*\d)[.,]\d{6}\d*[1-9]")
_LONG_FRACTION = re.compile(rb"(?=[\d.]{17})\d+\.\d|\d[eE]")
"""Fractions that doubles may not have: those with more than 15 digits, and exponents. Texts may match as well."""
_in_order = msgspec.json.Encoder(decimal_format="number").encode
"""Encodes JSON with fields in the order and numbers with the digits that they were read with."""


class TimeMisfitError(ValueError):
    """A time that columns do not have."""

    hint = 'Let an export declare the column "string", or skip such records: deserialization_exception_handler.'


def micros(time_ms: int) -> int:
    """Return a time in ms as columns hold it, in µs.

    >>> micros(1000)
    1000000
    """
    if not FIRST_MS <= time_ms <= LAST_MS:
        raise TimeMisfitError(f"{time_ms} ms is a time outside the years 1 to 9999")
    return time_ms * 1000


def end_micros(time_ms: int) -> int | None:
    """Return the end of a window or of a version in µs; None for one that has no end.

    >>> end_micros(1000), end_micros(2**63 - 1)
    (1000000, None)
    """
    return None if time_ms > LAST_MS else micros(time_ms)


def moment_in(text: str) -> dt.datetime:
    """Return the time that a text has; texts of digits are times outside the years 1 to 9999.

    >>> moment_in("2026-01-02T03:04:05.000001000Z")
    datetime.datetime(2026, 1, 2, 3, 4, 5, 1, tzinfo=datetime.timezone.utc)
    """
    refuse_nanos(text)
    try:
        return _moment(text)
    except msgspec.ValidationError as error:
        raise TimeMisfitError(f"{text!r} is not a time of the years 1 to 9999") from error


def exact_double(value: float) -> float:
    """Return a number as a double; refuse a whole number that would be another one.

    >>> exact_double(2**53)
    9007199254740992.0
    """
    found = float(value)
    if found != value and isinstance(value, int):
        raise ValueError(f"{value} is not exact as a double")
    return found


def refuse_nanos(text: str) -> None:
    """Refuse a text with a time that has more digits than microseconds."""
    if _NANOS.search(text):
        raise TimeMisfitError(f"{text!r} has nanoseconds, and columns have microseconds")


def refuse_cut_times(value: Any, written: Any) -> None:
    """Refuse a value, of builtin types, with times that have fewer digits than they have as JSON."""
    # Other times than `datetime` are texts of builtin types.
    if isinstance(value, dt.datetime) or (isinstance(value, str) and value != written):
        refuse_nanos(str(written))
    elif isinstance(value, dict) and isinstance(written, dict):
        for name, each in value.items():
            refuse_cut_times(each, written.get(name))
    elif isinstance(value, list | tuple | set | frozenset) and isinstance(written, list):
        for each, part in zip(value, written, strict=False):
            refuse_cut_times(each, part)


def written_json(data: bytes | msgspec.Raw, value: Any) -> str | None:
    """Return JSON that was read as a value without a type, with the digits that fractions have there.

    >>> written_json(b'{"a": 1.10000000000000000001}', {"a": 1.1})
    '{"a":1.10000000000000000001}'
    """
    if value is None:
        return None
    return _in_order(plain_json(data)).decode() if _LONG_FRACTION.search(data) else json_of(value)


def json_of(value: Any) -> str:
    """Return a value as JSON; refuse numbers that JSON does not have."""
    found = msgspec.json.encode(value)
    if b"null" in found:
        refuse_odd_numbers(value)
    return found.decode()


def rows_with_odd_numbers(column: pa.Array, *, nan_only: bool = False) -> list[int]:
    """Return the numbers of the rows that have NaN, or an infinity, in any part of a column."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    kind = column.type
    if pa.types.is_floating(kind):
        odd = pc.is_nan(column) if nan_only else pc.invert(pc.is_finite(column))
        return pc.indices_nonzero(pc.fill_null(odd, False)).to_pylist()  # type: ignore[no-any-return]  # noqa: FBT003
    parts: list[tuple[Any, Any]] = []
    if pa.types.is_struct(kind):
        parts = [(pc.struct_field(column, at), None) for at in range(kind.num_fields)]
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        as_list = (
            column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))) if pa.types.is_map(kind) else column
        )
        parts = [(pc.list_flatten(as_list), pc.list_parent_indices(as_list))]
    found: set[int] = set()
    for part, parents in parts:
        rows = rows_with_odd_numbers(part, nan_only=nan_only)
        found.update(rows if parents is None else parents.take(pa.array(rows, pa.int64())).to_pylist())
    return sorted(found)


def in_microseconds(column: pa.Array) -> pa.Array:
    """Return a column with its times in µs, also those within structs, lists and maps; refuse what that would change."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    kind = _in_microseconds(column.type)
    try:
        return column if kind == column.type else column.cast(kind)
    except pa.ArrowInvalid as error:
        raise ValueError(f"it has times with nanoseconds, or outside the years 1 to 9999: {error}") from error


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_in_microseconds(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)), kind.list_size)
    if pa.types.is_dictionary(kind) and pa.types.is_timestamp(kind.value_type):
        return _in_microseconds(kind.value_type)
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_in_microseconds(kind.item_type))
        return pa.map_(kind.key_field.with_type(_in_microseconds(kind.key_type)), item)
    return kind
