"""The windows of a time, and how long they are kept: arithmetic only."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime, timedelta

import pytest

from riverrun import (
    STRING,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Window,
    Windowed,
    session_windowed,
    windowed,
)
from riverrun.serde.windowed import windowed_of_size_ms
from riverrun.windows import MAX_TIME_MS


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


@pytest.mark.parametrize(
    ("advance", "timestamp", "starts"),
    [
        (12, 21, [12]),
        (12, 12, [12]),
        (12, 11, [0]),
        (5, 21, [10, 15, 20]),
        (5, 3, [0]),
        (5, 11, [0, 5, 10]),
        (5, 12, [5, 10]),
    ],
)
def test_a_time_is_in_every_hopping_window_that_has_begun_and_not_ended(
    advance: int, timestamp: int, starts: list[int]
) -> None:
    assert list(TimeWindows.of(ms(12)).advance_by(ms(advance)).starts_for(timestamp)) == starts


def test_windows_that_barely_overlap_share_few_times() -> None:
    windows = TimeWindows.of(ms(6)).advance_by(ms(5))
    assert [list(windows.starts_for(t)) for t in (5, 6, 7, 10, 11)] == [[0, 5], [5], [5], [5, 10], [10]]


def test_windows_know_their_sizes_and_have_no_grace_unless_it_is_given() -> None:
    assert TimeWindows.of_size_with_no_grace(ms(123)) == TimeWindows(123, 123, 0)
    assert TimeWindows.of_size_and_grace(ms(123), ms(1024)).advance_by(ms(4)) == TimeWindows(123, 4, 1024)
    assert SlidingWindows.of_time_difference_and_grace(ms(123), ms(1024)) == SlidingWindows(123, 1024)
    assert SessionWindows.of_inactivity_gap_with_no_grace(ms(42)) == SessionWindows(42, 0)
    assert SessionWindows.of_inactivity_gap_and_grace(ms(0), ms(1024)) == SessionWindows(0, 1024)
    assert JoinWindows.of_time_difference_with_no_grace(ms(3)) == JoinWindows(3, 3, 0)
    assert JoinWindows.of_time_difference_and_grace(ms(3), ms(1024)) == JoinWindows(3, 3, 1024)


def test_bounds_of_a_join_window_move_to_each_other_and_leave_the_grace() -> None:
    windows = JoinWindows.of(ms(456), grace=ms(7))
    for bound in (123, 0, -123, -456):
        assert windows.before(ms(bound)) == JoinWindows(bound, 456, 7)
        assert windows.after(ms(bound)) == JoinWindows(456, bound, 7)
    assert windows.before(ms(9)).after(ms(2)).retention_ms == 18


@pytest.mark.parametrize(
    "others",
    [
        [
            TimeWindows.of(ms(size), grace=ms(grace)).advance_by(ms(by))
            for size in (3, 9)
            for grace in (1, 2)
            for by in (1, 2)
        ],
        [SlidingWindows.of(ms(size), grace=ms(grace)) for size in (3, 9) for grace in (1, 2)],
        [SessionWindows.of(ms(size), grace=ms(grace)) for size in (3, 9) for grace in (1, 2)],
        [JoinWindows(before, after, grace) for before in (3, 9) for after in (1, 2) for grace in (1, 2)],
        [UnlimitedWindows(1), UnlimitedWindows(9)],
    ],
)
def test_windows_are_equal_if_everything_about_them_is(others: list[object]) -> None:
    assert len({*others, *deepcopy(others)}) == len(others)


def test_sliding_windows_are_kept_for_twice_the_difference_and_the_grace() -> None:
    assert SlidingWindows.of(ms(10), grace=ms(5)).retention_ms == 25
    assert SlidingWindows.of_time_difference_and_grace(ms(10), ms(5)) == SlidingWindows.of(ms(10), grace=ms(5))
    assert SlidingWindows.of_time_difference_with_no_grace(ms(10)) == SlidingWindows.of(ms(10))


def test_sessions_are_kept_for_the_gap_and_the_grace() -> None:
    assert SessionWindows.of(ms(10), grace=ms(5)).retention_ms == 15
    assert SessionWindows.of_inactivity_gap_and_grace(ms(10), ms(5)) == SessionWindows.of(ms(10), grace=ms(5))
    assert SessionWindows.of_inactivity_gap_with_no_grace(ms(10)) == SessionWindows.of(ms(10))


@pytest.mark.parametrize(
    "windows",
    [
        lambda: TimeWindows.of(ms(0)),
        lambda: TimeWindows.of(ms(-1)),
        lambda: TimeWindows.of(ms(3), grace=ms(-1)),
        lambda: TimeWindows.of(ms(123)).advance_by(ms(0)),
        lambda: TimeWindows.of(ms(123)).advance_by(ms(-1)),
        lambda: TimeWindows.of(ms(123)).advance_by(ms(124)),
        lambda: JoinWindows.of(ms(-1)),
        lambda: JoinWindows.of(ms(-1), grace=ms(1024)),
        lambda: JoinWindows.of(ms(3), grace=ms(-1)),
        lambda: JoinWindows.of(ms(123)).after(ms(-124)),
        lambda: JoinWindows.of(ms(123)).before(ms(-124)),
        lambda: SlidingWindows.of(ms(-1)),
        lambda: SlidingWindows.of(ms(0)),
        lambda: SlidingWindows.of(ms(1), grace=ms(-1)),
        lambda: SessionWindows.of(ms(-1)),
        lambda: SessionWindows.of(ms(1), grace=ms(-1)),
        lambda: SessionWindows.of(timedelta(microseconds=1)),
        lambda: UnlimitedWindows.of(start=datetime(1969, 12, 31, tzinfo=UTC)),
    ],
)
def test_windows_that_make_no_sense_are_refused(windows: object) -> None:
    assert callable(windows)
    with pytest.raises(TopologyError):
        windows()


def test_an_unlimited_window_holds_every_time_from_its_start_on() -> None:
    windows = UnlimitedWindows.of(start=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    assert [list(windows.starts_for(t)) for t in (999, 1000, 10**15)] == [[], [1000], [1000]]
    assert list(UnlimitedWindows.of().starts_for(0)) == [0]


def test_windowed_keys_read_back_as_they_were_written() -> None:
    session = Windowed("A", Window(10, 25))
    assert session_windowed(STRING).deserialize(session_windowed(STRING).serialize(session)) == session
    data = windowed(STRING).serialize(Windowed("A", Window(10, 25)))
    assert windowed(STRING, ms(15)).deserialize(data) == session
    assert windowed_of_size_ms(STRING, MAX_TIME_MS).deserialize(data) == Windowed("A", Window(10, MAX_TIME_MS))


def test_a_session_key_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        session_windowed(STRING).deserialize(b"short")
