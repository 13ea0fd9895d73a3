"""Windows, days and partitions in which only the live version has rows."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import riverrun.releases.emptied as emptied_module
from riverrun import LONG, STRING, CalendarWindows, Window, Windowed, session_windowed, windowed
from riverrun.quality.gate import Verdict
from riverrun.releases.difference import Pair, TableRow
from riverrun.releases.emptied import EmptiedParts, emptied, emptied_log, emptied_partitions
from riverrun.topology.nodes import SinkNode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverrun.serde.api import Serde

MINUTE, DAY = 60_000, 86_400_000
MINUTES = windowed(STRING, timedelta(minutes=1))
INTERVALS, PARTITIONS = "out: each interval has rows", "out: each partition has rows"


def sink(key: Serde[Any]) -> SinkNode:
    return SinkNode("out", (), "out", key, LONG)


def verdict(
    pairs: Iterable[Pair], old: Serde[Any] = MINUTES, new: Serde[Any] = MINUTES, *, is_whole: bool = True
) -> Verdict:
    parts = EmptiedParts("out", sink(old), sink(new))
    assert list(parts.counted(pairs)) == list(pairs)
    return parts.verdict(is_whole=is_whole)


def row(name: str, window: int, *, old: bool = True, new: bool = True, partition: int = 0) -> Pair:
    key = MINUTES.serialize(Windowed(name, Window(window * MINUTE, (window + 1) * MINUTE)))
    value = TableRow(b"1", window * MINUTE + 5)
    return Pair(partition, key, value if old else None, value if new else None)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=8), st.data())
def test_each_window_that_lost_all_its_rows_is_named(sizes: list[int], data: Any) -> None:
    lost = data.draw(st.sets(st.integers(0, len(sizes) - 1), max_size=min(3, len(sizes) - 1)))
    pairs = [row(f"{n}", w, new=w not in lost) for w, size in enumerate(sizes) for n in range(size)]
    found = verdict(pairs)
    assert found.warnings == ((INTERVALS,) if lost else ())
    for window in lost:
        told = f"none in the window from 1970-01-01T00:0{window}:00.000+00:00, the live version {sizes[window]}"
        assert told in found.outcomes[INTERVALS]


def test_rows_that_are_missing_everywhere_are_no_lost_windows() -> None:
    pairs = [row(f"{n}", w, new=bool(n % 2) and w != 4) for w in range(20) for n in range(4)]
    assert verdict(pairs) == Verdict({})
    many = [row(f"{n}", w, new=bool(n % 2) and w != 4) for w in range(20) for n in range(20)]
    assert verdict(many).outcomes == {
        INTERVALS: "failed: 20 rows lost in 1 interval: none in the window from 1970-01-01T00:04:00.000+00:00, "
        "the live version 20"
    }


@pytest.mark.parametrize("left", [{0: 1}, dict.fromkeys(range(10), 2), dict.fromkeys(range(30), 4)])
def test_many_lost_parts_are_no_accident_because_the_others_lost_much(left: dict[int, int]) -> None:
    found = emptied_partitions("out", dict.fromkeys(range(100), 10), left)
    lost = 100 - len(left)
    assert found.outcomes[PARTITIONS].startswith(
        f"failed: {lost * 10} rows lost in {lost} partitions: none in partition"
    )


@pytest.mark.parametrize(("size", "kept"), [(2, 0.5), (3, 0.3), (10, 0.2)])
@pytest.mark.parametrize("seed", range(5))
def test_parts_of_few_rows_that_others_explain_are_not_named(size: int, kept: float, seed: int) -> None:
    random = Random(seed)
    left = {part: sum(random.random() < kept for _ in range(size)) for part in range(500)}
    assert emptied_partitions("out", dict.fromkeys(range(500), size), left) == Verdict({})


def test_rows_that_have_other_times_in_the_candidate_are_not_lost() -> None:
    def on(day: int, *, new: bool = True) -> Pair:
        return Pair(0, b"%d" % day, TableRow(b"1", day * DAY), TableRow(b"1", 9 * DAY) if new else None)

    assert verdict([on(0), on(1), on(2)], STRING, STRING) == Verdict({})
    found = verdict([on(0), on(1, new=False), on(2)], STRING, STRING)
    assert "1 row lost in 1 interval: none in 1970-01-02" in found.outcomes[INTERVALS]


@given(st.lists(st.integers(1, 2_000), min_size=2, max_size=30), st.data())
def test_lost_rows_need_an_approval_unless_they_are_far_fewer_than_usual(sizes: list[int], data: Any) -> None:
    old = dict(enumerate(sizes))
    lost = data.draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1, max_size=min(3, len(sizes) - 1)))
    found = emptied_partitions("out", old, {part: rows for part, rows in old.items() if part not in lost})
    usual = median(rows for part, rows in old.items() if part not in lost)
    is_few = sum(old[part] for part in lost) * 100 < usual
    assert found.warnings == (() if is_few else (PARTITIONS,))
    assert found.outcomes[PARTITIONS].startswith("noted: " if is_few else "failed: ")
    assert found.outcomes[PARTITIONS].endswith(f". Others have {usual:,.0f}") is is_few


def test_many_small_windows_that_are_lost_together_need_an_approval() -> None:
    nights = {hour: 5 for day in range(30) for hour in range(24 * day, 24 * day + 6)}
    days = {hour: 1_000 for hour in range(24 * 30) if hour not in nights}
    found = emptied("out", "interval", nights | days, days, str)
    assert found.outcomes[INTERVALS].startswith("failed: 900 rows lost in 180 intervals")


def test_offsets_of_a_log_are_not_called_rows() -> None:
    found = emptied_log("out", {0: 5, 1: 1, 2: 9}, {0: 1, 2: 1})
    told = "failed: 1 offset lost in 1 partition: none in partition 1, the live version 1"
    assert found.outcomes == {"out: each partition has records": told}
    assert emptied_log("out", {0: -5, 1: 0}, {0: 0, 1: 3}) == Verdict({})


def test_one_partition_of_several_that_lost_its_rows_is_a_warning() -> None:
    pairs = [row(f"{n}", 0, new=n != 1, partition=n) for n in range(3)]
    assert verdict(pairs).outcomes == {
        PARTITIONS: "failed: 1 row lost in 1 partition: none in partition 1, the live version 1"
    }
    assert verdict(pairs, is_whole=False) == Verdict({})
    assert emptied_partitions("out", {0: 5, 1: 5}, {0: 5}).warnings == (PARTITIONS,)


def test_a_repair_warns_of_windows_only() -> None:
    assert verdict([row("a", 0), row("a", 1, new=False)], is_whole=False).warnings == (INTERVALS,)
    days = [Pair(0, b"a", TableRow(b"1", 0), TableRow(b"1", 0)), Pair(0, b"b", TableRow(b"1", DAY), None)]
    assert verdict(days, STRING, STRING, is_whole=False) == Verdict({})


def test_an_empty_candidate_has_no_lost_parts_and_new_parts_are_none() -> None:
    assert verdict([row("a", 0, new=False), row("a", 1, new=False)]) == Verdict({})
    assert verdict([row("a", 0, old=False), row("a", 1)]) == Verdict({})


@pytest.mark.parametrize("key", [STRING, session_windowed(STRING)])
def test_rows_without_fixed_windows_are_counted_by_day(key: Serde[Any]) -> None:
    def on(day: int, *, new: bool = True) -> Pair:
        name = str(day) if key is STRING else Windowed(str(day), Window(day * DAY, day * DAY + day))
        value = TableRow(b"1", day * DAY + 7)
        return Pair(0, key.serialize(name), value, value if new else None)

    found = verdict([on(0), on(1, new=False), on(2)], key, key)
    assert "none in 1970-01-02T00:00:00.000+00:00 to 1970-01-03T00:00:00.000+00:00" in found.outcomes[INTERVALS]


def test_windows_of_another_length_are_compared_by_day() -> None:
    halves = windowed(STRING, timedelta(seconds=30))
    pairs = [row("a", 0, new=False), row("a", 1), row("a", 2, new=False)]
    assert verdict(pairs, halves, MINUTES) == Verdict({})


@pytest.mark.parametrize(
    ("new", "are_equal"),
    [
        (CalendarWindows.days("Europe/Berlin", grace=timedelta(hours=1)), True),
        (CalendarWindows.days("Europe/Paris"), False),
        (CalendarWindows.weeks("Europe/Berlin"), False),
    ],
)
def test_windows_are_compared_by_day_unless_their_calendars_are_equal(new: CalendarWindows, are_equal: bool) -> None:
    old = CalendarWindows.days("Europe/Berlin")
    pairs = [row("a", 0, new=False), row("a", 1), row("a", 2)]
    found = verdict(pairs, windowed(STRING, old), windowed(STRING, new))
    assert (INTERVALS in found.outcomes) == are_equal


def test_many_windows_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emptied_module, "_MOST_INTERVALS", 40)
    found = verdict([row("a", w, new=w < 40 or w >= 60) for w in range(100)])
    assert found.warnings == (INTERVALS,)
    assert "none in 1970-01-01T00:" in found.outcomes[INTERVALS]


def test_times_after_the_year_9999_are_named_in_milliseconds() -> None:
    late = 2**60
    pairs = [
        Pair(0, MINUTES.serialize(Windowed("a", Window(late, late + MINUTE))), TableRow(b"1", late), None),
        row("a", 0),
    ]
    assert f"the window from {late} ms" in verdict(pairs).outcomes[INTERVALS]
