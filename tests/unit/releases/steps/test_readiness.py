"""When a candidate that follows the tail is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from riverrun.errors import NotReadyError
from riverrun.hosting.inputs import InputLag, beyond_warning
from riverrun.records import TopicPartition
from riverrun.releases.step_checks import readiness

if TYPE_CHECKING:
    from collections.abc import Callable


def seen(*stands: tuple[int, int]) -> Callable[[], tuple[float, list[InputLag]]]:
    """Looks, one per second, at an input with such a committed offset and such an end."""
    looks = iter(enumerate(stands))

    def look() -> tuple[float, list[InputLag]]:
        second, (committed, end) = next(looks)
        return float(second), [InputLag(TopicPartition("in", 0), False, committed, 0, end)]

    return look


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
    assert str(first) == "100 offsets behind: nothing has been processed since the last look"


@pytest.mark.parametrize("beyond", [1, 94])
def test_an_offset_beyond_the_end_is_not_0_behind(beyond: int) -> None:
    lag = InputLag(TopicPartition("in", 0), False, 5 + beyond, 0, 5)
    assert (lag.lag, lag.beyond, lag.text) == (0, beyond, f"{beyond} beyond the end")
    assert beyond_warning([lag, lag._replace(committed=5)]) is not None
    assert beyond_warning([lag._replace(committed=each) for each in (None, 0, 5)]) is None
    looks = readiness(seen((5 + beyond, 5), (5 + beyond, 5)), max_lag=10, looks=1, timeout_s=1.0)
    with pytest.raises(NotReadyError, match=f"{5 + beyond} of in-0, which ends at 5"):
        list(looks)


def test_waiting_ends_with_an_error_that_says_how_far_it_was() -> None:
    looks = readiness(seen((0, 100), (10, 100), (20, 100)), max_lag=0, looks=1, timeout_s=2.0)
    with pytest.raises(NotReadyError, match="has not caught up within 2 s: 80 offsets behind"):
        list(looks)
