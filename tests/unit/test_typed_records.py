"""The serdes of an application make the columns of exported records."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from riverrun import JSON, LONG, STRING, DeserializationError, Serde, Window, Windowed, windowed
from riverrun.transfers.typed_records import TypedRecords

if TYPE_CHECKING:
    from collections.abc import Sequence

TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Click:
    page: str
    cents: int | None = None


def rows(typed: TypedRecords, *records: tuple[bytes | None, bytes | None]) -> list[dict[str, Any]]:
    columns: dict[str, pa.Array] = {
        "_key": pa.array([key for key, _ in records], pa.binary()),
        "value": pa.array([value for _, value in records], pa.binary()),
        "_timestamp": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * len(records), TIME),
        "_partition": pa.array([0] * len(records), pa.int32()),
        "_offset": pa.array(range(7, 7 + len(records)), pa.int64()),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    # As Spark sends it to executors.
    sent: TypedRecords = pickle.loads(pickle.dumps(typed))  # noqa: S301 - our own
    (made,) = sent.rows(iter([batch]), lambda batch, number: {"offset": batch["_offset"][number].as_py()})
    assert made.schema.names == [field.name for field in typed.schema]
    found: list[dict[str, Any]] = made.to_pylist()
    return found


def shown(found: Sequence[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found]


def test_fields_of_values_are_columns_and_a_deletion_has_none() -> None:
    typed = TypedRecords(STRING, JSON(Click), marks_deletions=True)
    found = rows(typed, (b"ann", b'{"page":"/","cents":5}'), (b"bob", None), (None, b'{"page":"/cart"}'))
    assert shown(found, "_key", "page", "cents", "_offset", "_tombstone") == [
        ("ann", "/", 5, 7, 0),
        ("bob", None, None, 8, 1),
        (None, "/cart", None, 9, 0),
    ]


def test_windows_of_keys_are_columns() -> None:
    keys = windowed(STRING, timedelta(minutes=1))
    key = keys.serialize(Windowed("ann", Window(60_000, 120_000)))
    (row,) = rows(TypedRecords(keys, LONG, marks_deletions=False), (key, LONG.serialize(3)))
    start, end = (datetime.fromtimestamp(seconds, UTC) for seconds in (60, 120))
    assert (row["_key"], row["_window_start"], row["_window_end"], row["value"]) == ("ann", start, end, 3)
    assert "_tombstone" not in row


def test_values_of_no_known_type_stay_as_they_are() -> None:
    plain = TypedRecords(STRING, JSON, marks_deletions=False)
    assert shown(rows(plain, (b"ann", b'{"cents":5.12345678901234567890123}')), "value") == [
        ('{"cents":5.12345678901234567890123}',)
    ]
    own: Serde[bytes] = Serde("own", bytes, bytes)
    assert TypedRecords(STRING, own, marks_deletions=False).binary == ("value",)


def test_a_value_that_cannot_be_read_is_named_with_its_place() -> None:
    typed = TypedRecords(STRING, JSON(Click), marks_deletions=False)
    with pytest.raises(DeserializationError, match=r"A value cannot be read: .*\(offset 8\)"):
        rows(typed, (b"ann", b'{"page":"/"}'), (b"bob", b'{"page":7}'))
