"""Segments: found by their times, however many there are and in whatever order they came."""

from __future__ import annotations

import random
import struct
import time
from typing import TYPE_CHECKING

import pytest

from riverrun.state.memory import MemoryBackend
from riverrun.state.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Callable

TIME = struct.Struct(">q")
MINUTE = 60_000


def key(minute: int) -> bytes:
    return b"k" + TIME.pack(minute * MINUTE)


def time_of(store_key: bytes) -> int:
    found: int = TIME.unpack(store_key[-TIME.size :])[0]
    return found


def with_minutes(backend: MemoryBackend, minutes: list[int]) -> Segments:
    segments = Segments("store", MINUTE, backend, TIME.size)
    backend.write(segments.puts([(key(minute), b"v") for minute in minutes]), {})
    return segments


def minutes_of(segments: Segments, changed: list[int], first: int, last: int, *, reverse: bool) -> list[int]:
    found = segments.scan(dict.fromkeys(map(key, changed), b"v"), None, None, first, last, reverse=reverse)
    return [time_of(store_key) // MINUTE for store_key, _ in found]


@pytest.mark.parametrize("reverse", [False, True])
def test_segments_come_in_order_of_time_whenever_they_were_written(*, reverse: bool) -> None:
    backend = MemoryBackend()
    minutes = random.Random(1).sample(range(200), 100)
    segments = with_minutes(backend, minutes)
    for dropped in (0, 30, 60):
        segments.drop_before(dropped * MINUTE)
        kept = [minute for minute in minutes if minute >= dropped]
        for reread in (segments, Segments("store", MINUTE, backend, TIME.size)):
            assert minutes_of(reread, [], 0, 10**9, reverse=reverse) == sorted(kept, reverse=reverse)
            within = [minute for minute in {*kept, 50, 199} if 40 <= minute <= 150]
            found = minutes_of(reread, [50, 199], 40 * MINUTE + 7, 150 * MINUTE, reverse=reverse)
            assert found == sorted(within, reverse=reverse)
            tables = reread.between(40 * MINUTE + 7, 150 * MINUTE)
            assert [time_of(k) // MINUTE for table in tables for k, _ in table.scan(None, None)] == sorted(
                minute for minute in kept if 40 <= minute <= 150
            )


def test_a_search_does_not_look_at_the_segments_of_other_times() -> None:
    def cpu_seconds(search: Callable[[Segments], object], segments: Segments) -> float:
        begun = time.process_time()
        for _ in range(200):
            search(segments)
        return time.process_time() - begun

    few, many = (with_minutes(MemoryBackend(), list(range(number))) for number in (5, 5000))
    for search in (
        lambda segments: list(segments.scan({}, key(3), key(4), 3 * MINUTE, 3 * MINUTE)),
        lambda segments: segments.between(3 * MINUTE, 3 * MINUTE),
    ):
        spent = [min(cpu_seconds(search, segments) for _ in range(5)) for segments in (few, many)]
        assert spent[1] < 10 * spent[0]
