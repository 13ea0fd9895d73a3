"""Runs of several writers: taken apart, in order, whatever fits into memory."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import StateError
from pipeline.records import RawFields, RawRecord, TaskId, TopicPartition
from pipeline.spark.spilling import WriterRuns, run_of, split_writers, writer_tag

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONE, TWO = TopicPartition("sums-repartition", 0), TopicPartition("counts-repartition", 0)
WRITERS = [TaskId(0, number) for number in range(3)]


def written(count: int) -> Iterator[RawRecord]:
    """Records of three writers that take turns, now and then one that a worker wrote, some without key, value or headers."""
    for n in range(count):
        tag = () if n % 10 == 9 else writer_tag(WRITERS[n % 3])
        headers = (("trace", b"%d" % n), ("empty", None)) if n % 4 == 0 else ()
        key, value = None if n % 7 == 0 else b"key %d" % n, None if n % 5 == 0 else b"v" * (n % 200)
        yield RawRecord(key, value, 1000 - n % 13, n, headers + tag)


def read(runs: WriterRuns) -> dict[tuple[TopicPartition, int], list[RawFields]]:
    return {run: [record for batch in batches for record in batch] for run, batches in runs.runs()}


@pytest.mark.parametrize("limit_bytes", [0, 20_000, 1_000_000_000])
def test_each_writers_records_come_back_in_their_order_whatever_fits_into_memory(
    tmp_path: Path, limit_bytes: int
) -> None:
    records = list(written(1000))
    with WriterRuns(tmp_path, limit_bytes) as runs:
        for start in range(0, 1000, 90):
            runs.add(ONE, records[start : start + 90])
            runs.add(TWO, records[start : start + 30])
        found = read(runs)
        assert (runs.spilled_bytes > 0) is (limit_bytes < 1_000_000_000)
    expected = split_writers(records)
    assert {run: found[ONE, run] for run in expected} == expected
    assert sorted(expected) == [0, *map(run_of, WRITERS)]
    assert sum(map(len, found.values())) == 1000 + 12 * 30 - 20


def test_memory_does_not_grow_with_the_range(tmp_path: Path) -> None:
    def peak_bytes(batches: int) -> int:
        gc.collect()
        tracemalloc.start()
        with WriterRuns(tmp_path, 200_000) as runs:
            for _ in range(batches):
                runs.add(ONE, list(written(500)))
            for _, parts in runs.runs():
                for _ in parts:
                    pass
            assert runs.spilled_bytes > batches * 20_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(60) < 1.5 * peak_bytes(6)


def test_nothing_is_left_on_disk(tmp_path: Path) -> None:
    with WriterRuns(tmp_path, 0) as runs:
        runs.add(ONE, written(100))
        assert runs.spilled_bytes
        assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with WriterRuns(tmp_path / "file", 0) as runs, pytest.raises(StateError, match=r"cannot be spilled to .*file"):
        runs.add(ONE, written(1))
