"""The writers of a repartition topic: merged by event time, whatever fits into memory and however they lie in the log."""

from __future__ import annotations

import gc
import heapq
import random
import tracemalloc
from typing import TYPE_CHECKING, NamedTuple

import pytest

from riverrun.errors import StateError
from riverrun.records import RawFields, RawRecord, TaskId, TopicPartition
from riverrun.runtime.packs import pack_header, packed, writer_of
from riverrun.spark.tasks.spilling import WriterMerge
from tests.presence import present

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

ONE, TWO = TopicPartition("sums-repartition", 0), TopicPartition("counts-repartition", 0)
WRITERS = [TaskId(0, number) for number in range(3)]


class Written(NamedTuple):
    """A record of the log: a pack of one of the writers, or a worker's."""

    writer: int
    members: list[RawRecord]

    def record(self) -> RawFields:
        if self.writer == 0:
            return self.members[0]
        return pack(WRITERS[self.writer - 1], self.members)._replace(offset=self.members[0].offset)


def written(count: int) -> Iterator[Written]:
    """Packs of three writers that take turns, now and then what a worker wrote; some records without key, value or headers."""
    for offset in range(count):
        writer = 0 if offset % 10 == 9 else offset % 3 + 1
        members = []
        for n in range(offset * 7, offset * 7 + (offset % 7 + 1 if writer else 1)):
            headers = (("trace", b"%d" % n), ("empty", None)) if n % 4 == 0 and offset % 2 else ()
            key, value = None if n % 7 == 0 else b"key %d" % n, None if n % 5 == 0 else b"v" * (n % 200)
            members.append(RawRecord(key, value, 1000 + n // 2 - n % 13, offset, headers))
        yield Written(writer, members)


def log(count: int) -> list[RawFields]:
    return [each.record() for each in written(count)]


def merged_one_by_one(log: Iterable[Written]) -> list[RawFields]:
    """By definition: of the writers' next records the earliest comes first, of equally early ones the first writer's."""
    runs: dict[int, list[RawFields]] = {}
    for writer, members in log:
        runs.setdefault(writer, []).extend((*member,) for member in members)
    heads = [(run[0][2], writer, 0) for writer, run in runs.items()]
    heapq.heapify(heads)
    found = []
    while heads:
        _, writer, at = heapq.heappop(heads)
        found.append(runs[writer][at])
        if at + 1 < len(runs[writer]):
            heapq.heappush(heads, (runs[writer][at + 1][2], writer, at + 1))
    return found


def pack(writer: TaskId, members: Sequence[RawRecord]) -> RawRecord:
    keys, values, times, _, headers = zip(*members, strict=True)
    return RawRecord(None, packed(keys, values, times, headers), 0, 0, pack_header(writer))


def read(merge: WriterMerge) -> dict[TopicPartition, list[RawFields]]:
    return {tp: [record for batch in batches for record in batch] for tp, batches in merge.merged()}


@pytest.mark.parametrize("limit_bytes", [0, 20_000, 60_000, 1_000_000_000])
def test_the_earliest_of_the_writers_records_comes_first_whatever_fits(tmp_path: Path, limit_bytes: int) -> None:
    records = log(1000)
    with WriterMerge(tmp_path, limit_bytes) as merge:
        for start in range(0, 1000, 90):
            merge.add(ONE, records[start : start + 90])
            merge.add(TWO, records[start : start + 30])
        found = read(merge)
        assert (merge.spilled_bytes > 0) is (limit_bytes < 1_000_000_000)
    assert found[ONE] == merged_one_by_one(written(1000))
    assert found[TWO] == merged_one_by_one(each for n, each in enumerate(written(1000)) if n % 90 < 30)


@pytest.mark.parametrize("limit_bytes", [0, 1_000_000_000])
def test_the_order_does_not_depend_on_the_writers_speeds(tmp_path: Path, limit_bytes: int) -> None:
    def order(seed: int) -> list[tuple[bytes | None, int]]:
        random_of = random.Random(seed)
        runs = [
            [
                pack(WRITERS[w], [RawRecord(b"%d-%d" % (w, n), b"v", n * 7 % 50 + n, 0) for n in range(at, at + 3)])
                for at in range(0, 900, 3)
            ]
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
                part = enumerate(log[offset : offset + 100])
                merge.add(ONE, [record._replace(offset=offset + n) for n, record in part])
            return [(key, timestamp) for key, _, timestamp, _, _ in read(merge)[ONE]]

    assert order(1) == order(2) == order(3)


def test_memory_does_not_grow_with_the_range(tmp_path: Path) -> None:
    def peak_bytes(batches: int) -> int:
        gc.collect()
        tracemalloc.start()
        with WriterMerge(tmp_path, 200_000) as merge:
            for _ in range(batches):
                merge.add(ONE, log(500))
            for _, parts in merge.merged():
                for _ in parts:
                    pass
            assert merge.spilled_bytes > batches * 20_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(6)  # the first time, Python also keeps what it has loaded
    assert peak_bytes(60) < 1.5 * peak_bytes(6)


def test_nothing_is_left_on_disk(tmp_path: Path) -> None:
    with WriterMerge(tmp_path, 0) as merge:
        merge.add(ONE, log(100))
        assert merge.spilled_bytes
        assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with WriterMerge(tmp_path / "file", 0) as merge, pytest.raises(StateError, match=r"cannot be spilled to .*file"):
        merge.add(ONE, log(1))


def test_what_was_taken_of_the_first_pack_does_not_come_again(tmp_path: Path) -> None:
    first = [RawRecord(b"%d" % n, b"v", n, 0) for n in range(5)]
    with WriterMerge(tmp_path, 1_000_000_000) as merge:
        merge.add(ONE, [pack(WRITERS[0], first), pack(WRITERS[0], first)], taken=3)
        merge.add(ONE, [pack(WRITERS[1], first)])
        keys = [key for key, *_ in read(merge)[ONE]]
    assert sorted(key for key in keys if key) == sorted([b"3", b"4"] + 2 * [present(key) for key, *_ in first])


def test_records_outside_packs_may_have_a_known_writer(tmp_path: Path) -> None:
    late, early = RawRecord(b"late", b"v", 9, 0), RawRecord(b"early", b"v", 8, 1)
    with WriterMerge(tmp_path, 0) as merge:
        merge.add(ONE, [late], WRITERS[0])
        merge.add(ONE, [early], WRITERS[1])
        assert [key for key, *_ in read(merge)[ONE]] == [b"early", b"late"]


def test_a_pack_that_is_damaged_is_one_record_that_no_source_can_decode(tmp_path: Path) -> None:
    with WriterMerge(tmp_path, 0) as merge:
        merge.add(ONE, [RawRecord(None, b"no pack", 0, 7, pack_header(WRITERS[0]))], taken=1)
        ((key, value, timestamp, offset, headers),) = read(merge)[ONE]
    assert (key, value, timestamp, offset) == (None, b"no pack", -1, 7)
    assert writer_of(headers) is not None
