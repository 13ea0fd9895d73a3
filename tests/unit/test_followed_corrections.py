"""Corrections of a switch of versions, as followers of a table's topic take them over."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.processor.sinks import OFFSET, PARTITION, SinkBatch
from riverrun.records import TopicPartition
from riverrun.releases.difference import DifferenceIndex, Side
from riverrun.state.memory import MemoryBackend
from riverrun.testing.sinks import sink_table
from riverrun.transfers.sql_sink import SqlSink
from tests.depth import depth

TP = TopicPartition("sink-checks", 0)
Changes = list[tuple[str, int | None]]

changes = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 3)), max_size=12)


def corrections(old: Changes, new: Changes) -> Changes:
    """Return what a switch publishes: rows that differ, and tombstones of those that the new version does not have."""
    index = DifferenceIndex(MemoryBackend())
    for side, topic, written in ((Side.OLD, "public", old), (Side.NEW, "staging", new)):
        records = [(key.encode(), None if n is None else str(n).encode(), 1, 0, ()) for key, n in written]
        index.apply(side, TopicPartition(topic, 0), records, len(records))
    return [(pair.key.decode(), None if pair.new is None else int(pair.new.value)) for pair in index.differences()]


def followed(directory: Path, records: Changes, cuts: list[int], *, is_upsert: bool) -> list[tuple[str, int | None]]:
    """Return the rows of a follower that commits at each of some positions, and starts again there."""
    table, url = replace(sink_table(), is_upsert=is_upsert), f"sqlite:///{directory}/{is_upsert}.db"
    for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
        sink = SqlSink(table, url, "target")
        # What is committed is not written again.
        assert sink.begin([TP]).get(TP, 0) == start
        if start < end:
            rows = [
                {"_key": key, "n": n, PARTITION: 0, OFFSET: start + number}
                for number, (key, n) in enumerate(records[start:end])
            ]
            sink.write(
                SinkBatch(TP, pa.RecordBatch.from_pylist(rows, table.schema), [row["n"] is None for row in rows])
            )
            sink.commit({TP: end})
    with closing(sqlite3.connect(f"{directory}/{is_upsert}.db")) as database:
        return database.execute("SELECT _key, n FROM target ORDER BY _offset").fetchall()


@settings(max_examples=depth(20, 300))
@given(changes, changes, st.data())
def test_a_table_that_is_followed_is_that_of_the_new_version_after_a_switch(
    old: Changes, new: Changes, data: st.DataObject
) -> None:
    published = corrections(old, new)
    records = [*old, *published]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4)))
    wanted = {key: n for key, n in dict(new).items() if n is not None}
    with TemporaryDirectory() as directory:
        assert dict(followed(Path(directory), records, cuts, is_upsert=True)) == wanted
        added = followed(Path(directory), records, cuts, is_upsert=False)
    # Rows that are only added have each record that was public, in its order, and corrections after them, once.
    assert added == records
