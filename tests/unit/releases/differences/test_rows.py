"""The rows that a gate judges."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from riverrun import JSON, LONG, STRING, Windowed, windowed
from riverrun.errors import DeserializationError, ReleaseError
from riverrun.records import RawFields, TopicPartition
from riverrun.releases.difference import Pair, Side, TableRow
from riverrun.releases.rows import difference_rows, log_rows, table_rows
from riverrun.topology.nodes import SinkNode
from riverrun.windows import Window

if TYPE_CHECKING:
    from riverrun.serde.api import Serde

HOUR = windowed(STRING, timedelta(hours=1))
TOPICS = {Side.OLD: "out", Side.NEW: "staging"}


@dataclass
class Stats:
    change: int
    topic: str = "t"


def sink(key: Serde[Any], value: Serde[Any]) -> SinkNode:
    return SinkNode("out", (), "out", key, value)


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_fields_keep_their_names_whatever_these_are() -> None:
    value = JSON(Stats)
    pairs = [Pair(1, b"ann", None, TableRow(value.serialize(Stats(7)), 5)), Pair(0, b"bob", TableRow(b"1", 1), None)]
    assert list(table_rows(pairs, sink(STRING, value), "out")) == [
        {"_key": "ann", "_partition": 1, "_time": at(5), "_change": "new", "change": 7, "topic": "t"}
    ]


def test_a_field_with_the_name_of_a_column_of_riverrun_is_refused() -> None:
    pairs = [Pair(0, b"ann", None, TableRow(b'{"_time": 1}', 5))]
    with pytest.raises(ReleaseError, match="Values of out have a field _time, which is the name of a column"):
        list(table_rows(pairs, sink(STRING, JSON), "out"))


def test_a_difference_has_both_rows_side_by_side() -> None:
    key = HOUR.serialize(Windowed("ann", Window(0, 3_600_000)))
    names = {"key": "ann", "window_start": at(0), "window_end": at(3_600_000), "partition": 0, "time": at(5)}
    old, new = TableRow(JSON.serialize({"n": 1, "gone": 2}), 4), TableRow(JSON.serialize({"n": 3}), 5)
    pairs = [Pair(0, key, old, new), Pair(0, key, None, new), Pair(0, key, old._replace(timestamp=5), None)]
    unreadable: list[None] = []
    found = difference_rows(pairs, sink(HOUR, JSON), sink(HOUR, JSON), TOPICS, lambda: unreadable.append(None))
    assert list(found) == [
        {**names, "change": "changed", "old_n": 1, "new_n": 3, "old_gone": 2, "new_gone": None},
        {**names, "change": "new", "old_n": None, "new_n": 3},
        {**names, "change": "gone", "old_n": 1, "new_n": None, "old_gone": 2, "new_gone": None},
    ]
    assert not unreadable


def test_old_rows_that_cannot_be_read_are_counted_and_new_ones_are_refused() -> None:
    row = TableRow(LONG.serialize(5), 1)
    unreadable: list[None] = []

    def differing(old: TableRow, new: TableRow) -> list[dict[str, Any]]:
        pairs, numbers = [Pair(2, b"ann", old, new)], sink(STRING, LONG)
        return list(difference_rows(pairs, numbers, numbers, TOPICS, lambda: unreadable.append(None)))

    ((found),) = differing(TableRow(b"text", 1), row)
    assert (found["old"], found["new"], len(unreadable)) == (None, 5, 1)
    with pytest.raises(DeserializationError, match=r"cannot be read(.|\n)*topic staging.* partition 2"):
        differing(row, TableRow(b"text", 1))


@pytest.mark.parametrize("side", Side)
def test_a_key_that_cannot_be_read_is_named_with_the_topic_that_has_it(side: Side) -> None:
    row = TableRow(LONG.serialize(5), 1)
    pair = Pair(2, b"?", *((row, None) if side is Side.OLD else (None, row)))
    numbers = sink(LONG, LONG)
    with pytest.raises(DeserializationError, match=rf"cannot be read(.|\n)*topic {TOPICS[side]}, partition 2"):
        list(difference_rows([pair], numbers, numbers, TOPICS, pytest.fail))


def test_records_of_a_log_need_no_key_and_no_value_and_tell_how_late_they_are() -> None:
    tp, value = TopicPartition("alerts", 3), LONG.serialize(5)
    records: list[RawFields] = [
        (None, value, 1, 0, ()),
        (b"ann", None, 2, 1, ()),
        (b"ann", value, 2**40, 2, ()),
        (b"ann", value, 5, 3, ()),
    ]
    assert list(log_rows([(tp, records)], sink(STRING, LONG))) == [
        {"_key": None, "_partition": 3, "_offset": 0, "_time": at(1), "_late_ms": 0, "value": 5},
        {"_key": "ann", "_partition": 3, "_offset": 1, "_time": at(2), "_late_ms": 0, "value": None},
        {"_key": "ann", "_partition": 3, "_offset": 2, "_time": at(2**40), "_late_ms": 0, "value": 5},
        {"_key": "ann", "_partition": 3, "_offset": 3, "_time": at(5), "_late_ms": 2**40 - 5, "value": 5},
    ]
    with pytest.raises(DeserializationError, match=r"outside the years 1 to 9999 .*partition 3, offset 4"):
        list(log_rows([(tp, [(b"ann", value, 2**60, 4, ())])], sink(STRING, LONG)))


def test_windowed_keys_are_read_without_the_size_of_the_windows() -> None:
    written = windowed(STRING)
    key = written.serialize(Windowed("ann", Window(1000, 2000)))
    (row,) = table_rows([Pair(0, key, None, TableRow(LONG.serialize(7), 5))], sink(written, LONG), "out")
    assert (row["_key"], row["_window_start"], row["_window_end"]) == ("ann", at(1000), None)
