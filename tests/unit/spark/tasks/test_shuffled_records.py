"""Records that one level of a dry run hands to the next can be read again, as a task may start over."""

from __future__ import annotations

import tempfile

from hypothesis import given
from hypothesis import strategies as st

from riverrun.records import TaskId, TopicPartition
from riverrun.spark.dry_task import ShuffledRecord, ShuffleReader

TP = TopicPartition("moved", 0)


def taken(reader: ShuffleReader, slices: int) -> list[tuple[int, bytes | None]]:
    return [(number, fields[0]) for number in range(slices) for _, _, batch in reader.take(number) for fields in batch]


@given(st.lists(st.integers(0, 2), max_size=8).map(sorted), st.lists(st.integers(0, 3), max_size=3))
def test_a_reader_that_keeps_its_records_begins_again_wherever_it_is(slices: list[int], stops: list[int]) -> None:
    records = [
        ShuffledRecord(number, TP, TaskId(0, 0), (b"%d" % at, b"v", at, at, (("h", None),)))
        for at, number in enumerate(slices)
    ]
    expected = [(record.slice, record.fields[0]) for record in records]
    with tempfile.TemporaryFile() as file:
        reader = ShuffleReader(iter(records))
        reader.keep(file)
        for stop in stops:
            assert taken(reader, stop) == [each for each in expected if each[0] < stop]
            reader.rewind()
        assert taken(reader, 3) == expected
