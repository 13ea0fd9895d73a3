"""The writers of a repartition topic: merged by event time, whatever fits into memory and however they lie in the log."""

from __future__ import annotations

import gc
import heapq
import random
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import StateError
from pipeline.records import RawFields, RawRecord, TaskId, TopicPartition
from pipeline.spark.tasks.spilling import WriterMerge, writer_tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ONE, TWO = TopicPartition("sums-repartition", 0), TopicPartition("counts-repartition", 0)
WRITERS = [TaskId(0, number) for number in range(3)]


def written(count: int) -> Iterator[RawRecord]:
    """Records of three writers that take turns, now and then one that a worker wrote, some without key, value or headers."""
    for n in range(count):
        tag = () if n % 10 == 9 else writer_tag(WRITERS[n % 3])
        headers = (("trace", b"%d" % n), ("empty", None)) if n % 4 == 0 else ()
        key, value = None if n % 7 == 0 else b"key %d" % n, None if n % 5 == 0 else b"v" * (n % 200)
        yield RawRecord(key, value, 1000 + n // 2 - n % 13, n, headers + tag)


def merged_one_by_one(records: Iterable[RawRecord]) -> list[RawFields]:
    """By definition: of the writers' next records the earliest comes first, of equally early ones the first writer's."""
    runs: dict[int, list[RawFields]] = {}
    writer_of = {tag: n for n, writer in enumerate(WRITERS, 1) for tag in writer_tag(writer)}
    for key, value, timestamp, offset, headers in records:
        writer = writer_of.get(headers[-1], 0) if headers else 0
        own = headers[:-1] if writer else headers
        runs.setdefault(writer, []).append((key, value, timestamp, offset, own))
    heads = [(run[0][2], writer, 0) for writer, run in runs.items()]
    heapq.heapify(heads)
    found = []
    while heads:
        _, writer, at = heapq.heappop(heads)
        found.append(runs[writer][at])
        if at + 1 < len(runs[writer]):
            heapq.heappush(heads, (runs[writer][at + 1][2], writer, at + 1))
    return found


def read(merge: WriterMerge) -> dict[TopicPartition, list[RawFields]]:
    return {tp: [record for batch in batches for record in batch] for tp, batches in merge.merged()}


@pytest.mark.parametrize("limit_bytes", [0, 20_000, 60_000, 1_000_000_000])
def test_the_earliest_of_the_writers_next_records_comes_first_whatever_fits_into_memory(
    tmp_path: Path, limit_bytes: int
) -> None:
    records = list(written(1000))
    with WriterMerge(tmp_path, limit_bytes) as merge:
        for start in range(0, 1000, 90):
            merge.add(ONE, records[start : start + 90])
            merge.add(TWO, records[start : start + 30])
        found = read(merge)
        assert (merge.spilled_bytes > 0) is (limit_bytes < 1_000_000_000)
    assert found[ONE] == merged_one_by_one(records)
    assert found[TWO] == merged_one_by_one(r for n, r in enumerate(records) if n % 90 < 30)


@pytest.mark.parametrize("limit_bytes", [0, 1_000_000_000])
def test_the_order_does_not_depend_on_the_writers_speeds(tmp_path: Path, limit_bytes: int) -> None:
    def order(seed: int) -> list[tuple[bytes | None, int]]:
        random_of = random.Random(seed)
        runs = [
            [RawRecord(b"%d-%d" % (w, n), b"v", n * 7 % 50 + n, 0, writer_tag(WRITERS[w])) for n in range(300)]
            for w in range(3)
        ]
        log = []
        while any(runs):
            run = random_of.choice([run for run in runs if run])
            count = random_of.randrange(1, 100)
            log += run[:count]
            del run[:count]
        with WriterMerge(tmp_path, limit_bytes) as merge:
            for offset in range(0, len(log), 100):
                merge.add(
                    ONE, [record._replace(offset=offset + n) for n, record in enumerate(log[offset : offset + 100])]
                )
            return [(key, timestamp) for key, _, timestamp, _, _ in read(merge)[ONE]]

    assert order(1) == order(2) == order(3)


def test_memory_does_not_grow_with_the_range(tmp_path: Path) -> None:
    def peak_bytes(batches: int) -> int:
        gc.collect()
        tracemalloc.start()
        with WriterMerge(tmp_path, 200_000) as merge:
            for _ in range(batches):
                merge.add(ONE, list(written(500)))
            for _, parts in merge.merged():
                for _ in parts:
                    pass
            assert merge.spilled_bytes > batches * 20_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(60) < 1.5 * peak_bytes(6)


def test_nothing_is_left_on_disk(tmp_path: Path) -> None:
    with WriterMerge(tmp_path, 0) as merge:
        merge.add(ONE, written(100))
        assert merge.spilled_bytes
        assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with WriterMerge(tmp_path / "file", 0) as merge, pytest.raises(StateError, match=r"cannot be spilled to .*file"):
        merge.add(ONE, written(1))
