"""When a candidate that follows the tail is ready."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from riverrun.errors import NotReadyError
from riverrun.hosting.inputs import InputLag, beyond_warning
from riverrun.records import TopicPartition
from riverrun.releases.step_checks import Readiness, readiness

if TYPE_CHECKING:
    from collections.abc import Callable


def seen(*stands: tuple[int, int], every: int = 1) -> Callable[[], tuple[float, list[InputLag]]]:
    """Polls, one per second, of an input with such a committed offset and such an end."""
    looks = iter(enumerate(stands))

    def look() -> tuple[float, list[InputLag]]:
        second, (committed, end) = next(looks)
        return float(second * every), [InputLag(TopicPartition("in", 0), False, committed, 0, end)]

    return look


def _until_the_end(stands: list[tuple[int, int]], every: int) -> list[Readiness]:
    return list(itertools.islice(readiness(seen(*stands, every=every), max_lag=0, looks=1), len(stands)))


def test_it_is_ready_once_it_was_close_to_the_end_at_several_looks_in_a_row() -> None:
    found = list(readiness(seen((0, 100), (95, 100), (50, 100), (92, 100), (99, 100)), max_lag=10, looks=2))
    assert [each.is_ready for each in found] == [False, False, False, False, True]
    assert [each.lag for each in found] == [100, 5, 50, 8, 1]


def test_the_time_that_is_left_follows_from_what_is_processed_and_what_arrives() -> None:
    first, second, third, *_ = readiness(seen((0, 100), (40, 120), (50, 150), (150, 150)), max_lag=0, looks=1)
    assert first.left_s is None
    assert (second.processed_per_s, second.arriving_per_s, second.left_s) == (40.0, 20.0, 4.0)
    assert third.left_s is None
    assert "never at this rate" in str(third)
    assert str(first) == "100 offsets behind (rates are not known yet)"


@pytest.mark.parametrize("beyond", [1, 94])
def test_an_offset_beyond_the_end_is_not_0_behind(beyond: int) -> None:
    lag = InputLag(TopicPartition("in", 0), False, 5 + beyond, 0, 5)
    assert (lag.lag, lag.beyond, lag.text) == (0, beyond, f"{beyond} beyond the end")
    assert beyond_warning([lag, lag._replace(committed=5)]) is not None
    assert beyond_warning([lag._replace(committed=each) for each in (None, 0, 5)]) is None
    # At the first poll: no wait helps, and one without a time-out would never end.
    with pytest.raises(NotReadyError, match=f"{5 + beyond} of in-0, which ends at 5"):
        next(readiness(seen((5 + beyond, 5)), max_lag=10, looks=1))


@pytest.mark.parametrize("every", [1, 5, 7, 20])
def test_rates_outlast_the_polls_between_two_commits(every: int) -> None:
    positions = [(second // 30 * 300, 10_000 + second) for second in range(0, 120, every)]
    polls = _until_the_end(positions, every)
    for poll, (committed, _) in zip(polls, positions, strict=True):
        if committed:
            assert poll.processed_per_s > poll.arriving_per_s
            assert "never" not in str(poll)
        elif poll.rates_s:
            passed = f"(0/s processed, 1/s arriving): nothing was processed in the last {poll.rates_s:.0f} s"
            assert str(poll).endswith(passed)
        else:
            assert "not known yet" in str(poll)


def test_slow_rates_are_not_shown_as_none() -> None:
    _, second = _until_the_end([(0, 100), (1, 100)], 4)
    assert "0.25/s processed, 0/s arriving" in str(second)


def test_waiting_ends_with_an_error_that_says_how_far_it_was() -> None:
    looks = readiness(seen((0, 100), (10, 100), (20, 100)), max_lag=0, looks=1, timeout_s=2.0)
    with pytest.raises(NotReadyError, match="has not caught up within 2 s: 80 offsets behind"):
        list(looks)
