"""When the leader hears of tasks that have warmed up."""

from __future__ import annotations

from riverrun.records import TaskId
from riverrun.worker.group.client import WarmUps

FIRST, SECOND = TaskId(0, 0), TaskId(0, 1)


def test_the_leader_hears_once_of_each_task_that_has_caught_up() -> None:
    warm_ups = WarmUps(acceptable_lag=10)
    assert not warm_ups.are_news([FIRST, SECOND], {FIRST: 11}, 1.0)
    assert warm_ups.are_news([FIRST, SECOND], {FIRST: 10, SECOND: 50}, 2.0)
    assert not warm_ups.are_news([FIRST, SECOND], {FIRST: 3, SECOND: 40}, 3.0)
    assert warm_ups.are_news([FIRST, SECOND], {FIRST: 3, SECOND: 4}, 4.0)


def test_it_hears_again_if_it_still_waits_after_a_while() -> None:
    warm_ups = WarmUps(acceptable_lag=10)
    assert warm_ups.are_news([FIRST], {FIRST: 5}, 1.0)
    assert not warm_ups.are_news([FIRST], {FIRST: 5}, 30.0)
    assert warm_ups.are_news([FIRST], {FIRST: 5}, 31.0)
    assert not warm_ups.are_news([FIRST], {FIRST: 5}, 32.0)


def test_it_hears_nothing_of_what_it_does_not_wait_for() -> None:
    warm_ups = WarmUps(acceptable_lag=10)
    assert not warm_ups.are_news([], {FIRST: 0}, 1.0)
    assert warm_ups.are_news([FIRST], {FIRST: 0}, 2.0)
    assert not warm_ups.are_news([], {FIRST: 0}, 60.0)
